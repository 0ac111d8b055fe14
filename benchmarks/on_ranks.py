"""The program that ``benchmarks.conversions`` launches: every rank measures, rank 0 prints."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from typing import Optional

import oneflow as flow

from . import assigning, building, whole_modules
from .peer import dtensor
from .subjects import Subject
from .table import Bar, print_bars, print_times
from .together import measure


def measure_all(rounds: int, torch_python: Optional[str]) -> None:
    first, bars = flow.env.get_rank() == 0, list[Bar]()
    with dtensor(torch_python) as peer:
        for subject in (Subject(300, 64), Subject(20, 2048)):
            times = measure(whole_modules.variants(subject, peer), rounds)
            bars += whole_modules.bars(subject, times)
            one_rank = subject.world == 1
            base = whole_modules.BASE_ON_ONE_RANK if one_rank else whole_modules.BASE
            if first:
                print_times(str(subject), times, base, subject.count)
    one_by_one = Subject(40, 64)
    times = measure(assigning.variants(one_by_one), rounds)
    bars += assigning.bars(one_by_one, times)
    if first:
        print_times(f"{one_by_one}, one by one", times, assigning.BASE, one_by_one.count)
    times = measure(building.variants(), rounds)
    bars += building.bars(times)
    if first:
        title = f"{building.PAIRS} times LayerNorm and Linear({building.WIDTH})"
        print_times(title, times, building.BASE, building.COUNT)
        print_bars(bars)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--torch-python")
    options = parser.parse_args()
    try:
        measure_all(options.rounds, options.torch_python)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # the other ranks may wait for this one, and the launcher for its end


if __name__ == "__main__":
    main()
