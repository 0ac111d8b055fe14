"""Ten thousand cycles leave no wrapper layer, no memory and no cost."""

from __future__ import annotations

import gc
import sys
import tracemalloc

import pytest
from oneflow import nn

from autoglobal import global_scope, local_scope
from tests.helpers.scopes import METHODS, clean, close, now
from tests.helpers.support import S0, Model, counted, error_of

A = counted(8, 4)


CYCLES = 10_000
pytestmark = pytest.mark.ranks(1)  # what would be left behind is each process's own


def depth(function) -> int:
    """How many wrappers are on a function."""
    count = 0
    while hasattr(function, "__wrapped__"):
        function, count = function.__wrapped__, count + 1
    return count


def layers(scope) -> list[int]:
    with scope:
        return [depth(vars(nn.Module)[name]) for name in METHODS]


def calls(scope) -> int:
    """What a cycle costs, in calls of functions."""
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    gc.disable()
    sys.setprofile(profile)
    try:
        with scope:
            Model().number = 3
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


CYCLE = {
    "one scope again": lambda P, scope: scope.__enter__() and close(scope),
    "a scope each": lambda P, scope: close(_entered(global_scope(P, S0, check=False))),
    "two scopes": lambda P, scope: _nested(scope, local_scope()),
    "a call of a function": lambda P, scope: scope(_function)(),
    "a generator": lambda P, scope: list(scope(_generator)()),
    "a refused close": lambda P, scope: error_of(lambda: close(scope)),
}


def _function():
    return Model()


def _generator():
    yield 1


def _entered(scope):
    scope.__enter__()
    return scope


def _nested(outer, inner):
    with outer, inner:
        pass


@pytest.mark.parametrize("case", CYCLE)
def test_ten_thousand_cycles_leave_nothing(P, case):
    scope = global_scope(P, S0, check=False)  # the messages at its end would take the time
    for _ in range(100):
        CYCLE[case](P, scope)
    gc.collect()
    before, cost, objects = layers(scope), calls(scope), len(gc.get_objects())
    tracemalloc.start()
    try:
        CYCLE[case](P, scope)
        start = tracemalloc.get_traced_memory()[0]
        for _ in range(CYCLES):
            CYCLE[case](P, scope)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - start
    finally:
        tracemalloc.stop()
    assert clean()
    assert layers(scope) == before
    assert calls(scope) == cost
    assert len(gc.get_objects()) - objects < CYCLES / 100
    assert grown < CYCLES  # less than a byte for each
    assert now() is None
