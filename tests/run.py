"""Runs the tests on 1 rank under pytest, then the same modules on more ranks under the launcher.

``python -m tests.run [--ranks 1 2 4] [--limit SECONDS] [-- PYTEST ARGUMENTS]``
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from tools.launch import TIMED_OUT, launch


def run(ranks: int, pytest_args: list[str], limit: float) -> int:
    print(f"=== {ranks} rank{'s' if ranks > 1 else ''} ===", flush=True)
    command = ["-m", "pytest", "-q", *pytest_args]
    if ranks > 1:
        return launch(ranks, command, limit=limit)
    try:
        return subprocess.run([sys.executable, *command], timeout=limit).returncode
    except subprocess.TimeoutExpired:
        print(f"1 rank: not finished after {limit:g} seconds", file=sys.stderr)
        return TIMED_OUT


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--limit", type=float, default=900, help="seconds for each number of ranks")
    parser.add_argument("pytest_args", nargs="*")
    options = parser.parse_args()
    # One code after another, and no early end: what fails on 2 ranks only is worth knowing too.
    codes = {n: run(n, options.pytest_args, options.limit) for n in options.ranks}
    failed = [n for n, code in codes.items() if code != 0]
    if failed:
        print(f"FAILED on {', '.join(map(str, failed))} ranks (exit codes {codes})")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
