"""Every public name has a docstring, and the examples in the docstrings and the README run."""

from __future__ import annotations

import inspect
import re
import textwrap
import warnings
from pathlib import Path

import oneflow as flow
import pytest
from oneflow import nn

import autoglobal

ROOT = Path(__file__).resolve().parents[2]


def indented_blocks(text: str) -> list[str]:
    """The literal blocks after ``::`` of a docstring."""
    return [
        textwrap.dedent(block)
        for block in re.findall(r"::\n\n((?:[ ]+.*\n|\n)+)", inspect.cleandoc(text) + "\n")
    ]


def names() -> list[str]:
    return [name for name in autoglobal.__all__ if name != "__version__"]


@pytest.mark.parametrize("name", names())
def test_a_public_name_has_a_docstring(name):
    first = (inspect.getdoc(getattr(autoglobal, name)) or "").splitlines()[0]
    assert first.endswith((".", ":")), first


DOCUMENTED = {
    **{name: getattr(autoglobal, name) for name in names()},
    "Report.draw": autoglobal.Report.draw,
}
EXAMPLES = {
    f"{name} {at}": block
    for name, documented in DOCUMENTED.items()
    for at, block in enumerate(indented_blocks(inspect.getdoc(documented) or ""))
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_in_a_docstring_runs(P, example):
    scope = {
        **vars(autoglobal),
        **{"flow": flow, "nn": nn, "placement": P, "sbp": flow.sbp.broadcast},
        **{"model": nn.Linear(2, 2), "build_head": lambda: nn.Linear(2, 2)},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(compile(EXAMPLES[example], example, "exec"), scope)


def test_there_are_examples_for_what_people_call():
    assert {name.split()[0] for name in EXAMPLES} >= {
        *("global_scope", "local_scope", "current_scope"),
        *("auto_global", "local_to_global", "optimizer_to_global"),
        *("describe", "Report", "Report.draw"),
    }


@pytest.mark.parametrize("page", ["README.md", "docs/options.md"])
def test_every_option_is_in_the_pages(page):
    text = (ROOT / page).read_text()
    options = set(inspect.signature(autoglobal.global_scope).parameters) | set(
        inspect.signature(autoglobal.local_to_global).parameters
    )
    assert not [name for name in options - {"module"} if f"`{name}`" not in text]
