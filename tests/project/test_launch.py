"""The launcher of ranks: a rank that fails or hangs fails the run, and is shown."""

from __future__ import annotations

import subprocess
import sys

import pytest

from autoglobal.commands.launcher import TIMED_OUT, launch

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


def test_what_made_a_rank_abort_stands_at_the_end(tmp_path, capfd):
    """A log of which only the end is kept has to tell it, whichever rank it was."""
    text = """
if rank == 0:
    print("all of rank 0", flush=True)
    time.sleep(60)
print("F20260101 00:00:00.1 2 transport.cpp:80] Check failed: size == 3", file=sys.stderr)
print("and much more\\n" * 100, file=sys.stderr, flush=True)
os.abort()
"""
    assert launch(2, program(tmp_path, text), limit=60) not in (0, TIMED_OUT)
    shown = capfd.readouterr().err
    assert "all of rank 0" in shown
    last = shown.splitlines()[-2:]
    assert last[0] == "--- rank 1, what ended it ---"
    assert last[1].endswith("Check failed: size == 3")


def test_a_rank_that_hangs_ends_the_run(tmp_path, capfd):
    argv = program(tmp_path, "print('before', rank, flush=True)\nif rank == 1: time.sleep(60)")
    assert launch(2, argv, limit=4) == TIMED_OUT
    shown = capfd.readouterr()
    assert "not finished after 4 seconds" in shown.err
    assert "before 1" in shown.err


def test_the_interpreter_is_this_one(tmp_path, capfd):
    launch(1, program(tmp_path, "print(sys.executable)"), limit=60)
    assert capfd.readouterr().out.strip() == sys.executable


def test_a_rank_that_uses_no_oneflow_is_not_waited_for(tmp_path, capfd):
    """Rank 0 then never listens, and the others start all the same."""
    argv = program(tmp_path, "if rank == 0: time.sleep(60)\nsys.exit('rank 1 came')")
    assert launch(2, argv, limit=20) not in (0, TIMED_OUT)
    assert "rank 1 came" in capfd.readouterr().err


@pytest.mark.parametrize("module", ["autoglobal.commands.launcher", "tests.run"])
def test_the_process_that_launches_does_not_import_oneflow(module):
    """OneFlow would set a single rank's variables there, which all that it starts would have."""
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", module, "--help"], capture_output=True, text=True
    )
    assert run.returncode == 0
    assert " argparse\n" in run.stderr
    assert "oneflow" not in run.stderr


def test_the_output_of_other_ranks_can_be_left_out(tmp_path):
    argv = program(tmp_path, "print('rank', rank)")
    run = subprocess.run(
        [
            *(sys.executable, "-m", "autoglobal.commands.launcher", "--first-rank-only"),
            *("--limit", "60", "--", *argv),
        ],
        capture_output=True,
        text=True,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "rank 0\n", "")
