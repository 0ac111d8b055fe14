"""What a scope or a call has done, as text and as tables of rich."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any, Union

from rich.box import HEAVY_HEAD, Box
from rich.console import Console, Group, JustifyMethod
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from .._compat import dtype_name
from ..layout.rules import show_sbp
from .meter import Meter
from .records import Kept, Left, Record, Records

ROWS = 20  # of each table
_WHAT = ("path", "class", "kind", "shape", "dtype")
_WIDTH = 1 << 12  # in plain text nothing is folded


def headline(records: Records, meter: Meter) -> str:
    """How many tensors, how long it took, and what was sent, in one line."""
    here = sum(one.nbytes for one in records.converted)
    return (
        f"{records.count} converted ({decimal(here)} here), {len(records.kept)} kept, "
        f"{len(records.left)} left local; {meter.seconds:.3f} s, {decimal(meter.sent)} sent, "
        f"{decimal(meter.received)} received"
    )


def pretty(title: str, records: Records, meter: Meter, box: Box | None = HEAVY_HEAD) -> Group:
    """The headline, and a table each of what was converted, kept and left local, if anything."""
    shown: list[Any] = [Text(f"{title}: {headline(records, meter)}")]
    if records.converted:
        shown.append(_table(box, "converted", records.converted, "sbp", "bytes here"))
        shown += map(Text, _totals(records))
    if records.kept:
        shown.append(_table(box, "kept", records.kept, "sbp"))
    if records.left:
        shown.append(_table(box, "left local", records.left, "reason"))
    return Group(*shown)


def plain(title: str, records: Records, meter: Meter) -> str:
    """The same without lines and colours."""
    file = io.StringIO()
    # Whatever the environment asks for; and in a notebook a console would show it.
    console = Console(
        file=file, width=_WIDTH, color_system=None, force_terminal=False, force_jupyter=False
    )
    console.print(pretty(title, records, meter, box=None))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def _table(
    box: Box | None, title: str, found: Sequence[Union[Record, Kept, Left]], *more: str
) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left", box=box)
    for column in (*_WHAT, *more):
        justify: JustifyMethod = "right" if column == "bytes here" else "left"
        table.add_column(column, justify=justify, overflow="fold")
    for one in found[:ROWS]:
        # As Text: in a plain string rich would take brackets for its own.
        table.add_row(*map(Text, _cells(one)))
    if len(found) > ROWS:
        table.caption = f"and {len(found) - ROWS} more"
    return table


def _cells(one: Union[Record, Kept, Left]) -> Iterator[str]:
    yield from (one.path, one.owner, one.kind, str(one.shape), dtype_name(one.dtype))
    if isinstance(one, Left):
        yield one.reason
    else:
        fallback = isinstance(one, Record) and one.fallback
        yield show_sbp(one.sbp) + ", cannot be split" * fallback
    if isinstance(one, Record):
        yield str(one.nbytes)


def _totals(records: Records) -> Iterator[str]:
    totals: dict[str, list[int]] = {}
    for one in records.converted:
        where = f"{show_sbp(one.sbp)} on {one.placement}"
        totals.setdefault(where, []).append(one.nbytes)
    for where, sizes in totals.items():
        yield f"{len(sizes)} x {where}: {decimal(sum(sizes))} here"
