"""A scope's records: what it has converted, and in ``kept`` and ``left`` what it has not."""

from __future__ import annotations

import gc
import weakref

import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import DivergenceError, auto_global, global_scope, local_scope
from tests.helpers.support import S0, S1, B, Model, counted, error_of, linear, parameter, tensor
from tests.helpers.trees import four_kinds, globally


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
        layer = nn.Linear(4, 8)
        assert paths(scope.converted) == ["weight", "bias"], "nobody holds it yet"
        m.sub = layer
    assert [(owner_name(r), r.path) for r in scope.converted] == [
        ("Linear", "sub.weight"),
        ("Linear", "sub.bias"),
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


A = counted(8, 4)
WHEN = pytest.mark.parametrize("when", ["assign", "exit"])


def paths(found) -> list[str]:
    return [one.path for one in found]


def reasons(scope) -> dict[str, str]:
    return {one.path: one.reason for one in scope.left}


@WHEN
def test_kept_and_left_in_a_tree(P, when):
    m, sub = Model(), four_kinds(P)
    with global_scope(P, {"*bias": None, "*": S0}, when=when, buffers=False) as scope:
        m.sub = sub
    assert paths(scope.converted) == ["sub.new"]
    (kept,) = scope.kept
    assert (kept.path, kept.owner, kept.kind) == ("sub.old", "Model", "parameter")
    assert (kept.shape, kept.dtype) == ((8, 4), flow.float32)
    assert (kept.placement, kept.sbp) == (P, (B,))
    bias, seen = scope.left
    assert (bias.path, bias.kind, bias.shape) == ("sub.bias", "parameter", (8,))
    assert bias.reason == "the rule '*bias' of sbp says None"
    assert (seen.path, seen.kind, seen.reason) == ("sub.seen", "buffer", "buffers=False")
    assert m.sub.old.sbp == (B,)
    assert m.sub.bias.is_local
    assert m.sub.seen.is_local


def test_a_parameter_and_a_buffer_by_themselves(P):
    m = Model()
    with global_scope(P, lambda owner, path, value: None, buffers="sbp") as scope:
        m.new = parameter(A)
        m.register_buffer("old", tensor(A))
    assert reasons(scope) == dict.fromkeys(["new", "old"], "the sbp function says None")
    assert not scope.converted


def test_what_the_scope_has_made_itself_is_not_kept(P):
    m, top = Model(), Model()
    with global_scope(P, S0) as scope:
        m.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
        m.head = nn.Linear(4, 8)
        m.head.weight = m.body[0].weight
        top.m = m
    assert len(scope.converted) == 9
    assert scope.kept == []
    assert scope.left == []


def test_who_is_met_twice_is_told_once_with_the_last_path(P):
    m, top, sub = Model(), Model(), four_kinds(P)
    with global_scope(P, S0, buffers=False) as scope:
        m.sub = sub
        m.again = m.sub
        top.m = m
    assert paths(scope.kept) == ["m.sub.old"]
    assert paths(scope.left) == ["m.sub.seen"]


def test_who_was_left_and_then_made_global_is_told_as_that(P):
    m = Model()
    with global_scope(P, {"weight": None, "*": S0}) as scope:
        layer = nn.Linear(4, 8)
        assert paths(scope.left) == ["weight"]
        m.sub = layer
        assert scope.left == []
        assert paths(scope.converted) == ["bias", "sub.weight"]
    assert paths(scope.converted) == ["sub.bias", "sub.weight"]


def test_two_modules_of_which_one_has_gone(P):
    """Another module at the same address is another module."""
    with global_scope(P, {"*": None}, buffers=False) as scope:
        for _ in range(3):
            Model().new = parameter(A)
    assert paths(scope.left) == ["new"] * 3


def test_a_plain_attribute(P):
    m = Model()
    with global_scope(P, S0) as scope:
        m.pos = tensor(A)
        m.pos = tensor(A)
        m.there = tensor(A).to_global(P, B)
        with local_scope():
            m.own = tensor(A)
    (left,) = scope.left
    assert (left.path, left.owner, left.kind, left.shape) == ("pos", "Model", "attribute", (8, 4))
    assert left.reason == "a plain attribute, which OneFlow does not register"
    assert scope.kept == []


def test_converted_again_only_where_that_changes_something(P):
    m, sub = Model(), Model()
    sub.same, sub.other = globally(A, P, S0), globally(A, P, B)
    with global_scope(P, S0, existing="convert") as scope:
        m.sub = sub
    assert paths(scope.kept) == ["sub.same"]
    assert paths(scope.converted) == ["sub.other"]


def test_a_class_that_states_its_layout_has_its_own_reasons(P):
    @auto_global(P, {"weight": None, "*": B}, buffers=False)
    class Stated(Model):
        pass

    with local_scope():
        inner = Stated()
        inner.weight, inner.bias = parameter(A), parameter(A)
        inner.register_buffer("seen", tensor(A))
    m = Model()
    with global_scope(P, S0) as scope:
        m.sub = inner
    assert reasons(scope) == {
        "sub.weight": "the rule 'weight' of sbp says None",
        "sub.seen": "buffers=False",
    }
    assert [one.sbp for one in scope.converted] == [(B,)]


def test_what_was_refused_is_not_told(P):
    m, bad = Model(), four_kinds(P)
    bad.short, bad.keeps = parameter(counted(4)), Model()
    bad.keeps.old, bad.keeps.bias = globally(A, P, B), parameter(A)
    with global_scope(P, {"*short": flow.sbp.split(1), "*bias": None, "*": S0}) as scope:
        assert "sub.short" in str(error_of(lambda: setattr(m, "sub", bad)))
        with pytest.raises(KeyError):
            m.add_module("by.oneflow", bad.keeps)
        assert (scope.converted, scope.kept, scope.left) == ([], [], [])
        del bad.short, bad.keeps
        m.sub = bad
        m.short = parameter(counted(4, 8))
    assert paths(scope.converted) == ["sub.new", "sub.seen", "short"]
    assert paths(scope.kept) == ["sub.old"]
    assert paths(scope.left) == ["sub.bias"]


@pytest.mark.ranks(2, 4)
def test_what_the_ranks_differ_over_is_not_told(P, rank):
    m, bad = Model(), four_kinds(P)
    bad.differs = parameter(counted(8 + rank))
    with pytest.raises(DivergenceError), global_scope(P, {"*bias": None, "*": S0}) as scope:
        m.sub = bad
    assert (scope.converted, scope.kept, scope.left) == ([], [], [])


@WHEN
def test_a_scope_that_is_held_keeps_nothing_alive(P, when):
    class Tagged(nn.Parameter):
        """A subclass takes a weak reference."""

    sub = Model()
    sub.old, sub.bias = Tagged(globally(A, P, B)), Tagged(tensor(A))
    m = Model()
    gc.collect()
    gc.disable()
    try:
        with global_scope(P, {"*": None}, when=when) as scope:
            m.sub = sub
            m.pos = tensor(A)
        references = [weakref.ref(one) for one in (m, sub, sub.old, sub.bias)]
        del m, sub
        assert [one() for one in references] == [None] * 4
    finally:
        gc.enable()
    assert paths(scope.kept) == ["sub.old"]
    assert sorted(paths(scope.left)) == ["pos", "sub.bias"]
