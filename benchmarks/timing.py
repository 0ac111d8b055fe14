"""Interleaved A/B rounds in one process, so that a change of the machine's speed hits all alike."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field


@dataclass
class Variant:
    """What is timed: ``run(n)`` does the thing ``n`` times, inside ``around()``, untimed itself."""

    run: Callable[[int], None]
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    seconds: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Row:
    """Median time of one call in nanoseconds, and of the per-round ratios to the first variant."""

    name: str
    nanoseconds: float
    ratio: float
    quartiles: tuple[float, float]

    def __str__(self) -> str:
        low, high = self.quartiles
        time_and_ratio = f"{self.nanoseconds:10.0f} ns   x{self.ratio:.3f}"
        return f"{self.name:46} {time_and_ratio} [{low:.3f}, {high:.3f}]"


def measure(variants: Mapping[str, Variant], *, number: int, rounds: int) -> list[Row]:
    """Time every variant once a round, ``rounds`` times; the first is what the others relate to."""
    for variant in variants.values():  # warm-up
        _time(variant, number)
        variant.seconds.clear()
    order = list(variants.values())
    for _ in range(rounds):
        for variant in order:
            variant.seconds.append(_time(variant, number))
        order.append(order.pop(0))  # what a variant leaves behind meets each of the others
    base = next(iter(variants.values())).seconds
    rows = []
    for name, variant in variants.items():
        ratios = [mine / its for mine, its in zip(variant.seconds, base)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        nanoseconds = statistics.median(variant.seconds) / number * 1e9
        rows.append(Row(name, nanoseconds, middle, (low, high)))
    return rows


def _time(variant: Variant, number: int) -> float:
    with variant.around():
        gc.collect()
        gc.disable()
        try:
            start = time.perf_counter()
            variant.run(number)
            return time.perf_counter() - start
        finally:
            gc.enable()
