"""``describe``: a row for each tensor, the same facts that the tensor itself gives.

The report as people see it, in a pipe, a terminal of any width, a notebook; a tensor that a module
holds under several names is one row of it.
"""

from __future__ import annotations

import gc
import json
import math
import os
import sys
import threading
import weakref

import oneflow as flow
import pytest
from oneflow import nn
from rich.console import Console

from autoglobal import Report, SpecTypeError, auto_global, describe, global_scope, local_to_global
from tests.helpers.support import (
    S0,
    S1,
    B,
    Model,
    Snapshot,
    counted,
    linear,
    parameter,
    tensor,
    tensors,
)
from tests.helpers.trees import globally, mixed

PS = flow.sbp.partial_sum


def test_the_rows_are_in_the_order_of_the_module(P):
    report = describe(mixed(P))
    found = [(row.path, row.owner, row.kind, row.is_global) for row in report]
    assert found == [
        ("old", "Model", "parameter", True),
        ("new", "Model", "parameter", False),
        ("seen", "Model", "buffer", False),
        ("sub.lin.weight", "Linear", "parameter", False),
        ("sub.lin.bias", "Linear", "parameter", False),
    ]
    assert report.rows == tuple(report)
    assert len(report) == 5
    assert report.module == "Model"


def test_a_local_tensor(P, rank):
    row = describe(mixed(P))["seen"]
    assert (row.shape, row.component, row.nbytes) == ((3,), (3,), 12)
    assert (row.placement, row.sbp, row.dtype) == (None, None, flow.float32)
    assert row.device == str(tensor(counted(1)).device)


@pytest.mark.parametrize("sbp", [B, S0, S1, PS], ids=str)
@pytest.mark.parametrize("shape", [(8, 4), (5, 7)], ids=str)
def test_the_component_is_what_the_rank_holds(P, shape, sbp):
    m = Model()
    m.new = globally(counted(*shape), P, sbp)
    row = describe(m)["new"]
    assert (row.shape, row.placement, row.sbp) == (shape, P, (sbp,))
    assert row.component == tuple(m.new.to_local().shape)
    assert row.nbytes == m.new.to_local().numel() * 4
    assert row.device is None


@pytest.mark.ranks(4)
@pytest.mark.parametrize("sbp", [(S0, S0), (S0, S1), (B, S1), (PS, S0)], ids=str)
def test_the_component_on_a_mesh(sbp):
    m, mesh = Model(), flow.placement("cpu", [[0, 1], [2, 3]])
    m.new = nn.Parameter(tensor(counted(7, 6)).to_global(mesh, (B, B)).to_global(mesh, sbp))
    row = describe(m)["new"]
    assert row.component == tuple(m.new.to_local().shape)
    assert row.to_dict()["placement"] == {"type": "cpu", "ranks": [[0, 1], [2, 3]]}


@pytest.mark.ranks(2, 4)
def test_a_rank_that_the_placement_leaves_out(rank, world):
    m, last = Model(), flow.placement("cpu", [world - 1])
    m.new = globally(counted(8, 4), last, B)
    report = describe(m)
    here = rank == world - 1
    assert report["new"].shape == (8, 4)
    assert report["new"].component == ((8, 4) if here else (0,))
    assert report["new"].nbytes == report.totals[0].nbytes == (128 if here else 0)
    assert report.totals[0].logical_nbytes == 128


def test_dtypes_shapes_and_flags(P):
    m = Model()
    with global_scope(P, B):
        m.short = parameter(counted(3, 5), flow.bfloat16)
        m.frozen = parameter(counted(3), requires_grad=False)
        m.dot = nn.Parameter(tensor(counted(1)).sum().detach())
        m.empty = parameter(counted(0, 4))
        m.register_buffer("kept", tensor(counted(2), flow.int64))
        m.register_buffer("tmp", tensor(counted(2)), persistent=False)
        m.register_buffer("none", None)
    rows = describe(m)
    assert [row.path for row in rows] == ["short", "frozen", "dot", "empty", "kept", "tmp"]
    assert [row.nbytes for row in rows] == [30, 12, 4, 0, 16, 8]
    assert [row.shape for row in rows] == [(3, 5), (3,), (), (0, 4), (2,), (2,)]
    assert [row.saved for row in rows] == [True] * 5 + [False]
    assert [row.requires_grad for row in rows] == [True, False, True, True, False, False]
    assert "buffer, not saved" in rows.text()
    assert "parameter, frozen" in rows.text()


def test_totals_for_each_placement_and_for_what_is_local(P):
    m = mixed(P)
    m.also = m.old  # counted once
    first, second = describe(m).totals
    assert (first.placement, first.tensors, first.nbytes) == (P, 1, 128)
    assert (second.placement, second.tensors, second.nbytes) == (None, 4, 128 + 12 + 128 + 32)
    assert sum(total.nbytes for total in (first, second)) == sum(row.nbytes for row in describe(m))


def test_to_dict_is_json_and_says_the_same(P, rank, world):
    m = mixed(P)
    m.mask = tensor(counted(2))
    report = describe(m)
    told = json.loads(json.dumps(report.to_dict()))
    assert (told["module"], told["rank"], told["world_size"]) == ("Model", rank, world)
    old, new = told["rows"][:2]
    assert old["placement"] == {"type": "cpu", "ranks": list(range(world))}
    assert (old["sbp"], old["dtype"], old["device"]) == (["broadcast"], "float32", None)
    assert (new["placement"], new["sbp"], new["global"]) == (None, None, False)
    assert [row["nbytes"] for row in told["rows"]] == [row.nbytes for row in report]
    assert [row["path"] for row in told["attributes"]] == ["mask"]
    assert told["warnings"][0]["paths"] == ["new", "seen", "sub.lin.weight", "sub.lin.bias"]
    assert [total["tensors"] for total in told["totals"]] == [1, 4]


def test_looking_on_one_rank_changes_and_sends_nothing(P, rank, world, tmp_path):
    """A rank that looks alone would wait for ever for anything that it asked the others."""
    m = mixed(P)
    m.split = globally(counted(world + 1, 3), P, S0)
    m.bn = nn.BatchNorm1d(4)
    before = Snapshot(m)
    if rank == world - 1:
        report = describe(m)
        str(report), report.to_dict(), report._repr_html_()
        report.draw(tmp_path / "m.svg")
        assert report["split"].component == (math.ceil((world + 1) / world) - (world > 1), 3)
    before.assert_unchanged()
    assert tensors(m)["split"].to_global(P, B).to_local().shape[0] == world + 1


def test_looking_from_another_thread(P):
    m, found = mixed(P), []
    thread = threading.Thread(target=lambda: found.append(describe(m)))
    thread.start()
    thread.join()
    assert found == [describe(m)]


class Hostile(nn.Module):
    def __getattr__(self, name):
        raise RuntimeError(f"asked for {name}")

    def __eq__(self, other):
        raise RuntimeError("compared")

    __hash__ = None

    def __repr__(self):
        raise RuntimeError("shown")

    __str__ = __iter__ = __len__ = __bool__ = __repr__


class HostileList(list):
    def __iter__(self):
        raise RuntimeError("iterated over")

    __repr__ = __eq__ = __bool__ = __iter__


def test_the_code_of_a_users_class_is_not_called(P):
    m = Model()
    m._modules["bad"] = Hostile()
    m._modules["bad"]._parameters["new"] = globally(counted(4), P, B)
    m.__dict__["plain"] = HostileList([Hostile(), tensor(counted(2))])
    report = describe(m)
    assert [row.path for row in report] == ["bad.new"]
    assert [row.path for row in report.attributes] == ["plain[1]"]
    assert "bad.new" in str(report)


def test_a_module_whose_init_has_not_run(P):
    m = Model()
    m._modules["bare"] = nn.Module.__new__(Model)
    m._modules["none"] = None
    assert len(describe(m)) == len(describe(nn.Module.__new__(Model))) == 0
    assert describe(m).totals == describe(m).warnings == ()


@auto_global
class Follower(nn.Module):
    pass


def test_inside_of_a_scope_and_on_a_decorated_class(P):
    with global_scope(P, B):
        m = Follower()
        m.new = parameter(counted(4))
        assert describe(m)["new"].is_global


def test_the_report_is_of_that_moment_and_keeps_nothing_alive(P):
    m = mixed(P)
    report, gone = describe(m), weakref.ref(m)
    local_to_global(m, P, B)
    assert not report["new"].is_global
    assert describe(m)["new"].is_global
    del m
    gc.collect()
    assert gone() is None
    assert isinstance(report, Report)


def test_what_is_no_module_is_refused():
    class Graph(nn.Graph):
        pass

    model = "module=<class .*Model'>. Write describe for an instance of it"
    for given, words in ((tensor(counted(2)), "Tensor"), (Model, model), (None, "module=None")):
        with pytest.raises(SpecTypeError, match=words):
            describe(given)
    with pytest.raises(SpecTypeError, match="Write describe for the module in it"):
        describe(Graph())


CODE = "\x1b"


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_plain_text_has_a_line_for_each_tensor(P, rank, world):
    lines = describe(mixed(P)).text().splitlines()
    assert lines[0] == f"Model: 5 tensors, rank {rank} of {world}"
    header, _, old, new = [cells(line) for line in lines if line.startswith("|")][:4]
    where = f"cpu [{', '.join(map(str, range(world)))}]"
    assert dict(zip(header, old)) == {
        **{"path": "old", "class": "Model", "kind": "parameter", "dtype": "float32"},
        **{"shape": "(8, 4)", "here": "(8, 4)", "bytes here": "128"},
        **{"placement": where, "sbp": "broadcast"},
    }
    assert new[6].startswith("local, cpu:")
    assert new[7] == "-"
    assert f"{where}: 1 tensor, 128 bytes here, 128 bytes logical" in lines
    assert lines[lines.index("Warnings:") + 1].startswith("- local, while 1 of")


def test_no_colour_codes_in_a_pipe(P, monkeypatch):
    read, write = os.pipe()
    with os.fdopen(write, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        print(describe(mixed(P)))
    with os.fdopen(read) as end:
        text = end.read()
    assert CODE not in text
    assert text.isascii()
    assert text == describe(mixed(P)).text() + "\n"


@pytest.mark.parametrize("columns", [80, 200])
def test_a_table_of_lines_in_a_terminal(P, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    controller, terminal = os.openpty()
    with os.fdopen(terminal, "w", encoding="utf-8") as screen:
        monkeypatch.setattr(sys, "stdout", screen)
        shown, prompted = str(describe(mixed(P))), repr(describe(mixed(P)))
        text = describe(mixed(P)).text()
    os.close(controller)
    assert CODE in shown
    assert "╭" in shown
    assert "sub.lin.weight" in shown
    assert prompted == shown
    assert CODE not in text


@pytest.mark.parametrize("width", [30, 80, 100, 200])
def test_no_width_loses_anything(P, width):
    m = mixed(P)
    m.register_buffer("a" * 50, tensor(counted(2)))
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    with console.file:
        console.print(describe(m))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert text.count("a") >= 50
    for word in ("parameter", "broadcast", "float32") if width > 30 else ():
        assert word in text


def test_a_notebook_gets_html(P):
    html = describe(mixed(P))._repr_html_()
    assert html.startswith("<pre")
    assert "sub.lin.weight" in html
    assert CODE not in html
    lines = {
        path: next(line for line in html.splitlines() if path in line) for path in ("old", "new")
    }
    assert "color: #808000" in lines["new"], "what is local beside global ones stands out"
    assert "color: #808000" not in lines["old"]


def test_names_are_shown_and_not_interpreted():
    m = Model()
    m._parameters["[red]x[/red]\x1b[31m\n<b>"] = parameter(counted(2))
    for text in (describe(m).text(), describe(m)._repr_html_()):
        assert CODE not in text
        assert "[red]x[/red]\\x1b[31m\\n" in text
    assert "<b>" not in describe(m)._repr_html_()
    assert len(describe(m).text().splitlines()) == 7


def test_many_names_of_one_tensor():
    m = Model()
    m.p0 = parameter(counted(2))
    for index in range(1, 9):
        setattr(m, f"p{index}", m.p0)
    assert "p0 (also p1, p2, p3, 5 more)" in describe(m).text()


def test_a_module_that_holds_nothing():
    assert describe(nn.ReLU()).text().startswith("ReLU: 0 tensors, rank")


def test_a_tensor_is_shown_once_with_its_other_names():
    m = Model()
    m.table, m.head = Model(), Model()
    m.table.weight = m.head.weight = m.own = parameter(counted(4, 4))
    report = describe(m)
    (row,) = report
    assert (row.path, row.tied) == ("own", ("table.weight", "head.weight"))
    assert report["head.weight"] is row
    assert "own (also table.weight, head.weight)" in report.text()
    with pytest.raises(KeyError):
        report["head"]


def test_a_module_under_two_names():
    m = Model()
    m.encoder = Model()
    m.encoder.lin = linear(counted(2, 2))
    m.decoder = m.encoder
    (row,) = describe(m)
    assert (row.path, row.tied) == ("encoder.lin.weight", ("decoder.lin.weight",))


def test_a_way_back_up_is_no_other_name():
    m = Model()
    m.sub = Model()
    m.sub.new = parameter(counted(2))
    m.sub._modules["parent"], m._modules["me"] = m, m
    (row,) = describe(m)
    assert (row.path, row.tied) == ("sub.new", ())


def test_modules_shared_over_and_over():
    top = current = Model()
    for _ in range(60):  # with 2 ** 60 ways to the last
        below = Model()
        current.a = current.b = below
        current = below
    current.new = parameter(counted(2))
    (row,) = describe(top)
    assert row.path == ".".join(["a"] * 60 + ["new"])
    assert 1 <= len(row.tied) <= 60


def test_a_buffer_that_is_a_parameter_elsewhere():
    m, p = Model(), parameter(counted(2))
    m.first, m.second = Model(), Model()
    m.first._buffers["seen"] = m.second.new = p
    m.first._non_persistent_buffers_set.add("seen")
    (row,) = describe(m)
    assert (row.path, row.tied) == ("first.seen", ("second.new",))
    assert (row.kind, row.saved) == ("parameter", True)
