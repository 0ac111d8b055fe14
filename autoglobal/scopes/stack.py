"""The stack of open scopes: which is in force for this thread, this asyncio task and a module."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Optional
from weakref import ref

from .. import _compat
from .._compat import Module
from ..conversion.session import current_block
from ..modules.decorated import handler_of
from ..modules.hook import Handler, Installer

if TYPE_CHECKING:
    from .deferred import Deferred


class Origin:
    """Where a scope was opened: a process, a thread, and the asyncio task in it if there is one.

    It keeps none of these alive, because a record of a scope may be kept for long, and a task holds
    whatever its coroutine did.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._thread = ref(threading.current_thread())
        task = _current_task()
        self._task = None if task is None else ref(task)

    def is_here(self) -> bool:
        task = None if self._task is None else self._task()
        return self._thread() is threading.current_thread() and task is _current_task()

    def has_ended(self) -> bool:
        thread = self._thread()
        if thread is None or not thread.is_alive():
            return True
        task = None if self._task is None else self._task()
        return self._task is not None and (task is None or task.done())

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
    """One open scope. With ``is_local``, as ``local_scope`` opens, nothing is converted.

    ``deferred`` is what is to be converted as the scope ends, with ``when="exit"``.
    """

    handler: Handler | None = None
    deferred: Deferred | None = None
    is_local = True
    watch_global = False
    _hooked_since = 0

    def __init__(self, opened_by: object) -> None:
        self.opened_by = opened_by
        self.origin = Origin()
        self.outer: Frame | None = None
        self.inner: Frame | None = None
        self.block = current_block.get()  # a scope that the ranks meet in has one of its own
        self.closed = False
        self.thread = threading.get_ident()
        self.unhooked: list[str] = []  # methods that the hook was taken off while it was open

    def __getstate__(self) -> dict[str, Any]:
        return {}  # a copy tells of nothing, and is not open

    def __setstate__(self, state: dict[str, Any]) -> None:
        Frame.__init__(self, None)
        self.closed = True

    def open(self) -> None:
        """Make this the innermost frame."""
        if self.handler is not None:
            self._hooked_since = installer.acquire(self.watch_global)
        self.outer = innermost()
        _put(self)

    def close(self) -> None:
        """Take this frame out, wherever it is; ``inner`` is the innermost, where that is another.

        A frame in between is marked and passed over, also by the tasks that have inherited it.
        """
        top = innermost()
        self.closed = True
        if self.handler is not None:
            self.unhooked = installer.release(self.watch_global, self._hooked_since)
        if top is self:
            _put(self.outer)
        else:
            self.inner = top

    def end(self, error: BaseException | None) -> None:
        """Do what is due as the block ends, ``error`` being how, unless that is done."""

    def suspend(self) -> Frame | None:
        """Put this frame and those opened in it aside; return the innermost of these."""
        if self.origin.is_before_fork():
            return None
        top = innermost()
        _put(self.outer)
        return top

    def resume(self, top: Frame | None) -> None:
        """Put back what :meth:`suspend` has put aside, on top of what is open here and now."""
        if self.origin.is_before_fork():
            return  # its scope is the parent process's
        self.outer = innermost()
        _put(top)
        while top is not None and top is not self.outer:  # perhaps in another thread than before
            top.thread = threading.get_ident()
            top = top.outer


# A task starts with a copy of its creator's context, a new thread with an empty one; where a
# context was copied into a thread all the same, as asyncio.to_thread does, the frames stay behind.
_innermost: ContextVar[Optional[Frame]] = ContextVar("autoglobal_scope", default=None)


def _put(frame: Frame | None) -> None:
    """Make a frame the innermost one."""
    _innermost.set(frame)
    current_block.set(None if frame is None else frame.block)


def open_frames() -> Iterator[Frame]:
    """The open frames of this thread and task, the innermost first."""
    frame = _innermost.get()
    while frame is not None:
        if not frame.closed and frame.thread == threading.get_ident():
            yield frame
        frame = frame.outer


def innermost() -> Frame | None:
    # Not by open_frames(), because each assignment of a tensor comes through here.
    frame, thread = _innermost.get(), threading.get_ident()
    while frame is not None and (frame.closed or frame.thread != thread):
        frame = frame.outer
    return frame


def find(module: Module) -> Handler | None:
    """The handler in force for an assignment to ``module``, here and now."""
    frame = innermost()
    if frame is None:
        return None if _compat.is_forked else handler_of(type(module))
    if frame.is_local:
        return frame.handler
    own = handler_of(type(module))
    # A class that states its layout keeps it. One that has none of its own takes the scope's.
    return frame.handler if own is None or not own.states else own


installer = Installer(find)


def _after_fork_in_child() -> None:
    # A child of fork, such as a DataLoader's worker, cannot take part in what the ranks do.
    _put(None)
    installer.renew_lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
