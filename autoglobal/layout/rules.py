"""Rules: which layout is asked for a tensor, by one sbp for all, by pattern, or by a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import FunctionType, MethodType
from typing import Any, NamedTuple, Optional

import oneflow as flow
from oneflow import nn

from .._text import short_repr
from ..errors import ConversionError, SpecError, SpecTypeError
from .patterns import Pattern, by_class
from .placed import Placed, Target, target_of
from .sbp import show_sbp


class Decision(NamedTuple):
    """What is asked for a tensor (None: it stays local), and what says so.

    ``rule`` is that in words: a key of the mapping, ``"the sbp function"`` or ``"sbp"``.
    """

    pattern: Optional[Pattern]
    target: Optional[Target]
    rule: str

    @property
    def is_specific(self) -> bool:
        """Whether a pattern says it that is not for all the rest."""
        return self.pattern is not None and not self.pattern.is_catch_all

    @property
    def shown(self) -> str:
        """The rule as it was written."""
        return self.rule if self.pattern is None else self.pattern.shown


class SbpRules:
    """The ``sbp`` argument of a scope, checked against its placement.

    ``placement`` is None where it is not known yet: then the number of sbps is not checked.
    ``is_here``: the ranks and devices of placements in it have to exist. Raises
    :class:`SpecTypeError` for what is neither an sbp, a sequence of them, a :class:`Placed`, a
    mapping of patterns to these, nor a callable, and :class:`SpecError` for a wrong number of sbps.
    """

    def __init__(self, sbp: Any, placement: Any, is_here: bool = True) -> None:
        self._placement = placement
        self._is_here = is_here
        self._function: Callable[..., Any] | None = None
        self.for_all: Decision | None = None  # what one sbp says
        self.decisions: list[Decision] = []  # of a mapping, in its order
        # Whether a Placed stands in the rules themselves; what a function says is not known yet.
        self.names_placements = isinstance(sbp, Placed)
        self.says_none = False  # whether a pattern leaves tensors local
        if isinstance(sbp, Mapping):
            self.says_none = any(value is None for value in sbp.values())
            self.names_placements = any(isinstance(value, Placed) for value in sbp.values())
            self.decisions = [self._rule(key, value) for key, value in sbp.items()]
            if not sbp:
                raise SpecError(
                    "sbp must have at least one rule. Received: sbp={}. Write, for example, "
                    "sbp={'*': flow.sbp.broadcast}"
                )
        # An sbp of OneFlow's can be called as well, and returns itself; so can a module or a class.
        elif callable(sbp) and not isinstance(sbp, (flow.sbp.sbp, nn.Module, type, Placed)):
            if sbp is flow.sbp.split:
                raise SpecTypeError(
                    "sbp must be an sbp. Received: sbp=flow.sbp.split, not called. Write the "
                    "axis to split, as in flow.sbp.split(0)"
                )
            _check_function(sbp)
            self._function = sbp
        else:
            self.for_all = Decision(None, self._target(sbp, or_rules=True), "sbp")

    def decide(self, owner: Any, path: str, tensor: Any, label: str) -> Decision:
        """What is asked for ``tensor``, which the module ``owner`` holds under ``path``.

        Raises :class:`ConversionError` where no pattern matches, or a function returns neither
        an sbp nor None; ``label`` names the tensor in it.
        """
        found = self.find(owner, path, tensor, label)
        if found is None:
            raise ConversionError(
                f"{label}: no rule of sbp matches it. Expected: a pattern for {path!r} or "
                f"{by_class(type(owner), path)!r}. Received: "
                f"{', '.join(one.pattern.shown for one in self.decisions if one.pattern)}. "
                "Add one; '*' as the last pattern matches all the rest, and None as the sbp "
                "leaves a tensor local"
            )
        return found

    def stated(self, owner: type, path: str) -> Decision | None:
        """What can be said without the caller's function; None where nothing is said."""
        for decision in self.decisions:
            if decision.pattern is not None and decision.pattern.matches(owner, path):
                return decision
        return self.for_all

    def find(self, owner: Any, path: str, tensor: Any, label: str) -> Decision | None:
        """The same, but None where no pattern matches."""
        if self._function is not None:
            target = self._asked(label, self._function(owner, path, tensor))
            return Decision(None, target, "the sbp function")
        return self.stated(type(owner), path)

    def _target(self, value: Any, or_rules: bool = False) -> Target | None:
        if value is None and not or_rules:
            return None
        return target_of(value, self._placement, self._is_here, or_rules)

    def _rule(self, key: Any, value: Any) -> Decision:
        pattern = Pattern(key)
        try:
            return Decision(pattern, self._target(value), pattern.text)
        except (SpecError, SpecTypeError) as error:
            raise type(error)(f"in the rule {pattern.shown}: {error}") from error

    def _asked(self, label: str, answer: Any) -> Target | None:
        try:
            return self._target(answer)
        except (SpecError, SpecTypeError) as error:
            raise ConversionError(
                f"{label}: the sbp function returned what it cannot. {error}"
            ) from error

    def __str__(self) -> str:
        if self._function is not None:
            return getattr(self._function, "__name__", "a callable")
        if self.for_all is not None:
            return self._show(self.for_all.target)
        rules = (
            f"{one.pattern.shown}: {self._show(one.target)}"
            for one in self.decisions
            if one.pattern is not None
        )
        return f"{{{', '.join(rules)}}}"

    def _show(self, target: Target | None) -> str:
        if target is None:
            return "None"
        if target.layout is not None and target.layout.placement == self._placement:
            return show_sbp(target.sbp)
        where = "nearest" if target.layout is None else target.layout.placement
        return f"Placed({where}, {show_sbp(target.sbp)})"


def _check_function(function: Callable[..., Any]) -> None:
    check_signature(
        function,
        (None, "", None),
        "an sbp function must have three parameters, the owner module, the path and the tensor",
        "sbp",
        "lambda owner, path, tensor: flow.sbp.broadcast",
    )


def check_signature(
    function: Callable[..., Any], arguments: tuple[Any, ...], must: str, option: str, example: str
) -> None:
    """Raise :class:`SpecTypeError` where a function cannot be called with these arguments."""
    signature = _signature(function)
    if signature is None:
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise SpecTypeError(
            f"{must}. Received: {option}={short_repr(function)}, which takes {signature}. Write, "
            f"for example, {example}"
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
