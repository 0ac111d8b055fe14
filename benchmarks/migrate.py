"""Modules that exist already: ``local_to_global`` against OneFlow's own ways to the same result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

from oneflow import nn

from autoglobal import local_to_global

from .peer import Peer
from .subjects import S0, SHARD, B, Subject
from .table import Bar, Times, faster, relative
from .together import Variant, Work

# The lines of the table, by what they do.
THREAD_SHARD = "shards, S0: _apply, to_global(P, S0), as in the thread"
OURS_SHARD = 'shards, S0: local_to_global, source="shard"'
APPLY_EQUAL = "equal copies, S0: _apply, to_global(P, B).to_global(P, S0)"
OURS_EQUAL = "equal copies, S0: local_to_global"
OURS_TRUSTING = "equal copies, S0: local_to_global, check=False"
APPLY_DIFFERENT = "different copies, S0: _apply, to_global(P, B).to_global(P, S0)"
OURS_DIFFERENT = "different copies, S0: local_to_global"
APPLY_EQUAL_B = "equal copies, B: _apply, to_global(P, B)"
OURS_EQUAL_B = "equal copies, B: local_to_global"
APPLY_DIFFERENT_B = "different copies, B: _apply, to_global(P, B)"
OURS_DIFFERENT_B = "different copies, B: local_to_global"
DTENSOR_SENDS = "DTensor, Shard(0): distribute_tensor, src_data_rank=0"
DTENSOR_CUTS = "DTensor, Shard(0): distribute_tensor, src_data_rank=None"
BARE_S0 = "one rank, S0: _apply, bare to_global(P, S0)"
BARE_B = "one rank, B: _apply, bare to_global(P, B)"

BASE = {
    OURS_SHARD: THREAD_SHARD,
    OURS_EQUAL: APPLY_EQUAL,
    OURS_TRUSTING: APPLY_EQUAL,
    OURS_DIFFERENT: APPLY_DIFFERENT,
    OURS_EQUAL_B: APPLY_EQUAL_B,
    OURS_DIFFERENT_B: APPLY_DIFFERENT_B,
    DTENSOR_SENDS: APPLY_DIFFERENT,
    DTENSOR_CUTS: APPLY_EQUAL,
}
BASE_ON_ONE_RANK = {
    OURS_SHARD: BARE_S0,
    OURS_EQUAL: BARE_S0,
    OURS_TRUSTING: BARE_S0,
    OURS_EQUAL_B: BARE_B,
}

# The bars: what, the slow line, the fast one, how many times faster; by ranks and rows.
FASTER = {
    (2, 64): (
        ("shard S0", THREAD_SHARD, OURS_SHARD, 20),
        ("equal S0", APPLY_EQUAL, OURS_EQUAL, 10),
        ("different S0", APPLY_DIFFERENT, OURS_DIFFERENT, 5),
        ("equal B", APPLY_EQUAL_B, OURS_EQUAL_B, 6),
        ("different B", APPLY_DIFFERENT_B, OURS_DIFFERENT_B, 3),
        ("equal B, than B then S0", APPLY_EQUAL, OURS_EQUAL_B, 6),
        ("different B, than B then S0", APPLY_DIFFERENT, OURS_DIFFERENT_B, 3),
    ),
    (2, 2048): (
        ("equal S0", APPLY_EQUAL, OURS_EQUAL, 5),
        ("different S0", APPLY_DIFFERENT, OURS_DIFFERENT, 2.5),
    ),
    (4, 64): (("shard S0", THREAD_SHARD, OURS_SHARD, 40),),
}
# And wherever both lines are there: what, ours, theirs, the largest ratio of the times.
NOT_SLOWER = (
    ("full S0 to bare to_global", OURS_EQUAL, BARE_S0, 1.15),
    ("shard S0 to bare to_global", OURS_SHARD, BARE_S0, 1.15),
    ("full B to bare to_global", OURS_EQUAL_B, BARE_B, 1.15),
    ("equal S0 to DTensor from rank 0", OURS_EQUAL, DTENSOR_SENDS, 1),
    ("different S0 to DTensor from rank 0", OURS_DIFFERENT, DTENSOR_SENDS, 1),
    ("check=False, S0, to DTensor None", OURS_TRUSTING, DTENSOR_CUTS, 1),
    ("equal S0, compared, to DTensor None", OURS_EQUAL, DTENSOR_CUTS, 1),
)


def variants(subject: Subject, peer: Optional[Peer]) -> dict[str, Variant]:
    P = subject.placement

    def work(
        convert: Callable[[nn.Module], nn.Module],
        sbp: Any,
        *,
        different: bool,
        source: str = "full",
    ) -> Work:
        return Work(
            make=lambda: subject.module(different=different),
            run=convert,
            check=subject.check(sbp, source),
        )

    def apply(*sbps: Any, different: bool, source: str = "full") -> Work:
        def globally(tensor: Any) -> Any:
            if tensor.is_global:
                return tensor
            for sbp in sbps:
                tensor = tensor.to_global(P, sbp)
            return tensor

        return work(
            lambda module: module._apply(globally), sbps[-1], different=different, source=source
        )

    def ours(sbp: Any, *, different: bool, **options: Any) -> Work:
        return work(
            lambda module: local_to_global(module, P, sbp, **options),
            sbp,
            different=different,
            source=options.get("source", "full"),
        )

    found: dict[str, Variant]
    if subject.world == 1:
        found = {
            BARE_S0: apply(S0, different=False),
            OURS_EQUAL: ours(S0, different=False),
            OURS_TRUSTING: ours(S0, different=False, check=False),
            OURS_SHARD: ours(S0, different=False, source=SHARD),
            BARE_B: apply(B, different=False),
            OURS_EQUAL_B: ours(B, different=False),
        }
        return found
    found = {
        THREAD_SHARD: apply(S0, different=True, source=SHARD),
        OURS_SHARD: ours(S0, different=True, source=SHARD),
        APPLY_EQUAL: apply(B, S0, different=False),
        OURS_EQUAL: ours(S0, different=False),
        OURS_TRUSTING: ours(S0, different=False, check=False),
        APPLY_DIFFERENT: apply(B, S0, different=True),
        OURS_DIFFERENT: ours(S0, different=True),
        APPLY_EQUAL_B: apply(B, different=False),
        OURS_EQUAL_B: ours(B, different=False),
        APPLY_DIFFERENT_B: apply(B, different=True),
        OURS_DIFFERENT_B: ours(B, different=True),
    }
    if peer:
        found[DTENSOR_SENDS] = peer.distribute(subject, 0)
        found[DTENSOR_CUTS] = peer.distribute(subject, None)
    return found


def bars(subject: Subject, times: Times) -> list[Bar]:
    return [
        *(
            faster(f"{subject}, {what}", times, slow, fast, limit)
            for what, slow, fast, limit in FASTER.get((subject.world, subject.edge), ())
        ),
        *(
            relative(f"{subject}, {what}", times, ours, theirs, limit)
            for what, ours, theirs, limit in NOT_SLOWER
            if ours in times and theirs in times
        ),
    ]
