"""``tools/venv.sh`` where no Python fits: one message with what there are wheels for, and a way."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.ranks(1)


def refused(folder: Path, **env: str) -> str:
    run = subprocess.run(
        ["bash", str(ROOT / "tools" / "venv.sh"), str(folder / "venv")],
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), **env},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1
    assert not (folder / "venv").exists()
    assert "CPython 3.7 to 3.10" in run.stderr
    assert "Linux x86_64" in run.stderr
    return run.stderr


def command(folder: Path, name: str, text: str) -> str:
    """A folder for PATH that holds this command and no other."""
    place = folder / "bin"
    place.mkdir(exist_ok=True)
    (place / name).write_text(f"#!/bin/sh\n{text}\n")
    (place / name).chmod(0o755)
    return f"{place}{os.pathsep}/usr/bin{os.pathsep}/bin"


def test_an_interpreter_that_is_named_and_does_not_run(tmp_path):
    message = refused(tmp_path, PYTHON="/nowhere/python3.10")
    assert "PYTHON=/nowhere/python3.10" in message
    assert "make PYTHON=" in message


def test_a_shim_that_is_on_the_path_and_fails(tmp_path):
    path = command(tmp_path, "python3.10", "exit 127")
    for name in ("python3.9", "pyenv", "uv"):
        command(tmp_path, name, "exit 127")
    assert "No usable Python found" in refused(tmp_path, PATH=path)


def test_another_platform(tmp_path):
    path = command(tmp_path, "uname", '[ "$1" = -s ] && echo Darwin; [ "$1" = -s ] || echo arm64')
    assert "This is Darwin" in refused(tmp_path, PATH=path)
