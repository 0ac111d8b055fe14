"""asyncio tasks: those started inside a scope inherit it, siblings do not see each other's."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars

import pytest

from autoglobal import AutoglobalError, current_scope, global_scope, local_scope
from tests.helpers.scopes import clean, now
from tests.helpers.support import S0, S1, B, counted, error_of

A = counted(8, 4)


async def steps(count: int = 2) -> list:
    found = []
    for _ in range(count):
        found.append(now())
        await asyncio.sleep(0)
    return found


def test_a_task_started_inside_inherits(P):
    async def main():
        with global_scope(P, S0) as scope:
            task = asyncio.ensure_future(steps(3))
            found = await task
            assert current_scope() is scope
        return [*found, now()], len(scope.converted)

    found, converted = asyncio.run(main())
    assert found == [S0, S0, S0, None]
    assert converted == 3


def test_the_loop_run_inside_a_scope_inherits(P):
    async def main():
        return [*await steps(), *await asyncio.gather(steps(1), steps(1))]

    with global_scope(P, S0):
        found = asyncio.run(main())
    assert found == [S0, S0, [S0], [S0]]
    assert clean()


def test_siblings_do_not_see_each_others(P):
    async def within(sbp):
        with global_scope(P, sbp):
            return await steps(3)

    async def main():
        return await asyncio.gather(within(S0), steps(3), within(B), within(S1), steps(3))

    found = asyncio.run(main())
    assert found == [[S0] * 3, [None] * 3, [B] * 3, [S1] * 3, [None] * 3]
    assert clean()


def test_siblings_inside_a_scope(P):
    async def within(sbp):
        found = await steps(1)
        with global_scope(P, sbp):
            found += await steps(2)
        return [*found, *await steps(1)]

    async def off():
        with local_scope():
            return await steps(4)

    async def main():
        with global_scope(P, B):
            found = await asyncio.gather(within(S0), off(), within(S1), steps(4))
            return [*found, now()]

    found = asyncio.run(main())
    assert found == [[B, S0, S0, B], [None] * 4, [B, S1, S1, B], [B] * 4, B]
    assert clean()


def test_scopes_of_tasks_that_close_in_any_order(P):
    """The first to open is the first to close: in one thread's list that would be an error."""

    async def within(sbp, turns):
        with global_scope(P, sbp):
            return await steps(turns)

    async def main():
        return await asyncio.gather(within(S0, 2), within(B, 3), within(S1, 1))

    assert asyncio.run(main()) == [[S0] * 2, [B] * 3, [S1]]
    assert clean()


def test_a_task_does_not_change_its_parents_scope(P):
    async def child():
        scope = global_scope(P, B)
        scope.__enter__()
        found = now()
        scope.__exit__(None, None, None)
        return found

    async def main():
        with global_scope(P, S0):
            task = asyncio.ensure_future(child())
            found = [now()]
            await asyncio.sleep(0)
            found.append(now())
            return [*found, await task]

    assert asyncio.run(main()) == [S0, S0, B]


@pytest.mark.parametrize("elsewhere", [False, True], ids=["alone", "another scope is open"])
def test_a_task_that_outlives_the_scope(P, elsewhere):
    """What has been closed is in force nowhere, also where it was inherited."""

    async def child(closed):
        found = [now()]
        await closed.wait()
        return [*found, now()]

    async def main():
        closed = asyncio.Event()
        with global_scope(P, S0):
            task = asyncio.ensure_future(child(closed))
            await asyncio.sleep(0)
        with global_scope(P, B) if elsewhere else contextlib.nullcontext():
            closed.set()
            return [await task, now()]

    assert asyncio.run(main()) == [[S0, None], B if elsewhere else None]
    assert clean()


@pytest.mark.parametrize("kind", ["global", "local"])
def test_closing_in_a_task_that_inherited_it(P, kind):
    """An error that names the scope, which stays open where it was opened."""

    async def child(scope):
        return error_of(lambda: scope.__exit__(None, None, None)), now()

    async def main():
        scope = global_scope(P, S0) if kind == "global" else local_scope()
        with global_scope(P, B):
            scope.__enter__()
            error, inside = await asyncio.ensure_future(child(scope))
            found = now()
            own = error_of(lambda: scope.__exit__(None, None, None))
            return scope, error, own, [inside, found, now()]

    scope, error, own, found = asyncio.run(main())
    assert isinstance(error, AutoglobalError)
    assert repr(scope) in str(error)
    assert own is None
    assert found == ([S0, S0, B] if kind == "global" else [None, None, B])
    assert clean()


def test_closing_in_the_parent_of_the_task_that_opened_it(P):
    async def child(scope, tried):
        scope.__enter__()
        found = [now()]
        await tried.wait()
        found.append(now())
        return found, error_of(lambda: scope.__exit__(None, None, None)), now()

    async def main():
        scope, tried = global_scope(P, S0), asyncio.Event()
        task = asyncio.ensure_future(child(scope, tried))
        await asyncio.sleep(0)
        error, found = error_of(lambda: scope.__exit__(None, None, None)), now()
        tried.set()
        return scope, error, found, await task

    scope, error, found, (inside, own, after) = asyncio.run(main())
    assert isinstance(error, AutoglobalError)
    assert repr(scope) in str(error)
    assert (found, inside, own, after) == (None, [S0, S0], None, None)
    assert clean()


def test_a_context_of_its_own(P):
    """``contextvars`` by hand: a copy taken inside has the scope while it is open."""
    with global_scope(P, S0):
        inside = contextvars.copy_context()
    with global_scope(P, B):
        assert inside.run(now) is None
        assert contextvars.Context().run(now) is None
        copied = contextvars.copy_context()
        assert copied.run(now) == B
    assert copied.run(now) is None
    assert clean()
