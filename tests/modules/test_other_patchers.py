"""Another library's wrapper on nn.Module's methods: it sees every call and is never lost.

Several of them too, over many scopes and on decorated classes. With wrapt's C extension and, in a
process of its own, with its pure Python build.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import wrapt
from oneflow import nn

from autoglobal import HookRemovedWarning, _compat, auto_global, global_scope
from tests.helpers.scopes import METHODS
from tests.helpers.support import (
    S0,
    B,
    Model,
    assert_global,
    assert_local,
    counted,
    linear,
    parameter,
    tensor,
    warns,
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


@KINDS
def test_one_before_and_one_inside(P, rank, world, kind):
    count = expected("__setattr__")
    first = kind("__setattr__")
    with global_scope(P, S0):
        second, m = kind("__setattr__"), Model()
        assert first.sees(lambda: fill(m)) == count
        assert second.sees(lambda: fill(m)) == count
    later = Model()
    assert first.sees(lambda: fill(later)) == count
    assert second.sees(lambda: fill(later)) == count
    assert_local(later.new, A)
    assert_converted(P, rank, world)
    second.take_off()
    assert second.sees(lambda: fill(later)) == 0
    assert first.sees(lambda: fill(later)) == count
    assert_converted(P, rank, world)


@KINDS
def test_no_layer_is_left_by_scope_after_scope(P, kind):
    """Theirs is left on; what an assignment costs after many scopes is what it cost after one."""

    def cost() -> int:
        count, m = 0, Model()

        def profile(frame, event, argument):
            nonlocal count
            count += event == "call"

        sys.setprofile(profile)
        try:
            m.number = 3
        finally:
            sys.setprofile(None)
        return count

    with global_scope(P, S0):
        theirs = kind("__setattr__")
    with global_scope(P, S0):
        inside = cost()
    after = cost()
    for _ in range(200):
        with global_scope(P, S0):
            pass
    assert cost() == after
    with global_scope(P, S0):
        assert cost() == inside
    assert theirs.is_on()


@KINDS
@pytest.mark.parametrize("when", ["before", "after"])
def test_on_a_decorated_class(P, rank, world, kind, when):
    layer = type("Layer", (Model,), {"__setattr__": lambda *args: Model.__setattr__(*args)})
    if when == "after":
        auto_global(P, S0, source="shard")(layer)
    theirs = kind("__setattr__", layer)
    if when == "before":
        auto_global(P, S0, source="shard")(layer)
    m = layer()
    count = theirs.sees(lambda: fill(m, rank))
    assert count == 3 if _compat.can_replace_data() else count > 3  # number, new and sub
    assert_global(m.new, counted(4 * world, 4), P, S0)
    if when == "after":
        theirs.take_off()
        assert theirs.sees(lambda: fill(m, rank)) == 0
        assert_global(m.new, counted(4 * world, 4), P, S0)


class Instances(Wrapt):
    """It notes the instance and the arguments that it was called with."""

    def __init__(self, name: str, target: type = nn.Module) -> None:
        self.noted: list[tuple] = []
        super().__init__(name, target)

    def __call__(self, wrapped, instance, args, kwargs):
        self.noted.append((type(instance), *(type(one) for one in args)))
        return wrapped(*args, **kwargs)

    def noted_of(self, module: nn.Module) -> list[tuple]:
        self.noted.clear()
        fill(module)
        return [one for one in self.noted if one[0] is not type(None)]


@NAMES
def test_a_wrapper_below_the_hook_sees_its_instance(P, name):
    """It saw None, and the module as the first of its arguments."""
    theirs = Instances(name)
    alone = [one for one in theirs.noted_of(Model()) if one[0] is Model]
    with global_scope(P, B, check=False):
        inside = [one for one in theirs.noted_of(Model()) if one[0] is Model]
    theirs.take_off()
    assert alone
    assert [one for one in inside if one[1] is str][: len(alone)] == alone
    assert is_raw()


def by_decorator(seen):
    @wrapt.decorator
    def noting(wrapped, instance, args, kwargs):
        seen.append((type(instance).__name__, *args[:1]))
        return wrapped(*args, **kwargs)

    return noting(lambda self, name, value: nn.Module.register_buffer(self, name, value))


def by_partialmethod(seen):
    def register(self, name, value, into):
        into.append((type(self).__name__, name))
        nn.Module.register_buffer(self, name, value)

    return functools.partialmethod(register, into=seen)


class Bound:
    """A descriptor of one's own."""

    def __init__(self, seen):
        self.seen = seen

    def __get__(self, module, kind):
        def register(name, value):
            self.seen.append((kind.__name__, name))
            nn.Module.register_buffer(module, name, value)

        return register


OWN = {"wrapt.decorator": by_decorator, "partialmethod": by_partialmethod, "descriptor": Bound}


@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize("in_scope", [False, True])
def test_a_method_of_a_decorated_class_that_is_no_function(P, own, in_scope):
    seen = []
    layer = auto_global(P, B)(type("Layer", (Model,), {"register_buffer": OWN[own](seen)}))
    m = layer()
    if in_scope:
        with global_scope(P, S0):
            m.register_buffer("seen", tensor(A))
    else:
        m.register_buffer("seen", tensor(A))
    assert seen == [("Layer", "seen")]
    assert_global(m.seen, A, P, B)


@NAMES
@pytest.mark.parametrize("when", ["assign", "exit"])
@pytest.mark.parametrize("kind", [WraptAndRestore, Function, FunctionThatWraps])
def test_a_patch_that_is_undone_inside_takes_the_hook_off_and_that_is_told(P, kind, name, when):
    theirs = kind(name)
    words = rf"nn\.Module\.{name} .*local_to_global"
    with warns(HookRemovedWarning, words) as told, global_scope(P, S0, when=when):
        fill(Model())
        theirs.take_off()
    assert len(told) <= 1
    assert is_raw()
    assert_nothing_converts()
    m = Model()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with global_scope(P, S0):
            fill(m)
    assert_global(m.new, A, P, S0)
    assert is_raw()


def test_the_next_scope_puts_the_hook_on_again(P):
    theirs, m = Function("__setattr__"), Model()
    layers = [linear(A) for _ in range(3)]
    with warns(HookRemovedWarning, r"nn\.Module\.__setattr__ ") as told, global_scope(P, S0):
        theirs.take_off()
        m.first = layers[0]
        with global_scope(P, S0):
            m.second = layers[1]
        m.third = layers[2]
    assert m.first.weight.is_local
    assert_global(m.second.weight, A, P, S0)
    assert_global(m.third.weight, A, P, S0)
    assert len(told) <= 1  # the inner scope has lost nothing
    assert is_raw()


def test_a_function_that_is_on_top_is_no_loss(P):
    """Of one that does not say what it calls only a call can tell."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with global_scope(P, S0):
            theirs = Function("__setattr__")
            fill(Model())
    theirs.take_off()
    setattr(nn.Module, "__setattr__", RAW["__setattr__"])  # noqa: B010
    with global_scope(P, B):
        pass
    assert is_raw()


@pytest.mark.ranks(2, 4)
def test_a_hook_that_is_lost_is_an_error_on_all_ranks_where_a_filter_says_so(P):
    theirs = Function("__setattr__")
    with warnings.catch_warnings():
        warnings.simplefilter("error", HookRemovedWarning)
        with pytest.raises(HookRemovedWarning), global_scope(P, S0):
            theirs.take_off()
    m = Model()
    with global_scope(P, S0):
        fill(m)
    assert_global(m.new, A, P, S0)


@pytest.mark.ranks(1)
@pytest.mark.skipif(bool(os.environ.get(PURE)), reason="this is that run")
def test_the_same_with_wrapts_pure_python_build():
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", __file__],
        cwd=Path(__file__).resolve().parents[2],
        env={**os.environ, PURE: "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
    )
    assert result.returncode == 0, result.stdout
    assert "passed" in result.stdout
