"""``python -m benchmarks [NAME] [--rounds N]``; without a name the benchmarks are listed."""

from __future__ import annotations

import argparse
import importlib

BENCHMARKS = ("overhead",)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", choices=BENCHMARKS)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    if options.name is None:
        for name in BENCHMARKS:
            about = importlib.import_module(f"benchmarks.{name}").__doc__ or ""
            print(f"{name}: {about.splitlines()[0]}")
        return
    importlib.import_module(f"benchmarks.{options.name}").main(options.rounds)


if __name__ == "__main__":
    main()
