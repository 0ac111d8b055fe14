"""The hook on ``oneflow.nn.Module``, put on and taken off with wrapt, and what it sees.

The only file that patches OneFlow, which it does with wrapt. The hook decides whether a call
concerns a scope, never what happens then. What it puts on is a plain function, not a wrapt
``FunctionWrapper``: it costs a plain attribute about a tenth where a ``FunctionWrapper`` doubles
the time (``make bench``).
"""

from __future__ import annotations

import inspect
import sys
import threading
import types
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from functools import partial, update_wrapper
from typing import Any, Literal, Optional, Protocol, cast
from weakref import ref

import wrapt
from oneflow import Tensor
from oneflow.nn import Module, Parameter

from ..errors import AutoglobalError, shorten_traceback
from .registry import NON_PERSISTENT, PASSES_ON

Wrapper = Callable[..., Any]


class Assignment:
    """A call that has a module register a Tensor or a Module, before OneFlow has seen it.

    ``method`` is the method of ``nn.Module`` that was called, ``frame`` that of the code which
    called it, and ``forward()`` lets OneFlow's own method do its work. ``kind`` is what OneFlow
    registers the value as, None where it registers nothing: it refuses, or keeps a plain attribute.
    """

    __slots__ = (
        *("_before", "_was_transient", "forward", "frame", "kind", "module", "name", "value"),
    )

    def __init__(
        self,
        forward: Callable[[], Any],
        module: Any,
        method: str,
        name: Any,
        value: Any,
        frame: types.FrameType,
    ) -> None:
        self.forward = forward
        self.module = module
        self.name = name
        self.value = value
        self.frame = frame
        self.kind = _kind_of(module, method, name, value)

    def keep_before(self) -> None:
        """Remember how the module holds the name now, for :meth:`undo`."""
        name, held = self.name, self.module.__dict__
        # The whole store where the name is in it: its place in the order counts too.
        self._before = []
        for where in (held, held["_parameters"], held["_buffers"], held["_modules"]):
            self._before.append((where, dict(where) if name in where else None))
        self._was_transient = name in held.get(NON_PERSISTENT, ())

    def undo(self) -> None:
        """Put back what :meth:`keep_before` has seen."""
        for where, content in self._before:
            if content is None:
                where.pop(self.name, None)
            else:
                where.clear()
                where.update(content)
        transient = self.module.__dict__.get(NON_PERSISTENT)
        if transient is not None:
            (transient.add if self._was_transient else transient.discard)(self.name)


def _kind_of(
    module: Any, method: str, name: Any, value: Any
) -> Literal["parameter", "buffer", "module"] | None:
    """What OneFlow registers a value as in a call of this method of ``nn.Module``."""
    if not isinstance(module, Module) or not isinstance(name, str):
        return None
    held = module.__dict__
    parameters, buffers = held.get("_parameters"), held.get("_buffers")
    if parameters is None or buffers is None or held.get("_modules") is None:
        return None  # its __init__ has not run
    if method == "register_parameter":
        return "parameter" if isinstance(value, Parameter) else None
    if method == "register_buffer":
        return "buffer" if isinstance(value, Tensor) else None
    if method == "add_module":
        return "module" if isinstance(value, Module) else None
    if isinstance(value, Parameter):
        return "parameter"
    if name in parameters:
        return None
    if isinstance(value, Module):
        return "module"
    return "buffer" if name in buffers else None


# The assignment that is being carried out by this thread and task: on its way OneFlow's __setattr__
# calls register_parameter, which is hooked as well.
under_way: ContextVar[Optional[Assignment]] = ContextVar("autoglobal_assignment", default=None)


class Handler(Protocol):
    """What a scope offers to the hook."""

    def on_assign(self, assignment: Assignment) -> Any:
        """Return ``assignment.forward()``, and do what the scope is for."""


# The handler in force for a module: by this thread and task, or by the module's class.
Find = Callable[[Any], Optional[Handler]]

# Most assignments are of these, and none of them can be a Tensor or a Module.
_PLAIN = frozenset(
    {int, float, bool, str, bytes, type(None), tuple, list, dict, set, frozenset, slice, range}
    | {types.FunctionType, types.BuiltinFunctionType, types.MethodType, partial, type}
)
_ABSENT: Any = object()
_TENSORS = (Parameter, Tensor)  # these very types; of others is_global may be anything
# Not empty while some scope wants to see global tensors too; nearly always it is empty, and the
# hook's quick way out need not ask whose scope this is.
_watchers: list[None] = []


def _handler_for(find: Find, module: Any, name: Any, value: Any) -> Handler | None:
    """The handler in force, None where the call concerns none."""
    if not isinstance(value, (Tensor, Module)):
        return None
    now = under_way.get()
    if now is not None and now.value is value and now.module is module and now.name is name:
        return None
    return find(module)


# In the hooks there is no lambda: a variable that it captures makes every call slower. Those that
# register have named arguments for speed: OneFlow's __setattr__ calls register_parameter with two.
# There is no comment right above one, which help() would take for its documentation.


def _setattr_hook(wrapped: Wrapper, find: Find, method: str) -> Wrapper:
    def __setattr__(self: Any, name: str, value: Any) -> Any:
        # The quick ways out; the first is for what is assigned in the longest loops.
        kind = type(value)
        if kind in _TENSORS:
            if value.is_global and not _watchers:
                return wrapped(self, name, value)
        elif kind in _PLAIN:
            return wrapped(self, name, value)
        if (handler := _handler_for(find, self, name, value)) is None:
            return wrapped(self, name, value)
        forward = partial(wrapped, self, name, value)
        try:
            return handler.on_assign(
                Assignment(forward, self, method, name, value, sys._getframe(1))
            )
        except AutoglobalError as error:
            shorten_traceback(error.__traceback__)
            raise

    return __setattr__


def _register_hook(wrapped: Wrapper, find: Find, method: str, keyword: str) -> Wrapper:
    names = ("self", "name", keyword)

    def register(
        self: Any = _ABSENT,
        name: Any = _ABSENT,
        value: Any = _ABSENT,
        /,
        *rest: Any,
        **kwargs: Any,
    ) -> Any:
        if type(value) in _TENSORS and value.is_global and not (_watchers or rest or kwargs):
            return wrapped(self, name, value)
        if value is not _ABSENT and not (rest or kwargs):
            forward = partial(wrapped, self, name, value)
        else:
            # Forwarded in the shape in which the call came, a wrong one too.
            args = (*(one for one in (self, name, value) if one is not _ABSENT), *rest)
            forward = partial(wrapped, *args, **kwargs)
            call = {**kwargs, **dict(zip(names, args))}
            value, self, name = call.get(keyword), call.get("self"), call.get("name")
        if (handler := _handler_for(find, self, name, value)) is None:
            return forward()
        try:
            return handler.on_assign(
                Assignment(forward, self, method, name, value, sys._getframe(1))
            )
        except AutoglobalError as error:
            shorten_traceback(error.__traceback__)
            raise

    return register


_METHODS: dict[str, Callable[[Wrapper, Find], Wrapper]] = {
    "__setattr__": partial(_setattr_hook, method="__setattr__"),
    **{
        method: partial(_register_hook, method=method, keyword=keyword)
        for method, keyword in (
            ("register_parameter", "param"),
            ("register_buffer", "tensor"),
            ("add_module", "module"),
        )
    },
}


def _hook(wrapped: Any, method: str, find: Find) -> Wrapper:
    """The hook for a method, on top of what is there, and looking like it."""
    hook = _METHODS[method](_as_function(wrapped), find)
    return _looking_like(wrapped, hook)


def _as_function(wrapped: Any) -> Wrapper:
    """What takes the module as its first argument, and has Python's own way to pass it on.

    Below the hook may be any descriptor, such as a wrapper of another library, which sees its
    instance only where it is bound.
    """
    if type(wrapped) is types.FunctionType:
        return wrapped
    get = getattr(type(wrapped), "__get__", None)

    def call(*args: Any, **kwargs: Any) -> Any:
        if not args:
            return wrapped(**kwargs)
        module, *rest = args
        bound = wrapped if get is None else get(wrapped, module, type(module))
        return bound(*rest, **kwargs)

    return call


def _looking_like(wrapped: Any, hook: Any) -> Wrapper:
    update_wrapper(hook, wrapped)
    # Else inspect.getfullargspec, which follows no __wrapped__, shows the hook's own parameters.
    signature = _signature_of(wrapped)
    if signature is not None:
        hook.__signature__ = signature
    return cast(Wrapper, hook)


def _signature_of(function: Any) -> inspect.Signature | None:
    known = _SIGNATURES.get(function) if type(function) is types.FunctionType else None
    if known is not None:
        return known
    try:
        return inspect.signature(function)
    except Exception:  # what a patch says of itself may be anything
        return None


# As they were when this was imported: of these functions known without a look at them, because
# each scope that puts the hook on comes here.
_ORIGINALS = {name: vars(Module)[name] for name in _METHODS}
_SIGNATURES = {
    one: inspect.signature(one) for one in _ORIGINALS.values() if type(one) is types.FunctionType
}


def watch_global() -> None:
    """From now on, show handlers global tensors too."""
    _watchers.append(None)


_DEEP = 100  # wrappers on top of each other


class Installer:
    """Keeps the hook on ``nn.Module`` while at least one user of it is there, in any thread."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._lock = threading.Lock()
        self._users = 0
        self._wrappers: dict[str, Wrapper] = {}
        self._below: dict[str, Any] = {}  # what each of these was put on
        self._lost: list[str] = []  # methods that it was taken off while it was to be on
        # Weak: a wrapper that nobody else holds cannot come back.
        self._left_on: list[tuple[str, ref[Wrapper]]] = []

    def renew_lock(self) -> None:
        """After a fork: the thread that may have held it is not in the child."""
        self._lock = threading.Lock()

    def acquire(self, watch_global: bool) -> int:
        """Put the hook on if it is not; ``watch_global``: with the tensors that are global.

        Returns what :meth:`release` is to be given.
        """
        with self._lock:
            if self._users == 0:
                self._take_off()
                self._put_on(_METHODS)
            else:
                self._put_on_again()
            self._users += 1
            if watch_global:
                _watchers.append(None)
            return len(self._lost)

    def release(self, watch_global: bool, since: int = 0) -> list[str]:
        """Undo one :meth:`acquire` of the same argument; the last one takes the hook off.

        Returns the methods that somebody else has taken it off ``since``.
        """
        with self._lock:
            if watch_global:
                _watchers.pop()
            self._users -= 1
            if self._users:
                self._put_on_again()
            else:
                self._lost += self._off()
            lost = list(dict.fromkeys(self._lost[since:]))
            if self._users == 0:
                self._lost.clear()
                for name in [*self._wrappers]:
                    self._leave(name)
                self._take_off()
            return lost

    def _put_on_again(self) -> None:
        """Where somebody has taken the hook off."""
        lost = self._off()
        self._lost += lost
        self._put_on([name for name in lost if name in vars(Module)])

    def _put_on(self, methods: Iterable[str]) -> None:
        for name in methods:
            self._leave(name)
            # wrapt's types ask for a proxy; a plain function is one of its documented uses.
            self._wrappers[name] = wrapt.wrap_object(
                Module, name, cast(Any, _hook), (name, self._find)
            )
            self._below[name] = self._wrappers[name].__wrapped__  # type: ignore[attr-defined]

    def _leave(self, name: str) -> None:
        """From now on the wrapper of a method, if there is one, is to be off."""
        wrapper = self._wrappers.pop(name, None)
        self._below.pop(name, None)
        if wrapper is not None:
            self._left_on.append((name, ref(wrapper)))

    def _off(self) -> list[str]:
        """The methods that for certain do not come to the hook any more.

        Nothing is called to find out: what is there now may be anybody's code.
        """
        return [name for name in self._wrappers if not self._may_be_on(name)]

    def _may_be_on(self, name: str) -> bool:
        now = vars(Module).get(name)
        if now is self._wrappers[name]:
            return True
        # What was there before the hook cannot come to it. What has come since may.
        step = self._below[name]
        for _ in range(_DEEP):
            if now is step:
                return False
            step = getattr(step, "__wrapped__", None)
            if step is None:
                break
        return now is not None and now is not _ORIGINALS[name]

    def _take_off(self) -> None:
        # Another library's wrapper on top of ours is left alone: wrapt splices ours out below its
        # own kind of wrapper. Below a plain function ours stays, does nothing without a scope,
        # and is tried again later: who took off a wrapper may have put ours back.
        self._left_on = [left for left in self._left_on if not _is_off(*left)]


# Where ours lies below a plain function, which may or may not say what it wraps, or below so many
# wrappers that wrapt does not look that deep.
_BELOW = (
    wrapt.WrapperNotOutermostError,
    wrapt.WrapperNotFoundError,
    wrapt.WrapperChainTooDeepError,
)


def _is_off(name: str, wrapper: ref[Wrapper]) -> bool:
    ours = wrapper()
    if ours is None:
        return True
    try:
        wrapt.unwrap_object(Module, name, ours)
    except _BELOW:
        return False
    return True


def put_on_class(kind: type, find: Find) -> None:
    """Put the hook on one class for good; its subclasses' instances come to it too."""
    for name in _METHODS:
        inherited = name not in vars(kind)
        if inherited:
            # Not the method that is there now: a scope's hook, or another library's, may come on
            # to Module later, and go.
            setattr(kind, name, _inherited(kind, name))
        wrapt.wrap_object(kind, name, cast(Any, _hook), (name, find))
        if inherited and name == "__setattr__" and kind.__bases__ == (Module,):
            wrapt.wrap_object(kind, name, cast(Any, _short_cut), (kind,))
        if inherited:
            own = vars(kind)[name]
            setattr(own, PASSES_ON, id(own))


def _short_cut(wrapped: Wrapper, kind: type) -> Wrapper:
    """For the many plain attributes: no super() where nothing can be between kind and Module."""

    def __setattr__(self: Any, name: str, value: Any) -> Any:
        if type(value) in _PLAIN and type(self) is kind:
            return Module.__setattr__(self, name, value)
        return wrapped(self, name, value)

    return _looking_like(wrapped, __setattr__)


def _inherited(kind: Any, name: str) -> Wrapper:
    def __setattr__(self: Any, name: str, value: Any) -> None:
        super(kind, self).__setattr__(name, value)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(super(kind, self), name)(*args, **kwargs)

    forward = _looking_like(
        inspect.unwrap(getattr(Module, name)), __setattr__ if name == "__setattr__" else method
    )
    # As of a method that the class defines, which pickle finds by these.
    forward.__module__, forward.__qualname__ = kind.__module__, f"{kind.__qualname__}.{name}"
    return forward
