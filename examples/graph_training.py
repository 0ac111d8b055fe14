"""A global model with a grafted head trains in an nn.Graph as the local one does eagerly.

    python -m oneflow.distributed.launch --nproc_per_node 2 examples/graph_training.py

Data parallel: broadcast weights and a split batch. Split weights, which train eagerly, abort the
process in a graph of OneFlow 0.9.0 on two or more CPU ranks.
"""

import copy
import gc

import numpy as np
import oneflow as flow
from oneflow import nn

from autoglobal import global_scope, local_to_global

P = flow.placement("cpu", ranks=list(range(flow.env.get_world_size())))
B, S0 = flow.sbp.broadcast, flow.sbp.split(0)


class Train(nn.Graph):
    def __init__(self, model, optimizer):
        super().__init__()
        # No hook sees an assignment to a graph, nor can anything be converted in build: all that
        # it holds has to be global before.
        self.model = model
        self.add_optimizer(optimizer)

    def build(self, x, target):
        loss = ((self.model(x) - target) ** 2).mean()
        loss.backward()
        return loss


def sgd(model):
    return flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


flow.manual_seed(0)  # the same local model on every rank
model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU())
head = nn.Linear(16, 4)
local = nn.Sequential(*copy.deepcopy(model), copy.deepcopy(head))
numbers = np.random.default_rng(0)
data = [
    [flow.tensor(numbers.standard_normal((6, width)).astype("float32")) for width in (8, 4)]
    for _ in range(5)
]

local_to_global(model, P, B)
with global_scope(P, B):
    model.add_module("head", head)
graph = Train(model, sgd(model))
# Every rank has the whole batch: to_global(P, S0) alone would take it for a part of a larger one.
losses = [
    float(graph(*(one.to_global(P, B).to_global(P, S0) for one in batch)).numpy()) for batch in data
]

optimizer = sgd(local)
expected = []
for x, target in data:
    loss = ((local(x) - target) ** 2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    expected.append(float(loss.numpy()))
np.testing.assert_allclose(losses, expected, rtol=1e-5)
for weight, other in zip(model.parameters(), local.parameters()):
    assert weight.sbp == (B,)
    np.testing.assert_allclose(weight.numpy(), other.numpy(), atol=1e-5)
if flow.env.get_rank() == 0:
    print("losses in the graph:      ", *(f"{loss:.4f}" for loss in losses))
    print("losses of the local model:", *(f"{loss:.4f}" for loss in expected))
# A graph's runtime ends behind a barrier. So on all ranks here, not where the collector finds it.
del graph
gc.collect()
