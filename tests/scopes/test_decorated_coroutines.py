"""``@global_scope(...)`` on coroutine functions: each call has its own scope."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from autoglobal import current_scope, global_scope
from tests.helpers.scopes import new, sbp_of
from tests.helpers.support import S0, B, assert_local, counted

A = counted(8, 4)


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
