"""A report as a table: with rich where there is a terminal or a notebook, else in plain text."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

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

_WIDE = 100_000  # columns: nothing is folded
_READABLE = 100  # columns of text, at least
# Neither terminal nor notebook, because the result has to be the same wherever a process runs.
_NO_SCREEN: dict[str, Any] = {"force_terminal": False, "force_jupyter": False}
_NAMES = 3  # other names of one tensor that are shown
_NOTEBOOK = '<pre style="white-space:pre; overflow-x:auto; line-height:normal">{code}</pre>'


class Columns(NamedTuple):
    """The heads of a table's columns; ``pairs``: how they are stacked where there is no room.

    Of each pair the second stands below the first, and a third one behind the second.
    """

    names: Sequence[str]
    pairs: Sequence[Sequence[int]]

    def justify(self, index: int) -> Any:
        return "right" if self.names[index].startswith("bytes") else "left"


class Line(NamedTuple):
    """The cells of one row, and the style of it."""

    cells: Sequence[str]
    style: Optional[str] = None


@dataclass(frozen=True)
class Sheet:
    """What is shown of a report: a title, a table, and below it some lines and the warnings."""

    title: str
    columns: Columns
    lines: Sequence[Line]
    below: Sequence[str]
    warnings: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """What rich prints: one line a tensor, or two where they do not fit."""
        table = self._wide(box.ROUNDED)
        if _width(console, table) > options.max_width:
            table = self._narrow()
        yield from self._around(table)

    def text(self) -> str:
        """Lines of any length, of ASCII characters but for names, without codes for colours."""
        stream = io.StringIO()
        console = Console(file=stream, width=_WIDE, color_system=None, **_NO_SCREEN)
        console.print(Group(*self._around(self._wide(box.MARKDOWN))))
        return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())

    def printed(self) -> str:
        """What suits the standard output as it is now."""
        console = Console(force_jupyter=False)
        if not console.is_terminal:
            return self.text()
        with console.capture() as capture:
            console.print(self)
        return capture.get().rstrip("\n")

    def html(self) -> str:
        """What a notebook shows, as wide as the table."""
        console = Console(file=io.StringIO(), record=True, width=_WIDE, **_NO_SCREEN)
        table = self._wide(box.ROUNDED)
        console.width = max(_READABLE, _width(console, table))
        console.print(Group(*self._around(table)))
        return console.export_html(inline_styles=True, code_format=_NOTEBOOK)

    def _around(self, table: Table) -> Iterator[RenderableType]:
        yield Text(printable(self.title), style="bold")
        yield table
        for line in self.below:
            yield Text(printable(line))
        if self.warnings:
            yield Text("Warnings:", style="bold yellow")
        for warning in self.warnings:
            yield Text(f"- {printable(warning)}")

    def _wide(self, lines: box.Box) -> Table:
        table = Table(box=lines, header_style="bold")
        for index, name in enumerate(self.columns.names):
            table.add_column(name, justify=self.columns.justify(index))
        for line in self.lines:
            table.add_row(*map(_cell, line.cells), style=line.style)
        return table

    def _narrow(self) -> Table:
        table = Table(box=box.ROUNDED, header_style="bold", show_lines=True)
        for pair in self.columns.pairs:
            # Folded and not cut, because a reader cannot see what a table leaves out.
            table.add_column(_stacked(self.columns.names, pair), overflow="fold")
        for line in self.lines:
            cells = [printable(cell) for cell in line.cells]
            stacked = (_stacked(cells, pair) for pair in self.columns.pairs)
            table.add_row(*map(Text, stacked), style=line.style)
        return table


def _width(console: Console, table: Table) -> int:
    """What the table needs; of a console's own options it would get no more than there is."""
    return Measurement.get(console, console.options.update(max_width=_WIDE), table).maximum


def _stacked(cells: Sequence[str], pair: Sequence[int]) -> str:
    first, *others = (cells[index] for index in pair)
    return f"{first}\n{', '.join(others)}"


def _cell(text: str) -> Text:
    return Text(printable(text))


_OF_REPORT = Columns(
    ("path", "class", "kind", "shape", "here", "dtype", "placement", "sbp", "bytes here"),
    ((0, 1, 2), (3, 4), (5, 8), (6, 7)),
)


def sheet_of(report: Report) -> Sheet:
    """The table of what a module holds."""
    local = [warning.paths for warning in report.warnings if warning.kind == "local"]
    marked = {path for paths in local for path in paths}
    return Sheet(
        report.title,
        _OF_REPORT,
        [Line([*_cells(row)], "yellow" if row.path in marked else None) for row in report.rows],
        [*map(show_total, report.totals)],
        [warning.text for warning in report.warnings],
    )


def _cells(row: Row) -> Iterator[str]:
    yield show_names(row)
    yield row.owner
    yield kind_of(row)
    yield str(row.shape)
    yield str(row.component)
    yield row.dtype_name
    yield f"local, {row.device}" if row.placement is None else show_placement(row.placement)
    yield "-" if row.sbp is None else show_sbp(row.sbp)
    yield f"{row.nbytes:,}"


def show_names(row: Row) -> str:
    """The path, and some of the other names that the tensor has."""
    more = (f"{len(row.tied) - _NAMES} more",) if len(row.tied) > _NAMES else ()
    also = ", ".join(row.tied[:_NAMES] + more)
    return f"{row.path} (also {also})" if also else row.path


def show_total(total: Total) -> str:
    """How many tensors are there, and their bytes, in words."""
    where = "local" if total.placement is None else show_placement(total.placement)
    return (
        f"{where}: {total.tensors} tensor{'s' * (total.tensors != 1)}, {total.nbytes:,} bytes "
        f"here, {total.logical_nbytes:,} bytes logical"
    )
