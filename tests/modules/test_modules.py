"""Whole modules that were built outside, and what is shared in them and between them."""

from __future__ import annotations

import gc
import weakref

import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import describe, global_scope, local_scope, local_to_global
from autoglobal.conversion import apply
from tests.helpers.support import (
    S0,
    B,
    Model,
    assert_global,
    assert_local,
    counted,
    linear,
    local_names,
    parameter,
    tensor,
)

W = counted(8, 4)
BIAS = counted(8, start=100)


def test_a_module_built_outside_is_converted_as_it_is_assigned(P):
    m, layer = Model(), linear(W, BIAS)
    with global_scope(P, S0):
        m.sub = layer
    assert m.sub is layer
    assert_global(m.sub.weight, W, P, S0)
    assert_global(m.sub.bias, BIAS, P, S0)


@pytest.mark.parametrize("when", ["assign", "exit"])
def test_a_weak_reference_to_a_module_stands_for_the_module(P, when):
    """OneFlow registers a weakref.proxy as a module; a scope had a TypeError of its own."""
    m, layer = Model(), linear(W)
    with global_scope(P, S0, when=when):
        m.sub = weakref.proxy(layer)
    assert type(m.sub) is weakref.CallableProxyType
    assert_global(layer.weight, W, P, S0)
    assert [row.path for row in describe(m).rows] == ["sub.weight"]


def test_a_child_that_holds_its_parent_weakly(P):
    m = Model()
    m.sub = linear(W)
    m.sub.parent = weakref.proxy(m)
    m.own = parameter(W + 1)
    local_to_global(m, P, S0)
    assert_global(m.sub.weight, W, P, S0)
    assert_global(m.own, W + 1, P, S0)
    again = linear(W + 2)
    assert describe(weakref.proxy(again)).module == "Linear"
    local_to_global(weakref.proxy(again), P, B)
    assert_global(again.weight, W + 2, P, B)


@pytest.mark.parametrize("when", ["assign", "exit"])
def test_a_weak_reference_to_a_module_that_is_gone(P, when):
    m, layer = Model(), linear(W)
    with global_scope(P, S0, when=when):
        m.sub, m.other = weakref.proxy(layer), parameter(W)
        del layer
        gc.collect()
        m.last = parameter(W + 1)
        outer = Model()
        outer.first, outer.second = m, m
    assert_global(m.last, W + 1, P, S0)
    assert_global(m.other, W, P, S0)


def test_add_module(P):
    m, layer = Model(), linear(W, BIAS)
    with global_scope(P, S0):
        m.add_module("sub", layer)
    assert_global(m.sub.weight, W, P, S0)
    assert_global(m.sub.bias, BIAS, P, S0)


def test_add_module_with_keywords(P):
    m, layer = Model(), linear(W)
    with global_scope(P, S0):
        m.add_module(module=layer, name="sub")
    assert_global(m.sub.weight, W, P, S0)


def test_the_whole_tree_is_converted(P):
    m, middle, inner = Model(), Model(), Model()
    middle.inner, middle.own = inner, parameter(W)
    inner.deep = linear(W + 1)
    inner.register_buffer("seen", tensor(W + 2))
    with global_scope(P, S0):
        m.sub = middle
    assert_global(m.sub.own, W, P, S0)
    assert_global(m.sub.inner.deep.weight, W + 1, P, S0)
    assert_global(m.sub.inner.seen, W + 2, P, B)


def test_the_module_assigned_to_is_not_touched(P):
    m, layer = Model(), linear(W)
    m.old = linear(W)
    with global_scope(P, S0):
        m.sub = layer
    assert_local(m.old.weight, W)


def test_what_is_global_already_in_a_tree_stays_the_same_object(P):
    m, tree = Model(), nn.Sequential(linear(W), linear(W + 1))
    tree[0].to_global(P, B)
    before = tree[0].weight
    with global_scope(P, S0):
        m.sub = tree
    assert m.sub[0].weight is before
    assert m.sub[0].weight.sbp == (B,)
    assert_global(m.sub[1].weight, W + 1, P, S0)


def test_a_shared_parameter_stays_shared(P):
    """huggingface/accelerate#3668: tied weights came untied."""
    tree = nn.Sequential(linear(W), linear(W))
    tree[1].weight = tree[0].weight
    m = Model()
    with global_scope(P, S0) as scope:
        m.sub = tree
    assert m.sub[0].weight is m.sub[1].weight
    assert_global(m.sub[1].weight, W, P, S0)
    assert len(scope.converted) == 1


def test_a_parameter_tied_inside_a_scope_stays_tied(P):
    """huggingface/accelerate#3668"""
    m, first, second = Model(), linear(W), linear(W + 1)
    with global_scope(P, S0):
        m.a, m.b = first, second
        m.b.weight = m.a.weight
    assert m.b.weight is m.a.weight
    assert_global(m.b.weight, W, P, S0)


def test_a_parameter_tied_over_two_assignments_stays_tied(P):
    """huggingface/accelerate#3668"""
    first, second = linear(W), linear(W)
    second.weight = first.weight
    m = Model()
    with global_scope(P, S0) as scope:
        m.a = first
        m.b = second
    assert m.a.weight is m.b.weight
    assert [record.path for record in scope.converted] == ["a.weight"]


def test_a_module_reached_twice_is_converted_once(P):
    layer = linear(W)
    m = Model()
    with global_scope(P, S0) as scope:
        m.sub = nn.Sequential(layer, nn.ReLU(), layer)
    assert m.sub[0] is m.sub[2] is layer
    assert_global(layer.weight, W, P, S0)
    assert len(scope.converted) == 1


def test_a_buffer_shared_in_one_tree_stays_shared(P):
    tree, b = nn.Sequential(Model(), Model()), tensor(W)
    for child in tree:
        child.register_buffer("seen", b)
    m = Model()
    with global_scope(P, S0):
        m.sub = tree
    assert m.sub[0].seen is m.sub[1].seen
    assert_global(m.sub[0].seen, W, P, B)


A = counted(8, 4)


def test_in_two_assignments_it_stays_one(P):
    one, two, t = Model(), Model(), tensor(A)
    with global_scope(P, B):
        one.register_buffer("seen", t)
        two.register_buffer("seen", t)
    assert one.seen is two.seen


@pytest.mark.parametrize("sbp", [B, S0], ids=str)
def test_a_write_in_between_that_one_rank_alone_sees_in_its_part(P, sbp):
    """All ranks decide alike, or one would have one buffer and the other two."""
    one, two, t = Model(), Model(), tensor(A)
    with global_scope(P, sbp, buffers="sbp"):
        one.register_buffer("seen", t)
        one.seen.add_(1)
        t[0, 0] = 50
        two.register_buffer("seen", t)
        two.seen.add_(10)
    written = A.copy()
    written[0, 0] = 50
    assert_global(one.seen, A + 1, P, sbp)
    assert_global(two.seen, written + 10, P, sbp)


@pytest.mark.ranks(2, 4)
def test_a_placement_that_leaves_ranks_out(P):
    one, two, t, first = Model(), Model(), tensor(A), flow.placement("cpu", [0])
    with global_scope(first, B):
        one.register_buffer("seen", t)
        t.fill_(5)
        two.register_buffer("seen", t)
    assert one.seen is not two.seen
    m = Model()
    m.one, m.two = one, two
    local_to_global(m, P, B, existing="convert")
    assert_global(m.one.seen, A, P, B)
    assert_global(m.two.seen, A * 0 + 5, P, B)


def test_what_is_assigned_again_and_again_is_not_kept(P):
    m = Model()
    m.register_buffer("seen", None)
    with global_scope(P, B) as scope:
        for step in range(20):
            m.seen = tensor(A + step)
        (kept,) = [
            found
            for found in gc.get_objects()
            if type(found) is apply.ReplacedBuffers and found._pairs
        ]
        assert len(kept._pairs) == 1
    assert len(scope.converted) == 20
    assert_global(m.seen, A + 19, P, B)


@pytest.mark.parametrize("buffers", ["broadcast", False])
@pytest.mark.parametrize("first", ["buffer", "parameter"])
def test_a_parameter_that_another_module_keeps_as_a_buffer(P, buffers, first):
    """It is a Parameter, whichever of the two is met first."""
    m, layer = Model(), linear(A)
    if first == "parameter":
        m.layer = layer
        m.later = Model()
        m.later.register_buffer("seen", layer.weight)
        other = m.later
    else:
        m.register_buffer("seen", layer.weight)
        m.layer = layer
        other = m
    local_to_global(m, P, S0, buffers=buffers)
    assert_global(m.layer.weight, A, P, S0)
    assert other.seen is m.layer.weight


@pytest.mark.parametrize("how", ["past the hook", "in a local scope"])
def test_what_came_into_a_tree_unseen_is_converted_with_the_next_tree(P, how):
    """Building from the inside out assigns each tree to the next one, and looks at all of it."""
    innermost = inner = Model()
    with global_scope(P, B) as scope:
        inner.new = parameter(A)
        for level in range(40):
            outer = Model()
            outer.new, outer.sub = parameter(A + level), inner
            inner = outer
        if how == "past the hook":
            innermost._parameters["late"] = parameter(A)
        else:
            with local_scope():
                innermost.late = parameter(A)
        top = Model()
        top.sub = inner
    assert local_names(top) == []
    assert_global(innermost.late, A, P, B)
    assert len(scope.converted) == 42
    assert scope.kept == []
