"""Peak memory per rank of building a model inside a scope, and of converting one that exists.

One line of JSON for each case and rank, in MiB above what the rank held before the first case:
``python -m autoglobal.commands.launcher --ranks 2 -- tests/helpers/memory_program.py --mib 1024
--largest 64 scope:equal``. OneFlow's allocator keeps what a case has given back, so that of more
than two the later ones show too much: a process for each case says most.
"""

from __future__ import annotations

import argparse
import gc
import json
from pathlib import Path

import oneflow as flow
from oneflow import nn

from autoglobal import global_scope, local_to_global
from benchmarks.harness.memory import of_status

B, S0 = flow.sbp.broadcast, flow.sbp.split(0)
COLUMNS = 1024
KIB_A_ROW = COLUMNS * 4 / 1024
RANK, WORLD = flow.env.get_rank(), flow.env.get_world_size()
P = flow.placement("cpu", list(range(WORLD)))


def rows_of(mib: int, largest: int) -> list[int]:
    """Half of it in Parameters of the largest size, a quarter in those of 1 MiB and of 64 KiB."""
    sizes = [(largest * 1024, mib / 2), (1024, mib / 4), (64, mib / 4)]
    return [int(kib / KIB_A_ROW) for kib, share in sizes for _ in range(int(share * 1024 / kib))]


class Stack(nn.Module):
    def __init__(self, rows: list[int], start: int) -> None:
        super().__init__()
        for i, count in enumerate(rows):
            # Filled, since memory that nobody has written to is not there.
            weight = nn.Parameter(flow.full((count, COLUMNS), float(start + i)))
            self.register_parameter(f"p{i}", weight)


def in_a_scope(rows: list[int], start: int) -> nn.Module:
    with global_scope(P, S0):
        return Stack(rows, start)


def by_a_call(rows: list[int], start: int) -> nn.Module:
    return local_to_global(Stack(rows, start), P, S0)


def in_place(rows: list[int], start: int) -> nn.Module:
    """OneFlow's own functions, one Parameter after another."""
    m = Stack(rows, start)
    for weight in m.parameters():
        weight.data = weight.data.to_global(P, B).to_global(P, S0)
    return m


def by_apply(rows: list[int], start: int) -> nn.Module:
    """OneFlow's own way of changing a whole module."""
    return Stack(rows, start)._apply(lambda t: t.to_global(P, B).to_global(P, S0))


WAYS = {"scope": in_a_scope, "call": by_a_call, "in_place": in_place, "apply": by_apply}


def settle() -> None:
    """Wait for what OneFlow has still to do, and give back what nobody holds."""
    gc.collect()
    flow._oneflow_internal.eager.Sync()
    flow._oneflow_internal.EmptyCache()


def check(m: nn.Module, rows: list[int]) -> None:
    for i, count in enumerate(rows):
        weight = getattr(m, f"p{i}")
        own = weight.detach().to_local().numpy()
        assert (tuple(weight.shape), weight.sbp) == ((count, COLUMNS), (S0,))
        assert own.shape == (count // WORLD, COLUMNS)
        assert (own == i).all(), "not the first rank's numbers"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024, help="all Parameters together")
    parser.add_argument("--largest", type=int, default=64, help="the largest one, in MiB")
    parser.add_argument("cases", nargs="+", help=f"one of {', '.join(WAYS)}, :equal or :different")
    options = parser.parse_args()
    rows = rows_of(options.mib, options.largest)
    for way in WAYS.values():  # what is set up once
        way([8], 0)
    settle()
    before = of_status("VmRSS")
    for case in options.cases:
        way, copies = case.split(":")
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts anew from here
        m = WAYS[way](rows, 1000 * RANK * (copies == "different"))
        flow._oneflow_internal.eager.Sync()
        peak, held = of_status("VmHWM") - before, of_status("VmRSS") - before
        check(m, rows)
        del m
        settle()
        found = {"peak": peak, "held": held, "afterwards": of_status("VmRSS") - before}
        found = {key: round(value, 1) for key, value in found.items()}
        print(json.dumps({"rank": RANK, "case": case, **found}), flush=True)


if __name__ == "__main__":
    main()
