"""``auto_global``: what a scope does, for the instances of one class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, overload

import oneflow as flow
from oneflow import nn

from .._compat import Module
from .._signals import uninterrupted
from .._text import short_repr
from ..conversion.session import Session, tell_refused
from ..errors import ConversionError, SpecError, SpecTypeError, short_traceback
from ..layout.placed import check_type
from ..layout.rules import SbpRules, check_signature
from ..layout.sbp import BROADCAST
from ..layout.spec import (
    CLASS_OPTIONS,
    TIMEOUT,
    DistantSpec,
    GlobalSpec,
    Options,
    check_options,
    check_together,
    looks_at_global,
    takes_options,
)
from ..modules.decorated import decorate
from ..modules.hook import Assignment, watch_global
from ..modules.registry import has_own_methods
from ..modules.tree import placements_in, tensors
from .stack import find, installer, open_frames

if TYPE_CHECKING:
    from typing_extensions import Unpack

C = TypeVar("C", bound=type)


class _Handler:
    """What is done with an assignment to an instance of a decorated class."""

    states = False
    options: Mapping[str, Any] = {}

    def on_assign(self, assignment: Assignment) -> Any:
        # Methods of the class's own, which the class's hook lies above, may register something
        # else than they were given: then the hook has to be below them too.
        if not has_own_methods(assignment.module):
            return self._on_assign(assignment)
        with uninterrupted:
            installer.acquire(watch_global=False)
            try:
                return self._on_assign(assignment)
            finally:
                installer.release(watch_global=False)

    def _on_assign(self, assignment: Assignment) -> Any:
        spec = None if assignment.kind is None else self._settled_spec(assignment)
        if spec is None:
            return assignment.forward()
        return self._convert(spec, assignment)

    def spec_of(self, module: Module, is_here: bool) -> GlobalSpec | None:
        """What the class states for an instance."""
        return None

    def known_spec(self) -> GlobalSpec | None:
        """The same, where it is the same for all instances."""
        return None

    def _settled_spec(self, assignment: Assignment) -> GlobalSpec | None:
        try:
            return self._spec_for(assignment)
        except Exception as error:
            check, timeout = self.options.get("check", True), self.options.get("timeout", TIMEOUT)
            tell_refused(_title(assignment), error, check, timeout)
            raise

    def _spec_for(self, assignment: Assignment) -> GlobalSpec | None:
        raise NotImplementedError

    def _convert(self, spec: GlobalSpec, assignment: Assignment) -> Any:
        module = assignment.module
        # What the instance holds is its own, also with existing="error".
        own = (tensor for _, tensor in tensors(module)) if spec.existing == "error" else ()
        session = Session(spec, own=own)
        with session.running(_title(assignment)):
            return session.assign(assignment)


class _Stating(_Handler):
    """A class that knows its placement and sbp, or whom to ask."""

    states = True

    def _spec_for(self, assignment: Assignment) -> GlobalSpec | None:
        return self.spec_of(assignment.module, True)

    def _convert(self, spec: GlobalSpec, assignment: Assignment) -> Any:
        result = super()._convert(spec, assignment)
        if assignment.kind == "module":
            for frame in open_frames():
                if frame.deferred is not None:
                    frame.deferred.forget_tree(assignment.value)
        return result


class _Fixed(_Stating):
    """A class that has one placement and sbp for all its instances."""

    def __init__(self, placement: Any, sbp: Any, options: Mapping[str, Any]) -> None:
        self.options = options
        self._spec = GlobalSpec(placement, sbp, **options)

    def spec_of(self, module: Module, is_here: bool) -> GlobalSpec | None:
        return self._spec

    def known_spec(self) -> GlobalSpec | None:
        return self._spec


class _Asking(_Stating):
    """A class that knows its sbp, and for each instance a function that knows the placement."""

    def __init__(
        self, function: Callable[[Any], Any], sbp: Any, options: Mapping[str, Any]
    ) -> None:
        check_signature(
            function,
            (None,),
            "a placement function must have one parameter, the module",
            "placement",
            "lambda module: stages[module.index]",
        )
        check_options(options)
        check_together(SbpRules(sbp, None), options.get("same_placement", False))
        self.options = options
        self._function = function
        self._sbp = sbp
        self._specs: dict[tuple[Any, bool], GlobalSpec] = {}

    def known_spec(self) -> GlobalSpec | None:
        return None  # the function is the user's own code

    def spec_of(self, module: Module, is_here: bool) -> GlobalSpec | None:
        placement = self._function(module)
        try:
            # Checked before it is looked up, because what is no placement may have no hash.
            check_type(placement)
            key = placement, is_here
            if key not in self._specs:
                kind = GlobalSpec if is_here else DistantSpec
                self._specs[key] = kind(placement, self._sbp, **self.options)
        except (SpecError, SpecTypeError) as error:
            raise ConversionError(
                f"{type(module).__name__}: the placement function of @auto_global returned what "
                f"cannot be. {error}"
            ) from error
        return self._specs[key]

    def _spec_for(self, assignment: Assignment) -> GlobalSpec | None:
        # Not for what has nothing to convert: the instance may not know yet where it belongs.
        if not looks_at_global(**self.options) and not _has_local(assignment):
            return None
        return super()._spec_for(assignment)


class _Following(_Handler):
    """A class whose instances go where their global tensors are."""

    def _spec_for(self, assignment: Assignment) -> GlobalSpec | None:
        if not _has_local(assignment):
            return None
        module, name = assignment.module, assignment.name
        found = placements_in(module, but=name)  # what it replaces is no guide
        if not found:
            return None
        kind = type(module).__name__
        if len(found) > 1:
            where = ", ".join(f"{kind}.{path} on {known}" for known, path in found.items())
            raise ConversionError(
                f"{kind}.{name}: @auto_global follows the placement of the global tensors that "
                f"are there. Expected: one placement. Received: {where}. Assign it inside "
                "global_scope(placement, sbp), or state them: @auto_global(placement, sbp)"
            )
        (placement,) = found
        return GlobalSpec(placement, [BROADCAST] * placement.ranks.ndim)


def _has_local(assignment: Assignment) -> bool:
    value = assignment.value
    if assignment.kind == "module":
        return any(tensor.is_local for _, tensor in tensors(value))
    return bool(value.is_local)


def _title(assignment: Assignment) -> str:
    return f"the assignment of {type(assignment.module).__name__}.{assignment.name}"


class _Decorator:
    """What ``auto_global(placement, sbp)`` returns."""

    def __init__(self, handler: _Stating) -> None:
        self._handler = handler

    def __call__(self, kind: C) -> C:
        with uninterrupted:
            decorate(_checked(kind), self._handler, find)
            if looks_at_global(**self._handler.options):
                watch_global()
            return kind

    def __enter__(self) -> NoReturn:
        raise SpecTypeError(
            "auto_global decorates a class and opens no block. Received: a with statement. "
            "Write with global_scope(placement, sbp):"
        )

    def __exit__(self, *_: object) -> None:
        raise NotImplementedError


_ABSENT: Any = object()


@overload
def auto_global(kind: C, /) -> C: ...


@overload
def auto_global(placement: Any, sbp: Any, **options: Unpack[Options]) -> _Decorator: ...


@takes_options(CLASS_OPTIONS)
def auto_global(placement: Any, sbp: Any = _ABSENT, **options: Any) -> Any:
    """Make global whatever is assigned to an instance of a class, in ``__init__`` and later.

    ::

        import oneflow as flow
        from oneflow import nn
        from autoglobal import auto_global

        P, B, S0 = flow.placement("cpu", ranks=[0]), flow.sbp.broadcast, flow.sbp.split(0)

        @auto_global(P, {"weight": S0, "*": B})
        class Column(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(flow.zeros(8, 4))

        @auto_global
        class Head(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(flow.ones(4, placement=P, sbp=B))

        head = Head()
        head.shift = nn.Parameter(flow.zeros(4))
        assert Column().weight.sbp == (S0,) and head.shift.sbp == (B,)

    ``@auto_global(placement, sbp, ...)``: the class states its layout, and keeps it inside any
    scope too. The options are those of :class:`autoglobal.global_scope`, less ``when``; the paths
    that rules see start at the name that is assigned, and rules that match nothing are not told,
    since a class has no end. What a constructor builds under a scope of the caller's, such as a
    ``Linear`` that it then assigns, has been converted by that scope.

    ``@auto_global(function, sbp, ...)``: ``function(module)`` gives the placement, where it differs
    between the instances of a class, as the stages of a pipeline do, or is known only once the
    program has set up its ranks. It is asked at each assignment of something local (of anything
    global too, with another ``existing`` than ``"keep"`` or ``same_placement=True``), and by
    ``local_to_global``, ``preview`` and scopes that convert the instance::

        stages = [placement, flow.placement("cpu", ranks=[0])]

        @auto_global(lambda module: stages[module.index], sbp)
        class Block(nn.Module):
            def __init__(self, index):
                super().__init__()
                self.index = index  # before the first Parameter
                self.weight = nn.Parameter(flow.zeros(4, 4))

    Bare ``@auto_global``: the class follows. What is assigned goes to the placement that the
    instance's own global tensors are on (its tree's), broadcast; an open scope has precedence;
    where the instance holds no global tensor yet nothing is converted.

    The class itself is returned, with the hook on it. Instances of subclasses are concerned too,
    and a subclass can be decorated again to override; the parent class and its other subclasses
    pay and notice nothing. Inside :class:`autoglobal.local_scope` nothing is converted.

    Raises:
        SpecTypeError: not on a subclass of ``nn.Module``, or used as a context.
        SpecError, SpecTypeError: as :class:`autoglobal.global_scope` does, where the class is
            decorated.
        ConversionError: from an assignment, as in a scope; in a bare one also where the
            instance's global tensors are on several placements, which it names, and where a
            function returns what is no placement, or one that is not there.
    """
    with short_traceback:
        if sbp is not _ABSENT:
            _check_options(options)
            # A function, as far as it is none of those that people pass by mistake.
            asks = callable(placement) and not isinstance(
                placement, (type, flow.sbp.sbp, nn.Module)
            )
            return _Decorator((_Asking if asks else _Fixed)(placement, sbp, options))
        kind = _checked(placement)
        if options:
            raise SpecTypeError(
                "auto_global takes options only with a placement and an sbp. Received: "
                f"{short_repr(options)}. "
                "Write @auto_global(placement, sbp, ...)"
            )
        with uninterrupted:
            decorate(kind, _Following(), find)
            return kind


def _check_options(options: Mapping[str, Any]) -> None:
    # By hand: a scope's signature does that for its own.
    for name, value in options.items():
        if name == "when":
            raise SpecTypeError(
                "auto_global has no option 'when', since a class has no end. Received: "
                f"when={short_repr(value)}. Write @global_scope(..., when='exit') on the function "
                "that builds the module"
            )
        known = [one.name for one in CLASS_OPTIONS]
        if name not in known:
            raise SpecTypeError(
                f"auto_global has no option {name!r}. Received: {name}={short_repr(value)}. "
                f"Write one of {', '.join(known)}"
            )


def _checked(kind: Any) -> Any:
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)) or kind is nn.Module:
        hint = "; @global_scope(placement, sbp) decorates functions" * callable(kind)
        raise SpecTypeError(
            f"auto_global decorates subclasses of nn.Module. Received: {short_repr(kind)}{hint}. "
            "Write @auto_global or @auto_global(placement, sbp) above such a class"
        )
    return kind
