"""All that one event makes global: the ranks agree once, then each tensor is made.

An equal copy is cut where it lies, and nothing is sent. Where copies differ the first rank of the
placement sends its values. What is on a GPU is not compared, which would bring it to the host:
there the first rank's values are always sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import xxhash

from ..ranks.agreement import NO_SAY, Event, agree
from ..ranks.collectives import can_meet, consult, sync, world_size
from ..ranks.watchdog import Wait
from .digests import BUFFER, Reading, release
from .pieces import Piece
from .scatter import Delivery, deliver
from .shards import fit_together


def settle(
    pieces: Sequence[Piece],
    event: Event | None,
    digested: Sequence[Piece] = (),
    passing: Callable[[Sequence[Piece]], Iterable[Piece]] = iter,
) -> bool:
    """Agree on the pieces with the other ranks, and make all of them; whether values were sent.

    ``event`` is None where the ranks are trusted: then nothing is compared or sent. The pieces
    that are ``digested`` have a digest afterwards, if they are in host memory. ``passing`` sees
    the pieces pass as they are made.
    """
    try:
        if event is None or not can_meet():
            _Look(digested).finish()
            _make(passing(pieces))
            return False
        compared = _look_at(pieces, event, digested)
        with event.wait() as wait:
            agreed = agree(event)
            if agreed.shapes_differ:
                fit_together([piece for piece in pieces if _is_own(piece)])
            sent = _send(compared, agreed.contents_differ, wait)
            _make(passing(pieces))
            if sent and len(pieces) > 1:  # a single one may be under way: an event will follow it
                sync()
            return sent
    finally:
        release()


def _look_at(pieces: Sequence[Piece], event: Event, digested: Sequence[Piece]) -> list[Piece]:
    """Say in the event what this rank has; which of the pieces the ranks have to have alike."""
    compared = [piece for piece in pieces if piece.is_compared]
    counting = [piece for piece in compared if piece.spec.position is not None]
    reading = _Look([*counting, *digested])
    # What follows goes on while it is being copied.
    event.lines = [piece.line() for piece in pieces]
    event.shown = lambda: [piece.shown() for piece in pieces]
    specs = {id(piece.spec): piece.spec for piece in pieces}
    event.options = [text for spec in specs.values() for text in spec.texts]
    shapes = [piece.shape for piece in pieces if _is_own(piece)]
    if shapes:
        event.shapes = xxhash.xxh3_128_digest(repr(shapes).encode())
    reading.finish()
    if counting:
        # With a place for those that do not count here: two ranks may count others each.
        event.contents = xxhash.xxh3_128_digest(b"".join(map(_told, compared)))
    return compared


def _is_own(piece: Piece) -> bool:
    return piece.way == "own" and piece.spec.check


def _send(compared: Sequence[Piece], differ: bool, wait: Wait) -> bool:
    """Pass the first rank's values on to where they are wanted; whether any are."""
    sent = [(piece, ranks) for piece, ranks in zip(compared, _wanted(compared, differ)) if ranks]
    if not sent:
        return False
    sources = sorted({piece.spec.first for piece, _ in sent})
    wait.whom = lambda: f"the values of rank {', '.join(map(str, sources))} to be passed on"
    deliveries = [Delivery(piece.tensor, piece.spec, piece.sbp, ranks) for piece, ranks in sent]
    deliver(deliveries, wait.renew)
    for (piece, _), delivery in zip(sent, deliveries):
        piece.made = delivery.made
    return True


def _make(pieces: Iterable[Piece]) -> None:
    for piece in pieces:
        if piece.made is None:
            piece.made = piece.make()


class _Look:
    """The reading of pieces."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = list(
            {id(piece): piece for piece in pieces if _in_host_memory(piece)}.values()
        )
        self._reading = Reading([piece.tensor for piece in self._pieces])

    def finish(self) -> None:
        for piece, digest in zip(self._pieces, self._reading.digests()):
            piece.digest = digest


def _in_host_memory(piece: Piece) -> bool:
    return bool(piece.tensor.is_local and piece.tensor.device.type == "cpu")


def _told(piece: Piece) -> bytes:
    if piece.digest is None or piece.spec.position is None:
        return NO_SAY
    return piece.digest


def _wanted(compared: Sequence[Piece], differ: bool) -> list[frozenset[int]]:
    """For each piece, the ranks that want the first rank's values."""
    others = [frozenset(piece.spec.members) - {piece.spec.first} for piece in compared]
    if not differ:
        return [
            frozenset() if _in_host_memory(piece) else those
            for piece, those in zip(compared, others)
        ]
    # To send so few costs less than to ask which of them are wanted.
    if len(compared) == 1 or sum(piece.nbytes for piece in compared) <= BUFFER:
        return others
    size = (world_size() + 7) // 8

    def decide(said: list[bytes]) -> bytes:
        answer = b""
        for at, (piece, those) in enumerate(zip(compared, others)):
            theirs = [one[16 * at : 16 * at + 16] for one in said]
            unlike = sum(
                1 << rank
                for rank in those
                if theirs[rank] != theirs[piece.spec.first] or theirs[rank] == NO_SAY
            )
            answer += unlike.to_bytes(size, "little")
        return answer

    answer = consult(b"".join(map(_told, compared)), decide)
    masks = [int.from_bytes(answer[at : at + size], "little") for at in range(0, len(answer), size)]
    return [
        frozenset(rank for rank in those if mask >> rank & 1) for those, mask in zip(others, masks)
    ]
