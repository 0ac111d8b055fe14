"""What the ranks tell each other; the only file that sends anything of its own.

Two ranks tell each other at once. Of more, rank 0 hears every rank and answers: two small messages
for each, so that a rank which is missing can be named. All ranks of the program have to call these
functions, in the same order.

Every wait here is for OneFlow's ``eager.Sync``, which sleeps. ``Tensor.numpy`` spins on a core
instead, which on a busy machine takes that core from the very rank that is waited for.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import oneflow as flow

from .._compat import nbytes_of

Tensor = Any  # oneflow.Tensor; OneFlow ships no types
Words = Sequence[int]

WORDS = 8  # of 64 bits, in a message of fixed size: OneFlow sends short ones at once
_MISSING = -(2**62)


def sync() -> None:
    """Wait until this rank has done all that was asked of it."""
    flow._oneflow_internal.eager.Sync()


@cache
def world_size() -> int:
    return int(flow.env.get_world_size())


@cache
def this_rank() -> int:
    return int(flow.env.get_rank())


def can_meet() -> bool:
    """Whether there are other ranks, and OneFlow lets this thread send to them."""
    return (
        world_size() > 1
        and threading.current_thread() is threading.main_thread()
        and not flow._oneflow_internal.lazy_mode.is_enabled()
    )


def host() -> Any:
    """The device on which this rank's own tensors are in host memory."""
    return flow.device("cpu", flow.env.get_local_rank())


def host_buffer(count: int, dtype: Any) -> Tensor:
    """A local tensor that messages can be sent from and received into, not yet filled."""
    # flow.empty puts a tensor on cpu:0 on every rank unless told otherwise, where OneFlow refuses
    # to receive; flow.zeros makes an nn.Module for it, which a scope's hook would see.
    return flow.empty((count,), dtype=dtype, device=host())


class Traffic:
    """The bytes that this process has sent to other ranks and received from them, in all."""

    __slots__ = ("received", "sent")

    def __init__(self) -> None:
        self.sent = 0
        self.received = 0


traffic = Traffic()


def send(tensor: Tensor, rank: int) -> None:
    traffic.sent += nbytes_of(tensor)
    flow.comm.send(tensor, rank, False)


def recv(rank: int, out: Tensor) -> None:
    traffic.received += nbytes_of(out)
    flow.comm.recv(rank, tuple(out.shape), out.dtype, out.device, out=out)


class _Box:
    """A short message: a local tensor, and a view of its memory."""

    def __init__(self, words: int = WORDS) -> None:
        self.tensor = host_buffer(words, flow.int64)
        self.view = self.tensor.numpy()
        self.view[:] = 0


class _Table:
    """The messages that rank 0 has of the others, and its answer."""

    def __init__(self) -> None:
        self.heard = [_Box() for _ in range(world_size())] if this_rank() == 0 else []
        self.mine = _Box()
        self.answer = _Box()
        self.both = _Box(2 * WORDS)


_table = cache(_Table)


def awaited() -> str:
    """For whom this rank waits in :func:`vote` or :func:`consult`."""
    if world_size() == 2:
        return f"rank {1 - this_rank()}"
    if this_rank() != 0:
        return "rank 0, which hears every rank in turn and whose own stderr names who is missing"
    missing = [k for k, box in enumerate(_table().heard) if k and box.view[0] == _MISSING]
    if not missing:
        return "the others"
    later = f" (and then for {', '.join(map(str, missing[1:]))})" if missing[1:] else ""
    return f"rank {missing[0]}{later}"


def vote(words: Words, decide: Callable[[list[list[int]]], Words]) -> list[int]:
    """Each rank says up to :data:`WORDS` numbers, and ``decide`` makes up to as many of them.

    It is called on rank 0, and perhaps on all ranks.
    """
    if world_size() == 1:
        return list(decide([list(words)]))
    table = _table()
    if world_size() == 2:
        table.mine.view[: len(words)] = words
        flow.comm.all_gather_into_tensor(table.both.tensor, table.mine.tensor)
        traffic.sent += nbytes_of(table.mine.tensor)
        traffic.received += nbytes_of(table.mine.tensor)
        sync()
        return list(decide(table.both.view.reshape(2, WORDS).tolist()))
    # What was sent from these boxes before has gone: each vote ends in a sync, or begins with one.
    if this_rank() == 0:
        for rank, box in enumerate(table.heard):
            if rank:
                box.view[0] = _MISSING
                recv(rank, box.tensor)
        sync()
        own = [*words, *(0 for _ in range(WORDS - len(words)))]
        answer = decide([own, *(box.view.tolist() for box in table.heard[1:])])
        _tell(table, answer)
    else:
        table.mine.view[: len(words)] = words
        send(table.mine.tensor, 0)
        recv(0, table.answer.tensor)
        sync()
    return list(table.answer.view.tolist())


def _tell(table: _Table, answer: Words) -> None:
    table.answer.view[: len(answer)] = answer
    for rank in range(1, world_size()):
        send(table.answer.tensor, rank)


def consult(data: bytes, decide: Callable[[list[bytes]], bytes]) -> bytes:
    """Each rank says some bytes, as many as it likes, and all get what rank 0 makes of them."""
    if world_size() == 1:
        return decide([data])
    sizes: list[int] = []

    def note(rows: list[list[int]]) -> Words:
        sizes[:] = [row[0] for row in rows]
        return [0]

    vote([len(data)], note)
    table = _table()
    if this_rank() == 0:
        heard = [host_buffer(max(1, size), flow.uint8) for size in sizes[1:]]
        for rank, tensor in enumerate(heard, 1):
            recv(rank, tensor)
        sync()
        said = [tensor.numpy().tobytes()[:size] for tensor, size in zip(heard, sizes[1:])]
        answer = decide([data, *said])
        _tell(table, [len(answer)])
        for rank in range(1, world_size()):
            send(_as_tensor(answer), rank)
        sync()
        return answer
    send(_as_tensor(data), 0)
    recv(0, table.answer.tensor)
    sync()
    size = int(table.answer.view[0])
    told = host_buffer(max(1, size), flow.uint8)
    recv(0, told)
    sync()
    return bytes(told.numpy().tobytes()[:size])


def _as_tensor(data: bytes) -> Tensor:
    return flow.tensor(np.frombuffer(data or b"\0", dtype=np.uint8))


def all_true(flags: Sequence[bool]) -> list[bool]:
    """Which of these flags are true on every rank; there are as many on each."""
    together = consult(bytes(flags), lambda said: bytes(map(min, zip(*said))))
    return [bool(one) for one in together]


def gather(values: list[int]) -> list[list[int]]:
    """The values of every rank."""
    said = consult(json.dumps(values).encode(), lambda all_: b"[" + b",".join(all_) + b"]")
    everybodys: list[list[int]] = json.loads(said)
    return everybodys
