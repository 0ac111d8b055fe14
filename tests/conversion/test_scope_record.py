"""``scope.kept`` and ``scope.left``: what a scope has met and not converted."""

from __future__ import annotations

import gc
import weakref

import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import DivergenceError, auto_global, global_scope, local_scope
from tests.helpers.support import S0, B, Model, counted, error_of, parameter, tensor
from tests.helpers.trees import four_kinds, globally

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
