"""Makes the pictures of the documentation with the library, from the models of its pages.

On 2 ranks and on 4: ``python -m autoglobal.commands.launcher --ranks 2 -- docs/pictures.py``
writes into docs/pictures what the blocks for that number of ranks have built.
"""

from __future__ import annotations

import io
import re
import shutil

import oneflow as flow
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from autoglobal import describe
from autoglobal.report import svg
from tests.helpers.doc_pages import ROOT, model_of_the_readme, parts_of, run

PICTURES = ROOT / "docs" / "pictures"
WORLD = flow.env.get_world_size()
# rich's own would have a browser fetch a font.
FORMAT = re.sub(r"@font-face \{\{.*?\n    \}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.S).replace(
    "font-family: Fira Code, monospace", "font-family: ui-monospace, Menlo, Consolas, monospace"
)
# What happens, and where it can end otherwise.
FLOW = (
    ("model.head = nn.Linear(16, 4)", "or register_parameter, register_buffer, add_module", ""),
    ("hook", "is it a Tensor or a Module? is a scope in force here?", "no: OneFlow alone"),
    ("plan", "what in it is local? which sbp does each get? can it?", "it cannot: ConversionError"),
    ("register", "OneFlow's own method, which may refuse", "refused: OneFlow's own error"),
    ("agree", "one small message to rank 0 and one back", "they differ: DivergenceError on all"),
    ("convert", "equal copies: each rank cuts its part; else the first rank sends", ""),
    ("record", "scope.converted, and the log", ""),
)


def model_of(name: str) -> object:
    """The ``model`` that the blocks of a page for this number of ranks leave behind."""
    names: dict = {}
    for part in parts_of(ROOT / "docs" / name):
        if part.ranks == WORLD and part.blocks:
            list(run(part, names))
    return names["model"]


def in_a_terminal(report: object, name: str) -> None:
    """What a terminal shows of it."""
    console = Console(file=io.StringIO(), record=True, width=112, force_terminal=True)
    console.print(report)
    picture = console.export_svg(title="", code_format=FORMAT, unique_id=name)
    (PICTURES / f"{name}.svg").write_text(picture)


def flow_of_an_assignment() -> str:
    """The picture of how it works, the same style as ``describe(...).draw``."""
    canvas, wide, high, step = svg.Canvas(), 470, 44, 68
    for i, (title, text, otherwise) in enumerate(FLOW):
        top = 14 + i * step
        canvas.box(14, top, wide, high, "panel", rx="5")
        canvas.text(26, top + 18, title, "strong", size=13)
        canvas.text(26, top + 35, text, "soft", size=11)
        if otherwise:
            canvas.text(wide + 22, top + 27, f"→ {otherwise}", "warn", size=11)
        if i:
            canvas.text(14 + wide / 2, top - 7, "↓", size=15, **{"text-anchor": "middle"})
    return svg.page(
        canvas, 750, 14 + len(FLOW) * step - 10, "From an assignment to a global tensor"
    )


def copied_benchmarks() -> str:
    """Copy the pictures that ``make bench`` has made, and show them."""
    results = ROOT / "benchmarks" / "results"
    found = sorted(results.glob("*.svg"))
    for path in found:
        shutil.copy(path, PICTURES)
    shown = [f"![{path.stem}](pictures/{path.name})\n" for path in found]
    return "\n".join(shown) or "Nothing has been measured in this checkout.\n"


def main() -> None:
    if WORLD == 2:
        reports = {"describe": "index.md", "tutorial": "tutorial.md"}
    else:
        reports = {"model": "tutorial.md"}
    found = {name: describe(model_of(where)) for name, where in reports.items()}
    of_the_readme = describe(model_of_the_readme()) if WORLD == 2 else None
    if flow.env.get_rank() != 0:
        return
    PICTURES.mkdir(exist_ok=True)
    for name, report in found.items():
        if WORLD == 2:
            in_a_terminal(report, name)
        else:
            report.draw(PICTURES / f"{name}.svg")
    if of_the_readme is not None:
        of_the_readme.draw(ROOT / "docs" / "readme.svg")  # the one that is in the repository
    (PICTURES / "flow.svg").write_text(flow_of_an_assignment())
    (PICTURES / "benchmarks.md").write_text(copied_benchmarks())


if __name__ == "__main__":
    main()
