"""``source="full"`` where copies differ: hundreds of small tensors, and tensors of megabytes."""

from __future__ import annotations

import numpy as np
import oneflow as flow
import pytest
from oneflow import nn

from tests.helpers.support import S0, B, assert_global, counted, parameter, tensor
from tests.helpers.ways import RULES, convert, sbp_of

COUNT = 300
pytestmark = pytest.mark.ranks(2, 4)
DTYPES = [flow.float32, flow.float64, flow.int64, flow.uint8, flow.float16, flow.bfloat16]


def differs(copies: str, i: int) -> bool:
    return copies == "different" or (copies == "partly" and i % 3 == 1)


def small(i: int, other: bool) -> np.ndarray:
    """Another shape and other numbers for each; below 250, for the sake of uint8."""
    return (counted(4 + i % 5, 4 + i % 3) * 3 + i) % 200 + 50 * other


@pytest.mark.parametrize(
    ("way", "copies"),
    [("by a call", "equal"), ("by a call", "different"), ("at the exit", "partly")],
)
def test_three_hundred_small_ones(P, rank, world, copies, way):
    """Parameters and buffers of several dtypes, for which one message may serve."""
    values = {}
    for i in range(COUNT):
        name = f"t{i}" + ("", "_s0", "_s1")[i // len(DTYPES) % 3]
        dtype = DTYPES[i % len(DTYPES)]
        array = small(i, rank > 0 and differs(copies, i))
        if i % 7 == 3:
            values[name] = tensor(array, dtype)
        else:
            values[name] = parameter(array, dtype, requires_grad=dtype.is_floating_point)
    m = convert(way, values, P, RULES, buffers="sbp")
    for i, name in enumerate(values):
        assert getattr(m, name).dtype == DTYPES[i % len(DTYPES)]
        assert_global(getattr(m, name), small(i, False), P, sbp_of(name))


def test_three_hundred_of_one_shape(P, rank):
    """None takes the place of another."""
    values = {
        f"t{i}_s0": parameter(counted(5, 3, start=i + 1000 * rank * differs("partly", i)))
        for i in range(COUNT)
    }
    m = convert("by a call", values, P, S0)
    for i, name in enumerate(values):
        assert_global(getattr(m, name), counted(5, 3, start=i), P, S0)


@pytest.mark.parametrize(
    ("way", "copies"),
    [
        ("by a call", "equal"),
        ("by a call", "one number"),
        ("by a call", "all numbers"),
        ("one by one", "all numbers"),
    ],
)
def test_tensors_of_megabytes(P, rank, world, copies, way):
    """2 MiB and a bit, of uneven rows and columns, beside small ones."""
    array = counted(517, 1031)
    own = array.copy()
    if copies == "one number":
        own[-1, -1] += world > 1 and rank == world - 1
    elif copies == "all numbers":
        own += 7 * rank
    values = {}
    for end in ("", "_s0", "_s1"):
        values["small" + end] = parameter(counted(5, 5, start=rank))
        values["large" + end] = parameter(own)
        values["equal" + end] = parameter(counted(5, 5))
    values["large_seen"] = tensor(own)
    m = convert(way, values, P, RULES)
    for name in values:
        expected = array if "large" in name else counted(5, 5)
        assert_global(getattr(m, name), expected, P, sbp_of(name))


@pytest.mark.parametrize("sbp", [B, S0], ids=str)
def test_more_than_any_buffer_holds(P, rank, sbp):
    """24 MiB in tensors of half a MiB, of which every other one differs."""
    base = counted(130, 1031)
    values = {f"t{i}": parameter(base + i + 500 * rank * (i % 2)) for i in range(48)}
    m = convert("by a call", values, P, sbp)
    for i, name in enumerate(values):
        assert_global(getattr(m, name), base + i, P, sbp)


@pytest.mark.parametrize("sbp", [B, S0], ids=str)
def test_one_tensor_larger_than_any_buffer(P, rank, world, sbp):
    """20 MiB; the last number differs."""
    array = counted(1283, 4099)
    own = array.copy()
    own[-1, -1] = -rank
    expected = array.copy()
    expected[-1, -1] = 0
    m = convert("one by one", {"large": parameter(own)}, P, sbp)
    assert_global(m.large, expected, P, sbp)


@pytest.mark.parametrize("dtype", [*DTYPES, flow.bool], ids=str)
def test_a_large_one_of_each_dtype(P, rank, dtype):
    """Three quarters of a million numbers, beside one that is equal."""
    array = counted(1201, 643) % 199
    values = {}
    for end in ("", "_s0", "_s1"):
        values["differs" + end] = tensor(array + 3 * rank if dtype != flow.bool else array > rank)
        values["equal" + end] = tensor(array)
    values = {name: value.to(dtype) for name, value in values.items()}
    m = convert("by a call", values, P, RULES, buffers="sbp")
    for name, value in values.items():
        found = getattr(m, name)
        assert found.dtype == value.dtype == dtype
        assert_global(found, array > 0 if dtype == flow.bool else array, P, sbp_of(name))


@pytest.mark.parametrize("shape", [(700_001,), (350_003, 2)], ids=str)
@pytest.mark.parametrize("copies", ["equal", "different"])
def test_many_rows_of_few_numbers(P, rank, shape, copies):
    """Where to take row after row would be slow."""
    own = parameter(counted(*shape, start=5 * rank * (copies == "different")))
    m = convert("by a call", {"long": own}, P, S0)
    assert_global(m.long, counted(*shape), P, S0)


@pytest.mark.parametrize("sbp", [B, S0, flow.sbp.split(1)], ids=str)
@pytest.mark.parametrize("copies", ["equal", "different"])
def test_rows_of_a_larger_tensor(P, rank, sbp, copies):
    """OneFlow forgets where a Parameter begins in the tensor that it is a view of."""
    base = tensor(counted(1500, 1031, start=5 * rank * (copies == "different")))
    held = nn.Parameter(base[700:1400])
    m = convert("by a call", {"held": held}, P, sbp)
    assert_global(m.held, counted(700, 1031, start=700 * 1031), P, sbp)
