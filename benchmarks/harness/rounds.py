"""Rounds that all ranks run together, those of all variants interleaved in one process."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional, Protocol

import oneflow as flow

from .devices import Device
from .memory import sent_over_loopback, watched
from .results import Line, Table


@dataclass(frozen=True)
class Job:
    """One benchmark on one number of ranks; ``torch`` is a Python that has PyTorch."""

    device: Device
    rounds: int
    torch: Optional[str] = None

    @property
    def world(self) -> int:
        return int(flow.env.get_world_size())

    @property
    def rank(self) -> int:
        return int(flow.env.get_rank())

    @property
    def placement(self) -> Any:
        return self.device.placement(self.world)


class Round(NamedTuple):
    """Seconds until the calls had returned and until all was done, on the slowest rank."""

    enqueued: float
    done: float


class Variant(Protocol):
    """One round of what is compared; the same numbers on every rank."""

    def __call__(self, device: Device, check: bool = False) -> Round: ...


@dataclass(frozen=True)
class Work:
    """``run(make())``, run inside ``around()``; only that is timed. ``check`` sees its result."""

    make: Callable[[], Any]
    run: Callable[[Any], Any]
    check: Callable[[Any], None]
    around: Callable[[], AbstractContextManager[object]] = nullcontext

    def __call__(self, device: Device, check: bool = False) -> Round:
        made = self.make()
        with self.around():
            gc.collect()
            gc.disable()
            try:
                device.synchronize()
                flow.comm.barrier()
                start = time.perf_counter()
                result = self.run(made)
                enqueued = time.perf_counter() - start
                device.synchronize()
                done = time.perf_counter() - start
            finally:
                gc.enable()
            flow.comm.barrier()
            if check:
                self.check(result)
        return Round(*slowest(enqueued, done))

    def weigh(self, device: Device) -> tuple[float, Optional[float]]:
        """A round that is not timed: the MiB it takes at its peak, and those it sends."""
        made = self.make()
        with self.around():
            with watched(device) as weight, sent_over_loopback() as sent:
                result = self.run(made)
                device.synchronize()
                flow.comm.barrier()
            del result
        peak, out = slowest(weight(), sent())
        return peak, None if flow.env.get_world_size() == 1 else out


def measure(
    title: str,
    variants: Mapping[str, Variant],
    device: Device,
    rounds: int,
    *,
    count: int,
    unit: str,
    base: Mapping[str, str],
    weigh: bool = False,
) -> Table:
    """Check every variant once, then time each of them once a round.

    ``count`` and ``unit`` say what one round does, ``base`` with which line each is compared.
    With ``weigh`` every :class:`Work` has one more round, for its memory and what it sends.
    """
    for variant in variants.values():  # the warm-up as well
        variant(device, check=True)
    lines = {name: Line(name, [], [], base.get(name, "")) for name in variants}
    order = list(variants)
    for _ in range(rounds):
        for name in order:
            found = variants[name](device)
            lines[name].done.append(found.done)
            lines[name].enqueued.append(found.enqueued)
        order.append(order.pop(0))  # what a variant leaves behind meets each of the others
    for name, variant in variants.items():
        if weigh and isinstance(variant, Work):
            lines[name].peak, lines[name].sent = variant.weigh(device)
    return Table(title, flow.env.get_world_size(), count, unit, list(lines.values()))


def slowest(*seconds: float) -> list[float]:
    """The largest of what the ranks give, number by number."""
    world = flow.env.get_world_size()
    if world == 1:
        return list(seconds)
    mine = flow.tensor(list(seconds), dtype=flow.float64)
    found = flow.zeros(world * len(seconds), dtype=flow.float64)
    flow.comm.all_gather_into_tensor(found, mine)
    return [float(one) for one in found.numpy().reshape(world, -1).max(axis=0)]
