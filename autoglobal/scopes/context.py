"""What ``global_scope`` and ``local_scope`` have in common: entering, leaving, decorating."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, TypeVar

from .._text import received
from ..errors import AutoglobalError, SpecTypeError
from .running import run_in
from .stack import Frame, open_frames

F = TypeVar("F", bound=Callable[..., Any])
Opened = TypeVar("Opened", bound=Frame)  # what ``as`` gives


class Block(Generic[Opened]):
    """A context manager and function decorator, to be entered as often as one likes."""

    for_a_class: str  # what to write where a class is decorated

    def __init__(self) -> None:
        self._open: list[Frame] = []

    def new_frame(self) -> Opened:
        raise NotImplementedError

    def open_frame(self) -> Opened:
        frame = self.new_frame()
        frame.open()
        self._open.append(frame)
        return frame

    def close_frame(self, frame: Frame, error: BaseException | None) -> None:
        self._open.remove(frame)
        inner = frame.close()
        if frame.opened_in.is_before_fork():
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
        traceback: TracebackType | None,
    ) -> None:
        for frame in open_frames():
            # A task has inherited what its creator opened, and has no business closing that.
            if frame.opened_by is self and frame.opened_in.is_here():
                self.close_frame(frame, error)
                return
        if any(frame.opened_in.is_before_fork() for frame in self._open):
            # A child that leaves the block in which it was forked: the scope is its parent's.
            self._open.pop().close()
            return
        if not self._open:
            raise AutoglobalError(
                f"{self!r} was closed and is not open. Expected: one close for each time that it "
                "was opened. Write it as a with-block"
            )
        frame = self._open[-1]
        if frame.opened_in.has_ended():  # and nobody is left who could close it there
            self._open.remove(frame)
            frame.close()
            frame.end(error or GeneratorExit())
        raise AutoglobalError(
            f"{self!r} was closed in another thread or task than it was opened in, where it stays "
            "in force until it is closed there. Expected: both in the same one. Write it as a "
            "with-block"
        )

    def __call__(self, function: F) -> F:
        if isinstance(function, type):
            raise SpecTypeError(
                f"{type(self).__name__} decorates functions. Received: the class "
                f"{function.__name__}. Write {self.for_a_class}"
            )
        if isinstance(function, (staticmethod, classmethod)):
            raise SpecTypeError(
                f"{type(self).__name__} decorates functions. Received: {received(function)}. Write "
                f"it below @{type(function).__name__}"
            )
        if not callable(function):
            raise SpecTypeError(
                f"{type(self).__name__} decorates functions. Received: {received(function)}. Write "
                f"it above a def, or with {type(self).__name__}(...):"
            )
        return run_in(self, function)
