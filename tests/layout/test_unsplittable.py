"""A tensor that cannot be split as asked: an error before anything is sent, or broadcast.

``record.fallback`` tells which tensors ``unsplittable="broadcast"`` made broadcast.
"""

from __future__ import annotations

import re

import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import AutoglobalError, ConversionError, global_scope
from tests.helpers.support import (
    S0,
    S1,
    B,
    Model,
    assert_global,
    counted,
    linear,
    parameter,
    tensor,
)

SPLIT_5 = flow.sbp.split(5)


def refusal(placement, sbp, value, **options) -> str:
    m = Model()
    with global_scope(placement, sbp, **options), pytest.raises(ConversionError) as caught:
        m.new = value
    assert isinstance(caught.value, AutoglobalError)
    assert not hasattr(m, "new")
    return str(caught.value)


def names_all(message: str, path: str, shape: str, axis: int) -> None:
    """Path, shape, sbp and the way out."""
    assert path in message
    assert shape in message
    assert re.search(rf"split\((dim=|axis=)?{axis}\)", message), message
    assert re.search(r"unsplittable=.broadcast.", message), message


@pytest.mark.ranks(2, 4)
def test_an_axis_shorter_than_the_ranks(P):
    """OneFlow would abort the last rank's process."""
    p = parameter(counted(1, 3))
    names_all(refusal(P, S0, p), "Model.new", "(1, 3)", 0)
    assert p.is_local


@pytest.mark.ranks(4)
def test_three_rows_for_four_ranks(P):
    names_all(refusal(P, S0, parameter(counted(3, 3))), "Model.new", "(3, 3)", 0)


@pytest.mark.ranks(2, 4)
def test_the_class_token_of_a_vit(P):
    names_all(refusal(P, S0, parameter(counted(1, 1, 192))), "Model.new", "(1, 1, 192)", 0)


@pytest.mark.parametrize("sbp", [S1, SPLIT_5], ids=str)
def test_an_axis_that_does_not_exist(P, sbp):
    """On one rank too: a model that builds on one must not fail on two."""
    p = parameter(counted(8))
    names_all(refusal(P, sbp, p), "Model.new", "(8,)", 5 if sbp == SPLIT_5 else 1)
    assert p.is_local


def test_an_axis_that_does_not_exist_in_a_share(P):
    names_all(refusal(P, S1, parameter(counted(8)), source="shard"), "Model.new", "(8,)", 1)


def test_the_path_into_a_module(P):
    tree = Model()
    tree.attn = linear(counted(8, 4), counted(8))
    names_all(refusal(P, S1, tree), "Model.new.attn.bias", "(8,)", 1)


def test_the_path_into_a_module_that_is_built(P):
    """Here the Linear's own constructor assigns: there is no longer path yet."""
    with global_scope(P, S1), pytest.raises(ConversionError, match=r"Linear\.bias"):
        nn.Linear(4, 8)


@pytest.mark.parametrize("how", ["register_parameter", "register_buffer", "add_module"])
def test_every_way_of_registering_is_refused(P, how):
    m = Model()
    value = {
        "register_parameter": lambda: parameter(counted(8)),
        "register_buffer": lambda: tensor(counted(8)),
        "add_module": lambda: linear(counted(8, 4), counted(8)),
    }[how]()
    with (
        global_scope(P, S1, buffers="sbp"),
        pytest.raises(ConversionError, match=r"Model\.new"),
    ):
        getattr(m, how)("new", value)
    assert not hasattr(m, "new")


def test_two_dimensions_name_both_sbps(world):
    placement = flow.placement("cpu", [list(range(world))])
    message = refusal(placement, (B, S1), parameter(counted(8)))
    assert "Model.new" in message
    assert re.search(r"split\((dim=|axis=)?1\)", message)


@pytest.mark.ranks(4)
def test_an_axis_split_twice_needs_rows_for_both(rank):
    """Two rows over 2 x 2 ranks: each dimension alone could split them."""
    square = flow.placement("cpu", [[0, 1], [2, 3]])
    assert "Model.new" in refusal(square, (S0, S0), parameter(counted(2, 3)))


@pytest.mark.ranks(2, 4)
def test_a_refusal_sends_nothing(P, rank):
    """On one rank only, which would otherwise wait for the others until the time limit."""
    m = Model()
    with global_scope(P, S0):
        if rank == 0:
            with pytest.raises(ConversionError):
                m.new = parameter(counted(1, 3))
        m.new = parameter(counted(8, 3))
    assert_global(m.new, counted(8, 3), P, S0)


# unsplittable="broadcast"


@pytest.mark.ranks(2, 4)
def test_broadcast_takes_an_axis_that_is_too_short(P, rank):
    m = Model()
    with global_scope(P, S0, unsplittable="broadcast") as scope:
        m.token = parameter(counted(1, 1, 192, start=1000 * rank))
        m.weight = parameter(counted(8, 4, start=1000 * rank))
    assert_global(m.token, counted(1, 1, 192), P, B)
    assert_global(m.weight, counted(8, 4), P, S0)
    assert [record.sbp for record in scope.converted] == [(B,), (S0,)]


def test_broadcast_takes_an_axis_that_does_not_exist(P, rank):
    m, layer = Model(), linear(counted(8, 4, start=1000 * rank), counted(8, start=1000 * rank))
    with global_scope(P, S1, unsplittable="broadcast"):
        m.sub = layer
    assert_global(m.sub.weight, counted(8, 4), P, S1)
    assert_global(m.sub.bias, counted(8), P, B)


def test_broadcast_takes_a_share(P, rank):
    m = Model()
    with global_scope(P, S1, unsplittable="broadcast", source="shard"):
        m.new = parameter(counted(8, start=1000 * rank))
    assert_global(m.new, counted(8), P, B)


@pytest.mark.ranks(4)
def test_broadcast_in_the_dimension_that_cannot_be_split(rank):
    square = flow.placement("cpu", [[0, 1], [2, 3]])
    m = Model()
    with global_scope(square, (S0, S1), unsplittable="broadcast"):
        m.bias = parameter(counted(8, start=1000 * rank))
        m.row = parameter(counted(1, 8, start=1000 * rank))
    assert_global(m.bias, counted(8), square, (S0, B))
    assert_global(m.row, counted(1, 8), square, (B, S1))


@pytest.mark.ranks(2, 4)
def test_broadcast_of_a_buffer_split_by_the_scope(P, rank):
    m = Model()
    with global_scope(P, S0, unsplittable="broadcast", buffers="sbp"):
        m.register_buffer("seen", tensor(counted(1, 3, start=rank)))
    assert_global(m.seen, counted(1, 3), P, B)


@pytest.mark.parametrize("unsplittable", ["error", "broadcast"])
def test_what_can_be_split_is_split(P, unsplittable):
    m = Model()
    with global_scope(P, S0, unsplittable=unsplittable):
        m.new = parameter(counted(8, 3))
    assert_global(m.new, counted(8, 3), P, S0)


def test_a_number_without_dimensions_needs_no_permission(P):
    m = Model()
    with global_scope(P, S0, unsplittable="error", buffers="sbp"):
        m.new = parameter(counted(1, start=7).reshape(()))
        m.register_buffer("seen", tensor(counted(1, start=9).reshape(())))
    assert_global(m.new, counted(1, start=7).reshape(()), P, B)
    assert_global(m.seen, counted(1, start=9).reshape(()), P, B)


W = counted(8, 4)


def fallbacks(scope) -> dict[str, bool]:
    return {record.path: record.fallback for record in scope.converted}


@pytest.mark.parametrize("when", ["assign", "exit"])
def test_an_axis_that_does_not_exist_falls_back(P, when):
    m, layer = Model(), linear(W, counted(8))
    with global_scope(P, S1, unsplittable="broadcast", when=when) as scope:
        m.sub = layer
    assert fallbacks(scope) == {"sub.weight": False, "sub.bias": True}
    assert [record.sbp for record in scope.converted] == [(S1,), (B,)]


@pytest.mark.ranks(2, 4)
def test_an_axis_that_is_too_short(P):
    m = Model()
    with global_scope(P, S0, unsplittable="broadcast") as scope:
        m.token, m.new = parameter(counted(1, 1, 6)), parameter(W)
    assert fallbacks(scope) == {"token": True, "new": False}


@pytest.mark.ranks(4)
def test_one_of_two_dimensions():
    square = flow.placement("cpu", [[0, 1], [2, 3]])
    m = Model()
    with global_scope(square, (S0, S1), unsplittable="broadcast") as scope:
        m.bias, m.weight = parameter(counted(8)), parameter(W)
    assert fallbacks(scope) == {"bias": True, "weight": False}
    assert scope.converted[0].sbp == (S0, B)


def test_a_number_without_dimensions_is_none(P):
    """There is nothing in it to split."""
    m = Model()
    with global_scope(P, S0, unsplittable="broadcast") as scope:
        m.new = parameter(counted(1).reshape(()))
    assert fallbacks(scope) == {"new": False}


def test_what_was_to_be_broadcast_is_none(P):
    m, layer = Model(), linear(W, counted(8))
    layer.register_buffer("seen", tensor(counted(1)))
    rules = {"*weight": S1, "*bias": B}
    with global_scope(P, rules, unsplittable="broadcast") as scope:
        m.sub = layer
    assert fallbacks(scope) == {"sub.weight": False, "sub.bias": False, "sub.seen": False}


def test_a_buffer_by_the_sbp(P):
    m = Model()
    with global_scope(P, S1, unsplittable="broadcast", buffers="sbp") as scope:
        m.register_buffer("seen", tensor(counted(8)))
    assert fallbacks(scope) == {"seen": True}


def test_a_rule_that_does_not_fit(P):
    m, layer = Model(), linear(W, counted(8))
    with global_scope(P, {"*": S1}, unsplittable="broadcast") as scope:
        m.sub = layer
    assert fallbacks(scope) == {"sub.weight": False, "sub.bias": True}


def test_without_it_nothing_falls_back(P):
    m = Model()
    with global_scope(P, S0) as scope:
        m.new = parameter(W)
    assert fallbacks(scope) == {"new": False}


@pytest.mark.parametrize("shape", [(0,), (0, 4)], ids=str)
@pytest.mark.parametrize("when", ["assign", "exit"])
def test_an_empty_axis(P, shape, when):
    """OneFlow divides it, and fails in the second backward pass (deepspeedai/DeepSpeed#8297)."""
    m, p = Model(), parameter(counted(*shape))
    with pytest.raises(ConversionError) as caught, global_scope(P, S0, when=when):
        m.new = p
    names_all(str(caught.value), "Model.new", str(shape), 0)
    assert "axis 0 is empty" in str(caught.value)
    assert p.is_local
    m = Model()
    with global_scope(P, S0, when=when, unsplittable="broadcast") as scope:
        m.new = parameter(counted(*shape))
    assert_global(m.new, counted(*shape), P, B)
    assert [one.fallback for one in scope.converted] == [True]
    for _ in range(2):
        (m.new * 2).sum().backward()


@pytest.mark.parametrize("where", ["here", "everywhere"])
def test_an_empty_axis_of_shards(P, rank, world, where):
    m = Model()
    empty = where == "everywhere" or rank == world - 1
    with global_scope(P, S0, source="shard"), pytest.raises(ConversionError, match=r"\bempty\b"):
        m.new = parameter(counted(0 if empty else 1, 4))
    assert not hasattr(m, "new")
