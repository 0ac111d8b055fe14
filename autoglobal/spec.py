"""What a scope asks for, checked once at the door, and the sbp that one tensor gets from it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal, Union

import oneflow as flow

from .errors import ConversionError, SpecError, SpecTypeError

Sbp = Any  # oneflow.sbp.sbp; OneFlow ships no types
Shape = tuple[int, ...]
Kind = Literal["parameter", "buffer"]
Source = Literal["full", "shard"]
Buffers = Union[Literal["broadcast", "sbp"], Literal[False]]
Unsplittable = Literal["error", "broadcast"]

BROADCAST = flow.sbp.broadcast
_SBPS = "flow.sbp.split(dim), flow.sbp.broadcast or flow.sbp.partial_sum"
_CHOICES: dict[str, tuple[object, ...]] = {
    "source": ("full", "shard"),
    "when": ("assign",),
    "existing": ("keep",),
    "buffers": ("broadcast", "sbp", False),
    "unsplittable": ("error", "broadcast"),
}


@dataclass(frozen=True)
class GlobalSpec:
    """A placement, an sbp and the options of :func:`autoglobal.global_scope`, all of them valid.

    Raises :class:`SpecTypeError` and :class:`SpecError` for what cannot work, on every rank
    alike: OneFlow itself would accept much of it here, and then hang or abort when it is used.
    """

    placement: Any
    sbp: tuple[Sbp, ...]
    source: Source = "full"
    when: Literal["assign"] = "assign"
    existing: Literal["keep"] = "keep"
    buffers: Buffers = "broadcast"
    unsplittable: Unsplittable = "error"

    def __post_init__(self) -> None:
        _check_placement(self.placement)
        object.__setattr__(self, "sbp", _checked_sbp(self.sbp, self.placement))
        for option, allowed in _CHOICES.items():
            value = getattr(self, option)
            # By type as well: 0 and False are equal, and 1 is no way to spell an option.
            if not any(value is known or (value == known != False) for known in allowed):  # noqa: E712
                raise SpecError(
                    f"{option} must be one of {', '.join(map(repr, allowed))}. "
                    f"Received: {option}={value!r}"
                )

    @cached_property
    def hierarchy(self) -> Shape:
        """The number of ranks along each dimension of the placement."""
        return tuple(self.placement.ranks.shape)

    def sbp_of(self, label: str, kind: Kind, shape: Shape) -> tuple[Sbp, ...] | None:
        """The sbp of one tensor, one per placement dimension, or None where it stays local.

        ``shape`` is the logical shape with ``source="full"`` and the local component's with
        ``source="shard"``; ``label`` names the tensor in the error that is raised where it
        cannot be split as asked for.
        """
        if kind == "buffer" and self.buffers != "sbp":
            return None if self.buffers is False else (BROADCAST,) * len(self.hierarchy)
        fitting = list(self.sbp)
        smallest = dict(enumerate(shape))  # the shortest piece so far, along each axis
        for dim, (sbp, ranks) in enumerate(zip(self.sbp, self.hierarchy)):
            axis = split_axis(sbp)
            if axis is None:
                continue
            if axis in smallest and (self.source == "shard" or _divides(smallest, axis, ranks)):
                smallest[axis] //= ranks
            elif shape == () or self.unsplittable == "broadcast":
                fitting[dim] = BROADCAST
            else:
                raise ConversionError(_unsplittable(label, kind, shape, self, dim))
        return tuple(fitting)


@cache
def split_axis(sbp: Sbp) -> int | None:
    """The axis that ``sbp`` splits, None for broadcast and partial_sum."""
    # OneFlow gives the axis of an sbp in its text only.
    found = re.search(r"split\(\w+=(\d+)\)", str(sbp))
    return int(found.group(1)) if found else None


def _divides(smallest: dict[int, int], axis: int, ranks: int) -> bool:
    # Uneven pieces are fine, an empty one beside others aborts the process; where the whole
    # axis is empty OneFlow 0.9.0 divides it without complaint.
    return smallest[axis] >= ranks or smallest[axis] == 0


def _unsplittable(label: str, kind: Kind, shape: Shape, spec: GlobalSpec, dim: int) -> str:
    axis = split_axis(spec.sbp[dim])
    ranks = spec.hierarchy[dim]
    if axis is not None and axis < len(shape):
        over = "ranks" if len(spec.hierarchy) == 1 else f"ranks of placement dimension {dim}"
        problem = f"axis {axis} is too short to be split over the {ranks} {over}"
    else:
        problem = f"there is no axis {axis} to split"
    return (
        f"{label}: {problem}. Expected: a {kind} that {show_sbp(spec.sbp)} can split. "
        f"Received: shape {shape}. Write unsplittable='broadcast' to make such tensors "
        f"broadcast, or assign this one in a scope of its own with flow.sbp.broadcast"
    )


def show_sbp(sbp: tuple[Sbp, ...]) -> str:
    """``split(dim=0)``, or ``(split(dim=0), broadcast)`` for more than one dimension."""
    names = [str(one).replace("oneflow.sbp.", "") for one in sbp]
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


def _check_placement(placement: Any) -> None:
    if not isinstance(placement, flow.placement):
        raise SpecTypeError(
            "placement must be a flow.placement, such as flow.placement('cpu', ranks=[0, 1]). "
            f"Received: placement={placement!r}"
        )
    world = flow.env.get_world_size()
    ranks = [int(rank) for rank in placement.ranks.flatten()]
    outside = [rank for rank in ranks if not 0 <= rank < world]
    if outside:
        raise SpecError(
            f"placement names rank {outside[0]} and there are {world} ranks (0 to {world - 1}). "
            f"Received: placement={placement!r}. Use ranks that exist, or start the program with "
            f"python -m oneflow.distributed.launch --nproc_per_node {max(ranks) + 1}"
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


def _checked_sbp(sbp: Any, placement: Any) -> tuple[Sbp, ...]:
    dims = placement.ranks.ndim
    given = tuple(sbp) if isinstance(sbp, (list, tuple)) else (sbp,)
    for one in given:
        if not isinstance(one, flow.sbp.sbp):
            raise SpecTypeError(
                f"sbp must be {_SBPS}, or a list or tuple of these with one per placement "
                f"dimension. Received: {one!r} in sbp={sbp!r}"
            )
    if len(given) != dims:
        raise SpecError(
            f"sbp must have one entry per placement dimension, here {dims}. Received: "
            f"{len(given)} in sbp={sbp!r}, placement={placement!r}. "
            f"Write, for example, sbp=[{', '.join(['flow.sbp.broadcast'] * dims)}]"
        )
    return given
