"""LoRA on a tensor-parallel model: each adapter is laid out as the weight that it goes with.

    python -m oneflow.distributed.launch --nproc_per_node 2 examples/lora.py

The frozen weights stay the very objects that they were. In the end the adapters are merged.
"""

import numpy as np
import oneflow as flow
from oneflow import nn

from autoglobal import global_scope, local_to_global

P = flow.placement("cpu", ranks=list(range(flow.env.get_world_size())))
B, S0, S1 = flow.sbp.broadcast, flow.sbp.split(0), flow.sbp.split(1)


class LoRA(nn.Module):
    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(flow.randn(rank, base.in_features) / base.in_features**0.5)
        self.b = nn.Parameter(flow.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + flow.matmul(flow.matmul(x, self.a.T), self.b.T)

    def merged(self):
        with flow.no_grad():
            self.base.weight += flow.matmul(self.b, self.a)
        return self.base


def beside_the_base(owner, path, tensor):
    """The sbp of an adapter: what is split in the base's weight is split in it."""
    wanted = S1 if path.endswith("a") else S0
    return wanted if owner.base.weight.sbp == (wanted,) else B


def replace_layers(model, kind, new):
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, kind) and not isinstance(parent, LoRA):
                setattr(parent, name, new(child))


# The model that exists: a column-parallel and a row-parallel layer.
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
local_to_global(model, P, {"0.*": S0, "2.weight": S1, "2.bias": B})
numbers = np.random.default_rng(0).standard_normal((2, 64, 16)).astype("float32")
x, target = flow.tensor(numbers).to_global(P, B)
frozen = list(model.parameters())
values, before = [weight.numpy().copy() for weight in frozen], model(x).numpy()

# The ranks draw different numbers for a: those of the first rank count.
with global_scope(P, beside_the_base) as scope:
    replace_layers(model, nn.Linear, LoRA)
np.testing.assert_array_equal(model(x).numpy(), before)  # b is zero

optimizer = flow.optim.Adam([w for w in model.parameters() if w.requires_grad], lr=0.02)
losses = []
for _ in range(30):
    losses.append(((model(x) - target) ** 2).mean())
    losses[-1].backward()
    optimizer.step()
    optimizer.zero_grad()
first, last = float(losses[0].numpy()), float(losses[-1].numpy())
assert last < 0.9 * first
assert model[0].base.weight is frozen[0]
assert all((weight.numpy() == value).all() for weight, value in zip(frozen, values))

after = model(x).numpy()
replace_layers(model, LoRA, LoRA.merged)
np.testing.assert_allclose(model(x).numpy(), after, atol=1e-5)
assert [weight.sbp for weight in model.parameters()] == [(S0,), (S0,), (S1,), (B,)]
if flow.env.get_rank() == 0:
    for record in scope.converted:
        print(f"{record.path} {record.shape!s:8} {record.sbp[0]}")
    print(f"loss {first:.4f} -> {last:.4f}, and merged into the weights")
