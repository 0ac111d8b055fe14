"""Megatron's split of a transformer block, written as rules for a local module.

    python -m oneflow.distributed.launch --nproc_per_node 2 examples/tensor_parallel.py

The layers that widen (qkv, up) are split by their output features, and those that narrow (out,
down) by their input features; the rest is broadcast. The block then trains as the local one does.
"""

import copy

import numpy as np
import oneflow as flow
from oneflow import nn

from autoglobal import local_to_global

P = flow.placement("cpu", ranks=list(range(flow.env.get_world_size())))
B, S0, S1 = flow.sbp.broadcast, flow.sbp.split(0), flow.sbp.split(1)
WIDTH, HEADS = 16, 4

# A weight of OneFlow's Linear is (out_features, in_features). The first match wins.
RULES = {
    "*.qkv.*": S0,
    "*.up.*": S0,
    "*.out.weight": S1,
    "*.down.weight": S1,
    "*": B,
}


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        # By head first, so that a split of the features is a split of the heads.
        heads = self.qkv(x).reshape(batch, length, HEADS, 3 * WIDTH // HEADS).transpose(1, 2)
        q, k, v = heads.chunk(3, dim=-1)
        weights = flow.softmax(flow.matmul(q, k.transpose(2, 3)) / (WIDTH / HEADS) ** 0.5, dim=-1)
        return self.out(flow.matmul(weights, v).transpose(1, 2).reshape(batch, length, WIDTH))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(flow.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(WIDTH), Attention()
        self.norm2, self.mlp = nn.LayerNorm(WIDTH), MLP()

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def train(model, x):
    optimizer = flow.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.numpy()))
    return losses


flow.manual_seed(0)
x = flow.tensor(np.random.default_rng(0).standard_normal((2, 8, WIDTH)).astype("float32"))
local = Block()
parallel = local_to_global(copy.deepcopy(local), P, RULES)
parallel_losses = train(parallel, x.to_global(P, B))
local_losses = train(local, x)

if flow.env.get_rank() == 0:
    print("on", flow.env.get_world_size(), "rank(s)")
    for name, parameter in parallel.named_parameters():
        print(f"{name:18} {tuple(parameter.shape)!s:10} {parameter.sbp[0]}")
    print("losses of the parallel block:", *parallel_losses)
    print("losses of the local one:     ", *local_losses)
np.testing.assert_allclose(parallel_losses, local_losses, rtol=1e-5)
