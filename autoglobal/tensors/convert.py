"""One local tensor -> one global tensor with the same values.

The only file that calls ``to_global``, and without OneFlow's own check of the ranks: they have
agreed before, or are trusted. All ranks have to call these functions in the same order, also
those that the placement leaves out; but for :func:`box` nothing is sent.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import oneflow as flow
from oneflow import nn

from .._compat import item_size, nbytes_of
from ..layout.rules import BROADCAST, PARTIAL_SUM, NdSbp, split_axis
from ..layout.spec import GlobalSpec, Shape
from ..ranks.collectives import host, traffic, world_size
from .digests import at_home, sound

Tensor = Any  # oneflow.Tensor; OneFlow ships no types

HALF = (flow.float16, flow.bfloat16)

_FEW_ROWS = 1 << 16
_LONG_ROW = 256  # bytes


def narrowed(
    whole: Tensor, spec: GlobalSpec, sbp: NdSbp, position: Shape, stack: int = 0
) -> Tensor:
    """A view of what the rank at ``position`` holds of a local ``whole``.

    It has to be :func:`autoglobal.contents.sound`. ``stack``: the axes before those of the tensor.
    """
    part = whole
    starts, lengths = spec.where(tuple(whole.shape)[stack:], sbp, position)
    for axis, (start, length) in enumerate(zip(starts, lengths), stack):
        if length < whole.shape[axis]:
            part = part.narrow(axis, start, length)
    return part


def part_of(whole: Tensor, spec: GlobalSpec, sbp: NdSbp, position: Shape) -> Tensor:
    """The same, in memory of its own."""
    shape = tuple(whole.shape)
    starts, lengths = spec.where(shape, sbp, position)
    if lengths != shape and lengths[1:] == shape[1:] and _has_rows(whole):
        # One instruction that reads the tensor itself: it needs no view, and so no sound tensor.
        return flow._C.gather(at_home(whole.detach()), _rows(starts[0], lengths[0]), 0)
    view = narrowed(sound(whole), spec, sbp, position)
    return view.clone() if view.is_contiguous() else view.contiguous()


def _has_rows(whole: Tensor) -> bool:
    """Whether its rows can be gathered, and are few or long enough for it to be fast."""
    # OneFlow 0.9.0 has no such kernel of uint8. On CUDA its copies run where its kernels do not.
    if whole.device.type != "cpu" or whole.dtype == flow.uint8:
        return False
    rows = whole.shape[0]
    return bool(rows <= _FEW_ROWS or whole.numel() // rows * item_size(whole.dtype) >= _LONG_ROW)


@lru_cache(maxsize=16)
def _rows(start: int, count: int) -> Tensor:
    return flow.tensor(np.arange(start, start + count, dtype=np.int64), device=host())


def holds_values(sbp: NdSbp, position: Shape) -> bool:
    """Whether the rank at ``position`` has more than zeros: of a partial sum only the first has."""
    return not any(index for one, index in zip(sbp, position) if one == PARTIAL_SUM)


def empty(logical: Shape, dtype: Any, spec: GlobalSpec, sbp: NdSbp) -> tuple[Tensor, Tensor]:
    """A new global tensor, and its component on this rank, which shares its memory."""
    made = flow.empty(logical, dtype=dtype, placement=spec.placement, sbp=sbp)
    return made, made.to_local()


def is_cut(spec: GlobalSpec, sbp: NdSbp) -> bool:
    """Whether this rank's component is a part of the whole only."""
    if spec.position is None or len(spec.members) == 1:
        return False
    return any(split_axis(one) is not None for one in sbp)


def from_whole(whole: Tensor, spec: GlobalSpec, sbp: NdSbp) -> Tensor:
    """A new global tensor whose component here is copied from a local logical tensor."""
    logical = tuple(whole.shape)
    if spec.position is not None and not holds_values(sbp, spec.position):
        made, here = empty(logical, whole.dtype, spec, sbp)
        here.zero_()
        return made
    if not is_cut(spec, sbp):
        return from_component(whole, logical, spec, sbp)
    assert spec.position is not None
    part = part_of(whole, spec, sbp, spec.position)
    return from_component(part, logical, spec, sbp, copy=False)


def from_component(
    component: Tensor, logical: Shape, spec: GlobalSpec, sbp: NdSbp, copy: bool = True
) -> Tensor:
    """A new global tensor whose component here has these values.

    Without ``copy`` it may share the component's memory.
    """
    if spec.position is not None and is_even(logical, spec, sbp):
        return claim(component, spec, sbp, copy)
    made, here = empty(logical, component.dtype, spec, sbp)
    if spec.position is not None:
        here.copy_(at_home(component.detach()))
    return made


def claim(component: Tensor, spec: GlobalSpec, sbp: NdSbp, copy: bool) -> Tensor:
    """The global tensor that has this component here, where all ranks' are of one shape."""
    own = component
    if own.requires_grad:
        own = own.detach()
    if not own.is_contiguous():
        own, copy = own.contiguous(), False
    return own.to_global(spec.placement, sbp, copy=copy, check_meta=False)


def is_even(logical: Shape, spec: GlobalSpec, sbp: NdSbp) -> bool:
    """Whether each rank has an equal part of the axis that one split divides."""
    if len(spec.hierarchy) != 1 or len(spec.members) != world_size():
        return False
    (one,), (ranks,) = sbp, spec.hierarchy
    axis = split_axis(one)
    return ranks == 1 if axis is None else logical[axis] % ranks == 0


def box(tensor: Tensor, spec: GlobalSpec, sbp: NdSbp, check_meta: bool = False) -> Tensor:
    """What OneFlow makes of a global tensor, or of a component, with this placement and sbp."""
    source = tensor.detach()
    # On CPU OneFlow 0.9.0 aborts in a broadcast of a half type. float32 holds both exactly.
    through_float = source.dtype in HALF and spec.placement.type == "cpu"
    if through_float:
        source = source.to(flow.float32)
    if source.is_global:
        result = source.to_global(spec.placement, sbp, check_meta=False)
    else:
        # copy=True: else the first rank's component is the caller's tensor, and a later write to
        # that one would make the ranks differ.
        result = source.to_global(spec.placement, sbp, copy=True, check_meta=check_meta)
        _count(nbytes_of(source), spec, sbp)
    return result.to(tensor.dtype) if through_float else result


def _count(nbytes: int, spec: GlobalSpec, sbp: NdSbp) -> None:
    """Note OneFlow's own broadcast of a component, whose messages nobody sees, as its bytes."""
    if spec.position is None:
        return
    among = [
        index
        for one, ranks, index in zip(sbp, spec.hierarchy, spec.position)
        if one == BROADCAST and ranks > 1
    ]
    if any(among):
        traffic.received += nbytes
    elif among:
        traffic.sent += nbytes


# False from the first time on that OneFlow refuses: 1.0.0 and later do, 0.9.0 does not.
in_place = True


def make_global(parameter: Tensor, value: Tensor, grad: Tensor | None) -> Tensor:
    """Turn a leaf Parameter into the global ``value``, with ``grad`` as its gradient.

    In place where OneFlow allows it: then the object stays what it is to optimizers, tied
    weights and hooks, and is returned. Else a new Parameter of the same class is.
    """
    global in_place
    if in_place or parameter.is_global:
        try:
            parameter.data = value
        except RuntimeError:
            if parameter.is_global:
                raise
            in_place = False
        else:
            if grad is not None:  # OneFlow has dropped it with the old data
                parameter.grad = grad
            return parameter
    kind: Any = type(parameter)
    new = kind.__new__(kind)
    nn.Parameter.__init__(new, value, parameter.requires_grad)
    if kind is not nn.Parameter:
        new.__dict__.update(parameter.__dict__)
    new.grad = grad
    return new
