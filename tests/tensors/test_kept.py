"""What a conversion keeps: numbers, dtype, gradient, flags, names and the object itself."""

from __future__ import annotations

import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import global_scope
from tests.helpers.support import S0, B, Model, assert_global, counted, linear, parameter, tensor

DTYPES = [
    flow.float16,
    flow.bfloat16,
    flow.float32,
    flow.float64,
    flow.int8,
    flow.uint8,
    flow.int32,
    flow.int64,
    flow.bool,
]
# Small integers, which float16 and bfloat16 hold exactly; ranks differ by a bit of each number.
NUMBERS = counted(8, 3) % 7


@pytest.mark.parametrize("sbp", [B, S0], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtype_of_a_parameter(P, rank, sbp, dtype):
    numbers = (NUMBERS + rank) % 2 if dtype == flow.bool else NUMBERS + rank
    expected = NUMBERS % 2 if dtype == flow.bool else NUMBERS
    m = Model()
    with global_scope(P, sbp):
        m.new = parameter(numbers, dtype, requires_grad=False)
    assert m.new.dtype == dtype
    assert_global(m.new, expected, P, sbp)


@pytest.mark.parametrize("buffers", ["broadcast", "sbp"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtype_of_a_buffer(P, rank, buffers, dtype):
    numbers = (NUMBERS + rank) % 2 if dtype == flow.bool else NUMBERS + rank
    expected = NUMBERS % 2 if dtype == flow.bool else NUMBERS
    m = Model()
    with global_scope(P, S0, buffers=buffers):
        m.register_buffer("seen", tensor(numbers, dtype))
    assert m.seen.dtype == dtype
    assert_global(m.seen, expected, P, B if buffers == "broadcast" else S0)


@pytest.mark.parametrize("dtype", [flow.float16, flow.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [5, 8])
def test_half_type_that_is_a_share(P, rank, world, dtype, rows):
    m = Model()
    with global_scope(P, S0, source="shard"):
        m.new = parameter(counted(rows, 2, start=rows * 2 * rank), dtype)
    assert m.new.dtype == dtype
    assert_global(m.new, counted(rows * world, 2), P, S0)


@pytest.mark.parametrize("dtype", [flow.float16, flow.bfloat16], ids=str)
def test_half_type_in_uneven_rows(P, rank, dtype):
    m = Model()
    with global_scope(P, S0):
        m.new = parameter(counted(5, 3, start=rank), dtype)
    assert m.new.dtype == dtype
    assert_global(m.new, counted(5, 3), P, S0)


def test_several_dtypes_in_one_tree(P, rank):
    m, tree = Model(), Model()
    dtypes = [flow.float16, flow.float64, flow.bfloat16, flow.float32, flow.int64]
    for i, dtype in enumerate(dtypes):
        value = parameter(counted(8, 2, start=i + rank), dtype, requires_grad=False)
        tree.register_parameter(f"p{i}", value)
    with global_scope(P, S0):
        m.sub = tree
    for i, dtype in enumerate(dtypes):
        found = getattr(m.sub, f"p{i}")
        assert found.dtype == dtype
        assert_global(found, counted(8, 2, start=i), P, S0)


def test_a_number_without_dimensions(P, rank):
    """Nothing to split: always broadcast, also where the scope splits."""
    m = Model()
    with global_scope(P, S0):
        m.new = parameter(counted(1, start=7 + rank).reshape(()))
    assert_global(m.new, counted(1, start=7).reshape(()), P, B)


@pytest.mark.parametrize("sbp", [B, S0], ids=str)
def test_a_tensor_without_elements(P, sbp):
    m = Model()
    with global_scope(P, sbp):
        m.new = parameter(counted(8, 0))
    assert_global(m.new, counted(8, 0), P, sbp)


VIEWS = {
    "transposed": (lambda t: t.T, lambda a: a.T),
    "every second row": (lambda t: t[::2], lambda a: a[::2]),
    "some columns": (lambda t: t[:, 2:6], lambda a: a[:, 2:6]),
    "expanded": (lambda t: t[:1].expand(8, 16), lambda a: a[:1].repeat(8, axis=0)),
}


@pytest.mark.parametrize("sbp", [B, S0], ids=str)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_that_is_not_contiguous(P, rank, sbp, view):
    of_tensor, of_array = VIEWS[view]
    m = Model()
    with global_scope(P, sbp):
        m.new = nn.Parameter(of_tensor(tensor(counted(16, 16, start=1000 * rank))))
    assert_global(m.new, of_array(counted(16, 16)), P, sbp)


@pytest.mark.parametrize("flag", [True, False])
def test_requires_grad(P, flag):
    m = Model()
    with global_scope(P, S0):
        m.new = parameter(counted(8), requires_grad=flag)
    assert m.new.is_global
    assert m.new.requires_grad is flag
    assert m.new.is_leaf


def test_a_frozen_parameter_among_others(P):
    layer = linear(counted(8, 4), counted(8))
    layer.weight.requires_grad_(False)
    m = Model()
    with global_scope(P, S0):
        m.sub = layer
    assert m.sub.weight.is_global
    assert (m.sub.weight.requires_grad, m.sub.bias.requires_grad) == (False, True)


@pytest.mark.parametrize("sbp", [B, S0], ids=str)
def test_the_gradient_is_converted_too(P, rank, sbp):
    m, p = Model(), parameter(counted(8, 3, start=1000 * rank))
    p.grad = tensor(counted(8, 3, start=50 + 1000 * rank))
    with global_scope(P, sbp):
        m.new = p
    assert_global(m.new, counted(8, 3), P, sbp)
    assert_global(m.new.grad, counted(8, 3, start=50), P, sbp)


def test_the_gradient_of_a_share_is_a_share(P, rank, world):
    m, p = Model(), parameter(counted(4, start=4 * rank))
    p.grad = tensor(counted(4, start=50 + 4 * rank))
    with global_scope(P, S0, source="shard"):
        m.new = p
    assert_global(m.new.grad, counted(4 * world, start=50), P, S0)


def test_no_gradient_stays_none(P):
    m = Model()
    with global_scope(P, S0):
        m.new = parameter(counted(8))
    assert m.new.is_global
    assert m.new.grad is None


@pytest.mark.parametrize("sbp", [B, S0], ids=str)
def test_a_later_backward_adds_to_the_gradient(P, sbp):
    m, p = Model(), parameter(counted(8))
    p.grad = tensor(counted(8, start=50))
    with global_scope(P, sbp):
        m.new = p
    assert m.new.grad.is_global
    (m.new * 3).sum().backward()
    assert_global(m.new.grad.to_global(P, sbp), counted(8, start=53), P, sbp)


@pytest.mark.in_place
def test_an_optimizer_made_before_moves_the_converted_parameter(P):
    m, p = Model(), parameter(counted(8))
    optimizer = flow.optim.SGD([p], lr=0.5)
    with global_scope(P, S0):
        m.new = p
    (m.new * 2).sum().backward()
    optimizer.step()
    assert_global(m.new, counted(8) - 1, P, S0)
