"""Column- and row-parallel layers by rules (Megatron's split), equal to the local model.

A column-parallel Linear splits its output features, weight and bias by ``split(0)``; the
row-parallel one after it splits its input features, weight by ``split(1)``, and its bias is
broadcast. OneFlow turns the partial sums into the whole where the next operation needs it.
"""

from __future__ import annotations

import numpy as np
import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import global_scope, local_to_global, optimizer_to_global
from tests.helpers.support import S0, S1, B, Model, tensor
from tests.helpers.trees import assert_all_close, fill, logical, train_step, waves, weights

pytestmark = pytest.mark.filterwarnings("error::autoglobal.UnusedRuleWarning")
WIDTH, HEADS = 16, 4
SHAPE = (2, 5, WIDTH)


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(flow.nn.functional.gelu(self.up(x)))


class Attention(nn.Module):
    """q, k and v apart, so that a split of the output features is a split of the heads."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (self.heads(layer(x)) for layer in (self.q, self.k, self.v))
        scores = flow.matmul(q, k.transpose(-1, -2)) * (WIDTH // HEADS) ** -0.5
        mixed = flow.matmul(flow.softmax(scores, dim=-1), v)
        return self.out(mixed.permute(0, 2, 1, 3).reshape(*x.shape))

    def heads(self, x):
        return x.reshape(x.shape[0], x.shape[1], HEADS, WIDTH // HEADS).permute(0, 2, 1, 3)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn, self.mlp = Attention(), MLP()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


MLP_RULES = {"*up.*": S0, "*down.weight": S1, "*down.bias": B}
ATTENTION_RULES = {"*[qkv].weight": S0, "*[qkv].bias": S0, "*out.weight": S1, "*out.bias": B}
CASES = {
    "mlp": (MLP, MLP_RULES),
    "attention": (Attention, ATTENTION_RULES),
    "block": (Block, {**MLP_RULES, **ATTENTION_RULES, "LayerNorm.*": B}),
}
ALL = pytest.mark.parametrize("case", CASES)


def place(P):
    return lambda array: tensor(array).to_global(P, B)


def run(model, placer) -> dict[str, np.ndarray]:
    """Output, gradients of the input and of each weight."""
    x = placer(waves(*SHAPE, seed=30)).requires_grad_()
    out = model(x)
    (out * placer(waves(*SHAPE, seed=31))).sum().backward()
    found = {path: logical(weight.grad) for path, weight in model.named_parameters()}
    return {**found, "output": logical(out), "input": logical(x.grad)}


@ALL
def test_the_weights_are_split_as_the_rules_say(P, world, case):
    kind, rules = CASES[case]
    m = local_to_global(fill(kind()), P, rules)
    for path, weight in m.named_parameters():
        owner, name = path.split(".")[-2:]
        if owner in ("up", "q", "k", "v"):
            assert weight.sbp == (S0,)
            assert weight.to_local().shape[0] == weight.shape[0] // world
        elif (owner, name) in (("down", "weight"), ("out", "weight")):
            assert weight.sbp == (S1,)
            assert weight.to_local().shape[1] == weight.shape[1] // world
        else:
            assert weight.sbp == (B,)


@ALL
def test_forward_and_backward_equal_the_local_models(P, case):
    kind, rules = CASES[case]
    expected = run(fill(kind()), tensor)
    m = local_to_global(fill(kind()), P, rules)
    assert_all_close(run(m, place(P)), expected)
    assert np.abs(expected["output"]).max() > 0.1


@ALL
def test_three_steps_of_sgd_equal_the_local_models(P, case):
    kind, rules = CASES[case]
    results = []
    for global_ in (False, True):
        m = fill(kind())
        optimizer = flow.optim.SGD(m.parameters(), lr=0.02, momentum=0.9)
        before = weights(m)
        if global_:
            local_to_global(m, P, rules)
            optimizer_to_global(optimizer)
        for step in range(3):
            x, factor = waves(*SHAPE, seed=step), waves(*SHAPE, seed=step + 20)
            train_step(m, optimizer, x, factor, place(P) if global_ else tensor)
        results.append(weights(m))
    expected, found = results
    for path, array in expected.items():
        # Softmax does not see what is added to every score: k's bias has no gradient.
        assert np.abs(array - before[path]).max() > 2e-4 or path.endswith("k.bias")
    assert_all_close(found, expected)


def test_the_same_rules_in_a_scope_that_converts_as_it_closes(P):
    """Built inside: the rules see the whole paths of a stack of blocks."""
    rules = CASES["block"][1]
    with global_scope(P, rules, when="exit"):
        m = Model()
        m.blocks = nn.ModuleList([Block(), Block()])
    for block in m.blocks:
        assert (block.mlp.up.weight.sbp, block.mlp.down.weight.sbp) == ((S0,), (S1,))
        assert (block.attn.q.weight.sbp, block.attn.out.weight.sbp) == ((S0,), (S1,))
        assert (block.norm1.weight.sbp, block.attn.out.bias.sbp) == ((B,), (B,))


def test_the_same_rules_as_modules_are_assigned(P):
    expected = run(fill(Block()), tensor)
    m, block = Model(), fill(Block())
    with global_scope(P, CASES["block"][1]):
        m.block = block
    assert_all_close(run(m.block, place(P)), expected)


@pytest.mark.ranks(4)
def test_two_by_two_ranks_split_data_and_weights():
    """Data along the first dimension of the placement, weights along the second."""
    square = flow.placement("cpu", [[0, 1], [2, 3]])
    rules = {"up.*": (B, S0), "down.weight": (B, S1), "down.bias": (B, B)}
    expected = run(fill(MLP()), tensor)
    m = local_to_global(fill(MLP()), square, rules)
    found = run(m, lambda array: tensor(array).to_global(square, (B, B)).to_global(square, (S0, B)))
    assert_all_close(found, expected)
