"""Signals that wait: a block in which no handler of the program can end a step half way.

Python runs the handler of a signal between any two instructions of the main thread, and what it
raises, as Ctrl-C does, comes out of there.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from threading import get_ident
from types import FrameType, TracebackType
from typing import Any, Callable

try:
    # Without the enumerations of the public ones, which cost 3 us a call (CPython 3.10, measured).
    from _signal import getsignal  # type: ignore[import-not-found]
    from _signal import signal as set_handler
except ImportError:
    from signal import getsignal
    from signal import signal as set_handler

Handler = Callable[[int, Any], object]

# Those that a program may have a handler for which raises. SIGINT first: see _put_back.
_NAMES = ("INT", "TERM", "HUP", "ALRM", "VTALRM", "PROF", "USR1", "USR2")
_SIGNALS = [int(getattr(signal, f"SIG{name}")) for name in _NAMES if hasattr(signal, f"SIG{name}")]


class _Uninterrupted:
    """``with uninterrupted:`` handlers run as the outermost such block ends, in their order.

    Only handlers that are Python code wait: what ends a process at once goes on doing so. In other
    threads than the main one, which run no handlers, it does nothing. No code of the user's that
    may take long belongs in one, because Ctrl-C would wait for it.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._handlers: list[tuple[int, Handler]] = []
        self._known: dict[int, Handler] = {}  # the last ones
        self._came: dict[int, Handler] = {}
        self._waits: Handler = self._note

    def __enter__(self) -> None:
        if get_ident() != _main:
            return
        if self._depth:
            self._depth += 1
            return
        self._handlers = found = []
        self._depth = 1
        try:
            for one in _SIGNALS:
                known = getsignal(one)
                # Ours where the program has put back what it took for its own inside of a block.
                if callable(known) and known is not self._waits:
                    found.append((one, known))
                    self._known[one] = known
                    set_handler(one, self._waits)
        except BaseException:  # from a handler that does not wait yet
            self._end()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        frames: TracebackType | None,
    ) -> None:
        if get_ident() != _main:
            return
        if self._depth > 1:
            self._depth -= 1
            return
        self._end()

    def _end(self) -> None:
        """Put the handlers back, and run those whose signals came."""
        try:
            try:
                self._put_back()
            except BaseException:  # from a handler that is back already, while others are not
                self._put_back()
                raise
        finally:
            self._depth = 0
            if self._came:
                self._deliver(sys._getframe(2))

    def _put_back(self) -> None:
        # SIGINT last, so that nothing is left to do once it may come again.
        for one, known in reversed(self._handlers):
            if getsignal(one) is self._waits:  # else the program has set another one meanwhile
                set_handler(one, known)

    def _note(self, which: int, frame: FrameType | None) -> None:
        if self._depth:
            self._came[which] = self._known[which]
        else:  # the program has put this one on, which it had taken for its own
            self._known[which](which, frame)

    def _deliver(self, frame: FrameType) -> None:
        which = next(iter(self._came))
        handler = self._came.pop(which)
        try:
            handler(which, frame)
        finally:
            if self._came:
                self._deliver(frame)

    def leave(self) -> None:
        """In a child of fork: the signals that wait are its parent's, its handlers are its own."""
        self._came.clear()
        if self._depth:
            self._put_back()
            self._depth = 0


uninterrupted = _Uninterrupted()

_main = threading.main_thread().ident


def _after_fork_in_child() -> None:
    global _main
    _main = get_ident()  # the thread that forked is the child's main thread
    uninterrupted.leave()


os.register_at_fork(after_in_child=_after_fork_in_child)
