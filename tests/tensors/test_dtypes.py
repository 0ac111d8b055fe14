"""Dtypes, views and odd shapes through ``local_to_global`` and an exit scope, all in one tree.

``.numpy()`` of a global half-type tensor ends OneFlow's process, so each rank reads its own part.
"""

from __future__ import annotations

import numpy as np
import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import global_scope, local_to_global
from tests.helpers.support import (
    S0,
    B,
    Model,
    assert_global,
    counted,
    linear,
    local_names,
    parameter,
    tensor,
)

DTYPES = {
    "float16": flow.float16,
    "bfloat16": flow.bfloat16,
    "float32": flow.float32,
    "float64": flow.float64,
    "int8": flow.int8,
    "uint8": flow.uint8,
    "int32": flow.int32,
    "int64": flow.int64,
    "bool": flow.bool,
}
SBPS = pytest.mark.parametrize("sbp", [B, S0], ids=str)
WAYS = pytest.mark.parametrize("way", ["call", "exit"])


def convert(way: str, tree: nn.Module, placement, sbp, **options) -> nn.Module:
    if way == "call":
        return local_to_global(tree, placement, sbp, **options)
    m = Model()
    with global_scope(placement, sbp, when="exit", **options):
        m.sub = tree
    return tree


def numbers(name: str, start: int = 0) -> np.ndarray:
    """Small integers, which every dtype holds exactly."""
    return (counted(8, 3) + start) % (2 if name == "bool" else 7)


@SBPS
@WAYS
def test_every_dtype_in_one_tree(P, rank, sbp, way):
    """Parameters and buffers; the ranks' numbers differ, and the first rank's win."""
    m = Model()
    for i, (name, dtype) in enumerate(DTYPES.items()):
        m.register_parameter(
            name, parameter(numbers(name, i + rank), dtype, requires_grad=dtype.is_floating_point)
        )
        m.register_buffer(name + "_seen", tensor(numbers(name, i + 1 + rank), dtype))
    convert(way, m, P, sbp, buffers="sbp")
    for i, (name, dtype) in enumerate(DTYPES.items()):
        found, seen = getattr(m, name), getattr(m, name + "_seen")
        assert (found.dtype, seen.dtype) == (dtype, dtype)
        assert found.requires_grad is dtype.is_floating_point
        assert_global(found, numbers(name, i), P, sbp)
        assert_global(seen, numbers(name, i + 1), P, sbp)


@SBPS
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_mixed_precision_with_gradients(P, rank, name, sbp):
    """Half-type weights beside float32 ones, each gradient in its weight's dtype."""
    m = nn.Sequential(linear(counted(8, 4, start=rank)), linear(counted(8, 4, start=1 + rank)))
    m[0].to(DTYPES[name])
    for layer in m:
        grad = tensor(counted(8, 4, start=5 + rank), layer.weight.dtype)
        layer.weight.grad = grad
    local_to_global(m, P, sbp)
    for i, dtype in enumerate([DTYPES[name], flow.float32]):
        assert (m[i].weight.dtype, m[i].weight.grad.dtype) == (dtype, dtype)
        assert_global(m[i].weight, counted(8, 4, start=i), P, sbp)
        assert_global(m[i].weight.grad, counted(8, 4, start=5), P, sbp)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_half_types_keep_every_bit(P, rank, name):
    """Numbers that only the half type can tell apart, infinity and a negative zero."""
    exact = np.array([1 + 2**-7, -(2.0**-14), 65280.0, np.inf, -np.inf, -0.0, 3.0, 2.0**-10])
    exact = exact.astype(np.float32)
    m = Model()
    m.new = parameter(exact if rank == 0 else exact * 0, DTYPES[name])
    local_to_global(m, P, B)
    assert_global(m.new, exact, P, B)
    own = m.new.detach().to_local().to(flow.float32).numpy()
    np.testing.assert_array_equal(np.signbit(own), np.signbit(exact))


@pytest.mark.parametrize("sbp", [B, S0], ids=str)
@pytest.mark.parametrize("name", ["float64", "int64"])
def test_numbers_that_float32_cannot_hold(P, name, sbp):
    big = counted(8, dtype=np.float64) + (2**52 if name == "float64" else 2**62)
    whole = big.astype(np.int64) + np.arange(8) if name == "int64" else big
    m = Model()
    m.new = nn.Parameter(flow.tensor(whole), requires_grad=False)
    local_to_global(m, P, sbp)
    assert m.new.dtype == DTYPES[name]
    assert_global(m.new, whole, P, sbp)


@WAYS
def test_no_dimensions_and_no_elements(P, rank, way):
    m = Model()
    m.number = parameter(counted(1, start=7 + rank).reshape(()))
    m.flag = parameter(counted(1, start=1 - rank).reshape(()), flow.bool, requires_grad=False)
    m.empty = parameter(counted(8, 0))
    m.none = parameter(counted(0))
    m.small = parameter(counted(8, 0), flow.float16)
    convert(way, m, P, {"*none": B, "*": S0})
    assert_global(m.number, counted(1, start=7).reshape(()), P, B)
    assert_global(m.flag, counted(1, start=1).reshape(()), P, B)
    assert_global(m.empty, counted(8, 0), P, S0)
    assert_global(m.none, counted(0), P, B)
    assert_global(m.small, counted(8, 0), P, S0)
    assert m.small.dtype == flow.float16


VIEWS = {
    "transposed": (lambda t: t.T, lambda a: a.T),
    "every second row": (lambda t: t[::2], lambda a: a[::2]),
    "some columns": (lambda t: t[:, 2:6], lambda a: a[:, 2:6]),
    "a row expanded": (lambda t: t[:1].expand(8, 16), lambda a: a[:1].repeat(8, axis=0)),
    "a column expanded": (lambda t: t[:, :1].expand(16, 8), lambda a: a[:, :1].repeat(8, axis=1)),
    "permuted": (
        lambda t: t.reshape(8, 2, 16).permute(2, 0, 1),
        lambda a: a.reshape(8, 2, 16).transpose(2, 0, 1),
    ),
}


@SBPS
@WAYS
@pytest.mark.parametrize("name", ["float32", "float16", "int64"])
def test_views_that_are_not_contiguous(P, rank, way, sbp, name):
    m, whole = Model(), counted(16, 16) + rank
    for i, (of_tensor, _) in enumerate(VIEWS.values()):
        view = of_tensor(tensor(whole, DTYPES[name]))
        m.register_parameter(f"v{i}", nn.Parameter(view, requires_grad=name != "int64"))
    convert(way, m, P, sbp)
    for i, (_, of_array) in enumerate(VIEWS.values()):
        assert_global(getattr(m, f"v{i}"), of_array(counted(16, 16)), P, sbp)


@SBPS
@WAYS
def test_a_view_of_another_parameter(P, rank, way, sbp):
    """One storage before, two tensors afterwards: a write to one leaves the other alone."""
    m = Model()
    m.whole = parameter(counted(8, 4) + rank)
    m.rows = nn.Parameter(m.whole.data[2:10])
    m.turned = nn.Parameter(m.whole.data.T[:, :8])
    convert(way, m, P, {"*turned": B, "*": sbp})
    assert_global(m.whole, counted(8, 4), P, sbp)
    assert_global(m.rows, counted(8, 4)[2:], P, sbp)
    assert_global(m.turned, counted(8, 4).T, P, B)
    m.whole.data.add_(1000)
    assert_global(m.rows, counted(8, 4)[2:], P, sbp)
    assert_global(m.turned, counted(8, 4).T, P, B)


def test_a_buffer_that_is_a_view_of_a_parameter(P):
    m = Model()
    m.whole = parameter(counted(8, 4))
    m.register_buffer("seen", m.whole.data[:2])
    local_to_global(m, P, S0)
    m.whole.data.add_(1000)
    assert_global(m.seen, counted(8, 4)[:2], P, B)
    assert local_names(m) == []


def test_the_dtype_of_a_share(P, rank, world):
    m = Model()
    for name, dtype in DTYPES.items():
        own = numbers(name, rank)
        m.register_parameter(name, parameter(own, dtype, requires_grad=False))
    local_to_global(m, P, S0, source="shard")
    for name, dtype in DTYPES.items():
        whole = np.concatenate([numbers(name, other) for other in range(world)])
        assert getattr(m, name).dtype == dtype
        assert_global(getattr(m, name), whole, P, S0)


def test_a_module_cast_after_the_conversion(P):
    m = local_to_global(linear(counted(8, 4)), P, S0)
    weight = m.weight
    m.to(flow.float64)
    assert m.weight is weight
    assert m.weight.dtype == flow.float64
    assert_global(m.weight, counted(8, 4), P, S0)
