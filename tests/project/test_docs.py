"""The code of the documentation runs, and prints what the pages say."""

from __future__ import annotations

import re

import pytest
from markdown_it import MarkdownIt

import autoglobal
from autoglobal import describe
from tests.helpers.doc_pages import (
    PAGES,
    ROOT,
    is_as_shown,
    model_of_the_readme,
    parts_of,
    programs_of,
    run,
)

PARTS = [part for page in PAGES for part in parts_of(page) if part.blocks]
NOT_RUN = 2  # blocks of Python that are only to be read


# The pages are about OneFlow 0.9.0, where an optimizer keeps its Parameters.
@pytest.mark.in_place
@pytest.mark.parametrize(
    "part",
    [pytest.param(part, id=str(part), marks=pytest.mark.ranks(part.ranks)) for part in PARTS],
)
def test_a_page_runs_and_prints_what_it_says(rank, part):
    for line, shown, printed in run(part):
        if rank == 0:
            assert is_as_shown(shown, printed), f"{part.page}, line {line}, prints:\n{printed}"


@pytest.mark.ranks(1)
def test_every_block_is_run_or_says_why_it_is_not():
    texts = [page.read_text() for page in PAGES]
    tokens = [token for text in texts for token in MarkdownIt().parse(text)]
    programs = [program for token in tokens for program in programs_of(token)]
    snippets = [path for text in texts for path in re.findall(r"--8<--\n(\S+\.py)\n", text)]
    run_here = sum(not output for part in PARTS for _, _, output in part.blocks)
    assert len(programs) == run_here + len(snippets) + NOT_RUN
    assert {part.ranks for part in PARTS} == {2, 4}, "the tests run on 1, 2 and 4 ranks"
    # The examples have tests of their own.
    assert [path for path in snippets if not (ROOT / path).exists()] == []


@pytest.mark.ranks(1)
def test_the_reference_has_every_public_name():
    listed = re.findall(r"^::: autoglobal\.(\w+)$", (ROOT / "docs/reference.md").read_text(), re.M)
    assert set(autoglobal.__all__) - set(listed) == {"__version__"}


@pytest.mark.ranks(1)
def test_every_example_is_shown_in_a_page():
    texts = "".join(page.read_text() for page in PAGES)
    examples = {f"examples/{path.name}" for path in (ROOT / "examples").glob("*.py")}
    # The demo is what the README and the tutorial begin with.
    assert {path for path in examples if path not in texts} <= {"examples/extend_global_model.py"}


@pytest.mark.in_place
@pytest.mark.ranks(2)
def test_the_picture_of_the_readme_is_what_the_library_draws(rank, tmp_path):
    """``make docs`` draws it anew."""
    report = describe(model_of_the_readme())
    if rank == 0:
        report.draw(tmp_path / "drawn.svg")
        assert (tmp_path / "drawn.svg").read_text() == (ROOT / "docs/readme.svg").read_text()


@pytest.mark.ranks(1)
def test_links_between_files_of_the_repository_lead_somewhere():
    for page in [*ROOT.glob("*.md"), ROOT / "benchmarks/README.md", ROOT / "examples/README.md"]:
        for link in re.findall(r"\]\(([^)#]+)", page.read_text()):
            assert ":" in link or (page.parent / link).exists(), f"{page.name}: {link}"


@pytest.mark.ranks(1)
@pytest.mark.parametrize("page", ["docs/how-it-works.md", "CONTRIBUTING.md"])
def test_the_files_that_are_to_be_opened_are_there(page):
    named = re.findall(r"`((?:\w+/)+\w*(?:\.\w+)?)`", (ROOT / page).read_text())
    assert named
    assert [one for one in named if not (ROOT / one).exists()] == []


@pytest.mark.ranks(1)
def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 160
