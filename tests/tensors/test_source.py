"""What the local tensor stands for: the whole (``source="full"``) or this rank's share."""

from __future__ import annotations

import numpy as np
import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import global_scope
from tests.helpers.doc_pages import ROOT, parts_of, run
from tests.helpers.support import (
    S0,
    S1,
    B,
    Model,
    assert_global,
    assert_local,
    counted,
    linear,
    parameter,
    part,
    tensor,
)
from tests.helpers.trees import logical

PS = flow.sbp.partial_sum


def assigned(placement, sbp, value, **options):
    m = Model()
    with global_scope(placement, sbp, **options):
        m.new = value
    return m.new


@pytest.mark.parametrize("sbp", [B, S0, S1, [S0], (S1,)], ids=str)
def test_full_keeps_the_logical_tensor(P, sbp):
    a = counted(8, 4)
    assert_global(assigned(P, sbp, parameter(a)), a, P, sbp)


@pytest.mark.parametrize("sbp", [B, S0, S1], ids=str)
def test_full_is_the_default(P, sbp):
    a = counted(8, 4)
    assert_global(assigned(P, sbp, parameter(a), source="full"), a, P, sbp)


@pytest.mark.parametrize("sbp", [B, S0, S1], ids=str)
def test_full_lets_the_first_rank_win(P, rank, sbp):
    own = counted(8, 4, start=1000 * rank)
    assert_global(assigned(P, sbp, parameter(own)), counted(8, 4), P, sbp)


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("sbp", [B, S0], ids=str)
def test_full_lets_the_first_rank_win_where_one_number_differs(P, rank, world, sbp):
    """The last number, on the last rank only: a comparison of a sample would miss it."""
    own = counted(64, 64)
    own[-1, -1] += rank == world - 1
    assert_global(assigned(P, sbp, parameter(own)), counted(64, 64), P, sbp)


@pytest.mark.parametrize("sbp", [B, S0], ids=str)
def test_full_lets_the_first_rank_win_for_every_tensor_of_a_tree(P, rank, sbp):
    tree = nn.Sequential(*[linear(counted(8, 4, start=1000 * rank + i)) for i in range(3)])
    tree[1].register_buffer("seen", tensor(counted(5, start=2000 * rank)))
    found = assigned(P, sbp, tree)
    for i in range(3):
        assert_global(found[i].weight, counted(8, 4, start=i), P, sbp)
    assert_global(found[1].seen, counted(5), P, B)


@pytest.mark.parametrize("sbp", [B, S0], ids=str)
def test_full_takes_a_tree_in_which_only_some_tensors_differ(P, rank, sbp):
    tree = nn.Sequential(*[linear(counted(8, 4, start=1000 * rank * (i % 2))) for i in range(4)])
    found = assigned(P, sbp, tree)
    for layer in found:
        assert_global(layer.weight, counted(8, 4), P, sbp)


@pytest.mark.parametrize("sbp", [B, S0], ids=str)
def test_full_keeps_nan_infinity_and_negative_zero(P, sbp):
    a = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, 2.0, 3.0], np.float32)
    found = assigned(P, sbp, parameter(a))
    assert_global(found, a, P, sbp)
    own = part(a, P, [sbp], flow.env.get_rank())
    signs = np.signbit(found.detach().to_local().numpy())
    np.testing.assert_array_equal(signs, np.signbit(own))


@pytest.mark.ranks(1, 2)
def test_full_splits_three_rows(P):
    a = counted(3, 2)
    assert_global(assigned(P, S0, parameter(a)), a, P, S0)


@pytest.mark.parametrize("rows", [5, 7])
def test_full_splits_uneven_rows(P, rank, rows):
    own = counted(rows, 2, start=1000 * rank)
    assert_global(assigned(P, S0, parameter(own)), counted(rows, 2), P, S0)


def test_full_splits_uneven_columns(P, rank):
    own = counted(2, 5, start=1000 * rank)
    assert_global(assigned(P, S1, parameter(own)), counted(2, 5), P, S1)


def test_an_uneven_tensor_can_be_gathered_again(P):
    """All ranks agree on the logical shape, not only each on its own part."""
    a = counted(5, 2)
    found = assigned(P, S0, parameter(a))
    assert found.is_global
    np.testing.assert_array_equal(found.detach().to_global(P, B).numpy(), a)


@pytest.mark.parametrize("sbp", [B, S0], ids=str)
@pytest.mark.parametrize("buffers", ["broadcast", "sbp"])
def test_full_lets_the_first_rank_win_for_a_buffer(P, rank, sbp, buffers):
    m = Model()
    with global_scope(P, sbp, buffers=buffers):
        m.register_buffer("seen", tensor(counted(8, 2, start=1000 * rank)))
    assert_global(m.seen, counted(8, 2), P, B if buffers == "broadcast" else sbp)


@pytest.mark.ranks(2)
def test_full_refuses_copies_of_different_shapes_on_every_rank(P, rank, world):
    """On more ranks OneFlow 0.9.0 itself tells only the neighbours of the one that differs."""
    m, own = Model(), parameter(counted(8, 3 if rank == world - 1 else 4))
    with global_scope(P, B):
        with pytest.raises(RuntimeError):
            m.new = own
        assert own.is_local
        assert not hasattr(m, "new")
        m.other = parameter(counted(8, 4))
    assert_global(m.other, counted(8, 4), P, B)


@pytest.mark.ranks(2)
def test_full_refuses_copies_of_different_dtypes_on_every_rank(P, rank, world):
    m = Model()
    own = parameter(counted(8, 4, dtype=np.float64 if rank == world - 1 else np.float32))
    with global_scope(P, S0):
        with pytest.raises(RuntimeError):
            m.new = own
        assert own.is_local
        assert not hasattr(m, "new")


def test_partial_sum_keeps_the_logical_value(P, rank):
    a = counted(8, 4)
    found = assigned(P, PS, parameter(counted(8, 4, start=1000 * rank)))
    assert found.sbp == (PS,)
    np.testing.assert_array_equal(found.detach().to_global(P, B).numpy(), a)


# source="shard"


@pytest.mark.parametrize("sbp", [B, S0, S1, PS], ids=str)
def test_shard_equals_to_global(P, rank, sbp):
    own = counted(4, 4, start=1000 * rank)
    expected = tensor(own).to_global(P, sbp)
    found = assigned(P, sbp, parameter(own), source="shard")
    assert found.shape == expected.shape
    assert found.sbp == (sbp,)
    assert found.placement == P
    np.testing.assert_array_equal(found.detach().to_local().numpy(), expected.to_local().numpy())


def test_shard_makes_the_logical_tensor_of_the_ranks_parts(P, rank, world):
    found = assigned(P, S0, parameter(counted(4, 4, start=16 * rank)), source="shard")
    assert tuple(found.shape) == (4 * world, 4)
    assert_global(found, counted(4 * world, 4), P, S0)


def test_shard_takes_one_row_from_each_rank(P, rank, world):
    """A row a rank is nothing that could not be split."""
    found = assigned(P, S0, parameter(counted(1, 3, start=3 * rank)), source="shard")
    assert_global(found, counted(world, 3), P, S0)


def test_shard_takes_uneven_rows(P, rank, world):
    whole = counted(world + 1, 3)
    own = part(whole, P, [S0], rank)
    assert_global(assigned(P, S0, parameter(own), source="shard"), whole, P, S0)


def test_shard_of_broadcast_lets_the_first_rank_win(P, rank):
    found = assigned(P, B, parameter(counted(4, 4, start=1000 * rank)), source="shard")
    assert_global(found, counted(4, 4), P, B)


def test_shard_takes_a_whole_module(P, rank, world):
    layer = linear(counted(4, 4, start=16 * rank), counted(4, start=4 * rank))
    found = assigned(P, S0, layer, source="shard")
    assert_global(found.weight, counted(4 * world, 4), P, S0)
    assert_global(found.bias, counted(4 * world), P, S0)


class TestFusedShards:
    """Each rank's file holds its rows of q, k and v (Oneflow-Inc/oneflow#9823, libai#205)."""

    def parts(self) -> list[np.ndarray]:
        return [counted(8, 2, start=100 * index) for index in range(3)]

    def mine(self, rank, world) -> np.ndarray:
        return np.concatenate([np.array_split(part, world)[rank] for part in self.parts()])

    def test_as_shards_of_one_tensor_they_are_mixed(self, P, rank, world):
        m = Model()
        with global_scope(P, S0, source="shard"):
            m.qkv = parameter(self.mine(rank, world))
        logical_one = np.concatenate([self.mine(one, world) for one in range(world)])
        assert_global(m.qkv, logical_one, P, S0)
        for found, expected in zip(m.qkv.chunk(3), self.parts()):
            assert (logical(found).tolist() == expected.tolist()) == (world == 1)

    def test_each_part_as_a_tensor_of_its_own_is_right(self, P, rank, world):
        local, m = tensor(self.mine(rank, world)), Model()
        parts = [part.to_global(P, S0) for part in local.chunk(3)]
        with global_scope(P, B):  # which leaves it as it is
            m.qkv = nn.Parameter(flow.cat(parts).to_global(sbp=S0))
        assert_global(m.qkv, np.concatenate(self.parts()), P, S0)
        for found, expected in zip(m.qkv.chunk(3), self.parts()):
            assert logical(found).tolist() == expected.tolist()

    def test_the_lines_of_the_page(self, P, rank, world):
        (page,) = [one for one in parts_of(ROOT / "docs/how-to/tensor-parallel.md") if one.blocks]
        names: dict = {}
        list(run(page, names))
        assert_global(names["model"].weight, np.concatenate(self.parts()), P, S0)
        assert_local(names["again"], names["mine"].numpy())
