"""New layers on a global model: a head that was trained elsewhere, and one that is built in place.

    python -m oneflow.distributed.launch --nproc_per_node 2 examples/graft_head.py

The model keeps its layout, which took thought, and its optimizer keeps its momentum.
"""

import numpy as np
import oneflow as flow
from oneflow import nn

from autoglobal import global_scope, local_to_global

P = flow.placement("cpu", ranks=list(range(flow.env.get_world_size())))
B, S0, S1 = flow.sbp.broadcast, flow.sbp.split(0), flow.sbp.split(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(nn.functional.relu(self.down(nn.functional.relu(self.up(x)))))


class Gate(nn.Module):
    """A head that scales another one's outputs."""

    def __init__(self, head):
        super().__init__()
        self.head = head
        self.gate = nn.Linear(head.in_features, head.out_features)

    def forward(self, x):
        return self.head(x) * flow.sigmoid(self.gate(x))


def step(model, optimizer, x):
    loss = (model(x) ** 2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


# The global model that exists, with an optimizer that has taken a step.
model = local_to_global(Model(), P, {"up.*": S0, "down.weight": S1, "*": B})
optimizer = flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
numbers = np.random.default_rng(0).standard_normal((4, 8)).astype("float32")
x = flow.tensor(numbers).to_global(P, B)
step(model, optimizer, x)
before = {name: (weight, weight.sbp) for name, weight in model.named_parameters()}

# Another, local model's head. Each rank has a copy; where they differ, the first rank's counts.
trained = nn.Linear(16, 4)
nn.init.ones_(trained.weight)
with global_scope(P, S0):
    model.head = Gate(trained)  # what its constructor builds, and what it was given
# The old head's weights stay in its first group, where they get no gradients any more.
optimizer.add_param_group({"params": list(model.head.parameters())})

kept = [name for name, _ in model.named_parameters() if name in before]
assert kept == ["up.weight", "up.bias", "down.weight", "down.bias"]
weights = dict(model.named_parameters())
assert all(weights[name] is before[name][0] for name in kept)
assert all(weights[name].sbp == before[name][1] for name in kept)
assert all(weight.sbp == (S0,) for weight in model.head.parameters())
assert model.head.head is trained  # the very module that was given, global now
assert (trained.weight.numpy() == 1).all()

values = {name: weight.numpy().copy() for name, weight in weights.items()}
for _ in range(3):
    step(model, optimizer, x)
assert all((weights[name].numpy() != value).any() for name, value in values.items())
if flow.env.get_rank() == 0:
    for name, weight in weights.items():
        new = "kept" if name in kept else "new "
        print(f"{new} {name:16} {tuple(weight.shape)!s:8} {weight.sbp[0]}")
