"""Which spec is in force: for this thread and asyncio task, and for a module's class."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Optional

from ..modules import decorated as classes
from ..modules import hook
from ..modules.registry import Module


class Place:
    """A process, a thread, and the asyncio task in it if there is one."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._thread = threading.current_thread()
        self._task = _current_task()

    def is_here(self) -> bool:
        return self._thread is threading.current_thread() and self._task is _current_task()

    def has_ended(self) -> bool:
        return not self._thread.is_alive() or (self._task is not None and self._task.done())

    def is_before_fork(self) -> bool:
        return self._process != os.getpid()


def _current_task() -> Any:
    # Where nobody has imported asyncio there are no tasks.
    asyncio = sys.modules.get("asyncio")
    try:
        return None if asyncio is None else asyncio.current_task()
    except RuntimeError:  # no loop is running
        return None


class Frame:
    """One open scope. With ``is_local``, as ``local_scope`` opens, nothing is converted."""

    handler: hook.Handler | None = None
    is_local = True
    watch_global = False

    def __init__(self, opened_by: object) -> None:
        self.opened_by = opened_by
        self.opened_in = Place()
        self.outer: Frame | None = None
        self.closed = False
        self.thread = threading.get_ident()

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

    def taken_over(self, value: Any) -> None:
        """A class that states its layout has converted the Tensor or Module ``value``."""

    def suspend(self) -> Frame | None:
        """Put this frame and those opened in it aside; return the innermost of these."""
        if self.opened_in.is_before_fork():
            return None
        top = innermost()
        _innermost.set(self.outer)
        return top

    def resume(self, top: Frame | None) -> None:
        """Put back what :meth:`suspend` has put aside, on top of what is open here and now."""
        if self.opened_in.is_before_fork():
            return  # its scope is the parent process's
        self.outer = innermost()
        _innermost.set(top)
        while top is not None and top is not self.outer:  # perhaps in another thread than before
            top.thread = threading.get_ident()
            top = top.outer


# A task starts with a copy of its creator's context, a new thread with an empty one; where a
# context was copied into a thread all the same, as asyncio.to_thread does, the frames stay behind.
_innermost: ContextVar[Optional[Frame]] = ContextVar("autoglobal_scope", default=None)


def open_frames() -> Iterator[Frame]:
    """The open frames of this thread and task, the innermost first."""
    frame = _innermost.get()
    while frame is not None:
        if not frame.closed and frame.thread == threading.get_ident():
            yield frame
        frame = frame.outer


def innermost() -> Frame | None:
    return next(open_frames(), None)


def find(module: Module) -> hook.Handler | None:
    """The handler in force for an assignment to ``module``, here and now."""
    frame = innermost()
    if frame is None:
        return None if _forked else classes.handler_of(type(module))
    if frame.is_local:
        return frame.handler
    own = classes.handler_of(type(module))
    # A class that states its layout keeps it, one that follows follows the scope.
    return frame.handler if own is None or own.spec is None else own


installer = hook.Installer(find)


def handle_class(kind: Any, handler: classes.ClassHandler, watch_global: bool = False) -> None:
    """Let ``handler`` see what is assigned to instances of ``kind``, from now on."""
    if classes.put(kind, handler):
        hook.put_on_class(kind, find)
    if watch_global:
        hook.watch_global()


_forked = False


def _after_fork_in_child() -> None:
    # A child of fork, such as a DataLoader's worker, cannot take part in what the ranks do.
    global _forked
    _forked = True
    _innermost.set(None)
    installer.renew_lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
