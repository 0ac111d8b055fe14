"""Module trees that several tests share, and what they train with."""

from __future__ import annotations

import numpy as np
import oneflow as flow
from oneflow import nn

from tests.helpers.support import B, Model, as_array, counted, linear, parameter, tensor


def mixed(P) -> Model:
    """One tensor of each kind, local but for ``old``, a broadcast Parameter."""
    m = Model()
    m.old = globally(counted(8, 4, start=500), P, B)
    m.new = parameter(counted(8, 4))
    m.register_buffer("seen", tensor(counted(3, start=200)))
    m.sub = Model()
    m.sub.lin = linear(counted(8, 4, start=300), counted(8, start=400))
    return m


def four_kinds(P) -> Model:
    """A global Parameter, a local one, and two tensors that a rule or an option may leave."""
    made = Model()
    made.old = globally(counted(8, 4), P, B)
    made.new, made.bias = parameter(counted(8, 4)), parameter(counted(8))
    made.register_buffer("seen", tensor(counted(8, 4)))
    return made


def globally(array: np.ndarray, placement, sbp) -> nn.Parameter:
    """A global Parameter of these numbers."""
    return nn.Parameter(tensor(array).to_global(placement, B).to_global(placement, sbp))


def waves(*shape: int, seed: int = 0) -> np.ndarray:
    """Numbers in -1 .. 1, no two alike, other ones for another seed."""
    return np.sin(1.7 * counted(*shape) + 0.3 + 11 * seed).astype(np.float32)


def fill(module: nn.Module, scale: float = 0.5) -> nn.Module:
    """Give each local Parameter of a module numbers of its own, the same ones on every rank."""
    for seed, weight in enumerate(module.parameters()):
        weight.data.copy_(tensor(scale * waves(*weight.shape, seed=seed)))
    return module


def logical(found: flow.Tensor) -> np.ndarray:
    """The numbers of a tensor, whole; where it is global every rank has to ask."""
    found = found.detach()
    if found.is_global:
        found = found.to_global(found.placement, [B] * len(found.sbp)).to_local()
    return as_array(found).copy()


def weights(module: nn.Module) -> dict[str, np.ndarray]:
    return {path: logical(weight) for path, weight in module.named_parameters()}


def assert_all_close(found: dict, expected: dict, atol: float = 1e-5) -> None:
    assert found.keys() == expected.keys()
    for path, array in expected.items():
        np.testing.assert_allclose(found[path], array, rtol=1e-4, atol=atol, err_msg=path)


def train_step(module: nn.Module, optimizer, x: np.ndarray, factor: np.ndarray, place) -> None:
    """One step; ``place`` makes of an array what the module takes."""
    optimizer.zero_grad()
    (module(place(x)) * place(factor)).sum().backward()
    optimizer.step()
