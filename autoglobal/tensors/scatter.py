"""The scatter of the first rank's values: to each rank its own part.

At most ``BUFFER`` bytes of tensors are on the way at a time, if not one that is larger. Small parts
for one rank go together, up to :data:`MESSAGE` bytes in one message; of a tensor that is larger
than :data:`LARGE`, and of one on a GPU, where putting them together would need a kernel, each part
goes by itself, into the new tensor's own memory. Every rank passes through the tensors in the same
order, so that no two wait for each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import oneflow as flow

from .._compat import (
    HALF,
    Tensor,
    host,
    item_size,
    local_empty,
    on_own_device,
    stacked,
    sync,
    this_rank,
)
from ..layout.placement import Shape, holds_values
from ..ranks.collectives import recv, send
from .convert import boxing, empty, from_component, narrowed, part_of
from .digests import BUFFER

if TYPE_CHECKING:
    from .batch import TensorConversion

LARGE = 512 << 10
MESSAGE = 1 << 20  # the next one is put together while it is on the way


def scatter(conversions: Sequence[TensorConversion], alive: Callable[[], None]) -> None:
    """Send and receive what ``wanted`` of each says; then it has its ``result`` where it is wanted.

    ``alive`` is called each time that others have answered.
    """
    for window in _windows(conversions):
        _Window(window).carry()
        # These calls return at once. Without a wait all windows could be in memory together.
        if len(window) < len(conversions):
            sync()
            alive()


def _windows(conversions: Sequence[TensorConversion]) -> Iterator[Sequence[TensorConversion]]:
    start = size = 0
    for at, one in enumerate(conversions):
        if at > start and size + one.nbytes > BUFFER:
            yield conversions[start:at]
            start, size = at, 0
        size += one.nbytes
    yield conversions[start:]


def _shape_for(one: TensorConversion, rank: int) -> Shape:
    return one.layout.component(one.logical, one.sbp, one.layout.positions[rank])


def _is_large(one: TensorConversion) -> bool:
    return one.nbytes > LARGE


def _on_the_way(tensor: Tensor) -> Any:
    # OneFlow 0.9.0 aborts where it is to send a half type from host memory.
    return flow.float32 if tensor.dtype in HALF and tensor.device.type == "cpu" else tensor.dtype


class _Window:
    """So many tensors as are on the way at a time."""

    def __init__(self, conversions: Sequence[TensorConversion]) -> None:
        self._conversions = conversions
        self._messages: list[_Message] = []
        self._open: dict[tuple[int, int, str], _Message] = {}

    def carry(self) -> None:
        me = this_rank()
        for one in self._conversions:
            if _is_large(one) and one.layout.is_everybody and one.sbp == one.layout.broadcast:
                # OneFlow's own broadcast is the faster way.
                one.result = boxing(on_own_device(one.tensor), one.layout, one.sbp)
                continue
            for rank in one.layout.members:
                if rank in one.wanted and me in (rank, one.layout.first):
                    self._take(one, rank)
        for message in self._messages:
            message.carry()

    def _take(self, one: TensorConversion, rank: int) -> None:
        count = math.prod(_shape_for(one, rank))
        if not count or not holds_values(one.sbp, one.layout.positions[rank]):
            if rank == this_rank():
                one.result, component = empty(one.logical, one.tensor.dtype, one.layout, one.sbp)
                if count:
                    component.zero_()
        elif _is_large(one) or one.tensor.device.type != "cpu":
            _carry_alone(one, rank)
        else:
            self._post(one, rank, count * item_size(one.tensor.dtype))

    def _post(self, one: TensorConversion, rank: int, nbytes: int) -> None:
        way = one.layout.first, rank, str(one.tensor.dtype)
        message = self._open.get(way)
        if message is None or message.nbytes + nbytes > MESSAGE:
            message = self._open[way] = _Message(one.layout.first, rank, _on_the_way(one.tensor))
            self._messages.append(message)
        message.add(one, nbytes)


class _Message:
    """Small parts for one rank, those of like tensors one behind the other."""

    def __init__(self, source: int, rank: int, dtype: Any) -> None:
        self._rank = rank
        self.nbytes = 0
        self._source = source
        self._dtype = dtype
        self._alike: dict[object, list[TensorConversion]] = {}

    def add(self, one: TensorConversion, nbytes: int) -> None:
        self.nbytes += nbytes
        self._alike.setdefault((one.layout, one.sbp, one.logical), []).append(one)

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
            whole = stacked([each.tensor for each in alike])
            part = narrowed(whole, one.layout, one.sbp, one.layout.positions[self._rank], stack=1)
            blocks.append(part.reshape(-1).to(self._dtype))
        send(flow.cat(blocks) if len(blocks) > 1 else blocks[0].contiguous(), self._rank)

    def _receive(self) -> None:
        sizes = [
            len(alike) * math.prod(_shape_for(alike[0], self._rank))
            for alike in self._alike.values()
        ]
        whole = next(iter(self._alike.values()))[0].tensor
        flat = local_empty((sum(sizes),), self._dtype, _here(whole))
        recv(self._source, flat)
        start = 0
        for alike, size in zip(self._alike.values(), sizes):
            shape = len(alike), *_shape_for(alike[0], self._rank)
            block = flat.narrow(0, start, size).view(*shape).to(whole.dtype)
            for one, part in zip(alike, flow.unbind(block, 0)):
                one.result = from_component(part, one.logical, one.layout, one.sbp)
            start += size


def _carry_alone(one: TensorConversion, rank: int) -> None:
    dtype = _on_the_way(one.tensor)
    if this_rank() != rank:
        part = part_of(one.tensor, one.layout, one.sbp, one.layout.positions[rank])
        send(part.to(dtype), rank)
        return
    one.result, component = empty(one.logical, one.tensor.dtype, one.layout, one.sbp)
    device = _here(one.tensor)
    if component.dtype == dtype and component.device == device:
        recv(one.layout.first, component)
    else:
        out = local_empty(tuple(component.shape), dtype, device)
        recv(one.layout.first, out)
        component.copy_(out.to(component.dtype))


def _here(tensor: Tensor) -> Any:
    # flow.empty puts a tensor on cpu:0 on every rank, where OneFlow refuses to receive.
    return host() if tensor.device.type == "cpu" else tensor.device
