"""Where the tensors of a record are, by their paths as the scope closes; what was left alone."""

from __future__ import annotations

import pytest
from oneflow import nn

from autoglobal import ConversionRecord, SpecTypeError, global_scope, local_to_global
from tests.helpers.support import S0, B, Model, counted, linear, parameter, tensor, tensors
from tests.helpers.trees import four_kinds

A = counted(8, 4)
WHEN = pytest.mark.parametrize("when", ["assign", "exit"])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(4, 4)
        self.k = nn.Linear(4, 4, bias=False)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = Attention()
        self.scale = parameter(counted(4))


def paths(found) -> list[str]:
    return [one.path for one in found]


@WHEN
def test_they_start_at_the_topmost_module(P, when):
    with global_scope(P, B, when=when) as scope:
        model = nn.Sequential(Block(), Block())
    assert sorted(paths(scope.converted)) == sorted(tensors(model))


@WHEN
def test_a_module_that_was_there_before(P, when):
    model = nn.Sequential(Model(), Model())
    with global_scope(P, B, when=when) as scope:
        model.add_module("head", Block())
        model[1].extra = parameter(A)
    assert sorted(paths(scope.converted)) == sorted(tensors(model))


def test_inside_the_block_they_are_as_they_were_met(P):
    with global_scope(P, B) as scope:
        model = Block()
        found = scope.converted
        assert paths(found) == ["weight", "bias", "weight", "scale"]
    assert paths(scope.converted) == ["attn.q.weight", "attn.q.bias", "attn.k.weight", "scale"]
    assert scope.converted is found, "the same list"
    assert model.scale.is_global


def test_what_nobody_holds_any_more_keeps_its_path(P):
    model = Model()
    with global_scope(P, B) as scope:
        nn.Linear(4, 4)
        model.sub = nn.Linear(4, 4)
    assert paths(scope.converted) == ["weight", "bias", "sub.weight", "sub.bias"]


def test_a_block_that_is_left_by_an_error(P):
    model = Model()
    scope = global_scope(P, B).__enter__()
    model.sub = nn.Linear(4, 4)
    scope.opened_by.__exit__(ValueError, ValueError(), None)
    assert paths(scope.converted) == ["sub.weight", "sub.bias"]


def test_two_models_have_paths_of_their_own(P):
    with global_scope(P, B) as scope:
        first, second = Block(), Block()
    assert sorted(paths(scope.converted)) == sorted([*tensors(first), *tensors(second)])


def test_modules_that_hold_each_other(P):
    with global_scope(P, B) as scope:
        first, second = Model(), Model()
        first.w, second.w = parameter(A), parameter(A)
        first.other, second.other = second, first
    assert paths(scope.converted) == ["w", "other.w"]


def test_of_what_is_kept_and_left_too(P):
    inner, outer, sub = Model(), Model(), four_kinds(P)
    with global_scope(P, B, buffers=False) as scope:
        inner.sub = sub
        inner.table = tensor(A)
        outer.inner = inner
    assert paths(scope.kept) == ["inner.sub.old"]
    assert sorted(paths(scope.left)) == ["inner.sub.seen", "inner.table"]


@WHEN
def test_global_tensors_that_were_left_alone_are_counted(P, when):
    """That they stay as they are is what people come for."""
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    model.to_global(P, S0)
    sub = nn.Linear(4, 4).to_global(P, B)
    with global_scope(P, B, when=when) as scope:
        model.head = nn.Linear(4, 4)
        model.sub = sub
    assert paths(scope.kept) == ["sub.weight", "sub.bias"]
    assert scope.left_alone == 6
    assert "6 more global tensors of the modules that were added to: as before" in str(scope)
    assert "kept, met in what was assigned" in str(scope)


def test_nothing_is_said_of_none(P):
    with global_scope(P, B) as scope:
        model = Block()
    assert model.scale.is_global
    assert scope.left_alone == 0
    assert "more global" not in str(scope)


class TestWaiting:
    """What a scope with ``when="exit"`` will convert, while it is open."""

    def test_it_is_listed(self, P):
        model = nn.Sequential(Model())
        with global_scope(P, B, when="exit") as scope:
            assert scope.waiting == []
            model[0].new = parameter(A)
            model.head = nn.Linear(4, 4)
            assert scope.waiting == ["Sequential.head", "Sequential.0.new"]
            text = "to be converted as the block ends: Sequential.head, Sequential.0.new"
            assert text in str(scope)
        assert scope.waiting == []
        assert "to be converted" not in str(scope)

    def test_not_what_was_taken_back(self, P):
        model = Model()
        with global_scope(P, B, when="exit") as scope:
            model.new = parameter(A)
            del model.new
            assert scope.waiting == []

    def test_nothing_waits_in_an_assigning_scope(self, P):
        model = Model()
        with global_scope(P, B) as scope:
            model.new = parameter(A)
            assert scope.waiting == []


class TestOfACall:
    """``local_to_global(..., record=...)``."""

    def test_what_it_has_done(self, P):
        m, record = four_kinds(P), ConversionRecord()
        assert local_to_global(m, P, {"*bias": None, "*": S0}, buffers=False, record=record) is m
        assert [(one.path, one.rule) for one in record.converted] == [("new", "*")]
        assert paths(record.kept) == ["old"]
        assert paths(record.left) == ["bias", "seen"]
        assert record.seconds > 0
        assert str(record).startswith("local_to_global of Model: 1 converted")
        assert repr(record) == "<local_to_global of Model: 1 converted, 1 kept, 2 left local>"
        assert record.left_alone == 0

    def test_several_calls_add_up(self, P):
        record = ConversionRecord()
        assert repr(record) == "<nothing yet: 0 converted, 0 kept, 0 left local>"
        for _ in range(2):
            local_to_global(linear(A), P, B, record=record)
        assert paths(record.converted) == ["weight", "weight"]
        assert "local_to_global of Linear, local_to_global of Linear" in str(record)

    def test_one_that_is_refused(self, P):
        record = ConversionRecord()
        with pytest.raises(RuntimeError):
            local_to_global(linear(A, counted(8)), P, {"weight": S0}, record=record)
        assert record.converted == []

    @pytest.mark.parametrize("record", [[], True, ConversionRecord], ids=["list", "True", "class"])
    def test_another_thing(self, P, record):
        layer = linear(A)
        with pytest.raises(SpecTypeError, match="record must be a ConversionRecord"):
            local_to_global(layer, P, B, record=record)
        assert layer.weight.is_local
