"""Which sbp is wished for a tensor: one sbp for all, rules by pattern, or a function."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import cache, partial
from types import FunctionType, MethodType
from typing import Any, Optional

import oneflow as flow
from oneflow import nn

from .._text import received
from ..errors import ConversionError, SpecError, SpecTypeError

Sbp = Any  # oneflow.sbp.sbp; OneFlow ships no types
NdSbp = tuple[Sbp, ...]  # one per placement dimension
Wish = Optional[NdSbp]  # None: stays local

BROADCAST = flow.sbp.broadcast
PARTIAL_SUM = flow.sbp.partial_sum
_MORE = "a mapping of glob patterns to such, or a callable"
_SBPS = "flow.sbp.split(dim), flow.sbp.broadcast or flow.sbp.partial_sum"


@cache
def split_axis(sbp: Sbp) -> int | None:
    """The axis that ``sbp`` splits, None for broadcast and partial_sum."""
    # OneFlow gives the axis of an sbp in its text only.
    found = re.search(r"split\(\w+=(\d+)\)", str(sbp))
    return int(found.group(1)) if found else None


def show_sbp(sbp: NdSbp) -> str:
    """``split(dim=0)``, or ``(split(dim=0), broadcast)`` for more than one dimension."""
    names = [str(one).replace("oneflow.sbp.", "") for one in sbp]
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


class Rules:
    """The ``sbp`` argument of a scope, checked against its placement.

    Raises :class:`SpecTypeError` for what is neither an sbp, a sequence of them, a mapping of
    patterns to these, nor a callable, and :class:`SpecError` for a wrong number of sbps.
    """

    def __init__(self, sbp: Any, placement: Any) -> None:
        self._placement = placement
        self._function: Callable[..., Any] | None = None
        self._wishes: dict[str, Wish] = {}
        self._for_all: Wish = None
        if isinstance(sbp, Mapping):
            self._wishes = {_pattern(key): self._ruled(key, value) for key, value in sbp.items()}
            if not sbp:
                raise SpecError(
                    "sbp must have at least one rule. Received: sbp={}. Write, for example, "
                    "sbp={'*': flow.sbp.broadcast}"
                )
        # An sbp of OneFlow's can be called as well, and returns itself; so can a module or a class.
        elif callable(sbp) and not isinstance(sbp, (flow.sbp.sbp, nn.Module, type)):
            if sbp is flow.sbp.split:
                raise SpecTypeError(
                    f"sbp must be {_SBPS}. Received: sbp=flow.sbp.split, not called. Write the "
                    "axis to split, as in flow.sbp.split(0)"
                )
            _check_function(sbp)
            self._function = sbp
        else:
            self._for_all = _checked(sbp, placement, or_rules=True)

    @property
    def patterns(self) -> tuple[str, ...]:
        return tuple(self._wishes)

    @property
    def is_function(self) -> bool:
        """Whether the caller's own code decides."""
        return self._function is not None

    def wish(self, label: str, owner: Any, path: str, tensor: Any) -> tuple[str | None, Wish]:
        """The pattern that decides, where one does, and the sbp for ``tensor`` of ``owner``.

        Raises :class:`ConversionError` where no pattern matches, or a function returns neither
        an sbp nor None; ``label`` names the tensor in it.
        """
        if self._function is not None:
            return None, self._asked(label, self._function(owner, path, tensor))
        if not self._wishes:
            return None, self._for_all
        pattern = self.matching(owner, path)
        if pattern is None:
            raise ConversionError(
                f"{label}: no rule of sbp matches it. Expected: a pattern for {path!r} or "
                f"{_by_class(owner, path)!r}. Received: {', '.join(map(repr, self._wishes))}. "
                "Add one; '*' as the last pattern matches all the rest, and None as the sbp "
                "leaves a tensor local"
            )
        return pattern, self._wishes[pattern]

    def matching(self, owner: Any, path: str) -> str | None:
        """The first pattern that matches the path or ``OwnerClass.attribute``."""
        names = (path, _by_class(owner, path))
        for pattern in self._wishes:
            if any(fnmatchcase(name, pattern) for name in names):
                return pattern
        return None

    def of(self, pattern: str) -> Wish:
        """What a pattern wishes."""
        return self._wishes[pattern]

    def _wish(self, value: Any) -> Wish:
        return None if value is None else _checked(value, self._placement)

    def _ruled(self, pattern: str, value: Any) -> Wish:
        try:
            return self._wish(value)
        except (SpecError, SpecTypeError) as error:
            raise type(error)(f"in the rule {pattern!r}: {error}") from error

    def _asked(self, label: str, answer: Any) -> Wish:
        try:
            return self._wish(answer)
        except (SpecError, SpecTypeError) as error:
            raise ConversionError(
                f"{label}: the sbp function returned what it cannot. {error}"
            ) from error

    def __str__(self) -> str:
        if self._function is not None:
            return getattr(self._function, "__name__", "a callable")
        if not self._wishes:
            return show_sbp(self._for_all or ())
        rules = (f"{key!r}: {wish and show_sbp(wish)}" for key, wish in self._wishes.items())
        return f"{{{', '.join(rules)}}}"


def _by_class(owner: Any, path: str) -> str:
    return f"{type(owner).__name__}.{path.rsplit('.', 1)[-1]}"


def _check_function(function: Callable[..., Any]) -> None:
    signature = _signature(function)
    if signature is None:
        return
    try:
        signature.bind(None, "", None)
    except TypeError as error:
        raise SpecTypeError(
            f"an sbp function must have three parameters, the owner module, the path and the "
            f"tensor. Received: sbp={received(function)}, which takes {signature}. Write, for "
            "example, lambda owner, path, tensor: flow.sbp.broadcast"
        ) from error


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    """What it can be called with, None where that cannot be known."""
    if not isinstance(function, (FunctionType, MethodType, partial)):
        # Of an object the class is asked: inspect would ask it itself, which may do anything.
        call = getattr(type(function), "__call__", None)  # noqa: B004
        if not isinstance(call, FunctionType):
            return None
        function = MethodType(call, object())
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # of a partial of a built-in one
        return None


def _pattern(key: Any) -> str:
    if not isinstance(key, str):
        raise SpecTypeError(
            "each key of sbp must be a glob pattern such as 'blocks.*.weight' or "
            f"'Embedding.weight'. Received: {received(key)} in sbp"
        )
    return key


def _checked(sbp: Any, placement: Any, or_rules: bool = False) -> NdSbp:
    dims = placement.ranks.ndim
    given = tuple(sbp) if isinstance(sbp, (list, tuple)) else (sbp,)
    for one in given:
        if not isinstance(one, flow.sbp.sbp):
            raise SpecTypeError(
                f"sbp must be {_SBPS}, a list or tuple of these with one per placement "
                f"dimension, {_MORE if or_rules else 'or None to leave it local'}. "
                f"Received: {'' if one is sbp else f'{received(one)} in '}sbp={received(sbp)}. "
                "Write, for example, flow.sbp.broadcast"
            )
    if len(given) != dims:
        raise SpecError(
            f"sbp must have one entry per placement dimension, here {dims}. Received: "
            f"{len(given)} in sbp={received(sbp)}, placement={placement!r}. "
            f"Write, for example, sbp=[{', '.join(['flow.sbp.broadcast'] * dims)}]"
        )
    return given
