"""What a benchmark prints: medians, ratios round by round, and the bars that they are held to."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

WIDTH = 84
Times = Mapping[str, list[float]]


@dataclass(frozen=True)
class Bar:
    """What must be true of the median over the rounds."""

    text: str
    rounds: list[float]
    limit: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        median = statistics.median(self.rounds)
        return median >= self.limit if self.at_least else median <= self.limit

    def __str__(self) -> str:
        limit = f"at {'least' if self.at_least else 'most'} {self.limit:g}"
        met = "yes" if self.met else "NO"
        return f"{self.text:{WIDTH}} | {limit:13} | {spread(self.rounds):>25} | {met}"


def faster(text: str, times: Times, slow: str, fast: str, limit: float) -> Bar:
    """``fast`` takes at most one ``limit``-th of the time of ``slow``."""
    return Bar(f"{text}, times faster", ratios(times, slow, fast), limit, at_least=True)


def relative(text: str, times: Times, ours: str, theirs: str, limit: float) -> Bar:
    """``ours`` takes at most ``limit`` times the time of ``theirs``."""
    return Bar(f"{text}, time ratio", ratios(times, ours, theirs), limit)


def ratios(times: Times, one: str, other: str) -> list[float]:
    return [mine / its for mine, its in zip(times[one], times[other])]


def print_times(title: str, times: Times, base: Mapping[str, str], count: int) -> None:
    """One line a variant, with how many times faster it is than the one that ``base`` names."""
    print(
        f"\n{title:{WIDTH}} {'median':>13} {'per Parameter':>14}   times faster than its base line"
    )
    for name, seconds in times.items():
        median = statistics.median(seconds)
        line = f"  {name:{WIDTH - 2}} {median * 1e3:10.3f} ms {median / count * 1e6:11.1f} us"
        if base.get(name, name) != name:
            line += f"   {spread(ratios(times, base[name], name))}"
        print(line)


def print_bars(bars: Iterable[Bar]) -> None:
    print(f"\n{'bar':{WIDTH}} | {'':13} | {'measured [quartiles]':>25} | met")
    for bar in bars:
        print(bar)


def spread(rounds: list[float]) -> str:
    """The median and its quartiles."""
    low, middle, high = statistics.quantiles(rounds, n=4, method="inclusive")
    return f"{middle:.3f} [{low:.3f}, {high:.3f}]"
