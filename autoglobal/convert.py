"""One local tensor -> one global tensor with the same values.

The only file that calls ``to_global``. All ranks have to call these functions, in the same
order, also those that the placement leaves out.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import oneflow as flow
from oneflow import nn

from .rules import NdSbp
from .spec import GlobalSpec

Tensor = Any  # oneflow.Tensor; OneFlow ships no types

_HALF = (flow.float16, flow.bfloat16)


def globalize(tensor: Tensor, spec: GlobalSpec, sbp: NdSbp) -> Tensor:
    """A new global tensor with the values of ``tensor``, outside of any autograd graph.

    Of a local ``tensor``: with ``source="full"`` the logical tensor is the first rank's local
    tensor; with ``"shard"`` each rank's local tensor is its component. Nothing is shared with
    its memory. Of a global one: the same logical tensor.
    """
    placement = spec.placement
    source = tensor.detach()
    # On CPU OneFlow 0.9.0 aborts in a broadcast of a half type. float32 holds both exactly.
    through_float = source.dtype in _HALF and placement.type == "cpu"
    if through_float:
        source = source.to(flow.float32)
    if source.is_global:
        result = source.to_global(placement, sbp)
    # copy=True: else the first rank's component is the caller's tensor, and a later write to
    # that one would make the ranks differ.
    elif spec.source == "shard" or sbp == spec.whole():
        result = source.to_global(placement, sbp, copy=True)
    else:
        # A split of local tensors would concatenate them. Broadcast keeps the logical shape.
        result = source.to_global(placement, spec.whole(), copy=True).to_global(placement, sbp)
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
