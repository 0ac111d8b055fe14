"""``python -m benchmarks [NAME] [OPTIONS]``; without a name the benchmarks are listed.

``python -m benchmarks all --results FOLDER`` runs all of them on CPU, and writes there what they
find.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from .harness import devices
from .harness.compare import moved
from .harness.plot import draw
from .harness.publish import publish
from .harness.pytorch import VARIABLE
from .harness.results import read
from .harness.running import BENCHMARKS, about, run
from .harness.tables import text


def main() -> int:
    options = _parser().parse_args()
    if options.name is None:
        for name in BENCHMARKS:
            print(f"{name}: {about(name)}")
        return 0
    try:
        devices.choose(options.device)
    except devices.NoDevice as reason:
        print(reason, file=sys.stderr)
        return 2
    asked = {"ranks": options.ranks, "rounds": options.rounds, "torch": options.torch_python}
    if options.name == "all":
        publish(options.device, asked, options.results)
        return 0
    report = run(options.name, options.device, **asked)
    print(text(report))
    if options.json:
        report.write(options.json)
    if options.plot:
        draw(report, options.plot)
    if options.compare:
        print("\n".join(moved(read(options.compare), report)) or "nothing moved beyond noise")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("name", nargs="?", choices=[*BENCHMARKS, "all"])
    add("--device", choices=["cpu", "cuda"], default="cpu")
    add("--ranks", type=_ranks, help="numbers of ranks, as 1,2,4 (default: the benchmark's own)")
    add("--rounds", type=_rounds, help="rounds of each variant (default: the benchmark's own)")
    add("--json", type=Path, metavar="FILE", help="write every round of every line there")
    add("--plot", type=Path, metavar="FILE", help="draw an SVG there")
    add("--compare", type=Path, metavar="OLD.json", help="say what moved since, beyond noise")
    add("--results", type=Path, help="with all: a folder for the JSON, the SVGs and the tables")
    add(
        "--torch-python",
        default=os.environ.get(VARIABLE),
        help=f"a Python that has torch and accelerate (default: {VARIABLE})",
    )
    return parser


def _ranks(said: str) -> tuple[int, ...]:
    numbers = tuple(int(one) for one in said.split(","))
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"numbers of ranks, from 1 on. Received: {said!r}")
    return numbers


def _rounds(said: str) -> int:
    if int(said) < 2:
        raise argparse.ArgumentTypeError(f"at least 2, for the quartiles. Received: {said!r}")
    return int(said)


if __name__ == "__main__":
    sys.exit(main())
