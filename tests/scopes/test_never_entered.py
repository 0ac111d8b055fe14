"""A scope that is made and never entered looks like success: nothing is converted, nothing said."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from autoglobal import NeverEnteredWarning, SpecError, global_scope, local_scope
from tests.helpers.scopes import in_threads
from tests.helpers.support import B, Model, assert_global, counted, error_of, parameter, warns

A = counted(4)


def test_one_that_is_dropped(P):
    m = Model()
    with warns(NeverEnteredWarning, r"Write with global_scope\(\.\.\.\):") as told:
        global_scope(P, B)  # a line without "with"
        m.w = parameter(A)
        gc.collect()
    assert m.w.is_local
    for one in told:
        assert one.filename == __file__
        source = Path(__file__).read_text().splitlines()[one.lineno - 1]
        assert source.strip().startswith("global_scope(P, B)")
        assert str(one.message).startswith(f"global_scope({P}, broadcast) was made and never")
    assert len(told) <= 1


def test_a_local_one():
    with warns(NeverEnteredWarning, r"local_scope\(\) was made"):
        local_scope()


def test_once_for_each_line(P):
    with warns(NeverEnteredWarning) as told:
        warnings.simplefilter("default")
        for _ in range(3):
            global_scope(P, B)
    assert len(told) <= 1


USES = {
    "a block": lambda scope: enter(scope),
    "a decorator": lambda scope: scope(lambda: None),
    "a decorator, refused": lambda scope: error_of(lambda: scope(1)),
    "a stack": lambda scope: contextlib.ExitStack().enter_context(scope),
    "closed": lambda scope: error_of(lambda: scope.__exit__(None, None, None)),
    "a thread": lambda scope: in_threads(lambda: enter(scope)),
}


def enter(scope) -> None:
    with scope:
        pass


@pytest.mark.parametrize("use", USES)
def test_no_false_alarm(use, P):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scope = global_scope(P, B)
        USES[use](scope)
        if use == "a stack":
            scope.__exit__(None, None, None)
        del scope
        gc.collect()


def test_one_that_was_refused_at_the_door(P):
    gc.collect()  # what others have left
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(SpecError):
            global_scope(P, B, when="later")
        gc.collect()
    assert not caught


def test_one_that_is_kept_for_later(P):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scope, m = global_scope(P, B), Model()
        gc.collect()
        with scope:
            m.w = parameter(A)
    assert_global(m.w, A, P, B)


@pytest.mark.ranks(1)
def test_the_end_of_a_program():
    """It might have been entered yet."""
    program = "import oneflow as flow, autoglobal\n"
    program += "kept = autoglobal.global_scope(flow.placement('cpu', [0]), flow.sbp.broadcast)"
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", program], capture_output=True, text=True, check=True
    )
    assert "NeverEntered" not in done.stderr
