"""The launcher of the tests themselves: a rank that fails or hangs fails the run, and is shown."""

from __future__ import annotations

import sys

import pytest

from tools.launch import TIMED_OUT, launch

pytestmark = pytest.mark.ranks(1)


def program(tmp_path, text: str) -> list[str]:
    file = tmp_path / "program.py"
    file.write_text("import os, sys, time\nrank = int(os.environ['RANK'])\n" + text)
    return [str(file)]


def test_a_run_that_ends_well(tmp_path, capfd):
    argv = program(tmp_path, "print('rank', rank, 'of', os.environ['WORLD_SIZE'])")
    assert launch(2, argv, limit=60, show_all=True) == 0
    assert capfd.readouterr().out == "rank 0 of 2\nrank 1 of 2\n"


def test_a_rank_that_fails_is_shown(tmp_path, capfd):
    argv = program(tmp_path, "if rank == 1: sys.exit('own words')\ntime.sleep(60)")
    assert launch(2, argv, limit=60) not in (0, TIMED_OUT)
    assert "own words" in capfd.readouterr().err


def test_a_rank_that_hangs_ends_the_run(tmp_path, capfd):
    argv = program(tmp_path, "print('before', rank, flush=True)\nif rank == 1: time.sleep(60)")
    assert launch(2, argv, limit=4) == TIMED_OUT
    shown = capfd.readouterr()
    assert "not finished after 4 seconds" in shown.err
    assert "before 1" in shown.err


def test_the_interpreter_is_this_one(tmp_path, capfd):
    launch(1, program(tmp_path, "print(sys.executable)"), limit=60)
    assert capfd.readouterr().out.strip() == sys.executable
