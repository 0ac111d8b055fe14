"""Two CPU ranks of this machine that convert a Parameter, look at it and train it for one step.

OneFlow's own launcher starts them: ``python -m oneflow.distributed.launch --nproc_per_node 2 -m
autoglobal.commands.selftest`` does the same at a terminal.
"""

from __future__ import annotations

import os
import shlex
import sys
from tempfile import TemporaryDirectory

from .installation import Fault
from .launcher import ONEFLOW_LAUNCHER, Ranks, apart, ended_by, last_words, wait_for_rank_0

RANKS = 2


def run(limit: float) -> Fault | None:
    """Run the self-test for at most ``limit`` seconds; what is wrong, or None if it passed."""
    # OneFlow waits two hours for a rank, also where nobody is left to end the job.
    env = {**apart(), "ONEFLOW_TIMEOUT_SECONDS": str(max(1, int(limit)))}
    with TemporaryDirectory() as folder, Ranks(RANKS, ["-m", __name__], env, folder) as ranks:
        code = ranks.wait(limit)
        if code == 0:
            return None
        reasons = [
            f"rank {rank}: {line}"
            for rank in range(RANKS)
            for line in last_words(ranks.written(rank, "stderr"))
        ]
        if not reasons and code is not None:
            reasons = last_words(ranks.written_by_launcher())
    if code is None:
        how = f"has not ended after {limit:g} s"
        again = ["-m", "autoglobal", "doctor", "--timeout", f"{5 * limit:g}"]
    else:
        how = ended_by(code)
        again = [*ONEFLOW_LAUNCHER, str(RANKS), "-m", __name__]
    cause = f"The launcher of {RANKS} CPU ranks {how}"
    cause += f" ({'; '.join(reasons)})" if reasons else ""
    return Fault(cause, shlex.join([sys.executable or "python", *again]))


def main() -> None:
    if os.environ["RANK"] != "0":
        wait_for_rank_0()
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
