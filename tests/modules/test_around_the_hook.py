"""The exits: what goes round every hook, copies, pickles, checkpoints."""

from __future__ import annotations

import contextlib
import copy
import pickle

import numpy as np
import oneflow as flow
import pytest
from oneflow import nn
from oneflow.nn.utils import remove_weight_norm, weight_norm

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
    tensor,
)
from tests.helpers.trees import assert_all_close, fill, logical, waves, weights

W = counted(8, 4)
BOTH = pytest.mark.parametrize("sbp", [B, S0], ids=str)


def place(P):
    return lambda array: tensor(array).to_global(P, B)


def run(m: nn.Module, placer) -> dict[str, np.ndarray]:
    """Output and gradients."""
    m.zero_grad()
    out = m(placer(waves(3, 4, seed=9)))
    (out * placer(waves(3, 8, seed=10))).sum().backward()
    found = {path: logical(weight.grad) for path, weight in m.named_parameters()}
    return {**found, "output": logical(out)}


# weight_norm


@BOTH
def test_weight_norm_on_a_module_built_outside(P, sbp):
    layer = weight_norm(fill(nn.Linear(4, 8)))
    expected = run(layer, tensor)
    m = Model()
    with global_scope(P, sbp):
        m.layer = layer
    assert local_names(m) == []
    assert_all_close(run(layer, place(P)), expected)


@BOTH
def test_weight_norm_on_a_module_built_outside_by_a_call(P, sbp):
    layer = weight_norm(fill(nn.Linear(4, 8)))
    expected = run(layer, tensor)
    local_to_global(layer, P, sbp)
    assert local_names(layer) == []
    assert_all_close(run(layer, place(P)), expected)


@BOTH
def test_weight_norm_on_a_module_built_inside(P, sbp):
    with global_scope(P, sbp):
        layer = weight_norm(nn.Linear(4, 8))
    assert local_names(layer) == []
    assert sorted(layer._parameters) == ["bias", "weight_g", "weight_v"]
    assert all(weight.sbp == (sbp,) for weight in layer.parameters())
    values = weights(layer)
    local = weight_norm(nn.Linear(4, 8))
    local.load_state_dict({path: tensor(value) for path, value in values.items()})
    assert_all_close(run(layer, place(P)), run(local, tensor))


def test_weight_norm_inside_on_a_layer_that_is_local_needs_a_final_call(P):
    """It registers weight_g and weight_v anew; the bias is no part of that."""
    layer = fill(nn.Linear(4, 8))
    expected = run(weight_norm(copy.deepcopy(layer)), tensor)
    with global_scope(P, S0):
        weight_norm(layer)
    assert local_names(layer) == ["bias"]
    local_to_global(layer, P, S0)
    assert local_names(layer) == []
    assert_all_close(run(layer, place(P)), expected)


@BOTH
def test_weight_norm_taken_off_again(P, sbp):
    layer = weight_norm(fill(nn.Linear(4, 8)))
    local_to_global(layer, P, sbp)
    with global_scope(P, sbp):
        remove_weight_norm(layer)
    assert sorted(layer._parameters) == ["bias", "weight"]
    assert local_names(layer) == []
    np.testing.assert_allclose(logical(layer.weight), 0.5 * waves(8, 4, seed=0), atol=1e-6)


# ModuleList.insert


def test_module_list_insert_goes_round_the_hook(P):
    first, second = linear(W), linear(W + 1)
    with global_scope(P, S0):
        m = nn.ModuleList([first])
        m.insert(0, second)
        assert_local(m[0].weight, W + 1)
    assert_global(m[1].weight, W, P, S0)


def test_what_was_inserted_is_found_when_the_list_is_assigned(P):
    m, first, second = Model(), linear(W), linear(W + 1)
    with global_scope(P, S0):
        layers = nn.ModuleList([first])
        layers.insert(0, second)
        m.layers = layers
    assert_global(m.layers[0].weight, W + 1, P, S0)
    assert_global(m.layers[1].weight, W, P, S0)


def test_what_was_inserted_is_found_by_a_final_call(P):
    m, first, second = Model(), linear(W), linear(W + 1)
    with global_scope(P, S0):
        m.layers = nn.ModuleList([first])
        m.layers.insert(0, second)
    kept = m.layers[1].weight
    local_to_global(m, P, S0)
    assert_global(m.layers[0].weight, W + 1, P, S0)
    assert m.layers[1].weight is kept


# Copies


def built(P, sbp) -> Model:
    m = Model()
    m.layer = linear(W, counted(8))
    m.register_buffer("seen", tensor(W + 1))
    return local_to_global(m, P, sbp)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
}


@BOTH
@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("when", ["assign", "exit"])
def test_a_copy_of_a_global_module_inside_a_scope(P, sbp, how, when):
    """Global with the sbp of the original, whatever the scope's; the original is untouched."""
    m = built(P, sbp)
    with global_scope(P, S0, when=when) as scope:
        found = COPIES[how](m)
    assert scope.converted == []
    assert_global(found.layer.weight, W, P, sbp)
    assert_global(found.seen, W + 1, P, B)
    assert found.layer.weight is not m.layer.weight
    found.layer.weight.data.add_(1)
    assert_global(m.layer.weight, W, P, sbp)


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_of_a_local_module_inside_a_scope(P, how):
    """No assignment takes place: the copy is local, until it is assigned."""
    layer, m = linear(W, counted(8)), Model()
    with global_scope(P, S0):
        found = COPIES[how](layer)
        assert local_names(found) == ["weight", "bias"]
        m.layer = found
    assert_global(m.layer.weight, W, P, S0)
    assert_local(layer.weight, W)


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_of_a_converted_module_trains_apart(P, how):
    m = built(P, S0)
    found = COPIES[how](m)
    (found.layer.weight * 2).sum().backward()
    flow.optim.SGD(found.parameters(), lr=0.5).step()
    assert_global(found.layer.weight, W - 1, P, S0)
    assert_global(m.layer.weight, W, P, S0)


# Checkpoints


def test_load_state_dict_before_the_conversion(P):
    m, state = linear(W), {"weight": tensor(W + 7)}
    m.load_state_dict(state)
    local_to_global(m, P, S0)
    assert_global(m.weight, W + 7, P, S0)
    assert_local(state["weight"], W + 7)


@BOTH
def test_load_state_dict_of_a_global_checkpoint_after_the_conversion(P, sbp):
    m = built(P, sbp)
    weight = m.layer.weight
    m.load_state_dict({path: (value + 7).to_global(P, B) for path, value in m.state_dict().items()})
    assert m.layer.weight is weight
    assert_global(weight, W + 7, P, sbp)
    assert_global(m.seen, W + 8, P, B)


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_load_state_dict_of_a_local_checkpoint_after_the_conversion_is_oneflows_error(P, where):
    m, state = built(P, S0), linear(W + 7, counted(8)).state_dict()
    scope = global_scope(P, S0) if where == "inside" else contextlib.nullcontext()
    with scope, pytest.raises(RuntimeError):
        m.layer.load_state_dict(state)
    assert_global(m.layer.weight, W, P, S0)


@pytest.mark.in_place
def test_a_state_dict_taken_before_the_conversion_follows(P):
    m = linear(W)
    state = m.state_dict()
    local_to_global(m, P, S0)
    assert_global(state["weight"], W, P, S0)


def test_save_and_load_of_a_converted_module(P, tmp_path_factory, rank):
    """The last line of a migration: save what is global from the first rank, load it anywhere."""
    m = built(P, S0)
    folder = tmp_path_factory.getbasetemp() / "checkpoint"
    flow.save(m.state_dict(), str(folder), global_dst_rank=0)
    path = folder if rank == 0 else tmp_path_factory.getbasetemp() / "none"
    state = flow.load(str(path), global_src_rank=0)
    other = local_to_global(linear(W + 9, counted(8, start=9)), P, S0)
    other.load_state_dict({name: state[f"layer.{name}"] for name in ("weight", "bias")})
    assert_global(other.weight, W, P, S0)
    assert_global(other.bias, counted(8), P, S0)
