"""What a browser would fetch from the network is found in a built page, and links are not."""

from __future__ import annotations

import sys

import pytest

from tools import check_site

pytestmark = pytest.mark.ranks(1)

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
