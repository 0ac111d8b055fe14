"""All that one event makes global: the ranks agree once, then each tensor is made.

An equal copy is cut where it lies, and nothing is sent. Where copies differ the first rank of the
placement sends its values. What is on a GPU is not compared, which would bring it to the host:
there the first rank's values are always sent.
"""

from __future__ import annotations

from collections.abc import Sequence

import xxhash

from .agree import NO_SAY, Event, Line, agree
from .contents import Reading, Tensor, release
from .deliver import Delivery, deliver
from .pieces import Piece
from .ranks import can_meet, consult, sync, this_rank, world_size
from .shards import fit_together

_CHEAP = 1 << 20  # bytes; to send so few costs less than to ask which of them are wanted


def settle(pieces: Sequence[Piece], event: Event | None, digested: Sequence[Piece] = ()) -> None:
    """Agree on the pieces with the other ranks, and get what this rank lacks of them.

    ``event`` is None where the ranks are trusted: then nothing is compared or sent. The pieces
    that are ``digested`` have a digest afterwards, if they are in host memory.
    """
    try:
        if event is None or not can_meet():
            _Look(digested).finish()
        else:
            _meet(pieces, event, digested)
    finally:
        release()


def _meet(pieces: Sequence[Piece], event: Event, digested: Sequence[Piece]) -> None:
    compared = [piece for piece in pieces if piece.is_compared]
    counting = [piece for piece in compared if piece.spec.position is not None]
    reading = _Look([*counting, *digested])
    # What follows goes on while it is being copied.
    own = [piece for piece in pieces if piece.way == "own" and piece.spec.check]
    event.lines = [piece.line() for piece in pieces]
    event.shown = lambda: [piece.shown() for piece in pieces]
    specs = {id(piece.spec): piece.spec for piece in pieces}
    event.options = [Line("", text) for spec in specs.values() for text in spec.texts]
    if own:
        event.shapes = xxhash.xxh3_128_digest(repr([piece.shape for piece in own]).encode())
    reading.finish()
    if counting:
        # With a place for those that do not count here: two ranks may count others each.
        event.contents = xxhash.xxh3_128_digest(b"".join(map(_told, compared)))
    agreed = agree(event)
    with event.wait() as wait:
        if agreed.shapes_differ:
            fit_together(own)
        wanted = _wanted(compared, agreed.contents_differ)
        sent = [(piece, ranks) for piece, ranks in zip(compared, wanted) if ranks]
        if not sent:
            return
        sources = sorted({piece.spec.first for piece, _ in sent})
        wait.whom = lambda: f"the values of rank {', '.join(map(str, sources))} to be passed on"
        for piece, ranks in sent:
            if this_rank() in ranks:
                piece.part = None  # of this rank's own copy
        copies = reading.copies
        deliveries = [
            Delivery(piece.tensor, piece.spec, piece.sbp, ranks, copies.get(id(piece)))
            for piece, ranks in sent
        ]
        deliver(deliveries, wait.renew)
        if len(pieces) > 1:  # a single one may be under way: another event will follow it
            sync()
    for (piece, _), delivery in zip(sent, deliveries):
        piece.made = delivery.made


class _Look:
    """The reading of pieces; this rank's parts are taken while they are at hand."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        pieces = list({id(piece): piece for piece in pieces if _in_host_memory(piece)}.values())
        self._pieces = pieces
        self._reading = Reading(
            [piece.tensor for piece in pieces], lambda index, copy: pieces[index].cut_from(copy)
        )

    def finish(self) -> None:
        for piece, digest in zip(self._pieces, self._reading.digests()):
            piece.digest = digest

    @property
    def copies(self) -> dict[int, Tensor]:
        """The copies of the pieces, by their ids, where they are still there."""
        copies = self._reading.copies
        return {} if copies is None else dict(zip(map(id, self._pieces), copies))


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
    if len(compared) == 1 or sum(piece.nbytes for piece in compared) <= _CHEAP:
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
