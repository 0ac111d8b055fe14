"""``optimizer_to_global``: the state that an optimizer holds follows its Parameters.

That of Parameters that were global too, and of ranks that hold nothing.
"""

from __future__ import annotations

import warnings

import numpy as np
import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import (
    AutoglobalError,
    ConversionError,
    SplitUpdateWarning,
    describe,
    global_scope,
    local_to_global,
    optimizer_to_global,
)
from tests.helpers.support import (
    S0,
    S1,
    B,
    Model,
    as_array,
    assert_global,
    assert_local,
    counted,
    linear,
    parameter,
    tensor,
    warns,
)
from tests.helpers.trees import assert_all_close, fill, logical, train_step, waves, weights

OPTIMIZERS = {
    "SGD": lambda ps: flow.optim.SGD(ps, lr=0.05),
    "momentum": lambda ps: flow.optim.SGD(ps, lr=0.05, momentum=0.9, weight_decay=0.01),
    "Adam": lambda ps: flow.optim.Adam(ps, lr=0.01),
    "amsgrad": lambda ps: flow.optim.Adam(ps, lr=0.01, amsgrad=True),
    "AdamW": lambda ps: flow.optim.AdamW(ps, lr=0.01, weight_decay=0.1),
    "RMSprop": lambda ps: flow.optim.RMSprop(ps, lr=0.01),
    "centered": lambda ps: flow.optim.RMSprop(ps, lr=0.01, centered=True),
    "Adagrad": lambda ps: flow.optim.Adagrad(ps, lr=0.05),
    "Adadelta": lambda ps: flow.optim.Adadelta(ps, lr=1.0),
    "LAMB": lambda ps: flow.optim.LAMB(ps, lr=0.01),
}
STATEFUL = [name for name in OPTIMIZERS if name not in ("SGD", "LAMB")]


def make() -> nn.Module:
    return fill(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)))


def train(m: nn.Module, optimizer, steps, place) -> None:
    for seed in steps:
        train_step(m, optimizer, waves(5, 6, seed=seed), waves(5, 4, seed=seed + 50), place)


def placer(P):
    return lambda array: tensor(array).to_global(P, B)


def local_run(name: str, steps: int) -> dict[str, np.ndarray]:
    m = make()
    train(m, OPTIMIZERS[name](m.parameters()), range(steps), tensor)
    return weights(m)


def assert_trained(found: dict, expected: dict, before: dict) -> None:
    """Each weight is within a hundredth of its way from ``before`` to where it should be."""
    for path, array in expected.items():
        moved = np.abs(array - before[path]).max()
        assert moved > 1e-5, path
        assert np.abs(found[path] - array).max() <= 0.01 * moved + 1e-6, path


@pytest.mark.parametrize("sbp", [B, S0], ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("before", [0, 2])
def test_training_goes_on_as_if_it_had_stayed_local(P, name, sbp, before):
    """Local steps, then the conversion, then three more steps."""
    if name == "LAMB" and sbp == S0:
        pytest.skip("OneFlow's LAMB does not move a split Parameter")
    m = make()
    optimizer = OPTIMIZERS[name](m.parameters())
    train(m, optimizer, range(before), tensor)
    local_to_global(m, P, sbp)
    assert optimizer_to_global(optimizer) is optimizer
    at_conversion = weights(m)
    train(m, optimizer, range(before, before + 3), placer(P))
    assert all(weight.sbp == (sbp,) for weight in m.parameters())
    assert_trained(weights(m), local_run(name, before + 3), at_conversion)


def states(optimizer, p) -> dict[str, flow.Tensor]:
    return {key: value for key, value in optimizer._state[p].items() if flow.is_tensor(value)}


@pytest.mark.parametrize("sbp", [B, S0, S1], ids=str)
@pytest.mark.parametrize("name", STATEFUL)
def test_the_state_has_its_parameters_placement_and_sbp(P, name, sbp):
    m = Model()
    m.new = parameter(waves(8, 4))
    optimizer = OPTIMIZERS[name](m.parameters())
    (m.new * tensor(waves(8, 4, seed=1))).sum().backward()
    optimizer.step()
    before = {key: logical(value) for key, value in states(optimizer, m.new).items()}
    local_to_global(m, P, sbp)
    optimizer_to_global(optimizer)
    after = states(optimizer, m.new)
    assert before
    assert after.keys() == before.keys()
    for key, value in after.items():
        assert_global(value, before[key], P, sbp)
        assert value.requires_grad is False


def test_the_state_of_rank_dependent_steps_is_the_first_ranks(P, rank):
    """As with the Parameters themselves: ranks that trained apart become the first one."""
    m = Model()
    m.new = parameter(counted(8, 4))
    optimizer = OPTIMIZERS["momentum"](m.parameters())
    (m.new * (3 + rank)).sum().backward()
    optimizer.step()
    expected = logical(m.new.data.to_global(P, B))
    local_to_global(m, P, S0)
    optimizer_to_global(optimizer)
    assert_global(m.new, expected, P, S0)
    (value,) = states(optimizer, m.new).values()
    found = logical(value)
    np.testing.assert_allclose(found, 3 + 0.01 * counted(8, 4), rtol=1e-6)


def test_a_parameter_assigned_in_a_scope(P):
    p, m = parameter(waves(8, 4)), Model()
    optimizer = OPTIMIZERS["Adam"]([p])
    (p * tensor(waves(8, 4, seed=1))).sum().backward()
    optimizer.step()
    expected = {key: logical(value) for key, value in states(optimizer, p).items()}
    with global_scope(P, S0):
        m.new = p
    optimizer_to_global(optimizer)
    for key, value in states(optimizer, m.new).items():
        assert_global(value, expected[key], P, S0)


def test_parameters_that_stay_local_keep_local_state(P):
    m = Model()
    m.a, m.b = parameter(waves(8, 4)), parameter(waves(8, 4, seed=1))
    optimizer = OPTIMIZERS["momentum"](m.parameters())
    ((m.a + m.b) * tensor(waves(8, 4, seed=2))).sum().backward()
    optimizer.step()
    local_to_global(m, P, {"a": S0, "b": None})
    held = states(optimizer, m.b)
    optimizer_to_global(optimizer)
    assert states(optimizer, m.a)["momentum_buf"].sbp == (S0,)
    for key, value in states(optimizer, m.b).items():
        assert value is held[key]
        assert_local(value, waves(8, 4, seed=2) + 0.01 * waves(8, 4, seed=1))


def test_parameters_in_groups_with_options_of_their_own(P):
    m = make()
    groups = [
        {"params": [m[0].weight, m[0].bias], "lr": 0.05},
        {"params": list(m[2].parameters()), "lr": 0.01},
    ]
    optimizer = flow.optim.SGD(groups, lr=0.1, momentum=0.9)
    train(m, optimizer, range(2), tensor)
    local_to_global(m, P, S0)
    optimizer_to_global(optimizer)
    train(m, optimizer, range(2, 4), placer(P))
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.01]
    assert optimizer._state["step"] == 4

    other = make()
    groups = [
        {"params": list(other[0].parameters()), "lr": 0.05},
        {"params": list(other[2].parameters()), "lr": 0.01},
    ]
    train(other, flow.optim.SGD(groups, lr=0.1, momentum=0.9), range(4), tensor)
    assert_all_close(weights(m), weights(other))


def test_a_second_call_changes_nothing(P):
    m = make()
    optimizer = OPTIMIZERS["Adam"](m.parameters())
    train(m, optimizer, range(1), tensor)
    local_to_global(m, P, S0)
    optimizer_to_global(optimizer)
    held = [value for p in m.parameters() for value in states(optimizer, p).values()]
    optimizer_to_global(optimizer)
    now = [value for p in m.parameters() for value in states(optimizer, p).values()]
    assert len(now) == 8
    assert all(a is b for a, b in zip(now, held))


@pytest.mark.ranks(2, 4)
def test_an_optimizer_without_state_on_one_rank_only(P, rank):
    """Nothing to convert, nothing to tell: it would wait for the others until the time limit."""
    m = local_to_global(make(), P, S0)
    optimizer = flow.optim.SGD(m.parameters(), lr=0.1)
    if rank == 0:
        optimizer_to_global(optimizer)
    assert_global(local_to_global(fill(nn.Linear(2, 8)), P, B).bias, 0.5 * waves(8, seed=1), P, B)


def test_state_that_was_saved_and_loaded(P):
    """``state_dict`` of the converted optimizer is global, and loads again."""
    m = make()
    optimizer = OPTIMIZERS["Adam"](m.parameters())
    train(m, optimizer, range(2), tensor)
    local_to_global(m, P, S0)
    optimizer_to_global(optimizer)
    other = OPTIMIZERS["Adam"](m.parameters())
    other.load_state_dict(optimizer.state_dict())
    train(m, other, range(2, 4), placer(P))
    assert_all_close(weights(m), local_run("Adam", 4), atol=1e-4)


def lamb(P, sbp):
    m = local_to_global(make(), P, sbp)
    return OPTIMIZERS["LAMB"](m.parameters())


@pytest.mark.ranks(2, 4)
def test_lamb_with_split_parameters_warns(P):
    """OneFlow's LAMB does not move a split Parameter at all, without a word."""
    assert issubclass(SplitUpdateWarning, UserWarning)
    with warns(SplitUpdateWarning, "LAMB"):
        optimizer_to_global(lamb(P, S0))


@pytest.mark.parametrize("case", ["LAMB with B", "SGD with S0"])
def test_no_other_warning(P, case):
    optimizer = lamb(P, B)
    if case == "SGD with S0":
        optimizer = OPTIMIZERS["momentum"](local_to_global(make(), P, S0).parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("error", SplitUpdateWarning)
        assert optimizer_to_global(optimizer) is optimizer


@pytest.mark.parametrize("value", [None, "SGD", flow.optim.SGD], ids=str)
def test_what_is_no_optimizer(value):
    with pytest.raises(TypeError, match=r"(?i)optimizer") as caught:
        optimizer_to_global(value)
    assert isinstance(caught.value, AutoglobalError)


WITH_STATE = {
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


@pytest.mark.parametrize("name", WITH_STATE)
def test_state_that_is_global_follows_to_another_sbp(P, name):
    local, layer = linear(W), linear(W)
    expected = WITH_STATE[name](local.parameters())
    steps(local, expected, 5)

    local_to_global(layer, P, B)
    optimizer = WITH_STATE[name](layer.parameters())

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
    optimizer = WITH_STATE["SGD"](layer.parameters())
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
    optimizer = WITH_STATE["SGD"](m.parameters())
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


@pytest.mark.parametrize(("name", "tensors_each"), [("Adam", 2), ("SGD", 1)])
@pytest.mark.parametrize("sbp", [B, S0], ids=str)
def test_state_takes_the_memory_of_its_parameters_beside_them(P, world, name, tensors_each, sbp):
    """Whole on each rank, or a part, as the Parameter is; ``describe`` counts none of it."""
    make = {"Adam": flow.optim.Adam, "SGD": lambda p, lr: flow.optim.SGD(p, lr, momentum=0.9)}[name]
    layer = nn.Linear(16, 16, bias=False)
    optimizer = make(layer.parameters(), lr=0.1)
    layer(flow.ones(2, 16)).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    local_to_global(layer, P, sbp, optimizer=optimizer)
    kept = [one for one in states(optimizer, layer.weight).values() if one.ndim]
    own = 16 * 16 // (world if sbp == S0 else 1)
    assert [one.to_local().nelement() for one in kept] == tensors_each * [own]
    assert sum(total.nbytes for total in describe(layer).totals) == 4 * own
