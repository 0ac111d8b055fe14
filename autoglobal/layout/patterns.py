"""Patterns: the keys of a mapping of rules, and which tensors each of them matches."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import translate
from functools import cache
from typing import Any

from oneflow import nn

from .._text import printable, short_repr
from ..errors import SpecTypeError

CATCH_ALL = "*"


class Pattern:
    """One key of a mapping of rules.

    ``text`` names it in a record, and ``shown`` in a sentence.
    """

    def __init__(self, key: Any) -> None:
        self.key = key
        if isinstance(key, str):
            self.text, self.shown = key, repr(key)
            self.matches = _by_name(key)
        elif isinstance(key, re.Pattern) and isinstance(key.pattern, str):
            self.text = self.shown = printable(repr(key))
            # Not against Class.attribute, which an expression such as (?!head).* would match.
            self.matches = lambda owner, path: key.fullmatch(path) is not None
        elif isinstance(key, type) and issubclass(key, nn.Module):
            self.text, self.shown = key.__name__, f"of the class {key.__name__}"
            self.matches = lambda owner, path: issubclass(owner, key)
        else:
            raise SpecTypeError(
                "each key of sbp must be a pattern such as 'blocks.*.weight', 'encoder' or "
                "'Embedding.weight', a subclass of nn.Module, or re.compile('...'). Received: "
                f"{short_repr(key)} in sbp"
            )

    # Whether it matches what a module of the class ``owner`` holds under ``path``.
    matches: Callable[[type, str], bool]

    def __reduce__(self) -> tuple[Any, ...]:
        return Pattern, (self.key,)

    @property
    def is_catch_all(self) -> bool:
        return bool(self.key == CATCH_ALL)


def _by_name(key: str) -> Callable[[type, str], bool]:
    matches = _compiled(key).match

    def match(owner: type, path: str) -> bool:
        return matches(path) is not None or matches(by_class(owner, path)) is not None

    return match


@cache
def _compiled(key: str) -> re.Pattern[str]:
    """The glob as an expression: what it matches, and what is below a module that it matches."""
    globs = [key, f"{key}.*"]
    if key.startswith("*.") and key != "*.":  # at the top level too
        globs += [key[2:], f"{key[2:]}.*"]
    return re.compile("|".join(map(translate, globs)))


def by_class(owner: type, path: str) -> str:
    """``Linear.weight``, the other name that a pattern is tried against."""
    return f"{owner.__name__}.{path.rpartition('.')[2]}"
