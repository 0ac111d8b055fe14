"""A tensor-parallel pair as two decorated classes, in a model built under a broadcast scope."""

from __future__ import annotations

import numpy as np
import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import auto_global, global_scope
from tests.helpers.support import S0, S1, B, Model, tensor
from tests.helpers.trees import assert_all_close, fill, logical, train_step, waves, weights

WIDTH = 8
SHAPE = (4, WIDTH)


def pair(P) -> tuple[type, type]:
    @auto_global(P, {"weight": S0, "bias": S0})
    class Column(nn.Linear):
        """Splits its output features."""

    @auto_global(P, {"weight": S1, "bias": B})
    class Row(nn.Linear):
        """Splits its input features."""

    return Column, Row


class Block(nn.Module):
    def __init__(self, column: type, row: type):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = column(WIDTH, 4 * WIDTH)
        self.down = row(4 * WIDTH, WIDTH)
        self.scale = nn.Parameter(flow.ones(WIDTH))

    def forward(self, x):
        return x + self.scale * self.down(flow.nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, column: type, row: type):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList([Block(column, row), Block(column, row)])
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(self.inner(x))


def local_net() -> Net:
    return fill(Net(nn.Linear, nn.Linear))


def built(P) -> Net:
    """Built under the scope, from the first line on, with the weights of ``local_net``."""
    with global_scope(P, B):
        m = Net(*pair(P))
    state = {
        path: value.detach().to_global(P, B) for path, value in local_net().state_dict().items()
    }
    m.load_state_dict(state)
    return m


def place(P):
    return lambda array: tensor(array).to_global(P, B)


def test_each_class_keeps_its_layout_and_the_rest_is_the_scopes(P, world):
    for path, weight in built(P).named_parameters():
        assert weight.is_global
        assert weight.placement == P
        if ".up." in path:
            assert weight.sbp == (S0,)
            assert weight.to_local().shape[0] == weight.shape[0] // world
        elif path.endswith("down.weight"):
            assert weight.sbp == (S1,)
            assert weight.to_local().shape[1] == weight.shape[1] // world
        else:
            assert weight.sbp == (B,), path


def test_the_pair_is_two_subclasses_of_linear(P):
    column, row = pair(P)
    m = built(P)
    assert isinstance(m.blocks[0].up, nn.Linear)
    assert (column.__mro__[1], row.__mro__[1]) == (nn.Linear, nn.Linear)
    assert nn.Linear(WIDTH, WIDTH).weight.is_local


def test_forward_and_backward_equal_the_local_models(P):
    results = []
    for m, placer in ((local_net(), tensor), (built(P), place(P))):
        x = placer(waves(*SHAPE, seed=30)).requires_grad_()
        out = m(x)
        (out * placer(waves(SHAPE[0], 3, seed=31))).sum().backward()
        found = {path: logical(weight.grad) for path, weight in m.named_parameters()}
        results.append({**found, "output": logical(out), "input": logical(x.grad)})
    expected, found = results
    assert_all_close(found, expected)
    assert np.abs(expected["output"]).max() > 0.1


OPTIMIZERS = {
    "sgd": lambda parameters: flow.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adamw": lambda parameters: flow.optim.AdamW(parameters, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_trains_like_the_local_model(P, name):
    results = []
    for m, placer in ((local_net(), tensor), (built(P), place(P))):
        before = weights(m)
        optimizer = OPTIMIZERS[name](m.parameters())
        for step in range(4):
            x, factor = waves(*SHAPE, seed=step), waves(SHAPE[0], 3, seed=step + 20)
            train_step(m, optimizer, x, factor, placer)
        results.append(weights(m))
        assert all(np.abs(results[-1][path] - array).max() > 1e-5 for path, array in before.items())
    expected, found = results
    assert_all_close(found, expected, atol=1e-4)


def test_layers_built_outside_and_assigned_inside(P):
    column, row = pair(P)
    up, down = column(WIDTH, 4 * WIDTH), row(4 * WIDTH, WIDTH)
    m = Model()
    with global_scope(P, B):
        m.up, m.down = up, down
    assert m.up is up
    assert (m.up.weight.sbp, m.up.bias.sbp) == ((S0,), (S0,))
    assert (m.down.weight.sbp, m.down.bias.sbp) == ((S1,), (B,))


@pytest.mark.ranks(4)
def test_two_by_two_ranks():
    """Data along the first dimension of the placement, weights along the second."""
    square = flow.placement("cpu", [[0, 1], [2, 3]])

    @auto_global(square, {"weight": (B, S0), "bias": (B, S0)})
    class Column(nn.Linear):
        pass

    @auto_global(square, {"weight": (B, S1), "bias": (B, B)})
    class Row(nn.Linear):
        pass

    with global_scope(square, (B, B)):
        m = Net(Column, Row)
    local = local_net()
    state = local.state_dict().items()
    m.load_state_dict({path: value.detach().to_global(square, (B, B)) for path, value in state})
    x = waves(*SHAPE, seed=30)
    split = tensor(x).to_global(square, (B, B)).to_global(square, (S0, B))
    np.testing.assert_allclose(logical(m(split)), logical(local(tensor(x))), rtol=1e-4, atol=1e-5)
