"""Entering again, closing out of order, and ten thousand times.

Ten thousand cycles leave no wrapper layer, no memory and no cost.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import tracemalloc

import pytest
from oneflow import nn

from autoglobal import AutoglobalError, global_scope, local_scope
from tests.helpers.scopes import METHODS, clean, close, now
from tests.helpers.support import S0, S1, B, Model, counted, error_of

A = counted(8, 4)
CYCLES = 10_000


# Entering one scope object again


def test_after_it_has_closed(P):
    scope = global_scope(P, S0)
    for _ in range(3):
        with scope:
            assert now() == S0
        assert now() is None
        assert clean()


def test_inside_itself(P):
    scope = global_scope(P, S0)
    with scope:
        with scope:
            assert now() == S0
        assert now() == S0
    assert now() is None
    assert clean()


def test_inside_itself_with_others_between(P):
    a, b = global_scope(P, S0), global_scope(P, B)
    with a:
        with b:
            with a, b, a:
                assert now() == S0
            assert now() == B
        assert now() == S0
    assert now() is None


def test_after_an_exception_in_it(P):
    scope = global_scope(P, S0)
    with pytest.raises(ZeroDivisionError), scope:
        raise ZeroDivisionError
    assert now() is None
    with scope:
        assert now() == S0


def test_as_a_decorator_of_a_function_that_runs_inside_it(P):
    scope = global_scope(P, S0)
    build = scope(now)
    with scope, global_scope(P, B):
        assert [build(), now()] == [S0, B]
    assert build() == S0
    assert now() is None


# Closing out of order


def test_the_outer_scope_closed_first(P):
    """Exactly the outer one is taken out, and named; the inner one stays in force."""
    outer, inner = global_scope(P, S0), global_scope(P, B)
    outer.__enter__()
    inner.__enter__()
    with pytest.raises(AutoglobalError) as caught:
        close(outer)
    assert repr(outer) in str(caught.value)
    assert now() == B
    close(inner)
    assert now() is None
    assert clean()


def test_the_name_of_a_scope(P):
    assert repr(global_scope(P, S0)) == f"global_scope({P}, split(dim=0))"


def test_the_one_in_the_middle_closed_first(P):
    scopes = [global_scope(P, sbp) for sbp in (S0, S1, B)]
    for scope in scopes:
        scope.__enter__()
    with pytest.raises(AutoglobalError) as caught:
        close(scopes[1])
    assert repr(scopes[1]) in str(caught.value)
    assert now() == B
    close(scopes[2])
    assert now() == S0
    close(scopes[0])
    assert now() is None


def test_all_of_them_in_the_order_in_which_they_were_opened(P):
    scopes = [global_scope(P, sbp) for sbp in (S0, S1, B)]
    for scope in scopes:
        scope.__enter__()
    for scope in scopes[:2]:
        with pytest.raises(AutoglobalError):
            close(scope)
        assert now() == B
    close(scopes[2])
    assert now() is None
    assert clean()


def test_a_local_scope_between(P):
    outer, local = global_scope(P, S0), local_scope()
    outer.__enter__()
    local.__enter__()
    with pytest.raises(AutoglobalError):
        close(outer)
    assert now() is None
    close(local)
    with global_scope(P, B):
        assert now() == B


def test_two_exit_stacks(P):
    outer, inner = global_scope(P, S0), global_scope(P, B)
    first, second = contextlib.ExitStack(), contextlib.ExitStack()
    first.enter_context(outer)
    second.enter_context(inner)
    with pytest.raises(AutoglobalError) as caught:
        first.close()
    assert repr(outer) in str(caught.value)
    assert now() == B
    second.close()
    assert now() is None
    assert clean()


def test_one_exit_stack_used_rightly(P):
    with contextlib.ExitStack() as stack:
        for sbp in (S0, S1, B):
            stack.enter_context(global_scope(P, sbp))
        assert now() == B
        kept = stack.pop_all()
    assert now() == B
    kept.close()
    assert now() is None


def test_exit_called_twice(P):
    scope = global_scope(P, S0)
    scope.__enter__()
    close(scope)
    with pytest.raises(AutoglobalError, match="not open") as caught:
        close(scope)
    assert repr(scope) in str(caught.value)
    assert clean()


def test_exit_called_twice_inside_another_scope(P):
    scope = global_scope(P, S0)
    with global_scope(P, B):
        scope.__enter__()
        close(scope)
        assert now() == B
        with pytest.raises(AutoglobalError, match="not open"):
            close(scope)
        assert now() == B
    assert now() is None


def test_exit_without_enter(P):
    for scope in (global_scope(P, S0), local_scope()):
        with pytest.raises(AutoglobalError, match="not open"):
            close(scope)
    assert clean()


def test_an_exception_of_the_block_is_not_lost(P):
    scope, error = global_scope(P, S0), ZeroDivisionError("mine")

    def act():
        with scope:
            close(scope)
            raise error

    with pytest.raises(AutoglobalError, match="not open") as caught:
        act()
    assert caught.value.__context__ is error or caught.value.__cause__ is error
    assert now() is None


def test_a_generator_closed_late(P):
    """It holds a ``with`` open while it is suspended, and a scope is opened meanwhile."""

    def build():
        with outer:
            yield now()

    outer = global_scope(P, S0)
    generator = build()
    assert next(generator) == S0
    with global_scope(P, B):
        with pytest.raises(AutoglobalError) as caught:
            generator.close()
        assert repr(outer) in str(caught.value)
        assert now() == B
    assert now() is None
    assert clean()


def test_a_generator_closed_in_time(P):
    def build():
        with global_scope(P, S0):
            yield now()

    with global_scope(P, B):
        generator = build()
        assert next(generator) == S0
        generator.close()
        assert now() == B


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


@pytest.mark.ranks(1)  # what would be left behind is each process's own
@pytest.mark.parametrize("case", CYCLE)
def test_ten_thousand_cycles_leave_nothing(P, case):
    scope = global_scope(P, S0, check=False)  # the messages at its end would take the time
    for _ in range(100):
        CYCLE[case](P, scope)
    gc.collect()
    before, cost, objects = layers(scope), calls(scope), len(gc.get_objects())
    tracemalloc.start()
    try:
        for _ in range(1000):  # free lists of the interpreter's own are filled
            CYCLE[case](P, scope)
        gc.collect()
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
