"""For mkdocs: the docstrings are written for a terminal; here they become Markdown."""

from __future__ import annotations

import re
import textwrap
from dataclasses import Field

import griffe

from autoglobal.layout.spec import CALL_OPTIONS

EXAMPLE = re.compile(r"^( *)::\n\n((?:\1 {4}.*\n|\n)+)", re.M)
ROLE = re.compile(r":(?:class|func|data|attr|meth):`([\w.]+)`")


class Markdown(griffe.Extension):
    """Examples after ``::`` as Python, names of this package as links, and options one by one."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        """Called by griffe for every object that it has read."""
        if obj.docstring:
            text = EXAMPLE.sub(_fenced, obj.docstring.value + "\n")
            obj.docstring.value = ROLE.sub(_linked, text).rstrip()

    def on_function_instance(self, *, func: griffe.Function, **_: object) -> None:
        """Called by griffe for every function; ``**options`` are those that a call sees."""
        parameters = list(func.parameters)
        if any(str(one.annotation) == "Unpack[Options]" for one in parameters):
            keyword = griffe.ParameterKind.keyword_only
            options = [
                griffe.Parameter(one.name, annotation=one.type, kind=keyword, default=_shown(one))
                for one in CALL_OPTIONS
            ]
            own = [one for one in parameters if one.kind is not keyword and one.name != "options"]
            more = [one for one in parameters if one.kind is keyword]
            func.parameters = griffe.Parameters(*own, *options, *more)


def _shown(option: Field[object]) -> str:
    return "TIMEOUT" if option.name == "timeout" else repr(option.default)


def _fenced(found: re.Match[str]) -> str:
    code = textwrap.indent(textwrap.dedent(found[2]).strip("\n"), found[1])
    return f"{found[1]}```python\n{code}\n{found[1]}```\n\n"


def _linked(found: re.Match[str]) -> str:
    name = found[1]
    public = name.startswith("autoglobal.") and name.count(".") == 1
    return f"[`{name.rpartition('.')[2]}`][{name}]" if public else f"`{name}`"
