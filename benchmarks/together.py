"""Rounds that all ranks run together, each timed until the slowest rank has what it asked for."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import oneflow as flow


class Variant(Protocol):
    """One round of what is compared: its seconds, the same number on every rank."""

    def __call__(self, check: bool = False) -> float: ...


@dataclass(frozen=True)
class Work:
    """``run(make())`` inside ``around()``; only ``run`` is timed. ``check`` looks at its result."""

    make: Callable[[], Any]
    run: Callable[[Any], Any]
    check: Callable[[Any], None]
    around: Callable[[], AbstractContextManager[object]] = nullcontext

    def __call__(self, check: bool = False) -> float:
        with self.around():
            made = self.make()
            gc.collect()
            gc.disable()
            try:
                _finish()
                flow.comm.barrier()
                start = time.perf_counter()
                result = self.run(made)
                _finish()
                seconds = time.perf_counter() - start
            finally:
                gc.enable()
            flow.comm.barrier()
            if check:
                self.check(result)
        return slowest(seconds)


def measure(variants: Mapping[str, Variant], rounds: int) -> dict[str, list[float]]:
    """Check every variant once, then time each of them once a round."""
    for variant in variants.values():  # the warm-up as well
        variant(check=True)
    times: dict[str, list[float]] = {name: [] for name in variants}
    order = list(variants)
    for _ in range(rounds):
        for name in order:
            times[name].append(variants[name]())
        order.append(order.pop(0))  # what a variant leaves behind meets each of the others
    return times


def slowest(seconds: float) -> float:
    """The largest of what the ranks give."""
    world = flow.env.get_world_size()
    if world == 1:
        return seconds
    found = flow.zeros(world, dtype=flow.float64)
    flow.comm.all_gather_into_tensor(found, flow.tensor([seconds], dtype=flow.float64))
    return float(found.numpy().max())


def _finish() -> None:
    """Wait for what was enqueued: OneFlow's calls return long before their work is done."""
    flow._oneflow_internal.eager.Sync()
