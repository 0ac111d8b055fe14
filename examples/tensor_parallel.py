"""Megatron's split of a GPT block, written as rules for a local module.

    python -m oneflow.distributed.launch --nproc_per_node 2 examples/tensor_parallel.py

The layers that widen (qkv, up) are split by their output features, those that narrow (out, down)
by their input features; the rest is broadcast. The block then trains as the local one does.
"""

import copy

import numpy as np
import oneflow as flow
from oneflow import nn

from autoglobal import local_to_global

P = flow.placement("cpu", ranks=list(range(flow.env.get_world_size())))
B, S0, S1 = flow.sbp.broadcast, flow.sbp.split(0), flow.sbp.split(1)
LENGTH, WIDTH, HEADS = 8, 16, 4
# A weight of OneFlow's Linear is (out_features, in_features). The first match wins.
RULES = {"*.qkv.*": S0, "*.up.*": S0, "*.out.weight": S1, "*.down.weight": S1, "*": B}


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        # What a position must not see. A buffer, so that it becomes global with the weights.
        self.register_buffer("mask", flow.triu(flow.full((LENGTH, LENGTH), -1e4), 1))

    def forward(self, x):
        # By head first, so that a split of the features is a split of the heads.
        heads = self.qkv(x).reshape(-1, LENGTH, HEADS, 3 * WIDTH // HEADS).transpose(1, 2)
        q, k, v = heads.chunk(3, dim=-1)
        scores = flow.matmul(q, k.transpose(2, 3)) / (WIDTH / HEADS) ** 0.5 + self.mask
        seen = flow.matmul(flow.softmax(scores, dim=-1), v)
        return self.out(seen.transpose(1, 2).reshape(-1, LENGTH, WIDTH))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

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
    for _ in range(3):
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield float(loss.numpy())


flow.manual_seed(0)  # the same local block on every rank
x = flow.tensor(np.random.default_rng(0).standard_normal((2, LENGTH, WIDTH)).astype("float32"))
local = Block()
parallel = local_to_global(copy.deepcopy(local), P, RULES)
parallel_losses = list(train(parallel, x.to_global(P, B)))
np.testing.assert_allclose(parallel_losses, list(train(local, x)), rtol=1e-5)
if flow.env.get_rank() == 0:
    for name, weight in parallel.named_parameters():
        print(f"{name:18} {tuple(weight.shape)!s:10} {weight.sbp[0]}")
    print("losses, equal to the local block's:", *(f"{loss:.4f}" for loss in parallel_losses))
