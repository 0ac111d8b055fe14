"""Which part of a logical tensor lies on which ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .rules import PARTIAL_SUM, NdSbp, split_axis
from .spec import Layout, Shape

_SHOWN = 6  # ranks of a list


@dataclass(frozen=True)
class Part:
    """A part of a tensor, and the ranks that hold it.

    ``summands`` has one entry where they hold the part itself, each of them the same, and several
    where the part is the sum of what these groups of ranks hold.
    """

    starts: Shape
    lengths: Shape
    summands: tuple[tuple[int, ...], ...]

    @property
    def ranks(self) -> list[int]:
        return sorted(rank for group in self.summands for rank in group)


def parts_of(shape: Shape, sbp: NdSbp, layout: Layout) -> list[Part]:
    """The parts of a tensor, in the order of the placement's ranks."""
    groups: dict[tuple[Shape, Shape], dict[Shape, list[int]]] = {}
    summed = [dim for dim, one in enumerate(sbp) if one == PARTIAL_SUM]
    for rank, position in layout.positions.items():
        summand = tuple(position[dim] for dim in summed)
        there = groups.setdefault(layout.where(shape, sbp, position), {})
        there.setdefault(summand, []).append(rank)
    return [
        Part(*place, summands=tuple(tuple(group) for group in there.values()))
        for place, there in groups.items()
    ]


def drawn_axes(shape: Shape, sbp: NdSbp) -> tuple[int, ...]:
    """The axes of a tensor that are drawn, two at most: those that are cut before others."""
    cut = dict.fromkeys(axis for one in sbp if (axis := split_axis(one)) is not None)
    return tuple(sorted([*cut, *(axis for axis in range(len(shape)) if axis not in cut)][:2]))


def show_holders(part: Part) -> str:
    """``0-3``; ``0, 2``; ``0 + 1`` for summands; ``(0, 1) + (2, 3)``."""
    if len(part.summands) == 1:
        return show_ranks(part.summands[0])
    if all(len(group) == 1 for group in part.summands):
        ranks = [group[0] for group in part.summands]
        if len(ranks) <= _SHOWN:
            return " + ".join(map(str, ranks))
        return f"{ranks[0]} + {ranks[1]} + ... + {ranks[-1]}"
    groups = [f"({show_ranks(group)})" for group in part.summands]
    if len(groups) > _SHOWN:
        groups = [groups[0], groups[1], "...", groups[-1]]
    return " + ".join(groups)


def show_ranks(ranks: Sequence[int]) -> str:
    """``0-7``, ``0, 8, ..., 56`` for equal steps, ``0, 2``."""
    step = ranks[1] - ranks[0] if len(ranks) > 1 else 0
    even = all(after - before == step for before, after in zip(ranks, ranks[1:]))
    if even and step == 1 and len(ranks) > 2:
        return f"{ranks[0]}-{ranks[-1]}"
    if len(ranks) <= (3 if even else _SHOWN):
        return ", ".join(map(str, ranks))
    dots = f"{ranks[0]}, {ranks[1]}, ..., {ranks[-1]}"
    return dots if even else f"{dots} ({len(ranks)} ranks)"


@dataclass(frozen=True)
class Cell:
    """What can be seen of parts along the axes that are drawn, the first of them down.

    There are several parts in one that are apart along another axis.
    """

    starts: Shape
    lengths: Shape
    parts: list[Part]

    @property
    def label(self) -> str:
        """Who holds it, with ``|`` between the parts."""
        return " | ".join(show_holders(part) for part in self.parts)

    @property
    def first(self) -> int:
        return min(part.ranks[0] for part in self.parts)

    @property
    def is_sum(self) -> bool:
        return any(len(part.summands) > 1 for part in self.parts)


def cells_of(parts: Sequence[Part], axes: tuple[int, ...]) -> list[Cell]:
    """The cells row by row; what has one axis is one row."""
    cells: dict[tuple[Shape, Shape], Cell] = {}
    for part in parts:
        starts = tuple(part.starts[axis] for axis in axes)
        lengths = tuple(part.lengths[axis] for axis in axes)
        if len(axes) == 1:
            starts, lengths = (0, *starts), (1, *lengths)
        cells.setdefault((starts, lengths), Cell(starts, lengths, [])).parts.append(part)
    return sorted(cells.values(), key=lambda cell: cell.starts)
