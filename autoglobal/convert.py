"""One local tensor -> one global tensor with the same values.

The only file that calls ``to_global``. All ranks have to call these functions, in the same
order, also those that the placement leaves out.
"""

from __future__ import annotations

from typing import Any

import oneflow as flow

from .spec import BROADCAST, GlobalSpec, Sbp

Tensor = Any  # oneflow.Tensor; OneFlow ships no types

_HALF = (flow.float16, flow.bfloat16)


def globalize(tensor: Tensor, spec: GlobalSpec, sbp: tuple[Sbp, ...]) -> Tensor:
    """A new global tensor with the values of the local ``tensor``, outside of any autograd graph.

    With ``source="full"`` the logical tensor is the first rank's local tensor; with ``"shard"``
    each rank's local tensor is its component. Nothing is shared with ``tensor``'s memory.
    """
    placement = spec.placement
    local = tensor.detach()
    # On CPU OneFlow 0.9.0 aborts in a broadcast of a half type. float32 holds both exactly.
    through_float = local.dtype in _HALF and placement.type == "cpu"
    if through_float:
        local = local.to(flow.float32)
    whole = (BROADCAST,) * len(sbp)
    # copy=True: else the first rank's component is the caller's tensor, and a later write to
    # that one would make the ranks differ.
    if spec.source == "shard" or sbp == whole:
        result = local.to_global(placement, sbp, copy=True)
    else:
        # A split of local tensors would concatenate them. Broadcast keeps the logical shape.
        result = local.to_global(placement, whole, copy=True).to_global(placement, sbp)
    return result.to(tensor.dtype) if through_float else result


def make_global(parameter: Tensor, value: Tensor, grad: Tensor | None) -> None:
    """Turn a local leaf Parameter into the global ``value`` in place, ``grad`` with it.

    The object stays what it is to optimizers, tied weights and hooks.
    """
    parameter.data = value
    # OneFlow drops the gradient with the old data.
    parameter.grad = grad


def nbytes(local: Tensor) -> int:
    """The bytes that a local tensor's elements take."""
    # OneFlow 0.9.0 does not know the size of this dtype of its own.
    size = 2 if local.dtype == flow.bfloat16 else local.element_size()
    return int(local.numel() * size)
