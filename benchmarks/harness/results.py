"""What a benchmark finds: the rounds of every line of its tables, and the bars they are held to."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Optional


@dataclass
class Line:
    """One way of doing what its table is about, with the seconds of each round.

    ``done``: until the slowest rank had what it asked for; ``enqueued``: until its calls had
    returned. ``base`` names the line of the same table that this one is compared with.
    ``peak`` is the memory above what was held before, in MiB, of the rank that had most (on CUDA,
    of its device), ``sent`` what went over the loopback interface, in MiB.
    """

    name: str
    done: list[float]
    enqueued: list[float]
    base: str = ""
    peak: Optional[float] = None
    sent: Optional[float] = None

    @property
    def median(self) -> float:
        return statistics.median(self.done)


@dataclass
class Table:
    """Lines whose rounds were interleaved; a round does ``count`` times what ``unit`` says."""

    title: str
    ranks: int
    count: int
    unit: str
    lines: list[Line]

    def line(self, name: str) -> Line:
        return next(line for line in self.lines if line.name == name)

    def has(self, *names: str) -> bool:
        return set(names) <= {line.name for line in self.lines}

    def ratios(self, one: str, other: str) -> list[float]:
        """The time of ``one`` by that of ``other``, round by round."""
        pairs = zip(self.line(one).done, self.line(other).done)
        return [mine / its for mine, its in pairs]

    def to_base(self, line: Line) -> Optional[list[float]]:
        return self.ratios(line.name, line.base) if line.base else None


@dataclass
class Bar:
    """What must be true of the median over the rounds."""

    text: str
    ranks: int
    rounds: list[float]
    limit: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        median = statistics.median(self.rounds)
        return median >= self.limit if self.at_least else median <= self.limit


def faster(table: Table, text: str, slow: str, fast: str, limit: float) -> Bar:
    """``fast`` takes at most one ``limit``-th of the time of ``slow``."""
    rounds = table.ratios(slow, fast)
    return Bar(f"{table.title}: {text}, times faster", table.ranks, rounds, limit, at_least=True)


def relative(table: Table, text: str, ours: str, theirs: str, limit: float) -> Bar:
    """``ours`` takes at most ``limit`` times the time of ``theirs``."""
    rounds = table.ratios(ours, theirs)
    return Bar(f"{table.title}: {text}, time ratio", table.ranks, rounds, limit)


@dataclass
class Found:
    """What the ranks of one job, or of several, have measured; ``notes`` say what was left out."""

    tables: list[Table] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, other: Found) -> None:
        self.tables += other.tables
        self.bars += other.bars
        self.notes += [note for note in other.notes if note not in self.notes]


@dataclass
class Report(Found):
    """All that one benchmark has found, and on what."""

    name: str = ""
    device: str = "cpu"
    command: str = ""
    machine: dict[str, Any] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


def read(path: Path) -> Report:
    found = json.loads(path.read_text())
    found["tables"] = [
        Table(**{**table, "lines": [Line(**line) for line in table["lines"]]})
        for table in found["tables"]
    ]
    found["bars"] = [Bar(**bar) for bar in found["bars"]]
    return Report(**found)


def quartiles(rounds: Iterable[float]) -> tuple[float, float, float]:
    """The lower quartile, the median and the upper quartile."""
    low, middle, high = statistics.quantiles(rounds, n=4, method="inclusive")
    return low, middle, high
