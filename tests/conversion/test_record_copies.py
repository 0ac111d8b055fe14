"""Scopes and their records can be copied and pickled, as what else is kept beside a model."""

from __future__ import annotations

import copy
import pickle
import warnings

import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import (
    AutoglobalError,
    ConversionRecord,
    SpecError,
    UnusedRuleWarning,
    global_scope,
    local_scope,
    local_to_global,
)
from tests.helpers.support import S0, B, Model, assert_global, counted, linear, parameter
from tests.helpers.trees import four_kinds

A = counted(8, 4)
COPY = pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))],
    ids=["copy", "deepcopy", "pickle"],
)


@COPY
@pytest.mark.parametrize("when", ["assign", "exit"])
def test_the_record_of_a_scope(P, again, when):
    m, sub = Model(), four_kinds(P)
    with global_scope(P, {"*.bias": None, "*": S0}, when=when, buffers=False) as scope:
        m.sub = sub
    found = again(scope)
    assert str(found) == str(scope)
    assert repr(found) == repr(scope)
    assert (found.converted, found.kept, found.left) == (scope.converted, scope.kept, scope.left)
    assert found.spec == scope.spec
    assert len(found.left) == 2
    assert found.closed
    assert str(again(found)) == str(scope)


@COPY
def test_one_that_is_open(P, again):
    """The copy is what there was then, and not open."""
    m = Model()
    with global_scope(P, S0) as scope:
        m.first = parameter(A)
        found = again(scope)
        m.second = parameter(A)
    assert [one.path for one in found.converted] == ["first"]
    assert [one.path for one in scope.converted] == ["first", "second"]
    assert found.closed


@COPY
def test_the_record_of_a_call(P, again):
    record = ConversionRecord()
    local_to_global(linear(A), P, B, record=record)
    found = again(record)
    assert str(found) == str(record)
    local_to_global(linear(A), P, B, record=found)
    assert (len(found.converted), len(record.converted)) == (2, 1)


@COPY
def test_a_scope_itself(P, again):
    """As in a module that keeps one and is copied (pytorch#76927)."""
    scope = global_scope(P, {"w": S0, "*": B}, buffers=False)
    for found in (again(scope), again_while_open(scope, again)):
        m = Model()
        assert repr(found) == repr(scope)
        with found:
            m.w = parameter(A)
        assert_global(m.w, A, P, S0)
        with pytest.raises(AutoglobalError, match="not open"):
            found.__exit__(None, None, None)


def again_while_open(scope, again):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnusedRuleWarning)
        with scope:
            return again(scope)


@COPY
def test_a_local_scope(P, again):
    found, m = again(local_scope()), Model()
    with local_scope() as frame:
        assert again(frame).closed
    with global_scope(P, B), found:
        m.w = parameter(A)
    assert m.w.is_local


def test_one_from_a_larger_program(P):
    """Ranks that are not here are told at the door, as where a scope is written."""
    scope = global_scope(P, B)
    object.__setattr__(scope._spec, "placement", flow.placement("cpu", [77]))
    with pytest.raises(SpecError, match="ranks that exist"):
        pickle.loads(pickle.dumps(scope))


def test_a_module_that_keeps_both(P):
    m = nn.Linear(4, 4)
    m.scope = global_scope(P, B)
    with m.scope as m.record:
        pass
    found = copy.deepcopy(m)
    assert str(found.record) == str(m.record)
