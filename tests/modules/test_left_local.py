"""What a scope does not convert."""

from __future__ import annotations

import pytest
from oneflow import nn

from autoglobal import global_scope, local_to_global
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

A = counted(8, 4)


def test_what_is_global_already_stays_the_same_object(P):
    m = Model()
    p = nn.Parameter(parameter(A).to_global(P, B))
    b = tensor(A).to_global(P, S0)
    with global_scope(P, S0) as scope:
        m.p = p
        m.register_buffer("b", b)
    assert m.p is p
    assert m.p.sbp == (B,)
    assert m.b is b
    assert m.b.sbp == (S0,)
    assert scope.converted == []


def test_a_plain_tensor_attribute_stays_local(P):
    m = Model()
    t = tensor(A)
    with global_scope(P, S0):
        m.plain = t
    assert m.plain is t
    assert_local(t, A)


def test_a_free_tensor_stays_local(P):
    with global_scope(P, S0):
        t = tensor(A)
        p = parameter(A)
        assert_local(t + 1, A + 1)
    assert_local(p, A)


def test_parameters_in_a_plain_list_stay_local(P):
    m = Model()
    with global_scope(P, S0):
        m.plain = [parameter(A)]
    assert_local(m.plain[0], A)


def test_an_attribute_of_another_object_stays_local(P):
    class Plain:
        pass

    o = Plain()
    with global_scope(P, S0):
        o.new = parameter(A)
    assert_local(o.new, A)


def test_plain_attributes_are_set_as_always(P):
    m = Model()
    with global_scope(P, S0):
        m.number, m.text, m.nothing = 3, "x", None
    assert (m.number, m.text, m.nothing) == (3, "x", None)
    assert {"number", "text", "nothing"} <= set(vars(m))


def test_an_assignment_after_the_scope_stays_local(P):
    m = Model()
    with global_scope(P, S0):
        m.new = parameter(A)
    m.later = parameter(A)
    m.register_buffer("seen", tensor(A))
    assert_local(m.later, A)
    assert_local(m.seen, A)


def test_a_parameter_behind_object_setattr_stays_local(P):
    """No registration, so nothing to convert: the tensor is a plain attribute."""
    m = Model()
    with global_scope(P, S0):
        object.__setattr__(m, "plain", parameter(A))
    assert_local(m.plain, A)


def test_what_a_method_registers_that_was_taken_before_the_scope(P):
    """The scope changes the class: what holds a method of the class before does not see it."""
    m = Model()
    m.register_buffer("seen", tensor(A[0]))
    set_, add = nn.Module.__setattr__, m.add_module
    layers = [linear(A) for _ in range(3)]
    with global_scope(P, S0) as scope:
        register, register_buffer = m.register_parameter, m.register_buffer
        set_(m, "first", layers[0])
        set_(m, "seen", tensor(A[1]))
        add("second", layers[1])
        assert local_names(m) == ["seen", "first.weight", "second.weight"]
        register("third", parameter(A))  # taken in the scope
        register_buffer("fourth", tensor(A))
        m.fifth = layers[2]
    assert local_names(m) == ["seen", "first.weight", "second.weight"]
    assert scope.left == []
    local_to_global(m, P, S0)
    assert_global(m.second.weight, A, P, S0)
    assert_global(m.seen, A[1], P, B)


def test_a_parameter_set_by_a_setattr_taken_before_is_seen(P):
    """nn.Module.__setattr__ hands a Parameter on to register_parameter, by its name."""
    m = Model()
    set_, register = nn.Module.__setattr__, m.register_parameter
    with global_scope(P, S0):
        set_(m, "new", parameter(A))
        register("other", parameter(A))
    assert_global(m.new, A, P, S0)
    assert_local(m.other, A)


def test_a_module_assigned_to_a_graph_stays_local(P):
    """nn.Graph is no nn.Module; its own __setattr__ is not a scope's business."""

    class Own(nn.Graph):
        def __init__(self):
            super().__init__()

        def build(self, x):
            return x

    graph, layer = Own(), linear(A)
    with global_scope(P, S0):
        graph.layer = layer
    assert_local(layer.weight, A)


# What needs no conversion tells the other ranks nothing: one rank may do it alone. Where it did
# tell them, this rank would wait for the others until the time limit.


@pytest.mark.ranks(2, 4)
def test_a_plain_attribute_on_one_rank_only(P, rank):
    m = Model()
    with global_scope(P, S0):
        if rank == 0:
            m.number, m.plain = 3, tensor(A)
        m.new = parameter(A)
    assert_global(m.new, A, P, S0)


@pytest.mark.ranks(2, 4)
def test_none_on_one_rank_only(P, rank):
    m = Model()
    with global_scope(P, S0):
        if rank == 0:
            m.register_parameter("nothing", None)
            m.register_buffer("no_buffer", None)
            m.add_module("no_module", None)
        m.new = parameter(A)
    assert_global(m.new, A, P, S0)


@pytest.mark.ranks(2, 4)
def test_a_global_parameter_assigned_again_on_one_rank_only(P, rank):
    m = Model()
    with global_scope(P, S0):
        m.new = parameter(A)
        if rank == 0:
            m.new = m.new
        m.other = parameter(A + 1)
    assert_global(m.new, A, P, S0)
    assert_global(m.other, A + 1, P, S0)


@pytest.mark.ranks(2, 4)
def test_a_module_without_tensors_on_one_rank_only(P, rank):
    m = Model()
    with global_scope(P, S0):
        if rank == 0:
            m.act = nn.Sequential(nn.ReLU(), nn.Dropout(0.5))
        m.new = parameter(A)
    assert_global(m.new, A, P, S0)
