"""The way of OneFlow 1.0 and later: a new Parameter takes the place of a local one.

0.9.0 changes a local Parameter in place, so here the other way is forced.
"""

from __future__ import annotations

import numpy as np
import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import (
    DivergenceError,
    _compat,
    auto_global,
    global_scope,
    local_scope,
    local_to_global,
    optimizer_to_global,
)
from tests.helpers.support import (
    S0,
    B,
    Model,
    Snapshot,
    assert_global,
    assert_local,
    counted,
    linear,
    local_names,
    parameter,
    tensor,
)

A = counted(8, 4)


@pytest.fixture(autouse=True)
def _replacing(monkeypatch):
    monkeypatch.setattr(_compat, "can_replace_data", lambda: False)


def test_the_callers_parameter_stays_as_it_was(P):
    m, p = Model(), parameter(A)
    with global_scope(P, S0):
        m.new = p
    assert m.new is not p
    assert isinstance(m.new, nn.Parameter)
    assert_global(m.new, A, P, S0)
    assert_local(p, A)


@pytest.mark.parametrize("when", ["assign", "exit"])
def test_one_parameter_under_two_names_stays_one(P, when):
    """accelerate#3668: a new Parameter for each assignment unties weights."""
    m, other, p = Model(), Model(), parameter(A)
    with global_scope(P, S0, when=when) as scope:
        m.new = p
        other.again = p
    assert m.new is other.again
    assert len(scope.converted) == 1


def test_one_parameter_in_two_assignments_to_a_decorated_class_stays_one(P):
    """accelerate#3668, where no scope is there to remember."""

    @auto_global(P, S0)
    class Tied(nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.first = weight
            self.second = weight

    m = Tied(parameter(A))
    assert m.first is m.second
    assert_global(m.first, A, P, S0)


def test_a_subclass_and_its_attributes_are_kept(P):
    class Tagged(nn.Parameter):
        def tagged(self):
            return self.tag

    m, p = Model(), Tagged(tensor(A))
    p.tag = "column"
    p.requires_grad_(False)
    with global_scope(P, S0):
        m.new = p
    assert type(m.new) is Tagged
    assert m.new.tagged() == "column"
    assert not m.new.requires_grad


def test_the_gradient_is_carried(P):
    m, p = Model(), parameter(A)
    p.grad = tensor(A + 1)
    with global_scope(P, S0):
        m.new = p
    assert_global(m.new.grad, A + 1, P, S0)


def test_an_rnns_cache_is_refreshed(P):
    m = Model()
    m.lstm = nn.LSTM(4, 8)
    local_to_global(m, P, B)
    assert all(one is two for one, two in zip(m.lstm._flat_weights, m.lstm.parameters()))
    assert all(weight.is_global for weight in m.lstm._flat_weights)


def test_an_optimizer_made_before_follows(P):
    m = Model()
    m.new = parameter(A)
    optimizer = flow.optim.SGD(m.parameters(), lr=0.5, momentum=0.5)
    (m.new * 2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    local_to_global(m, P, S0)
    optimizer_to_global(optimizer)
    assert optimizer.param_groups[0].parameters[0] is m.new
    (m.new * 2).sum().backward()
    optimizer.step()
    # Steps of 0.5 * 2, and then of 0.5 * (2 + 0.5 * 2).
    assert_global(m.new, A - 1 - 1.5, P, S0)


def test_what_nobody_else_holds_is_not_kept(P):
    from autoglobal.conversion import apply

    m = Model()
    m.new, held = parameter(A), parameter(A + 1)
    m.held = held
    local_to_global(Model(), P, B)
    before = len(apply._replaced)
    local_to_global(m, P, B)
    assert len(apply._replaced) == before + 1
    assert apply.replacement(held) is m.held
    del held
    local_to_global(Model(), P, B)
    assert len(apply._replaced) == before


def test_an_impossible_tensor_leaves_everything(P, world):
    m = Model()
    m.new, m.bias = parameter(A), parameter(np.float32(1).reshape(()))
    m.last = parameter(counted(8))
    old = dict(m.named_parameters())
    with pytest.raises(RuntimeError, match=r"Model\.last"):
        local_to_global(m, P, flow.sbp.split(1))
    assert all(now is old[name] and now.is_local for name, now in m.named_parameters())


@pytest.mark.parametrize("nested", [True, False])
def test_two_scopes_that_differ_over_a_tie(P, nested):
    """The first decides, as it does where the Parameter is changed in place."""
    m, p = Model(), parameter(A)
    with global_scope(P, B):
        m.first = p
        if nested:
            with global_scope(P, S0):
                m.second = p
    if not nested:
        with global_scope(P, S0):
            m.second = p
    assert m.first is m.second
    assert m.first.sbp == (B,)


def test_an_rnn_below_a_class_that_states_its_layout(P):
    @auto_global(P, S0)
    class Stating(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(4, 8)

    with local_scope():
        layer = Stating()
    m = Model()
    with global_scope(P, B, existing="convert"):
        m.layer = layer
    assert all(weight.sbp == (S0,) for weight in layer.rnn.parameters())
    assert all(one is two for one, two in zip(layer.rnn._flat_weights, layer.rnn.parameters()))


class Choosy(nn.Module):
    """Takes a local Parameter, and refuses the global one that is to take its place."""

    is_choosy = True

    def __setattr__(self, name, value):
        if isinstance(value, nn.Parameter) and value.is_global and self.is_choosy:
            raise ValueError("no global one here")
        super().__setattr__(name, value)


@pytest.mark.parametrize("refuses", ["all", "one"])
def test_what_was_put_before_a_class_refuses_is_put_back(P, rank, world, refuses):
    """On all ranks, also where the class refuses on one of them alone."""
    sub = Model()
    sub.first, sub.choosy = linear(A), Choosy()
    sub.choosy.last = parameter(A)
    sub.register_buffer("seen", tensor(A))
    sub.choosy.is_choosy = refuses == "all" or rank == world - 1
    m, before = Model(), Snapshot(sub)
    own = ValueError if sub.choosy.is_choosy else DivergenceError
    with global_scope(P, B) as scope:
        with pytest.raises(own, match=r"no global one|refused on another rank"):
            m.sub = sub
        before.assert_unchanged()
        assert not hasattr(m, "sub")
        assert scope.converted == []
        sub.choosy.is_choosy = False
        m.sub = sub
    assert local_names(m) == []


def test_a_call_that_a_class_refuses_on_one_rank_leaves_no_message_behind(P, rank, world):
    sub = Choosy()
    sub.last = parameter(A)
    sub.is_choosy = rank == world - 1
    before = Snapshot(sub)
    with pytest.raises(ValueError if sub.is_choosy else DivergenceError):
        local_to_global(sub, P, B)
    before.assert_unchanged()
    sub.is_choosy = False
    local_to_global(sub, P, B)
    assert local_names(sub) == []


@pytest.mark.parametrize("when", ["assign", "exit", "call"])
@pytest.mark.parametrize("built", ["in no tree yet", "in a local scope"])
def test_a_tie_to_a_module_that_was_not_converted_itself(P, when, built):
    """In place the one Parameter would be global for both."""
    m, other = Model(), nn.LSTM(4, 4)
    p = parameter(counted(16, 4))
    if when == "call":
        m.new = other.weight_hh_l0 = p
        local_to_global(m, P, S0)
    else:
        with global_scope(P, S0, when=when):
            m.new = p
            if built == "in a local scope":
                with local_scope():
                    other.weight_hh_l0 = p
            else:
                other._parameters["weight_hh_l0"] = p
    assert other.weight_hh_l0 is m.new
    assert_global(m.new, counted(16, 4), P, S0)
    assert other.weight_ih_l0.is_local
    assert any(one is m.new for weights in other.all_weights for one in weights)
