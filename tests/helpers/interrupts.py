"""Ctrl-C at each moment of a case: sent at one line or instruction of autoglobal, then checked.

``python -m tests.helpers.interrupts [CASE ...] [--events line|opcode] [--start N] [--stride N]``
runs whole cases; without a stride at every event. It takes minutes.
"""

from __future__ import annotations

import argparse
import gc
import signal
import sys
import time
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from opcode import opname
from pathlib import Path
from typing import Any

from oneflow import nn

import autoglobal
from autoglobal import current_scope, global_scope
from tests.helpers.interrupt_cases import CASES, Case, P
from tests.helpers.scopes import METHODS, clean
from tests.helpers.scopes import RAW as METHODS_RAW
from tests.helpers.support import B, Model, assert_global, counted, error_of, linear, parameter

PACKAGE = str(Path(autoglobal.__file__).parent)
MOST_SHOWN = 20
WARM_UP = 3  # runs, after which all caches are filled

# CPython 3.10 looks for signals after a call and a jump, but not where one of these comes next:
# what follows "try" and the first step of "with" cannot be separated from what was before.
_NOT_BEFORE = {"SETUP_FINALLY", "SETUP_WITH", "SETUP_ASYNC_WITH", "BEFORE_ASYNC_WITH", "YIELD_FROM"}
# Nor behind this one, which ends the body of a "with" or "try": the call of __exit__ and the
# "finally" of a body that went well are joined to the body's last call.
_NOT_BEHIND = "POP_BLOCK"


def _name(frame: types.FrameType, offset: int) -> str:
    return opname[frame.f_code.co_code[offset]] if offset >= 0 else ""


def _can_be_interrupted(frame: types.FrameType) -> bool:
    """Whether an interrupt at this line of the frame is one that may happen."""
    at = frame.f_lasti
    return _name(frame, at) not in _NOT_BEFORE and _name(frame, at - 2) != _NOT_BEHIND


def _looks_for_signals(name: str) -> bool:
    return name.startswith("CALL_") or "JUMP" in name


class _Raise:
    # For a signal that arrives and is not yet handled: a subscription is no call, so that CPython
    # looks for signals only in the code that is traced, wherever it next does so.
    __getitem__ = staticmethod(signal.raise_signal)


_raise = _Raise()


class Injector:
    """Sends SIGINT to this process at one event in autoglobal's code on this thread.

    By lines, KeyboardInterrupt comes at the line itself. By instructions ("opcode"), the signal
    arrives there, and comes where CPython next handles signals; counted are those instructions
    before which it has done so, since from one such place to the next all are alike.

    Attributes:
        chosen: whether an event was chosen; otherwise they are only counted.
        seen: how many events there were.
        where: the file and the line of the one that was chosen, once it was there.
    """

    def __init__(self, events: str, at: int | None = None) -> None:
        self._opcodes = events == "opcode"
        self._at = at
        self._last: tuple[types.FrameType | None, str] = (None, "")
        self.chosen = at is not None
        self.seen = 0
        self.where: str | None = None

    def __enter__(self) -> Injector:
        self._outer = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._outer)
        self._last = (None, "")

    def _call(self, frame: types.FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if not self._opcodes:
            return self._line
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self._instruction

    def _line(self, frame: types.FrameType, event: str, _: Any) -> Any:
        if event == "line" and _can_be_interrupted(frame):
            self.seen += 1
            if self.seen == self._at:
                self._stop(frame)
                signal.raise_signal(signal.SIGINT)
        return self._line

    def _instruction(self, frame: types.FrameType, event: str, _: Any) -> Any:
        if event != "opcode":
            return self._instruction
        before, name = self._last
        self._last = (frame, _name(frame, frame.f_lasti))
        if before is not frame or _looks_for_signals(name):
            self.seen += 1
            if self.seen == self._at:
                self._stop(frame)
                return _raise[signal.SIGINT]  # None
        return self._instruction

    def _stop(self, frame: types.FrameType) -> None:
        file = frame.f_code.co_filename[len(PACKAGE) + 1 :]
        self.where = f"{file}:{frame.f_lineno}"
        self._last = (None, "")
        sys.settrace(None)


class _State:
    """What autoglobal's modules hold, to be put back where an interrupt has left it wrong."""

    def __init__(self) -> None:
        self._held: list[tuple[Any, Any]] = []
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] == "autoglobal":
                self._hold(vars(module))

    def _hold(self, names: dict[str, Any]) -> None:
        self._held.append((names, dict(names)))
        for name, value in names.items():
            if name.startswith("__"):
                continue
            if isinstance(value, (list, dict, set)):
                self._held.append((value, value.copy()))
            elif type(value).__module__.startswith("autoglobal.") and hasattr(value, "__dict__"):
                self._hold(vars(value))

    def put_back(self) -> None:
        for name, raw in zip(METHODS, METHODS_RAW):
            setattr(nn.Module, name, raw)
        for held, before in self._held:
            held.clear()
            (held.extend if isinstance(held, list) else held.update)(before)


def _next_scope() -> None:
    module, value, layer = Model(), parameter(counted(4, 2)), linear(counted(2, 3))
    with global_scope(P, B):
        module.new = value
        module.layer = layer
    assert module.new is value
    assert_global(value, counted(4, 2), P, B)
    assert_global(module.layer.weight, counted(2, 3), P, B)


def _surroundings() -> Iterator[str]:
    """What is not as it is where no scope is open."""
    if not clean():
        yield "the hook is on"
    if current_scope() is not None:
        yield "a scope is in force"
    if nn.Linear(2, 2).weight.is_global:
        yield "a Linear outside is global"
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield "SIGINT has another handler"


def _interrupt(case: Case, injector: Injector, dropped: list[Any]) -> Iterator[str]:
    came = False
    try:
        with injector:
            case.run()
    except KeyboardInterrupt:
        came = True
    except BaseException as error:
        yield f"{error!r} came out"
    came = came or bool(dropped)
    if came != (injector.where is not None):
        yield "KeyboardInterrupt came from nowhere" if came else "no KeyboardInterrupt came out"
    elif injector.chosen and not came:
        yield "this event was not reached"


def _faults(case: Case, injector: Injector, dropped: list[Any]) -> list[str]:
    """Run a case under an injector; what is wrong afterwards."""
    found = [*_interrupt(case, injector, dropped), *_surroundings(), *case.faults()]
    if found:
        return found  # the rest would only repeat it
    for what, action in (("the same again", case.run), ("the next scope", _next_scope)):
        try:
            action()
        except (Exception, KeyboardInterrupt) as error:
            found.append(f"{what}: {type(error).__name__}: {str(error)[:200]}")
    return [*found, *_surroundings(), *case.left()]


@contextmanager
def _prepared() -> Iterator[list[Any]]:
    """Python's handler, no garbage collector at its own moments, no warnings.

    The list is of what Python itself has dropped: nothing comes out of a ``__del__``.
    """
    dropped: list[Any] = []
    handler, hook = signal.getsignal(signal.SIGINT), sys.unraisablehook
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.unraisablehook = lambda told: dropped.append(told.exc_type)
    gc.collect()
    gc.freeze()  # a scope that ends may collect, and OneFlow's modules need not be gone through
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield dropped
    finally:
        gc.enable()
        gc.unfreeze()
        sys.unraisablehook = hook
        signal.signal(signal.SIGINT, handler)


def count(name: str, events: str) -> int:
    """How many events a case has, once all caches are filled."""
    with _prepared() as dropped:
        for _ in range(WARM_UP):
            injector = Injector(events)
            found = copy_context().run(_faults, CASES[name](), injector, dropped)
            assert not found, f"without an interrupt: {found}"
    return injector.seen


def interrupt(name: str, events: str, places: Iterator[int] | range) -> list[str]:
    """Interrupt a case at each of these events; a line for each after which something is wrong."""
    told = []
    with _prepared() as dropped:
        state = _State()
        for at in places:
            case, injector = CASES[name](), Injector(events, at)
            # What an interrupt leaves in a ContextVar stays in this context.
            found = copy_context().run(_faults, case, injector, dropped)
            dropped.clear()
            if found:
                told.append(f"{at}, at {injector.where}: {'; '.join(found)}")
                signal.signal(signal.SIGINT, signal.default_int_handler)
                state.put_back()
                error = error_of(lambda: copy_context().run(_next_scope))
                if error is not None:
                    return [*told, f"given up, since no further scope works: {error!r}"]
            del case
            if at % 50 == 0:
                gc.collect()
        gc.collect()  # with what was made and never entered, while nobody is warned of it
    return told


def summary(told: list[str], tried: int) -> str:
    lines = [f"{len(told)} of {tried} interrupts left something wrong", *told[:MOST_SHOWN]]
    if len(told) > MOST_SHOWN:
        lines.append("...")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="CASE")
    parser.add_argument("--events", choices=["line", "opcode"], default="line")
    parser.add_argument("--start", type=int, default=1)
    parser.add_argument("--stride", type=int, default=1)
    options = parser.parse_args()
    failed = 0
    for name in options.cases:
        total = count(name, options.events)
        places, start = range(options.start, total + 1, options.stride), time.perf_counter()
        told = interrupt(name, options.events, places)
        took = time.perf_counter() - start
        print(f"{name}, {total} events, {took:.1f} s: {summary(told, len(places))}", flush=True)
        failed += len(told)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
