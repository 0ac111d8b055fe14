"""A failed assignment leaves the module and the value exactly as they were."""

from __future__ import annotations

import pytest
from oneflow import nn

from autoglobal import ConversionError, DivergenceError, global_scope
from tests.helpers.support import (
    S0,
    S1,
    Model,
    Snapshot,
    assert_global,
    assert_local,
    counted,
    linear,
    local_names,
    parameter,
    tensor,
    tensors,
)

W = counted(8, 4)


def impossible_parameter() -> nn.Parameter:
    """There is no axis 1 to split."""
    made = parameter(counted(8))
    made.grad = tensor(counted(8, start=50))
    return made


def impossible_tree() -> nn.Module:
    """Everything in it can be split along axis 1, except the very last tensor."""
    tree = nn.Sequential(linear(W), linear(W + 1))
    tree[0].weight.grad = tensor(W + 50)
    tree[0].register_buffer("seen", tensor(W + 2), persistent=False)
    tree.add_module("last", nn.Sequential(linear(W + 3, counted(8))))
    tree[1].weight.requires_grad_(False)
    return tree


def occupied(kind: str) -> nn.Module:
    """A module with entries of all kinds, in which ``new`` is of this kind, between others."""
    m = Model()
    for name in ("before", "new", "after"):
        own = kind if name == "new" else "all"
        if own == "plain":
            m.new = 3
        if own in ("parameter", "all"):
            setattr(m, f"{name}_p" if own == "all" else name, parameter(W))
        if own in ("buffer", "transient buffer", "all"):
            buffer_name = f"{name}_b" if own == "all" else name
            m.register_buffer(buffer_name, tensor(W), persistent=own != "transient buffer")
        if own in ("module", "all"):
            setattr(m, f"{name}_m" if own == "all" else name, linear(W))
        if own == "none":
            m.register_parameter("new", None)
    return m


KINDS = ["absent", "plain", "none", "parameter", "buffer", "transient buffer", "module"]


@pytest.mark.parametrize("kind", KINDS)
def test_assigning_an_impossible_parameter(P, kind):
    m, p = occupied(kind), impossible_parameter()
    before, grad = Snapshot(m), p.grad
    with global_scope(P, S1), pytest.raises(ConversionError):
        m.new = p
    before.assert_unchanged()
    assert_local(p, counted(8))
    assert p.grad is grad
    assert_local(grad, counted(8, start=50))


@pytest.mark.parametrize("kind", ["absent", "plain", "buffer", "transient buffer", "module"])
def test_assigning_an_impossible_module(P, kind):
    m, tree = occupied(kind), impossible_tree()
    before, value_before = Snapshot(m), Snapshot(tree)
    with global_scope(P, S1, buffers="sbp"), pytest.raises(ConversionError, match=r"last\.0\.bias"):
        m.new = tree
    before.assert_unchanged()
    value_before.assert_unchanged()
    assert local_names(tree) == list(tensors(tree))
    assert_local(tree[0].weight, W)
    assert_local(tree[0].seen, W + 2)


def test_assigning_an_impossible_buffer(P):
    m, t = occupied("transient buffer"), tensor(counted(8))
    before = Snapshot(m)
    with global_scope(P, S1, buffers="sbp"), pytest.raises(ConversionError):
        m.new = t
    before.assert_unchanged()
    assert_local(t, counted(8))


@pytest.mark.parametrize("kind", ["absent", "none", "parameter"])
def test_registering_an_impossible_parameter(P, kind):
    m, p = occupied(kind), impossible_parameter()
    before = Snapshot(m)
    with global_scope(P, S1), pytest.raises(ConversionError):
        m.register_parameter("new", p)
    before.assert_unchanged()
    assert_local(p, counted(8))


@pytest.mark.parametrize("kind", ["absent", "buffer", "transient buffer"])
@pytest.mark.parametrize("persistent", [True, False])
def test_registering_an_impossible_buffer(P, kind, persistent):
    m, t = occupied(kind), tensor(counted(8))
    before = Snapshot(m)
    with global_scope(P, S1, buffers="sbp"), pytest.raises(ConversionError):
        m.register_buffer("new", t, persistent)
    before.assert_unchanged()
    assert_local(t, counted(8))


@pytest.mark.parametrize("kind", ["absent", "module"])
def test_adding_an_impossible_module(P, kind):
    m, tree = occupied(kind), impossible_tree()
    before, value_before = Snapshot(m), Snapshot(tree)
    with global_scope(P, S1), pytest.raises(ConversionError):
        m.add_module("new", tree)
    before.assert_unchanged()
    value_before.assert_unchanged()


def test_a_list_whose_second_module_is_impossible_keeps_the_first(P):
    """Each entry is an assignment of its own: what was assigned before stays."""
    good, bad = linear(W), linear(W, counted(8))
    m = nn.ModuleList()
    with global_scope(P, S1), pytest.raises(ConversionError):
        m.extend([good, bad])
    assert list(m) == [good]
    assert_global(good.weight, W, P, S1)
    assert local_names(bad) == ["weight", "bias"]


def test_the_scope_goes_on_after_a_failure(P, rank):
    m, tree = Model(), impossible_tree()
    with global_scope(P, S1):
        with pytest.raises(ConversionError):
            m.new = tree
        m.new = parameter(W + 1000 * rank)
    assert_global(m.new, W, P, S1)


def test_what_failed_can_be_assigned_in_another_scope(P):
    m, tree = Model(), impossible_tree()
    with global_scope(P, S1), pytest.raises(ConversionError):
        m.new = tree
    with global_scope(P, S0):
        m.new = tree
    assert local_names(m) == []
    assert_global(m.new.last[0].bias, counted(8), P, S0)
    assert_global(m.new[0].weight.grad, W + 50, P, S0)


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("source", ["full", "shard"])
def test_ranks_that_disagree_on_the_last_tensor(P, rank, world, source):
    """All earlier tensors agree, and none of them is left converted."""
    columns = 5 if rank == world - 1 else 4
    m, tree = occupied("module"), nn.Sequential(linear(W), linear(counted(8, columns)))
    layer = linear(W)
    before, value_before = Snapshot(m), Snapshot(tree)
    with global_scope(P, S0, source=source):
        with pytest.raises(DivergenceError):
            m.new = tree
        before.assert_unchanged()
        value_before.assert_unchanged()
        m.new = layer
    assert m.new.weight.is_global


@pytest.mark.ranks(2, 4)
def test_a_failed_tree_sends_nothing(P, rank):
    """On one rank only, which would otherwise wait for the others until the time limit."""
    m, tree = Model(), impossible_tree()
    with global_scope(P, S1):
        if rank == 0:
            with pytest.raises(ConversionError):
                m.new = tree
        m.new = parameter(W)
    assert_global(m.new, W, P, S1)
