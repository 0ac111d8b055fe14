"""The ranks of a placement, and the part of a tensor that each of them holds.

Arithmetic only: nothing here runs an operation or asks another rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from typing import Any

from .._compat import this_rank, world_size
from .sbp import BROADCAST, PARTIAL_SUM, NdSbp, split_axis

Shape = tuple[int, ...]
_SHOWN = 6  # ranks of a list


@dataclass(frozen=True)
class PlacementLayout:
    """Where the ranks of a placement are in it, and how a tensor on it is cut."""

    placement: Any

    @cached_property
    def hierarchy(self) -> Shape:
        """The number of ranks along each dimension of the placement."""
        return tuple(self.placement.ranks.shape)

    @cached_property
    def members(self) -> list[int]:
        """The ranks of the placement, in its order."""
        return [int(rank) for rank in self.placement.ranks.flatten()]

    @cached_property
    def first(self) -> int:
        """The rank whose values count."""
        return self.members[0]

    @cached_property
    def positions(self) -> dict[int, Shape]:
        """The index of each rank of the placement along each of its dimensions."""
        return {
            int(self.placement.ranks[index]): index
            for index in product(*(range(ranks) for ranks in self.hierarchy))
        }

    @cached_property
    def position(self) -> Shape | None:
        """The index of this rank; None where the placement leaves it out."""
        return self.positions.get(this_rank())

    @cached_property
    def is_everybody(self) -> bool:
        """Whether every rank of the program is in the placement."""
        return len(self.members) == world_size()

    @cached_property
    def is_this_rank(self) -> bool:
        """Whether this is the only rank there is, so that each component is a whole tensor."""
        return self.hierarchy == (1,) and self.is_everybody

    @cached_property
    def broadcast(self) -> NdSbp:
        """Broadcast along every dimension."""
        return (BROADCAST,) * len(self.hierarchy)

    def component(self, shape: Shape, sbp: NdSbp, position: Shape | None) -> Shape:
        """The shape of the component at a position of a logical ``shape``, ``(0,)`` outside."""
        return (0,) if position is None else self.bounds(shape, sbp, position)[1]

    def bounds(self, shape: Shape, sbp: NdSbp, position: Shape) -> tuple[Shape, Shape]:
        """Where that component starts along each axis of the logical ``shape``, and its lengths."""
        return _bounds(shape, self.hierarchy, sbp, position)

    def logical(self, component: Shape, sbp: NdSbp) -> Shape:
        """The logical shape where all ranks have components of this shape."""
        return _logical(component, self.hierarchy, sbp)

    def is_cut(self, sbp: NdSbp) -> bool:
        """Whether this rank's component is only a part of the logical tensor."""
        if self.position is None or len(self.members) == 1:
            return False
        return any(split_axis(one) is not None for one in sbp)

    def is_even(self, logical: Shape, sbp: NdSbp) -> bool:
        """Whether all ranks of the program have equal parts along the one axis that is split."""
        if len(self.hierarchy) != 1 or not self.is_everybody:
            return False
        axis, ranks = split_axis(sbp[0]), self.hierarchy[0]
        return ranks == 1 if axis is None else logical[axis] % ranks == 0

    def are_alike(self, logical: Shape, sbp: NdSbp) -> bool:
        """Whether all ranks' components are of one shape."""
        return len({self.component(logical, sbp, at) for at in self.positions.values()}) == 1

    def parts(self, shape: Shape, sbp: NdSbp) -> list[Part]:
        """The parts of a tensor, in the order of the placement's ranks."""
        groups: dict[tuple[Shape, Shape], dict[Shape, list[int]]] = {}
        summed = [dim for dim, one in enumerate(sbp) if one == PARTIAL_SUM]
        for rank, position in self.positions.items():
            summand = tuple(position[dim] for dim in summed)
            there = groups.setdefault(self.bounds(shape, sbp, position), {})
            there.setdefault(summand, []).append(rank)
        return [
            Part(*bounds, summands=tuple(tuple(group) for group in there.values()))
            for bounds, there in groups.items()
        ]


@lru_cache(maxsize=64)
def layout_of(placement: Any) -> PlacementLayout:
    """The layout of a placement, one object for equal ones, with what it has worked out before."""
    return PlacementLayout(placement)


@lru_cache(maxsize=1024)
def _bounds(shape: Shape, hierarchy: Shape, sbp: NdSbp, position: Shape) -> tuple[Shape, Shape]:
    starts, lengths = [0] * len(shape), list(shape)
    for one, ranks, index in zip(sbp, hierarchy, position):
        axis = split_axis(one)
        if axis is not None:  # the first parts are the longer ones
            short, longer = divmod(lengths[axis], ranks)
            starts[axis] += index * short + min(index, longer)
            lengths[axis] = short + (index < longer)
    return tuple(starts), tuple(lengths)


@lru_cache(maxsize=1024)
def _logical(component: Shape, hierarchy: Shape, sbp: NdSbp) -> Shape:
    shape = list(component)
    for one, ranks in zip(sbp, hierarchy):
        axis = split_axis(one)
        if axis is not None:
            shape[axis] *= ranks
    return tuple(shape)


def holds_values(sbp: NdSbp, position: Shape) -> bool:
    """Whether the rank at ``position`` has more than zeros: of a partial sum only the first has."""
    return not any(index for one, index in zip(sbp, position) if one == PARTIAL_SUM)


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

    @property
    def holders(self) -> str:
        """``0-3``; ``0, 2``; ``0 + 1`` for summands; ``(0, 1) + (2, 3)``."""
        if len(self.summands) == 1:
            return show_ranks(self.summands[0])
        if all(len(group) == 1 for group in self.summands):
            ranks = [group[0] for group in self.summands]
            if len(ranks) <= _SHOWN:
                return " + ".join(map(str, ranks))
            return f"{ranks[0]} + {ranks[1]} + ... + {ranks[-1]}"
        groups = [f"({show_ranks(group)})" for group in self.summands]
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
