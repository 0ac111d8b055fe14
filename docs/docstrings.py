"""For mkdocs: the docstrings are written for a terminal; here they become Markdown."""

from __future__ import annotations

import re
import textwrap

import griffe

EXAMPLE = re.compile(r"^( *)::\n\n((?:\1 {4}.*\n|\n)+)", re.M)
ROLE = re.compile(r":(?:class|func|data|attr|meth):`([\w.]+)`")


class Markdown(griffe.Extension):
    """Examples after ``::`` as Python, and the names of this package as links."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        """Called by griffe for every object that it has read."""
        if obj.docstring:
            text = EXAMPLE.sub(_fenced, obj.docstring.value + "\n")
            obj.docstring.value = ROLE.sub(_linked, text).rstrip()


def _fenced(found: re.Match[str]) -> str:
    code = textwrap.indent(textwrap.dedent(found[2]).strip("\n"), found[1])
    return f"{found[1]}```python\n{code}\n{found[1]}```\n\n"


def _linked(found: re.Match[str]) -> str:
    name = found[1]
    public = name.startswith("autoglobal.") and name.count(".") == 1
    return f"[`{name.rpartition('.')[2]}`][{name}]" if public else f"`{name}`"
