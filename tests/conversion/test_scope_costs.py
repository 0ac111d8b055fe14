"""``scope.seconds``, ``scope.sent`` and ``scope.received``."""

from __future__ import annotations

import time

import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import global_scope
from autoglobal.ranks import collectives as ranks
from tests.helpers.support import S0, B, Model, counted, linear, parameter

A = counted(8, 4)
WHEN = pytest.mark.parametrize("when", ["assign", "exit"])
VOTE = 64  # the bytes of one message in which a rank says what it is about to do


@WHEN
def test_the_seconds_are_those_of_the_conversions(P, when):
    m = Model()
    begin = time.perf_counter()
    with global_scope(P, S0, when=when) as scope:
        assert scope.seconds == 0
        m.new = parameter(A)
        time.sleep(0.1)
    assert 0 < scope.seconds <= time.perf_counter() - begin - 0.1


def everybodys(scope) -> list[list[int]]:
    """What each rank has sent and received."""
    return ranks.gather([scope.sent, scope.received])


def votes(world: int, times: int) -> list[list[int]]:
    """What the ranks send and receive to agree so many times."""
    others = 1 if world == 2 else world - 1
    first = VOTE * others * times
    return [[first, first], *([VOTE * times] * 2 for _ in range(1, world))]


def without_votes(scope, world: int, times: int) -> list[list[int]]:
    return [
        [has - of for has, of in zip(one, vote)]
        for one, vote in zip(everybodys(scope), votes(world, times))
    ]


def test_nothing_is_sent_by_one_rank_or_unchecked(P, world):
    m, sub = Model(), linear(A, counted(8))
    with global_scope(P, S0, check=False) as scope:
        m.sub = sub
        m.all = nn.Linear(4, 8)
    assert (scope.sent, scope.received) == (0, 0)
    if world == 1:
        with global_scope(P, S0) as scope:
            m.new = parameter(A)
        assert (scope.sent, scope.received) == (0, 0)


@pytest.mark.ranks(2, 4)
def test_equal_copies_cost_the_agreement(P, world):
    m, sub = Model(), linear(A, counted(8))
    with global_scope(P, S0) as scope:
        m.new = parameter(A)
        m.sub = sub
    assert everybodys(scope) == votes(world, 3), "two assignments and the end of the scope"
    with global_scope(P, S0, when="exit") as scope:
        m.b = parameter(A)
        m.c = parameter(A)
    assert everybodys(scope) == votes(world, 1)


@pytest.mark.ranks(2, 4)
def test_values_that_differ_are_counted_as_they_go(P, rank, world):
    m = Model()
    with global_scope(P, S0) as scope:
        m.new = parameter(counted(8, 4, start=rank))
    part = 8 * 4 * 4 // world
    expected = [[part * (world - 1), 0], *([0, part] for _ in range(1, world))]
    assert without_votes(scope, world, 2) == expected
    with global_scope(P, B) as scope:
        m.new = parameter(counted(8, 4, start=rank), flow.bfloat16)
    whole = 8 * 4 * 4  # as float32
    expected = [[whole * (world - 1), 0], *([0, whole] for _ in range(1, world))]
    assert without_votes(scope, world, 2) == expected


@pytest.mark.ranks(2, 4)
def test_a_large_broadcast_is_counted_as_the_tensor(P, rank, world):
    m, size = Model(), 1 << 18
    with global_scope(P, B) as scope:
        m.new = parameter(counted(size, start=rank))
    expected = [[4 * size, 0], *([0, 4 * size] for _ in range(1, world))]
    assert without_votes(scope, world, 2) == expected


@pytest.mark.ranks(4)
def test_shards_that_are_broadcast_along_one_dimension():
    m, mesh = Model(), flow.placement("cpu", [[0, 1], [2, 3]])
    with global_scope(mesh, (B, S0), source="shard") as scope:
        m.new = parameter(counted(4, 4))
    assert without_votes(scope, 4, 2) == [[64, 0], [64, 0], [0, 64], [0, 64]]


@pytest.mark.ranks(2, 4)
def test_inner_scopes_and_others_messages_are_not_counted(P, rank, world):
    m = Model()
    with global_scope(P, S0) as outer:
        with global_scope(P, S0) as inner:
            m.new = parameter(counted(8, 4, start=rank))
        ranks.gather([1])
    assert everybodys(outer) == votes(world, 1)
    assert everybodys(inner) != votes(world, 2)
