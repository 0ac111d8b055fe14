"""A local checkpoint into a global model, trained, and back to a file for a local program.

    python -m oneflow.distributed.launch --nproc_per_node 2 examples/checkpoints.py

Only rank 0 reads and writes, so that the other ranks need not see its disk.
"""

import tempfile
from pathlib import Path

import numpy as np
import oneflow as flow
from oneflow import nn

from autoglobal import local_to_global

P = flow.placement("cpu", ranks=list(range(flow.env.get_world_size())))
B, S0 = flow.sbp.broadcast, flow.sbp.split(0)
RANK = flow.env.get_rank()


def make():
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    return model, flow.optim.Adam(model.parameters(), lr=0.01)


def step(model, optimizer, x):
    loss = (model(x) ** 2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.numpy())


x = flow.tensor(np.random.default_rng(0).standard_normal((4, 8)).astype("float32"))
folder = tempfile.TemporaryDirectory()
before, after = Path(folder.name, "before"), Path(folder.name, "after")

# A program on one device writes a checkpoint, as OneFlow's own do.
if RANK == 0:
    local, _ = make()
    flow.save(local.state_dict(), before)

# The same model, global. Without global_src_rank the file would give local tensors, which
# load_state_dict of a global model refuses.
model, optimizer = make()
local_to_global(model, P, {"*.weight": S0, "*": B})
model.load_state_dict(flow.load(before, global_src_rank=0))
assert [weight.sbp for weight in model.parameters()] == [(S0,), (B,)] * 2
loaded = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
if RANK == 0:
    for name, tensor in local.state_dict().items():
        np.testing.assert_array_equal(loaded[name], tensor.numpy())

losses = [step(model, optimizer, x.to_global(P, B)) for _ in range(5)]

# All ranks call it, since each holds a part; rank 0 writes.
state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
flow.save(state, after, global_dst_rank=0)
trained = {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}
next_loss = [step(model, optimizer, x.to_global(P, B)) for _ in range(2)]

# A program on one device goes on from there.
if RANK == 0:
    local, local_optimizer = make()
    state = flow.load(after)
    local.load_state_dict(state["model"])
    local_optimizer.load_state_dict(state["optimizer"])
    for name, tensor in local.state_dict().items():
        assert tensor.is_local
        np.testing.assert_array_equal(tensor.numpy(), trained[name])
    goes_on = [step(local, local_optimizer, x) for _ in range(2)]
    np.testing.assert_allclose(goes_on, next_loss, rtol=1e-5)
    print(f"local file -> global model: {len(loaded)} tensors, equal")
    print(f"global file -> local model, after {len(losses)} steps: {len(trained)} tensors, equal")
    print("the next losses, global:", *(f"{loss:.4f}" for loss in next_loss))
    print("the next losses, local: ", *(f"{loss:.4f}" for loss in goes_on))
flow.comm.barrier()
folder.cleanup()
