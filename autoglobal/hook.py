"""Puts a hook on ``oneflow.nn.Module`` with wrapt and takes it off again.

The only file that imports wrapt. The hook decides whether a call concerns a scope, never what
happens then. What it puts on is a plain function, not a wrapt ``FunctionWrapper``: it costs a
plain attribute about a tenth where a ``FunctionWrapper`` doubles the time (``make bench``).
"""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Optional, Protocol, cast

import wrapt
from oneflow import Tensor
from oneflow.nn import Module, Parameter

Forward = Callable[[], Any]


class Handler(Protocol):
    """What a scope offers to the hook."""

    def on_assign(self, forward: Forward, module: Any, via: str, name: Any, value: Any) -> Any:
        """Return ``forward()``, which has ``module`` register the Tensor or Module ``value``.

        ``via`` is the method of ``nn.Module`` that was called.
        """


Find = Callable[[], Optional[Handler]]  # the handler in force for this thread and task
Wrapper = Callable[..., Any]

# Most assignments are of these, and none of them can be a Tensor or a Module.
_PLAIN = frozenset(
    {int, float, bool, str, bytes, type(None), tuple, list, dict, set, frozenset, slice, range}
    | {types.FunctionType, types.BuiltinFunctionType, types.MethodType, partial, type}
)
_ABSENT: Any = object()


def _setattr_hook(wrapped: Wrapper, find: Find, via: str) -> Wrapper:
    # No lambda below: a variable that it captures makes every call of the hook slower.
    @wraps(wrapped)
    def __setattr__(self: Any, name: str, value: Any) -> Any:
        # The quick ways out, the most hurried first.
        kind = type(value)
        if kind is Parameter:
            if value.is_global:
                return wrapped(self, name, value)
        elif kind in _PLAIN:
            return wrapped(self, name, value)
        handler = find()
        if handler is None or not isinstance(value, (Tensor, Module)):
            return wrapped(self, name, value)
        return handler.on_assign(partial(wrapped, self, name, value), self, via, name, value)

    return __setattr__


def _register_hook(wrapped: Wrapper, find: Find, via: str, keyword: str) -> Wrapper:
    names = ("self", "name", keyword)

    # The named arguments are for speed: OneFlow's __setattr__ calls register_parameter with two.
    @wraps(wrapped)
    def register(
        self: Any = _ABSENT,
        name: Any = _ABSENT,
        value: Any = _ABSENT,
        /,
        *rest: Any,
        **kwargs: Any,
    ) -> Any:
        if type(value) is Parameter and value.is_global and not rest and not kwargs:
            return wrapped(self, name, value)
        # Forwarded in the shape in which the call came, a wrong one too.
        args = tuple(one for one in (self, name, value) if one is not _ABSENT) + rest
        call = {**kwargs, **dict(zip(names, args))}
        handler = find()
        if handler is None or not isinstance(call.get(keyword), (Tensor, Module)):
            return wrapped(*args, **kwargs)
        forward = partial(wrapped, *args, **kwargs)
        return handler.on_assign(forward, call.get("self"), via, call.get("name"), call[keyword])

    return register


_METHODS: dict[str, Callable[[Wrapper, Find], Wrapper]] = {
    "__setattr__": partial(_setattr_hook, via="__setattr__"),
    **{
        via: partial(_register_hook, via=via, keyword=keyword)
        for via, keyword in (
            ("register_parameter", "param"),
            ("register_buffer", "tensor"),
            ("add_module", "module"),
        )
    },
}


class Installer:
    """Keeps the hook on ``nn.Module`` while at least one user of it is there, in any thread."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._lock = threading.Lock()
        self._users = 0
        self._wrappers: dict[str, Wrapper] = {}

    def acquire(self) -> None:
        with self._lock:
            if self._users == 0:
                for name, factory in _METHODS.items():
                    # wrapt's types ask for a proxy; a plain function is one of its documented uses.
                    self._wrappers[name] = wrapt.wrap_object(
                        Module, name, cast(Any, factory), (self._find,)
                    )
            self._users += 1

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                for name, wrapper in self._wrappers.items():
                    _take_off(name, wrapper)
                self._wrappers.clear()


def _take_off(name: str, wrapper: Wrapper) -> None:
    # Another library's wrapper on top of ours is left alone: wrapt splices ours out below its own
    # kind of wrapper, and below a plain function ours stays and does nothing without a scope.
    with contextlib.suppress(wrapt.WrapperNotOutermostError):
        wrapt.unwrap_object(Module, name, wrapper, missing_ok=True)
