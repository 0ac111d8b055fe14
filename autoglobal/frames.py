"""Which spec is in force: for this thread and asyncio task, and for a module's class."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Optional, Protocol
from weakref import WeakKeyDictionary

from . import hook
from .registry import Module


class Place:
    """A thread, and the asyncio task in it if there is one."""

    def __init__(self) -> None:
        self._thread = threading.current_thread()
        self._task = _current_task()

    def is_here(self) -> bool:
        return self._thread is threading.current_thread() and self._task is _current_task()

    def has_ended(self) -> bool:
        return not self._thread.is_alive() or (self._task is not None and self._task.done())


def _current_task() -> Any:
    # Where nobody has imported asyncio there are no tasks.
    asyncio = sys.modules.get("asyncio")
    try:
        return None if asyncio is None else asyncio.current_task()
    except RuntimeError:  # no loop is running
        return None


class Frame:
    """One open scope. Inside a plain one, as ``local_scope`` opens, nothing is converted."""

    handler: hook.Handler | None = None
    watch_global = False

    def __init__(self, opened_by: object) -> None:
        self.opened_by = opened_by
        self.opened_in = Place()
        self.outer: Frame | None = None
        self.closed = False

    def open(self) -> None:
        """Make this the innermost frame."""
        if self.handler is not None:
            installer.acquire(self.watch_global)
        self.outer = innermost()
        _innermost.set(self)

    def close(self) -> Frame | None:
        """Take this frame out, wherever it is; return the innermost one where that is another.

        A frame in between is marked and passed over, also by the tasks that have inherited it.
        """
        top = innermost()
        self.closed = True
        if self.handler is not None:
            installer.release(self.watch_global)
        if top is self:
            _innermost.set(self.outer)
            return None
        return top

    def end(self, error: BaseException | None) -> None:
        """Do what is due as the block ends, ``error`` being how."""

    def suspend(self) -> Frame | None:
        """Put this frame and those opened in it aside; return the innermost of these."""
        top = innermost()
        _innermost.set(self.outer)
        return top

    def resume(self, top: Frame | None) -> None:
        """Put back what :meth:`suspend` has put aside, on top of what is open here and now."""
        self.outer = innermost()
        _innermost.set(top)


# A new thread starts with an empty context, a task with a copy of its creator's.
_innermost: ContextVar[Optional[Frame]] = ContextVar("autoglobal_scope", default=None)


def open_frames() -> Iterator[Frame]:
    """The open frames of this thread and task, the innermost first."""
    frame = _innermost.get()
    while frame is not None:
        if not frame.closed:
            yield frame
        frame = frame.outer


def innermost() -> Frame | None:
    return next(open_frames(), None)


class ClassHandler(hook.Handler, Protocol):
    """What a decorated class does with what is assigned to its instances.

    One that ``states`` its placement keeps it inside a scope, the other follows the scope.
    """

    states: bool


classes: WeakKeyDictionary[type, ClassHandler] = WeakKeyDictionary()


def find(module: Module) -> hook.Handler | None:
    """The handler in force for an assignment to ``module``, here and now."""
    frame = innermost()
    if frame is not None and frame.handler is None:
        return None
    own = _of_class(type(module)) if classes else None
    if own is not None and (own.states or frame is None):
        return own
    return None if frame is None else frame.handler


def _of_class(kind: type) -> ClassHandler | None:
    for one in kind.__mro__:
        handler = classes.get(one)
        if handler is not None:
            return handler
    return None


installer = hook.Installer(find)


def handle_class(kind: Any, handler: ClassHandler, watch_global: bool = False) -> None:
    """Let ``handler`` see what is assigned to instances of ``kind``, from now on."""
    if kind not in classes:
        hook.put_on_class(kind, find)
    if watch_global:
        hook.watch_global()
    classes[kind] = handler
