"""``local_scope()``: inside it nothing converts; a scope inside it converts again."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from oneflow import nn

from autoglobal import SpecTypeError, auto_global, current_scope, global_scope, local_scope
from tests.helpers.scopes import METHODS, now
from tests.helpers.support import (
    S0,
    B,
    Model,
    assert_global,
    assert_local,
    counted,
    linear,
    local_names,
    parameter,
    tensor,
    tensors,
)
from tests.helpers.trees import globally

A = counted(8, 4)


def test_nothing_is_converted_inside(P):
    m, p = Model(), parameter(A)
    with global_scope(P, S0) as scope:
        m.a = parameter(A)
        with local_scope():
            m.b, m.sub, m.layer = p, linear(A), nn.Linear(3, 4)
            m.register_parameter("c", parameter(A))
            m.register_buffer("seen", tensor(A))
            m.add_module("added", linear(A))
        m.d = parameter(A)
    assert m.b is p
    assert local_names(m) == [name for name in tensors(m) if name not in ("a", "d")]
    assert_global(m.a, A, P, S0)
    assert_global(m.d, A, P, S0)
    assert [record.path for record in scope.converted] == ["a", "d"]


def test_whatever_is_open_around_it(P):
    with global_scope(P, S0), global_scope(P, B), global_scope(P, S0), local_scope():
        assert now() is None


def test_a_scope_inside_it_converts_again(P):
    with global_scope(P, S0), local_scope():
        found = [now()]
        with global_scope(P, B):
            found.append(now())
            with local_scope():
                found.append(now())
            found.append(now())
        found.append(now())
    assert found == [None, B, None, B, None]
    assert now() is None


def test_without_a_scope_around(P):
    raw = [vars(nn.Module)[name] for name in METHODS]
    with local_scope():
        assert now() is None
        with global_scope(P, S0):
            assert now() == S0
        assert now() is None
    assert all(vars(nn.Module)[name] is one for name, one in zip(METHODS, raw))


def test_nested_and_entered_again(P):
    local = local_scope()
    with global_scope(P, S0):
        with local:
            with local:
                assert now() is None
            assert now() is None
        assert now() == S0
        with local:
            assert now() is None
        assert now() == S0


def test_decorated_classes_do_not_convert_in_it(P):
    @auto_global(P, S0)
    class Stated(Model):
        def __init__(self):
            super().__init__()
            self.weight = parameter(A)

    bare = auto_global(type("Follower", (Model,), {}))()
    bare.param = globally(A, P, B)
    with local_scope():
        m = Stated()
        m.new, bare.new = parameter(A), parameter(A)
        m.register_buffer("seen", tensor(A))
    assert local_names(m) == ["weight", "new", "seen"]
    assert_local(bare.new, A)
    m.after, bare.after = parameter(A), parameter(A)
    assert_global(m.after, A, P, S0)
    assert_global(bare.after, A, P, B)


def test_what_was_assigned_in_it_stays_local_when_the_scope_converts_at_its_end(P):
    m = Model()
    with global_scope(P, S0, when="exit"):
        m.a = parameter(A)
        with local_scope():
            m.sub = linear(A)
            m.sub.extra = parameter(A)
    assert_global(m.a, A, P, S0)
    assert local_names(m.sub) == ["weight", "extra"]


def test_an_exception_in_it_brings_the_scope_back(P):
    with global_scope(P, S0):
        with pytest.raises(ZeroDivisionError), local_scope():
            raise ZeroDivisionError
        assert now() == S0
    assert now() is None


def test_current_scope_in_it(P):
    with global_scope(P, S0) as outer:
        with local_scope():
            assert current_scope() is None
            with global_scope(P, B) as inner:
                assert current_scope() is inner
            assert current_scope() is None
        assert current_scope() is outer


def test_it_takes_no_arguments(P):
    with pytest.raises(TypeError):
        local_scope(P)


# As a decorator


def test_on_a_function(P):
    @local_scope()
    def build(count):
        """Its words."""
        found = [now()]
        if count:
            with global_scope(P, B):
                found += [now(), *build(count - 1), now()]
        return [*found, now()]

    assert (build.__name__, build.__doc__) == ("build", "Its words.")
    with global_scope(P, S0):
        found = [now(), *build(1), now()]
    assert found == [S0, None, B, None, None, B, None, S0]


def test_on_a_coroutine_function(P):
    @local_scope()
    async def build():
        found = [now()]
        await asyncio.sleep(0)
        return [*found, now()]

    async def other():
        found = [now()]
        await asyncio.sleep(0)
        return [*found, now()]

    async def main():
        with global_scope(P, S0):
            return [*await asyncio.gather(build(), other()), [now()]]

    assert inspect.iscoroutinefunction(build)
    assert asyncio.run(main()) == [[None, None], [S0, S0], [S0]]


def test_on_a_generator_function(P):
    @local_scope()
    def build():
        for _ in range(2):
            yield now()

    assert inspect.isgeneratorfunction(build)
    with global_scope(P, S0):
        found = [(one, now()) for one in build()]
        left = build()
        next(left)
        assert now() == S0
        left.close()
        assert now() == S0
    assert found == [(None, S0), (None, S0)]


def test_on_an_async_generator_function(P):
    @local_scope()
    async def build():
        for _ in range(2):
            yield now()
            await asyncio.sleep(0)

    async def main():
        with global_scope(P, S0):
            return [(one, now()) async for one in build()]

    assert inspect.isasyncgenfunction(build)
    assert asyncio.run(main()) == [(None, S0), (None, S0)]


def test_on_a_class(P):
    """``@auto_global`` would make it global, which is not what was meant."""
    with pytest.raises(SpecTypeError, match=r"class Layer. Write it above the methods .*__init__"):
        local_scope()(type("Layer", (Model,), {}))


def test_without_its_parentheses():
    with pytest.raises(SpecTypeError, match=r"Received: <function .* Write @local_scope\(\)"):

        @local_scope
        def build(): ...
