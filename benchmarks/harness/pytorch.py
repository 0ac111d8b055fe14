"""PyTorch's rounds between ours: rank 0 runs ``peers/program.py`` and asks it for one at a time."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import oneflow as flow

from .devices import Device
from .rounds import Job, Round, slowest

PROGRAM = Path(__file__).parent.parent / "peers" / "program.py"
VARIABLE = "AUTOGLOBAL_BENCH_TORCH"


@dataclass(frozen=True)
class Peer:
    """PyTorch on as many processes as there are ranks here; they sleep between its rounds."""

    process: Optional[subprocess.Popen[str]]  # of rank 0, None elsewhere

    def rounds(self, way: str, count: int, edge: int, **what: Any) -> PeersRounds:
        return PeersRounds(self.process, {"way": way, "count": count, "edge": edge, **what})


@dataclass(frozen=True)
class PeersRounds:
    process: Optional[subprocess.Popen[str]]
    request: dict[str, Any]

    def __call__(self, device: Device, check: bool = False) -> Round:
        seconds = self._ask({**self.request, "check": check}) if self.process else 0.0
        flow.comm.barrier()  # it sleeps; a rank that waits for an all-gather takes a whole core
        return Round(*slowest(seconds, seconds))

    def _ask(self, request: dict[str, Any]) -> float:
        assert self.process
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the program of PyTorch has ended at {request}")
        return float(json.loads(answer)["seconds"])


@contextmanager
def pytorch(job: Job) -> Iterator[tuple[Optional[Peer], str]]:
    """The peer and no words, or None and why it is left out."""
    if job.device.kind != "cpu" or job.world == 1:
        yield None, ""
    elif job.torch is None:
        yield None, f"PyTorch: left out, neither {VARIABLE} nor --torch-python names a Python"
    elif job.rank > 0:
        yield Peer(None), ""
    else:
        process = subprocess.Popen(
            [job.torch, str(PROGRAM), "--ranks", str(job.world)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with process:  # leaving it closes its input, which is its end
            yield Peer(process), ""
