"""``tools/``: where no Python fits, ``venv.sh`` says what there are wheels for, and a way.

And what a browser would fetch from the network is found in a built page, and links are not.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools import check_site

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


FETCHED = {
    "a script": '<script src="https://cdn.example/a.js"></script>',
    "by the page's scheme": '<img src="//cdn.example/a.png">',
    "a style": '<link rel="stylesheet" href="https://fonts.example/css">',
    "a hint to connect": '<link rel="preconnect" href="https://fonts.example">',
    "in a style": "<style>@font-face { src: url('https://fonts.example/a.woff') }</style>",
    "an import in a style": '<style>@import "https://fonts.example/a.css"</style>',
    "in an svg": '<svg><image href="https://cdn.example/a.png"/></svg>',
}
FOLLOWED = """
<a href="https://example.org">a link</a> <img src="pictures/a.svg"> <script src="a.js"></script>
<link rel="canonical" href="https://example.org/"> <svg xmlns="http://www.w3.org/2000/svg"></svg>
<style>.a { background: url(a.png) }</style>
"""


def code_of(tmp_path, monkeypatch, text: str) -> int:
    (tmp_path / "page.html").write_text(text)
    monkeypatch.setattr(sys, "argv", ["check_site", str(tmp_path)])
    return check_site.main()


@pytest.mark.parametrize("what", FETCHED)
def test_what_is_fetched_is_an_error(tmp_path, monkeypatch, capsys, what):
    assert code_of(tmp_path, monkeypatch, FOLLOWED + FETCHED[what]) == 1
    assert "page.html: would fetch " in capsys.readouterr().err


def test_links_and_what_lies_beside_the_page_are_none(tmp_path, monkeypatch):
    assert code_of(tmp_path, monkeypatch, FOLLOWED) == 0


def test_a_style_sheet_is_looked_at_too(tmp_path, monkeypatch):
    (tmp_path / "a.css").write_text("@import url(//fonts.example/a.css);")
    assert code_of(tmp_path, monkeypatch, FOLLOWED) == 1


def test_a_site_without_pages_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["check_site", str(tmp_path)])
    assert check_site.main() == 1
