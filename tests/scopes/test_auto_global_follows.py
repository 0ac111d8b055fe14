"""Bare ``@auto_global``: what is assigned follows the global tensors that are there already.

Where there are several placements too, and in scopes.
"""

from __future__ import annotations

import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import ConversionError, auto_global, global_scope, local_scope
from tests.helpers.scopes import Follower, following
from tests.helpers.support import (
    S0,
    B,
    Model,
    Snapshot,
    assert_global,
    assert_local,
    counted,
    linear,
    local_names,
    parameter,
    tensor,
)
from tests.helpers.trees import globally

A = counted(8, 4)


def test_it_is_the_same_class_object():
    class Layer(nn.Module):
        pass

    assert auto_global(Layer) is Layer
    assert Follower.__name__ == "Follower"
    assert Follower.__doc__ == "A class that follows."


def test_the_model_of_8869(P):
    """Oneflow-Inc/oneflow#8869, the placement written once: in ``param``."""
    m = following(P)
    m.new, m.sub = parameter(A + 1), linear(A + 2)
    m.register_parameter("registered", parameter(A + 3))
    m.register_buffer("seen", tensor(A + 4))
    m.add_module("added", linear(A + 5))
    assert_global(m.param, A, P, S0)
    for found, array in ((m.new, A + 1), (m.sub.weight, A + 2), (m.registered, A + 3)):
        assert_global(found, array, P, B)
    assert_global(m.seen, A + 4, P, B)
    assert_global(m.added.weight, A + 5, P, B)


@pytest.mark.in_place
def test_the_parameter_is_the_same_object(P):
    m, p = following(P), parameter(A)
    m.new = p
    assert m.new is p
    assert_global(p, A, P, B)


def test_without_a_global_tensor_nothing_happens(P):
    m, p, layer = Follower(), parameter(A), linear(A)
    m.new, m.sub = p, layer
    m.register_buffer("seen", tensor(A))
    assert m.new is p
    assert local_names(m) == ["new", "seen", "sub.weight"]
    m.param = globally(A, P, S0)
    m.later = parameter(A)
    assert_global(m.later, A, P, B)
    assert local_names(m) == ["new", "seen", "sub.weight"]


def test_from_the_first_global_tensor_to_the_last(P):
    m = Follower()
    m.a = parameter(A)
    m.param = globally(A, P, B)
    m.b = parameter(A)
    del m.param, m.b
    m.c = parameter(A)
    assert_local(m.a, A)
    assert_local(m.c, A)


def test_in_the_constructor(P):
    @auto_global
    class Layer(Model):
        def __init__(self, first):
            super().__init__()
            self.before = parameter(A)
            self.first = first
            self.after = parameter(A + 1)

    m = Layer(globally(A, P, S0))
    assert_local(m.before, A)
    assert_global(m.after, A + 1, P, B)


HOLDERS = {
    "a parameter": lambda P: ("held", globally(A, P, S0)),
    "a child's parameter": lambda P: ("held", _child(globally(A, P, S0))),
    "a grandchild's buffer": lambda P: ("held", nn.Sequential(_buffer(P))),
}


def _child(param) -> Model:
    child = Model()
    child.weight = param
    return child


def _buffer(P) -> Model:
    child = Model()
    child.register_buffer("seen", tensor(A).to_global(P, B))
    return child


@pytest.mark.parametrize("case", HOLDERS)
def test_the_whole_tree_counts(P, case):
    m = Follower()
    name, value = HOLDERS[case](P)
    setattr(m, name, value)
    m.new = parameter(A)
    assert_global(m.new, A, P, B)


def test_its_own_buffer_counts(P):
    m = Follower()
    m.register_buffer("seen", tensor(A).to_global(P, B))
    m.new = parameter(A)
    assert_global(m.new, A, P, B)


def test_another_instance_and_the_parent_do_not_count(P):
    m, other = following(P), Follower()
    parent = Model()
    parent.param, parent.sub = globally(A, P, B), other
    other.new, parent.new = parameter(A), parameter(A)
    assert_local(other.new, A)
    assert_local(parent.new, A)
    m.new = parameter(A)
    assert_global(m.new, A, P, B)


@pytest.mark.ranks(2, 4)
def test_each_instance_follows_its_own_tensors(P, world):
    last = flow.placement("cpu", [world - 1])
    first, second = following(P), following(last, B)
    first.new, second.new = parameter(A), parameter(A + 1)
    assert_global(first.new, A, P, B)
    assert_global(second.new, A + 1, last, B)


@pytest.mark.ranks(2, 4)
def test_ranks_with_other_values(P, rank):
    m = following(P)
    m.new = parameter(A + 1000 * rank)
    assert_global(m.new, A, P, B)


def test_a_placement_of_two_dimensions(world):
    square = flow.placement("cpu", [list(range(world))])
    m = Follower()
    m.param = nn.Parameter(tensor(A).to_global(square, (B, B)))
    m.new = parameter(A)
    assert_global(m.new, A, square, (B, B))


def test_a_subclass_follows_and_the_parent_does_not(P):
    parent = type("Parent", (Model,), {})
    base = auto_global(type("Base", (parent,), {}))
    for cls, converts in ((base, True), (type("Below", (base,), {}), True), (parent, False)):
        m = cls()
        m.param = globally(A, P, B)
        m.new = parameter(A)
        assert m.new.is_global == converts


def test_on_a_subclass_of_a_class_that_states(P):
    base = auto_global(P, S0)(type("Base", (Model,), {}))
    below = auto_global(type("Below", (base,), {}))
    m, old = below(), base()
    m.new = parameter(A)
    assert_local(m.new, A)
    m.param = globally(A, P, S0)
    m.other, old.new = parameter(A), parameter(A)
    assert_global(m.other, A, P, B)
    assert_global(old.new, A, P, S0)


def test_stated_on_a_subclass_of_a_class_that_follows(P):
    below = auto_global(P, S0)(type("Below", (Follower,), {}))
    m = below()
    m.new = parameter(A)
    assert_global(m.new, A, P, S0)


# Several placements


def on_two(world) -> tuple[Follower, flow.placement, flow.placement]:
    first, last = flow.placement("cpu", [0]), flow.placement("cpu", [world - 1])
    m, sub = Follower(), Model()
    sub.weight = globally(A, last, B)
    m.param, m.sub = globally(A, first, B), sub
    return m, first, last


@pytest.mark.ranks(2, 4)
def test_several_placements_are_an_error_that_names_them(world):
    m, first, last = on_two(world)
    p, layer = parameter(A), linear(A)
    before = Snapshot(m)
    for name, value in (("new", p), ("layer", layer)):
        with pytest.raises(ConversionError) as caught:
            setattr(m, name, value)
        for words in (str(first), str(last), f"Follower.{name}"):
            assert words in str(caught.value)
    before.assert_unchanged()
    assert_local(p, A)
    assert_local(layer.weight, A)


@pytest.mark.ranks(2, 4)
def test_on_several_placements_what_is_global_can_be_assigned(P, world):
    m, _, last = on_two(world)
    m.new, m.number = globally(A, P, S0), 3
    assert_global(m.new, A, P, S0)
    del m.param, m.new
    m.other = parameter(A)
    assert_global(m.other, A, last, B)


@pytest.mark.ranks(2, 4)
def test_on_several_placements_it_works_again_once_there_is_one(world):
    m, _, last = on_two(world)
    with pytest.raises(ConversionError):
        m.new = parameter(A)
    del m.param
    m.new = parameter(A)
    assert_global(m.new, A, last, B)


@pytest.mark.ranks(2, 4)
def test_a_scope_settles_several_placements(P, world):
    m, _, _ = on_two(world)
    with global_scope(P, S0):
        m.new = parameter(A)
    assert_global(m.new, A, P, S0)


# Scopes


def test_an_open_scope_has_precedence(P):
    m, empty = following(P, B), Follower()
    with global_scope(P, S0):
        m.new, empty.new = parameter(A), parameter(A)
    m.after = parameter(A)
    assert_global(m.new, A, P, S0)
    assert_global(empty.new, A, P, S0)
    assert_global(m.after, A, P, B)


def test_in_local_scope_nothing_follows(P):
    m = following(P)
    with local_scope():
        m.new = parameter(A)
    m.after = parameter(A)
    assert_local(m.new, A)
    assert_global(m.after, A, P, B)
