"""Data parallel over machines and tensor parallel within each: a placement of two dimensions.

On two machines with two ranks each, where ADDRESS is how both reach the first one:

    python -m oneflow.distributed.launch --nnodes 2 --node_rank 0 --nproc_per_node 2 \\
        --master_addr ADDRESS --master_port 29500 examples/several_machines.py   # on the first
    python -m oneflow.distributed.launch --nnodes 2 --node_rank 1 --nproc_per_node 2 \\
        --master_addr ADDRESS --master_port 29500 examples/several_machines.py   # on the second

On one machine it is `--nproc_per_node 2` alone, and the first dimension has length 1.
"""

import copy

import numpy as np
import oneflow as flow
from oneflow import nn

from autoglobal import local_to_global

WORLD, MACHINES = flow.env.get_world_size(), flow.env.get_node_size()
PER_MACHINE = WORLD // MACHINES  # OneFlow numbers the ranks machine by machine
P = flow.placement("cpu", ranks=np.arange(WORLD).reshape(MACHINES, PER_MACHINE).tolist())
B, S0, S1 = flow.sbp.broadcast, flow.sbp.split(0), flow.sbp.split(1)
# One sbp for each dimension of the placement: over the machines, within a machine.
RULES = {"up.*": (B, S0), "down.weight": (B, S1), "*": (B, B)}
DATA = (S0, B)


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 4)

    def forward(self, x):
        return self.down(nn.functional.relu(self.up(x)))


def batch(machine, step):
    """What a machine reads from its own disk: all its ranks the same."""
    numbers = np.random.default_rng([machine, step])
    return [flow.tensor(numbers.standard_normal((4, n)).astype("float32")) for n in (8, 4)]


def train(model, batches):
    optimizer = flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, target in batches:
        loss = ((model(x) - target) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield float(loss.numpy())


flow.manual_seed(0)  # for the comparison below; without it the first rank's values count
local = MLP()
model = local_to_global(copy.deepcopy(local), P, RULES)
machine = flow.env.get_rank() // PER_MACHINE
losses = list(train(model, ([t.to_global(P, DATA) for t in batch(machine, n)] for n in range(4))))

# The same on one device, which needs the batches of all machines.
together = ([flow.cat(ts) for ts in zip(*(batch(m, n) for m in range(MACHINES)))] for n in range(4))
np.testing.assert_allclose(losses, list(train(local, together)), rtol=1e-5)
if flow.env.get_rank() == 0:
    print(f"machines: {MACHINES}, ranks on each: {PER_MACHINE}, {P}")
    print("up.weight:", tuple(model.up.weight.shape), "as", model.up.weight.sbp)
    print("losses, equal to those on one device:", *(f"{loss:.4f}" for loss in losses))
