"""Runs a Python program on several CPU ranks of this machine, with a time limit.

``python -m oneflow.distributed.launch`` is what starts the ranks. Around it stand the
things that a person at a terminal would otherwise do by hand: a free port, the ranks'
output kept apart and shown rank by rank, and an end for a job that hangs, since a
collective that one rank misses waits for ever.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TIMED_OUT = 124  # what timeout(1) returns
# OneFlow's own start-up remarks about hardware that a CPU run does not need.
NOISE = ("libibverbs not available", "cuda_device_descriptor_class.cpp", "rpc_client.cpp")


def launch(
    ranks: int, argv: list[str], *, limit: float, show_all: bool = False, quiet: bool = False
) -> int:
    """Run ``python ARGV`` on ``ranks`` ranks and return the exit code, 0 if all ranks ended well.

    Rank 0's standard output is shown as it comes (not with ``quiet``), that of the other ranks
    at the end with ``show_all``. When a rank fails, or when ``limit`` seconds have passed
    (exit code 124, with a stack of each rank where it can be had), everything that every rank
    wrote is shown.
    """
    with tempfile.TemporaryDirectory(prefix="ranks-") as logs:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "oneflow.distributed.launch"),
                *("--nproc_per_node", str(ranks), "--master_port", str(_free_port())),
                *("--redirect_stdout_and_stderr", "--logdir", logs),
                *(str(Path(__file__).with_name("late.py")), *argv),
            ],
            env=_environment(limit),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # The launcher ends its ranks by signalling its whole process group.
            start_new_session=True,
        )
        try:
            code = _follow(process, _log(logs, 0, "stdout"), time.monotonic() + limit, quiet)
        finally:
            _kill_group(process, signal.SIGKILL)
        if code == TIMED_OUT:
            print(f"{ranks} ranks: not finished after {limit:g} seconds", file=sys.stderr)
        for rank in range(ranks):
            if code != 0 or (show_all and rank > 0):
                _show(logs, rank, with_stderr=code != 0)
        return code


def _environment(limit: float) -> dict[str, str]:
    env = dict(os.environ)
    # Set by hand what the launcher would set with a banner of eight lines.
    env.setdefault("OMP_NUM_THREADS", "1")
    # OneFlow waits two hours for a missing rank; end before our own limit, with its message.
    env.setdefault("ONEFLOW_TIMEOUT_SECONDS", str(max(10, int(limit / 2))))
    root = str(Path(__file__).resolve().parent.parent)
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [root, env.get("PYTHONPATH")]))
    return env


def _follow(process: subprocess.Popen[bytes], log: Path, deadline: float, quiet: bool) -> int:
    seen = 0
    while True:
        code = process.poll()
        if not quiet and log.exists():
            with log.open("rb") as stream:
                stream.seek(seen)
                new = stream.read()
            seen += len(new)
            sys.stdout.write(new.decode(errors="replace"))
            sys.stdout.flush()
        if code is not None:
            return code
        if time.monotonic() > deadline:
            # Where faulthandler is on, as under pytest, this makes each rank write its stack.
            _kill_group(process, signal.SIGABRT)
            time.sleep(1)
            return TIMED_OUT
        time.sleep(0.05)


def _kill_group(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    try:
        os.killpg(process.pid, how)
    except ProcessLookupError:
        return
    if how == signal.SIGKILL:
        process.wait()


def _show(logs: str, rank: int, *, with_stderr: bool) -> None:
    for name in ("stdout", "stderr") if with_stderr else ("stdout",):
        log = _log(logs, rank, name)
        text = log.read_text(errors="replace") if log.exists() else ""
        lines = [line for line in text.splitlines() if not any(word in line for word in NOISE)]
        if lines:
            title = f"--- rank {rank}, {name} ---\n" if with_stderr else ""
            print(title + "\n".join(lines), file=sys.stderr if with_stderr else sys.stdout)
    sys.stdout.flush()


def _log(logs: str, rank: int, name: str) -> Path:
    return Path(logs, f"local_rank_{rank}", name)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a program on several CPU ranks.")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--limit", type=float, default=300, help="seconds (default 300)")
    parser.add_argument("program", nargs="+", help="the program and its arguments, after --")
    options = parser.parse_args()
    return launch(options.ranks, options.program, limit=options.limit, show_all=True)


if __name__ == "__main__":
    sys.exit(main())
