"""``@auto_global(placement, sbp)``: a class whose instances make global what is assigned."""

from __future__ import annotations

import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import AutoglobalError, ConversionError, SpecTypeError, auto_global
from tests.helpers.support import (
    S0,
    S1,
    B,
    Model,
    assert_global,
    assert_local,
    counted,
    error_of,
    linear,
    parameter,
    tensor,
)
from tests.helpers.trees import globally

A = counted(8, 4)


def decorated(P, sbp=S0, base=Model, **options) -> type:
    """A new subclass of ``base``, named Layer, with its decoration."""
    return auto_global(P, sbp, **options)(type("Layer", (base,), {}))


# What is converted


def test_what_the_constructor_and_its_parents_assign(P):
    class Parent(Model):
        def __init__(self):
            super().__init__()
            self.weight = parameter(A)

    @auto_global(P, S0)
    class Layer(Parent):
        def __init__(self):
            super().__init__()
            self.extra = parameter(A + 100)

    m = Layer()
    assert_global(m.extra, A + 100, P, S0)
    assert_global(m.weight, A, P, S0)
    assert_local(Parent().weight, A)


def test_what_is_assigned_for_the_rest_of_its_life(P):
    m = decorated(P)()
    m.new, m.sub = parameter(A), linear(A + 1)
    m.register_parameter("registered", parameter(A + 2))
    m.register_buffer("seen", tensor(A + 3))
    m.add_module("added", linear(A + 4))
    m.seen = tensor(A + 5)
    for found, array in ((m.new, A), (m.sub.weight, A + 1), (m.registered, A + 2)):
        assert_global(found, array, P, S0)
    assert_global(m.added.weight, A + 4, P, S0)
    assert_global(m.seen, A + 5, P, B)


@pytest.mark.in_place
def test_the_parameter_is_the_same_object(P):
    m, p = decorated(P)(), parameter(A)
    m.new = p
    assert m.new is p
    assert_global(p, A, P, S0)


def test_tied_weights_stay_tied(P):
    """huggingface/accelerate#3668: tied weights came untied."""
    m, tree = decorated(P)(), Model()
    tree.a, tree.b = linear(A), linear(A)
    tree.b.weight = tree.a.weight
    m.tree = tree
    m.again = m.tree.a.weight
    assert m.tree.a.weight is m.tree.b.weight is m.again
    assert_global(m.again, A, P, S0)


def test_plain_attributes_stay_what_they_are(P):
    m, t = decorated(P)(), tensor(A)
    m.number, m.tensor, m.names = 3, t, ["a"]
    assert (m.number, m.names) == (3, ["a"])
    assert m.tensor is t
    assert_local(m.tensor, A)


def test_a_tensor_is_converted_once(P, rank, world):
    """microsoft/DeepSpeed#6388: a class without a method of its own was wrapped twice."""

    class Layer(Model):
        def __setattr__(self, name, value):
            super().__setattr__(name, value)

        def register_parameter(self, name, param):
            super().register_parameter(name, param)

    base = auto_global(P, S0, source="shard")(Layer)
    below = auto_global(P, S0, source="shard")(type("Below", (base,), {}))
    for cls in (base, type("Bare", (base,), {}), below):
        m = cls()
        m.new = parameter(counted(4, 4, start=16 * rank))
        assert_global(m.new, counted(4 * world, 4), P, S0)


def test_rules_by_the_name_and_by_the_class(P):
    m = decorated(P, {"weight": S1, "sub.weight": B, "Layer.*": S0})()
    m.weight, m.other, m.sub = parameter(A), parameter(A), linear(A)
    assert (m.weight.sbp, m.other.sbp, m.sub.weight.sbp) == ((S1,), (S0,), (B,))


def test_a_linear_with_rules_for_its_weights(P):
    """Its own layers' constructor, which assigns by its own names."""
    m = decorated(P, {"weight": S1, "bias": B}, base=nn.Linear)(8, 4)
    assert (m.weight.sbp, m.bias.sbp) == ((S1,), (B,))


# The options


def test_source_shard(P, rank, world):
    m = decorated(P, source="shard")()
    m.new = parameter(counted(4, 4, start=16 * rank))
    assert_global(m.new, counted(4 * world, 4), P, S0)


def test_buffers(P):
    split, left = decorated(P, buffers="sbp")(), decorated(P, buffers=False)()
    for m in (split, left):
        m.register_buffer("seen", tensor(A))
    assert_global(split.seen, A, P, S0)
    assert_local(left.seen, A)


def test_unsplittable(P):
    m, strict = decorated(P, S1, unsplittable="broadcast")(), decorated(P, S1)()
    m.new = parameter(counted(8))
    assert_global(m.new, counted(8), P, B)
    with pytest.raises(ConversionError, match=r"Layer\.new"):
        strict.new = parameter(counted(8))


def test_existing(P):
    keep, convert, strict = (decorated(P, existing=how)() for how in ("keep", "convert", "error"))
    keep.new, convert.new = globally(A, P, B), globally(A, P, B)
    assert_global(keep.new, A, P, B)
    assert_global(convert.new, A, P, S0)
    with pytest.raises(ConversionError, match=r"Layer\.new"):
        strict.new = globally(A, P, B)


@pytest.mark.ranks(2, 4)
def test_same_placement(P):
    first = flow.placement("cpu", [0])
    m, free = decorated(P, same_placement=True)(), decorated(P)()
    for one in (m, free):
        one.old = globally(A, first, B)
    with pytest.raises(ConversionError, match="placement"):
        m.new = parameter(A)
    free.new = parameter(A)
    assert_global(free.new, A, P, S0)


def test_when_is_no_option(P):
    with pytest.raises(TypeError):
        auto_global(P, S0, when="assign")


def test_an_unknown_option(P):
    with pytest.raises(TypeError):
        auto_global(P, S0, sorce="full")


# What it refuses

WRONG = {
    "a plain class": lambda: type("Plain", (), {}),
    "Module itself": lambda: nn.Module,
    "a function": lambda: lambda: None,
    "an instance": Model,
    "a number": lambda: 3,
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("how", ["stated", "bare"])
def test_what_is_not_a_subclass_of_module(P, case, how):
    decorator = auto_global(P, S0) if how == "stated" else auto_global
    found = error_of(lambda: decorator(WRONG[case]()))
    assert isinstance(found, SpecTypeError)
    assert isinstance(found, TypeError)
    assert "Module" in str(found)


def test_used_as_a_context_manager(P):
    with pytest.raises(SpecTypeError, match="global_scope"), auto_global(P, S0):
        pass


@pytest.mark.parametrize("case", ["placement", "sbp", "missing", "option"])
def test_at_the_door_with_the_class_unchanged(P, case):
    wrong = {
        "placement": lambda: auto_global("cpu", S0),
        "sbp": lambda: auto_global(P, [None]),
        "missing": lambda: auto_global(P),
        "option": lambda: auto_global(P, S0, source="whole"),
    }
    before = dict(vars(Model))
    found = error_of(lambda: wrong[case]()(Model))
    assert isinstance(found, (AutoglobalError, TypeError))
    assert dict(vars(Model)) == before


def test_a_message_names_the_class_and_the_attribute(P):
    m = decorated(P, S1)()
    with pytest.raises(ConversionError, match=r"Layer\.new"):
        m.new = parameter(counted(8))
    with pytest.raises(ConversionError, match=r"Layer\.sub\.bias"):
        m.sub = linear(A, counted(8))
    assert not hasattr(m, "new")
    assert not hasattr(m, "sub")
