"""Ranks that do not go the same way through a scope are told, and none of them waits for ever."""

from __future__ import annotations

import pytest
from oneflow import nn

from autoglobal import DivergenceError, global_scope, local_to_global
from tests.helpers.divergence import W, assert_the_job_goes_on, assert_told, odd_one_out, tree
from tests.helpers.support import (
    S0,
    B,
    Model,
    Snapshot,
    assert_global,
    assert_local,
    error_of,
    global_names,
    linear,
    local_names,
    parameter,
)

pytestmark = pytest.mark.ranks(2, 4)
both_times = pytest.mark.parametrize("when", ["assign", "exit"])


def assign(m: nn.Module, names: str) -> None:
    """Same-shaped Parameters, whose numbers tell which is which."""
    for name in names:
        setattr(m, name, parameter(W + 100 * ord(name)))


def agreed(usual: str, other: str) -> str:
    """The assignments that the ranks have made alike before the first difference."""
    same = [one == two for one, two in zip(usual, other)]
    return usual[: same.index(False) if False in same else len(same)]


# What every other rank assigns, and what the odd one does: in another order, one less, one more.
ORDERS = [
    *[("abc", "bac"), ("abc", "acb")],
    *[("abc", "bc"), ("abc", "ac"), ("abc", "ab"), ("abc", ""), ("a", "")],
    *[("abc", "abcd"), ("abc", "xabc"), ("", "a")],
]


@odd_one_out
@both_times
@pytest.mark.parametrize(("usual", "other"), ORDERS)
def test_other_assignments_on_one_rank(P, rank, world, odd, usual, other, when):
    """Two of the same shape in another order would have their numbers swapped."""
    m, own = Model(), other if rank == odd % world else usual

    def block():
        with global_scope(P, S0, when=when):
            assign(m, own)

    error = error_of(block)
    same = agreed(usual, other)
    differing = [f"Model.{names[len(same)]}" for names in (usual, other) if len(names) > len(same)]
    assert_told(error, rank, odd % world, *differing)
    if when == "exit":
        assert local_names(m) == list(own)
    else:
        assert list(m._parameters) == list(same)
        for name in same:
            assert_global(m._parameters[name], W + 100 * ord(name), P, S0)
    assert_the_job_goes_on(P, rank)


@odd_one_out
def test_the_inner_of_two_scopes_is_left_early_on_one_rank(P, rank, world, odd):
    m = Model()
    with global_scope(P, S0):
        with pytest.raises(DivergenceError) as caught, global_scope(P, B):  # noqa: PT012
            assign(m, "a")
            if rank != odd % world:
                assign(m, "b")
        assign(m, "c")
    assert_told(caught.value, rank, odd % world, "Model.b")
    assert list(m._parameters) == ["a", "c"]
    assert_global(m.c, W + 100 * ord("c"), P, S0)
    assert_the_job_goes_on(P, rank)


@odd_one_out
def test_a_decorated_function_returns_early_on_one_rank(P, rank, world, odd):
    m = Model()

    @global_scope(P, S0)
    def build():
        assign(m, "a")
        if rank != odd % world:
            assign(m, "b")

    assert_told(error_of(build), rank, odd % world, "Model.b")
    assert list(m._parameters) == ["a"]
    assert_the_job_goes_on(P, rank)


@odd_one_out
def test_another_time_of_conversion_on_one_rank(P, rank, world, odd):
    m = Model()

    def block():
        with global_scope(P, S0, when="exit" if rank == odd % world else "assign"):
            assign(m, "a")

    assert_told(error_of(block), rank, odd % world, "Model.a")
    if rank == odd % world:
        assert_local(m.a, W + 100 * ord("a"))
    else:
        assert not m._parameters
    assert_the_job_goes_on(P, rank)


@odd_one_out
def test_another_module_is_converted_on_one_rank(P, rank, world, odd):
    m = nn.Sequential(linear(W)) if rank == odd % world else tree()
    before = Snapshot(m)
    error = error_of(lambda: local_to_global(m, P, S0))
    before.assert_unchanged()
    assert_told(error, rank, odd % world, "Sequential", "Model")
    assert_the_job_goes_on(P, rank)


# Exceptions


class Faulty(nn.Module):
    """Its constructor fails where it is told to, between two assignments or after the last."""

    def __init__(self, fails: bool, last: bool) -> None:
        super().__init__()
        self.one = parameter(W)
        if last:
            self.two = parameter(W)
        if fails:
            raise ValueError("own words")
        if not last:
            self.two = parameter(W)


@odd_one_out
@both_times
@pytest.mark.parametrize("last", [False, True], ids=["between", "last"])
def test_an_exception_in_a_constructor_on_one_rank(P, rank, world, odd, when, last):
    """The rank with the exception gets its own one, the others are told what it was."""
    m = Model()
    m.old = parameter(W)

    def block():
        with global_scope(P, S0, when=when):
            m.new = Faulty(rank == odd % world, last)

    error = error_of(block)
    if rank == odd % world:
        assert (type(error), str(error)) == (ValueError, "own words")
    else:
        assert_told(error, rank, odd % world, "ValueError", "own words")
    assert_local(m.old, W)
    if when == "assign" and last and rank != odd % world:
        assert_global(m.new.two, W, P, S0)
    else:
        assert global_names(m) == []
    assert_the_job_goes_on(P, rank)


@both_times
def test_an_exception_on_every_rank(P, rank, when):
    m = Model()

    def block():
        with global_scope(P, S0, when=when):
            assign(m, "a")
            raise ValueError(f"of rank {rank}")

    error = error_of(block)
    assert (type(error), str(error)) == (ValueError, f"of rank {rank}")
    assert m.a.is_local is (when == "exit")
    assert_the_job_goes_on(P, rank)


@odd_one_out
@both_times
def test_an_exception_on_all_ranks_but_one(P, rank, world, odd, when):
    m = Model()

    def block():
        with global_scope(P, S0, when=when):
            assign(m, "a")
            if rank != odd % world:
                raise ValueError(f"of rank {rank}")
            assign(m, "b")

    error = error_of(block)
    if rank == odd % world:
        assert_told(error, rank, rank, "ValueError", "of rank")
    else:
        assert (type(error), str(error)) == (ValueError, f"of rank {rank}")
    assert_the_job_goes_on(P, rank)


@odd_one_out
def test_an_exception_that_leaves_two_scopes_on_one_rank(P, rank, world, odd):
    m = Model()

    def block():
        with global_scope(P, S0):
            assign(m, "a")
            with global_scope(P, B, when="exit"):
                assign(m, "b")
                if rank == odd % world:
                    raise ValueError("own words")

    error = error_of(block)
    if rank == odd % world:
        assert type(error) is ValueError
    else:
        assert_told(error, rank, odd % world, "ValueError", "own words")
    assert_global(m.a, W + 100 * ord("a"), P, S0)
    assert_local(m.b, W + 100 * ord("b"))
    assert_the_job_goes_on(P, rank)


@odd_one_out
def test_an_exception_that_leaves_the_inner_scope_only(P, rank, world, odd):
    m = Model()
    with global_scope(P, S0):
        with pytest.raises((ValueError, DivergenceError)), global_scope(P, B):  # noqa: PT012
            if rank == odd % world:
                raise ValueError("own words")
            assign(m, "a")
        assign(m, "b")
    assert list(m._parameters) == ["b"]
    assert_global(m.b, W + 100 * ord("b"), P, S0)
    assert_the_job_goes_on(P, rank)


@odd_one_out
def test_an_exception_that_stays_inside_the_block_is_nobodys_business(P, rank, world, odd):
    m = Model()
    with global_scope(P, S0):
        if rank == odd % world:
            assert error_of(lambda: m.missing) is not None
        assign(m, "a")
    assert_global(m.a, W + 100 * ord("a"), P, S0)
