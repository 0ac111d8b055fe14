"""Fine-tuning: a new head on a frozen global backbone, then all of it, down to a stated loss.

    python -m oneflow.distributed.launch --nproc_per_node 2 examples/fine_tune.py

Tensor parallel in the backbone, data parallel over the same ranks: OneFlow moves what it has to.
"""

import numpy as np
import oneflow as flow
from oneflow import nn

from autoglobal import global_scope, local_to_global

P = flow.placement("cpu", ranks=list(range(flow.env.get_world_size())))
B, S0, S1 = flow.sbp.broadcast, flow.sbp.split(0), flow.sbp.split(1)
HEAD_LOSS, FINAL_LOSS = 0.8, 0.05  # a guess among three classes has 1.1
BATCH = 48


def spirals(points=480):
    """Points in the plane, on three arms of a spiral, and the arm of each."""
    numbers = np.random.default_rng(0)
    arm, along = numbers.integers(0, 3, points), numbers.uniform(0.2, 1, points)
    angle = 4 * along + 2 * np.pi / 3 * arm + 0.1 * numbers.standard_normal(points)
    xy = np.stack([along * np.cos(angle), along * np.sin(angle)], 1)
    return xy.astype("float32"), arm


def split_rows(array):
    """Every rank has the whole array, so broadcast it first: then each keeps its own rows."""
    return flow.tensor(array).to_global(P, B).to_global(P, S0)


def train(model, weights, lr, epochs):
    """The mean loss of the last epoch."""
    optimizer = flow.optim.AdamW(weights, lr=lr)
    for _ in range(epochs):
        losses = []
        for start in range(0, len(POINTS), BATCH):
            rows = slice(start, start + BATCH)
            guesses = model(split_rows(POINTS[rows]))
            loss = nn.functional.cross_entropy(guesses, split_rows(ARMS[rows]))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.numpy()))
    return float(np.mean(losses))


POINTS, ARMS = spirals()
flow.manual_seed(0)
# The backbone, as if it had been trained before.
model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
local_to_global(model, P, {"0.*": S0, "2.weight": S1, "*": B})
model.requires_grad_(False)
backbone = list(model.parameters())
before = [weight.numpy().copy() for weight in backbone]

with global_scope(P, B):
    model.add_module("head", nn.Linear(32, 3))
assert all(weight.requires_grad for weight in model.head.parameters())

head_loss = train(model, model.head.parameters(), lr=0.05, epochs=5)
assert head_loss < HEAD_LOSS, head_loss
assert all((weight.numpy() == value).all() for weight, value in zip(backbone, before))

model.requires_grad_(True)
final_loss = train(model, model.parameters(), lr=0.01, epochs=10)
assert final_loss < FINAL_LOSS, final_loss
assert [weight.sbp for weight in backbone] == [(S0,), (S0,), (S1,), (B,)]
if flow.env.get_rank() == 0:
    print(f"the head alone, on a frozen backbone: loss {head_loss:.3f}, below {HEAD_LOSS}")
    print(f"all of it: loss {final_loss:.3f}, below {FINAL_LOSS}")
