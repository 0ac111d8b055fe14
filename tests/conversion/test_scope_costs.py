"""What a scope says of itself: seconds, what it sent and received, and its record as text."""

from __future__ import annotations

import io
import time

import oneflow as flow
import pytest
from oneflow import nn
from rich.console import Console

from autoglobal import global_scope
from autoglobal.ranks import collectives
from tests.helpers.support import S0, B, Model, counted, linear, parameter
from tests.helpers.trees import four_kinds

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
    return collectives.all_gather([scope.sent, scope.received])


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
        collectives.all_gather([1])
    assert everybodys(outer) == votes(world, 1)
    assert everybodys(inner) != votes(world, 2)


def test_reading_tells_the_others_nothing(P, rank):
    m, sub = Model(), four_kinds(P)
    with global_scope(P, S0, buffers=False) as scope:
        m.sub = sub
        before = collectives.traffic.sent, collectives.traffic.received
        if rank == 0:  # where anything were sent the other ranks would be missed
            Console(file=io.StringIO()).print(scope)
            assert str(scope)
            assert repr(scope)
            assert [scope.converted, scope.kept, scope.left, scope.seconds, scope.sent]
        assert (collectives.traffic.sent, collectives.traffic.received) == before


def test_as_text(P, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    m, sub, odd = Model(), four_kinds(P), linear(A)
    with global_scope(P, {"*bias": None, "*": S0}) as scope:
        m.sub = sub
        m.add_module("[red]odd[/red]", odd)
    text = str(scope)
    assert "\x1b" not in text
    lines = text.splitlines()
    assert lines[0].startswith(f"global_scope({P}, {{'*bias': None, '*': split(dim=0)}}): 3 conv")
    assert f"3 converted ({sum(one.nbytes for one in scope.converted)} bytes here)" in lines[0]
    assert "1 kept, 1 left local" in lines[0]
    rows = {line.split()[0]: line for line in lines if line.split()}
    weight = rows["[red]odd[/red].weight"].split()
    nbytes = scope.converted[2].nbytes
    assert weight[1:] == [
        "Linear",
        "parameter",
        "(8,",
        "4)",
        "float32",
        "split(dim=0)",
        f"{nbytes}",
    ]
    assert rows["sub.old"].split()[-1] == "broadcast"
    assert rows["sub.bias"].endswith("the rule '*bias' of sbp says None")
    assert f"2 x split(dim=0) on {P}: " in text
    assert f"1 x broadcast on {P}: 128 bytes here" in text, "the buffer"


def test_in_one_line(P):
    m = Model()
    with global_scope(P, S0) as scope:
        m.new = parameter(A)
        assert repr(scope).endswith("open: 1 converted, 0 kept, 0 left local>")
    assert repr(scope) == (
        f"<global_scope({P}, split(dim=0)), closed: 1 converted, 0 kept, 0 left local>"
    )


def test_a_long_text_is_cut(P):
    m, many = Model(), Model()
    for at in range(23):
        many.register_parameter(f"p{at}", parameter(counted(8)))
    with global_scope(P, S0) as scope:
        m.sub = many
    text = str(scope)
    assert "sub.p19 " in text
    assert "sub.p20 " not in text
    assert "and 3 more" in text
    assert "23 x split(dim=0)" in text


def test_an_empty_record(P):
    with global_scope(P, B) as scope:
        pass
    assert "0 converted (0 bytes here), 0 kept, 0 left local" in str(scope)
    assert len(str(scope).splitlines()) == 1


def test_rich_draws_tables(P):
    m = Model()
    with global_scope(P, S0) as scope:
        m.new = parameter(A)
    file = io.StringIO()
    Console(file=file, width=120, force_terminal=False).print(scope)
    assert "┃ path" in file.getvalue()
    assert "│ new" in file.getvalue()
