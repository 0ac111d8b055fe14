"""What a stock layer has not filled yet is not compared or sent, and nothing else is left out."""

from __future__ import annotations

import sys

import numpy as np
import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import auto_global, global_scope
from autoglobal.modules.uninitialized import is_uninitialized
from autoglobal.ranks.collectives import all_gather, traffic
from tests.helpers.support import S0, B, Model, as_array, assert_global, counted, parameter, tensor

LAYERS = {
    "Linear": (nn.Linear, (8, 8)),
    "Embedding": (nn.Embedding, (8, 4, 3)),
    "LayerNorm": (nn.LayerNorm, (8,)),
    "GroupNorm": (nn.GroupNorm, (4, 8)),
    "Conv1d": (nn.Conv1d, (4, 8, 3)),
    "Conv2d": (nn.Conv2d, (4, 8, 3)),
    "Conv3d": (nn.Conv3d, (4, 8, 3)),
    "ConvTranspose1d": (nn.ConvTranspose1d, (8, 4, 3)),
    "ConvTranspose2d": (nn.ConvTranspose2d, (8, 4, 3)),
    "ConvTranspose3d": (nn.ConvTranspose3d, (8, 4, 3)),
}


def probe(kind, *args, **kwargs) -> tuple[nn.Module, dict[str, bool]]:
    """The layer, and what it holds as fresh; that was filled with NaN as it was assigned."""
    seen: dict[str, bool] = {}

    def assign(self, name, value):
        if isinstance(value, nn.Parameter):
            seen[name] = is_uninitialized(self, name, sys._getframe(1))
            if seen[name]:
                value.data.fill_(float("nan"))
        super(probed, self).__setattr__(name, value)

    probed = type("Probed", (kind,), {"__setattr__": assign})
    return probed(*args, **kwargs), seen


@pytest.mark.parametrize("name", LAYERS)
def test_what_is_taken_for_empty_is_filled_afterwards(name):
    kind, args = LAYERS[name]
    layer, seen = probe(kind, *args)
    assert seen
    assert all(seen.values())
    for value in layer.parameters():
        assert np.isfinite(as_array(value)).all()


def test_an_embedding_that_is_given_its_weight_holds_values():
    _, seen = probe(nn.Embedding, 8, 4, _weight=tensor(counted(8, 4)))
    assert seen == {"weight": False}


def test_a_class_that_fills_itself_otherwise_is_not_known():
    class Later(nn.Linear):
        def reset_parameters(self):
            pass

    assert probe(Later, 4, 4)[1] == {"weight": False, "bias": False}


def test_an_initialiser_that_somebody_has_replaced(monkeypatch):
    """As is done to save time before a checkpoint is loaded."""
    monkeypatch.setattr(nn.init, "kaiming_uniform_", lambda tensor, *_, **__: tensor)
    assert probe(nn.Linear, 4, 4)[1] == {"weight": False, "bias": False}


def test_what_is_assigned_to_a_layer_from_outside_holds_values():
    layer = nn.Linear(4, 4)
    assert not is_uninitialized(layer, "weight", sys._getframe(0))


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_built_in_a_scope_is_alike_on_all_ranks(P, rank, world, name):
    kind, args = LAYERS[name]
    flow.manual_seed(rank)
    with global_scope(P, B):
        layer = kind(*args)
    for value in layer.parameters():
        own = value.detach().to_local()
        shape = tuple(own.shape)
        everybodys = own.reshape(1, *shape).to_global(P, S0).to_global(P, B).to_local().numpy()
        assert np.isfinite(everybodys).all()
        for theirs in everybodys:
            np.testing.assert_array_equal(theirs, everybodys[0])


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("sbp", [B, S0], ids=str)
def test_values_that_are_given_are_the_first_ranks(P, rank, sbp):
    m = Model()
    with global_scope(P, sbp):
        m.table = nn.Embedding(8, 4, _weight=tensor(counted(8, 4, start=100 * rank)))
        m.layer = nn.Linear(8, 8, bias=False)
        m.layer.weight = parameter(counted(8, 8, start=100 * rank))
    assert_global(m.table.weight, counted(8, 4), P, sbp)
    assert_global(m.layer.weight, counted(8, 8), P, sbp)


@pytest.mark.ranks(2)
def test_an_instance_of_a_decorated_layer_sends_nothing_but_the_agreement(P, rank):
    """The hook on a class sees the layer's own constructor as the one on Module does."""

    @auto_global(P, B)
    class Layer(nn.Linear):
        pass

    flow.manual_seed(rank)  # an initialiser on a broadcast tensor gives the same on all ranks
    before = traffic.sent
    layer = Layer(8, 8)
    assert traffic.sent - before == 2 * 64, "the weight and the bias, a short message each"
    for value in layer.parameters():
        own = as_array(value.to_local())
        assert np.isfinite(own).all()
        others = all_gather([int(one) for one in own.view(np.int32).ravel()])
        assert others[0] == others[1]
