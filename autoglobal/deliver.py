"""The first rank's values, sent to where they are missing: to each rank its own part.

At most ``BUFFER`` bytes of tensors are on the way at a time, if not one that is larger. Small parts
for one rank go in one message; a part that is larger than :data:`LARGE` goes by itself, into the
new tensor's own memory. Every rank passes through the tensors in the same order, so that no two
wait for each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import oneflow as flow

from .contents import BUFFER, item_size, nbytes_of, sound
from .convert import HALF, Tensor, cut, empty, from_component, holds_values
from .ranks import host, recv, send, sync, this_rank
from .rules import NdSbp
from .spec import GlobalSpec, Shape

LARGE = 256 << 10


@dataclass
class Delivery:
    """One tensor whose first rank's values are wanted by other ranks.

    ``whole`` is this rank's local logical tensor, ``copy`` one that can be cut if there is one
    already; ``wanted`` are the ranks that want their part.
    """

    whole: Tensor
    spec: GlobalSpec
    sbp: NdSbp
    wanted: frozenset[int]
    copy: Tensor = None
    made: Tensor = None

    @property
    def logical(self) -> Shape:
        return tuple(self.whole.shape)

    def shape_for(self, rank: int) -> Shape:
        return self.spec.component(self.logical, self.sbp, self.spec.positions[rank])

    def part_for(self, rank: int) -> Tensor:
        """What that rank is to have."""
        if self.copy is None:
            self.copy = sound(self.whole)
        part = cut(self.copy, self.spec, self.sbp, self.spec.positions[rank])
        return part.to(_on_the_way(part))


def deliver(deliveries: Sequence[Delivery], alive: Callable[[], None]) -> None:
    """Send and receive; ``alive`` is called each time that others have answered."""
    for window in _windows(deliveries):
        _Window(window).carry()
        for one in window:
            one.copy = None
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
        self._small: dict[tuple[int, int, str], list[tuple[Delivery, int]]] = {}

    def carry(self) -> None:
        me = this_rank()
        for one in self._deliveries:
            for rank in one.spec.members:
                if rank in one.wanted and me in (rank, one.spec.first):
                    self._take(one, rank)
        for key in sorted(self._small):
            (self._receive if key[1] == me else self._send)(key[:2], self._small[key])

    def _take(self, one: Delivery, rank: int) -> None:
        if not holds_values(one.sbp, one.spec.positions[rank]):
            if rank == this_rank():
                one.made, component = empty(one.logical, one.whole.dtype, one.spec, one.sbp)
                component.zero_()
            return
        count = math.prod(one.shape_for(rank))
        dtype = _on_the_way(one.whole)
        if count * item_size(one.whole.dtype) > LARGE:
            self._carry_large(one, rank, dtype)
        elif count:
            self._small.setdefault((one.spec.first, rank, str(dtype)), []).append((one, count))
        elif rank == this_rank():
            one.made, _ = empty(one.logical, one.whole.dtype, one.spec, one.sbp)

    def _carry_large(self, one: Delivery, rank: int, dtype: Any) -> None:
        if this_rank() != rank:
            send(one.part_for(rank).contiguous(), rank)
            return
        one.made, component = empty(one.logical, one.whole.dtype, one.spec, one.sbp)
        device = _here(one.whole)
        if component.dtype == dtype and component.device == device:
            recv(one.spec.first, component)
        else:
            out = flow.empty(tuple(component.shape), dtype=dtype, device=device)
            recv(one.spec.first, out)
            component.copy_(out.to(component.dtype))

    def _send(self, way: tuple[int, int], parts: list[tuple[Delivery, int]]) -> None:
        rank = way[1]
        pieces = [one.part_for(rank).reshape(count) for one, count in parts]
        send(flow.cat(pieces, dim=0) if len(pieces) > 1 else pieces[0].contiguous(), rank)

    def _receive(self, way: tuple[int, int], parts: list[tuple[Delivery, int]]) -> None:
        whole = parts[0][0].whole
        total = sum(count for _, count in parts)
        flat = flow.empty((total,), dtype=_on_the_way(whole), device=_here(whole))
        recv(way[0], flat)
        start = 0
        for one, count in parts:
            part = flat.narrow(0, start, count).reshape(one.shape_for(this_rank()))
            part = part.to(one.whole.dtype)
            one.made = from_component(part, one.logical, one.spec, one.sbp)
            start += count


def _here(tensor: Tensor) -> Any:
    # flow.empty puts a tensor on cpu:0 on every rank, where OneFlow refuses to receive.
    return host() if tensor.device.type == "cpu" else tensor.device
