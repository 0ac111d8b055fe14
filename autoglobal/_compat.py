"""Private names and measured oddities of OneFlow, each with its version and how it is known.

"Measured" means that a run on OneFlow 0.9.0, on CPU and on 1, 2 and 4 ranks, has shown it. Whoever
supports another version of OneFlow begins here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import Any, TypeVar

import numpy as np
import oneflow as flow
from oneflow.utils.global_view import global_mode

# OneFlow ships no types (0.9.0 and 1.0.0: there is no py.typed in its wheel).
Tensor = Any  # oneflow.Tensor
Module = Any  # oneflow.nn.Module

T = TypeVar("T")

# A broadcast of these between ranks aborts the process on CPU (0.9.0, measured); float32 holds
# both exactly.
HALF = (flow.float16, flow.bfloat16)

SMALL = 1 << 20  # bytes; to copy so few costs less than to ask where they lie

# Whether nn.Graph is building (0.9.0): then no local tensor can become global.
is_tracing = flow._oneflow_internal.lazy_mode.is_enabled

# Whether this is a child of fork: OneFlow's threads, which do all its work, are not there.
is_forked = False


def _after_fork_in_child() -> None:
    global is_forked
    is_forked = True


os.register_at_fork(after_in_child=_after_fork_in_child)

# Wait until this rank has done all that was asked of it, asleep (0.9.0). ``Tensor.numpy`` waits as
# well, but spins on a core, which on a busy machine may be that of the rank that is waited for.
sync = flow._oneflow_internal.eager.Sync


@cache
def can_replace_data() -> bool:
    """Whether a local Parameter becomes global by ``parameter.data = global_tensor``.

    OneFlow 0.9.0 changes the Parameter in place (measured), 1.0.0 and later refuse (read in their
    source). A Parameter of our own is tried, not a version number; no other rank has to (measured).
    """
    own = flow.placement("cpu", [this_rank()])
    try:
        set_data(
            flow.nn.Parameter(host_buffer(1, flow.float32)),
            global_empty((1,), flow.float32, own, flow.sbp.broadcast),
        )
    except RuntimeError:
        return False
    return True


# As a subclass of Parameter may have a ``data`` or a ``grad`` of its own, which may refuse.
get_data, set_data = flow.Tensor.data.__get__, flow.Tensor.data.__set__
get_grad, set_grad = flow.Tensor.grad.__get__, flow.Tensor.grad.__set__


@cache
def world_size() -> int:
    """The number of ranks of the program."""
    return int(flow.env.get_world_size())


@cache
def this_rank() -> int:
    """The rank of this process."""
    return int(flow.env.get_rank())


def host() -> Any:
    """The device on which this rank's own tensors are in host memory."""
    return flow.device("cpu", flow.env.get_local_rank())


def local_empty(shape: tuple[int, ...], dtype: Any, device: Any) -> Tensor:
    """A local tensor that is not filled yet, also where the program has ``global_mode`` on."""
    # flow.zeros makes an nn.Module for it, which a scope's hook would see (0.9.0).
    with global_mode(False):
        return flow.empty(shape, dtype=dtype, device=device)


def global_empty(logical: tuple[int, ...], dtype: Any, placement: Any, sbp: Any) -> Tensor:
    """A global tensor that is not filled yet."""
    # With the mode on, OneFlow 0.9.0 ends the process of a rank that the placement leaves out.
    with global_mode(False):
        return flow.empty(logical, dtype=dtype, placement=placement, sbp=sbp)


def from_array(array: Any) -> Tensor:
    """A local tensor in host memory with the values of a numpy array, in any ``global_mode``."""
    with global_mode(False):
        return flow.tensor(array, device=host())


def host_buffer(count: int, dtype: Any) -> Tensor:
    """A local tensor that messages can be sent from and received into, not yet filled."""
    # flow.empty puts a tensor on cpu:0 on every rank unless told otherwise, where OneFlow refuses
    # to receive.
    return local_empty((count,), dtype, host())


def dtype_name(dtype: Any) -> str:
    """``float32``."""
    return str(dtype).replace("oneflow.", "")


@cache
def item_size(dtype: Any) -> int:
    """The bytes of one element."""
    # OneFlow 0.9.0 does not know the size of its own bfloat16.
    return 2 if dtype == flow.bfloat16 else int(dtype.bytes)


def nbytes_of(tensor: Tensor) -> int:
    """The bytes of all elements; of a global tensor, of the logical one."""
    return int(tensor.numel()) * item_size(tensor.dtype)


def on_own_device(local: Tensor) -> Tensor:
    """The tensor, or a copy of it, on this rank's own device if that is the host.

    ``flow.empty`` puts its tensor on ``cpu:0`` on every rank. To and from there OneFlow 0.9.0
    copies by way of numpy, which has no bfloat16, and where no memory is shared.
    """
    device = local.device
    if device.type != "cpu" or device.index == flow.env.get_local_rank():
        return local
    return local.to(host())


def viewable(local: Tensor) -> Tensor:
    """A tensor with the same values of which views can be taken: a copy of a small one.

    OneFlow 0.9.0 forgets where a view begins in its storage once it is detached, or a Parameter:
    a further view of that begins at the start of the storage, with other numbers and no error
    (measured). A copy of it is right.
    """
    source = on_own_device(local.detach())
    if nbytes_of(source) <= SMALL or source.device.type != "cpu" or source.dtype == flow.bfloat16:
        return source.clone()
    sync()  # or numpy() would wait, spinning on a core
    whole, first = source.numpy(), source.narrow(0, 0, 1).numpy()
    return source if whole.ctypes.data == first.ctypes.data else source.clone()


def in_one_memory(found: Iterable[tuple[T, tuple[int, ...], Tensor]]) -> list[list[T]]:
    """Those local tensors that lie at one place in host memory, each by what it comes with.

    Each comes with its shape too. Compared are tensors of one shape, if there are no more than
    three of them: OneFlow 0.9.0 tells no address but by way of numpy, and for each it waits for its
    own worker (measured: 20 us at best, milliseconds where other work is under way).
    """
    if is_tracing():
        return []
    alike: dict[tuple[int, ...], list[tuple[T, Tensor]]] = {}
    for key, shape, tensor in found:
        alike.setdefault(shape, []).append((key, tensor))
    at: dict[tuple[Any, ...], list[T]] = {}
    for shape, group in alike.items():
        if not 1 < len(group) <= _FEW or 0 in shape:
            continue
        readable = [(key, tensor) for key, tensor in group if _is_readable(tensor)]
        if len(readable) > 1:
            sync()  # or numpy() would wait, spinning on a core
            for key, tensor in readable:
                address = tensor.detach().numpy().ctypes.data
                at.setdefault((shape, tensor.dtype, address), []).append(key)
    return [keys for keys in at.values() if len(keys) > 1]


_FEW = 3


def _is_readable(local: Tensor) -> bool:
    """Whether it is local, and numpy gets its very memory and no copy."""
    if not local.is_local:
        return False
    device = local.device
    own = device.type == "cpu" and device.index == flow.env.get_local_rank()
    return bool(own and local.dtype != flow.bfloat16)


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Copies of local tensors of one shape and dtype, one behind the other along a new first axis.

    Of the new tensor views can be taken, which :func:`viewable` says of few others.
    """
    shape = tuple(tensors[0].shape)
    with flow.no_grad():
        if shape == ():  # flow.cat of 0.9.0 refuses 0-dim tensors
            return flow.cat([on_own_device(one.detach()).clone().view(1) for one in tensors])
        return flow.cat([on_own_device(one) for one in tensors]).view(len(tensors), *shape)


def rows_of(whole: Tensor, start: int, count: int) -> Tensor:
    """A copy of some rows of a local tensor, by one instruction that takes no view."""
    return flow._C.gather(on_own_device(whole.detach()), _indices(start, count), 0)


def has_rows_of(whole: Tensor) -> bool:
    """Whether :func:`rows_of` works, and is fast: the rows are few, or long."""
    # OneFlow 0.9.0 has no such kernel of uint8. On CUDA its copies run where its kernels do not.
    if whole.device.type != "cpu" or whole.dtype == flow.uint8:
        return False
    rows = whole.shape[0]
    return bool(rows <= _FEW_ROWS or whole.numel() // rows * item_size(whole.dtype) >= _LONG_ROW)


_FEW_ROWS = 1 << 16
_LONG_ROW = 256  # bytes


@lru_cache(maxsize=16)
def _indices(start: int, count: int) -> Tensor:
    return from_array(np.arange(start, start + count, dtype=np.int64))
