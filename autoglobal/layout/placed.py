"""A placement and an sbp, checked where they come in, and ``Placed``, which holds both."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

import oneflow as flow

from .._compat import world_size
from .._text import short_repr
from ..errors import SpecError, SpecTypeError
from .placement import PlacementLayout, layout_of
from .sbp import BROADCAST, NdSbp, show_sbp

_MORE = "a mapping of patterns to such, or a callable"
_SBPS = "flow.sbp.split(dim), flow.sbp.broadcast or flow.sbp.partial_sum"


class Nearest:
    """The placement that a module's surroundings have; :data:`nearest` is the only one."""

    def __repr__(self) -> str:
        return "nearest"

    def __reduce__(self) -> str:
        return "nearest"  # a copy is the same object


nearest = Nearest()


@dataclass(frozen=True)
class Placed:
    """A placement and an sbp, wherever a rule gives an sbp: this tensor goes to that placement.

    ::

        import oneflow as flow
        from oneflow import nn
        from autoglobal import Placed, local_to_global, nearest

        first, last = flow.placement("cpu", [0]), flow.placement("cpu", [[0]])
        B, S0 = flow.sbp.broadcast, flow.sbp.split(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        local_to_global(model, first, {"0": S0, "1": Placed(last, [B, S0])})
        assert model[1].weight.placement == last

        model[1].add_module("adapter", nn.Linear(4, 4, bias=False))
        local_to_global(model, first, {"*.adapter": Placed(nearest, B), "*": B})
        assert model[1].adapter.weight.placement == last

    It may be a value of a mapping, what a function returns, or the ``sbp`` of a scope itself. A
    buffer that ``buffers="broadcast"`` makes broadcast goes to the placement of its rule too; a
    function is asked about buffers once it has returned a ``Placed``. Ranks that are in no
    placement still have to make the call.

    Args:
        placement: a ``flow.placement``, or ``nearest``: where the nearest module has its global
            tensors, looking at the module that holds the tensor and all below it, then at the
            module above that one, and so on. As something is assigned, the topmost is the module
            that it is assigned to.
        sbp: one sbp, or one per dimension of that placement. With ``nearest`` a single
            ``broadcast`` stands for as many as the placement turns out to have.

    Raises:
        SpecTypeError: ``placement`` or ``sbp`` is of another type.
        SpecError: another number of sbps than the placement has dimensions.

    A rank or a device that does not exist is told where the rule is used, and not by
    :func:`autoglobal.preview`. ``nearest`` that finds no global tensor, or several placements, is a
    ``ConversionError`` of the conversion, before anything has changed.
    """

    placement: Any
    sbp: Any

    def __post_init__(self) -> None:
        if isinstance(self.placement, Nearest):
            check_sbps(self.sbp)
        else:
            check_type(self.placement, ", or nearest")
            checked_sbp(self.sbp, self.placement)

    def __str__(self) -> str:
        return f"Placed({self.placement}, {show_sbp(check_sbps(self.sbp))})"


class Target(NamedTuple):
    """Where a tensor is to go, and with which sbp; ``layout`` is None for ``nearest``."""

    layout: Optional[PlacementLayout]
    sbp: NdSbp

    def __str__(self) -> str:
        where = "nearest" if self.layout is None else self.layout.placement
        return f"{show_sbp(self.sbp)} on {where}"

    def on(self, layout: PlacementLayout) -> NdSbp | None:
        """The sbp of a target that is ``nearest``, where that is; None if it does not fit."""
        dims = len(layout.hierarchy)
        if self.sbp == (BROADCAST,):
            return self.sbp * dims
        return self.sbp if len(self.sbp) == dims else None


def target_of(value: Any, placement: Any, is_here: bool, or_rules: bool = False) -> Target:
    """What an sbp, some of them or a :class:`Placed` stands for, beside the scope's placement.

    ``placement`` may be None, where it is not known yet.
    """
    if isinstance(value, Placed):
        if isinstance(value.placement, Nearest):
            return Target(None, check_sbps(value.sbp))
        if is_here:
            check_placement(value.placement)
        return Target(layout_of(value.placement), checked_sbp(value.sbp, value.placement))
    if placement is None:
        return Target(None, check_sbps(value, or_rules))
    return Target(layout_of(placement), checked_sbp(value, placement, or_rules))


def check_sbps(sbp: Any, or_rules: bool = False) -> NdSbp:
    """``sbp`` as a tuple; raise :class:`SpecTypeError` where it is not an sbp or some of them."""
    given = tuple(sbp) if isinstance(sbp, (list, tuple)) else (sbp,)
    for one in given:
        if not isinstance(one, flow.sbp.sbp):
            raise SpecTypeError(
                f"sbp must be {_SBPS}, a list or tuple of these with one per placement "
                "dimension, Placed(placement, sbp), "
                f"{_MORE if or_rules else 'or None to leave it local'}. "
                f"Received: {'' if one is sbp else f'{short_repr(one)} in '}sbp={short_repr(sbp)}. "
                f"Write {_meant(sbp, one)}"
            )
    return given


def _meant(sbp: Any, one: Any) -> str:
    """The line to write in the place of ``one``, which is no sbp and came as, or in, ``sbp``."""
    pairs = isinstance(sbp, (list, tuple)) and all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in sbp
    )
    if pairs and sbp:
        return f"a mapping for rules: sbp=dict({short_repr(sbp)})"
    if one is flow.sbp.split:
        return "the axis to split, as in flow.sbp.split(0)"
    if isinstance(one, (str, int)) and not isinstance(one, bool):
        text = re.sub(r"\s|(one)?flow\.sbp\.", "", str(one)).lower()
        axis = re.fullmatch(r"(?:s|split)?\(?(?:dim=|axis=)?(\d+)\)?", text)
        if axis:
            return f"flow.sbp.split({axis.group(1)})"
        if text in ("p", "partial", "partial_sum", "partialsum"):
            return "flow.sbp.partial_sum"
        if text in ("b", "broadcast"):
            return "flow.sbp.broadcast"
    return "an sbp, for example flow.sbp.broadcast"


def checked_sbp(sbp: Any, placement: Any, or_rules: bool = False) -> NdSbp:
    """The same, with as many sbps as the placement has dimensions, or :class:`SpecError`."""
    given, dims = check_sbps(sbp, or_rules), placement.ranks.ndim
    if len(given) != dims:
        raise SpecError(
            f"sbp must have one entry per placement dimension, here {dims}. Received: "
            f"{len(given)} in sbp={short_repr(sbp)}, placement={placement!r}. "
            f"Write, for example, sbp=[{', '.join(['flow.sbp.broadcast'] * dims)}]"
        )
    return given


def check_type(placement: Any, more: str = "") -> None:
    """Raise :class:`SpecTypeError` where it is no placement; ``more``: what else it might be."""
    if not isinstance(placement, flow.placement):
        raise SpecTypeError(
            "placement must be a flow.placement, such as flow.placement('cpu', ranks=[0, 1])"
            f"{more}. Received: placement={short_repr(placement)}"
        )


def check_placement(placement: Any) -> None:
    """Raise where it is no placement, or has ranks or devices that are not there."""
    check_type(placement)
    world = world_size()
    ranks = layout_of(placement).members
    outside = [rank for rank in ranks if not 0 <= rank < world]
    if outside:
        launch = "python -m oneflow.distributed.launch --nproc_per_node"
        more = f", or start the program with {launch} {max(ranks) + 1}" * (max(ranks) >= world)
        there = "is 1 rank (rank 0)" if world == 1 else f"are {world} ranks (0 to {world - 1})"
        raise SpecError(
            f"placement must name ranks that exist, and there {there}. Received: rank "
            f"{outside[0]} in placement={placement!r}. Use other ranks{more}"
        )
    if placement.type == "cuda":
        _check_cuda(placement, ranks, world)


def _check_cuda(placement: Any, ranks: list[int], world: int) -> None:
    devices = flow.cuda.device_count() if flow.cuda.is_available() else 0
    # For all ranks and not this one alone, or the others would go on and wait for this one.
    per_node = max(1, world // flow.env.get_node_size())
    needed = max(rank % per_node for rank in ranks) + 1
    if devices < needed:
        raise SpecError(
            f"placement needs {needed} CUDA device{'s'[: needed > 1]} on each machine and "
            f"{devices or 'none'} can be used on this one. Received: placement={placement!r}. "
            "Use a 'cpu' placement, fewer ranks, or a CUDA build of OneFlow with its driver"
        )
