"""Placements of several dimensions, and those that leave ranks out."""

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
    tensor,
)


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
