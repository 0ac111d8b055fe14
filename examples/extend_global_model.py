"""The case of Oneflow-Inc/oneflow#8869: a local Parameter on a model that is global already.

python -m oneflow.distributed.launch --nproc_per_node 2 examples/extend_global_model.py
"""

import copy
import io

import oneflow as flow
from oneflow import nn
from rich.console import Console
from rich.table import Table

from autoglobal import global_scope

RANKS = list(range(flow.env.get_world_size()))
P = flow.placement("cpu", ranks=RANKS)
B = flow.sbp.broadcast
S0 = flow.sbp.split(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.param = nn.Parameter(flow.ones(4, 4).to_global(P, B))


def describe(tensor):
    if tensor.is_local:
        return "-", str(tuple(tensor.shape)), "local"
    local_shape = tuple(tensor.to_local().shape)
    sbp = ", ".join(str(one).replace("oneflow.sbp.", "") for one in tensor.sbp)
    return str(tuple(tensor.shape)), str(local_shape), sbp


def show(title, before, after):
    """Print one table per rank, in the order of the ranks."""
    table = Table()
    for column in ("name", "logical shape", "local shape", "sbp"):
        table.add_column(column)
    for name, was in before.items():
        now = after[name]
        cells = (a if a == b else f"{a} -> {b}" for a, b in zip(was, now))
        table.add_row(name, *cells)
    text = io.StringIO()
    Console(file=text, width=100).print(table)
    for rank in RANKS:
        flow.comm.barrier()
        if rank == flow.env.get_rank():
            print(f"{title}, rank {rank}", text.getvalue(), sep="\n", end="", flush=True)


def tensors(model):
    return {name: describe(parameter) for name, parameter in model.named_parameters()}


# What goes wrong: the weight that was global and broadcast is split as well, and the new one
# becomes (8, 4), since each rank's local tensor counts as that rank's part.
wrong = copy.deepcopy(Model())
wrong.new = nn.Parameter(flow.zeros(4, 4))
before = tensors(wrong)
wrong.to_global(P, S0)
show("Module.to_global", before, tensors(wrong))

# What is meant.
model = Model()
param, new = model.param, nn.Parameter(flow.zeros(4, 4))
before = {"param": describe(param), "new": describe(new)}
with global_scope(P, S0):
    model.new = new
show("global_scope", before, tensors(model))

assert model.param is param
assert param.sbp == (B,)
assert model.new is new
assert new.sbp == (S0,)
