"""The object, its type and its names stay; its storage is shared with nobody."""

from __future__ import annotations

import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import global_scope, local_to_global
from tests.helpers.support import (
    S0,
    B,
    Model,
    assert_global,
    assert_local,
    counted,
    linear,
    local_names,
    parameter,
    tensor,
)

A = counted(8, 4)
BOTH = pytest.mark.parametrize("sbp", [B, S0], ids=str)
SOURCES = pytest.mark.parametrize("source", ["full", "shard"])


class Tagged(nn.Parameter):
    """A Parameter subclass, as tensor-parallel layers define them."""

    def twice(self):
        return self * 2


@pytest.mark.in_place
def test_the_parameter_is_the_same_object(P):
    m, p = Model(), parameter(A)
    with global_scope(P, S0):
        m.new = p
    assert m.new is p
    assert p.is_global
    assert type(m.new) is nn.Parameter


@pytest.mark.in_place
def test_every_holder_of_the_parameter_sees_it_converted(P):
    m, p = Model(), parameter(A)
    state, held = {"p": p}, [p]
    with global_scope(P, S0):
        m.new = p
    assert_global(state["p"], A, P, S0)
    assert_global(held[0], A, P, S0)


@pytest.mark.in_place
def test_a_parameter_subclass_and_its_attributes(P):
    m, p = Model(), Tagged(tensor(A))
    p.tag = "column"
    with global_scope(P, S0):
        m.new = p
    assert m.new is p
    assert type(m.new) is Tagged
    assert m.new.tag == "column"
    assert_global(m.new.twice(), A * 2, P, S0)


@pytest.mark.in_place
def test_a_tensor_hook_is_kept(P):
    m, p, calls = Model(), parameter(counted(8)), []
    p.register_hook(lambda grad: calls.append(grad.is_global))
    with global_scope(P, S0):
        m.new = p
    m.new.sum().backward()
    assert calls
    assert all(calls)


@pytest.mark.parametrize("persistent", [True, False])
def test_persistence_of_a_buffer(P, persistent):
    m = Model()
    with global_scope(P, S0):
        m.register_buffer("seen", tensor(A), persistent)
        m.seen = tensor(A + 1)
    assert_global(m.seen, A + 1, P, B)
    assert ("seen" in m.state_dict()) is persistent


@pytest.mark.parametrize("persistent", [True, False])
def test_persistence_of_a_buffer_in_a_tree(P, persistent):
    m, sub = Model(), Model()
    sub.register_buffer("seen", tensor(A), persistent=persistent)
    with global_scope(P, S0):
        m.sub = sub
    assert_global(m.sub.seen, A, P, B)
    assert ("sub.seen" in m.state_dict()) is persistent


def test_none_entries(P):
    m = Model()
    with global_scope(P, S0):
        m.register_parameter("p", None)
        m.register_buffer("b", None)
        m.add_module("s", None)
    assert dict(m._parameters) == {"p": None}
    assert dict(m._buffers) == {"b": None}
    assert dict(m._modules) == {"s": None}


def test_none_entries_in_a_tree(P):
    m, layer = Model(), linear(counted(8, 4))
    layer.register_buffer("b", None)
    layer.add_module("s", None)
    with global_scope(P, S0):
        m.sub = layer
    assert_global(m.sub.weight, counted(8, 4), P, S0)
    assert (m.sub.bias, m.sub.b, m.sub.s) == (None, None, None)


def test_none_takes_the_place_of_what_was_there(P):
    m, layer = Model(), linear(counted(8, 4))
    with global_scope(P, S0) as scope:
        m.p, m.sub = parameter(A), layer
        m.register_buffer("b", tensor(A))
        m.p, m.sub, m.b = None, None, None
    assert dict(m._parameters) == {"p": None}
    assert dict(m._modules) == {"sub": None}
    assert dict(m._buffers) == {"b": None}
    assert [record.path for record in scope.converted] == ["p", "sub.weight", "b"]


def test_order_of_the_entries(P):
    layer = Model()
    for name in "cab":
        layer.register_parameter(name, parameter(A))
        layer.register_buffer(name + "_seen", tensor(A))
    m = Model()
    with global_scope(P, S0):
        m.sub = layer
    assert local_names(m) == []
    assert list(m.sub._parameters) == ["c", "a", "b"]
    assert list(m.sub._buffers) == ["c_seen", "a_seen", "b_seen"]


# Storage


@BOTH
@SOURCES
def test_a_write_to_the_tensor_behind_a_parameter_changes_nothing(P, world, sbp, source):
    m, t = Model(), tensor(A)
    with global_scope(P, sbp, source=source):
        m.new = nn.Parameter(t)
    before = m.new.detach().to_local().numpy().copy()
    t.add_(1000)
    after = m.new.detach().to_local().numpy()
    assert after.tolist() == before.tolist()


@BOTH
@SOURCES
def test_a_write_to_an_earlier_view_changes_nothing(P, sbp, source):
    m, p = Model(), parameter(A)
    view = p.data
    with global_scope(P, sbp, source=source):
        m.new = p
    before = m.new.detach().to_local().numpy().copy()
    view.add_(1000)
    assert m.new.detach().to_local().numpy().tolist() == before.tolist()


@BOTH
@SOURCES
def test_a_write_to_the_array_behind_a_parameter_changes_nothing(P, sbp, source):
    m, array = Model(), A.copy()
    with global_scope(P, sbp, source=source):
        m.new = nn.Parameter(flow.from_numpy(array))
    before = m.new.detach().to_local().numpy().copy()
    array += 1000
    assert m.new.detach().to_local().numpy().tolist() == before.tolist()


@pytest.mark.parametrize("buffers", ["broadcast", "sbp"])
@SOURCES
def test_a_write_to_the_callers_buffer_changes_nothing(P, buffers, source):
    m, t = Model(), tensor(A)
    with global_scope(P, S0, buffers=buffers, source=source):
        m.register_buffer("seen", t)
    before = m.seen.to_local().numpy().copy()
    t.add_(1000)
    assert m.seen.to_local().numpy().tolist() == before.tolist()


@BOTH
@SOURCES
def test_a_write_to_the_callers_gradient_changes_nothing(P, sbp, source):
    m, p, grad = Model(), parameter(A), tensor(A)
    p.grad = grad
    with global_scope(P, sbp, source=source):
        m.new = p
    before = m.new.grad.to_local().numpy().copy()
    grad.add_(1000)
    assert m.new.grad.to_local().numpy().tolist() == before.tolist()


@BOTH
def test_two_parameters_on_one_storage_part(P, sbp):
    """Two views of one tensor are two global tensors, equal on all ranks or on none."""
    m, t = Model(), tensor(A)
    with global_scope(P, sbp):
        m.a, m.b = nn.Parameter(t), nn.Parameter(t)
    m.a.data.add_(1000)
    assert_global(m.a, A + 1000, P, sbp)
    assert_global(m.b, A, P, sbp)


def test_the_callers_buffer_stays_local_with_its_own_values(P, rank):
    """The first rank's values go into the module, not into what the caller still holds."""
    m, t = Model(), tensor(A + 1000 * rank)
    with global_scope(P, S0):
        m.register_buffer("seen", t)
    assert m.seen is not t
    assert_local(t, A + 1000 * rank)


def test_a_write_to_the_converted_parameter_leaves_the_callers_tensor(P, rank):
    m, t = Model(), tensor(A + 1000 * rank)
    with global_scope(P, B):
        m.new = nn.Parameter(t)
    m.new.data.fill_(5)
    assert_local(t, A + 1000 * rank)


class ReadOnly(nn.Parameter):
    """Its data cannot be set, which is no business of whoever changes the tensor itself."""

    @property
    def data(self):
        return self.detach()


@pytest.mark.in_place
@pytest.mark.parametrize("how", ["assign", "call"])
def test_a_subclass_whose_data_cannot_be_set(P, how):
    m = Model()
    m.before, m.after = parameter(A), parameter(A)
    m.new = own = ReadOnly(tensor(A))
    if how == "call":
        local_to_global(m, P, S0)
    else:
        outer = Model()
        with global_scope(P, S0):
            outer.sub = m
    assert local_names(m) == []
    assert m.new is own
    assert_global(m.new, A, P, S0)
    # One Parameter decides nothing for the others.
    with global_scope(P, S0):
        m.next = p = parameter(A)
    assert m.next is p


class OwnGradient(nn.Parameter):
    """Its gradient cannot be set any more."""

    @property
    def grad(self):
        return flow.Tensor.grad.__get__(self)

    @grad.setter
    def grad(self, value):
        raise RuntimeError("not here")


@pytest.mark.in_place
def test_a_subclass_whose_gradient_cannot_be_set(P):
    m = Model()
    m.before, m.new, m.after = parameter(A), OwnGradient(tensor(A)), parameter(A)
    for p in m.parameters():
        flow.Tensor.grad.__set__(p, tensor(A + 1))
    local_to_global(m, P, S0)
    assert local_names(m) == []
    for p in m.parameters():
        assert_global(p.grad, A + 1, P, S0)


@BOTH
def test_a_transposed_parameter_keeps_its_values_and_becomes_contiguous(P, sbp):
    """As by OneFlow's own ``to_global``."""
    for convert in (
        lambda m: local_to_global(m, P, sbp).weight,
        lambda m: m.weight.to_global(P, B).to_global(sbp=sbp),
    ):
        m = Model()
        m.weight = nn.Parameter(tensor(counted(8, 4)).t())
        assert m.weight.stride() == (1, 4)
        found = convert(m)
        assert_global(found, counted(8, 4).T, P, sbp)
        assert found.stride() == found.to_local().stride() == (8, 1)
        assert found.t().is_contiguous(), "OneFlow makes a copy of what is global, and no view"
