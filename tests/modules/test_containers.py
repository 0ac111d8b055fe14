"""Containers, recurrent layers and other stock layers, built inside a scope."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import global_scope
from tests.helpers.support import (
    S0,
    B,
    Model,
    assert_global,
    counted,
    global_names,
    linear,
    local_names,
    parameter,
    tensor,
    tensors,
)

W = counted(8, 4)


def test_parameter_list(P):
    with global_scope(P, S0):
        m = nn.ParameterList([parameter(W)])
        m.append(parameter(W + 1))
        m.extend([parameter(W + 2)])
        m += [parameter(W + 3)]
        m[0] = parameter(W + 9)
    for index, array in enumerate([W + 9, W + 1, W + 2, W + 3]):
        assert_global(m[index], array, P, S0)


def test_parameter_dict(P):
    with global_scope(P, S0):
        m = nn.ParameterDict({"a": parameter(W)})
        m["b"] = parameter(W + 1)
        m.update({"c": parameter(W + 2)})
    for name, array in {"a": W, "b": W + 1, "c": W + 2}.items():
        assert_global(m[name], array, P, S0)


def test_sequential(P):
    outside = [linear(W + i) for i in range(4)]
    with global_scope(P, S0):
        m = nn.Sequential(*outside[:2])
        m[1] = outside[2]
        named = nn.Sequential(OrderedDict(first=outside[3]))
    assert list(m) == [outside[0], outside[2]]
    assert_global(m[0].weight, W, P, S0)
    assert_global(m[1].weight, W + 2, P, S0)
    assert_global(named.first.weight, W + 3, P, S0)


def test_module_list(P):
    outside = [linear(W + i) for i in range(4)]
    with global_scope(P, S0):
        m = nn.ModuleList(outside[:1])
        m.append(outside[1])
        m.extend([outside[2]])
        m[0] = outside[3]
    for index, array in enumerate([W + 3, W + 1, W + 2]):
        assert_global(m[index].weight, array, P, S0)


def test_module_dict(P):
    outside = [linear(W + i) for i in range(3)]
    with global_scope(P, S0):
        m = nn.ModuleDict({"a": outside[0]})
        m["b"] = outside[1]
        m.update({"c": outside[2]})
    for name, array in {"a": W, "b": W + 1, "c": W + 2}.items():
        assert_global(m[name].weight, array, P, S0)


RNNS = [
    lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True),
    lambda: nn.GRU(3, 4),
    lambda: nn.RNN(3, 4),
]


@pytest.mark.parametrize("make", RNNS, ids=["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("where", ["inside", "outside"])
def test_recurrent_layer_and_its_cache_of_weights(P, make, where):
    m = Model()
    outside = make()
    with global_scope(P, S0):
        m.rnn = outside if where == "outside" else make()
    assert local_names(m) == []
    assert all(weight.sbp == (S0,) for weight in m.parameters())
    named = [m.rnn._parameters[name] for name in m.rnn._flat_weights_names]
    assert len(named) == len(m.rnn._flat_weights)
    assert all(a is b for a, b in zip(named, m.rnn._flat_weights))


@pytest.mark.parametrize("sbp", [B, S0], ids=["B", "S0"])
def test_lstm_computes_what_the_local_one_does(P, rank, sbp):
    """Locally OneFlow can run it on rank 0 only: the other ranks take part, rank 0 compares."""
    layer = nn.LSTM(3, 4)
    for index, weight in enumerate(layer.parameters()):
        numbers = np.sin(counted(*weight.shape, start=100 * index))
        weight.data.copy_(tensor(numbers))
    x = np.cos(counted(5, 2, 3))
    expected = layer(tensor(x))[0].detach().numpy() if rank == 0 else None
    m = Model()
    with global_scope(P, sbp):
        m.rnn = layer
    found = m.rnn(tensor(x).to_global(P, B))[0].numpy()
    if rank == 0:
        np.testing.assert_allclose(found, expected, atol=1e-6)
        assert np.abs(expected).max() > 0.1


STOCK = {
    "Linear": lambda: nn.Linear(8, 8),
    "Conv2d": lambda: nn.Conv2d(4, 8, 3),
    "ConvTranspose2d": lambda: nn.ConvTranspose2d(4, 8, 3),
    "BatchNorm2d": lambda: nn.BatchNorm2d(8),
    "GroupNorm": lambda: nn.GroupNorm(2, 8),
    "LayerNorm": lambda: nn.LayerNorm(8),
    "Embedding": lambda: nn.Embedding(8, 4),
    "PReLU": lambda: nn.PReLU(8),
    "Sequential": lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)),
}


@pytest.mark.parametrize("make", STOCK.values(), ids=STOCK.keys())
@pytest.mark.parametrize("sbp", [B, S0], ids=["B", "S0"])
def test_stock_layer_built_inside_has_the_shapes_of_one_built_outside(P, make, sbp):
    outside = make()
    with global_scope(P, sbp):
        inside = make()
    assert local_names(inside) == []
    assert global_names(outside) == []
    shapes = {path: value.shape for path, value in tensors(outside).items()}
    assert {path: value.shape for path, value in tensors(inside).items()} == shapes
    assert all(value.sbp == (sbp,) for value in inside.parameters())


def test_initial_values_of_a_broadcast_layer_are_the_same_on_all_ranks(P, world, rank):
    """Ranks have different seeds: what each initialised for itself would differ."""
    flow.manual_seed(rank)
    with global_scope(P, B):
        m = nn.Linear(5, 3)
    every_rank = m.weight.detach().to_local().to_global(P, S0).numpy().reshape(world, 3, 5)
    for found in every_rank:
        np.testing.assert_array_equal(found, every_rank[0])
    assert len(np.unique(every_rank[0])) > 10
