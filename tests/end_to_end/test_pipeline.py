"""One model on two placements, built in two scopes, trains as the local one on one rank does."""

from __future__ import annotations

import numpy as np
import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import global_scope
from tests.helpers.support import S0, B, tensor
from tests.helpers.trees import logical, waves

# A pair of placements, and the sbp of weights and of activations on each of them.
CASES = {
    "one rank each": (2, [0], [1], (B, B), (B, B)),
    "the other way round": (2, [1], [0], (B, B), (B, B)),
    "split weights": (4, [0, 1], [2, 3], (S0, S0), (B, B)),
    "split data": (4, [0, 1], [2, 3], (B, B), (S0, S0)),
    "one of each": (4, [0, 1], [2, 3], (S0, B), (B, S0)),
    "ranks left out": (4, [1], [2, 3], (B, S0), (B, B)),
}
EACH_CASE = pytest.mark.parametrize("case", CASES)
STEPS = range(3)


class Stage(nn.Module):
    """Fills its weights itself, so that it can be built inside a scope to known numbers."""

    def __init__(self, columns: int, rows: int, seed: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(tensor(0.5 * waves(rows, columns, seed=seed)))
        self.bias = nn.Parameter(tensor(0.5 * waves(rows, seed=seed + 1)))
        self.norm = nn.LayerNorm(rows)

    def forward(self, x):
        return self.norm(flow.tanh(nn.functional.linear(x, self.weight, self.bias)))


class Pipeline(nn.Module):
    """Two stages; ``places`` says where each of them takes its input, or that all is local."""

    def __init__(self, places=None) -> None:
        super().__init__()
        self.places = places

    def forward(self, x):
        for i, stage in enumerate((self.first, self.second)):
            if self.places is not None:
                placement, sbp = self.places[i]
                x = x.to_global(placement=placement, sbp=sbp)
            x = stage(x)
        return x


def local() -> Pipeline:
    m = Pipeline()
    m.first, m.second = Stage(4, 8, seed=1), Stage(8, 6, seed=5)
    return m


def train(m: nn.Module, place) -> tuple[list[float], dict[str, np.ndarray]]:
    """The losses and the weights, whole, on every rank."""
    optimizer = flow.optim.SGD(m.parameters(), lr=0.02, momentum=0.9)
    losses = []
    for step in STEPS:
        optimizer.zero_grad()
        x, wanted = waves(6, 4, seed=step), waves(6, 6, seed=step + 20)
        out = m(place(x, 0))
        loss = ((out - place(wanted, -1)) ** 2).sum()
        loss.backward()
        optimizer.step()
        losses.append(float(everywhere(loss)))
    return losses, {path: everywhere(weight) for path, weight in m.named_parameters()}


def everywhere(found) -> np.ndarray:
    """The numbers on every rank, those too that the tensor's placement leaves out."""
    found = found.detach()
    if found.is_global:
        found = found.to_global(found.placement, B)
        found = found.to_global(flow.placement("cpu", range(flow.env.get_world_size())), B)
    return logical(found)


def placer(places):
    def place(array, stage):
        placement, sbp = places[stage]
        return tensor(array).to_global(placement, B).to_global(placement, sbp)

    return place


@EACH_CASE
@pytest.mark.parametrize("when", ["assign", "exit"])
def test_three_steps_equal_the_local_ones(world, case, when):
    ranks, first, second, weights, data = CASES[case]
    if world != ranks:
        pytest.skip(f"needs {ranks} ranks")
    placements = [flow.placement("cpu", members) for members in (first, second)]
    m = Pipeline(list(zip(placements, data)))
    with global_scope(placements[0], weights[0], when=when):
        m.first = Stage(4, 8, seed=1)
    with global_scope(placements[1], weights[1], when=when):
        m.second = Stage(8, 6, seed=5)
    for stage, placement, sbp in zip((m.first, m.second), placements, weights):
        assert {(w.placement, w.sbp) for w in stage.parameters()} == {(placement, (sbp,))}
    losses, found = train(m, placer(m.places))
    expected_losses, expected = train(local(), lambda array, stage: tensor(array))
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5, atol=1e-5)
    assert found.keys() == expected.keys()
    for path, array in expected.items():
        np.testing.assert_allclose(found[path], array, rtol=1e-5, atol=1e-5, err_msg=path)
    assert max(losses) - min(losses) > 0.1
