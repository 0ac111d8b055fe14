"""A model that is written for PyTorch, brought into a scope by OneFlow's mock_torch.

    python -m oneflow.distributed.launch --nproc_per_node 2 examples/torch_style.py

Inside of `mock_torch.enable()`, `import torch` gives OneFlow under that name, with PyTorch
installed or not. What is defined there is OneFlow's, and a scope treats it as any other module.
"""

import numpy as np
import oneflow as flow
from oneflow import mock_torch

from autoglobal import global_scope

P = flow.placement("cpu", ranks=list(range(flow.env.get_world_size())))
B, S0, S1 = flow.sbp.broadcast, flow.sbp.split(0), flow.sbp.split(1)
RULES = {"Embedding.weight": S1, "hidden.*": S0, "out.weight": S1, "*": B}

with mock_torch.enable():
    import torch
    import torch.nn.functional as F
    from torch import nn

    # In a file of its own, imported here, a definition needs no change at all. Here the name
    # `torch` goes when the block ends, so that forward, which runs later, has to do without it.
    class Tagger(nn.Module):
        def __init__(self, words=32, width=16, tags=4):
            super().__init__()
            self.embed = nn.Embedding(words, width)
            self.register_buffer("scale", torch.full((width,), width**-0.5))
            self.hidden = nn.Linear(width, 4 * width)
            self.out = nn.Linear(4 * width, width)
            self.norm = nn.LayerNorm(width)
            self.tags = nn.Linear(width, tags)

        def forward(self, words):
            x = self.embed(words) * self.scale
            x = self.norm(x + self.out(F.gelu(self.hidden(x))))
            return self.tags(x)

    local = Tagger()
    # At the exit, for rules by path and the first rank's initial values.
    with global_scope(P, RULES, when="exit"):
        model = Tagger()


# A local model with the same weights, to compare with. Reading a global tensor takes all ranks.
state = {name: flow.tensor(tensor.numpy()) for name, tensor in model.state_dict().items()}
local.load_state_dict(state)


def train(model, words, tags):
    optimizer = flow.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(4):
        loss = F.cross_entropy(model(words).reshape(-1, 4), tags)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield float(loss.numpy())


numbers = np.random.default_rng(0)
words, tags = flow.tensor(numbers.integers(0, 32, (2, 6))), flow.tensor(numbers.integers(0, 4, 12))
losses = list(train(model, words.to_global(P, B), tags.to_global(P, B)))
np.testing.assert_allclose(losses, list(train(local, words, tags)), rtol=1e-4)
if flow.env.get_rank() == 0:
    print(f"Tagger(torch.nn.Module) is a module of {flow.nn.Module.__module__.split('.')[0]}'s:")
    for name, tensor in model.state_dict().items():
        print(f"  {name:13} {tuple(tensor.shape)!s:8} {tensor.sbp[0]}")
    print("losses, equal to the local model's:", *(f"{loss:.4f}" for loss in losses))
