"""The conversion of one local tensor into one global tensor with the same values.

The only file that calls ``to_global``, and without OneFlow's own check of the ranks: they have
agreed before, or are trusted. All ranks have to call these functions in the same order, also
those that the placement leaves out; but for :func:`boxing` nothing is sent.
"""

from __future__ import annotations

from typing import Any

import oneflow as flow
from oneflow import nn

from .. import _compat
from .._compat import (
    HALF,
    Tensor,
    global_empty,
    has_rows_of,
    nbytes_of,
    on_own_device,
    rows_of,
    set_data,
    set_grad,
    viewable,
)
from ..layout.placement import PlacementLayout, Shape, holds_values
from ..layout.sbp import BROADCAST, NdSbp
from ..ranks.collectives import traffic


def narrowed(
    whole: Tensor, layout: PlacementLayout, sbp: NdSbp, position: Shape, stack: int = 0
) -> Tensor:
    """A view of what the rank at ``position`` holds of a local ``whole``.

    It has to be :func:`autoglobal._compat.viewable`. ``stack``: the axes before those of the
    tensor.
    """
    part = whole
    starts, lengths = layout.bounds(tuple(whole.shape)[stack:], sbp, position)
    for axis, (start, length) in enumerate(zip(starts, lengths), stack):
        if length < whole.shape[axis]:
            part = part.narrow(axis, start, length)
    return part


def part_of(whole: Tensor, layout: PlacementLayout, sbp: NdSbp, position: Shape) -> Tensor:
    """The same, in memory of its own."""
    shape = tuple(whole.shape)
    starts, lengths = layout.bounds(shape, sbp, position)
    if lengths != shape and lengths[1:] == shape[1:] and has_rows_of(whole):
        # One instruction that reads the tensor itself: it needs no view.
        return rows_of(whole, starts[0], lengths[0])
    view = narrowed(viewable(whole), layout, sbp, position)
    return view.clone() if view.is_contiguous() else view.contiguous()


def empty(logical: Shape, dtype: Any, layout: PlacementLayout, sbp: NdSbp) -> tuple[Tensor, Tensor]:
    """A new global tensor, and its component on this rank, which shares its memory."""
    made = global_empty(logical, dtype, layout.placement, sbp)
    return made, made.to_local()


def from_replica(replica: Tensor, layout: PlacementLayout, sbp: NdSbp) -> Tensor:
    """A new global tensor whose component here is copied from a local logical tensor."""
    if layout.is_this_rank:
        return from_even_component(replica, layout, sbp, copy=True)
    logical = tuple(replica.shape)
    if layout.position is not None and not holds_values(sbp, layout.position):
        made, component = empty(logical, replica.dtype, layout, sbp)
        component.zero_()
        return made
    if layout.position is None or not layout.is_cut(sbp):
        return from_component(replica, logical, layout, sbp)
    part = part_of(replica, layout, sbp, layout.position)
    return from_component(part, logical, layout, sbp, copy=False)


def from_component(
    component: Tensor, logical: Shape, layout: PlacementLayout, sbp: NdSbp, copy: bool = True
) -> Tensor:
    """A new global tensor whose component here has these values.

    Without ``copy`` it may share the component's memory.
    """
    if layout.position is not None and layout.is_even(logical, sbp):
        return from_even_component(component, layout, sbp, copy)
    made, own = empty(logical, component.dtype, layout, sbp)
    if layout.position is not None:
        own.copy_(on_own_device(component.detach()))
    return made


def from_even_component(
    component: Tensor, layout: PlacementLayout, sbp: NdSbp, copy: bool
) -> Tensor:
    """The global tensor that has this component here, where all ranks' are of one shape."""
    own = component
    if own.requires_grad:
        own = own.detach()
    if not own.is_contiguous():
        own, copy = own.contiguous(), False
    return own.to_global(layout.placement, sbp, copy=copy, check_meta=False)


def boxing(tensor: Tensor, layout: PlacementLayout, sbp: NdSbp, check_meta: bool = False) -> Tensor:
    """What OneFlow makes of a global tensor, or of a component, with this placement and sbp."""
    source = tensor.detach()
    through_float = source.dtype in HALF and layout.placement.type == "cpu"
    if through_float:
        source = source.to(flow.float32)
    if source.is_global:
        result = source.to_global(layout.placement, sbp, check_meta=False)
    else:
        # copy=True: else the first rank's component is the caller's tensor, and a later write to
        # that one would make the ranks differ.
        result = source.to_global(layout.placement, sbp, copy=True, check_meta=check_meta)
        _count(nbytes_of(source), layout, sbp)
    return result.to(tensor.dtype) if through_float else result


def _count(nbytes: int, layout: PlacementLayout, sbp: NdSbp) -> None:
    """Note OneFlow's own broadcast of a component, whose messages nobody sees, as its bytes."""
    if layout.position is None:
        return
    among = [
        index
        for one, ranks, index in zip(sbp, layout.hierarchy, layout.position)
        if one == BROADCAST and ranks > 1
    ]
    if any(among):
        traffic.received += nbytes
    elif among:
        traffic.sent += nbytes


def make_global(parameter: Tensor, value: Tensor, grad: Tensor | None) -> Tensor:
    """Turn a leaf Parameter into the global ``value``, with ``grad`` as its gradient.

    In place where OneFlow allows it: then the object stays what it is to optimizers, tied
    weights and hooks, and is returned. Else a new Parameter of the same class is.
    """
    if parameter.is_global or _compat.can_replace_data():
        set_data(parameter, value)
        if grad is not None:  # OneFlow has dropped it with the old data
            set_grad(parameter, grad)
        return parameter
    kind: Any = type(parameter)
    new = kind.__new__(kind)
    nn.Parameter.__init__(new, value, parameter.requires_grad)
    if kind is not nn.Parameter:
        new.__dict__.update(parameter.__dict__)
    set_grad(new, grad)
    return new
