"""Decorated classes: too early, of the wrong type, again, ``None`` and ``del``."""

from __future__ import annotations

import pytest
from oneflow import nn

from autoglobal import auto_global, global_scope
from tests.helpers.support import (
    S0,
    B,
    Model,
    Snapshot,
    assert_global,
    counted,
    error_of,
    linear,
    local_names,
    parameter,
    tensor,
    tensors,
)
from tests.helpers.trees import globally
from tests.modules.test_own_errors import EARLY, WRONG, Filled, left_local

A = counted(8, 4)
KINDS = pytest.mark.parametrize("kind", ["stated", "follows"])


def decorated(P, kind: str, base: type, name: str) -> type:
    cls = type(name, (base,), {"__module__": base.__module__})
    return auto_global(cls) if kind == "follows" else auto_global(P, S0)(cls)


def early(base: type, action, value) -> nn.Module:
    class Early(base):
        def __init__(self):
            action(self, value)
            super().__init__()

    return Early()


@KINDS
@pytest.mark.parametrize("case", EARLY)
def test_before_the_constructor_of_module(P, kind, case):
    make, action = EARLY[case]
    expected = error_of(lambda: early(nn.Module, action, make()))
    value = make()
    base = decorated(P, kind, nn.Module, "Base")
    found = error_of(lambda: early(base, action, value))
    assert isinstance(expected, AttributeError)
    assert (type(found), str(found)) == (type(expected), str(expected))
    assert left_local(value)


def filled_locally(cls: type) -> nn.Module:
    """What the class ``Filled`` fills itself with, without a conversion."""
    m = cls.__new__(cls)
    m.__dict__.update(vars(Filled()))
    return m


@KINDS
@pytest.mark.parametrize("case", WRONG)
def test_the_error_is_oneflows_own(P, kind, case):
    make, action = WRONG[case]
    expected = error_of(lambda: action(Filled(), make()))
    m, value = filled_locally(decorated(P, kind, Filled, "Filled")), make()
    m._parameters["old"] = globally(A, P, B)
    before = Snapshot(m)
    found = error_of(lambda: action(m, value))
    assert expected is not None
    assert (type(found), str(found)) == (type(expected), str(expected))
    assert left_local(value)
    before.assert_unchanged()


@pytest.mark.ranks(2, 4)
@KINDS
def test_nothing_is_sent_before_the_error(P, rank, kind):
    """On one rank only, which would otherwise wait for the others until the time limit."""
    cls = decorated(P, kind, Filled, "Filled")
    base = decorated(P, kind, nn.Module, "Base")
    m = Model()
    m.sub = filled_locally(cls)
    m.sub._parameters["old"] = globally(A, P, B)
    if rank == 0:
        for make, action in WRONG.values():
            value = make()
            assert error_of(lambda a=action, v=value: a(m.sub, v)) is not None
        for make, action in EARLY.values():
            value = make()
            assert error_of(lambda a=action, v=value: early(base, a, v)) is not None
    m.sub.new = parameter(A)
    assert_global(m.sub.new, A, P, S0 if kind == "stated" else B)


def target(P, how: str) -> tuple[nn.Module, object]:
    """A module that converts, and the sbp that it converts to."""
    if how == "follows":
        m = decorated(P, "follows", Model, "Layer")()
        m.old = globally(A, P, S0)
        return m, B
    if how == "stated":
        return decorated(P, "stated", Model, "Layer")(), S0
    return Model(), S0


@pytest.mark.parametrize("how", ["scope", "stated", "follows"])
def test_again_none_and_del(P, how):
    m, sbp = target(P, how)
    layers = [linear(A + start) for start in range(4)]

    def act():
        m.p, m.sub = parameter(A), layers[0]
        m.register_buffer("seen", tensor(A))
        first = m.p
        m.p, m.sub, m.seen = parameter(A + 1), layers[1], tensor(A + 1)
        assert_global(first, A, P, sbp)
        assert_global(m.p, A + 1, P, sbp)
        assert_global(m.sub.weight, A + 1, P, sbp)
        assert_global(m.seen, A + 1, P, B)
        m.p = m.sub = m.seen = None
        assert (m.p, m.sub, m.seen) == (None, None, None)
        assert "p" in m._parameters
        assert "sub" in m._modules
        assert "seen" in m._buffers
        m.p, m.sub, m.seen = parameter(A + 2), layers[2], tensor(A + 2)
        assert_global(m.p, A + 2, P, sbp)
        assert_global(m.sub.weight, A + 2, P, sbp)
        assert_global(m.seen, A + 2, P, B)
        del m.p, m.sub, m.seen
        assert [name for name in tensors(m) if name != "old"] == []
        assert not hasattr(m, "p")
        with pytest.raises(AttributeError):
            del m.nothing
        m.p = layers[3]
        m.p = parameter(A + 4)
        assert list(m._modules) == []
        m.register_parameter("none", None)
        m.register_buffer("nothing", None)
        m.add_module("no_module", None)
        assert (m.none, m.nothing, m.no_module) == (None, None, None)

    if how == "scope":
        with global_scope(P, S0):
            act()
    else:
        act()
    assert_global(m.p, A + 4, P, sbp)
    assert local_names(m) == []


@pytest.mark.parametrize("how", ["scope", "stated", "follows"])
def test_assigning_what_it_holds_already(P, how):
    (m, sbp), layer = target(P, how), linear(A)

    def act():
        m.p, m.sub = parameter(A), layer
        m.p, m.q, m.sub = m.p, m.p, m.sub

    if how == "scope":
        with global_scope(P, S0):
            act()
    else:
        act()
    assert m.p is m.q
    assert_global(m.p, A, P, sbp)
    assert_global(m.sub.weight, A, P, sbp)
