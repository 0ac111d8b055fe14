"""What happens to what is global already: ``existing``."""

from __future__ import annotations

import pytest
from oneflow import nn

from autoglobal import ConversionError, global_scope, local_to_global
from tests.helpers.support import (
    S0,
    S1,
    B,
    Model,
    Snapshot,
    assert_global,
    assert_local,
    counted,
    linear,
    parameter,
    tensor,
)
from tests.helpers.trees import globally, mixed

W = counted(8, 4)
HOW = pytest.mark.parametrize("how", ["call", "scope"])


def convert(how: str, tree: nn.Module, placement, sbp, **options) -> None:
    """The whole tree, by a call or by an assignment."""
    if how == "call":
        local_to_global(tree, placement, sbp, **options)
    else:
        m = Model()
        with global_scope(placement, sbp, **options):
            m.sub = tree


@HOW
def test_keep_is_the_default(P, how):
    """Oneflow-Inc/oneflow#8869: "convert what is local and skip the rest"."""
    tree = mixed(P)
    old = tree.old
    convert(how, tree, P, S0)
    assert tree.old is old
    assert_global(old, counted(8, 4, start=500), P, B)
    assert_global(tree.new, W, P, S0)


# existing="error"


@HOW
def test_error_names_every_global_tensor_and_changes_nothing(P, how):
    """Oneflow-Inc/oneflow#8869: a strict way for those who expect none."""
    tree = mixed(P)
    tree.sub.other = globally(W, P, S1)
    tree.sub.register_buffer("mask", tensor(W).to_global(P, B))
    before = Snapshot(tree)
    with pytest.raises(ConversionError) as caught:
        convert(how, tree, P, S0, existing="error")
    message = str(caught.value)
    for path in ("old", "sub.other", "sub.mask"):
        assert path in message
    assert "lin.weight" not in message
    assert "existing" in message
    before.assert_unchanged()
    assert_local(tree.new, W)


@HOW
def test_error_takes_a_tree_that_is_local(P, how):
    tree = nn.Sequential(linear(W), linear(W + 1))
    tree[1].weight = tree[0].weight
    convert(how, tree, P, S0, existing="error")
    assert_global(tree[0].weight, W, P, S0)


def test_error_where_a_global_parameter_is_assigned(P):
    m, p = Model(), globally(W, P, B)
    with global_scope(P, S0, existing="error"):
        with pytest.raises(ConversionError, match=r"Model\.new"):
            m.new = p
        assert not hasattr(m, "new")
        m.other = parameter(W)
    assert p.sbp == (B,)
    assert_global(m.other, W, P, S0)


def test_error_does_not_count_what_this_scope_made_global(P):
    with global_scope(P, S0, existing="error"):
        m = Model()
        m.sub = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
        m.again = m.sub[0]
        m.tied = m.sub[0].weight
        m.tied = m.tied
        m.register_buffer("seen", tensor(W))
        m.register_buffer("seen_too", m.seen)
    assert m.tied is m.again.weight
    assert m.tied.sbp == (S0,)


def test_error_counts_what_an_earlier_scope_made_global(P):
    m = Model()
    with global_scope(P, S0):
        m.first = parameter(W)
    with (
        global_scope(P, S0, existing="error"),
        pytest.raises(ConversionError, match=r"Model\.second"),
    ):
        m.second = m.first


def test_error_does_not_look_at_what_the_module_held_before(P):
    """Oneflow-Inc/oneflow#8869: a global model that is extended is no mistake."""
    m = mixed(P)
    with global_scope(P, S0, existing="error"):
        m.extra = parameter(W)
    assert_global(m.extra, W, P, S0)


@pytest.mark.ranks(2, 4)
@HOW
def test_error_sends_nothing(P, rank, how):
    """With ``check=False``, on one rank only: the others wait for nothing."""
    tree, layer = mixed(P), linear(W)
    if rank == 0:
        with pytest.raises(ConversionError):
            convert(how, tree, P, S0, existing="error", check=False)
    assert_global(local_to_global(layer, P, S0).weight, W, P, S0)


# existing="convert"


@HOW
@pytest.mark.parametrize(("before", "after"), [(B, S0), (S0, B), (S1, S0), (B, B)], ids=str)
def test_convert_brings_global_ones_to_this_spec(P, how, before, after):
    tree = mixed(P)
    tree.old = globally(W + 7, P, before)
    tree.old.grad = tensor(W + 9).to_global(P, B).to_global(P, before)
    tree.sub.register_buffer("mask", tensor(W).to_global(P, B).to_global(P, before))
    convert(how, tree, P, after, existing="convert")
    assert_global(tree.old, W + 7, P, after)
    assert_global(tree.old.grad, W + 9, P, after)
    assert_global(tree.sub.mask, W, P, B)
    assert_global(tree.new, W, P, after)


def test_convert_keeps_ties_and_flags_and_the_objects(P):
    tree = nn.Sequential(linear(W), linear(W))
    tree.to_global(P, B)
    tree[1].weight = tree[0].weight
    tree[0].weight.requires_grad_(False)
    weight = tree[0].weight
    local_to_global(tree, P, S0, existing="convert")
    assert tree[0].weight is weight
    assert tree[1].weight is weight
    assert weight.requires_grad is False
    assert_global(weight, W, P, S0)


def test_convert_keeps_the_logical_shape_of_global_ones_among_shares(P, rank, world):
    """A global tensor is whole already, also where the local ones are parts."""
    tree = Model()
    tree.old, tree.new = globally(W, P, B), parameter(counted(4, 4, start=16 * rank))
    local_to_global(tree, P, S0, existing="convert", source="shard")
    assert_global(tree.old, W, P, S0)
    assert_global(tree.new, counted(4 * world, 4), P, S0)


def test_convert_by_rules(P):
    tree = mixed(P)
    local_to_global(tree, P, {"old": S1, "*weight": S0, "*": B}, existing="convert")
    assert_global(tree.old, counted(8, 4, start=500), P, S1)
    assert_global(tree.sub.lin.weight, counted(8, 4, start=300), P, S0)


def test_convert_checks_global_ones_before_anything_changes(P):
    """The last tensor, global, has no axis 1."""
    tree = Model()
    tree.new, tree.old = parameter(W), globally(counted(8), P, B)
    before = Snapshot(tree)
    with pytest.raises(ConversionError, match=r"Model\.old"):
        local_to_global(tree, P, S1, existing="convert")
    before.assert_unchanged()
    assert_local(tree.new, W)


@pytest.mark.parametrize("when", ["assign", "exit"])
def test_an_average_that_is_updated_is_no_find(P, when):
    m = Model()
    m.register_buffer("average", tensor(W).to_global(P, B))
    with global_scope(P, B, existing="error", when=when):
        m.average = m.average * 2
    assert_global(m.average, W * 2, P, B)
