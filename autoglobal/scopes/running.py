"""Scopes as decorators: a function runs in a scope of its own, each call in another one.

What can be suspended, a generator or a coroutine, has its scope in force only while it runs: the
caller of ``next()`` and the event loop's other tasks never see it.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import AsyncGenerator, Callable, Generator
from functools import partial, wraps
from typing import Any, Protocol, TypeVar, cast

from .stack import Frame

F = TypeVar("F", bound=Callable[..., Any])


class Scope(Protocol):
    """What is needed of a scope here."""

    def open_frame(self) -> Frame: ...

    def close_frame(self, frame: Frame, error: BaseException | None) -> None: ...


def run_in(scope: Scope, function: F) -> F:
    """``function``, to run in ``scope``."""
    if inspect.isasyncgenfunction(function):
        runner = _async_generator(scope, function)
    elif inspect.iscoroutinefunction(function):
        runner = _coroutine(scope, function)
    elif inspect.isgeneratorfunction(function):
        runner = _generator(scope, function)
    else:
        runner = _plain(scope, function)
    return cast(F, wraps(function)(runner))


def _plain(scope: Scope, function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        frame = scope.open_frame()
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            scope.close_frame(frame, error)
            raise
        scope.close_frame(frame, None)
        return result

    return run


def _generator(scope: Scope, function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        return (yield from _Aside(scope).steps(function(*args, **kwargs), last=True))

    return run


def _coroutine(scope: Scope, function: Callable[..., Any]) -> Callable[..., Any]:
    async def run(*args: Any, **kwargs: Any) -> Any:
        return await _awaitable(_Aside(scope).steps(function(*args, **kwargs), last=True))

    return run


def _async_generator(scope: Scope, function: Callable[..., Any]) -> Callable[..., Any]:
    async def run(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        aside = _Aside(scope)
        inner = function(*args, **kwargs)
        step = inner.__anext__()
        try:
            while True:
                try:
                    value = await _awaitable(aside.steps(step, last=False))
                except StopAsyncIteration:
                    break
                try:
                    step = inner.asend((yield value))
                except GeneratorExit:
                    await _awaitable(aside.steps(inner.aclose(), last=False))
                    raise
                except BaseException as error:
                    step = inner.athrow(error)
        except BaseException as error:
            aside.end(error)
            raise
        aside.end(None)

    return run


@types.coroutine
def _awaitable(steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    return (yield from steps)


class _Aside:
    """A scope that is put aside while what runs in it is suspended."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._frame: Frame | None = None
        self._top: Frame | None = None

    def steps(self, inner: Any, last: bool) -> Generator[Any, Any, Any]:
        """``yield from inner``, in the scope; ``last``: and the scope ends with it."""
        resume: Callable[[], Any] = partial(inner.send, None)
        while True:
            self._enter()
            try:
                value = resume()
            except StopIteration as stop:
                self._leave()
                if last:
                    self.end(None)
                return stop.value
            except BaseException as error:
                self._leave()
                if last:
                    self.end(error)
                raise
            self._leave()
            try:
                resume = partial(inner.send, (yield value))
            except GeneratorExit:
                resume = partial(self._closed, inner)
            except BaseException as error:
                resume = partial(inner.throw, error)

    @staticmethod
    def _closed(inner: Any) -> None:
        inner.close()
        raise GeneratorExit

    def _enter(self) -> None:
        if self._frame is None:
            self._frame = self._top = self._scope.open_frame()
        else:
            self._frame.resume(self._top)

    def _leave(self) -> None:
        if self._frame is not None:
            self._top = self._frame.suspend()

    def end(self, error: BaseException | None) -> None:
        if self._frame is not None:
            self._frame.resume(self._top)
            self._scope.close_frame(self._frame, error)
            self._frame = None
