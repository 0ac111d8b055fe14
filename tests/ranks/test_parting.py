"""Ranks that do not go the same way through a scope are told, and none of them waits for ever.

Nor where they part in odd places; and those that hold odd tensors get the right values.
"""

from __future__ import annotations

import contextlib

import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import DivergenceError, auto_global, global_scope, local_to_global
from tests.helpers.divergence import W, assert_the_job_goes_on, assert_told, odd_one_out, tree
from tests.helpers.support import (
    S0,
    B,
    Model,
    Snapshot,
    assert_global,
    assert_local,
    counted,
    error_of,
    global_names,
    linear,
    local_names,
    parameter,
    tensor,
)

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


@pytest.mark.ranks(2, 4)
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


@pytest.mark.ranks(2, 4)
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


@pytest.mark.ranks(2, 4)
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


@pytest.mark.ranks(2, 4)
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


@pytest.mark.ranks(2, 4)
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


@pytest.mark.ranks(2, 4)
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


@pytest.mark.ranks(2, 4)
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


@pytest.mark.ranks(2, 4)
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


@pytest.mark.ranks(2, 4)
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


@pytest.mark.ranks(2, 4)
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


@pytest.mark.ranks(2, 4)
@odd_one_out
def test_an_exception_that_stays_inside_the_block_is_nobodys_business(P, rank, world, odd):
    m = Model()
    with global_scope(P, S0):
        if rank == odd % world:
            assert error_of(lambda: m.missing) is not None
        assign(m, "a")
    assert_global(m.a, W + 100 * ord("a"), P, S0)


def assert_the_next_is_right(P) -> None:
    m = Model()
    with global_scope(P, S0):
        m.new = parameter(W)
    assert_global(m.new, W, P, S0)


def test_an_exception_that_is_its_own_cause_leaves_a_scope(P):
    def action():
        with global_scope(P, B):
            try:
                raise ValueError("x")
            except ValueError as error:
                raise error from error

    assert type(error_of(action)) is ValueError
    assert_the_next_is_right(P)


@pytest.mark.ranks(2, 4)
def test_an_error_while_another_is_handled_is_told(P, rank):
    def fail():
        with global_scope(P, B):
            raise KeyError("on all ranks")

    def action():
        with global_scope(P, B):
            try:
                fail()
            except KeyError:
                if rank == 1:
                    raise RuntimeError("here alone") from None

    assert type(error_of(action)) is (RuntimeError if rank == 1 else DivergenceError)
    assert_the_next_is_right(P)


@pytest.mark.ranks(2, 4)
def test_one_rank_catches_what_the_others_are_told_of(P, rank):
    m = Model()

    def build():
        with global_scope(P, B):
            if rank == 1:
                raise ValueError("here alone")
            m.inner = parameter(W)

    def action():
        with global_scope(P, B):
            with contextlib.suppress(ValueError):
                build()
            m.outer = parameter(W)

    error = error_of(action)
    assert type(error) is DivergenceError
    assert "here alone" in str(error)
    assert_the_next_is_right(P)


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("how", ["call", "exit", "class"])
def test_a_rule_that_fails_on_one_rank(P, rank, how):
    def rule(owner, path, value):
        if rank == 1:
            raise KeyError("no such layer")
        return S0

    @auto_global(P, rule)
    class Stated(nn.Module):
        pass

    def action():
        if how == "call":
            m = Model()
            m.new = parameter(W)
            local_to_global(m, P, rule)
        elif how == "class":
            Stated().new = parameter(W)
        else:
            m = Model()
            with global_scope(P, rule, when="exit"):
                m.new = parameter(W)

    assert type(error_of(action)) is (KeyError if rank == 1 else DivergenceError)
    assert_the_next_is_right(P)


@pytest.mark.ranks(2, 4)
def test_a_buffer_that_one_rank_alone_registers_again(P, rank):
    one, other = tensor(W), tensor(W)
    m = Model()

    def action():
        with global_scope(P, B):
            m.register_buffer("a", one)
            m.register_buffer("b", one if rank == 0 else other)

    assert type(error_of(action)) is DivergenceError
    assert_the_next_is_right(P)


@pytest.mark.ranks(2, 4)
def test_shards_of_which_one_is_empty(P, rank):
    m = Model()

    def action():
        with global_scope(P, S0, source="shard"):
            m.new = parameter(counted(1 if rank == 0 else 0, 4))

    assert type(error_of(action)) is DivergenceError
    assert not hasattr(m, "new")
    assert_the_next_is_right(P)


@pytest.mark.parametrize("sbp", [B, S0], ids=str)
def test_a_view_of_what_lies_on_the_first_device(P, sbp):
    """``flow.empty`` puts it on cpu:0 on every rank."""
    base = flow.empty(1200, 600)
    base.copy_(tensor(counted(1200, 600)))
    m = Model()
    with global_scope(P, sbp):
        m.new = nn.Parameter(base[600:])
    assert_global(m.new, counted(1200, 600)[600:], P, sbp)


@pytest.mark.parametrize("sbp", [B, S0], ids=str)
@pytest.mark.parametrize("rows", [4, 5])
def test_a_bfloat16_that_lies_on_the_first_device(P, sbp, rows):
    m = Model()
    m.new = nn.Parameter(flow.empty(rows, 4).fill_(3).to(flow.bfloat16))
    local_to_global(m, P, sbp)
    assert_global(m.new, counted(rows, 4) * 0 + 3, P, sbp)


@pytest.mark.ranks(4)
def test_placements_that_overlap_in_one_tree(rank):
    """Each rank's digests are of other tensors, and equal ones do not mean equal copies."""
    kinds = []
    for ranks in ([0, 1], [1, 2], [0, 2]):
        placement = flow.placement("cpu", ranks)
        kinds.append((auto_global(placement, B)(type("Stated", (nn.Module,), {})), placement))
    values = {0: (0, 9, 1), 1: (0, 1, 9), 2: (9, 0, 1), 3: (9, 9, 9)}[rank]
    tree = nn.Sequential()
    for at, ((kind, _), value) in enumerate(zip(kinds, values)):
        part = kind()
        part._parameters["w"] = parameter(W + 100 * value)
        tree.add_module(str(at), part)
    local_to_global(tree, flow.placement("cpu", [0, 1, 2, 3]), B)
    for part, (_, placement), first in zip(tree, kinds, (0, 1, 1)):
        assert_global(part.w, W + 100 * first, placement, B)
