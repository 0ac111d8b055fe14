"""A stack of stock layers that is built in an open scope, and by a hook that converts by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import oneflow as flow
from oneflow import nn

from autoglobal import global_scope

from ..harness.results import Bar, Found
from ..harness.rounds import Job, Variant, Work, measure
from .subjects import S0, B, check_one

PAIRS = 2 * 48
WIDTH = 256
COUNT = 4 * PAIRS  # two Parameters in each of a pair's layers

LOCAL = "local"
BY_HAND = "__setattr__ that does to_global(P, B).to_global(P, S0)"
IN_SCOPE = "scope, S0"
AT_EXIT = 'scope, S0, when="exit"'
AT_EXIT_EQUAL = 'scope, S0, when="exit", equal seeds'
BASE = dict.fromkeys((LOCAL, IN_SCOPE, AT_EXIT, AT_EXIT_EQUAL), BY_HAND)


def find(job: Job) -> Found:
    title = f"{PAIRS} times LayerNorm and Linear({WIDTH})"
    table = measure(
        title, variants(job), job.device, job.rounds, count=COUNT, unit="Parameter", base=BASE
    )
    if job.world != 2:
        return Found([table])

    def share(name: str) -> list[float]:
        """The extra time over the local build, as a share of the hook's."""
        lines = (table.line(one).done for one in (name, BY_HAND, LOCAL))
        return [(mine - local) / (hook - local) for mine, hook, local in zip(*lines)]

    limits = ((IN_SCOPE, 0.4), (AT_EXIT, 0.2), (AT_EXIT_EQUAL, 0.2))
    bars = [
        Bar(f"{title}: {name}: share of the hook's cost", job.world, share(name), limit)
        for name, limit in limits
    ]
    return Found([table], bars)


def variants(job: Job) -> dict[str, Variant]:
    """Each line of the table."""
    world, rank, P = job.world, job.rank, job.placement

    def work(
        inside: Callable[[], AbstractContextManager[object]],
        check: Callable[[Any], None],
        *,
        seed: int = rank,
    ) -> Work:
        def run(_: object) -> nn.Module:
            with inside():
                return _stack()

        # Other seeds on other ranks, which is how OneFlow starts.
        return Work(lambda: flow.manual_seed(seed), run, check)

    def is_split(stack: nn.Module) -> None:
        held = list(stack.parameters())
        assert len(held) == COUNT
        for index, parameter in enumerate(held):
            shape = (WIDTH, WIDTH) if index % 4 == 2 else (WIDTH,)
            check_one(parameter, shape, P, S0)
            found = parameter.detach().to_local().numpy()
            if index % 4 < 2:  # a LayerNorm's weight of ones, its bias of zeros
                assert (found == 1 - index % 4).all()
            else:  # a Linear's, which has been initialised and not only allocated
                assert 0 < np.abs(found).max() < 1

    def is_the_first_ranks(stack: nn.Module) -> None:
        is_split(stack)
        flow.manual_seed(0)
        for parameter, local in zip(stack.parameters(), _stack().parameters()):
            expected = np.array_split(local.detach().numpy(), world)[rank]
            np.testing.assert_array_equal(parameter.detach().to_local().numpy(), expected)

    return {
        LOCAL: work(nullcontext, _is_local),
        BY_HAND: work(lambda: _hooked(P), is_split),
        IN_SCOPE: work(lambda: global_scope(P, S0), is_split),
        AT_EXIT: work(lambda: global_scope(P, S0, when="exit"), is_the_first_ranks),
        AT_EXIT_EQUAL: work(lambda: global_scope(P, S0, when="exit"), is_the_first_ranks, seed=0),
    }


def _stack() -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(PAIRS):
        layers += [nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)]
    return nn.Sequential(*layers)


def _is_local(stack: nn.Module) -> None:
    held = list(stack.parameters())
    assert len(held) == COUNT
    assert all(parameter.is_local for parameter in held)


@contextmanager
def _hooked(placement: Any) -> Iterator[None]:
    bare = nn.Module.__setattr__

    def converting(self: nn.Module, name: str, value: object) -> None:
        if isinstance(value, nn.Parameter) and value.is_local:
            value = nn.Parameter(value.to_global(placement, B).to_global(placement, S0))
        bare(self, name, value)

    nn.Module.__setattr__ = converting
    try:
        yield
    finally:
        nn.Module.__setattr__ = bare
