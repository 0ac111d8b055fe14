"""Placements of several dimensions, reversed ones, those that leave ranks out, and one rank only.

With equal copies and with different ones, by every way of converting; uneven rows over 2 and 4.
"""

from __future__ import annotations

import numpy as np
import oneflow as flow
import pytest

from autoglobal import global_scope
from tests.helpers.support import (
    S0,
    S1,
    B,
    Model,
    assert_global,
    counted,
    linear,
    parameter,
    part,
    tensor,
)
from tests.helpers.trees import logical
from tests.helpers.ways import RULES, TWO_WAYS, convert, sbp_of


def assigned(placement, sbp, value, **options):
    m = Model()
    with global_scope(placement, sbp, **options):
        m.new = value
    return m.new


@pytest.fixture
def square():
    return flow.placement("cpu", [[0, 1], [2, 3]])


@pytest.mark.parametrize("sbp", [(B, B), (S0, B), (B, S1)], ids=str)
def test_a_placement_of_one_row(world, rank, sbp):
    """Two dimensions on any number of ranks."""
    placement = flow.placement("cpu", [list(range(world))])
    own = counted(8, 4, start=1000 * rank)
    assert_global(assigned(placement, sbp, parameter(own)), counted(8, 4), placement, sbp)


GRID = [(B, B), (S0, B), (B, S0), (S0, S0), (S0, S1), (S1, S0), (S1, S1), (B, S1)]


@pytest.mark.ranks(4)
@pytest.mark.parametrize("sbp", GRID, ids=str)
def test_two_dimensions_let_the_first_rank_win(square, rank, sbp):
    own = counted(8, 4, start=1000 * rank)
    assert_global(assigned(square, sbp, parameter(own)), counted(8, 4), square, sbp)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("sbp", [(S0, B), (B, S0), (S0, S1)], ids=str)
def test_two_dimensions_split_uneven_rows(square, rank, sbp):
    own = counted(5, 4, start=1000 * rank)
    found = assigned(square, sbp, parameter(own))
    assert_global(found, counted(5, 4), square, sbp)
    np.testing.assert_array_equal(found.detach().to_global(square, (B, B)).numpy(), counted(5, 4))


@pytest.mark.ranks(4)
@pytest.mark.parametrize("sbp", GRID, ids=str)
def test_two_dimensions_shard_equals_to_global(square, rank, sbp):
    own = counted(4, 4, start=1000 * rank)
    expected = tensor(own).to_global(square, sbp)
    found = assigned(square, sbp, parameter(own), source="shard")
    assert found.shape == expected.shape
    assert found.sbp == sbp
    np.testing.assert_array_equal(found.detach().to_local().numpy(), expected.to_local().numpy())


@pytest.mark.ranks(4)
def test_two_dimensions_take_a_module_with_its_buffers(square, rank):
    layer = linear(counted(8, 4, start=1000 * rank), counted(8, start=1000 * rank))
    layer.register_buffer("seen", tensor(counted(3, start=1000 * rank)))
    found = assigned(square, (S0, B), layer)
    assert_global(found.weight, counted(8, 4), square, (S0, B))
    assert_global(found.bias, counted(8), square, (S0, B))
    assert_global(found.seen, counted(3), square, (B, B))


@pytest.mark.parametrize("sbp", [B, S0], ids=str)
@pytest.mark.parametrize("which", ["first", "last"])
def test_a_placement_on_one_rank_takes_that_ranks_values(world, rank, sbp, which):
    """The others take part in the assignment and hold nothing."""
    only = 0 if which == "first" else world - 1
    placement = flow.placement("cpu", [only])
    found = assigned(placement, sbp, parameter(counted(8, 4, start=1000 * rank)))
    assert_global(found, counted(8, 4, start=1000 * only), placement, sbp)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("sbp", [B, S0], ids=str)
def test_the_first_rank_of_the_placement_wins(rank, sbp):
    placement = flow.placement("cpu", [1, 3])
    found = assigned(placement, sbp, parameter(counted(8, 4, start=1000 * rank)))
    assert_global(found, counted(8, 4, start=1000), placement, sbp)


@pytest.mark.ranks(4)
def test_a_placement_on_some_ranks_takes_a_module(rank):
    placement = flow.placement("cpu", [1, 2])
    layer = linear(counted(5, 4, start=1000 * rank), counted(5, start=1000 * rank))
    layer.register_buffer("seen", tensor(counted(3, start=1000 * rank)))
    found = assigned(placement, S0, layer)
    assert_global(found.weight, counted(5, 4, start=1000), placement, S0)
    assert_global(found.bias, counted(5, start=1000), placement, S0)
    assert_global(found.seen, counted(3, start=1000), placement, B)


@pytest.mark.ranks(2, 4)
def test_a_tensor_that_one_rank_can_hold_is_not_unsplittable_for_the_world(world):
    """One row on a placement of one rank, in a world of several."""
    placement = flow.placement("cpu", [world - 1])
    found = assigned(placement, S0, parameter(counted(1, 4)))
    assert_global(found, counted(1, 4), placement, S0)


COPIES = pytest.mark.parametrize("differ", [0, 1000], ids=["equal", "different"])
WAYS = pytest.mark.parametrize("way", ["one by one", "at the exit", "by a call"])
PAIRS = [(S0, B), (B, S1), (S0, S1), (S0, S0)]
ROWS = [5, 6, 7, 8]


def first_of(placement) -> int:
    return int(np.asarray(placement.ranks).flat[0])


def own_part(found) -> np.ndarray:
    return found.detach().to_local().numpy()


# Two dimensions


@pytest.mark.ranks(4)
@WAYS
@COPIES
@pytest.mark.parametrize("sbp", PAIRS, ids=str)
def test_two_dimensions(rank, sbp, differ, way):
    square = flow.placement("cpu", [[0, 1], [2, 3]])
    values = {f"rows{n}": parameter(counted(n, 6, start=differ * rank)) for n in ROWS}
    values["seen"] = tensor(counted(3, start=differ * rank))
    m = convert(way, values, square, sbp)
    for n in ROWS:
        assert_global(getattr(m, f"rows{n}"), counted(n, 6), square, sbp)
    assert_global(m.seen, counted(3), square, (B, B))


@pytest.mark.ranks(4)
@pytest.mark.parametrize("sbp", [*PAIRS, (B, S0), (S1, S0), (B, B)], ids=str)
@pytest.mark.parametrize("ranks", [[[0, 1], [2, 3]], [[0, 2], [1, 3]], [[3, 2], [1, 0]]], ids=str)
def test_two_dimensions_are_cut_as_oneflow_cuts(rank, ranks, sbp):
    """Of a whole that all ranks have; and all ranks agree on the whole."""
    square = flow.placement("cpu", ranks)
    m = convert("by a call", {"p": parameter(counted(7, 6, start=100 * rank))}, square, sbp)
    array = counted(7, 6, start=100 * first_of(square))
    expected = tensor(array).to_global(square, (B, B)).to_global(square, sbp)
    assert m.p.shape == expected.shape
    np.testing.assert_array_equal(own_part(m.p), own_part(expected))
    np.testing.assert_array_equal(logical(m.p), array)


@pytest.mark.ranks(4)
@TWO_WAYS
@COPIES
@pytest.mark.parametrize("sbp", PAIRS, ids=str)
def test_two_dimensions_of_shards(rank, sbp, differ, way):
    """Where an axis is broadcast, and its ranks differ, the first of them wins; uneven ones too."""
    square = flow.placement("cpu", [[0, 1], [2, 3]])
    own = {
        "even": counted(4, 6, start=differ * rank),
        "odd": part(counted(7, 5), square, sbp, rank),
    }
    values = {name: parameter(array) for name, array in own.items()}
    m = convert(way, values, square, sbp, source="shard")
    for name, array in own.items():
        found, expected = getattr(m, name), tensor(array).to_global(square, sbp)
        assert (found.shape, found.sbp, found.placement) == (expected.shape, sbp, square)
        np.testing.assert_array_equal(own_part(found), own_part(expected))
        np.testing.assert_array_equal(logical(found), logical(expected))
    assert_global(m.odd, counted(7, 5), square, sbp)


# All ranks or some


MANY = {
    1: [[0]],
    2: [[0, 1], [1, 0], [0], [1], [[0, 1]], [[0], [1]]],
    4: [[3, 2, 1, 0], [0], [1], [0, 2], [3, 1], [1, 2, 3], [[1, 2]], [[0], [3]]],
}
EACH_PLACEMENT = pytest.mark.parametrize("which", range(8))


def placement_of(world: int, which: int):
    """One of those of this world, ``RULES`` for its dimensions, and how to make such an sbp."""
    if which >= len(MANY[world]):
        pytest.skip("has fewer placements")
    placement = flow.placement("cpu", MANY[world][which])
    shape = np.asarray(placement.ranks).shape

    def spread(sbp):
        """Along the dimension that has more than one rank."""
        if len(shape) == 1:
            return (sbp,)
        return (sbp, B) if shape[0] > 1 else (B, sbp)

    return placement, {pattern: spread(sbp) for pattern, sbp in RULES.items()}, spread


@TWO_WAYS
@COPIES
@EACH_PLACEMENT
def test_all_ranks_or_some(rank, world, which, differ, way):
    """The ranks that are left out take part in the program, and hold nothing."""
    placement, rules, spread = placement_of(world, which)
    shapes = {f"rows{n}_s0": (n, 3) for n in ROWS}
    shapes |= {"columns_s1": (3, 7), "whole": (5, 3)}
    values = {n: parameter(counted(*shape, start=differ * rank)) for n, shape in shapes.items()}
    values["seen"] = tensor(counted(5, start=differ * rank))
    m = convert(way, values, placement, rules)
    start = differ * first_of(placement)
    for name, shape in shapes.items():
        assert_global(
            getattr(m, name), counted(*shape, start=start), placement, spread(sbp_of(name))
        )
    assert_global(m.seen, counted(5, start=start), placement, spread(B))
    np.testing.assert_array_equal(
        own_part(m.rows7_s0.to_global(placement, spread(B))),
        counted(7, 3, start=start) if rank in np.asarray(placement.ranks) else counted(0, 0),
    )


@TWO_WAYS
@EACH_PLACEMENT
def test_shards_on_all_ranks_or_some(rank, world, which, way):
    """Even shares, uneven ones where OneFlow would cut so, and a broadcast one that differs."""
    placement, rules, spread = placement_of(world, which)
    own = {"even_s0": (2, 3), "columns_s1": (2, 3), "whole": (4,)}
    own = {name: counted(*shape, start=100 * rank) for name, shape in own.items()}
    for n in ROWS:
        share = part(counted(n, 3), placement, spread(S0), rank)
        # What a rank outside has is not asked for, but OneFlow wants a tensor there.
        own[f"rows{n}_s0"] = counted(1, 3) if share is None else share
    m = convert(way, {n: parameter(a) for n, a in own.items()}, placement, rules, source="shard")
    for name, array in own.items():
        found, like = getattr(m, name), tensor(array).to_global(placement, spread(sbp_of(name)))
        assert (found.shape, found.sbp, found.placement) == (like.shape, like.sbp, placement)
        np.testing.assert_array_equal(own_part(found), own_part(like))
    for n in ROWS:
        assert_global(getattr(m, f"rows{n}_s0"), counted(n, 3), placement, spread(S0))


@WAYS
def test_one_row_on_one_rank(rank, world, way):
    """Not too few rows to be split, however many ranks the world has."""
    only = flow.placement("cpu", [world - 1])
    m = convert(way, {"row_s0": parameter(counted(1, 4, start=rank))}, only, S0)
    assert_global(m.row_s0, counted(1, 4, start=world - 1), only, S0)


@WAYS
def test_one_placement_after_another(rank, world, way):
    """Each exchange takes in all ranks, so that none is a step ahead of the others."""
    for which in [*range(len(MANY[world])), 0]:
        placement, rules, spread = placement_of(world, which)
        shapes = {"rows_s0": (7, 3), "columns_s1": (2, 5), "whole": (3,)}
        values = {n: parameter(counted(*shape, start=100 * rank)) for n, shape in shapes.items()}
        m = convert(way, values, placement, rules)
        for name, shape in shapes.items():
            array = counted(*shape, start=100 * first_of(placement))
            assert_global(getattr(m, name), array, placement, spread(sbp_of(name)))
