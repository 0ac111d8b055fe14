"""What a dtype is called, and how many bytes a tensor takes."""

from __future__ import annotations

from functools import cache
from typing import Any

import oneflow as flow

Tensor = Any  # oneflow.Tensor; OneFlow ships no types


def dtype_name(dtype: Any) -> str:
    """``float32``."""
    return str(dtype).replace("oneflow.", "")


@cache
def item_size(dtype: Any) -> int:
    """The bytes of one element."""
    # OneFlow 0.9.0 does not know the size of this dtype of its own.
    return 2 if dtype == flow.bfloat16 else int(dtype.bytes)


def nbytes_of(tensor: Tensor) -> int:
    """The bytes of all elements; of a global tensor, of the logical one."""
    return int(tensor.numel()) * item_size(tensor.dtype)
