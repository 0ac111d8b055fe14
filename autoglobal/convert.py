"""One local tensor -> one global tensor with the same values.

The only file that calls ``to_global``, and without OneFlow's own check of the ranks: they have
agreed before, or are trusted. All ranks have to call these functions in the same order, also
those that the placement leaves out; but for :func:`box` nothing is sent.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import oneflow as flow
from oneflow import nn

from .ranks import sync, world_size
from .rules import PARTIAL_SUM, NdSbp, split_axis
from .spec import GlobalSpec, Shape

Tensor = Any  # oneflow.Tensor; OneFlow ships no types

_LARGE = 1 << 20  # bytes; to copy fewer costs less than to look where they lie
HALF = (flow.float16, flow.bfloat16)


def sound(local: Tensor) -> Tensor:
    """The tensor, or a copy, of which views can be taken.

    OneFlow 0.9.0 forgets where a view begins in its storage once it is detached, or a Parameter:
    a further view of that begins at the start of the storage, with other numbers and no error.
    """
    source = local.detach()
    if source.numel() * item_size(source.dtype) < _LARGE or source.device.type != "cpu":
        return source.clone()
    sync()  # numpy() spins on a core while it waits
    inner = source.narrow(0, 0, 1)
    lies_at_start = source.numpy().ctypes.data == inner.numpy().ctypes.data
    return source if lies_at_start else source.clone()


def cut(whole: Tensor, spec: GlobalSpec, sbp: NdSbp, position: Shape) -> Tensor:
    """A view of what the rank at ``position`` holds of a local ``whole`` that is :func:`sound`."""
    part = whole
    for one, ranks, index in zip(sbp, spec.hierarchy, position):
        axis = split_axis(one)
        if axis is not None:
            short, longer = divmod(part.shape[axis], ranks)
            start = index * short + min(index, longer)
            part = part.narrow(axis, start, short + (index < longer))
    return part


def holds_values(sbp: NdSbp, position: Shape) -> bool:
    """Whether the rank at ``position`` has more than zeros: of a partial sum only the first has."""
    return not any(index for one, index in zip(sbp, position) if one == PARTIAL_SUM)


def empty(logical: Shape, dtype: Any, spec: GlobalSpec, sbp: NdSbp) -> tuple[Tensor, Tensor]:
    """A new global tensor, and its component on this rank, which shares its memory."""
    made = flow.empty(logical, dtype=dtype, placement=spec.placement, sbp=sbp)
    return made, made.to_local()


def from_whole(whole: Tensor, spec: GlobalSpec, sbp: NdSbp) -> Tensor:
    """A new global tensor whose component here is copied from a local logical tensor."""
    logical = tuple(whole.shape)
    position = spec.position
    split = any(split_axis(one) is not None for one in sbp) and len(spec.members) > 1
    if position is None or not split:
        part = whole.detach()
    else:
        part = cut(sound(whole), spec, sbp, position)
    if position is not None and is_even(logical, spec, sbp):
        return claim(copy_of(part), spec, sbp)
    made, component = empty(logical, whole.dtype, spec, sbp)
    if position is not None:
        if holds_values(sbp, position):
            component.copy_(part)
        else:
            component.zero_()
    return made


def copy_of(local: Tensor) -> Tensor:
    """A contiguous copy."""
    return local.clone() if local.is_contiguous() else local.contiguous()


def from_component(component: Tensor, logical: Shape, spec: GlobalSpec, sbp: NdSbp) -> Tensor:
    """A new global tensor whose component here is a copy of this one."""
    made, here = empty(logical, component.dtype, spec, sbp)
    if spec.position is not None:
        here.copy_(component.detach())
    return made


def claim(component: Tensor, spec: GlobalSpec, sbp: NdSbp) -> Tensor:
    """The global tensor that has this component here, and shares its memory.

    Components of another shape elsewhere would give the ranks different logical shapes.
    """
    return component.detach().to_global(spec.placement, sbp, check_meta=False)


def is_even(logical: Shape, spec: GlobalSpec, sbp: NdSbp) -> bool:
    """Whether each rank has an equal part of the axis that one split divides."""
    if len(spec.hierarchy) != 1 or len(spec.members) != world_size():
        return False
    (one,), (ranks,) = sbp, spec.hierarchy
    axis = split_axis(one)
    return ranks == 1 if axis is None else logical[axis] % ranks == 0


def box(tensor: Tensor, spec: GlobalSpec, sbp: NdSbp) -> Tensor:
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
        result = source.to_global(spec.placement, sbp, copy=True, check_meta=False)
    return result.to(tensor.dtype) if through_float else result


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
            # OneFlow drops the gradient with the old data.
            parameter.grad = grad
            return parameter
    kind: Any = type(parameter)
    new = kind.__new__(kind)
    nn.Parameter.__init__(new, value, parameter.requires_grad)
    if kind is not nn.Parameter:
        new.__dict__.update(parameter.__dict__)
    new.grad = grad
    return new


@cache
def item_size(dtype: Any) -> int:
    """The bytes of one element."""
    # OneFlow 0.9.0 does not know the size of this dtype of its own.
    return 2 if dtype == flow.bfloat16 else int(dtype.bytes)
