"""Optimizer state of Parameters that were global, and of ranks that hold nothing."""

from __future__ import annotations

import numpy as np
import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import ConversionError, local_to_global, optimizer_to_global
from tests.helpers.support import S0, B, as_array, counted, linear, parameter, tensor

OPTIMIZERS = {
    "SGD": lambda p: flow.optim.SGD(p, lr=0.01, momentum=0.9),
    "Adam": lambda p: flow.optim.Adam(p, lr=0.01),
    "RMSprop": lambda p: flow.optim.RMSprop(p, lr=0.01),
    "Adagrad": lambda p: flow.optim.Adagrad(p, lr=0.01),
}
W = counted(8, 4) / 32


def steps(layer: nn.Linear, optimizer, times: int, move=lambda x: x) -> None:
    for _ in range(times):
        (layer(move(tensor(counted(2, 4) / 8))) ** 2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_that_is_global_follows_to_another_sbp(P, name):
    local, layer = linear(W), linear(W)
    expected = OPTIMIZERS[name](local.parameters())
    steps(local, expected, 5)

    local_to_global(layer, P, B)
    optimizer = OPTIMIZERS[name](layer.parameters())

    def move(x):
        return x.to_global(P, B)

    steps(layer, optimizer, 1, move)
    local_to_global(layer, P, S0, existing="convert")
    optimizer_to_global(optimizer)
    steps(layer, optimizer, 4, move)
    found = as_array(layer.weight.to_global(P, B).to_local())
    np.testing.assert_allclose(found, as_array(local.weight), rtol=1e-5, atol=1e-6)


def trained() -> tuple[nn.Linear, flow.optim.Optimizer]:
    layer = linear(W)
    optimizer = OPTIMIZERS["SGD"](layer.parameters())
    steps(layer, optimizer, 1)
    return layer, optimizer


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("source", ["full", "shard"])
def test_a_rank_that_the_placement_leaves_out_goes_along(world, source):
    layer, optimizer = trained()
    first = flow.placement("cpu", list(range(world - 1)))
    local_to_global(layer, first, S0, source=source)
    optimizer_to_global(optimizer)
    (state,) = [optimizer._state[p] for p in layer.parameters()]
    assert state["momentum_buf"].placement == first
    assert state["momentum_buf"].shape == layer.weight.shape


@pytest.mark.ranks(2, 4)
def test_state_that_fits_on_all_ranks_but_one_raises_on_all(P, rank):
    layer, optimizer = trained()
    weight = layer.weight
    before = optimizer._state[weight]["momentum_buf"]
    if rank == 1:
        before = optimizer._state[weight]["momentum_buf"] = tensor(counted(3, 3))
    local_to_global(layer, P, S0)
    told = r"this rank \(rank 1\): shape \(3, 3\)" if rank == 1 else "on rank 1: another shape"
    with pytest.raises(ConversionError, match=told):
        optimizer_to_global(optimizer)
    assert optimizer._state[weight]["momentum_buf"] is before


@pytest.mark.ranks(2, 4)
def test_state_that_is_the_whole_here_and_a_part_there_raises_on_all(P, rank, world):
    """It fits on each rank by itself, and not together."""
    layer, optimizer = trained()
    weight = layer.weight
    if rank == 1:
        optimizer._state[weight]["momentum_buf"] = tensor(counted(8 // world, 4))
    local_to_global(layer, P, S0)
    with pytest.raises(ConversionError) as caught:
        optimizer_to_global(optimizer)
    there = "on rank 0: the whole" if rank == 1 else "on rank 1: its component"
    assert there in str(caught.value)


@pytest.mark.ranks(4)
def test_state_that_does_not_fit_raises_on_a_rank_that_is_left_out(rank):
    """It would go on alone, and wait for the others."""
    layer, optimizer = trained()
    if rank == 1:
        optimizer._state[layer.weight]["momentum_buf"] = tensor(counted(3, 3))
    local_to_global(layer, flow.placement("cpu", [0, 1, 2]), S0)
    with pytest.raises(ConversionError, match=r"shape \(3, 3\)|on rank 1: another shape"):
        optimizer_to_global(optimizer)


@pytest.mark.parametrize("rows", ["one", "uneven"])
def test_a_part_of_one_element_is_a_part(P, world, rank, rows):
    m = nn.Module()
    m.bias = parameter(counted(2 if rows == "uneven" and rank == 0 else 1))
    optimizer = OPTIMIZERS["SGD"](m.parameters())
    m.bias.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    local_to_global(m, P, S0, source="shard")
    optimizer_to_global(optimizer)
    (state,) = [optimizer._state[p] for p in m.parameters()]
    assert state["momentum_buf"].shape == m.bias.shape == (world + (rows == "uneven"),)
    assert state["momentum_buf"].sbp == (S0,)
    m.bias.sum().backward()
    optimizer.step()
