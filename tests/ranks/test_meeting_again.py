"""Ranks that have parted meet again one scope further out, and until then none waits for another.

Who is out of step with the others is a fact about the process, not about one scope.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time

import numpy as np
import pytest
from oneflow import nn

from autoglobal import DivergenceError, auto_global, global_scope, local_scope, local_to_global
from tests.helpers.divergence import W, assert_the_job_goes_on, assert_told, odd_one_out, tree
from tests.helpers.support import (
    S0,
    B,
    Model,
    Snapshot,
    assert_global,
    error_of,
    global_names,
    linear,
    local_names,
    parameter,
)

pytestmark = pytest.mark.ranks(2, 4)


class OwnError(Exception):
    """What one rank alone raises."""


def decorated(P):
    @auto_global(P, B)
    class Fused(nn.Module):
        def __init__(self, fails: bool) -> None:
            super().__init__()
            self.one = parameter(W)
            if fails:
                raise OwnError("no kernel here")
            self.two = parameter(W)
            self.three = parameter(W)

    return Fused


def in_a_call(P):
    def build(fails: bool) -> nn.Module:
        with local_scope():
            first, second = linear(W), tree()
        local_to_global(first, P, B)
        if fails:
            raise OwnError("no kernel here")
        return local_to_global(second, P, B)

    return build


def in_a_scope(P):
    def build(fails: bool) -> nn.Module:
        built = Model()
        with global_scope(P, B), local_scope(), global_scope(P, S0):
            built.one = parameter(W)
            if fails:
                raise OwnError("no kernel here")
            built.two = parameter(W)
        return built

    return build


each_way_inside = pytest.mark.parametrize("inside", [decorated, in_a_call, in_a_scope])


@odd_one_out
@each_way_inside
@pytest.mark.parametrize("when", ["assign", "exit"])
@pytest.mark.parametrize("depth", [1, 3])
def test_an_exception_on_one_rank_leaves_nested_scopes(P, rank, world, odd, inside, when, depth):
    m, build = Model(), inside(P)

    def nested(left: int) -> None:
        if left == 0:
            m.new = build(rank == odd % world)
            return
        with global_scope(P, B, when=when if left == depth else "assign"):
            nested(left - 1)

    error = error_of(lambda: nested(depth))
    if rank == odd % world:
        assert type(error) is OwnError
    else:
        assert_told(error, rank, odd % world, "OwnError", "no kernel here")
    assert global_names(m) == []
    assert_the_job_goes_on(P, rank)


@odd_one_out
@each_way_inside
def test_one_rank_falls_back_and_the_others_do_too(P, rank, world, odd, inside):
    """``except Exception`` gets the rank's own error, and on the others that they were told.

    They fall back together where they meet again in the same scope, else outside of it.
    """
    m, build, caught = Model(), inside(P), []

    def block() -> None:
        with global_scope(P, B):
            try:
                m.fused = build(rank == odd % world)
            except Exception as error:
                caught.append(error)
                m.fallback = parameter(W)

    with global_scope(P, B):
        error = error_of(block)
        assert [type(one) for one in caught] == [
            OwnError if rank == odd % world else DivergenceError
        ]
        if inside is in_a_scope:
            assert error is None
            assert_global(m.fallback, W, P, B)
        else:
            assert type(error) is DivergenceError
            assert global_names(m) == []
        m.after = parameter(W)
    assert_global(m.after, W, P, B)
    assert_the_job_goes_on(P, rank)


@odd_one_out
@each_way_inside
def test_one_rank_alone_falls_back(P, rank, world, odd, inside):
    m, build = Model(), inside(P)

    def block() -> None:
        with global_scope(P, B):
            try:
                m.fused = build(rank == odd % world)
            except OwnError:
                m.fallback = parameter(W)
            m.next = parameter(W)

    error = error_of(block)
    assert type(error) is DivergenceError
    assert_the_job_goes_on(P, rank)


@odd_one_out
def test_what_is_caught_in_a_scope_that_another_rank_has_left_raises_again_at_once(
    P, rank, world, odd
):
    m, errors = Model(), []

    def block() -> None:
        with global_scope(P, B):
            if rank == odd % world:
                raise OwnError("here alone")
            for name in "abc":
                errors.append(error_of(lambda name=name: setattr(m, name, parameter(W))))

    error = error_of(block)
    if rank == odd % world:
        assert type(error) is OwnError
    else:
        assert_told(errors[0], rank, odd % world, "OwnError", "here alone")
        for one in (*errors[1:], error):
            assert_told(one, rank, odd % world, "has left the scope")
        assert "Model.b" in str(errors[1])
        assert list(m._parameters) == []
    assert_the_job_goes_on(P, rank)


@odd_one_out
def test_one_rank_opens_a_scope_more(P, rank, world, odd):
    m = Model()

    def block() -> None:
        with global_scope(P, B):
            if rank == odd % world:
                with global_scope(P, B):
                    m.new = parameter(W)
            else:
                m.new = parameter(W)

    assert_told(error_of(block), rank, odd % world, "Model.new", "in 2 scopes and calls")
    assert global_names(m) == []
    assert_the_job_goes_on(P, rank)


@odd_one_out
def test_one_rank_skips_a_scope(P, rank, world, odd):
    m = Model()

    def block() -> None:
        with global_scope(P, B):
            if rank != odd % world:
                with global_scope(P, B, when="exit"):
                    m.new = parameter(W)

    assert type(error_of(block)) is DivergenceError
    assert global_names(m) == []
    assert_the_job_goes_on(P, rank)


def parting_generator(P, m: nn.Module, fails: bool):
    """One rank leaves it by an exception, and the others catch what they are told."""

    @global_scope(P, B)
    def generate():
        m.first = parameter(W)
        yield
        if fails:
            raise OwnError("here alone")
        assert type(error_of(lambda: setattr(m, "second", parameter(W)))) is DivergenceError
        yield
        assert_told(error_of(lambda: setattr(m, "third", parameter(W))), *told, "has left")
        yield

    told: list[int] = []
    return generate(), told


@odd_one_out
@pytest.mark.parametrize("opened", ["before", "after"])
def test_a_generator_that_one_rank_has_left_is_not_the_scope_of_its_caller(
    P, rank, world, odd, opened
):
    """Both are one scope deep; while the generator is suspended only the caller's is in force."""
    m, own = Model(), Model()
    fails = rank == odd % world
    steps, told = parting_generator(P, m, fails)
    told += [rank, odd % world]

    def go_on() -> None:
        if fails:
            with pytest.raises(OwnError):
                next(steps)
        else:
            next(steps)

    next(steps)
    if opened == "after":
        go_on()
    with global_scope(P, B):
        own.before = parameter(W)
        if opened == "before":
            go_on()
        own.between = parameter(W)
        if not fails:
            next(steps)  # in its own scope it is told again
        own.after = parameter(W)
    for name in ("before", "between", "after"):
        assert_global(getattr(own, name), W, P, B)
    assert list(m._parameters) == ["first"]
    steps.close()
    assert_the_job_goes_on(P, rank)


@odd_one_out
def test_a_task_that_one_rank_has_left_is_not_another_task(P, rank, world, odd):
    m, other = Model(), Model()

    async def parts() -> None:
        with global_scope(P, B):
            m.first = parameter(W)
            await asyncio.sleep(0)
            if rank == odd % world:
                raise OwnError("here alone")
            assert type(error_of(lambda: setattr(m, "second", parameter(W)))) is DivergenceError
            for _ in range(3):
                await asyncio.sleep(0)

    async def goes_on() -> None:
        for name in "abcd":
            with global_scope(P, B):
                setattr(other, name, parameter(W))
                await asyncio.sleep(0)

    async def both() -> list:
        return await asyncio.gather(parts(), goes_on(), return_exceptions=True)

    error, nothing = asyncio.run(both())
    assert type(error) is (OwnError if rank == odd % world else DivergenceError)
    assert nothing is None
    for name in "abcd":
        assert_global(getattr(other, name), W, P, B)
    assert_the_job_goes_on(P, rank)


class Late(Exception):
    """What a program's own time limit raises."""


@odd_one_out
@pytest.mark.parametrize("what", ["assign", "exit", "call", "end"])
def test_the_programs_own_time_limit_ends_a_wait(P, rank, world, odd, what):
    """Its handler runs once what the ranks have agreed on is done, on this rank too."""

    def too_late(*_: object) -> None:
        raise Late

    m = Model()
    m.old = tree()

    def act() -> None:
        if rank == odd % world:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
        else:
            time.sleep(0.6)  # so that the odd rank waits when its limit is over
        if what == "call":
            local_to_global(m.old, P, B)
        elif what == "assign":
            with global_scope(P, B):
                m.new = parameter(W)
        elif what == "exit":
            with global_scope(P, B, when="exit"):
                m.new = parameter(W)
        else:
            with global_scope(P, B):
                pass

    before = signal.signal(signal.SIGALRM, too_late)
    try:
        error = error_of(act)
    finally:
        signal.signal(signal.SIGALRM, before)
    late = rank == odd % world
    if what != "assign":
        assert type(error) is (Late if late else type(None))
    else:  # at the scope's end the others are told that one has left
        assert type(error) is (Late if late else DivergenceError)
        assert late or "Late" in str(error)
    if what in ("assign", "exit"):
        assert_global(m.new, W, P, B)
    assert (local_names(m.old) == []) is (what == "call")
    assert_the_job_goes_on(P, rank)


class Unwilling(nn.Parameter):
    """Raises where it is converted, which no plan can see."""

    rank = ""

    def to_global(self, *_: object, **__: object) -> None:
        raise OwnError(f"out of order{self.rank}")


@odd_one_out
def test_what_fails_on_one_rank_after_it_was_agreed_on_is_told_with_the_next(P, rank, world, odd):
    m, failing = Model(), rank == odd % world
    p = parameter(W, requires_grad=False)
    if failing:
        p = Unwilling(p, requires_grad=False)
    with global_scope(P, S0, source="shard"):
        before = Snapshot(m)
        error = error_of(lambda: setattr(m, "new", p))
        if failing:
            assert type(error) is OwnError
            before.assert_unchanged()
            assert p.is_local
        else:
            assert error is None
        error = error_of(lambda: setattr(m, "next", parameter(W)))
        assert_told(error, rank, odd % world, "Model.new", "OwnError", "out of order")
        m.third = parameter(W)
    assert_global(m.third, np.concatenate([W] * world), P, S0)
    assert_the_job_goes_on(P, rank)


@odd_one_out
def test_a_signal_as_the_end_of_a_scope_begins_is_told(P, rank, world, odd):
    """By then the scope has no block any more that its exception could leave."""

    def too_late(*_: object) -> None:
        raise Late

    def at_the_end(frame, event, _) -> None:
        if event == "call" and frame.f_code.co_name == "_own_frame":
            sys.setprofile(None)
            signal.raise_signal(signal.SIGALRM)

    m = Model()

    def act() -> None:
        with global_scope(P, B):
            m.new = parameter(W)
            if rank == odd % world:
                sys.setprofile(at_the_end)

    before = signal.signal(signal.SIGALRM, too_late)
    try:
        error = error_of(act)
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGALRM, before)
    assert type(error) is (Late if rank == odd % world else DivergenceError)
    assert_global(m.new, W, P, B)
    assert_the_job_goes_on(P, rank)


def test_what_fails_alike_on_every_rank_is_no_difference(P, rank):
    m = Model()
    with global_scope(P, S0, source="shard"):
        p = Unwilling(parameter(W, requires_grad=False), requires_grad=False)
        p.rank = rank  # in the text of its error, which may differ
        assert type(error_of(lambda: setattr(m, "new", p))) is OwnError
        m.next = parameter(W)
    assert m.next.is_global
    assert_the_job_goes_on(P, rank)
