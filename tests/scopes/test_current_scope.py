"""``current_scope()``: the innermost scope in force."""

from __future__ import annotations

import pytest

from autoglobal import auto_global, current_scope, global_scope
from tests.helpers.support import S0, B, Model, counted, parameter

A = counted(8, 4)


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
