"""The code of the documentation runs, and prints what the pages say."""

from __future__ import annotations

import re

import pytest
from markdown_it import MarkdownIt

import autoglobal
from tests.helpers.doc_pages import PAGES, ROOT, is_as_shown, is_python, parts_of, run

PARTS = [part for page in PAGES for part in parts_of(page) if part.blocks]
NOT_RUN = 1  # blocks of Python that are only to be read


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
    fences = [token for text in texts for token in MarkdownIt().parse(text) if is_python(token)]
    snippets = [path for text in texts for path in re.findall(r"--8<--\n(\S+\.py)\n", text)]
    run_here = sum(not output for part in PARTS for _, _, output in part.blocks)
    assert len(fences) == run_here + len(snippets) + NOT_RUN
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
