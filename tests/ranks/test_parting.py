"""Ranks that part in odd places are told, and those that hold odd tensors get the right values."""

from __future__ import annotations

import contextlib

import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import DivergenceError, auto_global, global_scope, local_to_global
from tests.helpers.support import S0, B, Model, assert_global, counted, error_of, parameter, tensor

W = counted(8, 4)


def assert_the_job_goes_on(P) -> None:
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
    assert_the_job_goes_on(P)


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
    assert_the_job_goes_on(P)


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
    assert_the_job_goes_on(P)


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
    assert_the_job_goes_on(P)


@pytest.mark.ranks(2, 4)
def test_a_buffer_that_one_rank_alone_registers_again(P, rank):
    one, other = tensor(W), tensor(W)
    m = Model()

    def action():
        with global_scope(P, B):
            m.register_buffer("a", one)
            m.register_buffer("b", one if rank == 0 else other)

    assert type(error_of(action)) is DivergenceError
    assert_the_job_goes_on(P)


@pytest.mark.ranks(2, 4)
def test_shards_of_which_one_is_empty(P, rank):
    m = Model()

    def action():
        with global_scope(P, S0, source="shard"):
            m.new = parameter(counted(1 if rank == 0 else 0, 4))

    assert type(error_of(action)) is DivergenceError
    assert not hasattr(m, "new")
    assert_the_job_goes_on(P)


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
