"""What ``local_to_global`` keeps: ties, gradients, flags, caches, entries and their order."""

from __future__ import annotations

import numpy as np
import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import ConversionError, local_to_global
from tests.helpers.support import (
    S0,
    B,
    Model,
    Snapshot,
    assert_global,
    counted,
    linear,
    local_names,
    parameter,
    tensor,
)
from tests.helpers.trees import fill, waves

W = counted(8, 4)


def test_tied_weights_stay_tied(P):
    """huggingface/accelerate#3668: tied weights came untied."""
    m = nn.Sequential(linear(W), linear(W))
    m[1].weight = m[0].weight
    local_to_global(m, P, S0)
    assert m[0].weight is m[1].weight
    assert_global(m[1].weight, W, P, S0)


@pytest.mark.in_place
def test_a_weight_tied_to_one_outside_of_the_module(P):
    m, other = linear(W), linear(W)
    other.weight = m.weight
    local_to_global(m, P, S0)
    assert_global(other.weight, W, P, S0)
    assert other.weight is m.weight


def test_a_shared_buffer_stays_shared(P):
    m, held = nn.Sequential(Model(), Model()), tensor(W)
    for child in m:
        child.register_buffer("seen", held)
    local_to_global(m, P, S0)
    assert m[0].seen is m[1].seen
    assert_global(m[0].seen, W, P, B)
    assert held.is_local


def test_a_module_reached_twice(P):
    layer = linear(W)
    m = local_to_global(nn.Sequential(layer, nn.ReLU(), layer), P, S0)
    assert m[0] is m[2] is layer
    assert_global(layer.weight, W, P, S0)


def test_none_entries(P):
    m = linear(W)
    m.register_buffer("b", None)
    m.add_module("s", None)
    local_to_global(m, P, S0)
    assert_global(m.weight, W, P, S0)
    assert (m.bias, m.b, m.s) == (None, None, None)


@pytest.mark.parametrize("sbp", [B, S0], ids=str)
def test_the_gradient_is_converted_too(P, rank, sbp):
    m = linear(counted(8, 4, start=1000 * rank))
    m.weight.grad = tensor(counted(8, 4, start=50 + 1000 * rank))
    local_to_global(m, P, sbp)
    assert_global(m.weight.grad, counted(8, 4, start=50), P, sbp)
    (m.weight * 3).sum().backward()
    assert_global(m.weight.grad.to_global(P, sbp), counted(8, 4, start=53), P, sbp)


def test_frozen_parameters_stay_frozen(P):
    m = linear(W, counted(8))
    m.weight.requires_grad_(False)
    local_to_global(m, P, S0)
    assert local_names(m) == []
    assert (m.weight.requires_grad, m.bias.requires_grad) == (False, True)
    assert m.bias.is_leaf


def test_a_parameter_subclass_and_its_attributes(P):
    class Tagged(nn.Parameter):
        pass

    m = Model()
    m.new = Tagged(tensor(W))
    m.new.tag = "column"
    local_to_global(m, P, S0)
    assert type(m.new) is Tagged
    assert m.new.tag == "column"
    assert_global(m.new, W, P, S0)


@pytest.mark.in_place
def test_an_optimizer_made_before_moves_the_weights(P):
    m = linear(W)
    optimizer = flow.optim.SGD(m.parameters(), lr=0.5)
    local_to_global(m, P, S0)
    (m.weight * 2).sum().backward()
    optimizer.step()
    assert_global(m.weight, W - 1, P, S0)


def test_order_of_the_entries(P):
    m = Model()
    for name in "cab":
        m.register_parameter(name, parameter(W))
        m.register_buffer(name + "_seen", tensor(W), persistent=name != "a")
    local_to_global(m, P, S0)
    assert local_names(m) == []
    assert list(m._parameters) == ["c", "a", "b"]
    assert list(m._buffers) == ["c_seen", "a_seen", "b_seen"]
    assert list(m.state_dict()) == ["c", "a", "b", "c_seen", "b_seen"]


def test_no_storage_is_shared_with_the_caller(P):
    held, seen = tensor(W), tensor(counted(8))
    m = Model()
    m.new = nn.Parameter(held)
    m.register_buffer("seen", seen)
    local_to_global(m, P, B)
    held.add_(1000)
    seen.add_(1000)
    assert_global(m.new, W, P, B)
    assert_global(m.seen, counted(8), P, B)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN], ids=lambda kind: kind.__name__)
def test_the_cache_of_weights_of_a_nested_recurrent_layer(P, kind):
    """Oneflow-Inc/oneflow#8869: Module._apply leaves this cache local."""
    m = Model()
    m.sub = Model()
    m.sub.rnn = kind(3, 4, num_layers=2, bidirectional=True)
    local_to_global(m, P, S0)
    assert local_names(m) == []
    rnn = m.sub.rnn
    named = [rnn._parameters[name] for name in rnn._flat_weights_names]
    assert len(named) == len(rnn._flat_weights)
    assert all(a is b for a, b in zip(named, rnn._flat_weights))


@pytest.mark.parametrize("sbp", [B, S0], ids=str)
def test_a_nested_lstm_computes_what_the_local_one_does(P, rank, sbp):
    """Locally OneFlow can run it on rank 0 only: the other ranks take part, rank 0 compares."""
    m = Model()
    m.rnn = fill(nn.LSTM(3, 4))
    x = waves(5, 2, 3, seed=9)
    expected = m.rnn(tensor(x))[0].detach().numpy() if rank == 0 else None
    local_to_global(m, P, sbp)
    found = m.rnn(tensor(x).to_global(P, B))[0].numpy()
    if rank == 0:
        np.testing.assert_allclose(found, expected, atol=1e-6)
        assert np.abs(expected).max() > 0.1


def wrapped() -> nn.Module:
    return flow.nn.parallel.DistributedDataParallel(linear(W, counted(8)))


def test_a_module_wrapped_for_data_parallelism_is_refused(P):
    m = wrapped()
    before = Snapshot(m)
    with pytest.raises(ConversionError, match="DistributedDataParallel") as caught:
        local_to_global(m, P, B)
    before.assert_unchanged()
    assert local_names(m) == ["weight", "bias"]
    text = str(caught.value)
    assert "Linear" in text
    assert len(text.split("DistributedDataParallel", 1)[1].split()) > 5, "a reason and a way out"


def test_a_module_wrapped_for_data_parallelism_inside_another_is_refused(P):
    m = Model()
    m.first, m.body = linear(W), wrapped()
    before = Snapshot(m)
    with pytest.raises(ConversionError, match=r"(?s)body.*DistributedDataParallel|Dist.*body"):
        local_to_global(m, P, B)
    before.assert_unchanged()


def test_a_wrapped_module_that_holds_no_tensor_itself_is_refused(P):
    """OneFlow marks the module that was wrapped, and its tensors are below."""
    m = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 4)))
    with pytest.raises(ConversionError, match="DistributedDataParallel"):
        local_to_global(m, P, B)
    assert m[0].weight.is_local
