"""What the tests share: tensors whose every number differs, and exact comparison per rank."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import oneflow as flow
from oneflow import nn

B = flow.sbp.broadcast
S0 = flow.sbp.split(0)
S1 = flow.sbp.split(1)
HALF = (flow.float16, flow.bfloat16)


class Model(nn.Module):
    """The module of most tests; messages name it ``Model``."""


def counted(*shape: int, start: float = 0, dtype: type = np.float32) -> np.ndarray:
    """An array of this shape that holds start, start + 1, ..."""
    return (np.arange(int(np.prod(shape))) + start).astype(dtype).reshape(shape)


def tensor(array: np.ndarray, dtype: flow.dtype | None = None) -> flow.Tensor:
    """A local tensor of the array's numbers."""
    made = flow.tensor(array)
    return made if dtype is None else made.to(dtype)


def parameter(array: np.ndarray, dtype: flow.dtype | None = None, **options) -> nn.Parameter:
    return nn.Parameter(tensor(array, dtype), **options)


def linear(weight: np.ndarray, bias: np.ndarray | None = None) -> nn.Linear:
    """A local Linear that holds these numbers; to be made outside of any scope."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.weight.data.copy_(tensor(weight))
    if bias is not None:
        layer.bias.data.copy_(tensor(bias))
    return layer


def as_array(local: flow.Tensor) -> np.ndarray:
    """A local tensor's numbers (those of half types have to be cast first)."""
    assert local.is_local
    return (local.to(flow.float32) if local.dtype in HALF else local).detach().numpy()


def part(array: np.ndarray, placement: flow.placement, sbp, rank: int) -> np.ndarray | None:
    """What ``rank`` holds of a logical array; None where it is not in the placement."""
    ranks = np.asarray(placement.ranks)
    position = np.argwhere(ranks == rank)
    if not len(position):
        return None
    for size, index, one in zip(ranks.shape, position[0], sbp):
        for axis in range(array.ndim):
            if one == flow.sbp.split(axis):
                array = np.array_split(array, size, axis=axis)[index]
    return array


def assert_global(found, array: np.ndarray, placement: flow.placement, sbp) -> None:
    """``found`` is the logical ``array``: here is this rank's component and nothing else."""
    sbp = tuple(sbp) if isinstance(sbp, (tuple, list)) else (sbp,)
    assert found.is_global
    assert found.placement == placement
    assert found.sbp == sbp
    assert tuple(found.shape) == array.shape
    own = as_array(found.to_local())
    expected = part(array, placement, sbp, flow.env.get_rank())
    if expected is None:
        assert own.size == 0
    else:
        assert own.shape == expected.shape
        np.testing.assert_array_equal(own, expected)


def assert_local(found, array: np.ndarray) -> None:
    assert found.is_local
    np.testing.assert_array_equal(as_array(found), array)


def tensors(module: nn.Module) -> dict[str, flow.Tensor]:
    """Every Parameter and buffer by its path, those that two paths share under both."""
    return {
        (f"{path}.{name}" if path else name): value
        for path, owner in module.named_modules()
        for held in (owner._parameters, owner._buffers)
        for name, value in held.items()
        if value is not None
    }


def local_names(module: nn.Module) -> list[str]:
    return [path for path, value in tensors(module).items() if value.is_local]


def global_names(module: nn.Module) -> list[str]:
    return [path for path, value in tensors(module).items() if value.is_global]


def error_of(action) -> Exception | None:
    """The exception that ``action`` raises, or None."""
    try:
        action()
    except Exception as error:
        return error
    return None


class Snapshot:
    """A module tree as it is: the very objects, their order, and whether they are local."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._before = self._take()

    def _take(self) -> list[tuple]:
        taken = []
        for path, owner in self._module.named_modules():
            taken.append((path, "", owner))
            for group in ("__dict__", "_parameters", "_buffers", "_modules"):
                held = vars(owner) if group == "__dict__" else vars(owner)[group]
                taken += [(f"{path} {group}", name, value) for name, value in held.items()]
            names = sorted(owner._non_persistent_buffers_set)
            taken += [(f"{path} non-persistent", name, None) for name in names]
        for path, value in tensors(self._module).items():
            taken.append((f"{path} is_local", str(value.is_local), None))
            taken.append((f"{path} requires_grad", str(value.requires_grad), None))
            taken.append((path, "grad", value.grad if value.is_leaf else None))
        return taken

    def assert_unchanged(self) -> None:
        now = self._take()
        assert [entry[:2] for entry in now] == [entry[:2] for entry in self._before]
        for (where, name, before), (_, _, after) in zip(self._before, now):
            assert after is before, f"{where} {name} has changed"


@contextmanager
def warns(category: type[Warning], match: str = "") -> Iterator[list[warnings.WarningMessage]]:
    """Expect a warning for all ranks: rank 0 shows it, and the others show none of its kind.

    The list holds what was shown, once the block is over.
    """
    told: list[warnings.WarningMessage] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield told
    told += [one for one in caught if issubclass(one.category, category)]
    assert bool(told) == (flow.env.get_rank() == 0)
    for one in told:
        assert re.search(match, str(one.message)), one.message
