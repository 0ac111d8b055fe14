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
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def train(model, optimizer, x, steps):
    for _ in range(steps):
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield float(loss.numpy())


def values(model):
    """All ranks have to ask a global model. A copy: what numpy() gives can be the weight itself."""
    return {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}


x = flow.tensor(np.random.default_rng(0).standard_normal((4, 8)).astype("float32"))
folder = tempfile.TemporaryDirectory()
before, after = Path(folder.name, "before"), Path(folder.name, "after")

# Any program on one device writes a checkpoint.
if RANK == 0:
    local = make()
    flow.save(local.state_dict(), before)

# Without global_src_rank these were local tensors, which a global model refuses to load.
model = local_to_global(make(), P, {"*.weight": S0, "*": B})
model.load_state_dict(flow.load(before, global_src_rank=0))
loaded = values(model)
if RANK == 0:
    np.testing.assert_equal(loaded, values(local))

optimizer = flow.optim.Adam(model.parameters(), lr=0.01)
losses = list(train(model, optimizer, x.to_global(P, B), steps=5))
assert [weight.sbp for weight in model.parameters()] == [(S0,), (B,)] * 2

# All ranks call it, since each holds a part; rank 0 writes.
state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
flow.save(state, after, global_dst_rank=0)
trained = values(model)
more = list(train(model, optimizer, x.to_global(P, B), steps=2))

# A program on one device goes on from there (and so would a global one, as above).
if RANK == 0:
    state = flow.load(after)
    local.load_state_dict(state["model"])
    np.testing.assert_equal(values(local), trained)
    optimizer = flow.optim.Adam(local.parameters(), lr=0.01)
    optimizer.load_state_dict(state["optimizer"])
    goes_on = list(train(local, optimizer, x, steps=2))
    np.testing.assert_allclose(goes_on, more, rtol=1e-5)
    print(f"local file -> global model: {len(loaded)} tensors, equal")
    print(f"global file -> local model, after {len(losses)} steps: {len(trained)} tensors, equal")
    print("which goes on as the global one does; losses:", *(f"{loss:.4f}" for loss in goes_on))
flow.comm.barrier()
folder.cleanup()
