"""Handlers of signals wait for the steps that must not end half way, and are the program's own."""

from __future__ import annotations

import os
import signal

import pytest
from oneflow import nn

from autoglobal import current_scope, global_scope
from autoglobal.scopes import context
from tests.helpers.support import B, Model, assert_global, counted, parameter

A = counted(8, 4)
pytestmark = pytest.mark.ranks(1)


@pytest.fixture(autouse=True)
def _handlers_as_before():
    kept = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    yield
    for one, handler in kept.items():
        signal.signal(one, handler)


def acting(action) -> nn.Module:
    """A module that runs ``action`` while a Parameter of it is registered."""

    class Acting(nn.Module):
        def register_parameter(self, name, param):
            super().register_parameter(name, param)
            action()

    return Acting()


def test_several_signals_in_one_step_run_their_handlers_after_it(P):
    came = []
    m = acting(
        lambda: (
            [signal.raise_signal(one) for one in (signal.SIGTERM, signal.SIGINT)]
            + [came.append("registered")]
        )
    )
    signal.signal(signal.SIGTERM, lambda *_: came.append("term"))
    signal.signal(signal.SIGINT, lambda *_: came.append("int"))
    with global_scope(P, B):
        m.new = parameter(A)
    assert came == ["registered", "term", "int"]
    assert_global(m.new, A, P, B)


def test_a_handler_that_sets_another_one_and_opens_a_scope(P):
    came = []

    def on_term(*_):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        other = Model()
        with global_scope(P, B):
            other.new = parameter(A)
        came.append(other.new.is_global)

    m = acting(lambda: [signal.raise_signal(one) for one in (signal.SIGTERM, signal.SIGINT)])
    signal.signal(signal.SIGTERM, on_term)
    signal.signal(signal.SIGINT, lambda *_: came.append("int"))
    with global_scope(P, B):
        m.new = parameter(A)
    assert sorted(map(str, came)) == ["True", "int"]
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_handler_that_was_taken_inside_of_a_step_and_is_put_back_after_it(P):
    """What the program has taken there is ours, and passes on to its own."""
    came, taken = [], []
    signal.signal(signal.SIGINT, lambda *_: came.append("int"))
    m = acting(lambda: taken.append(signal.signal(signal.SIGINT, signal.SIG_IGN)))
    with global_scope(P, B):
        m.new = parameter(A)
    signal.signal(signal.SIGINT, taken[0])
    signal.raise_signal(signal.SIGINT)
    with global_scope(P, B):
        Model().new = parameter(A)
    signal.raise_signal(signal.SIGINT)
    assert came == ["int", "int"]


def test_a_child_that_is_forked_inside_of_a_step_has_its_own_handlers(P):
    children = []

    def fork():
        child = os.fork()
        if child == 0:
            signal.raise_signal(signal.SIGUSR1)
            os._exit(1)
        children.append(child)

    signal.signal(signal.SIGUSR1, lambda *_: os._exit(9))
    m = acting(fork)
    with global_scope(P, B):
        m.new = parameter(A)
    codes = [os.waitstatus_to_exitcode(os.waitpid(one, 0)[1]) for one in children]
    assert codes
    assert set(codes) == {9}


def test_a_signal_between_the_end_of_a_step_and_its_suspension(P, monkeypatch):
    """A generator's scope was put on top of itself, and the next assignment looked for ever."""

    @global_scope(P, B)
    def steps(module):
        module.new = parameter(A)
        yield

    def interrupted(*_):
        raise KeyboardInterrupt

    m = Model()
    with monkeypatch.context() as during:
        during.setattr(context._InForce, "__exit__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(steps(m))
    assert current_scope() is None
    assert_global(m.new, A, P, B)
    m.local = parameter(A)
    assert m.local.is_local
