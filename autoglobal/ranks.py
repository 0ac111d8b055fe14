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
