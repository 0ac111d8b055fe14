"""The order of what a scope with when="exit" converts is the program's, on every rank."""

from __future__ import annotations

import pytest
from oneflow import nn

from autoglobal import global_scope
from tests.helpers.support import B, Model, assert_global, counted, parameter, tensor


def one(start: int) -> Model:
    m = Model()
    m.new = parameter(counted(4, start=start))
    return m


def three() -> tuple[Model, Model, bool]:
    """Two modules, and whether the second has the address of one that died before it."""
    dead, first = one(0), one(100)
    address = id(dead)
    del dead
    second = one(200)
    return first, second, id(second) == address


def test_a_dead_module_leaves_its_place_in_the_order_to_nobody(P):
    """Its address, and so its id, may go to another module on one rank and not on another."""
    with global_scope(P, B, when="exit") as scope:
        first, second, _ = next((found for _ in range(50) if (found := three())[2]), three())
    assert_global(first.new, counted(4, start=100), P, B)
    assert_global(second.new, counted(4, start=200), P, B)
    assert [record.nbytes for record in scope.converted] == [16, 16]


@pytest.mark.ranks(2, 4)
def test_an_allocation_on_one_rank_alone_changes_nothing(P, rank):
    with global_scope(P, B, when="exit"):
        dead, a = one(0), one(100)
        del dead
        spare = nn.Identity() if rank == 1 else None
        b = one(200)
    assert_global(a.new, counted(4, start=100), P, B)
    assert_global(b.new, counted(4, start=200), P, B)
    assert (spare is None) == (rank != 1)


def test_what_is_assigned_again_in_a_local_scope_is_not_converted(P):
    from autoglobal import local_scope

    m = Model()
    m.register_buffer("seen", None)
    with global_scope(P, B, when="exit"):
        m.new, m.other, m.seen = parameter(counted(4)), parameter(counted(4)), tensor(counted(4))
        with local_scope():
            m.new = parameter(counted(4, start=100))
            m.seen = tensor(counted(4, start=100))
    assert m.new.is_local
    assert m.seen.is_local
    assert m.other.is_global
