"""Rules: which sbp is asked for a tensor, by one sbp for all, by pattern, or by a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from fnmatch import fnmatchcase
from functools import partial
from types import FunctionType, MethodType
from typing import Any, NamedTuple, Optional

import oneflow as flow
from oneflow import nn

from .._text import short_repr
from ..errors import ConversionError, SpecError, SpecTypeError
from .sbp import NdSbp, Wish, show_sbp

_MORE = "a mapping of glob patterns to such, or a callable"
_SBPS = "flow.sbp.split(dim), flow.sbp.broadcast or flow.sbp.partial_sum"


class Decision(NamedTuple):
    """What is asked for a tensor, and the pattern that says so, where one does."""

    pattern: Optional[str]
    sbp: Wish


class SbpRules:
    """The ``sbp`` argument of a scope, checked against its placement.

    Raises :class:`SpecTypeError` for what is neither an sbp, a sequence of them, a mapping of
    patterns to these, nor a callable, and :class:`SpecError` for a wrong number of sbps.
    """

    def __init__(self, sbp: Any, placement: Any) -> None:
        self._placement = placement
        self._function: Callable[..., Any] | None = None
        self._by_pattern: dict[str, Decision] = {}
        self._for_all: Decision | None = None
        if isinstance(sbp, Mapping):
            self._by_pattern = {_pattern(key): self._rule(key, one) for key, one in sbp.items()}
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
            self._for_all = Decision(None, _checked(sbp, placement, or_rules=True))

    def decide(self, owner: Any, path: str, tensor: Any, label: str) -> Decision:
        """What is asked for ``tensor``, which the module ``owner`` holds under ``path``.

        Raises :class:`ConversionError` where no pattern matches, or a function returns neither
        an sbp nor None; ``label`` names the tensor in it.
        """
        if self._for_all is not None:
            return self._for_all
        if self._function is not None:
            return Decision(None, self._asked(label, self._function(owner, path, tensor)))
        found = self.stated(owner, path)
        if found is None:
            raise ConversionError(
                f"{label}: no rule of sbp matches it. Expected: a pattern for {path!r} or "
                f"{_by_class(owner, path)!r}. Received: {', '.join(map(repr, self._by_pattern))}. "
                "Add one; '*' as the last pattern matches all the rest, and None as the sbp "
                "leaves a tensor local"
            )
        return found

    def stated(self, owner: Any, path: str) -> Decision | None:
        """What can be said without the caller's function; None where nothing is said."""
        if not self._by_pattern:
            return self._for_all
        names = (path, _by_class(owner, path))
        for pattern, decision in self._by_pattern.items():
            if any(fnmatchcase(name, pattern) for name in names):
                return decision
        return None

    def unused(self, used: Collection[str]) -> list[str]:
        """The patterns that are not in ``used``, in their order.

        A last ``"*"`` is for what the others leave over, and may have nothing to do.
        """
        patterns = list(self._by_pattern)
        last = len(patterns) - 1
        return [
            pattern
            for at, pattern in enumerate(patterns)
            if pattern not in used and not (pattern == "*" and at == last)
        ]

    def _wish(self, value: Any) -> Wish:
        return None if value is None else _checked(value, self._placement)

    def _rule(self, pattern: str, value: Any) -> Decision:
        try:
            return Decision(pattern, self._wish(value))
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
        if self._for_all is not None:
            return show_sbp(self._for_all.sbp or ())
        rules = (f"{key!r}: {sbp and show_sbp(sbp)}" for key, sbp in self._by_pattern.values())
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
            f"tensor. Received: sbp={short_repr(function)}, which takes {signature}. Write, for "
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
            f"'Embedding.weight'. Received: {short_repr(key)} in sbp"
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
                f"Received: {'' if one is sbp else f'{short_repr(one)} in '}sbp={short_repr(sbp)}. "
                "Write, for example, flow.sbp.broadcast"
            )
    if len(given) != dims:
        raise SpecError(
            f"sbp must have one entry per placement dimension, here {dims}. Received: "
            f"{len(given)} in sbp={short_repr(sbp)}, placement={placement!r}. "
            f"Write, for example, sbp=[{', '.join(['flow.sbp.broadcast'] * dims)}]"
        )
    return given
