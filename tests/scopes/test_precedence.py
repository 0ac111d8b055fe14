"""Scopes and decorated classes: who states a placement keeps it, who follows takes the scope's.

An instance of a class that states its layout keeps it wherever it is put.
"""

from __future__ import annotations

import copy
import warnings

import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import ConversionError, auto_global, global_scope, local_scope, local_to_global
from tests.helpers.support import (
    S0,
    S1,
    B,
    Model,
    assert_global,
    assert_local,
    counted,
    linear,
    parameter,
    tensor,
)
from tests.helpers.trees import globally

A = counted(8, 4)


def stated(P, sbp=S0, base=Model, **options) -> type:
    return auto_global(P, sbp, **options)(type("Layer", (base,), {}))


def follows() -> type:
    return auto_global(type("Follower", (Model,), {}))


def test_a_class_that_states_keeps_it_in_a_scope(P):
    m, other = stated(P)(), Model()
    with global_scope(P, B):
        m.new, other.new = parameter(A), parameter(A)
        m.register_parameter("registered", parameter(A + 1))
        m.register_buffer("seen", tensor(A + 2))
    assert_global(m.new, A, P, S0)
    assert_global(m.registered, A + 1, P, S0)
    assert_global(m.seen, A + 2, P, B)
    assert_global(other.new, A, P, B)


@pytest.mark.ranks(2, 4)
def test_its_placement_too(P, world):
    last = flow.placement("cpu", [world - 1])
    m, other = stated(last, B)(), Model()
    with global_scope(P, S0):
        m.new, other.new = parameter(A), parameter(A)
    assert_global(m.new, A, last, B)
    assert_global(other.new, A, P, S0)


def test_its_options_too(P, rank, world):
    m, other = stated(P, S0, source="shard", buffers=False)(), Model()
    with global_scope(P, S1, buffers="sbp"):
        m.new = parameter(counted(4, 4, start=16 * rank))
        for one in (m, other):
            one.register_buffer("seen", tensor(A))
    assert_global(m.new, counted(4 * world, 4), P, S0)
    assert_local(m.seen, A)
    assert_global(other.seen, A, P, S1)


def test_whatever_number_of_scopes_is_open(P):
    m, bare = stated(P, S1)(), follows()()
    with global_scope(P, B), global_scope(P, S0):
        m.new, bare.new = parameter(A), parameter(A)
    assert_global(m.new, A, P, S1)
    assert_global(bare.new, A, P, S0)


def test_a_scope_that_the_class_itself_opens(P):
    @auto_global(P, S0)
    class Layer(Model):
        def __init__(self):
            super().__init__()
            with global_scope(P, B):
                self.new = parameter(A)
                self.sub = nn.Linear(4, 8)

    m = Layer()
    assert_global(m.new, A, P, S0)
    assert m.sub.weight.sbp == (B,)


def test_a_layer_inside_it_is_built_by_the_scope(P):
    """Its weights are assigned to the layer, which states nothing; then they are global."""

    @auto_global(P, S0)
    class Layer(Model):
        def __init__(self):
            super().__init__()
            self.sub = nn.Linear(4, 8)
            self.own = parameter(A)

    with global_scope(P, B):
        inside = Layer()
    outside = Layer()
    assert inside.sub.weight.sbp == (B,)
    assert outside.sub.weight.sbp == (S0,)
    assert_global(inside.own, A, P, S0)


def test_a_tree_assigned_to_it_goes_by_it(P):
    m, layer = stated(P)(), linear(A)
    with global_scope(P, B):
        m.sub = layer
    assert_global(m.sub.weight, A, P, S0)


def test_a_decorated_instance_in_a_model_built_in_a_scope(P):
    cls = stated(P)

    class Whole(Model):
        def __init__(self):
            super().__init__()
            self.layer = cls()
            self.layer.new = parameter(A)
            self.own = parameter(A + 1)

    with global_scope(P, B):
        m = Whole()
    m.layer.late, m.late = parameter(A + 2), parameter(A + 3)
    assert_global(m.layer.new, A, P, S0)
    assert_global(m.own, A + 1, P, B)
    assert_global(m.layer.late, A + 2, P, S0)
    assert_local(m.late, A + 3)


def test_an_instance_built_before_the_scope_keeps_its_layout_when_assigned(P):
    m, layer = Model(), stated(P)()
    layer.new = parameter(A)
    with global_scope(P, B):
        m.layer = layer
    assert m.layer is layer
    assert_global(m.layer.new, A, P, S0)


def test_two_classes_that_state_one_in_the_other(P):
    outer, inner = stated(P, B)(), stated(P, S0)()
    inner.new = parameter(A)
    outer.inner, outer.own = inner, parameter(A + 1)
    outer.inner.late = parameter(A + 2)
    assert_global(outer.inner.new, A, P, S0)
    assert_global(outer.own, A + 1, P, B)
    assert_global(outer.inner.late, A + 2, P, S0)


def test_local_scope_is_over_both(P):
    m, bare = stated(P)(), follows()()
    bare.param = globally(A, P, S0)
    with global_scope(P, B), local_scope():
        m.new, bare.new = parameter(A), parameter(A)
    assert_local(m.new, A)
    assert_local(bare.new, A)
    m.new, bare.new = parameter(A), parameter(A)
    assert_global(m.new, A, P, S0)
    assert_global(bare.new, A, P, B)


def test_a_scope_in_a_local_scope(P):
    m, bare = stated(P)(), follows()()
    with local_scope(), global_scope(P, S1):
        m.new, bare.new = parameter(A), parameter(A)
    assert_global(m.new, A, P, S0)
    assert_global(bare.new, A, P, S1)


def test_a_scope_that_converts_as_it_closes(P):
    m, bare, p = stated(P)(), follows()(), parameter(A)
    with global_scope(P, S1, when="exit"):
        m.new, bare.new = parameter(A), p
        assert_local(bare.new, A)
    assert_global(m.new, A, P, S0)
    assert_global(bare.new, A, P, S1)


def test_the_error_is_that_of_who_converts(P):
    m = stated(P, S1)()
    with global_scope(P, S0), pytest.raises(ConversionError) as caught:
        m.new = parameter(counted(8))
    assert "Layer.new" in str(caught.value)
    assert "split(dim=1)" in str(caught.value) or "split(1)" in str(caught.value)


def test_an_error_leaves_the_scope_around_in_force(P):
    m, other = stated(P, S1)(), Model()
    with global_scope(P, S0):
        with pytest.raises(ConversionError):
            m.new = parameter(counted(8))
        other.new = parameter(A)
    assert_global(other.new, A, P, S0)


def column(P):
    @auto_global(P, {"weight": S0, "cache": None, "sub.weight": S1, "sub.bias": B}, buffers=False)
    class Column(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.cache = parameter(A), parameter(A + 1)
            self.register_buffer("seen", tensor(A + 2))

    return Column


def check(P, m):
    assert_global(m.weight, A, P, S0)
    assert_local(m.cache, A + 1)
    assert_local(m.seen, A + 2)


@pytest.mark.parametrize("when", ["assign", "exit"])
def test_built_and_assigned_in_a_scope(P, when):
    m = Model()
    with global_scope(P, B, when=when):
        m.layers = nn.Sequential(column(P)())
        m.other = parameter(A)
    check(P, m.layers[0])
    assert_global(m.other, A, P, B)


@pytest.mark.parametrize("how", ["assign", "exit", "call"])
def test_built_locally_and_then_assigned(P, how):
    m, kind = Model(), column(P)
    with local_scope():
        layer = kind()
    if how == "call":
        m.layer = layer
        local_to_global(m, P, B)
    else:
        with global_scope(P, B, when=how):
            m.layer = layer
    check(P, m.layer)


def test_a_copy_that_is_assigned(P):
    kind = column(P)
    with local_scope():
        layer = copy.deepcopy(kind())
    m = Model()
    with global_scope(P, B):
        m.layer = layer
    check(P, m.layer)


def test_a_tree_below_it_goes_by_its_rules(P):
    with local_scope():
        layer = column(P)()
        layer.sub = nn.Linear(4, 8)
    m = Model()
    with global_scope(P, B):
        m.layer = layer
    assert m.layer.sub.weight.sbp == (S1,)
    assert m.layer.sub.bias.sbp == (B,)


def test_it_is_no_find_for_a_scope_that_refuses_what_is_global(P):
    m = Model()
    with global_scope(P, B, existing="error"):
        m.layer = column(P)()
    check(P, m.layer)


def ruled(P, rules):
    @auto_global(P, rules)
    class Ruled(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.Linear(4, 8)

    return Ruled


def test_rules_of_the_class_in_a_scope_with_rules(P):
    m, kind = Model(), ruled(P, {"*.weight": S0, "*.bias": S0})
    with global_scope(P, {"*": B}):
        m.block = kind()
        m.alias = m.block.up
    assert m.block.up.weight.sbp == (B,)  # its Linear was built in the scope
    with local_scope():
        block = kind()
    with global_scope(P, {"*": B}):
        m.block = block
        m.alias = block.up
    assert m.block.up.weight.sbp == (S0,)


@pytest.mark.parametrize("existing", ["keep", "error", "convert"])
def test_what_it_takes_over_is_no_more_the_waiting_scopes(P, existing):
    @auto_global(P, {"*.bias": None, "*": S0})
    class Head(nn.Module):
        pass

    head = Head()
    with global_scope(P, B, when="exit", existing=existing) as scope:
        head.lin = nn.Linear(4, 8)
    assert head.lin.weight.sbp == (S0,)
    assert head.lin.bias.is_local
    assert scope.converted == []


def test_under_two_names_its_rules_do_not_differ(P):
    with local_scope():
        m = nn.Sequential(nn.Sequential(column(P)()))
    m.add_module("again", m[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        local_to_global(m, P, {"*": B})
    check(P, m[0][0])


def test_a_buffer_that_it_shares_with_another_placement(P, world):
    other = flow.placement("cpu", [[rank] for rank in range(world)])
    mesh = flow.placement("cpu", [list(range(world))])

    @auto_global(other, [B, B])
    class Layer(nn.Module):
        pass

    m, t = Model(), tensor(A)
    with local_scope():
        layer = Layer()
        layer.register_buffer("seen", t)
    with global_scope(mesh, [B, B]):
        m.register_buffer("seen", t)
        m.layer = layer
    assert m.seen.placement == mesh
    assert layer.seen.placement == other
