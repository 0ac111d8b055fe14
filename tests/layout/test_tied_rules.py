"""A tied tensor has two paths, and so perhaps two rules."""

from __future__ import annotations

import warnings

import pytest
from oneflow import nn

from autoglobal import TiedRulesWarning, local_to_global
from tests.helpers.support import S0, S1, B, Model, counted, parameter

A = counted(8, 8)


def tied() -> Model:
    m = Model()
    m.table, m.head = Model(), Model()
    m.table.weight = m.head.weight = parameter(A)
    return m


def test_rules_that_differ_are_named_and_the_first_is_taken(P):
    m = tied()
    with pytest.warns(TiedRulesWarning) as caught:
        local_to_global(m, P, {"head.*": S1, "table.*": S0})
    (message,) = [str(one.message) for one in caught]
    for word in ("Model.table.weight", "Model.head.weight", "'head.*'", "'table.*'"):
        assert word in message
    assert m.head.weight is m.table.weight
    assert m.table.weight.sbp == (S0,)


@pytest.mark.parametrize("rules", [{"head.*": S0, "table.*": S0}, {"table.*": S0}], ids=str)
def test_rules_that_agree_are_no_matter(P, rules):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        m = local_to_global(tied(), P, rules)
    assert m.head.weight.sbp == (S0,)


def test_a_tied_buffer_that_the_rules_do_not_decide(P):
    m, mask = tied(), nn.BatchNorm1d(8).running_mean
    m.table.register_buffer("mask", mask)
    m.head.register_buffer("mask", mask)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        local_to_global(m, P, {"*.weight": S0})
    assert m.table.mask is m.head.mask
    assert m.table.mask.sbp == (B,)


def test_the_first_is_taken_of_what_was_global_too(P):
    m = local_to_global(tied(), P, B)
    with pytest.warns(TiedRulesWarning):
        local_to_global(m, P, {"table.*": B, "head.*": S0}, existing="convert")
    assert m.head.weight.sbp == (B,)


@pytest.mark.parametrize("first", [None, S0], ids=["local first", "global first"])
def test_a_rule_that_leaves_it_local_is_a_rule_too(P, first):
    m, second = tied(), S0 if first is None else None
    with pytest.warns(TiedRulesWarning) as caught:
        local_to_global(m, P, {"table.*": first, "head.*": second})
    assert len(caught) == 1
    assert m.head.weight.is_local == (first is None)


def test_one_module_under_two_names(P):
    m = Model()
    m.encoder = m.decoder = nn.Linear(8, 8)
    with pytest.warns(TiedRulesWarning) as caught:
        local_to_global(m, P, {"encoder.*": S0, "decoder.*": B})
    assert "Model.decoder.weight" in "".join(str(one.message) for one in caught)
    assert m.encoder.weight.sbp == (S0,)
