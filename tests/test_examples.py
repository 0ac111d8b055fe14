"""Each example runs on the ranks that it is written for, and says what the README says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Started by the one-rank run, since each starts ranks of its own.
pytestmark = pytest.mark.ranks(1)


def run(ranks: int, name: str) -> str:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tools.launch"),
            *("--ranks", str(ranks), "--limit", "100", "--", f"examples/{name}"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_demo_prints_what_the_readme_shows():
    """Oneflow-Inc/oneflow#8869"""
    printed = run(2, "extend_global_model.py")
    assert "broadcast -> split(dim=0)" in printed
    assert printed.strip() in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_block_split_by_rules_trains_as_the_local_one_does(ranks):
    printed = run(ranks, "tensor_parallel.py")
    assert "mlp.down.weight" in printed
