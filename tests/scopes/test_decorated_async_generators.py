"""``@global_scope(...)`` on async generator functions: what is suspended is not in force."""

from __future__ import annotations

import asyncio
import gc
import inspect

import pytest

from autoglobal import current_scope, global_scope
from tests.helpers.scopes import now
from tests.helpers.support import S0, B, Model, assert_local, counted, parameter

A = counted(8, 4)


# Async generators


def test_an_async_generator_function(P):
    @global_scope(P, S0)
    async def build(count):
        """Its words."""
        for _ in range(count):
            await asyncio.sleep(0)
            yield now()

    async def main():
        found = [now()]
        async for one in build(2):
            found += [one, now()]
        return [*found, now()]

    assert inspect.isasyncgenfunction(build)
    assert (build.__name__, build.__doc__) == ("build", "Its words.")
    assert asyncio.run(main()) == [None, S0, None, S0, None, None]


def test_async_generators_interleaved_in_tasks(P):
    @global_scope(P, S0)
    async def split():
        for _ in range(3):
            yield now()
            await asyncio.sleep(0)

    @global_scope(P, B)
    async def broadcast():
        for _ in range(3):
            await asyncio.sleep(0)
            yield now()

    async def consume(generator):
        found = []
        async for one in generator:
            found += [one, now()]
            await asyncio.sleep(0)
        return found

    async def main():
        return await asyncio.gather(consume(split()), consume(broadcast()))

    assert asyncio.run(main()) == [[S0, None] * 3, [B, None] * 3]


def test_async_send_throw_and_close(P):
    seen = []

    @global_scope(P, S0)
    async def build():
        got = yield now()
        try:
            yield got, now()
        except KeyError:
            yield "caught", now()
        try:
            yield
        finally:
            await asyncio.sleep(0)
            seen.append(now())

    async def main():
        generator = build()
        assert await generator.asend(None) == S0
        assert await generator.asend("sent") == ("sent", S0)
        assert now() is None
        assert await generator.athrow(KeyError("thrown")) == ("caught", S0)
        await generator.asend(None)
        await generator.aclose()
        assert now() is None
        with pytest.raises(StopAsyncIteration):
            await generator.asend(None)

    asyncio.run(main())
    assert seen == [S0]


def test_an_async_generator_left_by_break(P):
    seen = []

    @global_scope(P, S0)
    async def build():
        try:
            while True:
                yield now()
        finally:
            seen.append(current_scope() is not None)

    async def main():
        async for one in build():
            assert one == S0
            break
        gc.collect()
        await asyncio.sleep(0)
        return now()

    assert asyncio.run(main()) is None
    assert seen == [True]
    m = Model()
    m.new = parameter(A)
    assert_local(m.new, A)
