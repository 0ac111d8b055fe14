"""Digests of tensors in host memory.

The address of a tensor's memory is had by a wait that spins on a core. So tensors are copied side
by side into a buffer whose address is known, and one wait that sleeps does for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import oneflow as flow
import xxhash

from .._compat import SMALL, Tensor, host_buffer, item_size, on_own_device, stacked, sync
from ..layout.placement import Shape

BUFFER = 8 << 20  # bytes of tensors that are read at a time, if not of one that is larger
_KEPT = 1 << 20  # bytes of a buffer that stays until it is needed again


# A buffer for each dtype, and the array that is its memory.
_buffers: dict[Any, tuple[Tensor, Any]] = {}


def _buffer(dtype: Any, count: int) -> tuple[Tensor, Any]:
    kept = _buffers.get(dtype)
    if kept is None or len(kept[1]) < count:
        tensor = host_buffer(max(count, 4096), dtype)
        kept = _buffers[dtype] = tensor, tensor.numpy()
    return kept


def release_buffers() -> None:
    """Let go of large buffers."""
    for dtype, (_, array) in list(_buffers.items()):
        if array.nbytes > _KEPT:
            del _buffers[dtype]


class Reading:
    """Tensors in host memory that are being copied, and then read: :meth:`digests` waits for it."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tensors
        self._digests = [b""] * len(tensors)
        self._under_way: list[tuple[int, Any, int, int]] = []  # index, and where in which array
        small: dict[Any, dict[tuple[Any, Shape], list[int]]] = {}
        for index, tensor in enumerate(tensors):
            # numpy has no bfloat16.
            dtype = flow.float32 if tensor.dtype == flow.bfloat16 else tensor.dtype
            shape = tuple(tensor.shape)
            if math.prod(shape) * item_size(dtype) > SMALL:
                self._read_alone(index, dtype)
            else:
                small.setdefault(dtype, {}).setdefault((tensor.dtype, shape), []).append(index)
        for dtype, alike in small.items():
            self._start(dtype, alike)

    def digests(self) -> list[bytes]:
        """16 bytes that stand for the elements of each."""
        if self._under_way:
            sync()
        for index, array, start, end in self._under_way:
            self._digests[index] = xxhash.xxh3_128_digest(array[start:end])
        self._under_way.clear()
        return self._digests

    def _start(self, dtype: Any, alike: Mapping[tuple[Any, Shape], list[int]]) -> None:
        size = item_size(dtype)
        total = sum(math.prod(shape) * len(indices) for (_, shape), indices in alike.items())
        buffer, array = _buffer(dtype, min(total, BUFFER // size))
        end = 0
        for (_, shape), indices in alike.items():
            count = math.prod(shape)
            together = max(1, SMALL // max(1, count * size))
            for first in range(0, len(indices), together):
                chunk = indices[first : first + together]
                if end + count * len(chunk) > len(array):
                    self.digests()
                    end = 0
                if count:
                    self._copy(buffer.narrow(0, end, count * len(chunk)), chunk, shape)
                for index in chunk:
                    self._under_way.append((index, array, end, end + count))
                    end += count

    def _copy(self, to: Tensor, chunk: list[int], shape: Shape) -> None:
        if len(chunk) > 1:
            to.view(len(chunk), *shape).copy_(stacked([self._tensors[index] for index in chunk]))
        else:
            to.view(*shape).copy_(on_own_device(self._tensors[chunk[0]].detach()))

    def _read_alone(self, index: int, dtype: Any) -> None:
        whole = on_own_device(self._tensors[index].detach()).to(dtype)
        sync()  # numpy() spins on a core while it waits
        array: Any = np.ascontiguousarray(whole.numpy())
        self._digests[index] = xxhash.xxh3_128_digest(array)
