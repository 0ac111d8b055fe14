"""``when="exit"``: nothing changes inside the block, everything is converted as it closes.

In the order of the program, on every rank.
"""

from __future__ import annotations

import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import ConversionError, global_scope, local_to_global
from tests.helpers.support import (
    S0,
    S1,
    B,
    Model,
    Snapshot,
    as_array,
    assert_global,
    assert_local,
    counted,
    linear,
    local_names,
    parameter,
    tensor,
)
from tests.helpers.trees import mixed

W = counted(8, 4)


@pytest.mark.in_place
def test_nothing_changes_inside_the_block(P):
    """Oneflow-Inc/oneflow#8869: the local Parameter that extends a global model."""
    m, p, t, layer = mixed(P), parameter(W), tensor(W + 1), linear(W + 2)
    old, new = m.old, m.new
    with global_scope(P, S0, when="exit") as scope:
        m.extra = p
        m.register_buffer("mask", t)
        m.layer = layer
        assert_local(m.extra, W)
        assert m.mask is t
        assert_local(m.layer.weight, W + 2)
        assert scope.converted == []
    assert m.extra is p
    assert_global(m.extra, W, P, S0)
    assert_global(m.mask, W + 1, P, B)
    assert_global(m.layer.weight, W + 2, P, S0)
    assert m.old is old
    assert_global(old, counted(8, 4, start=500), P, B)
    assert m.new is new
    assert_local(new, W)


@pytest.mark.parametrize("how", ["parameter", "buffer", "module"])
def test_every_way_of_registering(P, rank, how):
    m, own = Model(), counted(8, 4, start=1000 * rank)
    with global_scope(P, S0, when="exit"):
        if how == "parameter":
            m.register_parameter(param=parameter(own), name="new")
        elif how == "buffer":
            m.register_buffer("new", tensor(own), persistent=False)
        else:
            m.add_module("new", linear(own))
        assert local_names(m) == ["new.weight" if how == "module" else "new"]
    assert_global(m.new.weight if how == "module" else m.new, W, P, B if how == "buffer" else S0)
    assert m._non_persistent_buffers_set == ({"new"} if how == "buffer" else set())


@pytest.mark.parametrize("sbp", [B, S0], ids=str)
def test_the_first_ranks_initial_values_are_kept_bit_for_bit(P, rank, sbp):
    """Ranks initialise with different seeds, each locally, and the first one wins."""
    flow.manual_seed(rank)
    with global_scope(P, sbp, when="exit"):
        m = nn.Sequential(nn.Linear(5, 7), nn.Conv2d(3, 5, 2), nn.Embedding(9, 4))
        initial = [weight.detach().clone() for weight in m.parameters()]
    for weight, local in zip(m.parameters(), initial):
        assert_global(weight, as_array(local.to_global(P, B).to_local()), P, sbp)


def test_shares(P, rank, world):
    m = Model()
    with global_scope(P, S0, when="exit", source="shard"):
        m.new = parameter(counted(4, 4, start=16 * rank))
    assert_global(m.new, counted(4 * world, 4), P, S0)


def test_a_layer_computes_locally_inside_the_block(P):
    with global_scope(P, S0, when="exit"):
        m = nn.Linear(4, 8)
        out = m(flow.ones(2, 4))
        assert out.is_local
    assert m(flow.ones(2, 4, placement=P, sbp=B)).is_global


@pytest.mark.in_place
def test_an_optimizer_made_inside_the_block_moves_the_weights(P):
    m = Model()
    with global_scope(P, S0, when="exit"):
        m.new = parameter(W)
        optimizer = flow.optim.SGD(m.parameters(), lr=0.5)
    (m.new * 2).sum().backward()
    optimizer.step()
    assert_global(m.new, W - 1, P, S0)


def test_ties_made_inside_the_block(P):
    """huggingface/accelerate#3668: tied weights came untied."""
    with global_scope(P, S0, when="exit") as scope:
        m = Model()
        m.table, m.head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        m.head.weight = m.table.weight
    assert m.head.weight is m.table.weight
    assert m.table.weight.sbp == (S0,)
    assert len(scope.converted) == 1


@pytest.mark.in_place
def test_one_parameter_in_two_roots(P):
    one, two, p = Model(), Model(), parameter(W)
    with global_scope(P, S0, when="exit") as scope:
        one.new = p
        two.other = p
    assert one.new is two.other is p
    assert_global(p, W, P, S0)
    assert len(scope.converted) == 1


def test_an_entry_assigned_twice_ends_as_the_last_one(P):
    m = Model()
    with global_scope(P, S0, when="exit"):
        m.new = parameter(W)
        m.new = parameter(W + 1)
        m.register_buffer("seen", tensor(W))
        m.seen = tensor(W + 2)
    assert_global(m.new, W + 1, P, S0)
    assert_global(m.seen, W + 2, P, B)


def test_an_entry_deleted_again(P):
    m, other = Model(), Model()
    with global_scope(P, S0, when="exit"):
        m.new, m.kept, other.gone = parameter(W), parameter(W + 1), linear(W)
        del m.new
        del other.gone
    assert_global(m.kept, W + 1, P, S0)
    assert list(m._parameters) == ["kept"]


def test_a_none_entry_and_a_plain_attribute(P):
    m, plain = Model(), tensor(W)
    with global_scope(P, S0, when="exit"):
        m.register_parameter("nothing", None)
        m.plain, m.number = plain, 3
        m.new = parameter(W)
    assert m.plain is plain
    assert_local(plain, W)
    assert_global(m.new, W, P, S0)


def test_what_is_changed_in_place_after_the_assignment_counts(P):
    m = Model()
    with global_scope(P, S0, when="exit"):
        m.new = parameter(W)
        m.new.data[0].zero_()
        m.new.grad = tensor(W)
    expected = W.copy()
    expected[0] = 0
    assert_global(m.new, expected, P, S0)
    assert_global(m.new.grad, W, P, S0)


def test_recurrent_layers_keep_their_cache_of_weights(P):
    with global_scope(P, S0, when="exit"):
        m = Model()
        m.rnn = nn.LSTM(3, 4, num_layers=2)
    assert local_names(m) == []
    named = [m.rnn._parameters[name] for name in m.rnn._flat_weights_names]
    assert all(a is b for a, b in zip(named, m.rnn._flat_weights))


def test_a_list_that_is_filled_past_every_hook(P):
    """``ModuleList.insert`` writes to the registry itself; the list is in the tree at the end."""
    with global_scope(P, S0, when="exit"):
        m = Model()
        m.layers = nn.ModuleList([linear(W)])
        m.layers.insert(0, linear(W + 1))
    assert_global(m.layers[0].weight, W + 1, P, S0)
    assert_global(m.layers[1].weight, W, P, S0)


@pytest.mark.parametrize("fault", [RuntimeError, KeyboardInterrupt])
def test_an_exception_leaves_everything_local(P, fault):
    m, tree = Model(), nn.Sequential(linear(W), linear(W, counted(8)))
    with pytest.raises(fault), global_scope(P, S0, when="exit") as scope:  # noqa: PT012
        m.new, m.sub = parameter(W), tree
        before = Snapshot(m)
        raise fault
    before.assert_unchanged()
    assert_local(m.new, W)
    assert local_names(m) == ["new", "sub.0.weight", "sub.1.weight", "sub.1.bias"]
    assert scope.converted == []


def test_what_is_impossible_is_named_as_the_scope_closes(P):
    m, scope = Model(), global_scope(P, S1, when="exit")
    records = scope.__enter__()
    m.sub = Model()
    m.sub.lin = nn.Linear(4, 8)
    before = Snapshot(m)
    with pytest.raises(ConversionError, match=r"Model\.sub\.lin\.bias"):
        scope.__exit__(None, None, None)
    before.assert_unchanged()
    assert records.converted == []


@pytest.mark.ranks(2, 4)
def test_a_block_that_assigns_nothing_on_one_rank_only(P, rank):
    """With ``check=False`` not even the end of the block waits for the others."""
    m = Model()
    if rank == 0:
        with global_scope(P, S0, when="exit", check=False):
            m.number, m.act = 3, nn.ReLU()
    assert_global(local_to_global(linear(W), P, S0).weight, W, P, S0)


def test_records_after_the_block(P):
    m = Model()
    with global_scope(P, S0, when="exit") as scope:
        m.sub = linear(W, counted(8))
        m.register_buffer("seen", tensor(counted(8)))
    found = {record.path: (record.kind, record.sbp) for record in scope.converted}
    assert found == {
        "sub.weight": ("parameter", (S0,)),
        "sub.bias": ("parameter", (S0,)),
        "seen": ("buffer", (B,)),
    }


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
