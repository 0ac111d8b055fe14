"""The context of a scope: entering and leaving it, and functions that run in one.

What can be suspended, a generator or a coroutine, has its scope in force only while it runs: the
caller of ``next()`` and the event loop's other tasks never see it.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import AsyncGenerator, Callable, Generator
from functools import partial, wraps
from typing import Any, Generic, TypeVar, cast

from .._text import short_repr
from ..conversion.session import warn_at
from ..errors import AutoglobalError, NeverEnteredWarning, SpecTypeError
from .stack import Frame, open_frames

Function = Callable[..., Any]
F = TypeVar("F", bound=Function)
Opened = TypeVar("Opened", bound=Frame)  # what ``as`` gives


class ScopeContext(Generic[Opened]):
    """A context manager and function decorator, to be entered as often as one likes."""

    for_a_class: str  # what to write where a class is decorated

    # The file and the line where it was made, for as long as nothing has run in it.
    _made_at: tuple[str, int] | None = None

    def __init__(self) -> None:
        self._open: list[Frame] = []
        frame = sys._getframe(2)
        self._made_at = frame.f_code.co_filename, frame.f_lineno

    def __del__(self) -> None:
        # At the end of the program it may still have been meant to be entered.
        if self._made_at is not None and not sys.is_finalizing():
            warn_at(
                *self._made_at,
                f"{self!r} was made and never entered, so that nothing was done. Expected: a "
                "block, or a function that it decorates. Received: neither. Write with "
                f"{type(self).__name__}(...):",
                NeverEnteredWarning,
            )

    def __getstate__(self) -> dict[str, Any]:
        self._made_at = None
        return {**vars(self), "_open": []}  # a copy is not open

    def new_frame(self) -> Opened:
        raise NotImplementedError

    def open_frame(self) -> Opened:
        self._made_at = None
        frame = self.new_frame()
        frame.open()
        self._open.append(frame)
        return frame

    def close_frame(self, frame: Frame, error: BaseException | None) -> None:
        self._open.remove(frame)
        inner = frame.close()
        if frame.origin.is_before_fork():
            return
        # One that is closed out of order converts nothing any more.
        frame.end(error if inner is None else error or GeneratorExit())
        if inner is not None:
            raise AutoglobalError(
                f"{self!r} was closed while {inner.opened_by!r}, opened in it, was open, which "
                "stays in force until it is closed itself. Expected: inner scopes are closed "
                "first. Write scopes as with-blocks, or close an ExitStack as a whole"
            )

    def __enter__(self) -> Opened:
        return self.open_frame()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        self._made_at = None
        for frame in open_frames():
            # A task has inherited what its creator opened, and has no business closing that.
            if frame.opened_by is self and frame.origin.is_here():
                self.close_frame(frame, error)
                return
        if any(frame.origin.is_before_fork() for frame in self._open):
            # A child that leaves the block in which it was forked: the scope is its parent's.
            self._open.pop().close()
            return
        if not self._open:
            raise AutoglobalError(
                f"{self!r} was closed and is not open. Expected: one close for each time that it "
                "was opened. Write it as a with-block"
            )
        frame = self._open[-1]
        if frame.origin.has_ended():  # and nobody is left who could close it there
            self._open.remove(frame)
            frame.close()
            frame.end(error or GeneratorExit())
        raise AutoglobalError(
            f"{self!r} was closed in another thread or task than it was opened in, where it stays "
            "in force until it is closed there. Expected: both in the same one. Write it as a "
            "with-block"
        )

    def __call__(self, function: F) -> F:
        self._made_at = None
        if isinstance(function, type):
            raise SpecTypeError(
                f"{type(self).__name__} decorates functions. Received: the class "
                f"{function.__name__}. Write {self.for_a_class}"
            )
        if isinstance(function, (staticmethod, classmethod)):
            raise SpecTypeError(
                f"{type(self).__name__} decorates functions. Received: {short_repr(function)}. "
                f"Write it below @{type(function).__name__}"
            )
        if not callable(function):
            raise SpecTypeError(
                f"{type(self).__name__} decorates functions. Received: {short_repr(function)}. "
                f"Write it above a def, or with {type(self).__name__}(...):"
            )
        return _run_in(self, function)


def _run_in(context: ScopeContext[Any], function: F) -> F:
    """``function``, each call of it in a scope of its own."""
    if inspect.isasyncgenfunction(function):
        runner = _async_generator(context, function)
    elif inspect.iscoroutinefunction(function):
        runner = _coroutine(context, function)
    elif inspect.isgeneratorfunction(function):
        runner = _generator(context, function)
    else:
        runner = _plain(context, function)
    return cast(F, wraps(function)(runner))


def _plain(context: ScopeContext[Any], function: Function) -> Function:
    def run(*args: Any, **kwargs: Any) -> Any:
        frame = context.open_frame()
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            context.close_frame(frame, error)
            raise
        context.close_frame(frame, None)
        return result

    return run


def _generator(context: ScopeContext[Any], function: Function) -> Function:
    def run(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        return (yield from _Suspendable(context).run(function(*args, **kwargs), last=True))

    return run


def _coroutine(context: ScopeContext[Any], function: Function) -> Function:
    async def run(*args: Any, **kwargs: Any) -> Any:
        return await _awaitable(_Suspendable(context).run(function(*args, **kwargs), last=True))

    return run


def _async_generator(
    context: ScopeContext[Any], function: Callable[..., Any]
) -> Callable[..., Any]:
    async def run(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        steps = _Suspendable(context)
        inner = function(*args, **kwargs)
        step = inner.__anext__()
        try:
            while True:
                try:
                    value = await _awaitable(steps.run(step, last=False))
                except StopAsyncIteration:
                    break
                try:
                    step = inner.asend((yield value))
                except GeneratorExit:
                    await _awaitable(steps.run(inner.aclose(), last=False))
                    raise
                except BaseException as error:
                    step = inner.athrow(error)
        except BaseException as error:
            steps.end(error)
            raise
        steps.end(None)

    return run


@types.coroutine
def _awaitable(steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    return (yield from steps)


class _Suspendable:
    """A scope that is put aside while what runs in it is suspended."""

    def __init__(self, context: ScopeContext[Any]) -> None:
        self._context = context
        self._frame: Frame | None = None
        self._top: Frame | None = None

    def run(self, inner: Any, last: bool) -> Generator[Any, Any, Any]:
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
            self._frame = self._top = self._context.open_frame()
        else:
            self._frame.resume(self._top)

    def _leave(self) -> None:
        if self._frame is not None:
            self._top = self._frame.suspend()

    def end(self, error: BaseException | None) -> None:
        if self._frame is not None:
            self._frame.resume(self._top)
            self._context.close_frame(self._frame, error)
            self._frame = None
