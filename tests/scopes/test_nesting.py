"""Scopes in scopes: the innermost is in force (microsoft/DeepSpeed#2811, #3202).

``current_scope()`` gives that one.
"""

from __future__ import annotations

import oneflow as flow
import pytest

from autoglobal import ConversionError, auto_global, current_scope, global_scope
from tests.helpers.support import (
    S0,
    S1,
    B,
    Model,
    assert_global,
    assert_local,
    counted,
    linear,
    parameter,
    tensor,
)

A = counted(8, 4)


def test_the_innermost_scope_wins_and_the_outer_comes_back(P):
    m = Model()
    with global_scope(P, S0):
        m.a = parameter(A)
        with global_scope(P, B):
            m.b = parameter(A + 1)
        m.c = parameter(A + 2)
    m.d = parameter(A + 3)
    assert_global(m.a, A, P, S0)
    assert_global(m.b, A + 1, P, B)
    assert_global(m.c, A + 2, P, S0)
    assert_local(m.d, A + 3)


def test_three_deep(P):
    m = Model()
    with global_scope(P, S0):
        with global_scope(P, B):
            with global_scope(P, S1):
                m.c = parameter(A)
            m.b = parameter(A)
        m.a = parameter(A)
    for name, sbp in {"a": S0, "b": B, "c": S1}.items():
        assert_global(getattr(m, name), A, P, sbp)


def test_a_tensor_is_converted_once(P):
    """microsoft/DeepSpeed#2811, #3202: the work was done by every scope around."""
    m = Model()
    with global_scope(P, S0) as outer, global_scope(P, B) as inner:
        m.new = parameter(A)
    assert_global(m.new, A, P, B)
    assert [record.path for record in inner.converted] == ["new"]
    assert outer.converted == []


def test_equal_scopes_convert_once(P, rank, world):
    """As shares a second conversion would show: it would take the world's rows once more."""
    m = Model()
    with global_scope(P, S0, source="shard"), global_scope(P, S0, source="shard"):
        m.new = parameter(counted(4, 4, start=16 * rank))
    assert_global(m.new, counted(4 * world, 4), P, S0)


def test_each_scope_has_its_own_records(P):
    m = Model()
    with global_scope(P, S0) as outer:
        m.a = parameter(A)
        with global_scope(P, B) as inner:
            m.b = parameter(A)
        m.c = parameter(A)
    assert [record.path for record in outer.converted] == ["a", "c"]
    assert [record.path for record in inner.converted] == ["b"]


def test_each_scope_has_its_own_options(P, world):
    m, first, second = Model(), linear(A), linear(A)
    for layer in (first, second):
        layer.register_buffer("seen", tensor(A))
    with global_scope(P, S0, source="shard", buffers="sbp"):
        with global_scope(P, S0):
            m.full = first
        m.shard = second
    assert tuple(m.full.weight.shape) == (8, 4)
    assert m.full.seen.sbp == (B,)
    assert tuple(m.shard.weight.shape) == (8 * world, 4)
    assert m.shard.seen.sbp == (S0,)


def test_what_the_outer_scope_converted_keeps_its_sbp_in_the_inner(P):
    m, other = Model(), Model()
    with global_scope(P, S0):
        m.new = parameter(A)
        with global_scope(P, B):
            other.new = m.new
            other.tree = m
    assert other.new is m.new
    assert_global(m.new, A, P, S0)


@pytest.mark.ranks(2, 4)
def test_each_scope_has_its_own_placement(P, rank):
    m, last = Model(), flow.placement("cpu", [1])
    with global_scope(P, S0):
        with global_scope(last, B):
            m.b = parameter(A + 1000 * rank)
        m.a = parameter(A + 1000 * rank)
    assert_global(m.a, A, P, S0)
    assert_global(m.b, A + 1000, last, B)


def test_an_exception_in_the_inner_scope_brings_the_outer_back(P):
    m = Model()
    with global_scope(P, S0):
        with pytest.raises(ZeroDivisionError), global_scope(P, B):
            raise ZeroDivisionError
        m.a = parameter(A)
    assert_global(m.a, A, P, S0)
    m.b = parameter(A)
    assert_local(m.b, A)


def test_a_refused_assignment_in_the_inner_scope_brings_the_outer_back(P):
    m = Model()
    with global_scope(P, S0):
        with pytest.raises(ConversionError), global_scope(P, S1):
            m.bad = parameter(counted(8))
        m.bad = parameter(counted(8))
    assert_global(m.bad, counted(8), P, S0)


def test_scopes_one_after_another(P):
    m = Model()
    with global_scope(P, S0):
        m.a = parameter(A)
    m.b = parameter(A)
    with global_scope(P, B):
        m.c = parameter(A)
    assert_global(m.a, A, P, S0)
    assert_local(m.b, A)
    assert_global(m.c, A, P, B)


def test_a_scope_opened_while_a_module_is_built(P):
    """A layer that states its own sbp, in a model built under another one."""

    class Column(Model):
        def __init__(self):
            super().__init__()
            self.before = parameter(A)
            with global_scope(P, S0):
                self.weight = parameter(A)
            self.after = parameter(A)

    with global_scope(P, B):
        m = Column()
    assert_global(m.before, A, P, B)
    assert_global(m.weight, A, P, S0)
    assert_global(m.after, A, P, B)


def test_none_where_no_scope_is_open(P):
    assert current_scope() is None
    scope = global_scope(P, S0)
    assert current_scope() is None
    with scope:
        assert current_scope() is not None
    assert current_scope() is None


def test_it_is_what_with_gave(P):
    with global_scope(P, S0) as outer:
        assert current_scope() is outer
        with global_scope(P, B) as inner:
            assert current_scope() is inner
        assert current_scope() is outer


def test_its_placement_and_its_records(P):
    m = Model()
    with global_scope(P, S0):
        m.new = parameter(A)
        scope = current_scope()
        assert scope.spec.placement == P
        assert [record.path for record in scope.converted] == ["new"]
    assert [record.path for record in scope.converted] == ["new"]


def test_after_an_exception(P):
    with global_scope(P, S0) as outer:
        with pytest.raises(ZeroDivisionError), global_scope(P, B):
            raise ZeroDivisionError
        assert current_scope() is outer


def test_inside_a_constructor_of_a_decorated_class(P):
    """A class's own layout is no scope."""
    seen = []

    @auto_global(P, S0)
    class Layer(Model):
        def __init__(self):
            super().__init__()
            seen.append(current_scope())
            self.new = parameter(A)

    Layer()
    with global_scope(P, B) as scope:
        Layer()
    assert seen == [None, scope]
