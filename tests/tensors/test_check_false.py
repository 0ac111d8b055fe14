"""``check=False``: the ranks are trusted, so nothing is compared and nothing is sent."""

from __future__ import annotations

import numpy as np
import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import AutoglobalError, global_scope, local_to_global
from tests.helpers.support import (
    S0,
    S1,
    B,
    Model,
    as_array,
    assert_global,
    counted,
    linear,
    parameter,
    part,
    tensor,
)
from tests.helpers.trees import logical
from tests.helpers.ways import EACH_WAY, RULES, TWO_WAYS, convert, sbp_of

SHAPES = {
    "whole": (8, 4),
    "rows_s0": (8, 4),
    "columns_s1": (4, 8),
    "five_rows_s0": (5, 4),
    "seven_rows_s0": (7, 3),
    "seven_columns_s1": (3, 7),
    "number": (),
    "none": (0,),
    "no_columns_s0": (8, 0),
}
DTYPES = [flow.float32, flow.float64, flow.int64, flow.uint8, flow.bool, flow.float16]


def copies(start: float = 0, dtypes=DTYPES[:1]) -> dict[str, flow.Tensor]:
    """A Parameter of each shape and dtype, and a buffer."""
    made = {
        f"t{i}_{name}": parameter(
            counted(*shape, start=start), dtype, requires_grad=dtype.is_floating_point
        )
        for i, dtype in enumerate(dtypes)
        for name, shape in SHAPES.items()
    }
    return {**made, "seen": tensor(counted(5, 3, start=start))}


@EACH_WAY
def test_equal_copies_give_what_check_gives(P, way):
    values = copies(dtypes=DTYPES)
    numbers = {name: as_array(value).copy() for name, value in values.items()}
    m = convert(way, values, P, RULES, check=False)
    for name, array in numbers.items():
        found = getattr(m, name)
        assert found.dtype == (DTYPES[int(name[1])] if name != "seen" else flow.float32)
        assert_global(found, array, P, sbp_of(name))


@EACH_WAY
def test_the_whole_can_be_gathered_again(P, way):
    """Uneven parts too: all ranks know the same logical shape."""
    values = copies()
    arrays = {name: as_array(value).copy() for name, value in values.items() if value.numel()}
    m = convert(way, values, P, RULES, check=False)
    for name, array in arrays.items():
        np.testing.assert_array_equal(logical(getattr(m, name)), array, err_msg=name)


def test_a_module_with_gradients(P):
    layer = linear(counted(8, 4), counted(8))
    layer.weight.grad = tensor(counted(8, 4, start=50))
    local_to_global(layer, P, S0, check=False)
    assert_global(layer.weight, counted(8, 4), P, S0)
    assert_global(layer.weight.grad, counted(8, 4, start=50), P, S0)
    assert_global(layer.bias, counted(8), P, S0)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("sbp", [(S0, B), (B, S1), (S0, S1), (S0, S0)], ids=str)
@TWO_WAYS
def test_two_dimensions(sbp, way):
    square = flow.placement("cpu", [[0, 1], [2, 3]])
    m = convert(way, {"even": parameter(counted(8, 4))}, square, sbp, check=False)
    assert_global(m.even, counted(8, 4), square, sbp)


@pytest.mark.ranks(2, 4)
@EACH_WAY
def test_a_placement_that_leaves_ranks_out(world, way):
    last = flow.placement("cpu", [world - 1])
    m = convert(way, copies(), last, RULES, check=False)
    for name, shape in SHAPES.items():
        if shape:  # without dimensions OneFlow has a number outside too
            assert_global(getattr(m, f"t0_{name}"), counted(*shape), last, sbp_of(name))


@EACH_WAY
def test_the_parts_of_a_shard(P, rank, world, way):
    own = {
        "rows_s0": parameter(counted(4, 4, start=16 * rank)),
        "columns_s1": parameter(part(counted(3, 2 * world), P, [S1], rank)),
        "whole": parameter(counted(3)),
    }
    m = convert(way, own, P, RULES, source="shard", check=False)
    assert_global(m.rows_s0, counted(4 * world, 4), P, S0)
    assert_global(m.columns_s1, counted(3, 2 * world), P, S1)
    assert_global(m.whole, counted(3), P, B)


@EACH_WAY
def test_each_rank_keeps_the_part_of_its_own_copy(P, rank, way):
    """The price of trust: with copies that differ each rank has its own numbers."""
    m = convert(way, copies(start=1000 * rank), P, RULES, check=False)
    for name, shape in SHAPES.items():
        # Its placement, sbp and logical shape are those of a right one; the numbers are its own.
        own = counted(*shape, start=1000 * rank)
        assert_global(getattr(m, f"t0_{name}"), own, P, sbp_of(name))


@TWO_WAYS
@pytest.mark.parametrize("sbp", [B, S0], ids=str)
@pytest.mark.parametrize("rows", [8, 5])
def test_nothing_is_shared_with_the_caller(P, sbp, rows, way):
    t, b, grad = (tensor(counted(rows, 4)) for _ in range(3))
    p, view = nn.Parameter(t), nn.Parameter(t[:4])
    p.grad = grad
    m = convert(way, {"p": p, "view": view, "b": b}, P, sbp, check=False, buffers="sbp")
    for held in (t, b, grad):
        held.add_(1000)
    for found in (m.p, m.b, m.p.grad):
        assert_global(found, counted(rows, 4), P, sbp)
    assert_global(m.view, counted(4, 4), P, sbp)


def alone(way: str, P, source: str) -> None:
    """What a rank that no other one answers can convert, and read of it its own part."""
    if source == "shard":
        arrays = {"rows_s0": counted(3, 4), "columns_s1": counted(4, 3), "whole": counted(5)}
        values = {name: parameter(array) for name, array in arrays.items()}
        m = convert(way, values, P, RULES, source=source, check=False)
        for name, array in arrays.items():
            assert as_array(getattr(m, name).to_local()).tolist() == array.tolist()
        return
    values = copies(start=7, dtypes=DTYPES)
    values["t0_rows_s0"].grad = tensor(counted(8, 4))
    numbers = {name: as_array(value).copy() for name, value in values.items()}
    m = convert(way, values, P, RULES, check=False)
    for name, array in numbers.items():
        assert_global(getattr(m, name), array, P, sbp_of(name))


@pytest.mark.ranks(2, 4)
@TWO_WAYS
@pytest.mark.parametrize("which", ["first", "last"])
@pytest.mark.parametrize("source", ["full", "shard"])
def test_nothing_is_sent(P, rank, world, source, which, way):
    """One rank alone converts what no other one does; it would wait for them to the time limit."""
    # OneFlow makes itself ready for a placement where it is met first, on all ranks together.
    convert(way, {"first": parameter(counted(4, 4))}, P, S0, check=False)
    if rank == (0 if which == "first" else world - 1):
        alone(way, P, source)
    m = convert(way, {"met_again": parameter(counted(5, 4, start=1000 * rank))}, P, S0)
    assert_global(m.met_again, counted(5, 4), P, S0)


@pytest.mark.ranks(2, 4)
def test_a_trusting_scope_in_one_that_checks(P, rank):
    """On one rank alone; the scope around it counts its own assignments only."""
    m, other = Model(), Model()
    with global_scope(P, S0):
        m.before = parameter(counted(4, 4, start=1000 * rank))
        if rank == 0:
            with global_scope(P, B, check=False):
                other.new = parameter(counted(4, 4))
        m.after = parameter(counted(6, 4, start=1000 * rank))
    assert_global(m.before, counted(4, 4), P, S0)
    assert_global(m.after, counted(6, 4), P, S0)


@pytest.mark.parametrize("value", ["yes", 1, None], ids=repr)
def test_a_value_of_a_wrong_type(P, value):
    with pytest.raises(TypeError, match="check") as caught, global_scope(P, S0, check=value):
        pass
    assert isinstance(caught.value, AutoglobalError)
    with pytest.raises(TypeError, match="check"):
        local_to_global(linear(counted(8, 4)), P, S0, check=value)
