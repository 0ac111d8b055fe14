"""The three ways with buffers, and why broadcast is the default: BatchNorm's statistics."""

from __future__ import annotations

import numpy as np
import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import global_scope, local_to_global
from autoglobal.conversion import apply
from tests.helpers.support import (
    S0,
    S1,
    B,
    Model,
    assert_global,
    assert_local,
    counted,
    global_names,
    linear,
    local_names,
    parameter,
    tensor,
)

A = counted(8, 4)


@pytest.mark.parametrize("sbp", [B, S0, S1], ids=str)
def test_buffers_are_broadcast_by_default(P, sbp):
    m = Model()
    with global_scope(P, sbp):
        m.register_buffer("seen", tensor(A))
    assert_global(m.seen, A, P, B)


def norm() -> nn.Module:
    return nn.Sequential(linear(A), nn.BatchNorm1d(8))


NONE_FOR_THE_NORM = {
    "a path": {"1.*": None, "*": B},
    "a module": {"1": None, "*": B},
    "a class": {"BatchNorm1d.*": None, "*": S0},
    "what is left": {"0.*": B, "*": None},
    "a function": lambda owner, path, value: None if path.startswith("1") else B,
}


@pytest.mark.parametrize("rule", NONE_FOR_THE_NORM)
@pytest.mark.parametrize("buffers", ["broadcast", "sbp", False])
def test_a_rule_that_says_none_leaves_a_buffer_local_too(P, rule, buffers):
    """With global statistics and local weights the layer could not run."""
    m = norm()
    local_to_global(m, P, NONE_FOR_THE_NORM[rule], buffers=buffers)
    names = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    assert sorted(local_names(m)) == sorted(f"1.{name}" for name in names)
    assert m[1](tensor(counted(4, 8))).is_local


@pytest.mark.parametrize("when", ["assign", "exit"])
def test_a_rule_that_says_none_in_a_scope(P, when):
    holder, m = Model(), norm()
    with global_scope(P, {"m.1.*": None, "*": B}, when=when, unused="error") as scope:
        holder.m = m
    assert global_names(m) == ["0.weight"]
    left = {one.path: one.reason for one in scope.left}
    assert left["m.1.running_mean"] == "the rule 'm.1.*' of sbp says None"


def test_a_rule_that_says_none_for_buffers_alone_is_used(P):
    m = norm()
    local_to_global(m, P, {"*.running_*": None, "*": B}, unused="error")
    assert local_names(m) == ["1.running_mean", "1.running_var"]


@pytest.mark.parametrize("rules", [{"second.*": None, "*": B}, {"first.*": B, "*": None}])
def test_a_buffer_with_two_names_goes_by_the_rule_that_is_for_it(P, rules):
    """As a Parameter does: the catch-all counts only where no other rule matches."""
    m = Model()
    m.first, m.second = Model(), Model()
    m.first.register_buffer("seen", tensor(A))
    m.second.register_buffer("seen", m.first.seen)
    m.first.weight = parameter(A)
    m.second.weight = m.first.weight
    local_to_global(m, P, rules)
    assert m.first.seen.is_global == m.first.weight.is_global == ("first.*" in rules)
    assert m.first.seen is m.second.seen


def test_broadcast_buffers_need_not_be_splittable(P):
    m = Model()
    with global_scope(P, S1, buffers="broadcast"):
        m.register_buffer("seen", tensor(counted(1)))
    assert_global(m.seen, counted(1), P, B)


def test_broadcast_buffers_on_two_dimensions(world):
    placement = flow.placement("cpu", [list(range(world))])
    m = Model()
    with global_scope(placement, (B, S0)):
        m.register_buffer("seen", tensor(A))
    assert_global(m.seen, A, placement, (B, B))


@pytest.mark.parametrize("sbp", [B, S0, S1], ids=str)
def test_buffers_by_the_scopes_sbp(P, sbp):
    m = Model()
    with global_scope(P, sbp, buffers="sbp"):
        m.register_buffer("seen", tensor(A))
        m.seen = tensor(A + 1)
    assert_global(m.seen, A + 1, P, sbp)


def test_buffers_by_the_scopes_sbp_as_shares(P, rank, world):
    m = Model()
    with global_scope(P, S0, buffers="sbp", source="shard"):
        m.register_buffer("seen", tensor(counted(8, 3, start=24 * rank)))
    assert_global(m.seen, counted(8 * world, 3), P, S0)


def test_buffers_false_leaves_the_same_local_object(P):
    m, t = Model(), tensor(A)
    with global_scope(P, S0, buffers=False) as scope:
        m.register_buffer("seen", t)
    assert m.seen is t
    assert_local(m.seen, A)
    assert scope.converted == []


def test_buffers_false_leaves_a_buffer_that_is_assigned_again(P):
    m, t = Model(), tensor(A)
    with global_scope(P, S0, buffers=False):
        m.register_buffer("seen", None)
        m.seen = t
    assert m.seen is t
    assert_local(m.seen, A)


@pytest.mark.ranks(2, 4)
def test_buffers_false_tells_the_other_ranks_nothing(P, rank):
    m = Model()
    with global_scope(P, S0, buffers=False):
        if rank == 0:
            m.register_buffer("seen", tensor(A))
        m.new = parameter(A)
    assert_global(m.new, A, P, S0)


def test_buffers_false_still_converts_parameters(P):
    with global_scope(P, S0, buffers=False):
        m = nn.BatchNorm1d(8)
    assert local_names(m) == ["running_mean", "running_var", "num_batches_tracked"]
    assert m.weight.sbp == (S0,)


@pytest.mark.parametrize("where", ["inside", "outside"])
@pytest.mark.parametrize("sbp", [B, S0], ids=str)
def test_batch_norm_statistics_after_training_steps(P, sbp, where):
    """Split statistics would never be updated, without a word."""
    outside = nn.BatchNorm1d(8)
    local = nn.BatchNorm1d(8)
    with global_scope(P, sbp):
        m = Model()
        m.norm = outside if where == "outside" else nn.BatchNorm1d(8)
    for step in range(2):
        x = np.sin(counted(6, 8, start=100 * step)) * counted(8, start=1)
        expected = local(tensor(x))
        found = m.norm(tensor(x).to_global(P, B))
        np.testing.assert_allclose(found.numpy(), expected.numpy(), atol=1e-5)
    for name in ("running_mean", "running_var"):
        expected = getattr(local, name).numpy()
        own = getattr(m.norm, name).to_local().numpy()
        np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-6)
        assert np.abs(own - getattr(nn.BatchNorm1d(8), name).numpy()).min() > 1e-3, "not updated"
    assert m.norm.num_batches_tracked.to_local().item() == 2
    assert m.norm.weight.sbp == (sbp,)


@pytest.mark.parametrize("sbp", [B, S0], ids=str)
def test_batch_norm_evaluates_with_the_statistics_it_has_learnt(P, sbp):
    local = nn.BatchNorm1d(8)
    with global_scope(P, sbp):
        m = nn.BatchNorm1d(8)
    x = np.sin(counted(6, 8)) * counted(8, start=1)
    local(tensor(x))
    m(tensor(x).to_global(P, B))
    local.eval()
    m.eval()
    expected = local(tensor(x)).numpy()
    np.testing.assert_allclose(m(tensor(x).to_global(P, B)).numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("sbp", [B, S0], ids=str)
def test_batch_norm_takes_a_training_step(P, sbp):
    """Weight and bias after one step of SGD, equal to the local layer's."""
    local = nn.BatchNorm1d(8)
    with global_scope(P, sbp):
        m = nn.BatchNorm1d(8)
    x, factor = np.sin(counted(6, 8)), np.cos(counted(6, 8))
    (local(tensor(x)) * tensor(factor)).sum().backward()
    flow.optim.SGD(local.parameters(), lr=0.1).step()
    (m(tensor(x).to_global(P, B)) * tensor(factor).to_global(P, B)).sum().backward()
    flow.optim.SGD(m.parameters(), lr=0.1).step()
    for name in ("weight", "bias"):
        expected = getattr(local, name).detach().numpy()
        found = getattr(m, name)
        assert found.sbp == (sbp,)
        np.testing.assert_allclose(found.detach().numpy(), expected, atol=1e-5)
        assert np.abs(expected - (name == "weight")).max() > 1e-3


@pytest.mark.ranks(1)
def test_many_buffers_are_looked_through_once():
    """Calls are counted, not seconds: what is remembered of each buffer was compared with each."""
    looked = []
    find = apply._held_by_none_but

    def counting(pairs):
        looked.append(len(pairs))
        return find(pairs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apply, "_held_by_none_but", counting)
        m = Model()
        for index in range(1000):
            m.register_buffer(f"b{index}", tensor(counted(2)))
        local_to_global(m, flow.placement("cpu", [0]), B)
    assert global_names(m) == [f"b{index}" for index in range(1000)]
    assert sum(looked) < 10 * 1000
