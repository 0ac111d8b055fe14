"""One tensor of a picture: its logical shape, cut over the ranks that hold the parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .._text import printable
from ..layout.placement import Part, Shape, layout_of, show_ranks
from ..layout.sbp import PARTIAL_SUM, NdSbp, show_sbp, split_axis
from .rows import Row, kind_of
from .svg import NEUTRAL, Canvas, colour, cut, hint, number, shortened, text_width

WIDTH = 300
_EDGE = 14  # between a panel's frame and what is in it
_LEFT, _TOP = _EDGE + 16, 97  # of the tensor
_LINE = 15
_INSIDE = WIDTH - 2 * _EDGE
_ROOM = WIDTH - _LEFT - _EDGE  # the greatest width of a tensor
_HEIGHT, _HIGHEST, _LOWEST = 120, 280, 30  # the usual height, that of many parts, and the least
_FLAT, _STEEP = 0.36, 2.5  # a tensor's height for its width, at the least and the most
_SIZES = (12, 11, 10, 9, 8, 7)  # of the text in a part


class Panel(NamedTuple):
    """The drawing of one tensor, and its height."""

    canvas: Canvas
    height: float


def panel_of(row: Row, placement_name: str) -> Panel:
    """The picture of one tensor."""
    canvas = Canvas()
    if row.sbp is None:
        layout = f"local, {row.device}"
    else:
        layout = f"{show_sbp(row.sbp)} on {placement_name}"
    for y, text, kind in (
        (22, row.path, "strong"),
        (38, f"{row.owner}, {kind_of(row)}", "soft"),
        (53, f"{row.shape} {row.dtype_name}", "soft"),
        (68, layout, "warn" if row.sbp is None else ""),
    ):
        _line(canvas, y, text, kind)
    bottom, notes = _scalar(canvas, row) if row.shape == () else _tensor(canvas, row)
    if row.sbp is None:
        notes.append("each rank has one of its own")
    elif PARTIAL_SUM in row.sbp:
        notes.append("partial_sum: add up what + joins")
    if row.tied:
        notes.append(f"also {', '.join(row.tied)}")
    for note in notes:
        bottom += _LINE
        canvas.text(_EDGE, bottom, cut(printable(note), _INSIDE), "soft")
    return Panel(canvas, bottom + _EDGE)


def frame(panel: Panel, height: float) -> None:
    """Put a frame of this height around a panel."""
    panel.canvas.box(0.5, 0.5, WIDTH - 1, height - 1, "panel", rx="6")


def drawn_axes(shape: Shape, nd_sbp: NdSbp) -> tuple[int, ...]:
    """The axes of a tensor that are drawn, two at most: split ones before others."""
    split = dict.fromkeys(axis for sbp in nd_sbp if (axis := split_axis(sbp)) is not None)
    others = (axis for axis in range(len(shape)) if axis not in split)
    return tuple(sorted([*split, *others][:2]))


@dataclass(frozen=True)
class Cell:
    """The parts that a picture shows in one place: a range of each axis that is drawn.

    The first axis goes down. Parts that differ only along an axis that is not drawn share a cell.
    """

    starts: Shape
    lengths: Shape
    parts: list[Part]

    @property
    def label(self) -> str:
        """The ranks that hold it, with ``|`` between the parts."""
        return " | ".join(part.holders for part in self.parts)

    @property
    def first_rank(self) -> int:
        return min(part.ranks[0] for part in self.parts)

    @property
    def is_sum(self) -> bool:
        return any(len(part.summands) > 1 for part in self.parts)


def cells_of(parts: Sequence[Part], axes: tuple[int, ...]) -> list[Cell]:
    """The cells row by row; a single axis makes a single row."""
    cells: dict[tuple[Shape, Shape], Cell] = {}
    for part in parts:
        starts = tuple(part.starts[axis] for axis in axes)
        lengths = tuple(part.lengths[axis] for axis in axes)
        if len(axes) == 1:
            starts, lengths = (0, *starts), (1, *lengths)
        cells.setdefault((starts, lengths), Cell(starts, lengths, [])).parts.append(part)
    return sorted(cells.values(), key=lambda cell: cell.starts)


def _line(canvas: Canvas, y: float, text: str, kind: str) -> None:
    whole = printable(text)
    line = canvas.text(_EDGE, y, shortened(whole, _INSIDE), kind)
    if line.text != whole:
        hint(line, whole)


def _parts(row: Row) -> list[Part]:
    if row.placement is None or row.sbp is None:
        return []
    return layout_of(row.placement).parts(row.shape, row.sbp)


def _scalar(canvas: Canvas, row: Row) -> tuple[float, list[str]]:
    """Draw a tensor without axes; return its lower edge, and the notes on it."""
    x, y = _LEFT + 10, _TOP - 8
    if row.placement is None:
        canvas.dot(x, y, 7, "line local")
        canvas.text(x + 18, y + 4, "local", "soft")
    for part in _parts(row):  # a single part, because there is no axis to split
        kind = "part sum" if len(part.summands) > 1 else "part"
        hint(canvas.dot(x, y, 7, kind, fill=_colour(part, alone=True)), _slices(part))
        canvas.text(x + 18, y + 4, part.holders)
    return y + 8, []


def _tensor(canvas: Canvas, row: Row) -> tuple[float, list[str]]:
    """Draw a tensor that has axes; return its lower edge, and the notes on it."""
    axes = drawn_axes(row.shape, row.sbp or ())
    logical = tuple(row.shape[axis] for axis in axes)
    cells = cells_of(_parts(row), axes)
    width, height = _size(logical, cells)
    _name_axes(canvas, row, axes, height)
    hidden = ", ".join(str(axis) for axis in range(len(row.shape)) if axis not in axes)
    notes = [f"axes not drawn: {hidden}"] if hidden else []
    if row.placement is None or 0 in row.shape:
        holders = "local" if row.placement is None else show_ranks(layout_of(row.placement).members)
        canvas.box(_LEFT, _TOP, width, height, "line local")
        text = f"{holders}{': no elements' * (0 in row.shape)}"
        canvas.text(_LEFT + 8, _TOP + 20, text, "soft")
        return _TOP + height, notes
    if any(len(cell.parts) > 1 for cell in cells):
        notes.append("| between what is cut along these")
    scale = width / logical[-1], height / (logical[0] if len(logical) == 2 else 1)
    boxes = [_box(cell, scale) for cell in cells]
    size = next((size for size in _SIZES if all(_fits(box, size) for box in boxes)), None)
    for box in boxes:
        _draw(canvas, box, size, alone=len(boxes) == 1)
    if size is None:
        notes.insert(0, f"{len(cells)} parts, in order: {_in_order(cells)}")
    return _TOP + height, notes


def _in_order(cells: Sequence[Cell]) -> str:
    if all(cell.label == str(cell.first_rank) for cell in cells):
        return show_ranks([cell.first_rank for cell in cells])
    return "; ".join(cell.label for cell in cells)


def _size(logical: tuple[int, ...], cells: Sequence[Cell]) -> tuple[float, float]:
    """The width and the height: in proportion, as far as the labels have room in the cells."""
    rows, columns = (max(1, len({cell.starts[axis] for cell in cells})) for axis in (0, 1))
    longest = max((text_width(cell.label, 9) for cell in cells), default=0) + 8
    if len(logical) == 1:
        upright = columns * longest > _ROOM >= columns * 12
        return _ROOM, min(longest, _HEIGHT) if upright else _LOWEST
    down, across = (max(1, length) for length in logical)
    ratio = min(max(down / across, _FLAT), _STEEP)
    width = min(_ROOM, _HEIGHT / ratio)
    height = min(_HIGHEST, max(width * ratio, rows * 16))
    return min(_ROOM, max(width, 90, columns * longest)), height


def _name_axes(canvas: Canvas, row: Row, axes: tuple[int, ...], height: float) -> None:
    *down, across = (f"axis {axis}: {row.shape[axis]}" for axis in axes)
    canvas.text(_LEFT, _TOP - 7, f"{across} \N{RIGHTWARDS ARROW}", "soft", size=10)
    for name in down:
        text = shortened(f"\N{LEFTWARDS ARROW} {name}", height, 10)
        x, y = _LEFT - 7, _TOP + height
        canvas.text(x, y, text, "soft", size=10, transform=f"rotate(-90 {x} {number(y)})")


class _Box(NamedTuple):
    """Where a cell is drawn."""

    cell: Cell
    x: float
    y: float
    width: float
    height: float


def _box(cell: Cell, scale: tuple[float, float]) -> _Box:
    across, down = scale
    x, y = _LEFT + across * cell.starts[1], _TOP + down * cell.starts[0]
    return _Box(cell, x, y, across * cell.lengths[1], down * cell.lengths[0])


def _fits(box: _Box, size: float) -> bool:
    """Whether the label has room in the box, from left to right or upwards."""
    long, high = text_width(box.cell.label, size) + 4, size + 2
    return min(box.width, box.height) >= high and max(box.width, box.height) >= long


def _draw(canvas: Canvas, box: _Box, size: float | None, alone: bool) -> None:
    cell, x, y, width, height = box
    kind = "part sum" if cell.is_sum else "part"
    drawn = canvas.box(x, y, width, height, kind, fill=_colour(cell.parts[0], alone))
    hint(drawn, "; ".join(map(_slices, cell.parts)))
    if size is not None:
        up = text_width(cell.label, size) + 4 > width
        canvas.centred(x + width / 2, y + height / 2, cell.label, size, up=up)


def _colour(part: Part, alone: bool) -> str:
    """The colour of the first rank; a neutral one where several hold the only part."""
    return NEUTRAL if alone and len(part.ranks) > 1 else colour(part.ranks[0])


def _slices(part: Part) -> str:
    ends = [start + length for start, length in zip(part.starts, part.lengths)]
    slices = ", ".join(f"{start}:{end}" for start, end in zip(part.starts, ends))
    return f"[{slices}] on rank {part.holders}" if slices else f"rank {part.holders}"
