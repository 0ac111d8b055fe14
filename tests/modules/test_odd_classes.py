"""Classes with hooks, metaclasses, mixins and bases of their own, in a scope and decorated."""

from __future__ import annotations

import abc
import contextlib

import pytest
from oneflow import nn

from autoglobal import _compat, auto_global, global_scope
from tests.helpers.support import (
    S0,
    B,
    Model,
    assert_global,
    assert_local,
    counted,
    error_of,
    linear,
    local_names,
    parameter,
    tensor,
    tensors,
)

A = counted(8, 4)
HOWS = pytest.mark.parametrize("how", ["scope", "decorated", "both"])


@contextlib.contextmanager
def converting(how: str, P, cls: type, **options):
    """Makes ``cls`` convert to S0: in a scope, decorated, or decorated in a scope of B."""
    if how == "scope":
        with global_scope(P, S0, **options):
            yield cls
    elif how == "decorated":
        yield auto_global(P, S0, **options)(cls)
    else:
        with global_scope(P, B, **options):
            yield auto_global(P, S0, **options)(cls)


@HOWS
def test_a_setattr_that_stores_the_value_before_super(P, how):
    class Layer(nn.Module):
        def __setattr__(self, name, value):
            self.__dict__.setdefault("seen", []).append((name, value))
            self.__dict__["last"] = value
            super().__setattr__(name, value)

    p, layer = parameter(A), linear(A)
    with converting(how, P, Layer) as cls:
        m = cls()
        m.new, m.sub, m.number = p, layer, 3
    assert_global(m.new, A, P, S0)
    assert_global(m.sub.weight, A, P, S0)
    assert dict(m.seen)["new"] is m.new
    assert [name for name, _ in m.seen][-2:] == ["sub", "number"]
    if _compat.can_replace_data():
        assert m.new is p
        assert [name for name, _ in m.seen].count("new") == 1
    assert m.last == 3


@HOWS
def test_a_getattr_that_forwards_to_an_inner_module(P, how):
    class Layer(nn.Module):
        asked = ()

        def __getattr__(self, name):
            Layer.asked = (*Layer.asked, name)
            try:
                return super().__getattr__(name)
            except AttributeError:
                if name == "inner":
                    raise
                return getattr(self.inner, name)

    def build(cls):
        Layer.asked = ()
        m = cls()
        m.inner = inner()
        m.new = parameter(A)
        m.register_buffer("seen", tensor(A))
        return m, Layer.asked

    def inner():
        made = Model()
        made.__dict__["plain"] = 3
        made._parameters["weight"] = parameter(A + 1)
        return made

    _, asked = build(Layer)
    with converting(how, P, Layer) as cls:
        m, inside = build(cls)
    assert inside == asked  # the hook itself asks for nothing
    assert m.plain == 3
    assert_global(m.new, A, P, S0)
    assert_global(m.seen, A, P, B)
    assert m.weight is m.inner.weight
    assert_global(m.weight, A + 1, P, S0)


@HOWS
def test_a_property_with_a_setter(P, how):
    class Layer(nn.Module):
        @property
        def value(self):
            return self.held

        @value.setter
        def value(self, value):
            self.__dict__["got"] = value
            self.held = nn.Parameter(value)

    outside, t, p = Layer(), tensor(A), parameter(A)
    outside.value = tensor(A)
    expected = error_of(lambda: setattr(outside, "value", parameter(A)))
    assert isinstance(expected, KeyError)  # OneFlow registers a Parameter past the setter
    with converting(how, P, Layer) as cls:
        m = cls()
        m.value = t
        found = error_of(lambda: setattr(m, "value", p))
    assert m.got is t
    assert t.is_local
    assert m.value is m.held
    assert_global(m.held, A, P, S0)
    assert list(tensors(m)) == ["held"]
    assert (type(found), str(found)) == (type(expected), str(expected))
    assert p.is_local


@HOWS
def test_slots(P, how):
    class Layer(nn.Module):
        __slots__ = ("other", "slot")

    t = tensor(A)
    with converting(how, P, Layer) as cls:
        m = cls()
        m.slot, m.other, m.new = t, parameter(A + 1), parameter(A)
    assert m.slot is t
    assert_local(m.slot, A)
    assert_global(m.other, A + 1, P, S0)
    assert_global(m.new, A, P, S0)
    assert list(tensors(m)) == ["other", "new"]


def test_a_class_defined_and_decorated_inside_a_scope(P, rank, world):
    """microsoft/DeepSpeed#2812: what the scope has put on Module does not go into the class."""
    with global_scope(P, B, source="shard"):

        @auto_global(P, S0, source="shard")
        class Layer(nn.Module):
            pass

        inside = Layer()
        inside.new = parameter(counted(4, 4, start=16 * rank))
    outside = Layer()
    outside.new = parameter(counted(4, 4, start=16 * rank))
    with global_scope(P, B, source="shard"):
        later = Layer()
        later.new = parameter(counted(4, 4, start=16 * rank))
    for m in (inside, outside, later):
        assert_global(m.new, counted(4 * world, 4), P, S0)
    plain = Model()
    plain.new = parameter(A)
    assert_local(plain.new, A)


def test_a_class_that_takes_modules_methods_from_inside_a_scope(P, rank, world):
    """microsoft/DeepSpeed#2812; what it took is inert afterwards, and converts once."""
    with global_scope(P, S0):

        class Layer(nn.Module):
            __setattr__ = nn.Module.__setattr__
            register_parameter = nn.Module.register_parameter

    m = Layer()
    m.new = parameter(A)
    assert_local(m.new, A)
    with global_scope(P, S0, source="shard"):
        m.other = parameter(counted(4, 4, start=16 * rank))
    assert_global(m.other, counted(4 * world, 4), P, S0)


class Mixin:
    """Cooperative, with something of each kind."""

    calls = ()

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.mixed = parameter(A + 1)

    def __setattr__(self, name, value):
        self.__dict__["calls"] = (*self.calls, name)
        super().__setattr__(name, value)

    def register_parameter(self, name, param):
        self.__dict__["calls"] = (*self.calls, f"register {name}")
        super().register_parameter(name, param)


@HOWS
@pytest.mark.parametrize("side", ["before", "after"])
def test_a_mixin_on_either_side_of_module(P, how, side):
    """pytorch/pytorch#74036: Module's constructor does not call the next one."""
    bases = (Mixin, nn.Module) if side == "before" else (nn.Module, Mixin)

    def build(cls):
        m = cls()
        m.new = parameter(A)
        m.register_buffer("seen", tensor(A))
        return m

    outside = build(type("Layer", bases, {}))
    with converting(how, P, type("Layer", bases, {})) as cls:
        m = build(cls)
    if (
        _compat.can_replace_data()
    ):  # a new Parameter goes through the class's own __setattr__ once more
        assert m.calls == outside.calls
    assert bool(m.calls) == (side == "before")
    assert list(vars(m)) == list(vars(outside))
    assert list(tensors(m)) == list(tensors(outside))
    assert_global(m.new, A, P, S0)
    assert local_names(m) == []
    if side == "before":
        assert_global(m.mixed, A + 1, P, S0)


@HOWS
def test_a_cooperative_constructor_with_arguments(P, how):
    """pytorch/pytorch#74036"""

    class Sized:
        def __init__(self, rows, **kwargs):
            super().__init__(**kwargs)
            self.rows = rows
            self.sized = parameter(counted(rows, 4))

    class Named:
        def __init__(self, *, name, **kwargs):
            super().__init__(**kwargs)
            self.title = name
            self.named = parameter(A + 1)

    class Layer(Sized, Named, nn.Module):
        def __init__(self, rows, name):
            super().__init__(rows, name=name)
            self.new = parameter(A)

    with converting(how, P, Layer) as cls:
        m = cls(8, "it")
    assert (m.rows, m.title) == (8, "it")
    for found, array in ((m.sized, A), (m.named, A + 1), (m.new, A)):
        assert_global(found, array, P, S0)


@HOWS
def test_the_constructor_of_module_run_twice(P, how):
    """As in a diamond whose two arms call it by name: the second run empties the registries."""

    class Left(nn.Module):
        def __init__(self):
            nn.Module.__init__(self)
            self.left = parameter(A)

    class Right(nn.Module):
        def __init__(self):
            nn.Module.__init__(self)
            self.right = parameter(A + 1)

    class Layer(Left, Right):
        def __init__(self):
            Left.__init__(self)
            Right.__init__(self)
            self.new = parameter(A + 2)

    outside = Layer()
    with converting(how, P, Layer) as cls:
        m = cls()
        again = cls()
        nn.Module.__init__(again)
        again.new = parameter(A)
    assert list(tensors(m)) == list(tensors(outside))
    assert_global(m.right, A + 1, P, S0)
    assert_global(m.new, A + 2, P, S0)
    assert_global(again.new, A, P, S0)


@HOWS
def test_a_metaclass(P, how):
    calls = []

    class Meta(abc.ABCMeta):
        def __call__(cls, *args):
            made = super().__call__(*args)
            calls.append(cls.__name__)
            made.after = parameter(A + 1)
            return made

    class Layer(nn.Module, metaclass=Meta):
        def __init__(self, array):
            super().__init__()
            self.new = parameter(array)

        @abc.abstractmethod
        def forward(self):
            pass

    class Concrete(Layer):
        def forward(self):
            return self.new

    with converting(how, P, Layer):
        m = Concrete(A)
        with pytest.raises(TypeError, match="abstract"):
            Layer(A)
    assert type(Layer) is Meta
    assert calls == ["Concrete"]
    assert_global(m.new, A, P, S0)
    assert_global(m.after, A + 1, P, S0)
