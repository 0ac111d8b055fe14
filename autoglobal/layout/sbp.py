"""Sbp, one for each dimension of a placement, and what each says."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import oneflow as flow

Sbp = Any  # oneflow.sbp.sbp; OneFlow ships no types
NdSbp = tuple[Sbp, ...]  # one per placement dimension

BROADCAST = flow.sbp.broadcast
PARTIAL_SUM = flow.sbp.partial_sum


@cache
def split_axis(sbp: Sbp) -> int | None:
    """The axis that ``sbp`` splits, None for broadcast and partial_sum."""
    # OneFlow 0.9.0 gives the axis of an sbp in its text only.
    found = re.search(r"split\(\w+=(\d+)\)", str(sbp))
    return int(found.group(1)) if found else None


@cache
def show_sbp(sbp: NdSbp) -> str:
    """``split(dim=0)``, or ``(split(dim=0), broadcast)`` for more than one dimension."""
    names = [str(one).replace("oneflow.sbp.", "") for one in sbp]
    return names[0] if len(names) == 1 else f"({', '.join(names)})"
