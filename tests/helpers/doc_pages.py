"""The code blocks of the documentation, and what it says that they print.

A ``diff`` block is two programs, the one before and the one after, and both are run.
In a page, ``<!-- ranks: 4 -->`` gives the number of ranks for the blocks below it, which share a
namespace; a page begins with 2. ``<!-- not run: why -->`` stands above a block that is only to be
read. A ``text title="rank 0"`` block is what rank 0 has printed since the one before; ``...`` in it
stands for anything. On each number of ranks ``python -m autoglobal.commands.launcher --ranks 2
-- -m tests.helpers.doc_pages`` writes there what is printed now.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import oneflow as flow
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("README*.md"))]
OUTPUT = 'text title="rank 0"'
# The READMEs show fragments: what stands around them in a program.
SETUP = """
import oneflow as flow
from oneflow import nn
from autoglobal import *

P = placement = flow.placement("cpu", ranks=list(range(flow.env.get_world_size())))
B, S0, S1 = flow.sbp.broadcast, flow.sbp.split(0), flow.sbp.split(1)
mlp = nn.Sequential()
mlp.up, mlp.down = nn.Linear(4, 8), nn.Linear(8, 4)
model = nn.Sequential(nn.Linear(4, 4)).to_global(P, B)
optimizer = flow.optim.SGD(model.parameters(), lr=0.1)
x = flow.ones(2, 4)
load_teacher = lambda: nn.Linear(4, 4)
"""


@dataclass
class Part:
    """The blocks of a page that run together: their lines, their text, and whether it is output."""

    page: Path
    ranks: int
    blocks: list[tuple[int, str, bool]] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)} on {self.ranks}"


def parts_of(page: Path) -> Iterator[Part]:
    """What of a page is to be run."""
    part, skip = Part(page, 2), False
    for token in MarkdownIt().parse(page.read_text()):
        if token.type == "html_block" and (ranks := re.match(r"<!-- ranks: (\d) ", token.content)):
            yield part
            part = Part(page, int(ranks[1]))
        elif token.type == "fence":
            line = token.map[0] + 2
            if token.info.strip() == OUTPUT:
                part.blocks.append((line, token.content, True))
            elif not skip and "--8<--" not in token.content:
                part.blocks += [(line, program, False) for program in programs_of(token)]
        skip = token.type == "html_block" and token.content.startswith("<!-- not run: ")
    yield part


def programs_of(token) -> list[str]:
    """The Python of a block: of a diff both sides, with their lines where they stand in it."""
    if token.type == "fence" and token.info.strip() == "diff":
        return [
            "".join(line[1:] if line[0] in f" {side}" else "\n" for line in lines)
            for lines in [token.content.splitlines(keepends=True)]
            for side in "-+"
        ]
    return [token.content] if token.info.strip().startswith(("py", "Py")) else []


def model_of_the_readme() -> object:
    """The model that README's diff leaves behind, which README shows a picture of."""
    (part,) = [part for part in parts_of(ROOT / "README.md") if part.blocks]
    names: dict = {}
    list(run(Part(part.page, part.ranks, part.blocks[:2]), names))
    return names["model"]


def run(part: Part, names: dict | None = None) -> Iterator[tuple[int, str, str]]:
    """Run a part in an empty folder; yield for each output its line, what is shown and what is so.

    ``names`` is the namespace. A block that fails names its page and line, as a program does.
    """
    names = {} if names is None else names
    names["__name__"] = "__main__"
    if part.page.parent == ROOT:
        exec(SETUP, names)
    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, _inside(folder):
        for line, text, output in part.blocks:
            if output:
                yield line, text, printed.getvalue()
                printed = io.StringIO()
                continue
            code = compile("\n" * (line - 1) + text, str(part.page), "exec")
            with contextlib.redirect_stdout(printed):
                exec(code, names)


@contextlib.contextmanager
def _inside(folder: str) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def is_as_shown(shown: str, printed: str) -> bool:
    printed = re.sub(r" +$", "", printed, flags=re.M)
    return doctest.OutputChecker().check_output(shown, printed, doctest.ELLIPSIS)


def main() -> None:
    """Write into the pages what the blocks for this number of ranks print."""
    for part in (part for page in PAGES for part in parts_of(page)):
        if part.blocks and part.ranks == flow.env.get_world_size():
            lines = part.page.read_text().splitlines(keepends=True)
            # From below, so that the lines above stay where they are.
            for line, shown, printed in reversed(list(run(part))):
                if not is_as_shown(shown, printed):
                    lines[line - 1 : line - 1 + shown.count("\n")] = [printed]
            if flow.env.get_rank() == 0:
                part.page.write_text("".join(lines))


if __name__ == "__main__":
    main()
