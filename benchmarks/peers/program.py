"""PyTorch DTensor's ``distribute_tensor(..., [Shard(0)])`` on gloo ranks of this machine, as JSON.

A program of its own, for a Python with torch: ``PYTHON benchmarks/peers/dtensor.py --ranks 2``.
With ``--follow`` it does one round for each line of its standard input, so that another program
can put its own rounds between these.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any, Optional

import torch  # type: ignore[import-not-found]
import torch.distributed as dist  # type: ignore[import-not-found]
import torch.multiprocessing as mp  # type: ignore[import-not-found]
from torch.distributed.device_mesh import init_device_mesh  # type: ignore[import-not-found]
from torch.distributed.tensor import (  # type: ignore[import-not-found]
    Shard,
    distribute_tensor,
)

Request = dict[str, Any]
SIZES = ((300, 64), (20, 2048))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--follow", action="store_true")
    options = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        place = (options.ranks, os.path.join(folder, "store"))
        others = mp.get_context("spawn")
        started = [
            others.Process(target=_serve, args=(rank, *place), daemon=True)
            for rank in range(1, options.ranks)
        ]
        for process in started:
            process.start()
        _join_group(0, *place)
        if options.follow:
            for line in sys.stdin:
                print(json.dumps({"seconds": _lead(json.loads(line))}), flush=True)
        else:
            medians = {name: statistics.median(all_) for name, all_ in _rounds(options.rounds)}
            print(json.dumps({**vars(options), "torch": torch.__version__, "medians": medians}))
        dist.broadcast_object_list([None])
        for process in started:
            process.join()
        dist.destroy_process_group()


def _rounds(rounds: int) -> Iterator[tuple[str, list[float]]]:
    for count, edge in SIZES:
        requests: dict[str, Request] = {
            f"{count} of {edge}x{edge}, src_data_rank={source}": {
                "count": count,
                "edge": edge,
                "source": source,
            }
            for source in (0, None)
        }
        for request in requests.values():  # warm-up
            _lead({**request, "check": True})
        times: dict[str, list[float]] = {name: [] for name in requests}
        for _ in range(rounds):
            for name, request in requests.items():
                times[name].append(_lead(request))
        yield from times.items()


def _join_group(rank: int, world: int, store: str) -> None:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)


def _serve(rank: int, world: int, store: str) -> None:
    """Any rank but the first: do what it says until it says None."""
    _join_group(rank, world, store)
    while True:
        said: list[Optional[Request]] = [None]
        dist.broadcast_object_list(said)
        if said[0] is None:
            break
        _one_round(said[0])
    dist.destroy_process_group()


def _lead(request: Request) -> float:
    dist.broadcast_object_list([request])
    return _one_round(request)


def _one_round(request: Request) -> float:
    """The seconds of the slowest rank for ``count`` tensors that were made before."""
    rank, world = dist.get_rank(), dist.get_world_size()
    source, edge, mesh = request["source"], request["edge"], _mesh(world)
    start_at = 0 if source is None else 1000 * rank  # equal copies where nothing is sent
    base = torch.arange(edge * edge, dtype=torch.float32).reshape(edge, edge) % 1000
    tensors = [base + float(start_at + index) for index in range(request["count"])]
    gc.collect()
    gc.disable()
    dist.barrier()
    start = time.perf_counter()
    made = [distribute_tensor(t, mesh, [Shard(0)], src_data_rank=source) for t in tensors]
    seconds = time.perf_counter() - start
    gc.enable()
    dist.barrier()
    if request.get("check"):
        for index, found in enumerate(made):
            assert found.shape == (edge, edge)
            assert torch.equal(found.to_local(), (base + float(index)).chunk(world)[rank])
    slowest = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest)


@functools.lru_cache
def _mesh(world: int) -> Any:
    return init_device_mesh("cpu", (world,))


if __name__ == "__main__":
    main()
