"""``check`` and ``timeout``: what they may be, at each door, and what they are when not given."""

from __future__ import annotations

import inspect
import math

import pytest
from oneflow import nn

from autoglobal import SpecError, SpecTypeError, auto_global, global_scope, local_to_global
from tests.helpers.scopes import clean
from tests.helpers.support import S0, Model, assert_global, assert_local, counted, linear, parameter

W = counted(8, 4)


def by_scope(P, m, **options) -> None:
    with global_scope(P, S0, **options):
        m.new = parameter(W)


def by_class(P, m, **options) -> None:
    made = auto_global(P, S0, **options)(type("Layer", (nn.Module,), {}))()
    made.new = parameter(W)
    m.new = made.new


def by_call(P, m, **options) -> None:
    m.new = parameter(W)
    local_to_global(m, P, S0, **options)


at_each_door = pytest.mark.parametrize(
    "convert", [by_scope, by_class, by_call], ids=["global_scope", "auto_global", "local_to_global"]
)

WRONG = {
    "check": (SpecTypeError, [1, 0, None, "yes", 1.0]),
    "timeout": (SpecTypeError, [True, False, None, "10", [5], 1j]),
    "timeout value": (SpecError, [0, 0.0, -1, -0.5, math.nan, math.inf, -math.inf]),
}


@at_each_door
@pytest.mark.parametrize(
    ("option", "kind", "value"),
    [
        pytest.param(case.split()[0], kind, value, id=f"{case}-{value}")
        for case, (kind, values) in WRONG.items()
        for value in values
    ],
)
def test_what_it_may_not_be(P, convert, option, kind, value):
    m = Model()
    with pytest.raises(kind) as caught:
        convert(P, m, **{option: value})
    assert type(caught.value) is kind
    assert option in str(caught.value)
    assert repr(value) in str(caught.value), "what was received"
    if convert is by_call:
        assert_local(m.new, W)
    else:
        assert not m._parameters
    assert clean()


@at_each_door
@pytest.mark.parametrize(
    "options",
    [{"check": True}, {"check": False}, {"timeout": 60}, {"timeout": 90.5}, {"timeout": 1e9}],
    ids=str,
)
def test_what_it_may_be(P, convert, options):
    m = Model()
    convert(P, m, **options)
    assert_global(m.new, W, P, S0)


@pytest.mark.parametrize("function", [global_scope, local_to_global])
def test_what_it_is_when_not_given(function):
    given = inspect.signature(function).parameters
    assert given["check"].default is True
    assert given["timeout"].default == 600.0
    assert given["timeout"].kind is given["check"].kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.ranks(2, 4)
@at_each_door
def test_a_refusal_on_one_rank_only_leaves_the_others_alone(P, rank, world, convert):
    """Nothing is asked of the other ranks before the options are right."""
    m = Model()
    if rank == world - 1:
        with pytest.raises(SpecError):
            convert(P, Model(), timeout=-1)
    m = local_to_global(linear(W + 1000 * rank), P, S0)
    assert_global(m.weight, W, P, S0)
