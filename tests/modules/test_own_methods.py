"""Classes with methods of their own between them and ``Module``: one conversion, never two.

Decorated ones that register something else than they are given, or have an odd metaclass.
"""

from __future__ import annotations

import contextlib

import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import auto_global, global_scope
from tests.helpers.support import (
    S0,
    S1,
    B,
    Model,
    assert_global,
    counted,
    linear,
    parameter,
    tensor,
)

A = counted(8, 4)


def test_a_setattr_that_renames(P):
    @auto_global(P, S0)
    class Renaming(nn.Module):
        def __setattr__(self, name, value):
            if isinstance(value, (nn.Module, flow.Tensor)):
                name = "my_" + name
            super().__setattr__(name, value)

    m = Renaming()
    m.sub, m.new = linear(A), parameter(A + 1)
    m.register_buffer("my_seen", None)
    m.seen = tensor(A + 2)
    assert_global(m.my_sub.weight, A, P, S0)
    assert_global(m.my_new, A + 1, P, S0)
    assert_global(m.my_seen, A + 2, P, B)


def test_a_register_buffer_that_renames(P):
    @auto_global(P, S0)
    class Renaming(nn.Module):
        def register_buffer(self, name, value, persistent=True):
            super().register_buffer("my_" + name, value, persistent)

    m = Renaming()
    m.register_buffer("seen", tensor(A))
    assert_global(m.my_seen, A, P, B)


def test_a_metaclass_that_compares_and_cannot_be_hashed(P):
    class Meta(type):
        def __eq__(cls, other):
            raise AssertionError("user code was called")

        __hash__ = None

    @auto_global(P, S0)
    class Other(nn.Module):
        pass

    kind = Meta("Odd", (nn.Module,), {})
    m = kind()
    with global_scope(P, S0):
        m.new = parameter(A)
    assert_global(m.new, A, P, S0)
    decorated = auto_global(P, B)(Meta("Odder", (nn.Module,), {}))()
    decorated.new = parameter(A)
    assert_global(decorated.new, A, P, B)
    assert Other.__name__ == "Other"


def test_an_average_that_is_updated_is_no_find(P):
    @auto_global(P, B, existing="error")
    class Averaging(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("average", tensor(A))

        def forward(self, x):
            self.average = self.average * 0.5 + x * 0.5
            return self.average

    m = Averaging()
    m(tensor(A + 2).to_global(P, B))
    assert_global(m.average, A + 1, P, B)


def own_setattr(base) -> type:
    class Own(base):
        def __setattr__(self, name, value):
            super().__setattr__(name, value)

    return Own


def own_register(base) -> type:
    class Own(base):
        def register_parameter(self, name, param):
            super().register_parameter(name, param)

        def register_buffer(self, name, tensor, persistent=True):
            super().register_buffer(name, tensor, persistent)

    return Own


def mixed_in(base) -> type:
    class Mixin:
        def __setattr__(self, name, value):
            super().__setattr__(name, value)

    return type("Own", (Mixin, base), {})


def unbound(base) -> type:
    class Own(base):
        def __setattr__(self, name, value):
            nn.Module.__setattr__(self, name, value)

    return Own


HOOKS = {
    "none": lambda base: base,
    "own setattr": own_setattr,
    "own register": own_register,
    "mixin": mixed_in,
    "unbound": unbound,
}


@pytest.mark.parametrize("where", ["below", "above"])
@pytest.mark.parametrize("case", HOOKS)
@pytest.mark.parametrize("scope", [False, True], ids=["alone", "in a scope"])
def test_one_conversion_whatever_is_between_it_and_module(P, rank, world, case, where, scope):
    """microsoft/DeepSpeed#6388. As shares a second conversion would show: more rows."""
    wrap, decorate = HOOKS[case], auto_global(P, S0, source="shard")
    if where == "above":
        cls = decorate(type("Layer", (wrap(Model),), {}))
    else:
        cls = wrap(decorate(type("Layer", (Model,), {})))
    m = cls()
    open_scope = global_scope(P, S1, source="shard") if scope else contextlib.nullcontext()
    with open_scope as active:
        m.new = parameter(counted(4, 4, start=16 * rank))
        m.register_parameter("registered", parameter(counted(4, 4, start=16 * rank)))
    assert_global(m.new, counted(4 * world, 4), P, S0)
    assert_global(m.registered, counted(4 * world, 4), P, S0)
    if scope:
        assert not [record for record in active.converted if record.sbp == (S1,)]
