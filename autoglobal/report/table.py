"""A report as a table: with rich where there is a terminal or a notebook, else in plain text."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from .._text import printable
from ..layout.sbp import show_sbp
from .rows import Row, Total, kind_of, show_placement

if TYPE_CHECKING:
    from .describe import Report

_COLUMNS = ("path", "class", "kind", "shape", "here", "dtype", "placement", "sbp", "bytes here")
_WIDE = 100_000  # columns: nothing is folded
_READABLE = 100  # columns of text, at least
# Neither terminal nor notebook, because the result has to be the same wherever a process runs.
_NO_SCREEN: dict[str, Any] = {"force_terminal": False, "force_jupyter": False}
_NAMES = 3  # other names of one tensor that are shown
_NOTEBOOK = '<pre style="white-space:pre; overflow-x:auto; line-height:normal">{code}</pre>'


def render(report: Report, console: Console, options: ConsoleOptions) -> RenderResult:
    """What rich prints: one line a tensor, or two where they do not fit."""
    table = _wide(report, box.ROUNDED)
    if _width(console, table) > options.max_width:
        table = _narrow(report)
    yield from _around(report, table)


def plain_text(report: Report) -> str:
    """Lines of any length, of ASCII characters but for names, without codes for colours."""
    stream = io.StringIO()
    console = Console(file=stream, width=_WIDE, color_system=None, **_NO_SCREEN)
    console.print(Group(*_around(report, _wide(report, box.MARKDOWN))))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def printed(report: Report) -> str:
    """What suits the standard output as it is now."""
    console = Console(force_jupyter=False)
    if not console.is_terminal:
        return plain_text(report)
    with console.capture() as capture:
        console.print(report)
    return capture.get().rstrip("\n")


def html(report: Report) -> str:
    """What a notebook shows, as wide as the table."""
    console = Console(file=io.StringIO(), record=True, width=_WIDE, **_NO_SCREEN)
    table = _wide(report, box.ROUNDED)
    console.width = max(_READABLE, _width(console, table))
    console.print(Group(*_around(report, table)))
    return console.export_html(inline_styles=True, code_format=_NOTEBOOK)


def _width(console: Console, table: Table) -> int:
    """What the table needs; of a console's own options it would get no more than there is."""
    return Measurement.get(console, console.options.update(max_width=_WIDE), table).maximum


def _around(report: Report, table: Table) -> Iterator[RenderableType]:
    """The title, the table, and below it the totals and the warnings."""
    yield Text(printable(report.title), style="bold")
    yield table
    for total in report.totals:
        yield Text(_total(total))
    if report.warnings:
        yield Text("Warnings:", style="bold yellow")
    for warning in report.warnings:
        yield Text(f"- {printable(warning.text)}")


def _wide(report: Report, lines: box.Box) -> Table:
    table = Table(box=lines, header_style="bold")
    for name in _COLUMNS:
        table.add_column(name, justify="right" if name == _COLUMNS[-1] else "left")
    for row, style in _styled(report):
        table.add_row(*map(_cell, _cells(row)), style=style)
    return table


def _narrow(report: Report) -> Table:
    table = Table(box=box.ROUNDED, header_style="bold", show_lines=True)
    for name in ("path\nclass, kind", "shape\nhere", "dtype\nbytes here", "placement\nsbp"):
        # Folded and not cut, because a reader cannot see what a table leaves out.
        table.add_column(name, overflow="fold")
    for row, style in _styled(report):
        path, owner, kind, shape, here, dtype, placement, sbp, nbytes = map(_cell, _cells(row))
        pairs = ((path, owner + ", " + kind), (shape, here), (dtype, nbytes), (placement, sbp))
        table.add_row(*(Text("\n").join(pair) for pair in pairs), style=style)
    return table


def _styled(report: Report) -> Iterator[tuple[Row, str | None]]:
    local = [warning.paths for warning in report.warnings if warning.kind == "local"]
    marked = {path for paths in local for path in paths}
    for row in report.rows:
        yield row, "yellow" if row.path in marked else None


def _cell(text: str) -> Text:
    return Text(printable(text))


def _cells(row: Row) -> Iterator[str]:
    more = (f"{len(row.tied) - _NAMES} more",) if len(row.tied) > _NAMES else ()
    also = ", ".join(row.tied[:_NAMES] + more)
    yield f"{row.path} (also {also})" if also else row.path
    yield row.owner
    yield kind_of(row)
    yield str(row.shape)
    yield str(row.component)
    yield row.dtype_name
    yield f"local, {row.device}" if row.placement is None else show_placement(row.placement)
    yield "-" if row.sbp is None else show_sbp(row.sbp)
    yield f"{row.nbytes:,}"


def _total(total: Total) -> str:
    where = "local" if total.placement is None else show_placement(total.placement)
    return (
        f"{where}: {total.tensors} tensor{'s' * (total.tensors != 1)}, {total.nbytes:,} bytes "
        f"here, {total.logical_nbytes:,} bytes logical"
    )
