"""``@global_scope(...)`` on generator functions, async ones too: not in force while suspended."""

from __future__ import annotations

import asyncio
import gc
import inspect

import pytest

from autoglobal import current_scope, global_scope
from tests.helpers.scopes import now
from tests.helpers.support import S0, S1, B, Model, assert_local, counted, parameter

A = counted(8, 4)


def test_in_force_while_it_runs_and_not_while_it_is_suspended(P):
    @global_scope(P, S0)
    def build(count):
        """Its words."""
        for _ in range(count):
            yield now()

    assert inspect.isgeneratorfunction(build)
    assert (build.__name__, build.__doc__) == ("build", "Its words.")
    generator = build(2)
    found = [now()]
    for one in generator:
        found += [one, now()]
    assert found == [None, S0, None, S0, None]
    assert now() is None


def test_the_scope_of_who_runs_it_stays_in_force_there(P):
    @global_scope(P, S0)
    def build():
        yield now()
        yield now()

    with global_scope(P, B):
        found = [(one, now()) for one in build()]
    assert found == [(S0, B), (S0, B)]


def test_started_in_one_scope_and_ended_outside(P):
    @global_scope(P, S0)
    def build():
        yield now()
        yield now()

    generator = build()
    with global_scope(P, B):
        assert next(generator) == S0
        assert now() == B
    assert next(generator) == S0
    assert now() is None
    assert list(generator) == []


def test_interleaved(P):
    @global_scope(P, S0)
    def split():
        while True:
            yield now()

    @global_scope(P, B)
    def broadcast():
        while True:
            yield now()

    a, b, c = split(), broadcast(), split()
    found = [next(one) for one in (a, b, a, c, b, a, c)]
    assert found == [S0, B, S0, S0, B, S0, S0]
    assert now() is None
    a.close()  # first in, first out: no order has to be kept
    assert next(b) == B
    b.close()
    assert next(c) == S0
    c.close()


def test_one_scope_for_the_whole_life_of_a_generator(P):
    @global_scope(P, S0)
    def build():
        for _ in range(3):
            now()
            yield current_scope()

    first, second = list(build()), list(build())
    assert len({id(scope) for scope in first}) == 1
    assert first[0] is not second[0]
    assert len(first[0].converted) == 3


def test_send_throw_and_return(P):
    @global_scope(P, S0)
    def build():
        got = yield now()
        try:
            yield got, now()
        except KeyError as error:
            yield error.args, now()
        return "end"

    def delegate():
        results.append((yield from build()))

    results = []
    generator = delegate()
    assert next(generator) == S0
    assert generator.send("sent") == ("sent", S0)
    assert now() is None
    assert generator.throw(KeyError("thrown")) == (("thrown",), S0)
    assert list(generator) == []
    assert results == ["end"]
    assert now() is None


def test_closed_early(P):
    seen = []

    @global_scope(P, S0)
    def build():
        try:
            yield now()
            yield "never"
        finally:
            seen.append(now())

    generator = build()
    assert next(generator) == S0
    with global_scope(P, B):
        generator.close()
        assert now() == B
    assert seen == [S0]
    assert now() is None
    assert list(generator) == []


def test_dropped_while_suspended(P):
    seen = []

    @global_scope(P, S0)
    def build():
        try:
            yield
        finally:
            seen.append(current_scope() is not None)

    generator = build()
    next(generator)
    with global_scope(P, B):
        del generator
        gc.collect()
        assert now() == B
    assert seen == [True]
    assert now() is None


def test_never_started(P):
    @global_scope(P, S0)
    def build():
        yield now()

    generator = build()
    assert now() is None
    generator.close()
    assert now() is None


def test_thrown_into_and_not_caught(P):
    @global_scope(P, S0)
    def build():
        yield now()

    generator = build()
    next(generator)
    with pytest.raises(ZeroDivisionError, match="mine"):
        generator.throw(ZeroDivisionError("mine"))
    assert now() is None


def test_an_exception_of_its_own(P):
    @global_scope(P, S0)
    def build():
        yield now()
        raise ZeroDivisionError("mine")

    generator = build()
    next(generator)
    with pytest.raises(ZeroDivisionError, match="mine"):
        next(generator)
    assert now() is None


def test_recursive_generators(P):
    @global_scope(P, S0)
    def split(depth):
        yield now()
        if depth:
            yield from broadcast(depth - 1)
        yield now()

    @global_scope(P, B)
    def broadcast(depth):
        yield now()
        if depth:
            yield from split(depth - 1)
        yield now()

    found = []
    for one in split(2):
        found.append(one)
        assert now() is None
    assert found == [S0, B, S0, S0, B, S0]


def test_a_scope_opened_inside_goes_to_sleep_with_it(P):
    @global_scope(P, S0)
    def build():
        with global_scope(P, S1):
            yield now()
            yield now()
        yield now()

    found = []
    for one in build():
        found += [one, now()]
    assert found == [S1, None, S1, None, S0, None]


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
