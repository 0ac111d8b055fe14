"""Each program in examples/ runs on 2 ranks and prints what examples/README.md shows.

They run in the processes of this very test run, so that it starts no ranks for them: pytest's own
are two. All of them are found by themselves, and one that examples/README.md leaves out fails.
"""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
from pathlib import Path

import oneflow as flow
import pytest

import autoglobal

ROOT = Path(__file__).resolve().parents[2]
DEMO = "extend_global_model.py"  # prints on both ranks
NAMES = sorted(path.name for path in (ROOT / "examples").rglob("*.py"))
PIPELINE = "pipeline.py"  # is shown on four ranks
ON_FOUR = ("tensor_parallel.py", "several_machines.py", "graft_head.py", "lora.py")


def source(name: str) -> str:
    return (ROOT / "examples" / name).read_text()


def shown(name: str) -> str:
    """What examples/README.md says that an example prints."""
    section = re.search(rf"\n## {name}\n(.*?)(?=\n## |\Z)", source("README.md"), re.DOTALL)
    assert section, f"examples/README.md has no section ## {name}"
    blocks = re.findall(r"```text\n(.*?)```", section[1], re.DOTALL)
    assert len(blocks) == 1, f"the section ## {name} has to show what the example prints"
    return blocks[0]


def without_losses(text: str) -> str:
    """The text but for the losses, of three digits and more: another CPU may round otherwise."""
    return re.sub(r"\d+\.\d{3,}", "#.###", text)


def run(name: str) -> None:
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", [name for name in NAMES if name not in (DEMO, PIPELINE)])
def test_it_runs_and_prints_what_is_shown(rank, capsys, name):
    torch = sys.modules.get("torch")
    run(name)
    printed = capsys.readouterr().out
    if name == "on_cuda.py" and flow.cuda.is_available():  # what is shown is what a CPU gives
        assert bool(printed) == (rank == 0)
    else:
        assert without_losses(printed) == (without_losses(shown(name)) if rank == 0 else "")
    assert sys.modules.get("torch") is torch, "OneFlow is left under that name"


@pytest.mark.ranks(4)
@pytest.mark.parametrize("name", ON_FOUR)
def test_it_runs_on_four_ranks(rank, capsys, name):
    run(name)
    assert bool(capsys.readouterr().out) == (rank == 0)


@pytest.mark.ranks(2, 4)
def test_the_pipeline_runs_and_prints_what_is_shown(rank, world, capsys):
    run(PIPELINE)
    printed = capsys.readouterr().out
    expected = shown(PIPELINE)
    if world == 2:  # one rank for each stage
        expected = expected.replace("[0, 1]", "[0]").replace("[2, 3]", "[1]")
    assert without_losses(printed) == (without_losses(expected) if rank == 0 else "")


@pytest.mark.ranks(1)
def test_the_demo_prints_what_is_shown():
    """Oneflow-Inc/oneflow#8869; as a program, started as its users start it."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "autoglobal.commands.launcher"),
            *("--ranks", "2", "--limit", "100", "--", f"examples/{DEMO}"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "broadcast -> split(dim=0)" in done.stdout
    assert done.stdout == shown(DEMO)


@pytest.mark.ranks(1)
@pytest.mark.parametrize("name", NAMES)
def test_it_is_short_and_says_what_it_is(name):
    text = source(name)
    assert len(text.splitlines()) < 80
    first, _, rest = (ast.get_docstring(ast.parse(text)) or "").partition("\n")
    assert first.endswith(".")
    assert "python -m oneflow.distributed.launch" in rest
    assert f"examples/{name}" in rest
    assert f"]({name})" in source("README.md")


@pytest.mark.ranks(1)
@pytest.mark.parametrize("name", NAMES)
def test_it_takes_public_names_alone(name):
    tree = ast.parse(source(name))
    taken = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in taken if (node.module or "").startswith("autoglobal")]
    assert ours
    assert all(node.module == "autoglobal" for node in ours)
    names = {alias.name for node in ours for alias in node.names}
    assert names <= set(autoglobal.__all__)
