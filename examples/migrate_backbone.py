"""A flowvision model moves to global tensors in the middle of its training, and goes on as before.

    python -m oneflow.distributed.launch --nproc_per_node 2 examples/migrate_backbone.py

Needs flowvision (`pip install flowvision`). `pretrained=True` works as well and downloads weights.
"""

import copy

import flowvision
import numpy as np
import oneflow as flow
from oneflow import nn

from autoglobal import local_to_global, optimizer_to_global

P = flow.placement("cpu", ranks=list(range(flow.env.get_world_size())))
B, S0 = flow.sbp.broadcast, flow.sbp.split(0)
# The largest convolutions and the classifier by their output features, the rest on every rank.
RULES = {"conv5.0.weight": S0, "fc.*": S0, "*": B}


def sgd(model):
    return flow.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def step(model, optimizer, images, labels):
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.numpy())


numbers = np.random.default_rng(2)
images = flow.tensor(numbers.standard_normal((16, 3, 32, 32)).astype("float32"))
labels = flow.tensor(numbers.integers(0, 10, 16))
# Every rank the whole batch: with a split one each rank's BatchNorm would see its own part alone.
global_images, global_labels = images.to_global(P, B), labels.to_global(P, B)

flow.manual_seed(2)  # the same model on every rank, for the comparison
model = flowvision.models.shufflenet_v2_x0_5(num_classes=10)
local = copy.deepcopy(model)

optimizer = sgd(model)
losses = [step(model, optimizer, images, labels)]  # local so far
local_to_global(model, P, RULES)
optimizer_to_global(optimizer)  # the momentum, which is there since the first step, follows
losses += [step(model, optimizer, global_images, global_labels) for _ in range(2)]

# The same on one device.
optimizer = sgd(local)
expected = [step(local, optimizer, images, labels) for _ in range(3)]
# The sums are of float32 in another order.
np.testing.assert_allclose(losses, expected, rtol=1e-4)
state = local.state_dict()
for name, tensor in model.state_dict().items():  # the BatchNorms' statistics too
    assert tensor.is_global, name
    np.testing.assert_allclose(tensor.numpy(), state[name].numpy(), rtol=1e-2, atol=1e-3)

split = [name for name, weight in model.named_parameters() if weight.sbp == (S0,)]
if flow.env.get_rank() == 0:
    print(f"{len(state)} tensors of ShuffleNet are global; split:", *split, sep="\n  ")
    print("losses, local then global:", *(f"{loss:.4f}" for loss in losses))
    print("losses of a local program:", *(f"{loss:.4f}" for loss in expected))
