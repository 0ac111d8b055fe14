"""Agreement of the ranks on what they are about to do, or an error on all with the difference."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

import xxhash

from .._compat import this_rank
from ..errors import DivergenceError
from .collectives import Words, all_reduce_bytes, all_reduce_words, awaited
from .watchdog import Wait, limit_of

Event = Literal["value", "close", "left", "refused", "optimizer"]
_EVENTS = get_args(Event)
_GO, _DIFFER = 0, 1
NO_DIGEST = bytes(16)
_OPTIONS, _STATEMENTS = 1, 2  # in Proposal.parts


class Statement(NamedTuple):
    """One thing that has to be alike on all ranks; ``path`` names the tensor that it is about."""

    path: str
    text: str


@dataclass
class Proposal:
    """What a rank is about to do, and the others have to do as well.

    ``title`` says it in words, and ``shown`` what a message says of each of the ``statements``,
    where that is more than has to be alike. ``contents`` and ``shapes`` are digests of what may
    differ between the ranks, :data:`NO_DIGEST` where this rank's do not count. ``sends_values`` is
    set where values are sent afterwards.
    """

    event: Event
    title: Statement
    timeout: float
    statements: list[Statement] = field(default_factory=list)
    shown: Callable[[], list[str]] | None = None
    options: list[str] = field(default_factory=list)
    contents: bytes = NO_DIGEST
    shapes: bytes = NO_DIGEST
    sends_values: bool = False

    def waiting(self) -> Wait:
        """A block in which this rank waits for others because of this."""
        return Wait(limit_of(self.timeout), self._what, awaited)

    def _what(self) -> str:
        return f"rank {this_rank()}, {self.title.text}"

    def parts(self) -> list[list[Statement]]:
        """In the order in which a difference is looked for."""
        return [[self.title], [Statement("", text) for text in self.options], self.statements]

    def digest(self) -> bytes:
        """What stands for all that has to be alike."""
        alike: list[str] = [self.event]
        # Ranks may leave by different exceptions, because it is enough that all of them leave.
        if self.event not in ("left", "refused"):
            alike += [*self.title, *self.options, *(one.text for one in self.statements)]
        return xxhash.xxh3_128_digest("\n".join(alike).encode(errors="surrogatepass"))


class Agreement(NamedTuple):
    """Whether what may differ does."""

    contents_differ: bool
    shapes_differ: bool


def agree(proposal: Proposal) -> Agreement:
    """Meet the other ranks, or raise :class:`DivergenceError` on all of them."""
    digests = proposal.digest() + proposal.contents + proposal.shapes
    words = [_EVENTS.index(proposal.event) + 1, *struct.unpack("<6q", digests)]
    with proposal.waiting():
        verdict, contents, shapes, *_ = all_reduce_words(words, _judge)
        if verdict == _DIFFER:
            raise _divergence(proposal)
    return Agreement(bool(contents), bool(shapes))


def _judge(rows: list[list[int]]) -> Words:
    if any(row[:3] != rows[0][:3] for row in rows):
        return [_DIFFER, 0, 0]
    digests = [{tuple(row[at : at + 2]) for row in rows} - {(0, 0)} for at in (3, 5)]
    return [_GO, *(len(different) > 1 for different in digests)]


def _divergence(proposal: Proposal) -> DivergenceError:
    shown = [one.text for one in proposal.statements]
    if proposal.shown is not None:
        shown = proposal.shown()
    mine = [[(*one, one.text) for one in part] for part in proposal.parts()]
    mine[_STATEMENTS] = [(*one, text) for one, text in zip(proposal.statements, shown)]
    found = all_reduce_bytes(json.dumps(mine).encode(), _first_difference)
    part, at, rank, *both = json.loads(found)
    path, own, words = _statement(mine[part], at)
    other, theirs = next((k, one) for k, one in zip((0, rank), both) if one[:2] != [path, own])
    path = path or theirs[0] or proposal.title.path
    return DivergenceError(
        f"{path}{': ' * bool(path)}the ranks do not agree. This rank (rank {this_rank()}): "
        f"{words}; rank {other}: {theirs[2]}. Expected: every rank makes the same assignments in "
        "the same order, and opens and closes the same scopes. Look there for what depends on the "
        "rank, on its data or on the order of a set"
    )


def _statement(statements: Sequence[Sequence[str]], at: int) -> list[str]:
    """The path, what has to be alike, and what a message says."""
    return list(statements[at]) if at < len(statements) else ["", "nothing more", "nothing more"]


def _first_difference(rows: list[bytes]) -> bytes:
    """Where a rank first differs from rank 0, which rank it is, and what both say there."""
    first, *others = map(json.loads, rows)
    for rank, parts in enumerate(others, 1):
        for part, (ours, theirs) in enumerate(zip(first, parts)):
            if part == _OPTIONS and not (ours and theirs):
                continue  # one of them has nothing to make global, which says more
            for at in range(max(len(ours), len(theirs))):
                one, other = _statement(ours, at), _statement(theirs, at)
                if one[:2] != other[:2]:
                    return json.dumps([part, at, rank, one, other]).encode()
    raise AssertionError("the digests of the ranks differ, and their texts do not")
