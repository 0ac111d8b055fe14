"""The first rank's values, sent to where they are missing: to each rank its own part.

At most ``BUFFER`` bytes of tensors are on the way at a time, if not one that is larger. Small parts
for one rank go together, up to :data:`MESSAGE` bytes in one message; of a tensor that is larger
than :data:`LARGE`, and of one on a GPU, where putting them together would need a kernel, each part
goes by itself, into the new tensor's own memory. Every rank passes through the tensors in the same
order, so that no two wait for each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import oneflow as flow

from .._compat import item_size, nbytes_of
from ..layout.rules import NdSbp
from ..layout.spec import GlobalSpec, Shape
from ..ranks.collectives import host, recv, send, sync, this_rank, world_size
from .convert import HALF, Tensor, box, empty, from_component, holds_values, narrowed, part_of
from .digests import BUFFER, at_home, stacked

LARGE = 512 << 10
MESSAGE = 1 << 20  # the next one is put together while it is on the way


@dataclass
class Delivery:
    """One tensor whose first rank's values are wanted by other ranks.

    ``whole`` is this rank's local logical tensor; ``wanted`` are the ranks that want their part.
    """

    whole: Tensor
    spec: GlobalSpec
    sbp: NdSbp
    wanted: frozenset[int]
    made: Tensor = None

    @property
    def logical(self) -> Shape:
        return tuple(self.whole.shape)

    def shape_for(self, rank: int) -> Shape:
        return self.spec.component(self.logical, self.sbp, self.spec.positions[rank])

    @property
    def is_large(self) -> bool:
        return nbytes_of(self.whole) > LARGE

    @property
    def is_for_all(self) -> bool:
        """Whether every rank of the program is to hold all of it."""
        return len(self.spec.members) == world_size() and self.sbp == self.spec.whole()


def deliver(deliveries: Sequence[Delivery], alive: Callable[[], None]) -> None:
    """Send and receive; ``alive`` is called each time that others have answered."""
    for window in _windows(deliveries):
        _Window(window).carry()
        # Nothing of this waits; without an end to it all of it could lie in memory at once.
        if len(window) < len(deliveries):
            sync()
            alive()


def _windows(deliveries: Sequence[Delivery]) -> Iterator[Sequence[Delivery]]:
    start = size = 0
    for at, one in enumerate(deliveries):
        nbytes = nbytes_of(one.whole)
        if at > start and size + nbytes > BUFFER:
            yield deliveries[start:at]
            start, size = at, 0
        size += nbytes
    yield deliveries[start:]


def _on_the_way(tensor: Tensor) -> Any:
    # OneFlow 0.9.0 aborts where it is to send a half type from host memory.
    return flow.float32 if tensor.dtype in HALF and tensor.device.type == "cpu" else tensor.dtype


class _Window:
    """So many tensors as are on the way at a time."""

    def __init__(self, deliveries: Sequence[Delivery]) -> None:
        self._deliveries = deliveries
        self._messages: list[_Message] = []
        self._open: dict[tuple[int, int, str], _Message] = {}

    def carry(self) -> None:
        me = this_rank()
        for one in self._deliveries:
            if one.is_for_all and one.is_large:
                # OneFlow's own broadcast is the faster way.
                one.made = box(at_home(one.whole), one.spec, one.sbp)
                continue
            for rank in one.spec.members:
                if rank in one.wanted and me in (rank, one.spec.first):
                    self._take(one, rank)
        for message in self._messages:
            message.carry()

    def _take(self, one: Delivery, rank: int) -> None:
        count = math.prod(one.shape_for(rank))
        if not count or not holds_values(one.sbp, one.spec.positions[rank]):
            if rank == this_rank():
                one.made, component = empty(one.logical, one.whole.dtype, one.spec, one.sbp)
                if count:
                    component.zero_()
        elif one.is_large or one.whole.device.type != "cpu":
            _carry_alone(one, rank)
        else:
            self._post(one, rank, count * item_size(one.whole.dtype))

    def _post(self, one: Delivery, rank: int, nbytes: int) -> None:
        way = one.spec.first, rank, str(one.whole.dtype)
        message = self._open.get(way)
        if message is None or message.nbytes + nbytes > MESSAGE:
            message = self._open[way] = _Message(one.spec.first, rank, _on_the_way(one.whole))
            self._messages.append(message)
        message.add(one, nbytes)


class _Message:
    """Small parts for one rank, those of like tensors one behind the other."""

    def __init__(self, source: int, rank: int, dtype: Any) -> None:
        self._rank = rank
        self.nbytes = 0
        self._source = source
        self._dtype = dtype
        self._alike: dict[object, list[Delivery]] = {}

    def add(self, one: Delivery, nbytes: int) -> None:
        self.nbytes += nbytes
        self._alike.setdefault((id(one.spec), one.sbp, one.logical), []).append(one)

    def carry(self) -> None:
        first, *others = [one for alike in self._alike.values() for one in alike]
        if not others:
            _carry_alone(first, self._rank)
        elif this_rank() == self._rank:
            self._receive()
        else:
            self._send()

    def _send(self) -> None:
        blocks = []
        for alike in self._alike.values():
            one = alike[0]
            whole = stacked([each.whole for each in alike])
            part = narrowed(whole, one.spec, one.sbp, one.spec.positions[self._rank], stack=1)
            blocks.append(part.reshape(-1).to(self._dtype))
        send(flow.cat(blocks) if len(blocks) > 1 else blocks[0].contiguous(), self._rank)

    def _receive(self) -> None:
        sizes = [
            len(alike) * math.prod(alike[0].shape_for(self._rank)) for alike in self._alike.values()
        ]
        whole = next(iter(self._alike.values()))[0].whole
        flat = flow.empty((sum(sizes),), dtype=self._dtype, device=_here(whole))
        recv(self._source, flat)
        start = 0
        for alike, size in zip(self._alike.values(), sizes):
            shape = len(alike), *alike[0].shape_for(self._rank)
            block = flat.narrow(0, start, size).view(*shape).to(whole.dtype)
            for one, part in zip(alike, flow.unbind(block, 0)):
                one.made = from_component(part, one.logical, one.spec, one.sbp)
            start += size


def _carry_alone(one: Delivery, rank: int) -> None:
    dtype = _on_the_way(one.whole)
    if this_rank() != rank:
        part = part_of(one.whole, one.spec, one.sbp, one.spec.positions[rank])
        send(part.to(dtype), rank)
        return
    one.made, component = empty(one.logical, one.whole.dtype, one.spec, one.sbp)
    device = _here(one.whole)
    if component.dtype == dtype and component.device == device:
        recv(one.spec.first, component)
    else:
        out = flow.empty(tuple(component.shape), dtype=dtype, device=device)
        recv(one.spec.first, out)
        component.copy_(out.to(component.dtype))


def _here(tensor: Tensor) -> Any:
    # flow.empty puts a tensor on cpu:0 on every rank, where OneFlow refuses to receive.
    return host() if tensor.device.type == "cpu" else tensor.device
