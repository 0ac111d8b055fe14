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

from .._signals import uninterrupted
from .._text import short_repr
from ..conversion.session import warn_at
from ..errors import AutoglobalError, NeverEnteredWarning, SpecTypeError, shorten_traceback
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

    # A signal may come before any line, and must not leave a scope open for good. So the steps are
    # such that signals wait for them, and are tried again where one came first. At a "try" or a
    # "with" CPython handles none, so that nothing is to stand before these.

    def open_frame(self, frame: Frame) -> None:
        with uninterrupted:
            self._made_at = None
            frame.open()
            self._open.append(frame)

    def take_out(self, frame: Frame) -> None:
        """Take a frame out of the stack, unless it has been."""
        with uninterrupted:
            if frame in self._open:
                self._open.remove(frame)
                frame.close()

    def end_frame(self, frame: Frame, error: BaseException | None) -> None:
        """Do what is due at the end of a frame that was taken out."""
        if frame.origin.is_before_fork():
            return
        inner = frame.inner
        # One that is closed out of order converts nothing any more.
        frame.end(error if inner is None else error or GeneratorExit())
        if inner is not None:
            raise AutoglobalError(
                f"{self!r} was closed while {inner.opened_by!r}, opened in it, was open, which "
                "stays in force until it is closed itself. Expected: inner scopes are closed "
                "first. Write scopes as with-blocks, or close an ExitStack as a whole"
            )

    def finish(self, frame: Frame, error: BaseException) -> None:
        """End a frame that was taken out, unless it has been: ``error`` may have come before."""
        if not frame.origin.is_before_fork():
            frame.end(error)

    def __enter__(self) -> Opened:
        frame: Opened | None = None
        try:
            frame = self.new_frame()
            self.open_frame(frame)
            return frame
        except BaseException:
            if frame is not None:
                self.take_out(frame)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
        frame: Frame | None = None,  # here because no line may come before the "try"
    ) -> None:
        try:
            self._made_at = None
            frame = self._own_frame()
            if frame is None:
                self._refuse_to_close(error)
                return
            self.take_out(frame)
            self.end_frame(frame, error)
        except BaseException as stop:
            with uninterrupted:
                if frame is None:
                    frame = self._own_frame()
                if frame is not None:
                    self.take_out(frame)
            if frame is not None:
                self.finish(frame, stop)
            if isinstance(stop, AutoglobalError):
                shorten_traceback(stop.__traceback__)
            raise

    def _own_frame(self) -> Frame | None:
        """The innermost frame that is open here by this context."""
        for frame in open_frames():
            # A task has inherited what its creator opened, and has no business closing that.
            if frame.opened_by is self and frame.origin.is_here():
                return frame
        return None

    def _refuse_to_close(self, error: BaseException | None) -> None:
        """Say why there is nothing to close here; a child of fork may leave its parent's block."""
        if any(frame.origin.is_before_fork() for frame in self._open):
            self.take_out(self._open[-1])
            return
        if not self._open:
            raise AutoglobalError(
                f"{self!r} was closed and is not open. Expected: one close for each time that it "
                "was opened. Write it as a with-block"
            )
        frame = self._open[-1]
        if frame.origin.has_ended():  # and nobody is left who could close it there
            self.take_out(frame)
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
        with context:
            return function(*args, **kwargs)

    return run


def _generator(context: ScopeContext[Any], function: Function) -> Function:
    def run(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        with _Suspendable(context) as steps:
            return (yield from steps.run(function(*args, **kwargs)))

    return run


def _coroutine(context: ScopeContext[Any], function: Function) -> Function:
    async def run(*args: Any, **kwargs: Any) -> Any:
        with _Suspendable(context) as steps:
            return await _awaitable(steps.run(function(*args, **kwargs)))

    return run


def _async_generator(
    context: ScopeContext[Any], function: Callable[..., Any]
) -> Callable[..., Any]:
    async def run(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        with _Suspendable(context) as steps:
            inner = function(*args, **kwargs)
            step = inner.__anext__()
            while True:
                try:
                    value = await _awaitable(steps.run(step))
                except StopAsyncIteration:
                    break
                try:
                    step = inner.asend((yield value))
                except GeneratorExit:
                    await _awaitable(steps.run(inner.aclose()))
                    raise
                except BaseException as error:
                    step = inner.athrow(error)

    return run


@types.coroutine
def _awaitable(steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    return (yield from steps)


class _Suspendable:
    """A scope that is put aside while what runs in it is suspended, and ends with this block."""

    def __init__(self, context: ScopeContext[Any]) -> None:
        self._context = context
        self._frame: Frame | None = None
        self._top: Frame | None = None
        self._is_in_force = False

    def __enter__(self) -> _Suspendable:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
        frame: Frame | None = None,  # as in ScopeContext
    ) -> None:
        try:
            frame = self._frame
            if frame is not None:
                self._take_out()
                self._context.end_frame(frame, error)
        except BaseException as stop:
            if frame is None:
                frame = self._frame
            self._take_out()
            if frame is not None:
                self._context.finish(frame, stop)
            raise

    def run(self, inner: Any) -> Generator[Any, Any, Any]:
        """``yield from inner``, in the scope."""
        resume: Callable[[], Any] = partial(inner.send, None)
        while True:
            try:
                with _InForce(self):
                    value = resume()
            except StopIteration as stop:
                return stop.value
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

    def resume(self) -> None:
        with uninterrupted:
            if self._frame is None:
                frame = self._context.new_frame()
                self._context.open_frame(frame)
                self._frame = self._top = frame
            else:
                self._frame.resume(self._top)
            self._is_in_force = True

    def suspend(self) -> None:
        """Put the scope aside, unless it is."""
        with uninterrupted:
            if self._is_in_force and self._frame is not None:
                self._top = self._frame.suspend()
            self._is_in_force = False

    def _take_out(self) -> None:
        """Take the frame out of the stack, unless it has been."""
        with uninterrupted:
            frame, self._frame = self._frame, None
            if frame is not None:
                if not self._is_in_force:  # it is where an exception came right before the end
                    frame.resume(self._top)
                self._context.take_out(frame)


class _InForce:
    """A block in which the scope of a :class:`_Suspendable` is in force."""

    def __init__(self, steps: _Suspendable) -> None:
        self._steps = steps

    def __enter__(self) -> None:
        try:
            self._steps.resume()
        except BaseException:
            self._steps.suspend()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            self._steps.suspend()
        except BaseException:
            self._steps.suspend()
            raise
