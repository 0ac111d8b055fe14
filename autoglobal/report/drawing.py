"""The picture of a report: an SVG file of its placements and of each tensor cut over the ranks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .._text import printable, short_repr
from ..errors import SpecError, SpecTypeError
from ..layout.placement import layout_of, show_ranks
from .panel import WIDTH, frame, panel_of
from .svg import Canvas, colour, page, shortened, text_width

if TYPE_CHECKING:
    from .describe import Report

_GAP = 16
_CELL_WIDTH, _CELL_HEIGHT = 30, 20
_SHOWN = 8  # ranks along a dimension of a placement, at most
_COLUMNS = 3  # tensors side by side, at most
_GRIDS = 4  # of one placement, at most
_HEAD = 4096  # bytes in which an SVG file says that it is one


def draw(report: Report, path: Any, limit: Any) -> None:
    """Write the picture; what is raised stands in :meth:`autoglobal.Report.draw`."""
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise SpecTypeError(
            f"limit must be a whole number of tensors. Received: limit={short_repr(limit)}. "
            "Write, for example, limit=60"
        )
    if limit < 1:
        raise SpecError(
            f"limit must be at least 1. Received: limit={limit!r}. Write, for example, limit=60"
        )
    file = _checked(path)
    text = svg(report, limit)
    try:
        lost = _what_is_lost(file)
        if lost is None:
            file.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: a character that no path can have
        raise SpecError(
            f"path cannot be written: {getattr(error, 'strerror', None) or error}. Expected: a "
            f".svg file in a folder that exists and can be written to. Received: path={path!r}. "
            "Make the folder, or write another one"
        ) from error
    if lost is not None:
        raise SpecError(
            f"path must be a new file or an SVG picture. Received: path={path!r}, {lost}. Write "
            "another one, or remove what is there"
        )


def _what_is_lost(file: Path) -> str | None:
    """What a picture would overwrite, or make elsewhere, if it is not a picture again."""
    if not file.is_file():
        return "a link to what is not there" if file.is_symlink() else None
    with file.open("rb") as stream:
        head = stream.read(_HEAD)
    return "a file that is no SVG picture" if head and b"<svg" not in head else None


def _checked(path: Any) -> Path:
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise SpecTypeError(
            "path must be a string or a pathlib.Path, such as 'model.svg'. Received: "
            f"path={short_repr(path)}"
        )
    file = Path(path)
    if file.suffix.lower() != ".svg":
        raise SpecError(
            f"path must end in .svg, which is what is written. Received: path={path!r}. "
            f"Write {str(file.with_suffix('.svg')) if file.name else 'model.svg'!r}"
        )
    return file


def svg(report: Report, limit: int) -> str:
    """The text of the file."""
    columns = min(_COLUMNS, max(2, min(limit, len(report.rows))))
    width = columns * (WIDTH + _GAP) + _GAP
    canvas = Canvas()
    title = _title(report)
    canvas.text(_GAP, 34, shortened(printable(title), width - 2 * _GAP, 16), "strong", size=16)
    placements = [total.placement for total in report.totals if total.placement is not None]
    names = {placement: _name(index) for index, placement in enumerate(placements)}
    legends = [_legend(name, place, report.world_size) for place, name in names.items()]
    bottom = _place_legends(canvas, legends, width, 52)
    panels = [panel_of(row, names.get(row.placement, "")) for row in report.rows[:limit]]
    for first in range(0, len(panels), columns):
        line = panels[first : first + columns]
        height = max(panel.height for panel in line)
        for index, panel in enumerate(line):
            frame(panel, height)
            canvas.place(panel.canvas, _GAP + index * (WIDTH + _GAP), bottom)
        bottom += height + _GAP
    bottom += _GAP / 2
    for note in _notes(report, limit):
        canvas.text(_GAP, bottom, shortened(printable(note), width - 2 * _GAP), "soft")
        bottom += 16
    return page(canvas, width, bottom, title)


def _title(report: Report) -> str:
    count, ranks = len(report.rows), report.world_size
    return f"{report.module}: {count} tensor{'s' * (count != 1)} on {ranks} rank{'s' * (ranks > 1)}"


def _name(index: int) -> str:
    return chr(ord("A") + index) if index < 26 else f"P{index}"


def _notes(report: Report, limit: int) -> list[str]:
    key = [
        "In each part: the ranks that hold it. 0-3: each of the four; 0 + 1: what is to be added.",
        "Cuts are to scale along each axis. An sbp has one entry per dimension of its placement.",
    ]
    left_out = report.rows[limit:]
    if not left_out:
        return key
    first, last = left_out[0].path, left_out[-1].path
    names = first if len(left_out) == 1 else f"{first} ... {last}"
    return [*key, f"Not drawn (limit={limit}): {len(left_out)} more, {names}"]


class _Drawing(NamedTuple):
    """Something drawn, and how large it is."""

    canvas: Canvas
    width: float
    height: float


def _place_legends(canvas: Canvas, legends: Sequence[_Drawing], width: float, top: float) -> float:
    """Put the placements side by side as far as they fit; return their lower edge."""
    x, y, highest = float(_GAP), top, 0.0
    for legend in legends:
        if x > _GAP and x + legend.width > width - _GAP:
            x, y, highest = float(_GAP), y + highest, 0.0
        canvas.place(legend.canvas, x, y)
        x, highest = x + legend.width + 2 * _GAP, max(highest, legend.height)
    return y + highest


def _legend(name: str, placement: Any, world_size: int) -> _Drawing:
    """The drawing of a placement: a name, and a grid of ranks with the dimensions."""
    canvas, layout = Canvas(), layout_of(placement)
    size = " x ".join(map(str, layout.hierarchy))
    heading = f"{name}: {placement.type}, {size} rank{'s' * (len(layout.members) > 1)}"
    outside = sorted(set(range(world_size)) - set(layout.members))
    if outside:
        heading += f", not on {show_ranks(outside)}"
    canvas.text(0, 12, heading, "strong")
    # Each grid shows the last two dimensions, because it has no more than two.
    outer = layout.hierarchy[:-2]
    indices = list(product(*map(range, outer)))
    x, height = 0.0, 0.0
    for index in indices[:_GRIDS]:
        grid = _grid(placement.ranks[index], index)
        canvas.place(grid.canvas, x, 20)
        x, height = x + grid.width + _GAP, max(height, grid.height)
    if len(indices) > _GRIDS:
        canvas.text(x, 60, f"... {len(indices) - _GRIDS} more", "soft")
        x += 80
    return _Drawing(canvas, max(x, text_width(heading, 11)), 20 + height + _GAP)


def _grid(ranks: Any, index: tuple[int, ...]) -> _Drawing:
    """The last one or two dimensions of a placement, at an index of those before."""
    canvas, first = Canvas(), len(index)
    caption = f"dimension{'s' * (ranks.ndim > 1)} {first} "
    if ranks.ndim == 2:
        caption += f"\N{DOWNWARDS ARROW}, {first + 1} "
    caption += "\N{RIGHTWARDS ARROW}"
    if index:
        caption = f"[{', '.join(map(str, index))}, :, :]: {caption}"
    canvas.text(0, 11, caption, "soft", size=10)
    table = ranks if ranks.ndim == 2 else ranks[None]
    rows, columns = _shown(table.shape[0]), _shown(table.shape[1])
    for down, row in enumerate(rows):
        for across, column in enumerate(columns):
            rank = None if row is None or column is None else int(table[row, column])
            _draw_rank(canvas, across * _CELL_WIDTH, 16 + down * _CELL_HEIGHT, rank)
    width = max(len(columns) * _CELL_WIDTH, text_width(caption, 10))
    return _Drawing(canvas, width, 16 + len(rows) * _CELL_HEIGHT)


def _draw_rank(canvas: Canvas, x: float, y: float, rank: int | None) -> None:
    if rank is None:
        canvas.text(x + 8, y + 13, "...", "soft")
        return
    canvas.box(x, y, _CELL_WIDTH, _CELL_HEIGHT, "part", fill=colour(rank))
    canvas.centred(x + _CELL_WIDTH / 2, y + _CELL_HEIGHT / 2, str(rank), 11)


def _shown(count: int) -> list[int | None]:
    """The indices that are shown of ``count``; None stands for those left out."""
    if count <= _SHOWN:
        return [*range(count)]
    return [*range(_SHOWN - 2), None, count - 1]
