"""One conversion, never two, whatever a class has between it and ``Module``."""

from __future__ import annotations

import contextlib

import pytest
from oneflow import nn

from autoglobal import auto_global, global_scope
from tests.helpers.support import (
    S0,
    S1,
    Model,
    assert_global,
    counted,
    parameter,
)

A = counted(8, 4)


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
