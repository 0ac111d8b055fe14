"""What the tests of scopes share: what is in force here, whether OneFlow is as it was, threads."""

from __future__ import annotations

import threading

from oneflow import nn

from autoglobal import auto_global, current_scope
from tests.helpers.support import S0, Model, counted, parameter
from tests.helpers.trees import globally

A = counted(8, 4)
METHODS = ("__setattr__", "register_parameter", "register_buffer", "add_module")
RAW = [vars(nn.Module)[name] for name in METHODS]
PATIENCE = 60  # seconds, for a thread that never comes


def clean() -> bool:
    return all(vars(nn.Module)[name] is raw for name, raw in zip(METHODS, RAW))


def new(array=A):
    """A Parameter assigned here and now, under what is in force here and now."""
    m = Model()
    m.new = parameter(array)
    return m.new


def sbp_of(found):
    return found.sbp[0] if found.is_global else None


def now():
    """The sbp that an assignment gets here and now; None where it stays local."""
    m = Model()
    m.new = parameter(A)
    assert (current_scope() is None) == m.new.is_local
    return m.new.sbp[0] if m.new.is_global else None


def close(scope) -> None:
    scope.__exit__(None, None, None)


def in_threads(*actions) -> list:
    """Run each in a thread of its own, all at once; their results, or the error of one."""
    results = [None] * len(actions)

    def run(index, action):
        try:
            results[index] = action()
        except BaseException as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=entry) for entry in enumerate(actions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


@auto_global
class Follower(nn.Module):
    """A class that follows."""


def following(P, sbp=S0) -> Follower:
    """An instance that holds one global Parameter."""
    m = Follower()
    m.param = globally(A, P, sbp)
    return m
