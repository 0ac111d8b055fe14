"""A placement, an sbp and the options of a scope, checked where they come in."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from functools import cached_property, lru_cache
from typing import (
    Any,
    ClassVar,
    Literal,
    Optional,
    TypedDict,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from .._text import short_repr
from ..errors import ConversionError, SpecError, SpecTypeError
from .placed import Target, check_placement, check_type
from .placement import PlacementLayout, Shape, layout_of
from .rules import SbpRules
from .sbp import BROADCAST, NdSbp, show_sbp, split_axis

Kind = Literal["parameter", "buffer"]
Source = Literal["full", "shard"]
When = Literal["assign", "exit"]
Existing = Literal["keep", "error", "convert"]
Buffers = Literal["broadcast", "sbp", False]
Unsplittable = Literal["error", "broadcast"]
Unused = Literal["warn", "error"]

F = TypeVar("F", bound=Callable[..., Any])

TIMEOUT = 600.0  # seconds, as for PyTorch's NCCL


class Options(TypedDict, total=False):
    """The options of a conversion, for the types of entry points that take all of them.

    A test holds that they, with those of :class:`CallOptions`, are the fields of
    :class:`GlobalSpec`, less ``when``.
    """

    source: Source
    existing: Existing
    buffers: Buffers
    unsplittable: Unsplittable
    same_placement: bool
    check: bool
    timeout: float


class CallOptions(Options, total=False):
    """The same with those of a call, which has an end."""

    unused: Unused


@dataclass(frozen=True)
class GlobalSpec:
    """A placement, an sbp and the options of :func:`autoglobal.global_scope`, all of them valid.

    Raises :class:`SpecTypeError` and :class:`SpecError` for what cannot work, on every rank
    alike: OneFlow itself would accept much of it here, and then hang or abort when it is used.
    """

    placement: Any
    sbp: Any
    source: Source = "full"
    when: When = "assign"
    existing: Existing = "keep"
    buffers: Buffers = "broadcast"
    unsplittable: Unsplittable = "error"
    same_placement: bool = False
    check: bool = True
    timeout: float = TIMEOUT
    unused: Unused = "warn"
    is_here: ClassVar[bool] = True
    rules: SbpRules = field(init=False, repr=False, compare=False)
    layout: PlacementLayout = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        (check_placement if self.is_here else check_type)(self.placement)
        object.__setattr__(self, "layout", layout_of(self.placement))
        object.__setattr__(self, "rules", SbpRules(self.sbp, self.placement, self.is_here))
        check_options({one.name: getattr(self, one.name) for one in OPTIONS})
        check_together(self.rules, self.same_placement)

    @cached_property
    def statements(self) -> list[str]:
        """What all ranks have to ask for alike, each option in words."""
        return [
            f"placement={self.placement}",
            f"sbp={self.rules}",
            *(
                f"{one.name}={getattr(self, one.name)!r}"
                for one in OPTIONS
                if one.name != "timeout"
            ),
        ]

    def fit(
        self, label: Callable[[], str], kind: Kind, shape: Shape, target: Target, source: Source
    ) -> NdSbp:
        """The sbp of a ``target`` as a tensor of this shape can have it.

        ``shape`` is the logical shape with ``source="full"`` and the local component's with
        ``source="shard"``; ``label()`` names the tensor in the :class:`ConversionError` that is
        raised where it cannot be split as asked for.
        """
        layout, sbp = target
        assert layout is not None
        found, dim = fitting(shape, sbp, layout.hierarchy, source, self.unsplittable)
        if dim is not None:
            ranks = layout.hierarchy[dim]
            raise ConversionError(_cannot_split(label(), kind, shape, sbp, dim, ranks))
        return found


@lru_cache(maxsize=4096)  # many tensors have one shape
def fitting(
    shape: Shape, sbp: NdSbp, hierarchy: Shape, source: Source, unsplittable: Unsplittable
) -> tuple[NdSbp, Optional[int]]:
    """What :meth:`GlobalSpec.fit` returns, and the placement dimension that does not fit if any."""
    found = list(sbp)
    smallest = dict(enumerate(shape))  # the shortest part so far, along each axis
    for dim, (one, ranks) in enumerate(zip(sbp, hierarchy)):
        axis = split_axis(one)
        if axis is None:
            continue
        if axis in smallest and _divides(smallest[axis], ranks, source):
            smallest[axis] //= ranks
        elif shape == () or unsplittable == "broadcast":
            found[dim] = BROADCAST
        else:
            return sbp, dim
    return tuple(found), None


def _cannot_split(label: str, kind: Kind, shape: Shape, sbp: NdSbp, dim: int, ranks: int) -> str:
    axis = split_axis(sbp[dim])
    if axis is not None and axis < len(shape):
        over = "ranks" if len(sbp) == 1 else f"ranks of placement dimension {dim}"
        short = "empty, and cannot" if shape[axis] == 0 else "too short to"
        problem = f"axis {axis} is {short} be split over the {ranks} {over}"
    else:
        problem = f"there is no axis {axis} to split"
    return (
        f"{label}: {problem}. Expected: a {kind} that {show_sbp(sbp)} can split. "
        f"Received: shape {shape}. Write unsplittable='broadcast' to make such tensors "
        "broadcast, or give this one flow.sbp.broadcast by a rule or a scope of its own"
    )


class DistantSpec(GlobalSpec):
    """The same for ranks and devices that need not exist here."""

    is_here = False


OPTIONS = [one for one in fields(GlobalSpec) if one.init and one.name not in ("placement", "sbp")]
_TYPES = get_type_hints(GlobalSpec)
# Those options that are one of some values, by their annotations.
_CHOICES: dict[str, tuple[object, ...]] = {
    name: get_args(hint) for name, hint in _TYPES.items() if get_origin(hint) is Literal
}
# A call is its own end, so that there is no "when"; a class has no end at all.
CALL_OPTIONS = [one for one in OPTIONS if one.name != "when"]
CLASS_OPTIONS = [one for one in CALL_OPTIONS if one.name != "unused"]


def check_options(options: Mapping[str, Any]) -> None:
    """Raise :class:`SpecError` or :class:`SpecTypeError` for a value that an option cannot have."""
    for option, value in options.items():
        allowed = _CHOICES.get(option)
        # By type as well: 0 and False are equal.
        if allowed is not None and not any(
            type(value) is type(known) and value == known for known in allowed
        ):
            raise SpecError(
                f"{option} must be one of {', '.join(map(repr, allowed))}. "
                f"Received: {option}={short_repr(value)}"
            )
        if _TYPES[option] is bool:
            check_flag(option, value)
    if "timeout" in options:
        _check_timeout(options["timeout"])


def looks_at_global(existing: Existing = "keep", same_placement: bool = False, **_: Any) -> bool:
    """Whether with these options a global tensor that is assigned by itself is looked at."""
    return existing != "keep" or same_placement


def check_together(rules: SbpRules, same_placement: bool) -> None:
    """Raise :class:`SpecError` where rules name placements and there is to be one only."""
    if same_placement and rules.names_placements:
        raise SpecError(
            "same_placement=True and Placed contradict each other. Expected: one placement for "
            f"all. Received: sbp={rules}. Write same_placement=False"
        )


def takes_options(taken: Sequence[Field[Any]]) -> Callable[[F], F]:
    """Show these options one by one in the signature of a function with ``**options``."""

    def show(function: F) -> F:
        shown = inspect.signature(function)
        parameters = [one for one in shown.parameters.values() if one.kind is not one.VAR_KEYWORD]
        own = [one for one in parameters if one.kind is not one.KEYWORD_ONLY]
        keyword = inspect.Parameter.KEYWORD_ONLY
        more = [
            inspect.Parameter(one.name, keyword, default=one.default, annotation=_TYPES[one.name])
            for one in taken
        ]
        new = shown.replace(parameters=[*own, *more, *parameters[len(own) :]])
        function.__signature__ = new  # type: ignore[attr-defined]
        function.__annotations__ = {
            **{name: one for name, one in function.__annotations__.items() if name != "options"},
            **{one.name: one.annotation for one in more},
        }
        return function

    return show


def check_names(function: str, options: Mapping[str, Any]) -> None:
    """Raise the TypeError of Python's own where a function has no such option."""
    for name in options:
        if all(name != one.name for one in CALL_OPTIONS):
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")


def check_flag(option: str, value: Any) -> None:
    """Raise :class:`SpecTypeError` where ``value`` is no bool."""
    if not isinstance(value, bool):
        raise SpecTypeError(
            f"{option} must be True or False. Received: {option}={short_repr(value)}"
        )


def _check_timeout(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise SpecTypeError(
            f"timeout must be a number of seconds. Received: timeout={short_repr(value)}. "
            f"Write, for example, timeout={TIMEOUT:g}"
        )
    if not 0 < value < math.inf:
        raise SpecError(
            f"timeout must be more than 0 seconds, and finite. Received: timeout={value!r}. "
            "Write, for example, timeout=86400 for a day"
        )


def _divides(length: int, ranks: int, source: Source) -> bool:
    if source == "shard" and ranks > 1:
        return True  # whether the components fit together is known once the ranks have met
    # Uneven pieces are fine, an empty one beside others aborts the process. Where the whole axis
    # is empty OneFlow 0.9.0 divides it, and then fails in the second backward pass, on one rank
    # too: it cannot add up such gradients (measured).
    return length >= max(1, ranks)
