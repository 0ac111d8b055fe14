"""The watchdog: it ends a process that has waited too long for other ranks, and says for whom.

Below Python a wait for another rank cannot be given up: the message stays in OneFlow's queue, and
the process could not even end by itself. So a thread watches, as PyTorch's does for NCCL. It is
started by the first wait, sleeps while nothing is converted, and leaves after a while of that.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from .._signals import uninterrupted
from .._text import printable

EXIT_CODE = 124  # what timeout(1) returns
_NAP = 0.5  # seconds; so much longer than its limit a wait can last
_IDLE_NAPS = 20
_FIRST_WORD = 10.0  # seconds after which it says for whom it waits; then after three times as many
_ONEFLOW_LIMIT = 7200.0


def limit_of(timeout: float) -> float:
    """``timeout``, or less where OneFlow would abort the process before, without a word of why."""
    try:
        its = float(os.environ.get("ONEFLOW_TIMEOUT_SECONDS", _ONEFLOW_LIMIT))
    except ValueError:
        its = _ONEFLOW_LIMIT
    # Early enough for a watchdog that looks up only now and then.
    return min(timeout, max(its / 2, min(0.9 * its, its - 2 * _NAP)))


class Wait:
    """A block in which this process waits for other ranks, for at most ``limit`` seconds each time.

    ``what`` and ``whom`` give the words for what it does and for whom it waits, when asked. No
    handler of a signal runs in it: a message that was sent for half an exchange would be taken for
    the next one.
    """

    __slots__ = ("_deadline", "_limit", "_outer", "_since", "_tell_after", "what", "whom")

    def __init__(self, limit: float, what: Callable[[], str], whom: Callable[[], str]) -> None:
        self.what = what
        self.whom = whom
        self._limit = limit
        self._outer: Wait | None = None
        self.renew()

    def renew(self) -> None:
        """Another rank has answered: the limit counts from here."""
        self._since = time.time()
        self._deadline = time.monotonic() + self._limit
        self._tell_after = _FIRST_WORD

    def __enter__(self) -> Wait:
        global _current
        uninterrupted.__enter__()
        self._outer = _current
        _current = self  # before it is looked at: the thread may be about to leave
        try:
            if _thread is None:
                _start()
        except BaseException:
            _current = self._outer
            uninterrupted.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        frames: TracebackType | None,
    ) -> None:
        global _current
        _current = self._outer
        if _current is not None:
            _current.renew()
        elif _at_exit:
            _stop()
        uninterrupted.__exit__(kind, error, frames)

    def extend(self, seconds: float) -> None:
        """That many seconds were no waiting: the whole process stood still."""
        self._deadline += seconds

    def is_over(self) -> bool:
        return time.monotonic() > self._deadline

    def progress(self) -> str | None:
        """What there is to say of the wait by now, if it is time to say something."""
        waited = self._limit - (self._deadline - time.monotonic())
        if waited < self._tell_after:
            return None
        while waited >= self._tell_after:
            self._tell_after *= 3
        return (
            f"autoglobal: {self.what()}: still waiting for {self.whom()} ({waited:.0f} s of "
            f"{self._limit:g} s)"
        )

    def complaint(self) -> str:
        seconds = time.time() - self._since
        clock = time.strftime("%H:%M:%S", time.localtime(self._since))
        return (
            f"autoglobal: {self.what()}: waiting since {clock} ({seconds:.0f} s, the limit is "
            f"{self._limit:g} s) for {self.whom()}. Expected: every rank makes the same "
            "assignments in the same order, and opens and closes the same scopes. This process "
            f"ends with exit code {EXIT_CODE}. Write timeout=... for another limit"
        )


_current: Wait | None = None
_thread: threading.Thread | None = None
_lock = threading.Lock()
_done = threading.Event()
_at_exit = False  # the program is over, and its last functions run


def _start() -> None:
    global _thread
    with _lock:
        if _thread is None:
            started = threading.Thread(target=_watch, name="autoglobal watchdog", daemon=True)
            started.start()
            _thread = started


def _watch() -> None:
    global _thread
    idle, before = 0, time.monotonic()
    while not _done.wait(_NAP):
        now = time.monotonic()
        stood_still, before = now - before - _NAP, now
        idle = 0 if _looked_at_one(stood_still) else idle + 1
        if idle > _IDLE_NAPS:
            me, _thread = _thread, None
            # A wait that began just now may have seen this thread still there.
            if _current is None or _thread is not None:
                return
            _thread, idle = me, 0


def _looked_at_one(stood_still: float) -> bool:
    # A function of its own, so that no wait, and no tensor that it knows, is held in between.
    wait = _current
    if wait is None:
        return False
    # All processes may have been stopped and continued, as by a batch system.
    if stood_still > _NAP:
        wait.extend(stood_still)
    if wait.is_over():
        _end(wait)
    told = wait.progress()
    # Not by sys.stderr, which may be anything, and may be waited for.
    if told is not None:
        with suppress(OSError):
            os.write(2, f"{printable(told)}\n".encode())
    return True


def _end(wait: Wait) -> None:
    try:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        os.write(2, f"\n{printable(wait.complaint())}\n{stack}".encode(errors="replace"))
    finally:
        os._exit(EXIT_CODE)


def _stop() -> None:
    """End the thread; the next wait starts another one."""
    global _thread
    thread = _thread
    if thread is not None:
        _done.set()
        thread.join()
        _thread = None
        _done.clear()


def _end_of_the_program() -> None:
    # No thread of ours is to be left while OneFlow takes itself down. Functions that were
    # registered earlier than this one come later: each of their waits has a thread of its own.
    global _at_exit
    _at_exit = True
    _stop()


atexit.register(_end_of_the_program)


def _after_fork_in_child() -> None:
    global _current, _thread, _lock, _done
    _current, _thread, _lock, _done = None, None, threading.Lock(), threading.Event()


os.register_at_fork(after_in_child=_after_fork_in_child)
