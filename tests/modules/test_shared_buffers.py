"""A buffer that two modules share, and a scratch tensor that two modules are given in turn."""

from __future__ import annotations

import gc

import oneflow as flow
import pytest

from autoglobal import global_scope, local_to_global
from autoglobal.conversion import memo
from tests.helpers.support import S0, B, Model, assert_global, counted, linear, tensor

A = counted(8, 4)


def test_in_two_assignments_it_stays_one(P):
    one, two, t = Model(), Model(), tensor(A)
    with global_scope(P, B):
        one.register_buffer("seen", t)
        two.register_buffer("seen", t)
    assert one.seen is two.seen


@pytest.mark.parametrize("sbp", [B, S0], ids=str)
def test_a_write_in_between_that_one_rank_alone_sees_in_its_part(P, sbp):
    """All ranks decide alike, or one would have one buffer and the other two."""
    one, two, t = Model(), Model(), tensor(A)
    with global_scope(P, sbp, buffers="sbp"):
        one.register_buffer("seen", t)
        one.seen.add_(1)
        t[0, 0] = 50
        two.register_buffer("seen", t)
        two.seen.add_(10)
    written = A.copy()
    written[0, 0] = 50
    assert_global(one.seen, A + 1, P, sbp)
    assert_global(two.seen, written + 10, P, sbp)


@pytest.mark.ranks(2, 4)
def test_a_placement_that_leaves_ranks_out(P):
    one, two, t, first = Model(), Model(), tensor(A), flow.placement("cpu", [0])
    with global_scope(first, B):
        one.register_buffer("seen", t)
        t.fill_(5)
        two.register_buffer("seen", t)
    assert one.seen is not two.seen
    m = Model()
    m.one, m.two = one, two
    local_to_global(m, P, B, existing="convert")
    assert_global(m.one.seen, A, P, B)
    assert_global(m.two.seen, A * 0 + 5, P, B)


def test_what_is_assigned_again_and_again_is_not_kept(P):
    m = Model()
    m.register_buffer("seen", None)
    with global_scope(P, B) as scope:
        for step in range(20):
            m.seen = tensor(A + step)
        (kept,) = [
            found for found in gc.get_objects() if type(found) is memo.Memo and found._buffers
        ]
        assert len(kept._buffers) == 1
    assert len(scope.converted) == 20
    assert_global(m.seen, A + 19, P, B)


@pytest.mark.parametrize("buffers", ["broadcast", False])
@pytest.mark.parametrize("first", ["buffer", "parameter"])
def test_a_parameter_that_another_module_keeps_as_a_buffer(P, buffers, first):
    """It is a Parameter, whichever of the two is met first."""
    m, layer = Model(), linear(A)
    if first == "parameter":
        m.layer = layer
        m.later = Model()
        m.later.register_buffer("seen", layer.weight)
        other = m.later
    else:
        m.register_buffer("seen", layer.weight)
        m.layer = layer
        other = m
    local_to_global(m, P, S0, buffers=buffers)
    assert_global(m.layer.weight, A, P, S0)
    assert other.seen is m.layer.weight
