"""``record.fallback``: which tensors ``unsplittable="broadcast"`` made broadcast."""

from __future__ import annotations

import oneflow as flow
import pytest

from autoglobal import global_scope
from tests.helpers.support import S0, S1, B, Model, counted, linear, parameter, tensor

W = counted(8, 4)


def fallbacks(scope) -> dict[str, bool]:
    return {record.path: record.fallback for record in scope.converted}


@pytest.mark.parametrize("when", ["assign", "exit"])
def test_an_axis_that_does_not_exist(P, when):
    m, layer = Model(), linear(W, counted(8))
    with global_scope(P, S1, unsplittable="broadcast", when=when) as scope:
        m.sub = layer
    assert fallbacks(scope) == {"sub.weight": False, "sub.bias": True}
    assert [record.sbp for record in scope.converted] == [(S1,), (B,)]


@pytest.mark.ranks(2, 4)
def test_an_axis_that_is_too_short(P):
    m = Model()
    with global_scope(P, S0, unsplittable="broadcast") as scope:
        m.token, m.new = parameter(counted(1, 1, 6)), parameter(W)
    assert fallbacks(scope) == {"token": True, "new": False}


@pytest.mark.ranks(4)
def test_one_of_two_dimensions():
    square = flow.placement("cpu", [[0, 1], [2, 3]])
    m = Model()
    with global_scope(square, (S0, S1), unsplittable="broadcast") as scope:
        m.bias, m.weight = parameter(counted(8)), parameter(W)
    assert fallbacks(scope) == {"bias": True, "weight": False}
    assert scope.converted[0].sbp == (S0, B)


def test_a_number_without_dimensions_is_none(P):
    """There is nothing in it to split."""
    m = Model()
    with global_scope(P, S0, unsplittable="broadcast") as scope:
        m.new = parameter(counted(1).reshape(()))
    assert fallbacks(scope) == {"new": False}


def test_what_was_to_be_broadcast_is_none(P):
    m, layer = Model(), linear(W, counted(8))
    layer.register_buffer("seen", tensor(counted(1)))
    rules = {"*weight": S1, "*bias": B}
    with global_scope(P, rules, unsplittable="broadcast") as scope:
        m.sub = layer
    assert fallbacks(scope) == {"sub.weight": False, "sub.bias": False, "sub.seen": False}


def test_a_buffer_by_the_sbp(P):
    m = Model()
    with global_scope(P, S1, unsplittable="broadcast", buffers="sbp") as scope:
        m.register_buffer("seen", tensor(counted(8)))
    assert fallbacks(scope) == {"seen": True}


def test_a_rule_that_does_not_fit(P):
    m, layer = Model(), linear(W, counted(8))
    with global_scope(P, {"*": S1}, unsplittable="broadcast") as scope:
        m.sub = layer
    assert fallbacks(scope) == {"sub.weight": False, "sub.bias": True}


def test_without_it_nothing_falls_back(P):
    m = Model()
    with global_scope(P, S0) as scope:
        m.new = parameter(W)
    assert fallbacks(scope) == {"new": False}
