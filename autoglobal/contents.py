"""Digests of what tensors hold, to be compared between the ranks.

Only of tensors in host memory: what is on a GPU is not brought here to be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import oneflow as flow
import xxhash

from .ranks import host_buffer, sync

Tensor = Any  # oneflow.Tensor; OneFlow ships no types

LARGE = 1 << 20  # bytes; from here on a tensor's own memory is read, and not a copy of it
_STAGE = 4 << 20  # bytes
_KEPT = 1 << 20


def digest_of(tensor: Tensor) -> bytes:
    """A 16-byte digest of one tensor's elements, of whatever strides."""
    return digests([tensor])[0]


def digests(tensors: Sequence[Tensor]) -> list[bytes]:
    """The same of many; they have to be in host memory."""
    found: list[bytes] = [b""] * len(tensors)
    small: dict[Any, list[tuple[int, Tensor]]] = {}
    large = []
    for index, tensor in enumerate(tensors):
        source = tensor.detach()
        if source.dtype == flow.bfloat16:
            source = source.to(flow.float32)  # numpy has no bfloat16
        if source.numel() * source.element_size() < LARGE:
            small.setdefault(source.dtype, []).append((index, source))
        else:
            large.append((index, source.contiguous()))
    for dtype, group in small.items():
        _digest_staged(dtype, group, found)
    if large:
        sync()  # numpy() spins on a core while it waits
    for index, source in large:
        found[index] = xxhash.xxh3_128_digest(source.numpy())
    return found


# To read a tensor's memory takes a wait of its own, so small ones are copied side by side first.
_stages: dict[Any, tuple[Tensor, Any]] = {}


def _digest_staged(dtype: Any, group: list[tuple[int, Tensor]], found: list[bytes]) -> None:
    size = group[0][1].element_size()
    total = sum(source.numel() for _, source in group)
    stage, view = _stage(dtype, min(total, _STAGE // size), size)
    room = len(view)
    staged: list[tuple[int, int, int]] = []
    end = 0

    def read() -> None:
        sync()
        for index, start, stop in staged:
            found[index] = xxhash.xxh3_128_digest(view[start:stop])
        staged.clear()

    for index, source in group:
        count = source.numel()
        if end + count > room:
            read()
            end = 0
        if count:
            stage.narrow(0, end, count).copy_(source.reshape(count))
        staged.append((index, end, end + count))
        end += count
    read()


def _stage(dtype: Any, count: int, size: int) -> tuple[Tensor, Any]:
    kept = _stages.get(dtype)
    if kept is not None and len(kept[1]) >= count:
        return kept
    count = max(count, 4096)
    tensor = host_buffer(count, dtype)
    made = tensor, tensor.numpy()
    if count * size <= _KEPT:
        _stages[dtype] = made
    return made
