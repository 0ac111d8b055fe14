"""Reading many tensors together: digests of what they hold, and copies that can be cut.

To copy a tensor takes an instruction of its own, and so does the wait for its memory's address,
which spins on a core. So tensors are copied side by side into a buffer whose address is known,
small ones of like shape by one instruction, and one wait that sleeps does for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import oneflow as flow
import xxhash

from .ranks import host_buffer, sync

Tensor = Any  # oneflow.Tensor; OneFlow ships no types

BUFFER = 4 << 20  # bytes of tensors that are read at a time, if not of one that is larger
_LARGEST = 16 << 20  # bytes; what is larger is read where it lies
SMALL = 1 << 20  # bytes; larger ones are copied one by one
_KEPT = 1 << 20  # bytes of a buffer that stays until it is needed again

# Takes the index of a tensor, a copy of it that can be cut, and in a reading its elements as an
# array in row order. What it is given lasts until it returns.
Visit = Callable[[int, Tensor, Any], None]


def nbytes_of(tensor: Tensor) -> int:
    # OneFlow 0.9.0 does not know the size of a bfloat16.
    return int(tensor.numel()) * (2 if tensor.dtype == flow.bfloat16 else tensor.element_size())


def sound(local: Tensor) -> Tensor:
    """A tensor with the same values of which views can be taken: a copy of a small one.

    OneFlow 0.9.0 forgets where a view begins in its storage once it is detached, or a Parameter:
    a further view of that begins at the start of the storage, with other numbers and no error.
    Copying it is right.
    """
    source = local.detach()
    if nbytes_of(source) <= SMALL or source.device.type != "cpu" or source.dtype == flow.bfloat16:
        return source.clone()
    sync()  # numpy() spins on a core while it waits
    first = source.narrow(0, 0, 1)
    lies_at_start = source.numpy().ctypes.data == first.numpy().ctypes.data
    return source if lies_at_start else source.clone()


def copies(tensors: Sequence[Tensor], call: Visit) -> None:
    """Call ``call`` with a copy of each tensor, and None."""
    for group in _alike(tensors):
        flat = _together([tensors[index] for index in group])
        start = 0
        for index in group:
            rows = tensors[index].shape[0] if len(group) > 1 else 0
            call(index, flat.narrow(0, start, rows) if len(group) > 1 else flat, None)
            start += rows


def read(tensors: Sequence[Tensor], call: Visit) -> None:
    """Call ``call`` with a copy of each tensor, in float32 for bfloat16, and its elements."""
    by_dtype: dict[Any, list[int]] = {}
    for index, tensor in enumerate(tensors):
        by_dtype.setdefault(_readable(tensor), []).append(index)
    for dtype, indices in by_dtype.items():
        waiting: list[int] = []
        size = 0
        for index in indices:
            count = tensors[index].numel()
            nbytes = count * (4 if dtype == flow.float32 else tensors[index].element_size())
            if nbytes > _LARGEST:
                whole = sound(tensors[index]).to(dtype)
                sync()
                call(index, whole, whole.contiguous().numpy())
                continue
            if waiting and size + nbytes > BUFFER:
                _read_staged(dtype, waiting, tensors, call)
                waiting, size = [], 0
            waiting.append(index)
            size += nbytes
        if waiting:
            _read_staged(dtype, waiting, tensors, call)


def _readable(tensor: Tensor) -> Any:
    # numpy has no bfloat16.
    return flow.float32 if tensor.dtype == flow.bfloat16 else tensor.dtype


def _alike(tensors: Sequence[Tensor]) -> Iterator[list[int]]:
    """The indices of small tensors that can be joined along axis 0; of others, one by one."""
    groups: dict[Any, list[int]] = {}
    for index, tensor in enumerate(tensors):
        shape = tensor.shape
        if len(shape) == 0 or not 0 < nbytes_of(tensor) <= SMALL:
            yield [index]
        else:
            key = (tensor.dtype, tensor.device.type, tuple(shape[1:]))
            groups.setdefault(key, []).append(index)
    yield from groups.values()


def _together(tensors: Sequence[Tensor]) -> Tensor:
    # Not flattened first: that would be a view.
    if len(tensors) == 1:
        return sound(tensors[0])
    return flow.cat([tensor.detach() for tensor in tensors], dim=0)


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


def _read_staged(
    dtype: Any, indices: Sequence[int], tensors: Sequence[Tensor], call: Visit
) -> None:
    chosen = [tensors[index].detach() for index in indices]
    total = sum(tensor.numel() for tensor in chosen)
    stage, array = _stage(dtype, total)
    begins = [(0, 0)] * len(chosen)  # where each of them lies there, and how long it is
    end = 0
    for group in _alike(chosen):
        start = end
        for at in group:
            count = chosen[at].numel()
            begins[at] = (end, count)
            end += count
        if end > start:
            source = (
                chosen[group[0]] if len(group) == 1 else _together([chosen[at] for at in group])
            )
            stage.narrow(0, start, end - start).view(*source.shape).copy_(source)
    sync()
    for index, tensor, (start, count) in zip(indices, chosen, begins):
        copy = stage.narrow(0, start, count).view(*tensor.shape)
        call(index, copy, array[start : start + count])


def digest(array: Any) -> bytes:
    """16 bytes that stand for an array's elements."""
    return bytes(xxhash.xxh3_128_digest(array))
