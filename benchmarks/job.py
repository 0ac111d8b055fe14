"""What every benchmark is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import oneflow as flow

from .devices import Device


@dataclass(frozen=True)
class Job:
    """One benchmark on one number of ranks; ``torch`` is a Python that has PyTorch."""

    device: Device
    rounds: int
    torch: Optional[str] = None

    @property
    def world(self) -> int:
        return int(flow.env.get_world_size())

    @property
    def rank(self) -> int:
        return int(flow.env.get_rank())

    @property
    def placement(self) -> Any:
        return self.device.placement(self.world)
