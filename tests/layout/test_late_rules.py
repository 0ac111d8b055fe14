"""Rules by path in a scope that converts as it is assigned: a constructor comes before them."""

from __future__ import annotations

import warnings

import pytest
from oneflow import nn

from autoglobal import LateRuleWarning, global_scope, local_to_global
from tests.helpers.support import S0, B, Model, counted, linear

W = counted(8, 4)


def test_a_rule_by_path_that_came_after_the_constructor_is_told(P):
    m = Model()
    with (
        pytest.warns(LateRuleWarning, match=r"'sub\.\*'.*Model\.sub\.weight.*when='exit'"),
        global_scope(P, {"sub.*": S0, "*": B}),
    ):
        m.sub = nn.Linear(4, 8)
    assert m.sub.weight.sbp == (B,)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with global_scope(P, {"sub.*": S0, "*": B}, when="exit"):
            m.sub = nn.Linear(4, 8)
        with global_scope(P, {"Linear.*": S0, "*": B}):
            m.sub = nn.Linear(4, 8)
        with global_scope(P, {"other.*": B, "*": B}):
            m.other = nn.Linear(4, 8)
    assert m.sub.weight.sbp == (S0,)


def test_a_last_star_may_have_nothing_to_do(P):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        local_to_global(linear(W), P, {"weight": S0, "*": B})
