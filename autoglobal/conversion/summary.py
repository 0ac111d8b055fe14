"""The summary of a scope or a call: as text, as tables of rich, and as lines of the log.

The logger ``autoglobal`` is silent until the program gives it a handler. A line is written when
what it tells is over, and one that cannot be written changes nothing: it must neither leave a
module half converted nor part the ranks, of which one alone may log.
"""

from __future__ import annotations

import io
import logging
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from logging import DEBUG, INFO
from typing import Any, Union

from rich.box import HEAVY_HEAD, Box
from rich.console import Console, Group, JustifyMethod
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from .._compat import dtype_name
from .._text import printable
from ..layout.sbp import show_sbp
from .records import Kept, Left, Record, Records

__all__ = ["DEBUG", "INFO", "ConversionRecord", "headline", "is_logged", "write_log"]

ROWS = 20  # of each table
_COLUMNS = ("path", "class", "kind", "shape", "dtype")
_KEPT = "kept, met in what was assigned"
_WIDTH = 1 << 12  # in plain text nothing is folded

_logger = logging.getLogger("autoglobal")
_logger.addHandler(logging.NullHandler())

# Whether a line of a level is wanted; to be asked before anything is made up for one.
is_logged = _logger.isEnabledFor


def write_log(level: int, text: Callable[[], str]) -> None:
    """Write one line; an error in it, or of a handler's or a filter's own, goes to stderr."""
    try:
        _logger.log(level, printable(text()), stacklevel=2)
    except Exception:
        # As logging.Handler.handleError does, which not every handler gets to.
        if logging.raiseExceptions and sys.stderr is not None:
            with suppress(Exception):
                traceback.print_exc()


def headline(records: Records) -> str:
    """How many tensors, how long it took, and what was sent, in one line."""
    here = sum(one.nbytes for one in records.converted)
    return (
        f"{records.count_converted()} converted ({decimal(here)} here), {len(records.kept)} kept, "
        f"{len(records.left)} left local; {records.seconds:.3f} s, {decimal(records.sent)} sent, "
        f"{decimal(records.received)} received"
    )


class ConversionRecord(Records):
    """What a conversion has done: an empty one, for ``local_to_global`` to fill.

    ::

        record = ConversionRecord()
        local_to_global(model, placement, sbp, record=record)
        print(record)                           # tables, as of a scope
        assert [one.path for one in record.converted] == ["weight", "bias"]

    It is what a scope is too: ``converted``, ``kept``, ``left``, ``seconds``, ``sent`` and
    ``received`` stand in :class:`autoglobal.ActiveScope`. Several calls add up, so that what one
    has made global the next one may have kept; a call that raises adds nothing. It holds no tensor
    and no module, and can be copied and pickled.
    """

    is_shown = True

    def __init__(self) -> None:
        super().__init__()
        self._titles: list[str] = []

    def add_call(self, title: str, records: Records) -> None:
        """Add what a call of this title has done."""
        self._titles.append(title)
        self.absorb(records)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_titles": [self._title()]}

    def __str__(self) -> str:
        return _plain(self._title(), self)

    def __rich__(self) -> Group:
        return _pretty(self._title(), self)

    def __repr__(self) -> str:
        return printable(f"<{self._title()}: {self._counts()}>")

    def _title(self) -> str:
        return ", ".join(self._titles) or "nothing yet"

    def _counts(self) -> str:
        return (
            f"{self.count_converted()} converted, {len(self.kept)} kept, "
            f"{len(self.left)} left local"
        )


def _pretty(title: str, records: Records, box: Box | None = HEAVY_HEAD) -> Group:
    """The headline, and a table each of what was converted, kept and left local, if anything."""
    shown: list[Any] = [Text(printable(f"{title}: {headline(records)}"))]
    waiting = records.waiting
    if waiting:
        more = f" and {len(waiting) - ROWS} more" * (len(waiting) > ROWS)
        names = printable(", ".join(waiting[:ROWS]))
        shown.append(Text(f"to be converted as the block ends: {names}{more}"))
    if records.converted:
        shown.append(_table(box, "converted", records.converted, "sbp", "bytes here"))
        shown += map(Text, _totals(records))
    if records.kept:
        shown.append(_table(box, _KEPT, records.kept, "sbp"))
    if records.left:
        shown.append(_table(box, "left local", records.left, "reason"))
    if records.left_alone:
        shown.append(Text(_left_alone(records.left_alone)))
    return Group(*shown)


def _left_alone(count: int) -> str:
    tensors = "tensor" if count == 1 else "tensors"
    return f"{count} more global {tensors} of the modules that were added to: as before"


def _plain(title: str, records: Records) -> str:
    """The same without lines and colours."""
    file = io.StringIO()
    # Whatever the environment asks for; and in a notebook a console would show it.
    console = Console(
        file=file, width=_WIDTH, color_system=None, force_terminal=False, force_jupyter=False
    )
    console.print(_pretty(title, records, box=None))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def _table(
    box: Box | None, title: str, found: Sequence[Union[Record, Kept, Left]], *more: str
) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left", box=box)
    for column in (*_COLUMNS, *more):
        justify: JustifyMethod = "right" if column == "bytes here" else "left"
        table.add_column(column, justify=justify, overflow="fold")
    for one in found[:ROWS]:
        # As Text: in a plain string rich would take brackets for its own.
        table.add_row(*(Text(printable(cell)) for cell in _cells(one)))
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
