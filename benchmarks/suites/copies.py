"""From host memory to the device: what a bare copy reaches, and what a conversion does.

On CUDA the bare copy is the physical limit of one that starts in pageable host memory; what lies on
the device already is converted beside it. On CPU both are copies of memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oneflow import nn

from autoglobal import global_scope, local_to_global

from ..harness.results import Found
from ..harness.rounds import Job, Variant, Work, measure
from .subjects import S0, B, Subject

RANKS, ROUNDS = (1,), 7

BARE = "bare copy of the tensors"
CALL = "local_to_global, from host memory, B"
CALL_SPLIT = "local_to_global, from host memory, S0"
ASSIGNED = "assigned in a scope, from host memory, B"
RESIDENT = "local_to_global, from the device, B"


def find(job: Job) -> Found:
    return Found([_table(job, count, edge) for count, edge in ((300, 64), (20, 2048))])


def _table(job: Job, count: int, edge: int) -> Any:
    subject = Subject(job, count, edge)
    mib = count * edge * edge * 4 / 2**20
    variants = _variants(subject)
    return measure(
        f"{subject}, {mib:.0f} MiB in all",
        variants,
        job.device,
        job.rounds,
        count=round(mib),
        unit="MiB",
        base={name: BARE for name in variants if name != BARE},
        weigh=True,
    )


def _variants(subject: Subject) -> dict[str, Variant]:
    P, device = subject.placement, subject.job.device
    resident = Subject(subject.job, subject.count, subject.edge, resident=True)

    def bare(module: nn.Module) -> list[Any]:
        return [device.copy(one.detach()) for one in module.parameters()]

    def call(sbp: Any) -> Callable[[nn.Module], nn.Module]:
        return lambda module: local_to_global(module, P, sbp)

    def assign(module: nn.Module) -> nn.Module:
        with global_scope(P, B):
            new = nn.Module()
            for name, parameter in module.named_parameters():
                setattr(new, name, parameter)
        return new

    def work(of: Subject, run: Callable[[nn.Module], Any], check: Callable[[Any], None]) -> Work:
        return Work(lambda: of.module(different=False), run, check)

    return {
        BARE: work(subject, bare, lambda copies: None),
        CALL: work(subject, call(B), subject.check(B)),
        CALL_SPLIT: work(subject, call(S0), subject.check(S0)),
        ASSIGNED: work(subject, assign, subject.check(B)),
        RESIDENT: work(resident, call(B), resident.check(B)),
    }
