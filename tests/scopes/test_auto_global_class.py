"""``@auto_global`` changes the class as little as can be, and no other class."""

from __future__ import annotations

import copy
import inspect
import pickle

import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import auto_global
from tests.helpers.scopes import METHODS
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


def decorated(P, sbp=S0, base=Model, **options) -> type:
    """A new subclass of ``base``, named Layer, with its decoration."""
    return auto_global(P, sbp, **options)(type("Layer", (base,), {}))


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
