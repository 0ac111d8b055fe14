"""The program that the ranks of a benchmark run: every rank measures, rank 0 writes it down."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from pathlib import Path

import oneflow as flow

from . import devices
from .results import Found, Report
from .rounds import Job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module")
    parser.add_argument("--device", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--torch-python")
    options = parser.parse_args()
    device = devices.choose(options.device, flow.env.get_world_size())
    try:
        module = importlib.import_module(f"benchmarks.suites.{options.module}")
        found: Found = module.find(Job(device, options.rounds, options.torch_python))
        if flow.env.get_rank() == 0:
            Report(**vars(found)).write(options.out)
    except BaseException as error:
        traceback.print_exc()
        print(device.explain(error) or "", file=sys.stderr, flush=True)
        os._exit(1)  # the other ranks may wait for this one, and the launcher for its end


if __name__ == "__main__":
    main()
