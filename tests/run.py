"""Runs the tests on 1 rank under pytest, then the same modules on more ranks under the launcher.

``python -m tests.run [--ranks 1 2 4] [--replacing 2] [--limit SECONDS] [-- PYTEST ARGUMENTS]``
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

WORKERS = 4
TIMED_OUT = 124  # what timeout(1) returns
# A process of its own, because an import of it here would import OneFlow too, which would set the
# variables of a single rank for all that this process starts.
LAUNCHER = (sys.executable, "-m", "autoglobal.commands.launcher", "--first-rank-only")


def run(ranks: int, pytest_args: list[str], limit: float) -> int:
    command = ["-m", "pytest", "-q", *pytest_args]
    if ranks > 1:
        options = ["--ranks", str(ranks), "--limit", str(limit)]
        return subprocess.call([*LAUNCHER, *options, "--", *command])
    # One rank has nobody to wait for: file by file on all cores.
    command += ["-n", str(min(WORKERS, len(os.sched_getaffinity(0)))), "--dist", "loadfile"]
    try:
        return subprocess.run([sys.executable, *command], timeout=limit).returncode
    except subprocess.TimeoutExpired:
        print(f"1 rank: not finished after {limit:g} seconds", file=sys.stderr)
        return TIMED_OUT


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument(
        "--replacing",
        type=int,
        nargs="*",
        default=[],
        help="numbers of ranks to run on once more, with new Parameters in the place of local ones",
    )
    parser.add_argument("--limit", type=float, default=900, help="seconds for each run")
    parser.add_argument("pytest_args", nargs="*")
    options = parser.parse_args()
    runs = [(n, "") for n in options.ranks] + [(n, "--replacing") for n in options.replacing]
    failed = []
    # One after another, and no early end: what fails on 2 ranks only is worth knowing too.
    for ranks, how in runs:
        title = f"{ranks} rank{'s' * (ranks > 1)}{how and ', replacing Parameters'}"
        print(f"=== {title} ===", flush=True)
        code = run(ranks, [*([how] if how else []), *options.pytest_args], options.limit)
        if code != 0:
            failed.append(f"{title} (exit code {code})")
    if failed:
        print(f"FAILED on {'; '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
