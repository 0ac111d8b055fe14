"""A scope's record as text, in one line, and as rich prints it."""

from __future__ import annotations

import io

from rich.console import Console

from autoglobal import global_scope
from autoglobal.ranks import collectives as ranks
from tests.helpers.support import S0, B, Model, counted, linear, parameter
from tests.helpers.trees import four_kinds

A = counted(8, 4)


def test_reading_tells_the_others_nothing(P, rank):
    m, sub = Model(), four_kinds(P)
    with global_scope(P, S0, buffers=False) as scope:
        m.sub = sub
        before = ranks.traffic.sent, ranks.traffic.received
        if rank == 0:  # where anything were sent the other ranks would be missed
            Console(file=io.StringIO()).print(scope)
            assert str(scope)
            assert repr(scope)
            assert [scope.converted, scope.kept, scope.left, scope.seconds, scope.sent]
        assert (ranks.traffic.sent, ranks.traffic.received) == before


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
