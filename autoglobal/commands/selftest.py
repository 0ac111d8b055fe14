"""Two CPU ranks of this machine that convert a Parameter, look at it and train it for one step.

OneFlow's own launcher starts them: ``python -m oneflow.distributed.launch --nproc_per_node 2 -m
autoglobal.commands.selftest`` does the same at a terminal.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .needs import Fault
from .probe import ended_by, environment, last_words

RANKS = 2
_LAUNCHER = ("-m", "oneflow.distributed.launch", "--nproc_per_node", str(RANKS))


def run(limit: float) -> Fault | None:
    """Run the self-test for at most ``limit`` seconds; what is wrong, or None if it passed."""
    with tempfile.TemporaryDirectory(prefix="autoglobal-") as logs:
        command = [
            *(sys.executable, *_LAUNCHER, "--master_port", str(_free_port())),
            *("--redirect_stdout_and_stderr", "--logdir", logs, "-m", __name__),
        ]
        process = subprocess.Popen(
            command,
            env={**environment(), **_settings(limit)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            # It ends its ranks by signalling its whole process group.
            start_new_session=True,
        )
        try:
            _, said = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            said = b""
        finally:
            code = process.poll()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        words = [_words(Path(logs, f"local_rank_{rank}"), rank) for rank in range(RANKS)]
    if code == 0:
        return None
    told = "; ".join(filter(None, words)) or ": ".join(last_words(said.decode(errors="replace")))
    again = [*_LAUNCHER, "-m", __name__]
    if code is None:
        how = f"has not ended after {limit:g} s"
        again = ["-m", "autoglobal", "doctor", "--timeout", f"{5 * limit:g}"]
    else:
        how = ended_by(code)
    cause = f"The launcher of {RANKS} CPU ranks {how}" + f" ({told})" * bool(told)
    return Fault(cause, shlex.join([sys.executable or "python", *again]))


def _settings(limit: float) -> dict[str, str]:
    return {
        # The launcher would say in eight lines that it sets this.
        "OMP_NUM_THREADS": "1",
        # OneFlow waits two hours for a rank, also where nobody is left to end the job.
        "ONEFLOW_TIMEOUT_SECONDS": str(max(1, int(limit))),
    }


def _words(logs: Path, rank: int) -> str:
    stderr = logs / "stderr"
    words = last_words(stderr.read_text(errors="replace")) if stderr.exists() else []
    return "".join(f"rank {rank}: {line}" for line in words)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for_rank_0() -> None:
    # OneFlow would look for it at once, and if it does not listen yet again only 10 seconds later.
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    while True:
        with contextlib.suppress(OSError), socket.create_connection(address, timeout=1):
            return
        time.sleep(0.05)


def main() -> None:
    if os.environ["RANK"] != "0":
        _wait_for_rank_0()
    import numpy as np
    import oneflow as flow
    from oneflow import nn

    from ..scopes.scope import global_scope

    rank = flow.env.get_rank()
    _expect("ranks", flow.env.get_world_size(), RANKS)
    placement = flow.placement("cpu", list(range(RANKS)))
    whole = np.arange(16, dtype=np.float32).reshape(4, 4)
    rows = whole[2 * rank : 2 * rank + 2]
    model = nn.Module()
    with global_scope(placement, flow.sbp.split(0)):
        model.weight = nn.Parameter(flow.tensor(whole))
    _expect("the logical shape", tuple(model.weight.shape), whole.shape)
    _expect("the component", model.weight.to_local().numpy().tolist(), rows.tolist())
    optimizer = flow.optim.SGD([model.weight], lr=0.5)
    model.weight.sum().backward()
    optimizer.step()
    _expect("after a step", model.weight.to_local().numpy().tolist(), (rows - 0.5).tolist())


def _expect(what: str, received: object, expected: object) -> None:
    if received != expected:
        raise RuntimeError(f"{what}: expected {expected}. Received: {received}")


if __name__ == "__main__":
    main()
