"""A launcher of CPU ranks on this machine, with a time limit and the ranks' output kept apart.

``python -m autoglobal.commands.launcher --ranks 2 --limit 60 -- program.py`` runs a program.

``python -m oneflow.distributed.launch`` is what starts the ranks. Around it stand the things that a
person at a terminal would otherwise do by hand: a free port, the ranks' output shown rank by rank,
and an end for a job that hangs, since a collective that one rank misses waits for ever.

Imports nothing but the standard library, on Python 3.8 too. Where it is run by ``python -m`` no
OneFlow is imported: that would set a rank's variables here, and start threads.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TextIO

# What a launcher tells a rank by.
RANK_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK")
ONEFLOW_LAUNCHER = ("-m", "oneflow.distributed.launch", "--nproc_per_node")
TIMED_OUT = 124  # what timeout(1) returns
HEAD_START = 2.0  # seconds that rank 0 gets at most, since a program may not use OneFlow at all
# OneFlow's own start-up remarks about hardware that a CPU run does not need.
_NOISE = ("libibverbs not available", "cuda_device_descriptor_class.cpp", "rpc_client.cpp")
# A Python exception, a check of OneFlow's C++ that has failed, or autoglobal's own watchdog.
_REASON = re.compile(r"[\w.]*(Error|Exception): |F\d{8} .*Check failed|autoglobal: ")
# What OneFlow, and Python, write as a process aborts.
_FATAL = re.compile(r"F\d{8} |Fatal Python error: ")
# The argument by which this file, run as a script, knows that it is on a rank.
_ON_A_RANK = "--on-a-rank"


class Ranks:
    """A program on several ranks: the processes, and what they write.

    ``program`` are the arguments of OneFlow's launcher that name it, and ``folder`` is where it
    runs. At the end of the ``with`` block no process is left, nor a log.
    """

    def __init__(
        self, number: int, program: list[str], env: dict[str, str], folder: str | None = None
    ) -> None:
        self._logs = tempfile.TemporaryDirectory(prefix="ranks-")
        with self._log("launcher").open("wb") as stderr:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, *ONEFLOW_LAUNCHER, str(number)),
                    *("--master_port", str(free_port())),
                    *("--redirect_stdout_and_stderr", "--logdir", self._logs.name),
                    *program,
                ],
                # One thread on a single rank too: for several OneFlow's launcher sets it.
                env={"OMP_NUM_THREADS": "1", **env},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                # OneFlow's launcher ends its ranks by signalling its whole process group.
                start_new_session=True,
            )

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()
        self._logs.cleanup()

    def wait(self, limit: float, *, show: bool = False, stacks: bool = False) -> int | None:
        """Wait for the end, and return the exit code: 0 if all ranks ended well.

        After ``limit`` seconds the ranks are ended and None is returned. ``show``: print what
        rank 0 writes to standard output as it comes. ``stacks``: let ranks that are ended write a
        stack each, where Python's ``faulthandler`` is on, as under pytest.
        """
        deadline, shown = time.monotonic() + limit, 0
        while True:
            code = self._process.poll()
            if show:
                shown = self._print_from(shown)
            if code is not None or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        if code is None and stacks:
            self._signal(signal.SIGABRT)
            time.sleep(1)
        self._end()
        return code

    def written(self, rank: int, stream: str) -> str:
        """What a rank has written to its ``"stdout"`` or ``"stderr"``."""
        return self._read(f"local_rank_{rank}/{stream}")

    def written_by_launcher(self) -> str:
        """What OneFlow's launcher has written to its standard error."""
        return self._read("launcher")

    def _log(self, name: str) -> Path:
        return Path(self._logs.name, name)

    def _read(self, name: str) -> str:
        log = self._log(name)
        return log.read_text(errors="replace") if log.exists() else ""

    def _print_from(self, start: int) -> int:
        """Print rank 0's standard output from this byte on; returns the byte where it ends."""
        log = self._log("local_rank_0/stdout")
        if not log.exists():
            return start
        with log.open("rb") as stream:
            stream.seek(start)
            new = stream.read()
        sys.stdout.write(new.decode(errors="replace"))
        sys.stdout.flush()
        return start + len(new)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _end(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()


def launch(
    ranks: int, argv: list[str], *, limit: float, show_all: bool = False, quiet: bool = False
) -> int:
    """Run ``python ARGV`` on ``ranks`` ranks and return the exit code, 0 if all ranks ended well.

    Rank 0's standard output is shown as it comes (not with ``quiet``), that of the other ranks
    at the end with ``show_all``. When a rank fails, or when ``limit`` seconds have passed
    (exit code 124, with a stack of each rank where it can be had), everything that every rank
    wrote is shown.
    """
    env = environment()
    # OneFlow waits two hours for a missing rank; end before our own limit, with its message.
    env.setdefault("ONEFLOW_TIMEOUT_SECONDS", str(max(10, int(limit / 2))))
    # The ranks find what ``python -m`` finds in this folder, also where they run a script.
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [os.getcwd(), env.get("PYTHONPATH")]))
    with Ranks(ranks, [__file__, _ON_A_RANK, *argv], env) as job:
        code = job.wait(limit, show=not quiet, stacks=True)
        if code is None:
            print(f"{ranks} ranks: not finished after {limit:g} seconds", file=sys.stderr)
            code = TIMED_OUT
        for rank in range(ranks):
            if code != 0:
                for stream in ("stdout", "stderr"):
                    title = f"--- rank {rank}, {stream} ---\n"
                    _print(job.written(rank, stream), sys.stderr, title)
            elif show_all and rank > 0:
                _print(job.written(rank, "stdout"), sys.stdout)
        if code != 0:
            # Once more at the end, which is what is left of a long log.
            for rank in range(ranks):
                fatal = [
                    one for one in job.written(rank, "stderr").splitlines() if _FATAL.match(one)
                ]
                _print("\n".join(fatal), sys.stderr, f"--- rank {rank}, what ended it ---\n")
        sys.stdout.flush()
        return code


def _print(text: str, stream: TextIO, title: str = "") -> None:
    if lines := _without_noise(text):
        print(title + "\n".join(lines), file=stream)


def environment() -> dict[str, str]:
    """This process's, without what a launcher set in it: a process for which no rank waits."""
    return {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}


def apart() -> dict[str, str]:
    """The same for a process in a folder of its own, which finds what this one finds.

    Not what is in the current folder by chance: a ``json.py`` there would be run. Where this
    process was started by ``python -I``, nothing else that Python's variables name either.
    """
    env = environment()
    if sys.flags.isolated:
        env = {name: value for name, value in env.items() if not name.startswith("PYTHON")}
        return {**env, "PYTHONNOUSERSITE": "1"}
    folders = [os.path.abspath(one) for one in env.get("PYTHONPATH", "").split(os.pathsep) if one]
    root = str(Path(os.path.abspath(__file__)).parents[2])
    if root == os.getcwd():  # it may be found there alone
        folders.append(root)
    return {**env, "PYTHONPATH": os.pathsep.join(folders)}


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_rank_0(limit: float = float("inf")) -> None:
    """Wait until rank 0 listens, for at most ``limit`` seconds; for a rank to call.

    OneFlow would look for it at once, and if it does not listen yet again only 10 seconds later:
    of OneFlow 0.9.0's starts on one machine every second one took so long.
    """
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(address, timeout=1):
            return
        time.sleep(0.05)


def ended_by(code: int) -> str:
    """An exit code as ``subprocess`` gives it, in words."""
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def last_words(stderr: str) -> list[str]:
    """The line of a process's standard error that says why it ended, if one says something."""
    lines = [line.strip() for line in _without_noise(stderr) if line.strip()]
    reasons = [line for line in lines if _REASON.match(line)]
    return (reasons or lines)[-1:]


def _without_noise(text: str) -> list[str]:
    return [line for line in text.splitlines() if not any(word in line for word in _NOISE)]


def _become(argv: list[str]) -> None:
    """Go on as ``python ARGV`` on this rank, after rank 0 has got its head start."""
    if os.environ["RANK"] != "0":
        wait_for_rank_0(HEAD_START)
    os.execv(sys.executable, [sys.executable, "-u", *argv])


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a program on several CPU ranks.")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--limit", type=float, default=300, help="seconds (default 300)")
    parser.add_argument(
        "--first-rank-only", action="store_true", help="show other ranks only where one fails"
    )
    parser.add_argument("program", nargs="+", help="the program and its arguments, after --")
    options = parser.parse_args()
    show_all = not options.first_rank_only
    return launch(options.ranks, options.program, limit=options.limit, show_all=show_all)


if __name__ == "__main__":
    if sys.argv[1:2] == [_ON_A_RANK]:
        _become(sys.argv[2:])
    sys.exit(main())
