"""Every way in which a tensor is registered on a module (Oneflow-Inc/oneflow#8869)."""

from __future__ import annotations

import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import global_scope
from tests.helpers.support import (
    S0,
    B,
    Model,
    assert_global,
    assert_local,
    counted,
    parameter,
    tensor,
)

A = counted(8, 4)


def test_a_local_parameter_becomes_global_as_it_is_assigned(P):
    """Oneflow-Inc/oneflow#8869: the local Parameter that extends a global model."""
    m = Model()
    with global_scope(P, S0):
        m.new = parameter(A)
        assert m.new.is_global, "converted as it is assigned, not as the scope closes"
    assert_global(m.new, A, P, S0)


def test_the_rest_of_the_model_is_left_as_it_is(P, world):
    """Oneflow-Inc/oneflow#8869: Module.to_global would have made ``param`` split too."""
    m = Model()
    m.param = parameter(A).to_global(P, B)
    m.local = parameter(A)
    before = m.param
    with global_scope(P, S0):
        m.new = parameter(A)
    assert m.new.is_global
    assert m.param is before
    assert m.param.sbp == (B,)
    assert_local(m.local, A)


@pytest.mark.in_place
def test_zeros_of_4_by_4_keep_their_logical_shape(P, world):
    m = Model()
    p = nn.Parameter(flow.zeros(4, 4))
    with global_scope(P, S0):
        m.new = p
    assert m.new is p
    assert tuple(m.new.shape) == (4, 4)
    assert tuple(m.new.to_local().shape) == (4 // world, 4)


def test_register_parameter(P):
    m = Model()
    with global_scope(P, S0):
        m.register_parameter("new", parameter(A))
    assert_global(m.new, A, P, S0)


def test_register_parameter_with_keywords(P):
    m = Model()
    with global_scope(P, S0):
        m.register_parameter(name="new", param=parameter(A))
    assert_global(m.new, A, P, S0)


def test_register_buffer(P):
    m = Model()
    with global_scope(P, S0):
        m.register_buffer("new", tensor(A))
    assert_global(m.new, A, P, B)
    assert list(m._buffers) == ["new"]


def test_register_buffer_with_keywords(P):
    m = Model()
    with global_scope(P, S0):
        m.register_buffer(persistent=False, tensor=tensor(A), name="new")
    assert_global(m.new, A, P, B)
    assert m._non_persistent_buffers_set == {"new"}


def test_assignment_to_an_existing_buffer(P):
    m = Model()
    m.register_buffer("new", flow.zeros(2))
    with global_scope(P, S0):
        m.new = tensor(A)
    assert_global(m.new, A, P, B)
    assert list(m._buffers) == ["new"]
    assert "new" not in vars(m)


def test_assignment_to_a_buffer_registered_as_none(P):
    m = Model()
    with global_scope(P, S0):
        m.register_buffer("new", None)
        m.new = tensor(A)
    assert_global(m.new, A, P, B)


def test_a_buffer_replaced_by_a_parameter(P):
    m = Model()
    with global_scope(P, S0):
        m.register_buffer("new", tensor(A))
        m.new = parameter(A + 1)
    assert_global(m.new, A + 1, P, S0)
    assert list(m._parameters) == ["new"]
    assert list(m._buffers) == []


def test_a_parameter_assigned_again(P):
    m = Model()
    with global_scope(P, S0):
        m.new = parameter(A)
        m.new = parameter(A + 1)
    assert_global(m.new, A + 1, P, S0)


def test_setattr(P):
    m = Model()
    with global_scope(P, S0):
        setattr(m, "new", parameter(A))  # noqa: B010
    assert_global(m.new, A, P, S0)


@pytest.mark.parametrize("how", ["positional", "keywords", "all keywords"])
def test_unbound_setattr(P, how):
    m = Model()
    p = parameter(A)
    with global_scope(P, S0):
        if how == "positional":
            nn.Module.__setattr__(m, "new", p)
        elif how == "keywords":
            nn.Module.__setattr__(m, value=p, name="new")
        else:
            nn.Module.__setattr__(value=p, name="new", self=m)
    assert_global(m.new, A, P, S0)


@pytest.mark.parametrize("how", ["positional", "keywords", "all keywords"])
def test_unbound_register_parameter(P, how):
    """GrahamDumpleton/wrapt#256: a wrapper that is reached through its class must not bind."""
    m = Model()
    p = parameter(A)
    with global_scope(P, S0):
        if how == "positional":
            nn.Module.register_parameter(m, "new", p)
        elif how == "keywords":
            nn.Module.register_parameter(m, param=p, name="new")
        else:
            nn.Module.register_parameter(param=p, name="new", self=m)
    assert_global(m.new, A, P, S0)


def test_unbound_register_buffer(P):
    m = Model()
    with global_scope(P, S0):
        nn.Module.register_buffer(m, "new", tensor(A), False)
    assert_global(m.new, A, P, B)
    assert m._non_persistent_buffers_set == {"new"}


def test_setattr_in_a_subclass(P):
    class Own(nn.Module):
        def __setattr__(self, name, value):
            super().__setattr__("own_" + name if name == "new" else name, value)

    m = Own()
    with global_scope(P, S0):
        m.new = parameter(A)
    assert_global(m.own_new, A, P, S0)


def test_register_parameter_in_a_subclass(P):
    class Own(nn.Module):
        def register_parameter(self, name, param):
            super().register_parameter(name + "_", param)

    m = Own()
    with global_scope(P, S0):
        m.new = parameter(A)
    assert_global(m.new_, A, P, S0)


def test_assignment_in_a_constructor(P):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.new = parameter(A)
            self.register_buffer("seen", tensor(A))

    with global_scope(P, S0):
        m = Own()
    assert_global(m.new, A, P, S0)
    assert_global(m.seen, A, P, B)
