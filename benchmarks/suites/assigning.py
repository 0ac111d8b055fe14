"""One Parameter at a time, assigned in an open scope or converted by hand before."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import oneflow as flow
from oneflow import nn

from autoglobal import global_scope

from ..harness.results import Bar, Found, relative
from ..harness.rounds import Job, Variant, Work, measure
from .subjects import S0, B, Subject

COUNT = 40
BY_HAND = "{}: m.x = Parameter(t.to_global(P, B).to_global(P, S0))"
IN_SCOPE = "{}: m.x = Parameter(t) in an open scope"
EXCHANGE = "one exchange of 64 bytes between all ranks, and the wait for it"
COPIES = ("equal copies", "different copies")
OURS = {IN_SCOPE.format(copies): BY_HAND.format(copies) for copies in COPIES}


def find(job: Job) -> Found:
    subject = Subject(job, COUNT, 64)
    table = measure(
        f"{subject}, one by one",
        variants(subject),
        job.device,
        job.rounds,
        count=COUNT,
        unit="Parameter",
        base={**OURS, EXCHANGE: BY_HAND.format(COPIES[0])},
    )
    bars = list[Bar]()
    if job.world == 2:
        bars += [
            relative(table, copies, ours, theirs, 0.5)
            for copies, (ours, theirs) in zip(COPIES, OURS.items())
        ]
    return Found([table], bars)


def variants(subject: Subject) -> dict[str, Variant]:
    P = subject.placement

    def work(
        of: Callable[[Any], Any], *, different: bool, around: Callable[[], Any] = nullcontext
    ) -> Work:
        def assign(tensors: list[Any]) -> nn.Module:
            module = nn.Module()
            for name, tensor in zip(subject.names(), tensors):
                setattr(module, name, nn.Parameter(of(tensor)))
            return module

        return Work(lambda: subject.tensors(different=different), assign, subject.check(S0), around)

    found: dict[str, Variant] = {}
    for copies in COPIES[: subject.world]:
        different = copies == COPIES[1]
        found[BY_HAND.format(copies)] = work(
            lambda tensor: tensor.to_global(P, B).to_global(P, S0), different=different
        )
        found[IN_SCOPE.format(copies)] = work(
            lambda tensor: tensor, different=different, around=lambda: global_scope(P, S0)
        )
    if subject.world > 1:
        mine, all_ = (
            flow.zeros(8, dtype=flow.int64),
            flow.zeros(8 * subject.world, dtype=flow.int64),
        )

        def exchange(_: object) -> None:
            for _ in range(COUNT):
                flow.comm.all_gather_into_tensor(all_, mine)
                flow._oneflow_internal.eager.Sync()

        found[EXCHANGE] = Work(lambda: None, exchange, lambda _: None)
    return found
