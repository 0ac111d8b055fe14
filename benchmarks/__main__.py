"""``python -m benchmarks [NAME] [OPTIONS]``; without a name the benchmarks are listed."""

from __future__ import annotations

import argparse
import importlib
import os

BENCHMARKS = ("overhead", "conversions")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    names = parser.add_subparsers(dest="name")
    overhead = names.add_parser("overhead")
    overhead.add_argument("--rounds", type=int, default=60)
    conversions = names.add_parser("conversions")
    conversions.add_argument("--rounds", type=int, default=9)
    conversions.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    conversions.add_argument(
        "--torch-python",
        default=os.environ.get("AUTOGLOBAL_BENCH_TORCH"),
        help="a Python that has torch (default: AUTOGLOBAL_BENCH_TORCH)",
    )
    options = vars(parser.parse_args())
    name = options.pop("name")
    if name is None:
        for each in BENCHMARKS:
            about = importlib.import_module(f"benchmarks.{each}").__doc__ or ""
            print(f"{each}: {about.splitlines()[0]}")
        return
    importlib.import_module(f"benchmarks.{name}").main(**options)


if __name__ == "__main__":
    main()
