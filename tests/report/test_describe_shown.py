"""A report as people see it: in a pipe, a terminal of any width, a notebook."""

from __future__ import annotations

import os
import sys

import pytest
from oneflow import nn
from rich.console import Console

from autoglobal import describe
from tests.helpers.support import Model, counted, parameter, tensor
from tests.helpers.trees import mixed

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
    assert lines[lines.index("What will bite:") + 1].startswith("- local, while 1 of")


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
