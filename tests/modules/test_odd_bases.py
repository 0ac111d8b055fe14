"""Mixins, cooperative constructors, metaclasses: bases of their own, in a scope and decorated."""

from __future__ import annotations

import abc

import pytest
from oneflow import nn

from autoglobal.tensors import convert
from tests.helpers.support import (
    S0,
    assert_global,
    counted,
    local_names,
    parameter,
    tensor,
    tensors,
)
from tests.modules.test_odd_classes import converting

A = counted(8, 4)

HOWS = pytest.mark.parametrize("how", ["scope", "decorated", "both"])


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
    if convert.in_place:  # a new Parameter goes through the class's own __setattr__ once more
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
