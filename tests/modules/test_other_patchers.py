"""Another library's wrapper on nn.Module's methods: it sees every call and is never lost.

With wrapt's C extension and, in a process of its own, with its pure Python build.
"""

from __future__ import annotations

import functools
import os

import pytest
import wrapt
from oneflow import nn

from autoglobal import global_scope
from tests.helpers.scopes import METHODS
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

A = counted(4, 4)
RAW = {name: vars(nn.Module)[name] for name in METHODS}
PURE = "WRAPT_DISABLE_EXTENSIONS"


class Patcher:
    """What another library does to one method: count its calls, as long as it is on."""

    def __init__(self, name: str, target: type = nn.Module) -> None:
        self.name, self.target, self.calls = name, target, 0
        self.before = vars(target).get(name)
        self.put_on()
        self.own = vars(target)[name]

    def __call__(self, wrapped, instance, args, kwargs):
        self.calls += 1
        return wrapped(*args, **kwargs)

    def sees(self, action) -> int:
        before = self.calls
        action()
        return self.calls - before

    def is_on(self) -> bool:
        return vars(self.target)[self.name] is self.own

    def take_off(self) -> None:
        setattr(self.target, self.name, self.before)


class Wrapt(Patcher):
    """As OpenTelemetry and most others do."""

    def put_on(self):
        self.handle = wrapt.wrap_function_wrapper(self.target, self.name, self)

    def take_off(self):
        wrapt.unwrap_object(self.target, self.name, self.handle)


class WraptAndRestore(Patcher):
    """wrapt's wrapper, taken off by putting back what was there."""

    def put_on(self):
        wrapt.wrap_function_wrapper(self.target, self.name, self)


class Function(Patcher):
    def put_on(self):
        before = getattr(self.target, self.name)

        def theirs(module, *args, **kwargs):
            self.calls += 1
            return before(module, *args, **kwargs)

        setattr(self.target, self.name, self.finish(theirs, before))

    def finish(self, theirs, before):
        return theirs


class FunctionThatWraps(Function):
    def finish(self, theirs, before):
        return functools.wraps(before)(theirs)


KINDS = pytest.mark.parametrize("kind", [Wrapt, WraptAndRestore, Function, FunctionThatWraps])
NAMES = pytest.mark.parametrize("name", METHODS)


@pytest.fixture(autouse=True)
def _restored():
    """What another library has left on or put back is not this library's to take off."""
    yield
    for name, raw in RAW.items():
        if vars(nn.Module)[name] is not raw:
            setattr(nn.Module, name, raw)


def is_raw() -> bool:
    return all(vars(nn.Module)[name] is raw for name, raw in RAW.items())


def fill(m: Model, rank: int = 0) -> Model:
    """Calls each of the four methods, __setattr__ three times."""
    m.number = 3
    m.new = parameter(A + 16 * rank)
    m.register_parameter("registered", parameter(A + 16 * rank))
    m.register_buffer("seen", tensor(A))
    m.add_module("added", nn.ReLU())
    m.sub = nn.ReLU()
    return m


def assert_converted(P, rank, world) -> None:
    """Once: as shares a second conversion would show, and none at all would too."""
    m = Model()
    with global_scope(P, S0, source="shard"):
        fill(m, rank)
    assert_global(m.new, counted(4 * world, 4), P, S0)
    assert_global(m.registered, counted(4 * world, 4), P, S0)
    assert m.seen.is_global


def assert_nothing_converts() -> None:
    m = fill(Model())
    for found in (m.new, m.registered, m.seen):
        assert_local(found, A)


def expected(name: str) -> int:
    """How many of the calls of ``fill`` there are without a scope."""
    patcher, m = Function(name), Model()
    count = patcher.sees(lambda: fill(m))
    patcher.take_off()
    assert is_raw()
    assert count > 0
    return count


def test_which_wrapt_this_is():
    """The C extension, or the pure Python build where the run asks for it."""
    pure = bool(os.environ.get(PURE))
    assert (wrapt.FunctionWrapper.__mro__[1].__module__ == "_wrappers") == (not pure)


@KINDS
@NAMES
def test_put_on_before_the_scope(P, rank, world, kind, name):
    count = expected(name)
    theirs, m = kind(name), Model()
    with global_scope(P, S0):
        assert theirs.sees(lambda: fill(m)) == count
    assert_global(m.new, A, P, S0)
    assert theirs.is_on()
    assert theirs.sees(assert_nothing_converts) > 0
    assert theirs.sees(lambda: assert_converted(P, rank, world)) > 0
    assert theirs.is_on()
    theirs.take_off()
    assert is_raw()
    assert_converted(P, rank, world)


@KINDS
@NAMES
def test_put_on_inside_and_left_on(P, rank, world, kind, name):
    count = expected(name)
    before, m, later = Model(), Model(), Model()
    with global_scope(P, S0):
        fill(before)
        theirs = kind(name)
        assert theirs.sees(lambda: fill(m)) == count
    assert_global(before.new, A, P, S0)
    assert_global(m.new, A, P, S0)
    assert_global(m.seen, A, P, B)
    assert theirs.is_on()
    assert theirs.sees(lambda: fill(later)) == count
    assert_local(later.new, A)
    assert_nothing_converts()
    inside = Model()
    with global_scope(P, S0):
        assert theirs.sees(lambda: fill(inside)) == count
    assert_global(inside.new, A, P, S0)
    assert_converted(P, rank, world)
    assert theirs.is_on()
    assert_nothing_converts()


@KINDS
@NAMES
def test_put_on_inside_and_removed_after(P, rank, world, kind, name):
    count = expected(name)
    m, later = Model(), Model()
    with global_scope(P, S0):
        theirs = kind(name)
        assert theirs.sees(lambda: fill(m)) == count
    assert_global(m.new, A, P, S0)
    assert theirs.sees(lambda: fill(later)) == count
    theirs.take_off()
    assert theirs.sees(assert_nothing_converts) == 0
    assert theirs.sees(lambda: assert_converted(P, rank, world)) == 0
    assert_nothing_converts()


@KINDS
@NAMES
def test_put_on_inside_and_removed_inside(P, kind, name):
    m, after = Model(), Model()
    with global_scope(P, S0):
        theirs = kind(name)
        assert theirs.sees(lambda: fill(m)) > 0
        theirs.take_off()
        assert theirs.sees(lambda: fill(after)) == 0
    assert_global(m.new, A, P, S0)
    assert_global(after.new, A, P, S0)
    assert is_raw()


@KINDS
def test_put_on_inside_and_removed_in_a_later_scope(P, rank, world, kind):
    """wrapt itself refuses it, since what lies on top is not a wrapt wrapper; nothing is lost."""
    with global_scope(P, S0):
        theirs = kind("__setattr__")
    with global_scope(P, B):
        if kind is Wrapt:
            with pytest.raises(wrapt.WrapperNotOutermostError):
                theirs.take_off()
            assert theirs.sees(lambda: fill(Model())) > 0
        else:
            theirs.take_off()
    if kind is Wrapt:
        theirs.take_off()
    assert theirs.sees(assert_nothing_converts) == 0
    assert_converted(P, rank, world)
    assert_nothing_converts()
