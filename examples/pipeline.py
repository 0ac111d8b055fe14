"""Two pipeline stages, each tensor-parallel, from one local GPT by one call.

    python -m oneflow.distributed.launch --nproc_per_node 4 examples/pipeline.py

Each rule gives a placement with its sbp. Two ranks hold blocks 0 and 1, the others 2 and 3.
"""

import copy

import numpy as np
import oneflow as flow
from oneflow import nn

from autoglobal import Placed, describe, local_to_global

ranks, half = list(range(flow.env.get_world_size())), max(1, flow.env.get_world_size() // 2)
P, FIRST, LAST = (flow.placement("cpu", ranks=one) for one in (ranks, ranks[:half], ranks[-half:]))
B, S0, S1 = flow.sbp.broadcast, flow.sbp.split(0), flow.sbp.split(1)
WORDS, LENGTH, WIDTH, HEADS = 32, 8, 16, 4

RULES = {"embed": Placed(FIRST, B), "position": Placed(FIRST, B), "head": Placed(LAST, S0)}
for i, stage in enumerate([FIRST, FIRST, LAST, LAST]):
    for name, sbp in {"qkv": S0, "up": S0, "out.weight": S1, "down.weight": S1}.items():
        RULES[f"blocks.{i}.{name}"] = Placed(stage, sbp)
    RULES[f"blocks.{i}"] = Placed(stage, B)  # the rest of the block


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.register_buffer("mask", flow.triu(flow.full((LENGTH, LENGTH), -1e4), 1))

    def forward(self, x):
        x = x.to_global(self.mask.placement, B) if x.is_global else x  # from the stage before
        heads = self.qkv(self.norm1(x)).reshape(-1, LENGTH, HEADS, 3 * WIDTH // HEADS)
        q, k, v = heads.transpose(1, 2).chunk(3, dim=-1)
        scores = flow.matmul(q, k.transpose(2, 3)) / (WIDTH / HEADS) ** 0.5 + self.mask
        seen = flow.matmul(flow.softmax(scores, dim=-1), v).transpose(1, 2)
        x = x + self.out(seen.reshape(-1, LENGTH, WIDTH))
        return x + self.down(flow.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.position = nn.Parameter(flow.zeros(LENGTH, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(4)))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        return self.head(self.blocks(self.embed(tokens) + self.position))


def train(model, tokens, wanted):
    optimizer = flow.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for _ in range(3):
        loss = ((model(tokens) - wanted) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield float((loss.to_global(P, B) if loss.is_global else loss).numpy())


flow.manual_seed(0)  # the same local model on every rank
numbers = np.random.default_rng(0).integers(WORDS, size=(2, LENGTH))
tokens, wanted = flow.tensor(numbers), flow.tensor(np.eye(WORDS, dtype="float32")[numbers[:, ::-1]])
local = GPT()
model = local_to_global(copy.deepcopy(local), P, RULES)
losses = list(train(model, tokens.to_global(FIRST, B), wanted.to_global(LAST, B)))
np.testing.assert_allclose(losses, list(train(local, tokens, wanted)), rtol=1e-5)
if flow.env.get_rank() == 0:
    for row in describe(model):
        if row.path.endswith(("embed.weight", "qkv.weight", "head.weight")):
            print(f"{row.path:19} {row.sbp[0]} on ranks {row.placement.ranks.tolist()}")
    print("losses, equal to the local model's:", *(f"{loss:.4f}" for loss in losses))
