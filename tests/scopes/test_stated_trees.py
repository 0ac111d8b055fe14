"""An instance of a class that states its layout keeps it wherever it is put."""

from __future__ import annotations

import copy
import warnings

import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import auto_global, global_scope, local_scope, local_to_global
from tests.helpers.support import (
    S0,
    S1,
    B,
    Model,
    assert_global,
    assert_local,
    counted,
    parameter,
    tensor,
)

A = counted(8, 4)


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
