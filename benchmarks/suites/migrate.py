"""local_to_global of a module that exists, against OneFlow's own ways to the same result.

Equal and different copies, broadcast (B) and split(0) (S0), small and large Parameters; on CPU,
PyTorch's DTensor beside them, where ``--torch-python`` or AUTOGLOBAL_BENCH_TORCH names a Python
that has torch. P is the placement of all ranks. "By hand" is the least that has to be done: each
rank takes its own rows, with no agreement and no look at what the other ranks have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

from oneflow import nn

from autoglobal import local_to_global

from ..harness.pytorch import Peer, pytorch
from ..harness.results import Bar, Found, Table, faster, relative
from ..harness.rounds import Job, Variant, Work, measure
from .subjects import S0, SHARD, B, Subject

RANKS, ROUNDS = (1, 2, 4), 5

# The lines of the table, by what they do.
THREAD_SHARD = "shards, S0: _apply, to_global(P, S0), as in the thread"
OURS_SHARD = 'shards, S0: local_to_global, source="shard"'
APPLY_EQUAL = "equal copies, S0: _apply, to_global(P, B).to_global(P, S0)"
OURS_EQUAL = "equal copies, S0: local_to_global"
OURS_TRUSTING = "equal copies, S0: local_to_global, check=False"
BY_HAND_SHARD = "shards, S0: by hand, detach, claim a copy, .data ="
BY_HAND_EQUAL = "equal copies, S0: by hand, own rows, claim, .data ="
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
    BY_HAND_SHARD: THREAD_SHARD,
    BY_HAND_EQUAL: APPLY_EQUAL,
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


def find(job: Job) -> Found:
    with pytorch(job) as (peer, note):
        tables, bars = [], []
        for count, edge in ((300, 64), (20, 2048)):
            subject = Subject(job, count, edge)
            table = measure(
                str(subject),
                variants(subject, peer),
                job.device,
                job.rounds,
                count=count,
                unit="Parameter",
                base=BASE_ON_ONE_RANK if job.world == 1 else BASE,
            )
            tables.append(table)
            bars += held_to(subject, table)
        return Found(tables, bars, [note] if note else [])


def variants(subject: Subject, peer: Optional[Peer]) -> dict[str, Variant]:
    """Each line of the table, on this number of ranks."""
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
        BY_HAND_SHARD: work(
            lambda module: _by_hand(module, lambda t: _claimed(t, P, copy=True)),
            S0,
            different=True,
            source=SHARD,
        ),
        APPLY_EQUAL: apply(B, S0, different=False),
        BY_HAND_EQUAL: work(
            lambda module: _by_hand(module, lambda t: _claimed(_own_rows(t, subject), P)),
            S0,
            different=False,
        ),
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
        found[DTENSOR_SENDS] = peer.rounds("distribute", subject.count, subject.edge, source=0)
        found[DTENSOR_CUTS] = peer.rounds("distribute", subject.count, subject.edge, source=None)
    return found


def held_to(subject: Subject, table: Table) -> list[Bar]:
    """The bars, on this number of ranks."""
    return [
        *(
            faster(table, what, slow, fast, limit)
            for what, slow, fast, limit in FASTER.get((subject.world, subject.edge), ())
        ),
        *(
            relative(table, what, ours, theirs, limit)
            for what, ours, theirs, limit in NOT_SLOWER
            if table.has(ours, theirs)
        ),
    ]


def _by_hand(module: nn.Module, globally: Callable[[Any], Any]) -> nn.Module:
    for parameter in module.parameters():
        parameter.data = globally(parameter.detach())
    return module


def _own_rows(tensor: Any, subject: Subject) -> Any:
    rows = tensor.shape[0] // subject.world
    return tensor.narrow(0, rows * subject.rank, rows).clone()


def _claimed(component: Any, placement: Any, copy: bool = False) -> Any:
    return component.to_global(placement, S0, copy=copy, check_meta=False)
