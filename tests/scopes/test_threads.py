"""Threads: a scope is in force in the thread that opened it, and its hook never stays behind.

Not where scopes of several threads overlap either.
"""

from __future__ import annotations

import contextvars
import sys
import threading

import pytest
from oneflow import nn

from autoglobal import (
    AutoglobalError,
    ConversionError,
    auto_global,
    current_scope,
    global_scope,
    local_scope,
)
from tests.helpers.scopes import PATIENCE, clean, in_threads
from tests.helpers.support import (
    S0,
    B,
    Model,
    assert_global,
    assert_local,
    counted,
    parameter,
    tensor,
)
from tests.helpers.trees import globally

A = counted(8, 4)


def build():
    """A model built here and now; the fault that it must not have is a ConversionError."""
    m = Model()
    m.sub, m.new = nn.Linear(3, 4), parameter(A)
    m.register_buffer("seen", tensor(A))
    return m, current_scope()


def test_a_module_built_in_another_thread_stays_local(P):
    """huggingface/diffusers#4296: other threads' modules were made what the scope makes."""
    m = Model()
    with global_scope(P, S0):
        ((other, scope),) = in_threads(build)
        m.new = parameter(A)
    assert scope is None
    for found in (other.sub.weight, other.new, other.seen):
        assert found.is_local
    assert_local(other.new, A)
    assert_global(m.new, A, P, S0)


def test_a_module_of_the_main_thread_stays_local_while_a_thread_has_a_scope(P):
    inside, done = threading.Event(), threading.Event()

    def hold():
        with global_scope(P, S0):
            inside.set()
            assert done.wait(PATIENCE)

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(PATIENCE)
    m = Model()
    m.new = parameter(A)
    assert current_scope() is None
    with global_scope(P, S0):
        m.other = parameter(A)
    done.set()
    thread.join(PATIENCE)
    assert_local(m.new, A)
    assert_global(m.other, A, P, S0)
    assert clean()


def test_conversion_in_another_thread_is_an_error(P):
    """OneFlow cannot convert there; on every rank, and nothing is sent."""
    stated = auto_global(P, S0)(type("Stated", (Model,), {}))
    bare = auto_global(type("Follower", (Model,), {}))()
    bare.param = globally(A, P, B)

    def act():
        m, found = Model(), []
        with global_scope(P, S0) as scope:
            m.number, m.plain = 3, tensor(A)
            m.old = bare.param
            assert current_scope() is scope
            for one in (m, stated(), bare):
                with pytest.raises(ConversionError, match="thread") as caught:
                    one.new = parameter(A)
                found.append((str(caught.value), hasattr(one, "new")))
        for one in (stated(), bare):
            with pytest.raises(ConversionError, match="thread"):
                one.register_buffer("seen", tensor(A))
        return found, m

    ((found, m),) = in_threads(act)
    assert [kept for _, kept in found] == [False] * 3
    assert "Model.new" in found[0][0]
    assert "Stated.new" in found[1][0]
    assert m.number == 3
    assert m.old is bare.param
    bare.new = parameter(A)
    assert_global(bare.new, A, P, B)


def test_local_scope_in_another_thread(P):
    stated = auto_global(P, S0)(type("Stated", (Model,), {}))

    def act():
        m = stated()
        with global_scope(P, S0), local_scope():
            m.new = parameter(A)
        return m

    (m,) = in_threads(act)
    assert_local(m.new, A)


@pytest.mark.parametrize("kind", ["global", "local"])
def test_closing_in_another_thread(P, kind):
    """An error that names the scope, which stays open where it was opened."""
    scope = global_scope(P, S0) if kind == "global" else local_scope()
    m = Model()
    with global_scope(P, B):
        scope.__enter__()
        with pytest.raises(AutoglobalError) as caught:
            in_threads(lambda: scope.__exit__(None, None, None))
        assert repr(scope) in str(caught.value)
        m.a = parameter(A)
        scope.__exit__(None, None, None)
        m.b = parameter(A)
    m.c = parameter(A)
    assert (m.a.sbp == (S0,)) if kind == "global" else m.a.is_local
    assert_global(m.b, A, P, B)
    assert_local(m.c, A)
    assert clean()


def test_opened_in_a_thread_that_has_ended(P):
    """It can still be closed, with the error; nothing stays on Module."""
    scope = global_scope(P, S0)
    in_threads(lambda: scope.__enter__() and None)
    m = Model()
    m.a = parameter(A)
    with global_scope(P, B):
        m.b = parameter(A)
    with pytest.raises(AutoglobalError) as caught:
        scope.__exit__(None, None, None)
    assert repr(scope) in str(caught.value)
    assert_local(m.a, A)
    assert_global(m.b, A, P, B)
    assert clean()


def test_one_scope_object_in_two_threads(P):
    scope = global_scope(P, S0)

    def act():
        with scope:
            return current_scope()

    m = Model()
    with scope as own:
        (other,) = in_threads(act)
        assert current_scope() is own
        m.new = parameter(A)
    assert other is not own
    assert_global(m.new, A, P, S0)
    assert clean()


def test_a_context_that_is_copied_into_a_thread_carries_no_scope(P):
    """As asyncio.to_thread does."""
    found = []

    def build():
        found.append(nn.Linear(4, 4).weight.is_local)

    with global_scope(P, S0):
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(build,))
        thread.start()
        thread.join()
        inside = nn.Linear(4, 4).weight.is_local
    assert found == [True]
    assert not inside


def overlap(P, first_out: str) -> list:
    """Two threads, each in a scope of its own at the same time, leaving in either order."""
    both, gone = threading.Barrier(2, timeout=PATIENCE), threading.Event()

    def run(name):
        with global_scope(P, S0) as scope:
            both.wait()
            seen = current_scope() is scope
            if name != first_out:
                assert gone.wait(PATIENCE)
                seen = seen and current_scope() is scope
        if name == first_out:
            gone.set()
        return seen and current_scope() is None

    return in_threads(lambda: run("a"), lambda: run("b"))


@pytest.mark.parametrize("first_out", ["a", "b"])
def test_two_threads_whose_scopes_overlap_leave_nothing_behind(P, first_out):
    """huggingface/peft#3605: the last to leave put the other's patch back, for ever."""
    assert overlap(P, first_out) == [True, True]
    assert clean()
    m = Model()
    m.new = parameter(A)
    assert_local(m.new, A)


@pytest.mark.parametrize("thread_first", [True, False], ids=["thread first", "main first"])
def test_the_main_thread_and_another_overlap(P, thread_first):
    """huggingface/peft#3605, diffusers#4296; the main thread's scope goes on converting."""
    inside, leave, left = threading.Event(), threading.Event(), threading.Event()

    def hold():
        with global_scope(P, B):
            inside.set()
            assert leave.wait(PATIENCE)
        left.set()

    thread, m = threading.Thread(target=hold), Model()
    scope = global_scope(P, S0)
    if not thread_first:
        scope.__enter__()
    thread.start()
    assert inside.wait(PATIENCE)
    if thread_first:
        scope.__enter__()
    m.a = parameter(A)
    if thread_first:
        leave.set()
        assert left.wait(PATIENCE)
        m.b = parameter(A)
        scope.__exit__(None, None, None)
    else:
        scope.__exit__(None, None, None)
        m.b = parameter(A)
        leave.set()
    thread.join(PATIENCE)
    assert_global(m.a, A, P, S0)
    assert m.b.is_global == thread_first
    assert clean()


def test_many_threads_enter_and_leave_while_others_assign(P):
    """huggingface/peft#3605"""
    scopes, plain, rounds = 8, 8, 150
    start = threading.Barrier(scopes + plain, timeout=PATIENCE)

    def enter():
        start.wait()
        for _ in range(rounds):
            with global_scope(P, S0) as outer:
                m = Model()
                m.number = 3
                with local_scope():
                    m.new = parameter(counted(2))
                assert current_scope() is outer
            assert current_scope() is None
        return m.new.is_local

    def assign():
        m = Model()
        start.wait()
        for number in range(rounds):
            m.number, m.new = number, parameter(counted(2))
            m.register_buffer("seen", None)
            assert (m.number, m.new.is_local) == (number, True)
        return True

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        assert all(in_threads(*[enter] * scopes, *[assign] * plain))
    finally:
        sys.setswitchinterval(interval)
    assert clean()
    m = Model()
    with global_scope(P, S0):
        m.new = parameter(A)
    assert_global(m.new, A, P, S0)
