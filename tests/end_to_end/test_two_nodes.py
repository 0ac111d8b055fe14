"""Two nodes: two launchers of OneFlow's on one machine, a rank each, that meet without a network.

OneFlow counts as nodes the addresses from which its ranks reach the first one. So the second node
is told this machine's own address where it has one. Where it has loopback alone OneFlow sees one
node, in which the second rank has to be number 1: else it holds nothing, ``to_global`` included.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autoglobal.commands.launcher import free_port

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "several_machines.py"
LIMIT = 90  # seconds
LOOPBACK = "127.0.0.1"

# Started by the one-rank run, since each launcher starts a rank of its own.
pytestmark = pytest.mark.ranks(1)

PROGRAM = """
import os
import runpy
nodes = int(os.environ["NODES_TO_SEE"])
if nodes == 1:
    os.environ["LOCAL_RANK"] = os.environ["RANK"]
import oneflow as flow
from oneflow import nn
from autoglobal import DivergenceError, global_scope, local_to_global
from tests.helpers.support import S0, B, Model, assert_global, counted, linear, parameter

rank = flow.env.get_rank()
assert flow.env.get_world_size() == 2
assert flow.env.get_node_size() == nodes
P = flow.placement("cpu", [0, 1])

m = Model()
with global_scope(P, S0):
    m.new = parameter(counted(5, 4, start=1000 * rank))
assert_global(m.new, counted(5, 4), P, S0)

tree = nn.Sequential(*[linear(counted(8, 4, start=1000 * rank + i)) for i in range(3)])
local_to_global(tree, P, B)
for i in range(3):
    assert_global(tree[i].weight, counted(8, 4, start=i), P, B)

other = linear(counted(4 + rank, 4))
try:
    local_to_global(other, P, S0)
except DivergenceError as error:
    assert "rank 1" in str(error) and "(5, 4)" in str(error), error
else:
    raise AssertionError("not told")
assert other.weight.is_local

runpy.run_path(os.environ["EXAMPLE"], run_name="__main__")
print("ok", rank, flush=True)
"""


def own_address() -> str:
    """This machine's address beside loopback, or that of loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing, and asks for the way there
        except OSError:
            return LOOPBACK
        return probe.getsockname()[0]


def start(node: int, master: str, port: int, env: dict, file: Path, log: Path) -> subprocess.Popen:
    with log.open("w") as stream:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "oneflow.distributed.launch"),
                *("--nnodes", "2", "--node_rank", str(node), "--nproc_per_node", "1"),
                *("--master_addr", master, "--master_port", str(port)),
                str(file),
            ],
            env=env,
            cwd=log.parent,
            stdout=stream,
            stderr=subprocess.STDOUT,
            # Each launcher ends its rank by signalling its whole process group.
            start_new_session=True,
        )


def test_both_nodes_get_the_first_ranks_numbers(tmp_path):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    masters = [LOOPBACK, own_address()]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "ONEFLOW_TIMEOUT_SECONDS": str(LIMIT // 2)}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
    nodes_to_see = len(set(masters))
    env.update({"NODES_TO_SEE": str(nodes_to_see), "EXAMPLE": str(EXAMPLE)})
    logs = [tmp_path / f"node{node}" for node in range(2)]
    port, deadline = free_port(), time.monotonic() + LIMIT
    nodes = []
    try:
        for node, (master, log) in enumerate(zip(masters, logs)):
            nodes.append(start(node, master, port, env, file, log))
        # One that fails leaves the other waiting: then there is nothing to wait for.
        while any(node.poll() is None for node in nodes) and time.monotonic() < deadline:
            if any(node.poll() not in (None, 0) for node in nodes):
                break
            time.sleep(0.1)
    finally:
        for node in nodes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGKILL)
            node.wait()
    shown = "\n".join(log.read_text(errors="replace") for log in logs)
    assert [node.returncode for node in nodes] == [0, 0], shown
    for rank, log in enumerate(logs):
        assert f"ok {rank}" in log.read_text().splitlines(), shown
    assert f"machines: {nodes_to_see}, ranks on each: {2 // nodes_to_see}, " in logs[0].read_text()
