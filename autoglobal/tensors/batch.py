"""A batch of tensors that become global together, after one agreement of the ranks.

A replica that is equal on all ranks is cut where it lies, and nothing is sent. Where replicas
differ the first rank of the placement sends its values. What is on a GPU is not compared, because
that would bring it to the host: there the first rank's values are always sent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import product
from typing import Any, Literal

import xxhash
from tqdm import tqdm

from .._compat import Tensor, nbytes_of, sync, this_rank, world_size
from ..errors import DivergenceError
from ..layout.placement import PlacementLayout, Shape, show_ranks
from ..layout.sbp import BROADCAST, PARTIAL_SUM, NdSbp, show_sbp, split_axis
from ..ranks.agreement import NO_DIGEST, Proposal, Statement, agree
from ..ranks.collectives import all_reduce_bytes, can_meet
from ..ranks.watchdog import Wait
from .convert import boxing, empty, from_component, from_replica
from .digests import BUFFER, Reading, release_buffers
from .scatter import scatter

# "replica": each rank has the logical tensor, and the first rank's counts. "shard": each has a
# component of its own. "global": it is that already, elsewhere or with another sbp.
# "uninitialized": a replica that holds nothing yet.
State = Literal["replica", "shard", "global", "uninitialized"]

_FEW = 4  # shapes that an error lists


class TensorConversion:
    """One tensor on its way to become global, from the plan to its ``result``.

    ``path`` names it and ``kind`` says what it is; ``grad`` is the conversion of its gradient.
    ``check``: the ranks have to agree on it. ``wanted`` are the ranks that lack the first rank's
    values, ``digest`` is that of this rank's. ``is_placed``: a rule has named the placement.
    """

    __slots__ = (
        *(
            "check",
            "digest",
            "grad",
            "is_placed",
            "kind",
            "layout",
            "logical",
            "path",
            "result",
            "sbp",
        ),
        *("shape", "state", "tensor", "wanted"),
    )

    def __init__(
        self,
        path: str,
        kind: str,
        tensor: Tensor,
        layout: PlacementLayout,
        sbp: NdSbp,
        *,
        is_shard: bool = False,
        check: bool = True,
    ) -> None:
        self.path = path
        self.kind = kind
        self.tensor = tensor
        self.layout = layout
        self.sbp = sbp
        self.check = check
        self.is_placed = False
        self.grad: TensorConversion | None = None
        self.result: Tensor = None
        self.digest: bytes | None = None
        self.wanted: frozenset[int] = frozenset()
        self.logical = self.shape = tuple(tensor.shape)
        self.state: State = "replica"
        if tensor.is_global:
            self.state = "global"
        elif is_shard and any(one != BROADCAST for one in sbp):
            self.state = "shard"
            self.logical = layout.logical(self.shape, sbp)

    @property
    def nbytes(self) -> int:
        return nbytes_of(self.tensor)

    @property
    def is_compared(self) -> bool:
        """Whether what the ranks hold has to be equal, or be made so."""
        return self.state == "replica" and self.check and len(self.layout.members) > 1

    @property
    def in_host_memory(self) -> bool:
        return bool(self.tensor.is_local and self.tensor.device.type == "cpu")

    def leave_empty(self) -> None:
        """The tensor holds nothing yet, and is going to be filled."""
        if self.state == "replica" and PARTIAL_SUM not in self.sbp:
            self.state = "uninitialized"

    def statement(self) -> Statement:
        """What all ranks have to say alike."""
        shape: object = self.shape
        if self.state == "shard":  # components may be longer on some ranks, along a split axis
            axes = {split_axis(one) for one in self.sbp}
            shape = tuple("any" if axis in axes else size for axis, size in enumerate(self.shape))
        return Statement(self.path, self._text(shape))

    def shown(self) -> str:
        """The same, for people."""
        return self._text(self.shape)

    def _text(self, shape: object) -> str:
        tensor = self.tensor
        if self.state == "global":
            where = f"{show_sbp(tensor.sbp)} on {tensor.placement}"
        else:
            where = tensor.device.type
            where += ", not initialised yet" * (self.state == "uninitialized")
        rest = _rest(
            tensor.dtype,
            where,
            tensor.requires_grad,
            self.sbp,
            self.layout if self.is_placed else None,
        )
        return f"{self.kind} {self.path}, shape {shape}, {rest}"

    def convert(self) -> None:
        """Make the result, if it has not been received; where replicas differ, of this rank's."""
        if self.result is not None:
            return
        tensor, layout, sbp = self.tensor, self.layout, self.sbp
        if self.state == "replica":
            self.result = from_replica(tensor, layout, sbp)
        elif self.state == "global":
            self.result = boxing(tensor, layout, sbp)
        elif self.state == "uninitialized":
            self.result = empty(self.logical, tensor.dtype, layout, sbp)[0]
        elif self.check and BROADCAST in sbp:
            # Without its check OneFlow takes the components to be of one shape.
            check_meta = not layout.are_alike(self.logical, sbp)
            self.result = boxing(tensor, layout, sbp, check_meta)
        else:
            self.result = from_component(tensor, self.logical, layout, sbp)


@lru_cache(maxsize=1024)
def _rest(
    dtype: Any, where: str, requires_grad: bool, sbp: NdSbp, placed: PlacementLayout | None
) -> str:
    grad = ", requires_grad" if requires_grad else ""
    on = "" if placed is None else f" on {placed.placement}"
    return f"{dtype}, {where}{grad}, to be {show_sbp(sbp)}{on}"


def convert_batch(
    batch: Sequence[TensorConversion],
    proposal: Proposal | None,
    *,
    digested: Sequence[TensorConversion] = (),
    progress: bool = False,
) -> None:
    """Agree on a batch with the other ranks, and make the results of all of it.

    ``proposal`` is None where the ranks are trusted: then nothing is compared or sent. Those that
    are ``digested`` have a digest afterwards, if they are in host memory. ``progress`` shows a bar,
    on rank 0.
    """
    if proposal is None and not digested:
        _convert(batch, progress)
        return
    try:
        if proposal is None or not can_meet():
            _finish(_read(digested))
            _convert(batch, progress)
            return
        with proposal.waiting() as wait:
            # To read a tensor waits as well for what the event before has left under way.
            compared = _state(batch, proposal, digested)
            agreement = agree(proposal)
            shards = [one for one in batch if _is_checked_shard(one)]
            # With equal shapes too where they are empty, as then they are on all ranks.
            if agreement.shapes_differ or any(_is_empty(one, one.shape) for one in shards):
                fit_together(shards)
            _send(compared, agreement.contents_differ, proposal, wait)
            _convert(batch, progress)
            # A single one may be under way still, because an event will follow it.
            if proposal.sends_values and len(batch) > 1:
                sync()
    finally:
        release_buffers()


def _convert(batch: Sequence[TensorConversion], progress: bool) -> None:
    if not progress or this_rank() != 0:
        for one in batch:
            one.convert()
        return
    # The others have agreed too, so that a bar which cannot be shown must not stop this rank.
    bar: Any = None
    with suppress(Exception):
        bar = tqdm(total=len(batch), desc="local to global")
    for one in batch:
        one.convert()
        with suppress(Exception):
            bar.update()
    with suppress(Exception):
        bar.close()


def _state(
    batch: Sequence[TensorConversion], proposal: Proposal, digested: Sequence[TensorConversion]
) -> list[TensorConversion]:
    """Put into the proposal what this rank has; return what the ranks have to have alike."""
    compared = [one for one in batch if one.is_compared]
    counting = [one for one in compared if one.layout.position is not None]
    reading = _read([*counting, *digested])
    # What follows goes on while the contents are being copied.
    proposal.statements = [one.statement() for one in batch]
    proposal.shown = lambda: [one.shown() for one in batch]
    shapes = [one.shape for one in batch if _is_checked_shard(one)]
    if shapes:
        proposal.shapes = xxhash.xxh3_128_digest(repr(shapes).encode())
    _finish(reading)
    if counting:
        # With a place for those that do not count here: two ranks may count others each.
        proposal.contents = xxhash.xxh3_128_digest(b"".join(map(_digest, compared)))
    return compared


def _is_checked_shard(one: TensorConversion) -> bool:
    return one.state == "shard" and one.check


def _is_empty(one: TensorConversion, shape: Shape) -> bool:
    """Whether a component of this shape is empty along a split axis."""
    split = {split_axis(sbp) for sbp in one.sbp}
    return any(size == 0 and axis in split for axis, size in enumerate(shape))


_Reading = tuple[Reading, list[TensorConversion]]


def _read(wished: Sequence[TensorConversion]) -> _Reading:
    """Begin to read those that are in host memory."""
    read = list({id(one): one for one in wished if one.in_host_memory}.values())
    return Reading([one.tensor for one in read]), read


def _finish(reading: _Reading) -> None:
    """Wait for what was begun; then each has its digest."""
    under_way, read = reading
    for one, digest in zip(read, under_way.digests()):
        one.digest = digest


def _digest(one: TensorConversion) -> bytes:
    if one.digest is None or one.layout.position is None:
        return NO_DIGEST
    return one.digest


def _send(
    compared: Sequence[TensorConversion], differ: bool, proposal: Proposal, wait: Wait
) -> None:
    """Pass the first rank's values on to where they are wanted."""
    for one, ranks in zip(compared, _wanted(compared, differ)):
        one.wanted = ranks
    sent = [one for one in compared if one.wanted]
    if sent:
        proposal.sends_values = True
        sources = sorted({one.layout.first for one in sent})
        wait.whom = lambda: f"the values of rank {', '.join(map(str, sources))} to be passed on"
        scatter(sent, wait.renew)


def _wanted(compared: Sequence[TensorConversion], differ: bool) -> list[frozenset[int]]:
    """For each of them, the ranks that want the first rank's values."""
    others = [frozenset(one.layout.members) - {one.layout.first} for one in compared]
    if not differ:
        return [
            frozenset() if one.in_host_memory else ranks for one, ranks in zip(compared, others)
        ]
    # To send so few costs less than to ask which of them are wanted.
    if len(compared) == 1 or sum(one.nbytes for one in compared) <= BUFFER:
        return others
    size = (world_size() + 7) // 8

    def decide(rows: list[bytes]) -> bytes:
        answer = b""
        for at, (one, ranks) in enumerate(zip(compared, others)):
            digests = [row[16 * at : 16 * at + 16] for row in rows]
            unlike = sum(
                1 << rank
                for rank in ranks
                if digests[rank] != digests[one.layout.first] or digests[rank] == NO_DIGEST
            )
            answer += unlike.to_bytes(size, "little")
        return answer

    answer = all_reduce_bytes(b"".join(map(_digest, compared)), decide)
    masks = [int.from_bytes(answer[at : at + size], "little") for at in range(0, len(answer), size)]
    return [
        frozenset(rank for rank in ranks if mask >> rank & 1) for ranks, mask in zip(others, masks)
    ]


def fit_together(shards: Sequence[TensorConversion]) -> None:
    """Settle the logical shapes of shards that are not of one shape on all ranks.

    Raises :class:`DivergenceError` on all ranks where they are not the parts of anything.
    """

    def decide(rows: list[bytes]) -> bytes:
        gathered = [[tuple(shape) for shape in json.loads(row)] for row in rows]
        found = []
        for at, one in enumerate(shards):
            shapes = {rank: gathered[rank][at] for rank in one.layout.members}
            logical = _sum(one, shapes)
            for rank, shape in shapes.items():
                if shape != _component(one, logical, rank) or _is_empty(one, shape):
                    return json.dumps([at, rank, logical, _listed(shapes)]).encode()
            found.append(logical)
        return json.dumps(found).encode()

    shapes = json.dumps([one.shape for one in shards]).encode()
    answer = json.loads(all_reduce_bytes(shapes, decide))
    if answer and isinstance(answer[0], int):
        at, rank, logical, listed = answer
        one = shards[at]
        raise DivergenceError(
            f"{one.path}: the ranks' components are not those of one split. Expected on rank "
            f"{rank}: {_component(one, tuple(logical), rank)}, as OneFlow splits "
            f"{tuple(logical)}, and none of them empty. Received: {listed}. "
            f"This rank (rank {this_rank()}): {one.kind} of shape {one.shape}. Write "
            "source='full' where each rank has the whole"
        )
    for one, logical in zip(shards, answer):
        one.logical = tuple(logical)


def _listed(shapes: Mapping[int, Shape]) -> str:
    """Which ranks have which shape, the first few of them."""
    ranks: dict[Shape, list[int]] = {}
    for rank, shape in shapes.items():
        ranks.setdefault(shape, []).append(rank)
    few = [f"{shape} on rank {show_ranks(its)}" for shape, its in [*ranks.items()][:_FEW]]
    return "; ".join([*few, "..."] if len(ranks) > _FEW else few)


def _component(one: TensorConversion, logical: Shape, rank: int) -> Shape:
    return one.layout.component(logical, one.sbp, one.layout.positions[rank])


def _sum(one: TensorConversion, shapes: Mapping[int, Shape]) -> Shape:
    """Along each axis the sum of the lengths over the ranks that it is split over."""
    layout = one.layout
    ranks_at = {position: rank for rank, position in layout.positions.items()}
    logical = list(shapes[layout.first])
    for axis in range(len(logical)):
        split = [split_axis(sbp) == axis for sbp in one.sbp]
        if any(split):
            across = product(*(range(n) if on else (0,) for n, on in zip(layout.hierarchy, split)))
            lengths = [shapes[ranks_at[position]] for position in across]
            logical[axis] = sum(shape[axis] for shape in lengths if axis < len(shape))
    return tuple(logical)
