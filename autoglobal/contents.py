"""Reading many tensors together: digests of what they hold, and copies that can be cut.

The address of a tensor's memory is had by a wait that spins on a core. So tensors are copied side
by side into a buffer whose address is known, and one wait that sleeps does for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import oneflow as flow
import xxhash

from .ranks import host, host_buffer, sync

Tensor = Any  # oneflow.Tensor; OneFlow ships no types

BUFFER = 8 << 20  # bytes of tensors that are read at a time, if not of one that is larger
SMALL = 1 << 20  # bytes; to copy so few costs less than to ask where they lie
_LARGEST = 16 << 20  # bytes; what is larger is read where it lies
_KEPT = 1 << 20  # bytes of a buffer that stays until it is needed again


@cache
def item_size(dtype: Any) -> int:
    """The bytes of one element."""
    # OneFlow 0.9.0 does not know the size of this dtype of its own.
    return 2 if dtype == flow.bfloat16 else int(dtype.bytes)


def nbytes_of(tensor: Tensor) -> int:
    return int(tensor.numel()) * item_size(tensor.dtype)


def sound(local: Tensor) -> Tensor:
    """A tensor with the same values of which views can be taken: a copy of a small one.

    OneFlow 0.9.0 forgets where a view begins in its storage once it is detached, or a Parameter:
    a further view of that begins at the start of the storage, with other numbers and no error.
    Copying it is right.
    """
    source = at_home(local.detach())
    if nbytes_of(source) <= SMALL or source.device.type != "cpu" or source.dtype == flow.bfloat16:
        return source.clone()
    sync()  # numpy() spins on a core while it waits
    whole, first = source.numpy(), source.narrow(0, 0, 1).numpy()
    return source if whole.ctypes.data == first.ctypes.data else source.clone()


def at_home(local: Tensor) -> Tensor:
    """The tensor, or a copy of it, on this rank's own device if that is the host.

    ``flow.empty`` puts its tensor on ``cpu:0`` on every rank. To and from there OneFlow 0.9.0
    copies by way of numpy, which has no bfloat16, and where no memory is shared.
    """
    device = local.device
    if device.type != "cpu" or device.index == flow.env.get_local_rank():
        return local
    return local.to(host())


Cut = Callable[[int, Tensor], None]

# A buffer for each dtype, and the array that is its memory.
_stages: dict[Any, tuple[Tensor, Any]] = {}


def _stage(dtype: Any, count: int) -> tuple[Tensor, Any]:
    kept = _stages.get(dtype)
    if kept is None or len(kept[1]) < count:
        tensor = host_buffer(max(count, 4096), dtype)
        kept = _stages[dtype] = tensor, tensor.numpy()
    return kept


def release() -> None:
    """Let go of large buffers."""
    for dtype, (_, array) in list(_stages.items()):
        if array.nbytes > _KEPT:
            del _stages[dtype]


class Reading:
    """Tensors in host memory that are being copied, and then read.

    ``cut`` is called with the index of each and a copy of it that can be cut, in float32 for
    bfloat16, as soon as that copy is under way. :meth:`digests` waits for them.
    """

    def __init__(self, tensors: Sequence[Tensor], cut: Cut) -> None:
        self._tensors = tensors
        self._digests = [b""] * len(tensors)
        self._copies: list[Tensor] | None = [None] * len(tensors)
        self._under_way: list[tuple[int, Any, int, int]] = []  # index, and where in which array
        counted: dict[Any, list[tuple[int, int]]] = {}
        for index, tensor in enumerate(tensors):
            # numpy has no bfloat16.
            dtype = flow.float32 if tensor.dtype == flow.bfloat16 else tensor.dtype
            counted.setdefault(dtype, []).append((index, tensor.numel()))
        for dtype, counts in counted.items():
            self._start(dtype, counts, cut)

    def digests(self) -> list[bytes]:
        """16 bytes that stand for the elements of each."""
        if self._under_way:
            sync()
        for index, array, start, end in self._under_way:
            self._digests[index] = xxhash.xxh3_128_digest(array[start:end])
        self._under_way.clear()
        return self._digests

    @property
    def copies(self) -> list[Tensor] | None:
        """The copies, where all of them are there at once; they last until the next reading."""
        return self._copies

    def _start(self, dtype: Any, counts: Sequence[tuple[int, int]], cut: Cut) -> None:
        size = item_size(dtype)
        total, largest = sum(count for _, count in counts), max(count for _, count in counts)
        room = max(BUFFER // size, min(largest, _LARGEST // size))
        stage, array = _stage(dtype, min(total, room))
        end = 0
        for index, count in counts:
            source = at_home(self._tensors[index].detach())
            if count > len(array):
                whole = sound(source).to(dtype)
                cut(index, whole)
                self._read_alone(index, whole)
                continue
            if end + count > len(array):
                self.digests()
                self._copies = None
                end = 0
            copy = stage.narrow(0, end, count).view(*source.shape)
            if count:
                copy.copy_(source)
            if self._copies is not None:
                self._copies[index] = copy
            cut(index, copy)
            self._under_way.append((index, array, end, end + count))
            end += count

    def _read_alone(self, index: int, whole: Tensor) -> None:
        self._copies = None
        sync()
        self._digests[index] = xxhash.xxh3_128_digest(whole.contiguous().numpy())
