"""A closed scope keeps nothing alive: no module, no tensor, no memory of either."""

from __future__ import annotations

import asyncio
import functools
import gc
import sys
import threading
import weakref
from types import FrameType, FunctionType, ModuleType

import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import auto_global, global_scope, local_scope
from tests.helpers.support import S0, S1, B, Model, counted, error_of, parameter, tensor
from tests.helpers.trees import globally

A = counted(8, 4)
WHEN = pytest.mark.parametrize("when", ["assign", "exit"])
MIB = 1 << 20


class Tagged(nn.Parameter):
    """OneFlow's own Parameter takes no weak reference; a subclass does."""


class Rule:
    def __call__(self, owner, path, value):
        return S0


def fill(m: Model) -> list[weakref.ref]:
    """One of each kind; references to all that takes one."""
    m.new, m.sub = Tagged(tensor(A)), nn.Linear(4, 8)
    m.sub.extra = Tagged(tensor(A))
    m.add_module("added", nn.ReLU())
    m.register_buffer("seen", tensor(A))
    return [weakref.ref(one) for one in (m, m.new, m.sub, m.sub.extra, m.added)]


def alive(references: list[weakref.ref]) -> list:
    gc.collect()
    return [found for found in (one() for one in references) if found is not None]


@WHEN
def test_a_scope_that_is_still_held(P, when):
    m = Model()
    with global_scope(P, S0, when=when) as scope:
        references = fill(m)
    assert m.new.is_global
    references += [weakref.ref(m.new), weakref.ref(m.sub.extra)]  # new ones, if they are
    assert len(alive(references)) >= 5
    del m
    assert alive(references) == []
    assert scope.converted


@WHEN
def test_by_reference_counts_alone(P, when):
    """No cycle either: with the garbage collector off they go at once."""
    m = Model()
    with global_scope(P, S0, when=when) as scope:
        m.new = Tagged(tensor(A))
    references = [weakref.ref(m), weakref.ref(m.new)]
    gc.collect()
    gc.disable()
    try:
        del m
        assert [one() for one in references] == [None, None]
    finally:
        gc.enable()
    assert len(scope.converted) == 1


@pytest.mark.in_place  # or the scope remembers which Parameter took which one's place
def test_a_module_that_is_dropped_while_the_scope_is_open(P):
    with global_scope(P, S0) as scope:
        m = Model()
        references = fill(m)
        assert len(alive(references)) == 5
        del m
        assert alive(references) == []
        assert scope.converted


@pytest.mark.parametrize("kind", ["stated", "follows", "local"])
def test_instances_of_decorated_classes(P, kind):
    cls = type("Layer", (Model,), {})
    cls = auto_global(cls) if kind == "follows" else auto_global(P, S0)(cls)
    m = cls()
    if kind == "follows":
        m.param = globally(A, P, S0)
    if kind == "local":
        with local_scope():
            references = fill(m)
    else:
        references = fill(m)
    assert m.new.is_global == (kind != "local")
    del m
    assert alive(references) == []


def test_a_decorated_class_itself(P):
    cls = auto_global(P, S0)(type("Layer", (Model,), {}))
    cls().new = parameter(A)
    references = [weakref.ref(cls)]
    assert len(alive(references)) == 1
    del cls
    assert alive(references) == []


@WHEN
def test_the_rules_of_a_scope(P, when):
    rule = Rule()
    references = [weakref.ref(rule)]
    m = Model()
    with global_scope(P, rule, when=when):
        m.new = parameter(A)
    del rule
    assert m.new.is_global
    assert alive(references) == []


@WHEN
def test_after_an_exception(P, when):
    def act():
        with global_scope(P, S0, when=when):
            references.extend(fill(Model()))
            raise ZeroDivisionError

    references = []
    with pytest.raises(ZeroDivisionError) as caught:
        act()
    del caught
    assert len(references) == 5
    assert alive(references) == []


def test_after_a_refused_assignment(P):
    m, bad = Model(), Tagged(tensor(counted(8)))
    references = [weakref.ref(m), weakref.ref(bad)]
    with global_scope(P, S1):
        message = str(error_of(functools.partial(setattr, m, "bad", bad)))
    assert "Model.bad" in message
    assert len(alive(references)) == 2
    del m, bad
    assert alive(references) == []


def test_a_function_and_a_generator(P):
    @global_scope(P, S0)
    def build(m):
        return fill(m)

    @global_scope(P, S0)
    def generate(m):
        yield fill(m)

    references = build(Model())
    assert alive(references) == []
    generator = generate(Model())
    references = next(generator)
    assert len(alive(references)) == 5
    del generator
    assert alive(references) == []


@WHEN
def test_a_parameter_that_the_caller_holds_and_then_drops(P, when):
    m, p = Model(), Tagged(tensor(A))
    references = [weakref.ref(m), weakref.ref(p)]
    with global_scope(P, S0, when=when):
        m.new = p
    references.append(weakref.ref(m.new))
    assert m.new.is_global
    del m, p
    assert alive(references) == []


@pytest.mark.in_place
@WHEN
def test_references_to_plain_parameters_and_buffers(P, when):
    """They take no weak reference: who else holds them is counted instead."""
    m, p, b, g = Model(), parameter(A), tensor(A), globally(A, P, B)
    p.grad = tensor(A)
    before = [sys.getrefcount(one) for one in (p, b, g)]
    with global_scope(P, S0, when=when) as scope:
        m.new, m.old = p, g
        m.register_buffer("seen", b)
    assert m.seen is not b
    assert m.new is p or not p.is_global  # a new Parameter where OneFlow does not change one
    assert m.old is g
    del m
    gc.collect()
    assert [sys.getrefcount(one) for one in (p, b, g)] == before
    assert len(scope.converted) == 2


def resident() -> int:
    """The bytes of memory that this process occupies."""
    with open("/proc/self/statm") as stream:
        return int(stream.read().split()[1]) * 4096


@WHEN
def test_the_memory_of_what_was_converted(P, when):
    """Sizes, where nothing can be counted: 24 times 16 MiB would be seen."""
    scopes, size, times = [], 16 * MIB, 24

    def cycle():
        m = Model()
        with global_scope(P, S0, when=when) as scope:
            m.new = nn.Parameter(flow.zeros(size // 4096, 1024))
        scopes.append(scope)
        float(m.new.to_local().sum().item())
        return m

    for _ in range(4):
        cycle()
    before = resident()
    for _ in range(times):
        cycle()
    assert resident() - before < times * size // 4
    kept = [cycle() for _ in range(4)]
    assert len(kept) == 4
    assert len(scopes) == times + 8


@pytest.mark.parametrize("when", ["assign", "exit"])
def test_a_closed_scope_goes_by_reference_counts(P, when):
    m = Model()
    gc.disable()
    try:
        with global_scope(P, B, when=when) as scope:
            m.new = parameter(counted(8, 4))
        gone = weakref.ref(scope)
        del scope
        assert gone() is None
    finally:
        gc.enable()


def reachable(root) -> list:
    """All that is held by an object, but for what any module, class or function holds."""
    found, waiting, met = [], [root], set()
    while waiting:
        one = waiting.pop()
        if id(one) in met or isinstance(one, (type, ModuleType, FunctionType)):
            continue
        met.add(id(one))
        found.append(one)
        waiting += gc.get_referents(one)
    return found


@WHEN
@pytest.mark.parametrize("opened", ["scope", "local"])
def test_a_record_that_is_kept_holds_neither_its_task_nor_its_thread(P, when, opened):
    """A task holds what its coroutine did, and so the model."""
    kept, tasks = [], []

    async def build():
        model = Model()
        with global_scope(P, S0, when=when) as scope:
            model.new = Tagged(tensor(A))
            with local_scope() as inner:
                model.other = Tagged(tensor(A))
        kept.append(scope if opened == "scope" else inner)
        tasks.append(weakref.ref(asyncio.current_task()))
        return model

    model = asyncio.run(build())
    reference = weakref.ref(model)
    del model
    assert alive([*tasks, reference]) == []
    kinds = (asyncio.Task, threading.Thread, FrameType, nn.Module, flow.Tensor)
    assert [one for one in reachable(kept[0]) if isinstance(one, kinds)] == []
