"""One Parameter at a time, assigned in an open scope or converted by hand before."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from oneflow import nn

from autoglobal import global_scope

from .subjects import S0, B, Subject
from .table import Bar, Times, relative
from .together import Variant, Work

BY_HAND = "{}: m.x = Parameter(t.to_global(P, B).to_global(P, S0))"
IN_SCOPE = "{}: m.x = Parameter(t) in an open scope"
COPIES = ("equal copies", "different copies")
BASE = {IN_SCOPE.format(copies): BY_HAND.format(copies) for copies in COPIES}


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
    return found


def bars(subject: Subject, times: Times) -> list[Bar]:
    if subject.world != 2:
        return []
    return [
        relative(f"one assigned {subject.edge}x{subject.edge}, {copies}", times, ours, theirs, 0.5)
        for copies, (ours, theirs) in zip(COPIES, BASE.items())
    ]
