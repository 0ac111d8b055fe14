"""Unused rules: patterns that decided for no tensor, and which slip of the pen each may be."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from .._text import printable
from ..errors import ConversionError
from .patterns import Pattern, by_class
from .rules import SbpRules
from .spec import GlobalSpec

_CLOSE = 3  # paths that a sentence suggests


class Seen(NamedTuple):
    """A tensor's path and its owner's class; ``is_by_rules``: the rules decide on it."""

    owner: type
    path: str
    is_by_rules: bool


def unused_rules(
    spec: GlobalSpec,
    used: Collection[Pattern],
    seen: Collection[Seen],
    kept_otherwise: Mapping[Pattern, str],
) -> list[str]:
    """A sentence for each pattern of a mapping that is not in ``used``, in their order.

    A last ``"*"`` is for what the others leave over, and may have nothing to do. ``seen`` is all
    that the rules were tried against. ``kept_otherwise`` says what there is to say of a pattern
    that matched only what is global already and has another layout.
    """
    patterns = [one.pattern for one in spec.rules.decisions if one.pattern is not None]
    if patterns and patterns[-1].is_catch_all:
        patterns.pop()
    return [
        kept_otherwise.get(pattern) or _sentence(spec, pattern, seen)
        for pattern in patterns
        if pattern not in used
    ]


def refused(unused: Sequence[str]) -> ConversionError:
    """What ``unused="error"`` makes of such sentences."""
    return ConversionError(
        "Expected with unused='error': each rule of sbp decides for a tensor. Received: "
        f"{'; '.join(unused)}"
    )


def _sentence(spec: GlobalSpec, pattern: Pattern, seen: Collection[Seen]) -> str:
    start = f"the rule {pattern.shown} of sbp decided for no tensor: "
    matched = [one for one in seen if pattern.matches(one.owner, one.path)]
    if not matched:
        return start + _unmatched(spec, pattern, seen)
    example = printable(matched[0].path)
    if not any(one.is_by_rules for one in matched):
        return (
            f"{start}it matches only buffers, such as {example}, and buffers={spec.buffers!r} "
            "decides for those. Write buffers='sbp', or leave the rule out"
        )
    earlier = _earlier(spec.rules, pattern, [one for one in matched if one.is_by_rules])
    return (
        f"{start}what it matches, such as {example}, an earlier rule decides: "
        f"{', '.join(earlier)}. Write the rule {pattern.shown} before that one, or leave it out"
    )


def _earlier(rules: SbpRules, pattern: Pattern, matched: Sequence[Seen]) -> list[str]:
    found = (rules.stated(one.owner, one.path) for one in matched)
    return list(
        dict.fromkeys(one.pattern.shown for one in found if one is not None and one.pattern)
    )


def _unmatched(spec: GlobalSpec, pattern: Pattern, seen: Collection[Seen]) -> str:
    text = "it matched nothing. "
    if not seen:
        return text + "There was no tensor for it. Leave it out"
    if not isinstance(pattern.key, str):
        return text + "Correct it or leave it out"
    as_expression = _as_expression(pattern.key, seen)
    if as_expression is not None:
        return (
            f"{text}It looks like a regular expression, which would match {as_expression}. Write "
            f"re.compile({pattern.key!r})"
        )
    names = dict.fromkeys(name for one in seen for name in _names(one))
    close = get_close_matches(pattern.key, names, n=_CLOSE)
    if close:
        text += f"Close to it: {', '.join(repr(printable(one)) for one in close)}. "
    if spec.when == "assign" and "." in pattern.key:
        text += "With when='assign' a path starts at the name that is assigned. "
    return text + (f"Write {close[0]!r}, or leave it out" if close else _such_as(seen))


def _such_as(seen: Collection[Seen]) -> str:
    few = [repr(printable(one.path)) for one in list(seen)[:_CLOSE]]
    return f"Paths are such as {', '.join(few)}. Correct it or leave it out"


def _names(one: Seen) -> Iterator[str]:
    yield one.path
    yield by_class(one.owner, one.path)
    yield one.owner.__name__
    module = one.path
    while "." in module:
        module = module.rpartition(".")[0]
        yield module


def _as_expression(key: str, seen: Collection[Seen]) -> str | None:
    """A path that the key matches where it is taken for a regular expression."""
    try:
        expression = re.compile(key)
    except re.error:
        return None
    for one in seen:
        if expression.fullmatch(one.path):
            return printable(one.path)
    return None
