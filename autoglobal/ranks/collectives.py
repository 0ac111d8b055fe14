"""Collectives: what the ranks tell each other. The only file that sends anything of its own.

Two ranks tell each other at once. Of more, rank 0 hears every rank and answers: two small messages
for each, so that a rank which is missing can be named. All ranks of the program have to call these
functions, in the same order. Every wait here is for :func:`autoglobal._compat.sync`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import oneflow as flow

from .. import _compat
from .._compat import (
    Tensor,
    from_array,
    host_buffer,
    is_tracing,
    nbytes_of,
    sync,
    this_rank,
    world_size,
)

Words = Sequence[int]

WORDS = 8  # of 64 bits, in a message of fixed size: OneFlow sends short ones at once
_MISSING = -(2**62)


def can_meet() -> bool:
    """Whether there are other ranks, and OneFlow lets this thread send to them."""
    # In another thread OneFlow 0.9.0 fails in every operation on a global tensor (measured).
    in_main_thread = threading.current_thread() is threading.main_thread()
    return world_size() > 1 and in_main_thread and not is_tracing() and not _compat.is_forked


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


class _Message:
    """A message of fixed size: a local tensor, and a view of its memory."""

    def __init__(self, words: int = WORDS) -> None:
        self.tensor = host_buffer(words, flow.int64)
        self.view = self.tensor.numpy()
        self.view[:] = 0


class _Messages:
    """The messages of fixed size, made once: on rank 0 one from each rank, and its answer."""

    def __init__(self) -> None:
        self.received = [_Message() for _ in range(world_size())] if this_rank() == 0 else []
        self.own = _Message()
        self.answer = _Message()
        self.both = _Message(2 * WORDS)


_messages = cache(_Messages)


def awaited() -> str:
    """For whom this rank waits in one of the functions below."""
    if world_size() == 2:
        return f"rank {1 - this_rank()}"
    if this_rank() != 0:
        return "rank 0, which hears every rank in turn and whose own stderr names who is missing"
    received = enumerate(_messages().received)
    missing = [rank for rank, message in received if rank and message.view[0] == _MISSING]
    if not missing:
        return "the others"
    later = f" (and then for {', '.join(map(str, missing[1:]))})" if missing[1:] else ""
    return f"rank {missing[0]}{later}"


def all_reduce_words(words: Words, decide: Callable[[list[list[int]]], Words]) -> list[int]:
    """Each rank gives up to :data:`WORDS` numbers, and ``decide`` makes up to as many of them.

    ``decide`` is called on rank 0, and perhaps on all ranks.
    """
    if world_size() == 1:
        return list(decide([list(words)]))
    messages = _messages()
    if world_size() == 2:
        messages.own.view[: len(words)] = words
        flow.comm.all_gather_into_tensor(messages.both.tensor, messages.own.tensor)
        traffic.sent += nbytes_of(messages.own.tensor)
        traffic.received += nbytes_of(messages.own.tensor)
        sync()
        return list(decide(messages.both.view.reshape(2, WORDS).tolist()))
    # What was sent from this memory before has gone, because each exchange ends in a sync, or
    # begins with one.
    if this_rank() == 0:
        for rank, message in enumerate(messages.received):
            if rank:
                message.view[0] = _MISSING
                recv(rank, message.tensor)
        sync()
        own = [*words, *(0 for _ in range(WORDS - len(words)))]
        answer = decide([own, *(message.view.tolist() for message in messages.received[1:])])
        _answer(messages, answer)
    else:
        messages.own.view[: len(words)] = words
        send(messages.own.tensor, 0)
        recv(0, messages.answer.tensor)
        sync()
    return list(messages.answer.view.tolist())


def _answer(messages: _Messages, answer: Words) -> None:
    messages.answer.view[: len(answer)] = answer
    for rank in range(1, world_size()):
        send(messages.answer.tensor, rank)


def all_reduce_bytes(data: bytes, decide: Callable[[list[bytes]], bytes]) -> bytes:
    """Each rank gives some bytes, as many as it likes, and all get what rank 0 makes of them."""
    if world_size() == 1:
        return decide([data])
    sizes: list[int] = []

    def note(rows: list[list[int]]) -> Words:
        sizes[:] = [row[0] for row in rows]
        return [0]

    all_reduce_words([len(data)], note)
    messages = _messages()
    if this_rank() == 0:
        buffers = [host_buffer(max(1, size), flow.uint8) for size in sizes[1:]]
        for rank, buffer in enumerate(buffers, 1):
            recv(rank, buffer)
        sync()
        others = [buffer.numpy().tobytes()[:size] for buffer, size in zip(buffers, sizes[1:])]
        answer = decide([data, *others])
        _answer(messages, [len(answer)])
        for rank in range(1, world_size()):
            send(_as_tensor(answer), rank)
        sync()
        return answer
    send(_as_tensor(data), 0)
    recv(0, messages.answer.tensor)
    sync()
    size = int(messages.answer.view[0])
    buffer = host_buffer(max(1, size), flow.uint8)
    recv(0, buffer)
    sync()
    return bytes(buffer.numpy().tobytes()[:size])


def _as_tensor(data: bytes) -> Tensor:
    return from_array(np.frombuffer(data or b"\0", dtype=np.uint8))


def all_true(flags: Sequence[bool]) -> list[bool]:
    """Which of these flags are true on every rank; there are as many on each."""
    together = all_reduce_bytes(bytes(flags), lambda rows: bytes(map(min, zip(*rows))))
    return [bool(one) for one in together]


def all_gather(values: list[int]) -> list[list[int]]:
    """The values of every rank."""
    together = all_reduce_bytes(
        json.dumps(values).encode(), lambda rows: b"[" + b",".join(rows) + b"]"
    )
    gathered: list[list[int]] = json.loads(together)
    return gathered
