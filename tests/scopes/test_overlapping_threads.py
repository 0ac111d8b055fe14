"""Threads that open and close scopes at the same time leave nothing behind."""

from __future__ import annotations

import sys
import threading

import pytest

from autoglobal import (
    current_scope,
    global_scope,
    local_scope,
)
from tests.helpers.scopes import PATIENCE, clean, in_threads
from tests.helpers.support import S0, B, Model, assert_global, assert_local, counted, parameter

A = counted(8, 4)


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
