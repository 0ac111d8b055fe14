"""``source="full"`` where copies differ: the first rank's numbers are there on every rank.

Those of hundreds of small tensors too, and of tensors of megabytes.
"""

from __future__ import annotations

import numpy as np
import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import global_scope, local_to_global
from tests.helpers.support import (
    S0,
    S1,
    B,
    Model,
    assert_global,
    counted,
    parameter,
    tensor,
)
from tests.helpers.trees import logical
from tests.helpers.ways import BY_SUFFIX, EACH_WAY, PS, RULES, TWO_WAYS, convert, sbp_of

SOME_RANKS = pytest.mark.ranks(2, 4)
SHAPES = {
    "whole": (8, 4),
    "rows_s0": (8, 4),
    "columns_s1": (4, 8),
    "five_rows_s0": (5, 4),
    "six_rows_s0": (6, 2),
    "seven_rows_s0": (7, 3),
    "seven_columns_s1": (3, 7),
    "cube_s1": (2, 5, 3),
    "number": (),
    "none": (0,),
    "no_columns_s0": (8, 0),
    "no_rows_s1": (0, 8),
}
DTYPES = {
    "float64": flow.float64,
    "int64": flow.int64,
    "int32": flow.int32,
    "int8": flow.int8,
    "uint8": flow.uint8,
    "bool": flow.bool,
    "float16": flow.float16,
    "bfloat16": flow.bfloat16,
}


def own(shape: tuple[int, ...], rank: int) -> np.ndarray:
    """Numbers of which no two ranks have one in common."""
    return counted(*shape, start=1000 * rank)


@EACH_WAY
def test_every_layout(P, rank, way):
    values = {name: parameter(own(shape, rank)) for name, shape in SHAPES.items()}
    m = convert(way, values, P, RULES)
    for name, shape in SHAPES.items():
        found = getattr(m, name)
        assert_global(found, counted(*shape), P, sbp_of(name))
        if found.numel():
            # Each part being right does not say that the ranks agree on the whole.
            np.testing.assert_array_equal(logical(found), counted(*shape))


@EACH_WAY
def test_partial_sum(P, rank, way):
    values = {"weight": parameter(own((8, 4), rank)), "odd": parameter(own((5,), rank))}
    m = convert(way, values, P, PS)
    for name, shape in (("weight", (8, 4)), ("odd", (5,))):
        assert getattr(m, name).sbp == (PS,)
        np.testing.assert_array_equal(logical(getattr(m, name)), counted(*shape))


def of_dtype(name: str, changed: bool) -> np.ndarray:
    """Numbers that the dtype holds exactly; ``changed`` in the last one alone."""
    array = counted(7, 5) % (2 if name == "bool" else 7)
    array[-1, -1] += changed * (1 if array[-1, -1] == 0 else -1)
    return array


@EACH_WAY
def test_every_dtype_where_one_number_differs(P, rank, world, way):
    """The last number, on the last rank only."""
    values = {}
    for name, dtype in DTYPES.items():
        array = of_dtype(name, changed=world > 1 and rank == world - 1)
        for end in ("_", "_s0", "_s1"):
            options = {"requires_grad": dtype.is_floating_point}
            values[f"{name}_weight{end}"] = parameter(array, dtype, **options)
            values[f"{name}_seen{end}"] = tensor(array, dtype)
    m = convert(way, values, P, RULES, buffers="sbp")
    for name in values:
        kind = name.split("_")[0]
        assert getattr(m, name).dtype == DTYPES[kind]
        assert_global(getattr(m, name), of_dtype(kind, changed=False), P, sbp_of(name))


@SOME_RANKS
@TWO_WAYS
def test_only_one_rank_differs_and_only_in_some_tensors(P, rank, world, way):
    """One tensor for each rank, which differs there alone, and between them those that do not."""
    values, expected = {}, {}
    for odd in range(world):
        for name in (f"weight{odd}_s0", f"bias{odd}", f"out{odd}_s1"):
            values[name] = parameter(counted(6, 5) + 1000 * (rank == odd))
            values["same_" + name] = parameter(counted(6, 5))
            expected[name] = counted(6, 5) + 1000 * (odd == 0)
            expected["same_" + name] = counted(6, 5)
    m = convert(way, values, P, RULES)
    for name, array in expected.items():
        assert_global(getattr(m, name), array, P, sbp_of(name))


@SOME_RANKS
@pytest.mark.parametrize("odd", ["first", "last"])
@pytest.mark.parametrize("which", [0, 5, 11])
def test_one_tensor_of_a_tree_differs_on_one_rank(P, rank, world, which, odd):
    here = rank == (0 if odd == "first" else world - 1)
    ends = ["", "_s0"] * 6
    m = Model()
    for i, end in enumerate(ends):
        setattr(m, f"w{i}{end}", parameter(counted(5, 3) + 9 * (here and i == which)))
    local_to_global(m, P, BY_SUFFIX)
    for i, end in enumerate(ends):
        wins = 9 * (odd == "first" and i == which)
        assert_global(getattr(m, f"w{i}{end}"), counted(5, 3) + wins, P, sbp_of(end))


@SOME_RANKS
@TWO_WAYS
@pytest.mark.parametrize("members", [[1], [0], [1, 3], [2, 3], [1, 2, 3]], ids=str)
def test_the_first_rank_of_the_placement(rank, world, members, way):
    """Not rank 0; and what the ranks outside hold counts for nothing."""
    if members[-1] >= world:
        pytest.skip("needs more ranks")
    placement = flow.placement("cpu", members)
    inside = 0 if rank in members else 1000
    values = {
        "differ_s0": parameter(own((7, 2), rank)),
        "differ": parameter(own((7, 2), rank)),
        "outside_differs_s0": parameter(counted(7, 2, start=inside)),
        "outside_differs": parameter(counted(7, 2, start=inside)),
        "last_differs_s1": parameter(own((2, 7), rank == members[-1])),
    }
    m = convert(way, values, placement, RULES)
    first = own((7, 2), members[0])
    assert_global(m.differ_s0, first, placement, S0)
    assert_global(m.differ, first, placement, B)
    assert_global(m.outside_differs_s0, counted(7, 2), placement, S0)
    assert_global(m.outside_differs, counted(7, 2), placement, B)
    assert_global(m.last_differs_s1, own((2, 7), members[-1] == members[0]), placement, S1)


@TWO_WAYS
def test_gradients_that_differ(P, rank, way):
    """With the weights and apart from them; each gets the first rank's numbers."""
    values = {}
    for name, weight, grad in [("both_s0", 1, 1), ("grad_s0", 0, 1), ("weight", 1, 0)]:
        values[name] = parameter(own((5, 3), rank * weight))
        values[name].grad = tensor(own((5, 3), rank * grad) + 50)
    m = convert(way, values, P, BY_SUFFIX)
    for name in values:
        assert_global(getattr(m, name), counted(5, 3), P, sbp_of(name))
        assert_global(getattr(m, name).grad, counted(5, 3) + 50, P, sbp_of(name))


VIEWS = {
    "turned": lambda t: t.T,
    "rows": lambda t: t[::2],
    "columns": lambda t: t[:, 1:6],
    "spread": lambda t: t[:1].expand(8, 9),
}


@TWO_WAYS
def test_sources_that_are_not_contiguous(P, rank, way):
    """Parameters without gradients."""
    values = {}
    for i, dtype in enumerate([flow.float32, flow.float16, flow.int64]):
        whole = tensor(counted(11, 9) + rank, dtype)
        for name, view in VIEWS.items():
            for end in ("", "_s0"):
                values[f"{name}{i}{end}"] = nn.Parameter(view(whole), requires_grad=False)
    dtypes = {name: value.dtype for name, value in values.items()}
    m = convert(way, values, P, BY_SUFFIX)
    for name in values:
        found, view = getattr(m, name), VIEWS[name.removesuffix("_s0")[:-1]]
        assert (found.requires_grad, found.dtype) == (False, dtypes[name])
        assert_global(found, view(tensor(counted(11, 9))).numpy(), P, sbp_of(name))


@pytest.mark.parametrize("way", ["one by one", "at the exit", "by a call"])
def test_tied_parameters_and_shared_buffers_stay_one(P, rank, way):
    m, layers = Model(), [Model(), Model()]
    weight, seen = parameter(own((5, 4), rank)), tensor(own((3,), rank))
    for layer in layers:
        layer.weight = weight
        layer.register_buffer("seen", seen)
    if way == "by a call":
        m.one, m.two = layers
        local_to_global(m, P, S0)
    else:
        with global_scope(P, S0, when="exit" if way == "at the exit" else "assign"):
            m.one, m.two = layers
    assert m.one.weight is m.two.weight
    assert m.one.seen is m.two.seen
    assert_global(m.one.weight, counted(5, 4), P, S0)
    assert_global(m.one.seen, counted(3), P, B)


@TWO_WAYS
@pytest.mark.parametrize("differ", [0, 1000], ids=["equal", "different"])
def test_nothing_is_shared_with_what_the_caller_holds(P, rank, differ, way):
    """Neither a buffer, nor what a Parameter was made of, nor a view that is a Parameter too."""
    held, values = {}, {}
    for end in ("", "_s0"):
        for name in ("buffer", "weight", "whole", "grad"):
            held[name + end] = tensor(counted(6, 4, start=differ * rank))
        values["buffer" + end] = held["buffer" + end]
        values["weight" + end] = nn.Parameter(held["weight" + end])
        values["view" + end] = nn.Parameter(held["whole" + end][:4])
        values["weight" + end].grad = held["grad" + end]
    m = convert(way, values, P, BY_SUFFIX, buffers="sbp")
    for value in held.values():
        value.fill_(-1)
    for name in values:
        array = counted(6, 4)[:4] if "view" in name else counted(6, 4)
        assert_global(getattr(m, name), array, P, sbp_of(name))
        if "weight" in name:
            assert_global(getattr(m, name).grad, array, P, sbp_of(name))


COUNT = 300
COMMON_DTYPES = [flow.float32, flow.float64, flow.int64, flow.uint8, flow.float16, flow.bfloat16]


def differs(copies: str, i: int) -> bool:
    return copies == "different" or (copies == "partly" and i % 3 == 1)


def small(i: int, other: bool) -> np.ndarray:
    """Another shape and other numbers for each; below 250, for the sake of uint8."""
    return (counted(4 + i % 5, 4 + i % 3) * 3 + i) % 200 + 50 * other


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize(
    ("way", "copies"),
    [("by a call", "equal"), ("by a call", "different"), ("at the exit", "partly")],
)
def test_three_hundred_small_ones(P, rank, world, copies, way):
    """Parameters and buffers of several dtypes, for which one message may serve."""
    values = {}
    for i in range(COUNT):
        name = f"t{i}" + ("", "_s0", "_s1")[i // len(COMMON_DTYPES) % 3]
        dtype = COMMON_DTYPES[i % len(COMMON_DTYPES)]
        array = small(i, rank > 0 and differs(copies, i))
        if i % 7 == 3:
            values[name] = tensor(array, dtype)
        else:
            values[name] = parameter(array, dtype, requires_grad=dtype.is_floating_point)
    m = convert(way, values, P, RULES, buffers="sbp")
    for i, name in enumerate(values):
        assert getattr(m, name).dtype == COMMON_DTYPES[i % len(COMMON_DTYPES)]
        assert_global(getattr(m, name), small(i, False), P, sbp_of(name))


@pytest.mark.ranks(2, 4)
def test_three_hundred_of_one_shape(P, rank):
    """None takes the place of another."""
    values = {
        f"t{i}_s0": parameter(counted(5, 3, start=i + 1000 * rank * differs("partly", i)))
        for i in range(COUNT)
    }
    m = convert("by a call", values, P, S0)
    for i, name in enumerate(values):
        assert_global(getattr(m, name), counted(5, 3, start=i), P, S0)


@pytest.mark.ranks(2, 4)
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


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("sbp", [B, S0], ids=str)
def test_more_than_any_buffer_holds(P, rank, sbp):
    """24 MiB in tensors of half a MiB, of which every other one differs."""
    base = counted(130, 1031)
    values = {f"t{i}": parameter(base + i + 500 * rank * (i % 2)) for i in range(48)}
    m = convert("by a call", values, P, sbp)
    for i, name in enumerate(values):
        assert_global(getattr(m, name), base + i, P, sbp)


@pytest.mark.ranks(2, 4)
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


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("dtype", [*COMMON_DTYPES, flow.bool], ids=str)
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


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("shape", [(700_001,), (350_003, 2)], ids=str)
@pytest.mark.parametrize("copies", ["equal", "different"])
def test_many_rows_of_few_numbers(P, rank, shape, copies):
    """Where to take row after row would be slow."""
    own = parameter(counted(*shape, start=5 * rank * (copies == "different")))
    m = convert("by a call", {"long": own}, P, S0)
    assert_global(m.long, counted(*shape), P, S0)


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("sbp", [B, S0, flow.sbp.split(1)], ids=str)
@pytest.mark.parametrize("copies", ["equal", "different"])
def test_rows_of_a_larger_tensor(P, rank, sbp, copies):
    """OneFlow forgets where a Parameter begins in the tensor that it is a view of."""
    base = tensor(counted(1500, 1031, start=5 * rank * (copies == "different")))
    held = nn.Parameter(base[700:1400])
    m = convert("by a call", {"held": held}, P, sbp)
    assert_global(m.held, counted(700, 1031, start=700 * 1031), P, sbp)
