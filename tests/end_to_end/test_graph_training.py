"""A migrated model trains in an nn.Graph as it does eagerly.

On one rank with broadcast and with split weights. On more ranks with broadcast ones only: OneFlow
0.9.0 aborts the process on split Parameters in a CPU graph, with this library or without it.
"""

from __future__ import annotations

import numpy as np
import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import global_scope, local_to_global, optimizer_to_global
from tests.helpers.support import S0, B, Model, local_names, tensor
from tests.helpers.trees import assert_all_close, fill, train_step, waves, weights

pytestmark = pytest.mark.usefixtures("graphs_end_together")
STEPS = range(3)
SBPS = [B, pytest.param(S0, marks=pytest.mark.ranks(1))]


def make() -> nn.Module:
    return fill(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 4)))


def optimizer_of(m: nn.Module, name: str):
    if name == "Adam":
        return flow.optim.Adam(m.parameters(), lr=0.01)
    return flow.optim.SGD(m.parameters(), lr=0.05, momentum=0.9)


def data(seed: int) -> tuple[np.ndarray, np.ndarray]:
    return waves(6, 4, seed=seed), waves(6, 4, seed=seed + 40)


class Train(nn.Graph):
    def __init__(self, model, optimizer):
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)

    def build(self, x, factor):
        loss = (self.model(x) * factor).sum()
        loss.backward()
        return loss


def eager(m: nn.Module, name: str, place=tensor) -> dict[str, np.ndarray]:
    optimizer = optimizer_of(m, name)
    for seed in STEPS:
        train_step(m, optimizer, *data(seed), place)
    return weights(m)


def graphed(m: nn.Module, optimizer, P, steps=STEPS) -> dict[str, np.ndarray]:
    graph = Train(m, optimizer)
    for seed in steps:
        graph(*(tensor(array).to_global(P, B) for array in data(seed))).numpy()
    return weights(m)


@pytest.mark.parametrize("sbp", SBPS, ids=str)
@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_three_steps_equal_the_local_eager_ones(P, name, sbp):
    expected = eager(make(), name)
    m = local_to_global(make(), P, sbp)
    held = list(m.parameters())
    assert_all_close(graphed(m, optimizer_of(m, name), P), expected)
    assert all(weight.sbp == (sbp,) for weight in m.parameters())
    assert all(now is then for now, then in zip(m.parameters(), held))


@pytest.mark.parametrize("sbp", SBPS, ids=str)
def test_an_optimizer_made_before_the_migration(P, sbp):
    expected = eager(make(), "SGD")
    m = make()
    optimizer = optimizer_of(m, "SGD")
    local_to_global(m, P, sbp)
    optimizer_to_global(optimizer)
    assert_all_close(graphed(m, optimizer, P), expected)


@pytest.mark.parametrize("sbp", SBPS, ids=str)
def test_a_model_built_in_a_scope_that_converts_as_it_closes(P, sbp):
    expected = eager(make(), "SGD")
    with global_scope(P, sbp, when="exit"):
        m = Model()
        m.net = make()
    assert local_names(m) == []
    assert_all_close(graphed(m.net, optimizer_of(m.net, "SGD"), P), expected)


@pytest.mark.parametrize("sbp", SBPS, ids=str)
def test_a_graph_that_only_computes(P, sbp):
    m = make()
    x, _ = data(0)
    expected = m(tensor(x)).detach().numpy()
    local_to_global(m, P, sbp)

    class Evaluate(nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = m

        def build(self, x):
            return self.model(x)

    found = Evaluate()(tensor(x).to_global(P, B)).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)
