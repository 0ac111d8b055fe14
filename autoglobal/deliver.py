"""The first rank's values, sent to where they are missing: to each rank its own part.

Small parts for one rank go in one message, of at most :data:`BUFFER` bytes; a part that is larger
than :data:`LARGE` goes by itself, from the tensor's own memory and into the new one's. Every rank
passes through the tensors in the same order, so that no two wait for each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import oneflow as flow

from .convert import HALF, Tensor, cut, empty, holds_values, item_size, sound
from .ranks import recv, send, sync, this_rank
from .rules import NdSbp
from .spec import GlobalSpec, Shape

BUFFER = 16 << 20  # bytes in a message, and on the way at a time
LARGE = 256 << 10


@dataclass
class Delivery:
    """One tensor whose first rank's values are wanted by other ranks.

    ``whole`` is this rank's local logical tensor; ``wanted`` the ranks that want their part.
    """

    whole: Tensor
    spec: GlobalSpec
    sbp: NdSbp
    wanted: frozenset[int]
    made: Tensor = None
    component: Tensor = None

    @cached_property
    def _sound(self) -> Tensor:
        return sound(self.whole)

    def part_of(self, rank: int) -> Tensor:
        """What that rank is to have."""
        part = cut(self._sound, self.spec, self.sbp, self.spec.positions[rank])
        return part.contiguous().to(_on_the_way(part))

    def shape_for(self, rank: int) -> Shape:
        position = self.spec.positions[rank]
        return self.spec.component(tuple(self.whole.shape), self.sbp, position)


def deliver(deliveries: Sequence[Delivery], alive: Callable[[], None]) -> None:
    """Send and receive; ``alive`` is called each time that others have answered."""
    me, post = this_rank(), _Post(alive)
    for one in deliveries:
        wants = me in one.wanted
        if wants:
            one.made, one.component = empty(
                tuple(one.whole.shape), one.whole.dtype, one.spec, one.sbp
            )
        for rank in one.spec.members:
            if rank not in one.wanted or me not in (rank, one.spec.first):
                continue
            if not holds_values(one.sbp, one.spec.positions[rank]):
                if wants:
                    one.component.zero_()
                continue
            post.take(one, rank)
    post.close()


def _on_the_way(tensor: Tensor) -> Any:
    # OneFlow 0.9.0 aborts where it is to send a half type from host memory.
    return flow.float32 if tensor.dtype in HALF and tensor.device.type == "cpu" else tensor.dtype


@dataclass
class _Parcel:
    """Small parts from one rank to another, in the order of the tensors."""

    dtype: Any
    device: Any
    parts: list[tuple[Delivery, int]] = field(default_factory=list)
    total: int = 0


class _Post:
    def __init__(self, alive: Callable[[], None]) -> None:
        self._alive = alive
        self._parcels: dict[tuple[int, int, str], _Parcel] = {}
        self._under_way = 0

    def take(self, one: Delivery, rank: int) -> None:
        count = math.prod(one.shape_for(rank))
        dtype = _on_the_way(one.whole)
        nbytes = count * item_size(dtype)
        if nbytes > LARGE:
            self._carry_large(one, rank, dtype, nbytes)
        elif count:
            key = (one.spec.first, rank, str(dtype))
            parcel = self._parcels.get(key)
            if parcel is not None and (parcel.total + count) * item_size(dtype) > BUFFER:
                self._carry(key, self._parcels.pop(key))
                parcel = None
            if parcel is None:
                parcel = self._parcels[key] = _Parcel(dtype, _here(one.whole))
            parcel.parts.append((one, count))
            parcel.total += count

    def close(self) -> None:
        for key in sorted(self._parcels):
            self._carry(key, self._parcels[key])

    def _carry_large(self, one: Delivery, rank: int, dtype: Any, nbytes: int) -> None:
        if this_rank() != rank:
            send(one.part_of(rank), rank)
        elif one.component.dtype == dtype and one.component.device == _here(one.whole):
            recv(one.spec.first, one.component)
        else:
            shape = tuple(one.component.shape)
            out = flow.empty(shape, dtype=dtype, device=_here(one.whole))
            recv(one.spec.first, out)
            one.component.copy_(out.to(one.component.dtype))
        self._count(nbytes)

    def _carry(self, key: tuple[int, int, str], parcel: _Parcel) -> None:
        source, rank, _ = key
        flat = flow.empty((parcel.total,), dtype=parcel.dtype, device=parcel.device)
        if this_rank() == rank:
            recv(source, flat)
        start = 0
        for one, count in parcel.parts:
            piece = flat.narrow(0, start, count)
            if this_rank() == rank:
                shape = tuple(one.component.shape)
                one.component.copy_(piece.reshape(shape).to(one.component.dtype))
            else:
                piece.copy_(one.part_of(rank).reshape(count))
            start += count
        if this_rank() != rank:
            send(flat, rank)
        self._count(parcel.total * item_size(parcel.dtype))

    def _count(self, nbytes: int) -> None:
        # Nothing of this waits; without an end to it all of it could lie in memory at once.
        self._under_way += nbytes
        if self._under_way >= BUFFER:
            sync()
            self._alive()
            self._under_way = 0


def _here(tensor: Tensor) -> Any:
    # flow.empty puts a tensor on cpu:0 on every rank, where OneFlow refuses to receive.
    device = tensor.device
    index = flow.env.get_local_rank() if device.type == "cpu" else device.index
    return flow.device(device.type, index)
