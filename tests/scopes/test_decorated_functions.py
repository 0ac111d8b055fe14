"""``@global_scope(...)`` on functions of all kinds: in force while they run, and only then.

On coroutine functions each call has its own scope.
"""

from __future__ import annotations

import asyncio
import inspect

import pytest

from autoglobal import SpecTypeError, current_scope, global_scope
from tests.helpers.scopes import new, sbp_of
from tests.helpers.support import (
    S0,
    S1,
    B,
    Model,
    assert_global,
    assert_local,
    counted,
    parameter,
    tensor,
)

A = counted(8, 4)


# Functions


def test_a_function(P):
    @global_scope(P, S0)
    def build(array, *, twice=False):
        """Its words."""
        return new(array * 2 if twice else array), current_scope()

    found, scope = build(A, twice=True)
    assert_global(found, A * 2, P, S0)
    assert scope.spec.placement == P
    assert current_scope() is None
    assert_local(new(), A)
    assert build.__name__ == "build"
    assert build.__doc__ == "Its words."
    assert list(inspect.signature(build).parameters) == ["array", "twice"]
    assert not inspect.iscoroutinefunction(build)
    assert not inspect.isgeneratorfunction(build)


def test_decorating_opens_nothing(P):
    @global_scope(P, S0)
    def build():
        return new()

    assert_local(new(), A)
    assert current_scope() is None


def test_each_call_has_its_own_scope(P):
    scopes = []

    @global_scope(P, S0)
    def build(count):
        for _ in range(count):
            new()
        scopes.append(current_scope())

    build(1)
    build(2)
    assert scopes[0] is not scopes[1]
    assert [len(scope.converted) for scope in scopes] == [1, 2]


def test_recursion(P):
    @global_scope(P, S0)
    def split(depth):
        before = new()
        below = broadcast(depth - 1) if depth else []
        scopes.append(current_scope())
        return [before.sbp[0], *below, new().sbp[0]]

    @global_scope(P, B)
    def broadcast(depth):
        before = new()
        below = split(depth - 1) if depth else []
        scopes.append(current_scope())
        return [before.sbp[0], *below, new().sbp[0]]

    scopes = []
    assert split(4) == [S0, B, S0, B, S0, S0, B, S0, B, S0]
    assert len(set(map(id, scopes))) == 5
    assert [len(scope.converted) for scope in scopes] == [2] * 5
    assert_local(new(), A)


def test_a_function_that_calls_itself(P):
    @global_scope(P, S0)
    def build(depth):
        own = current_scope()
        scopes.append(own)
        if depth:
            build(depth - 1)
        assert current_scope() is own
        return sbp_of(new())

    scopes = []
    assert build(5) == S0
    assert len(set(map(id, scopes))) == 6
    assert sbp_of(new()) is None


def test_an_exception_comes_out_and_the_scope_ends(P):
    @global_scope(P, S0)
    def build():
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        build()
    assert_local(new(), A)


def test_methods_of_all_kinds(P):
    class Builder:
        @global_scope(P, S0)
        def method(self):
            return self, new()

        @classmethod
        @global_scope(P, S0)
        def of_class(cls):
            return cls, new()

        @staticmethod
        @global_scope(P, S0)
        def static():
            return None, new()

    builder = Builder()
    for action, owner in (
        (builder.method, builder),
        (builder.of_class, Builder),
        (builder.static, None),
    ):
        found, made = action()
        assert found is owner
        assert_global(made, A, P, S0)


def test_one_decorator_for_two_functions(P):
    scope = global_scope(P, S0)
    inner = scope(lambda: (new(), current_scope()))
    outer = scope(lambda: (inner(), new(), current_scope()))
    (found, below), after, above = outer()
    assert_global(found, A, P, S0)
    assert_global(after, A, P, S0)
    assert below is not above


def test_a_scope_around_the_call(P):
    @global_scope(P, S0)
    def build():
        return new()

    with global_scope(P, B):
        found = [new(), build(), new()]
    assert [sbp_of(one) for one in found] == [B, S0, B]


def test_rules_and_options(P):
    @global_scope(P, {"new": S1, "seen": S0}, buffers="sbp")
    def build():
        m = Model()
        m.new = parameter(A)
        m.register_buffer("seen", tensor(A))
        return m

    m = build()
    assert_global(m.new, A, P, S1)
    assert_global(m.seen, A, P, S0)


def test_a_function_under_when_exit(P):
    @global_scope(P, S0, when="exit")
    def build():
        m = Model()
        m.new = parameter(A)
        return m, m.new.is_local

    m, was_local = build()
    assert was_local
    assert_global(m.new, A, P, S0)


@pytest.mark.parametrize("kind", ["class", "module class"])
def test_a_class_is_an_error_that_says_auto_global(P, kind):
    cls = type("Plain", (), {}) if kind == "class" else type("Layer", (Model,), {})
    before = dict(vars(cls))
    with pytest.raises(SpecTypeError, match="@auto_global"):
        global_scope(P, S0)(cls)
    assert dict(vars(cls)) == before


@pytest.mark.parametrize("value", [3, None, "text"])
def test_what_cannot_be_called(P, value):
    with pytest.raises(TypeError):
        global_scope(P, S0)(value)


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_above_a_descriptor_it_says_where_to_stand(P, kind):
    with pytest.raises(SpecTypeError, match=f"below @{kind.__name__}"):
        global_scope(P, S0)(kind(lambda: None))


# Coroutine functions


def test_a_coroutine_function(P):
    @global_scope(P, S0)
    async def build(array):
        """Its words."""
        first = new(array)
        await asyncio.sleep(0)
        return first, new(array)

    async def main():
        return [new(), *await build(A), new()]

    assert inspect.iscoroutinefunction(build)
    assert (build.__name__, build.__doc__) == ("build", "Its words.")
    assert [sbp_of(one) for one in asyncio.run(main())] == [None, S0, S0, None]


def test_a_coroutine_that_is_made_and_not_run_opens_nothing(P):
    @global_scope(P, S0)
    async def build():
        return new()

    coroutine = build()
    assert_local(new(), A)
    coroutine.close()
    assert_local(new(), A)


def test_concurrent_calls_each_have_their_own(P):
    """Three calls of two functions, each suspended inside its scope while the others run."""

    @global_scope(P, S0)
    async def split(turns):
        return [await step() for _ in range(turns)]

    @global_scope(P, B)
    async def broadcast(turns):
        return [await step() for _ in range(turns)]

    async def step():
        found = sbp_of(new())
        await asyncio.sleep(0)
        return found

    async def main():
        found = await asyncio.gather(split(3), broadcast(4), split(2), step())
        return [*found, sbp_of(new())]

    assert asyncio.run(main()) == [[S0] * 3, [B] * 4, [S0] * 2, None, None]


def test_what_awaits_a_suspended_call_is_not_in_its_scope(P):
    """Driven by hand, in one context: nothing but the scope itself keeps the two apart."""

    @global_scope(P, S0)
    async def build():
        first = sbp_of(new())
        await asyncio.sleep(0)
        return first, sbp_of(new())

    coroutine = build()
    assert coroutine.send(None) is None
    assert sbp_of(new()) is None
    assert current_scope() is None
    with pytest.raises(StopIteration) as caught:
        coroutine.send(None)
    assert caught.value.value == (S0, S0)


def test_a_cancelled_call(P):
    seen = []

    @global_scope(P, S0)
    async def build():
        try:
            await asyncio.sleep(60)
        finally:
            seen.append(sbp_of(new()))

    async def main():
        task = asyncio.ensure_future(build())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return sbp_of(new())

    assert asyncio.run(main()) is None
    assert seen == [S0]
