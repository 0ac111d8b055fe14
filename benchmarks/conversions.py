"""Converting whole modules, one Parameter, and a stack being built, on 1, 2 and 4 CPU ranks.

Against OneFlow's ``to_global`` with its check, and against PyTorch's DTensor where the environment
variable AUTOGLOBAL_BENCH_TORCH, or ``--torch-python``, names a Python that has torch. All variants
are interleaved round by round in one job, on modules made afresh and outside of the timing; a
round lasts until the slowest rank has its tensors. After the tables stand the bars that the
figures are held to, and whether they are met.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Optional

from tools.launch import launch

LIMIT = 3600.0


def main(rounds: int, ranks: Sequence[int], torch_python: Optional[str]) -> None:
    if rounds < 2:
        sys.exit("--rounds: at least 2, for the quartiles")
    print(
        f"medians over {rounds} rounds on {len(os.sched_getaffinity(0))} cores; P: all ranks, "
        "S0: split(0), B: broadcast; in brackets the quartiles of the ratios of each round"
    )
    failed = []
    for number in ranks:
        print(f"\n=== {number} rank{'s' * (number > 1)} ===", flush=True)
        program = ["-m", "benchmarks.on_ranks", "--rounds", str(rounds)]
        if torch_python:
            program += ["--torch-python", torch_python]
        if launch(number, program, limit=LIMIT) != 0:
            failed.append(str(number))
    if failed:
        sys.exit(f"no figures where the number of ranks is {', '.join(failed)}")
