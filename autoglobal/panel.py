"""One tensor of a picture: its logical shape, cut over the ranks that hold the parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .parts import Part, drawn_axes, parts_of, show_holders, show_ranks
from .rows import Row, layout_of
from .rules import PARTIAL_SUM, show_sbp, split_axis
from .spec import GlobalSpec, Shape
from .svg import Canvas, colour, hint, shortened, text_width
from .table import kind_of, shown

WIDTH = 300
_EDGE = 14  # between a panel's frame and what is in it
_LEFT, _TOP = _EDGE + 16, 82  # of the tensor
_LINE = 15
_ROOM = WIDTH - _LEFT - _EDGE  # the greatest width of a tensor
_HEIGHT, _HIGHEST, _LOWEST = 120, 280, 30  # the usual height, that of many parts, and the least
_SIZES = (12, 11, 10, 9, 8, 7)  # of the text in a part


class Panel(NamedTuple):
    """What is drawn of one tensor, and how high it is."""

    canvas: Canvas
    height: float


def panel_of(row: Row, place: str) -> Panel:
    """The picture of one tensor; ``place`` names its placement."""
    canvas = Canvas()
    path = canvas.text(_EDGE, 22, shortened(shown(row.path), WIDTH - 2 * _EDGE, 12), "strong")
    path.set("font-size", "12")
    hint(path, row.path)
    what = f"{row.owner}, {kind_of(row)}"
    canvas.text(_EDGE, 38, shortened(shown(what), WIDTH - 2 * _EDGE), "soft")
    layout = f"{show_sbp(row.sbp)} on {place}" if row.sbp else f"local, {row.device}"
    canvas.text(_EDGE, 53, shortened(layout, WIDTH - 2 * _EDGE), "" if row.sbp else "warn")
    bottom = _tensor(canvas, row)
    for note in _notes(row):
        bottom += _LINE
        canvas.text(_EDGE, bottom, shortened(shown(note), WIDTH - 2 * _EDGE), "soft")
    return Panel(canvas, bottom + _EDGE)


def frame(panel: Panel, height: float) -> None:
    """Put a frame of this height around it."""
    panel.canvas.box(0.5, 0.5, WIDTH - 1, height - 1, "panel", rx="6")


def _notes(row: Row) -> Iterator[str]:
    if row.tied:
        yield f"also {', '.join(row.tied)}"
    if row.placement is None:
        yield "each rank has its own; this is what one has"
        return
    axes = drawn_axes(row.shape, row.sbp or ())
    hidden = [axis for axis in range(len(row.shape)) if axis not in axes]
    if hidden:
        yield f"not drawn: {_axes(hidden)}"
    cut = sorted({axis for one in row.sbp or () if (axis := split_axis(one)) in hidden})
    if cut:
        yield f"cut along {_axes(cut)} too: | in between"
    if PARTIAL_SUM in (row.sbp or ()):
        yield "partial_sum: the tensor is the sum over +"


def _axes(axes: list[int]) -> str:
    return f"ax{'e' if len(axes) > 1 else 'i'}s {', '.join(map(str, axes))}"


class _Cell(NamedTuple):
    """A box of the picture: where along both drawn axes it is, and the parts in it."""

    starts: Shape
    lengths: Shape
    parts: list[Part]

    @property
    def label(self) -> str:
        return " | ".join(show_holders(part) for part in self.parts)

    @property
    def first(self) -> int:
        return min(part.ranks[0] for part in self.parts)

    @property
    def is_sum(self) -> bool:
        return any(len(part.summands) > 1 for part in self.parts)


def _tensor(canvas: Canvas, row: Row) -> float:
    """Draw the tensor itself; return where it ends."""
    layout = None if row.placement is None else layout_of(row.placement)
    parts = [] if layout is None else parts_of(row.shape, row.sbp or (), layout)
    if row.shape == ():
        return _scalar(canvas, row, parts)
    axes = drawn_axes(row.shape, row.sbp or ())
    cells = _cells(parts, axes)
    width, height = _size(tuple(row.shape[axis] for axis in axes), cells)
    _name_axes(canvas, row, axes, layout, height)
    if row.placement is None or 0 in row.shape:
        text = f"{show_ranks(layout.members)}: no elements" if layout else "local"
        text = "local, no elements" if layout is None and 0 in row.shape else text
        canvas.box(_LEFT, _TOP, width, height, "line local")
        canvas.text(_LEFT + 8, _TOP + min(height / 2 + 4, 20), text, "soft")
        return _TOP + height
    logical = [row.shape[axis] for axis in axes]
    if len(axes) == 1:
        logical.insert(0, 1)
    named = [_draw_cell(canvas, cell, logical, width, height) for cell in cells]
    if not all(named):
        order = ", ".join(cell.label for cell in cells)
        canvas.text(_EDGE, _TOP + height + _LINE, _short_order(cells, order), "soft")
        return _TOP + height + _LINE
    return _TOP + height


def _short_order(cells: list[_Cell], order: str) -> str:
    firsts = [cell.first for cell in cells]
    single = all(len(cell.parts) == 1 and len(cell.parts[0].ranks) == 1 for cell in cells)
    shown_order = show_ranks(firsts) if single else order
    return shortened(f"{len(cells)} parts, in order: {shown_order}", WIDTH - 2 * _EDGE)


def _scalar(canvas: Canvas, row: Row, parts: list[Part]) -> float:
    x, y = _LEFT + 10, _TOP - 8
    if row.placement is None:
        canvas.dot(x, y, 7, "line local")
        canvas.text(x + 18, y + 4, "local", "soft")
    for part in parts:  # one: a tensor without axes cannot be split
        kind = "part sum" if len(part.summands) > 1 else "part"
        hint(canvas.dot(x, y, 7, kind, fill=colour(part.ranks[0])), _told(part))
        canvas.text(x + 18, y + 4, show_holders(part))
    return y + 8


def _cells(parts: list[Part], axes: tuple[int, ...]) -> list[_Cell]:
    """The parts by what can be seen of them, row by row."""
    cells: dict[tuple[Shape, Shape], _Cell] = {}
    for part in parts:
        starts = tuple(part.starts[axis] for axis in axes)
        lengths = tuple(part.lengths[axis] for axis in axes)
        if len(axes) == 1:
            starts, lengths = (0, *starts), (1, *lengths)
        cells.setdefault((starts, lengths), _Cell(starts, lengths, [])).parts.append(part)
    return sorted(cells.values(), key=lambda cell: cell.starts)


def _size(logical: tuple[int, ...], cells: list[_Cell]) -> tuple[float, float]:
    """The width and the height: in proportion, as far as that can be seen and written in."""
    if len(logical) == 1:
        return _ROOM, _LOWEST
    down, across = (max(1, length) for length in logical)
    ratio = min(max(down / across, 0.2), 2.5)
    width = min(_ROOM, _HEIGHT / ratio)
    height = width * ratio
    rows = len({cell.starts[0] for cell in cells})
    columns = len({cell.starts[1] for cell in cells})
    longest = max((text_width(cell.label, 9) for cell in cells), default=0) + 8
    width = min(_ROOM, max(width, 90, columns * longest))
    return width, min(_HIGHEST, max(height, _LOWEST, rows * 16))


def _name_axes(
    canvas: Canvas, row: Row, axes: tuple[int, ...], layout: GlobalSpec | None, height: float
) -> None:
    names = []
    for axis in axes:
        dims = [dim for dim, one in enumerate(row.sbp or ()) if split_axis(one) == axis]
        over = (
            f", cut by dim {', '.join(map(str, dims))}" if dims and len(row.sbp or ()) > 1 else ""
        )
        names.append(f"axis {axis}: {row.shape[axis]}{over}")
    canvas.text(_LEFT, _TOP - 7, f"{names[-1]} →", "soft", size=10)
    if len(names) == 2:
        text = (
            shortened(f"← {names[0]}", height, 10)
            if len(names[0]) * 6 > height
            else f"← {names[0]}"
        )
        x, y = _LEFT - 7, _TOP + height
        canvas.text(x, y, text, "soft", size=10, transform=f"rotate(-90 {x} {y:g})")


def _draw_cell(
    canvas: Canvas, cell: _Cell, logical: list[int], width: float, height: float
) -> bool:
    """Whether its ranks could be written into it."""
    x, y = _LEFT + width * cell.starts[1] / logical[1], _TOP + height * cell.starts[0] / logical[0]
    wide, high = width * cell.lengths[1] / logical[1], height * cell.lengths[0] / logical[0]
    kind = "part sum" if cell.is_sum else "part"
    box = canvas.box(x, y, wide, high, kind, fill=colour(cell.first))
    hint(box, "; ".join(map(_told, cell.parts)))
    for size in _SIZES:
        across, up = text_width(cell.label, size) + 4, size + 2
        if across <= wide and up <= high:
            canvas.centred(x + wide / 2, y + high / 2, cell.label, size)
            return True
        if across <= high and up <= wide:
            canvas.centred(x + wide / 2, y + high / 2, cell.label, size, up=True)
            return True
    return False


def _told(part: Part) -> str:
    ends = [start + length for start, length in zip(part.starts, part.lengths)]
    slices = ", ".join(f"{start}:{end}" for start, end in zip(part.starts, ends))
    return f"[{slices}] on rank {show_holders(part)}" if slices else f"rank {show_holders(part)}"
