"""PyTorch's rounds, on gloo ranks of this machine: one for each line of standard input.

A program of its own, for a Python with torch and, for one of its ways, accelerate. A line is JSON
with ``way`` and what that way needs; the answer is a line with the seconds of the slowest rank.
With ``check`` the result is looked at as well.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Optional

import torch  # type: ignore[import-not-found]
import torch.distributed as dist  # type: ignore[import-not-found]
import torch.multiprocessing as mp  # type: ignore[import-not-found]
from torch.distributed.device_mesh import init_device_mesh  # type: ignore[import-not-found]
from torch.distributed.tensor import (  # type: ignore[import-not-found]
    DTensor,
    Shard,
    distribute_tensor,
)
from torch.nn.modules.module import (  # type: ignore[import-not-found]
    register_module_parameter_registration_hook,
)

Request = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
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
        for line in sys.stdin:
            print(json.dumps({"seconds": _lead(json.loads(line))}), flush=True)
        dist.broadcast_object_list([None])
        for process in started:
            process.join()
        dist.destroy_process_group()


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
    ways = {"distribute": _distribute, "assign": _assign}
    around, run, check = ways[request["way"]](request)
    with around:
        gc.collect()
        gc.disable()
        dist.barrier()
        start = time.perf_counter()
        made = run()
        seconds = time.perf_counter() - start
        gc.enable()
        dist.barrier()
    if request.get("check"):
        check(made)
    slowest = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest)


Round = tuple[AbstractContextManager[object], Callable[[], Any], Callable[[Any], None]]


def _distribute(request: Request) -> Round:
    """Tensors that exist, one after another; ``source`` is distribute_tensor's src_data_rank."""
    source, mesh = request["source"], _mesh()
    tensors = _tensors(request, different=source is not None)

    def run() -> list[Any]:
        return [distribute_tensor(t, mesh, [Shard(0)], src_data_rank=source) for t in tensors]

    return nullcontext(), run, functools.partial(_are_shards, request)


def _assign(request: Request) -> Round:
    """Parameters assigned to a module one by one, in the surroundings that ``how`` names."""
    how, mesh = request["how"], _mesh()
    tensors = _tensors(request, different=how == "DTensor from rank 0")

    def run() -> torch.nn.Module:
        module = torch.nn.Module()
        for at, tensor in enumerate(tensors):
            setattr(module, f"p{at}", torch.nn.Parameter(tensor))
        return module

    def distribute(source: Optional[int]) -> AbstractContextManager[object]:
        def hook(module: Any, name: str, parameter: Any) -> Any:
            made = distribute_tensor(parameter.data, mesh, [Shard(0)], src_data_rank=source)
            return torch.nn.Parameter(made)

        return _registered(hook)

    def on_device() -> AbstractContextManager[object]:
        import accelerate  # type: ignore[import-not-found]

        around: AbstractContextManager[object] = accelerate.init_on_device(torch.device("cpu"))
        return around

    surroundings: dict[str, Callable[[], AbstractContextManager[object]]] = {
        "bare": nullcontext,
        "hook": lambda: _registered(lambda module, name, parameter: None),
        "init_on_device": on_device,
        "DTensor from rank 0": lambda: distribute(0),
        "DTensor, nothing sent": lambda: distribute(None),
    }

    def check(module: Any) -> None:
        held = [one.detach() for one in module.parameters()]
        if how.startswith("DTensor"):
            _are_shards(request, held)
        else:
            assert not any(isinstance(one, DTensor) for one in held)
            assert all(torch.equal(one, tensor) for one, tensor in zip(held, tensors))

    return surroundings[how](), run, check


@contextmanager
def _registered(hook: Callable[[Any, str, Any], Any]) -> Any:
    handle = register_module_parameter_registration_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def _tensors(request: Request, *, different: bool) -> list[Any]:
    start = 1000 * dist.get_rank() * different
    return [_base(request["edge"]) + float(start + at) for at in range(request["count"])]


def _base(edge: int) -> Any:
    return torch.arange(edge * edge, dtype=torch.float32).reshape(edge, edge) % 1000


def _are_shards(request: Request, made: list[Any]) -> None:
    """Each is the own part of rank 0's values, or of equal copies of them."""
    assert len(made) == request["count"]
    for at, found in enumerate(made):
        whole = _base(request["edge"]) + float(at)
        assert found.shape == whole.shape
        assert torch.equal(found.to_local(), whole.chunk(dist.get_world_size())[dist.get_rank()])


@functools.lru_cache
def _mesh() -> Any:
    return init_device_mesh("cpu", (dist.get_world_size(),))


if __name__ == "__main__":
    main()
