"""Plan, then apply: a tree whose last tensor is impossible stays as it was, and nothing is sent.

What is impossible is impossible in each way there is: by its shape, by no rule, by a rule that
fails, by a policy. By a call, by an assignment, and as an exit scope closes.
"""

from __future__ import annotations

import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import ConversionError, DivergenceError, global_scope, local_to_global
from tests.helpers.support import (
    S0,
    S1,
    B,
    Model,
    Snapshot,
    assert_global,
    assert_local,
    counted,
    linear,
    local_names,
    tensor,
    tensors,
)
from tests.helpers.trees import globally

W = counted(8, 4)


def tree(last: nn.Parameter | None = None) -> Model:
    """Two layers, a gradient, a frozen one, a tie, two buffers, and at the end a vector."""
    m = Model()
    m.a, m.b = linear(W), linear(W + 1)
    m.tied = nn.Sequential(linear(W))
    m.tied[0].weight = m.a.weight
    m.a.weight.grad = tensor(W + 50)
    m.b.weight.requires_grad_(False)
    m.b.register_buffer("seen", tensor(W + 2))
    m.b.register_buffer("transient", tensor(W + 3), persistent=False)
    m.rnn = nn.LSTM(4, 4)
    m.last = Model()
    m.last.vector = nn.Parameter(tensor(counted(8))) if last is None else last
    m.last.vector.grad = tensor(counted(8, start=60)) if last is None else None
    return m


def failing_rule(owner, path, value):
    if path.endswith("vector"):
        raise LookupError("no")
    return S0


def wrong_rule(owner, path, value):
    return "split(0)" if path.endswith("vector") else S0


def misfitting_gradient() -> nn.Parameter:
    """OneFlow allows it, and aborts where it is sent."""
    made = nn.Parameter(tensor(counted(8)))
    made.grad = tensor(counted(2, 3))
    return made


# What is asked for, and the error.
IMPOSSIBLE = {
    "no such axis": ({"*vector": S1, "*": S0}, ConversionError),
    "no rule": ({"*weight*": S0, "*bias*": S0}, ConversionError),
    "a rule that raises": (failing_rule, LookupError),
    "a rule that gives no sbp": (wrong_rule, ConversionError),
}
CASES = pytest.mark.parametrize("case", IMPOSSIBLE)
HOW = pytest.mark.parametrize("how", ["call", "assign", "exit"])


def attempt(how: str, m: nn.Module, placement, sbp, **options) -> None:
    if how == "call":
        local_to_global(m, placement, sbp, **options)
    else:
        holder = Model()
        with global_scope(placement, sbp, when=how, **options):
            holder.sub = m


def fails(how: str, m: nn.Module, case: str, placement, **options) -> None:
    sbp, kind = IMPOSSIBLE[case]
    with pytest.raises(kind):
        attempt(how, m, placement, sbp, **options)


@HOW
@CASES
def test_everything_is_as_it_was_on_every_rank(P, rank, how, case):
    m = tree()
    before = Snapshot(m)
    fails(how, m, case, P)
    before.assert_unchanged()
    assert local_names(m) == list(tensors(m))
    assert_local(m.a.weight, W)
    assert_local(m.a.weight.grad, W + 50)
    assert_local(m.b.seen, W + 2)
    assert_local(m.last.vector, counted(8))
    assert_local(m.last.vector.grad, counted(8, start=60))


@pytest.mark.ranks(2, 4)
@HOW
@CASES
def test_nothing_was_sent(P, rank, how, case):
    """With ``check=False``, on one rank only: the others wait for nothing."""
    m, layer = tree(), linear(W)
    if rank == 0:
        fails(how, m, case, P, check=False)
    assert_global(local_to_global(layer, P, S0).weight, W, P, S0)


@HOW
def test_a_global_tensor_where_none_is_allowed(P, how):
    m = tree(globally(counted(8), P, B))
    before = Snapshot(m)
    with pytest.raises(ConversionError, match=r"last\.vector"):
        attempt(how, m, P, S0, existing="error")
    before.assert_unchanged()


@HOW
def test_a_global_tensor_that_cannot_be_converted(P, how):
    m = tree(globally(counted(8), P, B))
    before = Snapshot(m)
    with pytest.raises(ConversionError, match=r"last\.vector"):
        attempt(how, m, P, {"*vector": S1, "*": S0}, existing="convert")
    before.assert_unchanged()


@pytest.mark.ranks(2, 4)
@HOW
def test_another_placement(P, how):
    first = flow.placement("cpu", [0])
    m = tree(globally(counted(8), first, B))
    before = Snapshot(m)
    with pytest.raises(ConversionError, match=r"last\.vector"):
        attempt(how, m, P, S0, same_placement=True)
    before.assert_unchanged()


@pytest.mark.ranks(2, 4)
@HOW
def test_an_axis_that_is_too_short(P, how):
    """OneFlow would abort the process."""
    m, layer = tree(), linear(W)
    m.last.vector = nn.Parameter(tensor(counted(1)))
    before = Snapshot(m)
    with pytest.raises(ConversionError, match=r"last\.vector"):
        attempt(how, m, P, S0)
    before.assert_unchanged()
    assert_global(local_to_global(layer, P, S0).weight, W, P, S0)


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("source", ["full", "shard"])
@pytest.mark.parametrize("how", ["call", "exit"])
def test_ranks_that_disagree_on_the_last_tensor(P, rank, how, source):
    """On more than 2 ranks OneFlow 0.9.0 itself tells only the neighbours of the odd one."""
    m = nn.Sequential(linear(W), linear(counted(8, 5 if rank == 1 else 4)))
    before = Snapshot(m)
    with pytest.raises(DivergenceError, match=r"1\.weight"):
        attempt(how, m, P, S0, source=source)
    before.assert_unchanged()
    assert local_names(m) == ["0.weight", "1.weight"]
    assert_global(local_to_global(linear(W), P, S0).weight, W, P, S0)


@HOW
def test_what_failed_can_be_converted_afterwards(P, how):
    m = tree()
    fails(how, m, "no such axis", P)
    local_to_global(m, P, S0)
    assert local_names(m) == []
    assert_global(m.last.vector, counted(8), P, S0)
    assert_global(m.last.vector.grad, counted(8, start=60), P, S0)
    assert_global(m.a.weight.grad, W + 50, P, S0)
    assert m.tied[0].weight is m.a.weight


def test_a_callable_is_asked_for_everything_before_the_first_tensor_changes(P):
    m = tree()
    seen = []

    def rule(owner, path, value):
        seen.append(local_names(m) == list(tensors(m)))
        return S0

    local_to_global(m, P, rule)
    assert len(seen) > 5
    assert all(seen)


def test_the_first_of_several_impossible_ones_is_named(P):
    """And no rank depends on which: each rank walks the tree in the same order."""
    m = nn.Sequential(linear(W), linear(W, counted(8)), linear(W, counted(8)))
    with pytest.raises(ConversionError, match=r"Sequential\.1\.bias"):
        local_to_global(m, P, S1)


def test_a_share_without_the_axis(P):
    m = tree()
    before = Snapshot(m)
    with pytest.raises(ConversionError, match=r"Model\.last\.vector"):
        local_to_global(m, P, {"*vector": S1, "*": S0}, source="shard")
    before.assert_unchanged()


@HOW
def test_a_gradient_of_another_shape(P, rank, how):
    """With copies that differ, which are sent, OneFlow 0.9.0 would end the process."""
    m = tree(misfitting_gradient())
    m.last.vector.grad = tensor(counted(2, 3))
    m.a.weight.data.add_(rank)
    before = Snapshot(m)
    with pytest.raises(ConversionError, match=r"last\.vector.*\(8,\).*\(2, 3\)"):
        attempt(how, m, P, B)
    before.assert_unchanged()
    m.last.vector.grad = None
    attempt(how, m, P, B)
    assert local_names(m) == []
