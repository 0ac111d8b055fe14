"""On GPUs where every rank has one that OneFlow has kernels for, else the same on the CPU.

    python -m oneflow.distributed.launch --nproc_per_node 2 examples/on_cuda.py

A placement of the type "cuda" is all that differs: the model is built on the host and moved.
"""

import copy

import numpy as np
import oneflow as flow
from oneflow import nn

from autoglobal import global_scope, local_to_global

WORLD = flow.env.get_world_size()
RANKS = list(range(WORLD))
B, S0 = flow.sbp.broadcast, flow.sbp.split(0)
# The wheel of 0.9.0 holds kernels for these and no PTX: on a newer device only copies work.
OLDEST, NEWEST = (6, 0), (8, 6)


def why_not():
    """Why this rank cannot compute on a GPU; empty if it can."""
    if not flow.cuda.is_available():
        return "no CUDA device can be used here"
    mine, count = flow.env.get_local_rank(), flow.cuda.device_count()
    if mine >= count:
        return f"CUDA devices on this machine: {count}, too few for a rank each"
    capability = flow.cuda.get_device_capability(mine)
    if not OLDEST <= capability <= NEWEST:
        return f"OneFlow {flow.__version__} has no kernels for compute capability {capability}"
    return ""


def pick():
    """The same answer on all ranks: one that went on alone would wait for the others for ever."""
    reason = why_not()
    able = flow.tensor([float(not reason)]).to_global(
        flow.placement("cpu", RANKS), flow.sbp.partial_sum
    )
    able = int(able.to_global(sbp=B).numpy()[0])
    if able < WORLD and flow.env.get_rank() == 0:
        print("on the CPU:", reason or "another rank has no such GPU")
    return "cuda" if able == WORLD else "cpu"


P = flow.placement(pick(), ranks=RANKS)
flow.manual_seed(0)
local = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
head = nn.Linear(16, 4)
model, expected_head = copy.deepcopy(local), copy.deepcopy(head)
local_to_global(model, P, {"*.weight": S0, "*": B})
with global_scope(P, B):
    model.add_module("head", head)  # from the host to each rank's device

x = flow.tensor(np.random.default_rng(0).standard_normal((4, 8)).astype("float32"))
out = model(x.to_global(P, B))
out.sum().backward()
expected = expected_head(local(x))
assert all(weight.placement == P for weight in model.parameters())
np.testing.assert_allclose(out.numpy(), expected.detach().numpy(), rtol=1e-3, atol=1e-4)
if flow.env.get_rank() == 0:
    print(f"{len(list(model.parameters()))} Parameters on {P}, outputs as those of the local model")
