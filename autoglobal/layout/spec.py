"""What a scope asks for, checked once at the door, and the sbp that one tensor gets from it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from itertools import product
from typing import Any, Literal, Union

import oneflow as flow
from oneflow import nn

from .._text import received
from ..errors import ConversionError, SpecError, SpecTypeError
from ..ranks.collectives import this_rank, world_size
from .rules import BROADCAST, NdSbp, Rules, show_sbp, split_axis

Shape = tuple[int, ...]
Kind = Literal["parameter", "buffer"]
KINDS: tuple[Kind, ...] = ("parameter", "buffer")
Source = Literal["full", "shard"]
When = Literal["assign", "exit"]
Existing = Literal["keep", "error", "convert"]
Buffers = Union[Literal["broadcast", "sbp"], Literal[False]]
Unsplittable = Literal["error", "broadcast"]

TIMEOUT = 600.0  # seconds, as for PyTorch's NCCL

_CHOICES: dict[str, tuple[object, ...]] = {
    "source": ("full", "shard"),
    "when": ("assign", "exit"),
    "existing": ("keep", "error", "convert"),
    "buffers": ("broadcast", "sbp", False),
    "unsplittable": ("error", "broadcast"),
}


@dataclass(frozen=True)
class Layout:
    """Where the ranks of a placement are in it."""

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
        """That of this rank; None where it is left out."""
        return self.positions.get(this_rank())

    def component(self, shape: Shape, sbp: NdSbp, position: Shape | None) -> Shape:
        """The shape of the component at a position of a logical ``shape``, ``(0,)`` outside."""
        return (0,) if position is None else self.where(shape, sbp, position)[1]

    def where(self, shape: Shape, sbp: NdSbp, position: Shape) -> tuple[Shape, Shape]:
        """Where that component starts along each axis of the logical ``shape``, and its lengths."""
        return _where(shape, self.hierarchy, sbp, position)


@lru_cache(maxsize=1024)
def _where(shape: Shape, hierarchy: Shape, sbp: NdSbp, position: Shape) -> tuple[Shape, Shape]:
    starts, lengths = [0] * len(shape), list(shape)
    for one, ranks, index in zip(sbp, hierarchy, position):
        axis = split_axis(one)
        if axis is not None:  # the first pieces are the longer ones
            short, longer = divmod(lengths[axis], ranks)
            starts[axis] += index * short + min(index, longer)
            lengths[axis] = short + (index < longer)
    return tuple(starts), tuple(lengths)


@dataclass(frozen=True)
class GlobalSpec(Layout):
    """A placement, an sbp and the options of :func:`autoglobal.global_scope`, all of them valid.

    Raises :class:`SpecTypeError` and :class:`SpecError` for what cannot work, on every rank
    alike: OneFlow itself would accept much of it here, and then hang or abort when it is used.
    """

    sbp: Any
    source: Source = "full"
    when: When = "assign"
    existing: Existing = "keep"
    buffers: Buffers = "broadcast"
    unsplittable: Unsplittable = "error"
    same_placement: bool = False
    check: bool = True
    timeout: float = TIMEOUT
    rules: Rules = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_placement(self.placement)
        object.__setattr__(self, "rules", Rules(self.sbp, self.placement))
        for option, allowed in _CHOICES.items():
            value = getattr(self, option)
            # By type as well: 0 and False are equal.
            if not any(type(value) is type(known) and value == known for known in allowed):
                raise SpecError(
                    f"{option} must be one of {', '.join(map(repr, allowed))}. "
                    f"Received: {option}={received(value)}"
                )
        check_flag("same_placement", self.same_placement)
        check_flag("check", self.check)
        _check_timeout(self.timeout)

    @cached_property
    def texts(self) -> list[str]:
        """What all ranks have to ask for alike, each option in words."""
        return [
            f"placement={self.placement}",
            f"sbp={self.rules}",
            *(
                f"{one.name}={getattr(self, one.name)!r}"
                for one in fields(self)
                if one.name not in ("placement", "sbp", "timeout", "rules")
            ),
        ]

    def whole(self) -> NdSbp:
        """Broadcast along every dimension of the placement."""
        return (BROADCAST,) * len(self.hierarchy)

    def fit(self, label: str, kind: Kind, shape: Shape, sbp: NdSbp, source: Source) -> NdSbp:
        """``sbp`` as a tensor of this shape can have it.

        ``shape`` is the logical shape with ``source="full"`` and the local component's with
        ``source="shard"``; ``label`` names the tensor in the :class:`ConversionError` that is
        raised where it cannot be split as asked for.
        """
        known = self._fitting.get((shape, sbp, source))
        if known is not None:
            return known
        fitting = list(sbp)
        smallest = dict(enumerate(shape))  # the shortest piece so far, along each axis
        for dim, (one, ranks) in enumerate(zip(sbp, self.hierarchy)):
            axis = split_axis(one)
            if axis is None:
                continue
            if axis in smallest and (source == "shard" or _divides(smallest[axis], ranks)):
                smallest[axis] //= ranks
            elif shape == () or self.unsplittable == "broadcast":
                fitting[dim] = BROADCAST
            else:
                raise ConversionError(self._cannot_split(label, kind, shape, sbp, dim))
        found = self._fitting[shape, sbp, source] = tuple(fitting)
        return found

    @cached_property
    def _fitting(self) -> dict[tuple[Shape, NdSbp, Source], NdSbp]:
        """What fitted before: many tensors have one shape."""
        return {}

    def _cannot_split(self, label: str, kind: Kind, shape: Shape, sbp: NdSbp, dim: int) -> str:
        axis = split_axis(sbp[dim])
        ranks = self.hierarchy[dim]
        if axis is not None and axis < len(shape):
            over = "ranks" if len(sbp) == 1 else f"ranks of placement dimension {dim}"
            problem = f"axis {axis} is too short to be split over the {ranks} {over}"
        else:
            problem = f"there is no axis {axis} to split"
        return (
            f"{label}: {problem}. Expected: a {kind} that {show_sbp(sbp)} can split. "
            f"Received: shape {shape}. Write unsplittable='broadcast' to make such tensors "
            "broadcast, or give this one flow.sbp.broadcast by a rule or a scope of its own"
        )


def _count(world: int) -> str:
    return "is 1 rank (rank 0)" if world == 1 else f"are {world} ranks (0 to {world - 1})"


def check_flag(option: str, value: Any) -> None:
    """Raise :class:`SpecTypeError` where ``value`` is no bool."""
    if not isinstance(value, bool):
        raise SpecTypeError(f"{option} must be True or False. Received: {option}={received(value)}")


# What was meant where something else than a module is given.
_INSTEAD: dict[Any, str] = {
    nn.Graph: "the module in it",
    flow.Tensor: "the module that holds it",
    type: "an instance of it",
    (list, tuple): "an nn.ModuleList of these",
    dict: "the module whose state it is, or an nn.ModuleDict",
}


def check_module(module: Any, function: str) -> None:
    """Raise :class:`SpecTypeError` where what was given to ``function`` is no module."""
    if not isinstance(module, nn.Module):
        which = next((words for kind, words in _INSTEAD.items() if isinstance(module, kind)), "")
        raise SpecTypeError(
            f"module must be an nn.Module. Received: module={received(module)}. "
            f"Write {function} for {which or 'a module, such as nn.Linear(4, 4)'}"
        )


def _check_timeout(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise SpecTypeError(
            f"timeout must be a number of seconds. Received: timeout={received(value)}. "
            f"Write, for example, timeout={TIMEOUT:g}"
        )
    if not 0 < value < math.inf:
        raise SpecError(
            f"timeout must be more than 0 seconds, and finite. Received: timeout={value!r}. "
            "Write, for example, timeout=86400 for a day"
        )


def _divides(length: int, ranks: int) -> bool:
    # Uneven pieces are fine, an empty one beside others aborts the process; where the whole
    # axis is empty OneFlow 0.9.0 divides it without complaint.
    return length >= ranks or length == 0


def _check_placement(placement: Any) -> None:
    if not isinstance(placement, flow.placement):
        raise SpecTypeError(
            "placement must be a flow.placement, such as flow.placement('cpu', ranks=[0, 1]). "
            f"Received: placement={received(placement)}"
        )
    world = world_size()
    ranks = [int(rank) for rank in placement.ranks.flatten()]
    outside = [rank for rank in ranks if not 0 <= rank < world]
    if outside:
        launch = "python -m oneflow.distributed.launch --nproc_per_node"
        more = f", or start the program with {launch} {max(ranks) + 1}" * (max(ranks) >= world)
        raise SpecError(
            f"placement must name ranks that exist, and there {_count(world)}. Received: rank "
            f"{outside[0]} in placement={placement!r}. Use other ranks{more}"
        )
    if placement.type == "cuda":
        _check_cuda(placement, ranks, world)


def _check_cuda(placement: Any, ranks: list[int], world: int) -> None:
    devices = flow.cuda.device_count() if flow.cuda.is_available() else 0
    # Looked at for all ranks, not this one alone, so that no rank goes on and waits for it.
    per_node = max(1, world // flow.env.get_node_size())
    needed = max(rank % per_node for rank in ranks) + 1
    if devices < needed:
        raise SpecError(
            f"placement needs {needed} CUDA device{'s'[: needed > 1]} on each machine and "
            f"{devices or 'none'} can be used on this one. Received: placement={placement!r}. "
            "Use a 'cpu' placement, fewer ranks, or a CUDA build of OneFlow with its driver"
        )
