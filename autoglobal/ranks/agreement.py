"""All ranks agree on what they are about to do, or all get an error that names the difference."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import xxhash

from ..errors import DivergenceError
from .collectives import Words, awaited, consult, this_rank, vote
from .watchdog import Wait, limit_of

_GO, _DIFFER = 0, 1
_KINDS = ("value", "close", "left", "refused", "optimizer")
NO_SAY = bytes(16)
_OPTIONS, _LINES = 1, 2  # in Event.parts


class Line(NamedTuple):
    """One thing that has to be alike on all ranks; ``path`` names the tensor that it is about."""

    path: str
    text: str


@dataclass
class Event:
    """What a rank does that the others have to do as well.

    ``title`` says it in words, and ``shown`` what a message says of each of the lines, where that
    is more than has to be alike. ``contents`` and ``shapes`` are digests of what may differ between
    the ranks, :data:`NO_SAY` where this rank's do not count.
    """

    kind: str
    title: Line
    timeout: float
    lines: list[Line] = field(default_factory=list)
    shown: Callable[[], list[str]] | None = None
    options: list[str] = field(default_factory=list)
    contents: bytes = NO_SAY
    shapes: bytes = NO_SAY

    def wait(self) -> Wait:
        return Wait(limit_of(self.timeout), self._what, awaited)

    def _what(self) -> str:
        return f"rank {this_rank()}, {self.title.text}"

    def parts(self) -> list[list[Line]]:
        """In the order in which a difference is looked for."""
        return [[self.title], [Line("", text) for text in self.options], self.lines]

    def digest(self) -> bytes:
        """What stands for all that has to be alike."""
        said = [self.kind]
        # By which exception each rank leaves is its own affair, as long as all do.
        if self.kind not in ("left", "refused"):
            said += [*self.title, *self.options, *(line.text for line in self.lines)]
        return xxhash.xxh3_128_digest("\n".join(said).encode(errors="surrogatepass"))


class Agreed(NamedTuple):
    """Whether what may differ does."""

    contents_differ: bool
    shapes_differ: bool


def agree(event: Event) -> Agreed:
    """Meet the other ranks, or raise :class:`DivergenceError` on all of them."""
    digests = event.digest() + event.contents + event.shapes
    words = [_KINDS.index(event.kind) + 1, *struct.unpack("<6q", digests)]
    with event.wait():
        verdict, contents, shapes, *_ = vote(words, _judge)
        if verdict == _DIFFER:
            raise _divergence(event)
    return Agreed(bool(contents), bool(shapes))


def _judge(rows: list[list[int]]) -> Words:
    if any(row[:3] != rows[0][:3] for row in rows):
        return [_DIFFER, 0, 0]
    said = [{tuple(row[at : at + 2]) for row in rows} - {(0, 0)} for at in (3, 5)]
    return [_GO, *(len(different) > 1 for different in said)]


def _divergence(event: Event) -> DivergenceError:
    shown = [line.text for line in event.lines] if event.shown is None else event.shown()
    mine = [[(*line, line.text) for line in part] for part in event.parts()]
    mine[_LINES] = [(*line, text) for line, text in zip(event.lines, shown)]
    said = consult(json.dumps(mine).encode(), _first_difference)
    part, at, rank, *lines = json.loads(said)
    path, own, words = _line(mine[part], at)
    other, theirs = next((k, line) for k, line in zip((0, rank), lines) if line[:2] != [path, own])
    path = path or theirs[0] or event.title.path
    return DivergenceError(
        f"{path}{': ' * bool(path)}the ranks do not agree. This rank (rank {this_rank()}): "
        f"{words}; rank {other}: {theirs[2]}. Expected: every rank makes the same assignments in "
        "the same order, and opens and closes the same scopes. Look there for what depends on the "
        "rank, on its data or on the order of a set"
    )


def _line(lines: Sequence[Sequence[str]], at: int) -> list[str]:
    """The path, what has to be alike, and what a message says."""
    return list(lines[at]) if at < len(lines) else ["", "nothing more", "nothing more"]


def _first_difference(said: list[bytes]) -> bytes:
    """Where a rank first differs from rank 0, which rank it is, and what both say there."""
    first, *others = map(json.loads, said)
    for rank, parts in enumerate(others, 1):
        for part, (ours, theirs) in enumerate(zip(first, parts)):
            if part == _OPTIONS and not (ours and theirs):
                continue  # one of them has nothing to make global, which says more
            for at in range(max(len(ours), len(theirs))):
                one, other = _line(ours, at), _line(theirs, at)
                if one[:2] != other[:2]:
                    return json.dumps([part, at, rank, one, other]).encode()
    raise AssertionError("the digests of the ranks differ, and their texts do not")
