"""All ranks agree on what they are about to do, or all get an error that names the difference."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import xxhash

from .errors import DivergenceError
from .ranks import Words, awaited, consult, this_rank, vote
from .watch import Wait, limit_of

_GO, _DIFFER = 0, 1
_KINDS = ("value", "close", "left", "refused", "optimizer")
NO_SAY = bytes(16)


class Line(NamedTuple):
    """One thing that has to be alike on all ranks; ``path`` names the tensor that it is about."""

    path: str
    text: str


@dataclass
class Event:
    """What a rank does that the others have to do as well.

    ``title`` says it in words. ``contents`` and ``shapes`` are digests of what may differ between
    the ranks, :data:`NO_SAY` where this rank's do not count.
    """

    kind: str
    title: Line
    timeout: float
    lines: list[Line] = field(default_factory=list)
    contents: bytes = NO_SAY
    shapes: bytes = NO_SAY

    def wait(self, whom: Callable[[], str] = awaited) -> Wait:
        return Wait(limit_of(self.timeout), self._what, whom)

    def _what(self) -> str:
        return f"rank {this_rank()}, {self.title.text}"

    def all_lines(self) -> list[Line]:
        return [self.title, *self.lines]


class Agreed(NamedTuple):
    """Whether what may differ does."""

    contents_differ: bool
    shapes_differ: bool


def agree(event: Event) -> Agreed:
    """Meet the other ranks, or raise :class:`DivergenceError` on all of them."""
    text = "\n".join([event.kind, *(f"{path}\t{said}" for path, said in _counting(event))])
    words = [
        _KINDS.index(event.kind) + 1,
        *_halves(xxhash.xxh3_128_digest(text.encode())),
        *_halves(event.contents),
        *_halves(event.shapes),
    ]
    with event.wait():
        verdict, contents, shapes, *_ = vote(words, _judge)
        if verdict == _DIFFER:
            raise _divergence(event)
    return Agreed(bool(contents), bool(shapes))


def _counting(event: Event) -> Sequence[Line]:
    # By which exception each rank leaves is its own affair, as long as all do.
    return () if event.kind in ("left", "refused") else event.all_lines()


def _halves(digest: bytes) -> tuple[int, int]:
    return (
        int.from_bytes(digest[:8], "little", signed=True),
        int.from_bytes(digest[8:], "little", signed=True),
    )


def _judge(rows: list[list[int]]) -> Words:
    if any(row[:3] != rows[0][:3] for row in rows):
        return [_DIFFER, 0, 0]
    said = [{tuple(row[at : at + 2]) for row in rows} - {(0, 0)} for at in (3, 5)]
    return [_GO, *(len(different) > 1 for different in said)]


def _divergence(event: Event) -> DivergenceError:
    lines = event.all_lines()
    found = json.loads(consult(json.dumps(lines).encode(), _first_difference))
    at, rank, *said = found
    own = _line(lines, at)
    other, theirs = next((k, Line(*line)) for k, line in zip((0, rank), said) if Line(*line) != own)
    path = own.path or theirs.path
    return DivergenceError(
        f"{path}{': ' * bool(path)}the ranks do not agree. This rank (rank {this_rank()}): "
        f"{own.text}; rank {other}: {theirs.text}. Expected: every rank makes the same "
        "assignments in the same order, and opens and closes the same scopes"
    )


def _line(lines: Sequence[Sequence[str]], at: int) -> Line:
    return Line(*lines[at]) if at < len(lines) else Line("", "nothing more")


def _first_difference(said: list[bytes]) -> bytes:
    """Where a rank first differs from rank 0, which rank it is, and what both say there."""
    first, *others = map(json.loads, said)
    for rank, lines in enumerate(others, 1):
        for at in range(max(len(first), len(lines))):
            one, other = _line(first, at), _line(lines, at)
            if one != other:
                return json.dumps([at, rank, one, other]).encode()
    raise AssertionError("the digests of the ranks differ, and their texts do not")
