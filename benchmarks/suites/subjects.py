"""The modules that are converted, and what every rank must hold of them afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import oneflow as flow
from oneflow import nn

from ..harness.rounds import Job

Array = npt.NDArray[np.float32]
B = flow.sbp.broadcast
S0 = flow.sbp.split(0)
SHARD = "shard"


@dataclass
class Subject:
    """``count`` square float32 Parameters of ``edge`` rows, no two of them alike.

    They are made in host memory, and with ``resident`` copied to the device: no kernel is needed.
    """

    job: Job
    count: int
    edge: int
    resident: bool = False

    def __post_init__(self) -> None:
        self.world, self.rank = self.job.world, self.job.rank
        self.placement = self.job.placement
        self._array = np.random.default_rng(0).random((self.edge, self.edge), dtype=np.float32)

    def __str__(self) -> str:
        return f"{self.count} of {self.edge}x{self.edge}"

    def tensors(self, *, different: bool) -> list[flow.Tensor]:
        """Fresh local tensors, equal on all ranks or ``different`` on each of them."""
        start = _start(self.rank if different else 0)
        made = [flow.tensor(self._array + np.float32(start + k)) for k in range(self.count)]
        return [self.job.device.copy(tensor) for tensor in made] if self.resident else made

    def module(self, *, different: bool) -> nn.Module:
        """A fresh local module of such Parameters."""
        module = nn.Module()
        for name, tensor in zip(self.names(), self.tensors(different=different)):
            module.register_parameter(name, nn.Parameter(tensor))
        return module

    def names(self) -> list[str]:
        return [f"p{index}" for index in range(self.count)]

    def check(self, sbp: flow.sbp.sbp, source: str = "full") -> Callable[[nn.Module], None]:
        """Something that fails unless a module holds the right part of the right values."""
        rows = self.edge * self.world if source == SHARD else self.edge

        def check(module: nn.Module) -> None:
            held = dict(module.named_parameters())
            assert list(held) == self.names()
            for index, parameter in enumerate(held.values()):
                expected = self._expected(index, sbp, source)
                check_one(parameter, (rows, self.edge), self.placement, sbp)
                np.testing.assert_array_equal(parameter.detach().to_local().numpy(), expected)

        return check

    def _expected(self, index: int, sbp: flow.sbp.sbp, source: str) -> Array:
        # The first rank's values, or equal copies of them.
        whole: Array = self._array + np.float32(_start(self.rank if source == SHARD else 0) + index)
        if source == SHARD or sbp == B:
            return whole
        own: Array = np.array_split(whole, self.world)[self.rank]
        return own


def check_one(parameter: Any, shape: tuple[int, ...], placement: Any, sbp: Any) -> None:
    """Fail unless this is a global Parameter of this shape, placement and sbp."""
    assert isinstance(parameter, nn.Parameter)
    assert parameter.is_global
    assert parameter.requires_grad
    assert tuple(parameter.shape) == shape
    assert parameter.placement == placement
    assert parameter.sbp == (sbp,)


def _start(rank: int) -> int:
    return 1000 * rank
