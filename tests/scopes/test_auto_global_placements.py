"""Bare ``@auto_global`` where there are several placements, and in scopes."""

from __future__ import annotations

import oneflow as flow
import pytest

from autoglobal import ConversionError, global_scope, local_scope
from tests.helpers.scopes import Follower, following
from tests.helpers.support import (
    S0,
    B,
    Model,
    Snapshot,
    assert_global,
    assert_local,
    counted,
    linear,
    parameter,
)
from tests.helpers.trees import globally

A = counted(8, 4)


# Several placements


def on_two(world) -> tuple[Follower, flow.placement, flow.placement]:
    first, last = flow.placement("cpu", [0]), flow.placement("cpu", [world - 1])
    m, sub = Follower(), Model()
    sub.weight = globally(A, last, B)
    m.param, m.sub = globally(A, first, B), sub
    return m, first, last


@pytest.mark.ranks(2, 4)
def test_several_placements_are_an_error_that_names_them(world):
    m, first, last = on_two(world)
    p, layer = parameter(A), linear(A)
    before = Snapshot(m)
    for name, value in (("new", p), ("layer", layer)):
        with pytest.raises(ConversionError) as caught:
            setattr(m, name, value)
        for words in (str(first), str(last), f"Follower.{name}"):
            assert words in str(caught.value)
    before.assert_unchanged()
    assert_local(p, A)
    assert_local(layer.weight, A)


@pytest.mark.ranks(2, 4)
def test_on_several_placements_what_is_global_can_be_assigned(P, world):
    m, _, last = on_two(world)
    m.new, m.number = globally(A, P, S0), 3
    assert_global(m.new, A, P, S0)
    del m.param, m.new
    m.other = parameter(A)
    assert_global(m.other, A, last, B)


@pytest.mark.ranks(2, 4)
def test_on_several_placements_it_works_again_once_there_is_one(world):
    m, _, last = on_two(world)
    with pytest.raises(ConversionError):
        m.new = parameter(A)
    del m.param
    m.new = parameter(A)
    assert_global(m.new, A, last, B)


@pytest.mark.ranks(2, 4)
def test_a_scope_settles_several_placements(P, world):
    m, _, _ = on_two(world)
    with global_scope(P, S0):
        m.new = parameter(A)
    assert_global(m.new, A, P, S0)


# Scopes


def test_an_open_scope_has_precedence(P):
    m, empty = following(P, B), Follower()
    with global_scope(P, S0):
        m.new, empty.new = parameter(A), parameter(A)
    m.after = parameter(A)
    assert_global(m.new, A, P, S0)
    assert_global(empty.new, A, P, S0)
    assert_global(m.after, A, P, B)


def test_in_local_scope_nothing_follows(P):
    m = following(P)
    with local_scope():
        m.new = parameter(A)
    m.after = parameter(A)
    assert_local(m.new, A)
    assert_global(m.after, A, P, B)
