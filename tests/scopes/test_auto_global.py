"""``@auto_global(placement, sbp)``: a class whose instances make global what is assigned.

The class is changed as little as can be, and no other class is.
"""

from __future__ import annotations

import copy
import inspect
import pickle

import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import AutoglobalError, ConversionError, SpecTypeError, auto_global
from tests.helpers.scopes import METHODS
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


WORLD = flow.placement("cpu", list(range(flow.env.get_world_size())))


class Plain(nn.Module):
    """The words of the class."""

    kind = "plain"

    def __init__(self, rows: int = 8):
        super().__init__()
        self.weight = parameter(counted(rows, 4))

    def forward(self, x):
        return x @ self.weight


@auto_global(WORLD, S0)
class Stated(Plain):
    """The words of the stated class."""

    def __init__(self, rows: int = 8):
        super().__init__(rows)
        self.extra = parameter(counted(rows, 4, start=100))


# The class


def test_it_is_the_same_class_object(P):
    class Layer(nn.Module):
        pass

    assert auto_global(P, S0)(Layer) is Layer
    assert auto_global(Layer) is Layer


def test_name_words_and_constructor_are_unchanged(P):
    class Layer(nn.Module):
        """Its words."""

        def __init__(self, rows: int, *, cols: int = 3):
            super().__init__()

    facts = ("__name__", "__qualname__", "__module__", "__doc__", "__mro__", "__init__")
    before = [getattr(Layer, name) for name in facts], inspect.signature(Layer)
    cls = auto_global(P, S0)(Layer)
    assert cls is Layer
    assert ([getattr(cls, name) for name in facts], inspect.signature(cls)) == before
    assert type(cls) is type


def test_isinstance_and_super(P):
    m = Stated(16)
    assert isinstance(m, Stated)
    assert isinstance(m, Plain)
    assert type(m) is Stated
    assert Stated.kind == "plain"
    assert Stated.__qualname__ == "Stated"
    assert_global(m.weight, counted(16, 4), P, S0)


@pytest.mark.parametrize("way", ["pickle", "deepcopy"])
def test_an_instance_is_copied(P, way):
    m = Stated()
    found = pickle.loads(pickle.dumps(m)) if way == "pickle" else copy.deepcopy(m)
    assert type(found) is Stated
    assert_global(found.weight, A, P, S0)
    found.new = parameter(A + 1)
    assert_global(found.new, A + 1, P, S0)


def test_nothing_is_added_to_an_instance(P):
    assert list(vars(decorated(P)())) == list(vars(Model()))


# Other classes


def test_a_subclass_defined_before_and_one_defined_after(P):
    base = type("Base", (Model,), {})
    before = type("Before", (base,), {})
    auto_global(P, S0)(base)
    after = type("After", (base,), {})
    for cls in (base, before, after):
        m = cls()
        m.new = parameter(A)
        assert_global(m.new, A, P, S0)


def test_the_parent_and_its_other_subclasses_are_left_alone(P):
    parent = type("Parent", (Model,), {})
    sibling, cls = type("Sibling", (parent,), {}), type("Layer", (parent,), {})
    own = {one: dict(vars(one)) for one in (parent, sibling, Model, nn.Linear)}
    raw = [vars(nn.Module)[name] for name in METHODS]
    auto_global(P, S0)(cls)
    for one, attributes in own.items():
        assert dict(vars(one)) == attributes
    assert all(vars(nn.Module)[name] is before for name, before in zip(METHODS, raw))
    for one in (parent, sibling, Model):
        m = one()
        m.new = parameter(A)
        assert_local(m.new, A)
    m = cls()
    m.new = parameter(A)
    assert_global(m.new, A, P, S0)


@pytest.mark.in_place
def test_the_other_branch_of_a_diamond_keeps_its_methods(P):
    """GrahamDumpleton/wrapt#166: a wrapper around what a class inherits hid its sibling's."""
    seen = []

    class Top(Model):
        pass

    class Left(Top):
        pass

    class Right(Top):
        def __setattr__(self, name, value):
            seen.append(name)
            super().__setattr__(name, value)

        def register_buffer(self, name, tensor, persistent=True):
            seen.append(f"buffer {name}")
            super().register_buffer(name, tensor, persistent)

    class Bottom(Left, Right):
        pass

    auto_global(P, S0)(Left)
    m = Bottom()
    seen.clear()
    m.new = parameter(A)
    m.register_buffer("seen", tensor(A + 1))
    assert seen == ["new", "buffer seen"]
    assert_global(m.new, A, P, S0)
    assert_global(m.seen, A + 1, P, B)


def test_it_can_be_applied_again_on_a_subclass(P, rank, world):
    base = decorated(P, S0, source="shard")
    below = decorated(P, S1, base=base)
    m, old = below(), base()
    m.new, old.new = parameter(A), parameter(counted(4, 4, start=16 * rank))
    assert_global(m.new, A, P, S1)
    assert_global(old.new, counted(4 * world, 4), P, S0)
