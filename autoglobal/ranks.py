"""What the ranks have to agree on; the only file that sends anything of its own."""

from __future__ import annotations

import oneflow as flow


def all_true(flag: bool) -> bool:
    """Whether ``flag`` is true on every rank. All ranks have to call it."""
    if flow.env.get_world_size() == 1:
        return flag
    votes = flow.tensor([int(flag)], dtype=flow.int64)
    flow.comm.all_reduce(votes)
    return bool(votes.item() == flow.env.get_world_size())


def gather(values: list[int]) -> list[list[int]]:
    """The values of every rank, as many on each; all ranks have to call it."""
    world = flow.env.get_world_size()
    if world == 1:
        return [values]
    mine = flow.tensor(values, dtype=flow.int64)
    everybodys = [flow.zeros(len(values), dtype=flow.int64) for _ in range(world)]
    flow.comm.all_gather(everybodys, mine)
    return [theirs.tolist() for theirs in everybodys]
