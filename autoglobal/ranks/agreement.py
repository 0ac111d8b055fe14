"""Agreement of the ranks on what they are about to do, or an error on all with the difference.

Each message says how deep in scopes and calls its rank is, and whether it leaves the innermost of
them if the ranks differ. So all know which of these one of them has left: whoever is still in there
is told at once, without a message, and once all are out they meet again.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Optional, get_args

import xxhash

from .._compat import this_rank
from .._text import one_line
from ..errors import DivergenceError
from .collectives import Words, all_reduce_bytes, all_reduce_words, awaited
from .watchdog import Wait, limit_of

Event = Literal["value", "close", "left", "refused", "optimizer"]
_EVENTS = get_args(Event)
_GO, _DIFFER = 0, 1
_LEVEL = 1  # the place of twice the level, plus 1 for a rank that leaves it, in a message
NO_DIGEST = bytes(16)
_TITLE, _OPTIONS, _STATEMENTS = 0, 1, 2  # in Proposal.parts


class Statement(NamedTuple):
    """One thing that has to be alike on all ranks; ``path`` names the tensor that it is about."""

    path: str
    text: str


class Block:
    """A scope or a call that this rank is in, inside of what is around it where it begins.

    ``level`` counts these. ``left_by`` is a rank that has left it while this one is still in it.
    """

    __slots__ = ("left_by", "level", "outer")

    def __init__(self) -> None:
        self.outer = current_block.get()
        self.level: int = 1 if self.outer is None else self.outer.level + 1
        self.left_by: int | None = None

    def all_around(self) -> Iterator[Block]:
        """This one, and those that it is in."""
        block: Block | None = self
        while block is not None:
            yield block
            block = block.outer


# The innermost scope that this thread and task is in.
current_block: ContextVar[Optional[Block]] = ContextVar("autoglobal_block", default=None)


class _Undone(NamedTuple):
    """What this rank had agreed to and has not done, and the same with the error, for people."""

    what: str
    shown: str


_NOTHING = _Undone("", "")


@dataclass
class Proposal:
    """What a rank is about to do, and the others have to do as well.

    ``block`` is what it does that in, and ``leaves`` if the ranks differ. ``title`` says it in
    words, and ``shown`` what a message says of each of the ``statements``, where that is more than
    has to be alike. ``contents`` and ``shapes`` are digests of what may differ between the ranks,
    :data:`NO_DIGEST` where this rank's do not count. ``agreed`` is set once all have agreed, and
    ``sends_values`` where values are sent then.
    """

    event: Event
    title: Statement
    timeout: float
    block: Block
    leaves: bool = True
    statements: list[Statement] = field(default_factory=list)
    shown: Callable[[], list[str]] | None = None
    options: list[str] = field(default_factory=list)
    contents: bytes = NO_DIGEST
    shapes: bytes = NO_DIGEST
    agreed: bool = False
    all_undo: bool = False  # what was agreed on has failed, and every rank knows of it
    sends_values: bool = False
    _undone: _Undone = _NOTHING

    def waiting(self) -> Wait:
        """A block in which this rank waits for others because of this."""
        return Wait(limit_of(self.timeout), self._what, awaited)

    def _what(self) -> str:
        return f"rank {this_rank()}, {self.title.text}"

    def parts(self) -> list[list[Statement]]:
        """In the order in which a difference is looked for."""
        title = self.title._replace(text=self.title.text + self._undone.what)
        options = [Statement("", text) for text in self.options]
        level = self.block.level
        scopes = "scope or call" if level == 1 else "scopes and calls"
        where = Statement("", f"{title.text}, in {level} {scopes}")
        return [[title], options, self.statements, [where]]

    def digest(self) -> bytes:
        """What stands for all that has to be alike."""
        alike: list[str] = [self.event, self._undone.what]
        # Ranks may leave by different exceptions, because it is enough that all of them leave.
        if self.event not in ("left", "refused"):
            alike += [*self.title, *self.options, *(one.text for one in self.statements)]
        return xxhash.xxh3_128_digest("\n".join(alike).encode(errors="surrogatepass"))


class Agreement(NamedTuple):
    """Whether what may differ does."""

    contents_differ: bool
    shapes_differ: bool


def agree(proposal: Proposal) -> Agreement:
    """Meet the other ranks, or raise :class:`DivergenceError` on all of them.

    On this one alone, and at once, where another rank has left what this one is still in.
    """
    global _undone
    for block in proposal.block.all_around():
        if block.left_by is not None:
            raise _gone(proposal, block.left_by)
    proposal._undone, _undone = _undone, _NOTHING
    digests = proposal.digest() + proposal.contents + proposal.shapes
    where = 2 * proposal.block.level + proposal.leaves
    words = [_EVENTS.index(proposal.event) + 1, where, *struct.unpack("<6q", digests)]
    with proposal.waiting():
        verdict, contents, shapes, level, rank, *_ = all_reduce_words(words, _judge)
        if verdict == _DIFFER:
            _note_parting(proposal, level, rank)
            raise _divergence(proposal)
        proposal.agreed = True
    return Agreement(bool(contents), bool(shapes))


def _judge(rows: list[list[int]]) -> Words:
    alike = {(event, where // 2, *digest[:2]) for event, where, *digest in rows}
    if len(alike) > 1:
        left = [(row[_LEVEL] // 2, rank) for rank, row in enumerate(rows) if row[_LEVEL] % 2]
        return [_DIFFER, 0, 0, *min(left, default=(0, 0))]
    digests = [{tuple(row[at : at + 2]) for row in rows} - {(0, 0)} for at in (4, 6)]
    return [_GO, *(len(different) > 1 for different in digests), 0, 0]


def _note_parting(proposal: Proposal, level: int, rank: int) -> None:
    """Mark the block that a rank has left, if this one goes on in it."""
    for block in proposal.block.all_around():
        if block.level == level and not (proposal.leaves and block is proposal.block):
            block.left_by = rank


_undone = _NOTHING


def note_undone(proposal: Proposal, error: BaseException) -> None:
    """After it was agreed on it has failed here: the others hear of that with the next proposal."""
    global _undone
    if proposal.agreed and not proposal.all_undo:
        what = f", after {proposal.title.text} had failed here"
        _undone = _Undone(what, f"{what} by {one_line(error)}")


def _gone(proposal: Proposal, rank: int) -> DivergenceError:
    path = proposal.title.path
    return DivergenceError(
        f"{path}{': ' * bool(path)}the ranks have parted before. This rank (rank {this_rank()}): "
        f"{proposal.title.text}; rank {rank}: has left the scope or the call that this one "
        "is in. Expected: what one rank leaves all ranks leave. Look for a try that catches an "
        "error of one rank alone, and let it leave the block on every rank"
    )


_PLACEMENT = re.compile(r"oneflow\.placement\([^)]*\)")  # as OneFlow shows one


def _divergence(proposal: Proposal) -> DivergenceError:
    shown = [one.text for one in proposal.statements]
    if proposal.shown is not None:
        shown = proposal.shown()
    mine = [[(*one, one.text) for one in part] for part in proposal.parts()]
    mine[_TITLE] = [(*mine[_TITLE][0][:2], proposal.title.text + proposal._undone.shown)]
    mine[_STATEMENTS] = [(*one, text) for one, text in zip(proposal.statements, shown)]
    found = all_reduce_bytes(json.dumps(mine).encode(), _first_difference)
    part, at, rank, *both = json.loads(found)
    path, own, words = _statement(mine[part], at)
    other, theirs = next((k, one) for k, one in zip((0, rank), both) if one[:2] != [path, own])
    path = path or theirs[0] or proposal.title.path
    expected = (
        "every rank makes the same assignments in the same order, and opens and closes the same "
        "scopes. Look there for what depends on the rank, on its data or on the order of a set"
    )
    if part == _OPTIONS and _PLACEMENT.findall(words) != _PLACEMENT.findall(theirs[2]):
        expected = (
            "the same placement on every rank. Where each group of ranks has a module of its own, "
            "write one scope or call for each placement, one after the other, and let all ranks "
            "go through all of them: a rank that a placement leaves out holds no part of it"
        )
    return DivergenceError(
        f"{path}{': ' * bool(path)}the ranks do not agree. This rank (rank {this_rank()}): "
        f"{words}; rank {other}: {theirs[2]}. Expected: {expected}"
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
