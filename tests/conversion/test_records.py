"""``scope.converted``: one record for each tensor that the scope has converted."""

from __future__ import annotations

import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import global_scope
from tests.helpers.support import S0, S1, B, Model, counted, linear, parameter, tensor


def owner_name(record) -> str:
    return getattr(record.owner, "__name__", record.owner)


def test_nothing_converted(P):
    with global_scope(P, S0) as scope:
        assert scope.converted == []
    assert scope.converted == []


def test_a_parameter(P, world):
    m = Model()
    with global_scope(P, S0) as scope:
        m.new = parameter(counted(8, 4))
    (record,) = scope.converted
    assert record.path == "new"
    assert owner_name(record) == "Model"
    assert record.kind == "parameter"
    assert tuple(record.shape) == (8, 4)
    assert record.dtype == flow.float32
    assert record.placement == P
    assert record.sbp == (S0,)
    assert record.nbytes == 8 * 4 * 4 // world, "bytes on this rank"


def test_a_buffer(P):
    m = Model()
    with global_scope(P, S0) as scope:
        m.register_buffer("seen", tensor(counted(8, 4), flow.int64))
        m.seen = tensor(counted(3), flow.float16)
    first, second = scope.converted
    assert (first.path, first.kind, first.sbp, first.nbytes) == ("seen", "buffer", (B,), 256)
    assert first.dtype == flow.int64
    assert (second.path, tuple(second.shape), second.nbytes) == ("seen", (3,), 6)
    assert second.dtype == flow.float16


def test_a_share_has_the_logical_shape(P, rank, world):
    m = Model()
    with global_scope(P, S0, source="shard") as scope:
        m.new = parameter(counted(4, 4))
    (record,) = scope.converted
    assert tuple(record.shape) == (4 * world, 4)
    assert record.nbytes == 64


def test_uneven_rows_have_each_ranks_own_bytes(P, rank, world):
    m = Model()
    with global_scope(P, S0) as scope:
        m.new = parameter(counted(5, 2))
    rows = 5 // world + (rank < 5 % world)
    assert scope.converted[0].nbytes == rows * 2 * 4


@pytest.mark.ranks(2, 4)
def test_a_rank_outside_of_the_placement_holds_no_bytes(rank):
    m = Model()
    with global_scope(flow.placement("cpu", [0]), B) as scope:
        m.new = parameter(counted(8))
    assert scope.converted[0].nbytes == (32 if rank == 0 else 0)
    assert tuple(scope.converted[0].shape) == (8,)


def test_paths_and_owners_in_a_tree(P):
    m, tree = Model(), Model()
    tree.attn = linear(counted(8, 4), counted(8))
    tree.own = parameter(counted(8))
    tree.register_buffer("seen", tensor(counted(8)))
    with global_scope(P, S0) as scope:
        m.sub = tree
    found = {record.path: (owner_name(record), record.kind) for record in scope.converted}
    assert found == {
        "sub.own": ("Model", "parameter"),
        "sub.seen": ("Model", "buffer"),
        "sub.attn.weight": ("Linear", "parameter"),
        "sub.attn.bias": ("Linear", "parameter"),
    }


def test_a_layer_built_inside(P):
    m = Model()
    with global_scope(P, S0) as scope:
        m.sub = nn.Linear(4, 8)
    assert [(owner_name(r), r.path) for r in scope.converted] == [
        ("Linear", "weight"),
        ("Linear", "bias"),
    ]


def test_records_are_in_the_order_of_the_assignments(P):
    m = Model()
    with global_scope(P, S0) as scope:
        for name in "cab":
            setattr(m, name, parameter(counted(8)))
    assert [record.path for record in scope.converted] == ["c", "a", "b"]


def test_what_failed_leaves_no_record(P):
    m, good, bad = Model(), linear(counted(8, 4)), linear(counted(8, 4), counted(8))
    tree = Model()
    tree.a, tree.b = good, bad
    with global_scope(P, flow.sbp.split(1)) as scope:
        with pytest.raises(RuntimeError):
            m.bad = tree
        m.good = parameter(counted(8, 4))
    assert [record.path for record in scope.converted] == ["good"]


@pytest.mark.parametrize("shape", [(8, 4), (5, 7), (9, 6)], ids=str)
@pytest.mark.parametrize("sbp", [B, S0, S1], ids=str)
def test_the_bytes_are_those_of_this_ranks_component(P, shape, sbp):
    for dtype, size in ((flow.float32, 4), (flow.bfloat16, 2), (flow.int8, 1)):
        m = Model()
        with global_scope(P, sbp) as scope:
            m.new = nn.Parameter(tensor(counted(*shape), dtype), requires_grad=False)
        (record,) = scope.converted
        assert record.nbytes == m.new.to_local().numel() * size


@pytest.mark.ranks(4)
@pytest.mark.parametrize("sbp", [(S0, S0), (S0, S1), (B, S1)], ids=str)
def test_the_bytes_on_a_mesh_and_outside_of_one(sbp):
    for ranks in ([[0, 1], [2, 3]], [[1, 3]]):
        m, mesh = Model(), flow.placement("cpu", ranks)
        with global_scope(mesh, sbp) as scope:
            m.new = parameter(counted(7, 6))
        (record,) = scope.converted
        assert record.nbytes == m.new.to_local().numel() * 4
