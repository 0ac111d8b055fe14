"""Where autoglobal raises and warns, found in its source, and what an error must say."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Optional

import autoglobal

PACKAGE = Path(autoglobal.__file__).parent


class Site(NamedTuple):
    """A line on which an error or a warning begins, and the function around it."""

    file: str
    function: str
    line: int

    @property
    def where(self) -> str:
        return f"{self.file} {self.function}".strip()


class Told(NamedTuple):
    """What somebody is told."""

    kind: type[BaseException]
    text: str
    site: Optional[Site]


def _walk(file: str, node: ast.AST, function: str) -> Iterator[tuple[Site, int]]:
    for child in ast.iter_child_nodes(node):
        inner = function
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            inner = f"{function}.{child.name}" if function else child.name
        ours = isinstance(child, ast.Raise) and child.exc is not None
        call = ast.unparse(child.func) if isinstance(child, ast.Call) else ""
        if ours or call in ("warnings.warn", "os._exit"):
            yield Site(file, function, child.lineno), child.end_lineno or child.lineno
        yield from _walk(file, child, inner)


def _of_file(path: Path) -> dict[Site, range]:
    found = _walk(path.name, ast.parse(path.read_text()), "")
    return {site: range(site.line, last + 1) for site, last in found}


SITES: dict[Site, range] = {
    site: lines for path in sorted(PACKAGE.rglob("*.py")) for site, lines in _of_file(path).items()
}


def _site_of(error: BaseException) -> Site | None:
    """Where in autoglobal it began; None where that was elsewhere."""
    found, step = None, error.__traceback__
    while step is not None:
        path = Path(step.tb_frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            found = next(
                (
                    site
                    for site, lines in SITES.items()
                    if site.file == path.name and step.tb_lineno in lines
                ),
                None,
            )
        step = step.tb_next
    return found


def told(action: Callable[[], object]) -> Told | None:
    """The error or the warning that ``action`` ends with, or None."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        try:
            action()
        except Exception as error:
            return Told(type(error), str(error), _site_of(error))
    return None


# What was expected, what was received, what to write: in these words or in others of these.
_PARTS = {
    "what was expected": r"Expected|\bmust (be|have|name|end)\b|decorates |has no option|only with"
    "|needs ",
    "what was received": r"Received|This rank \(rank \d+\): .*; rank \d+: |was closed ",
    "what to write": r"(^|[.;:] |, or )(Write|Use|Add|Make|Assign|Give|Leave|Look|Move|Correct)\b"
    r"|must be one of '|must be True or False|such as \S",
}


def missing(text: str) -> list[str]:
    """The parts that the text of an error lacks."""
    lacks = [part for part, words in _PARTS.items() if not re.search(words, text)]
    if not 40 < len(text) < 600 or "  " in text or "\n" in text or text.endswith("."):
        lacks.append("the form: a few sentences in one line, without a last full stop")
    return lacks
