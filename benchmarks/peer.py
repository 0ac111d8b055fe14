"""PyTorch's rounds between ours: rank 0 runs ``peers/dtensor.py`` and asks it for one at a time."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import oneflow as flow

from .subjects import Subject
from .together import slowest

PROGRAM = Path(__file__).parent / "peers" / "dtensor.py"
VARIABLE = "AUTOGLOBAL_BENCH_TORCH"


@dataclass
class Peer:
    """DTensor on as many processes as there are ranks here; they sleep between its rounds."""

    process: Optional[subprocess.Popen[str]]  # of rank 0, None elsewhere

    def distribute(self, subject: Subject, source: Optional[int]) -> DTensorRounds:
        request = {"count": subject.count, "edge": subject.edge, "source": source}
        return DTensorRounds(self.process, request)


@dataclass(frozen=True)
class DTensorRounds:
    process: Optional[subprocess.Popen[str]]
    request: dict[str, Optional[int]]

    def __call__(self, check: bool = False) -> float:
        seconds = self._ask({**self.request, "check": check}) if self.process else 0.0
        flow.comm.barrier()  # it sleeps; a rank that waits for an all-gather takes a whole core
        return slowest(seconds)

    def _ask(self, request: dict[str, Optional[int]]) -> float:
        assert self.process
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return float(json.loads(self.process.stdout.readline())["seconds"])


@contextmanager
def dtensor(python: Optional[str]) -> Iterator[Optional[Peer]]:
    """The peer, or None where there is no Python with torch or nothing to distribute."""
    world, rank = flow.env.get_world_size(), flow.env.get_rank()
    if python is None or world == 1:
        if rank == 0 and world > 1:
            print(f"DTensor: left out, neither {VARIABLE} nor --torch-python names a Python")
        yield None
        return
    if rank > 0:
        yield Peer(None)
        return
    process = subprocess.Popen(
        [python, str(PROGRAM), "--follow", "--ranks", str(world)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:  # leaving it closes its input, which is its end
        yield Peer(process)
