"""``local_to_global``: what is local in an existing module becomes global, the rest stays."""

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
def test_what_is_local_becomes_global_and_the_rest_stays(P):
    """Oneflow-Inc/oneflow#8869: convert the local ones of a mixed module, skip the others."""
    m = mixed(P)
    old, new, weight = m.old, m.new, m.sub.lin.weight
    assert local_to_global(m, P, S0) is m
    assert m.old is old
    assert_global(m.old, counted(8, 4, start=500), P, B)
    assert_global(m.new, W, P, S0)
    assert_global(m.seen, counted(3, start=200), P, B)
    assert_global(m.sub.lin.weight, counted(8, 4, start=300), P, S0)
    assert_global(m.sub.lin.bias, counted(8, start=400), P, S0)
    assert m.new is new, "in place: the same Parameters"
    assert m.sub.lin.weight is weight


@pytest.mark.parametrize("sbp", [B, S0, S1, [S0], (S1,)], ids=str)
def test_the_first_rank_wins_for_every_tensor(P, rank, sbp):
    m = nn.Sequential(*[linear(counted(8, 4, start=1000 * rank + i)) for i in range(3)])
    m[1].register_buffer("seen", tensor(counted(5, start=2000 * rank)))
    local_to_global(m, P, sbp)
    for i in range(3):
        assert_global(m[i].weight, counted(8, 4, start=i), P, sbp)
    assert_global(m[1].seen, counted(5), P, B)


def test_shares(P, rank, world):
    m = linear(counted(4, 4, start=16 * rank), counted(4, start=4 * rank))
    local_to_global(m, P, S0, source="shard")
    assert_global(m.weight, counted(4 * world, 4), P, S0)
    assert_global(m.bias, counted(4 * world), P, S0)


def test_uneven_rows(P, rank):
    m = linear(counted(5, 4, start=1000 * rank))
    local_to_global(m, P, S0)
    assert_global(m.weight, counted(5, 4), P, S0)


@pytest.mark.parametrize("sbp", [(B, B), (S0, B), (B, S1)], ids=str)
def test_a_placement_of_two_dimensions(world, rank, sbp):
    placement = flow.placement("cpu", [list(range(world))])
    m = local_to_global(linear(counted(8, 4, start=1000 * rank)), placement, sbp)
    assert_global(m.weight, W, placement, sbp)


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("sbp", [B, S0], ids=str)
def test_a_placement_that_leaves_ranks_out(world, rank, sbp):
    """The ranks outside call as well, and hold nothing."""
    placement = flow.placement("cpu", [world - 1])
    m = linear(counted(8, 4, start=1000 * rank))
    local_to_global(m, placement, sbp)
    assert_global(m.weight, counted(8, 4, start=1000 * (world - 1)), placement, sbp)


def test_buffers_by_the_sbp(P):
    m = Model()
    m.register_buffer("seen", tensor(W), persistent=False)
    local_to_global(m, P, S0, buffers="sbp")
    assert_global(m.seen, W, P, S0)
    assert m._non_persistent_buffers_set == {"seen"}


def test_buffers_left_local(P):
    m, held = linear(W), tensor(W)
    m.register_buffer("seen", held)
    local_to_global(m, P, S0, buffers=False)
    assert m.seen is held
    assert_local(m.seen, W)
    assert_global(m.weight, W, P, S0)


@pytest.mark.ranks(2, 4)
def test_what_cannot_be_split_is_broadcast_if_allowed(P):
    m = Model()
    m.token, m.weight = parameter(counted(1, 1, 6)), parameter(W)
    local_to_global(m, P, S0, unsplittable="broadcast")
    assert_global(m.token, counted(1, 1, 6), P, B)
    assert_global(m.weight, W, P, S0)


def test_a_second_call_changes_nothing(P):
    m = local_to_global(mixed(P), P, S0)
    before = [*m.parameters(), *m.buffers()]
    local_to_global(m, P, S1)
    after = [*m.parameters(), *m.buffers()]
    assert all(now is then for now, then in zip(after, before))
    assert m.new.sbp == (S0,)


@pytest.mark.ranks(2, 4)
def test_a_module_without_local_tensors_on_one_rank_only(P, rank):
    """Nothing to convert, nothing to tell: it would wait for the others until the time limit."""
    m = local_to_global(mixed(P), P, S0)
    if rank == 0:
        local_to_global(m, P, S0)
        local_to_global(nn.ReLU(), P, S0)
    assert_global(local_to_global(linear(W), P, S0).weight, W, P, S0)


def test_inside_a_scope_the_calls_own_arguments_count(P):
    m = mixed(P)
    with global_scope(P, S0):
        local_to_global(m, P, B)
    assert_global(m.new, W, P, B)
    assert_global(m.sub.lin.weight, counted(8, 4, start=300), P, B)


def test_after_a_scope_that_could_not_see_everything(P):
    """``_parameters[...] = p`` goes round every hook; a final call finds it."""
    with global_scope(P, S0):
        m = nn.Linear(4, 8)
        m._parameters["extra"] = parameter(W)
    assert local_names(m) == ["extra"]
    weight = m.weight
    local_to_global(m, P, B)
    assert_global(m.extra, W, P, B)
    assert m.weight is weight
    assert weight.sbp == (S0,)


# Refused


def test_a_path_in_a_message_starts_with_the_class(P):
    with pytest.raises(ConversionError, match=r"Model\.sub\.lin\.bias\b"):
        local_to_global(mixed(P), P, S1)


NO_MODULES = {
    "parameter": lambda: parameter(W),
    "list": lambda: [linear(W)],
    "None": lambda: None,
    "class": lambda: nn.Linear,
}


@pytest.mark.parametrize("make", NO_MODULES.values(), ids=NO_MODULES)
def test_what_is_no_module(P, make):
    with pytest.raises(TypeError, match=r"(?i)module"):
        local_to_global(make(), P, S0)


@pytest.mark.parametrize("option", [{"when": "exit"}, {"when": "assign"}, {"sauce": 1}], ids=str)
def test_an_option_that_it_does_not_have(P, option):
    m = linear(W)
    with pytest.raises(TypeError, match=next(iter(option))):
        local_to_global(m, P, S0, **option)
    assert_local(m.weight, W)


BAD = {
    "placement": (TypeError, lambda P: ("cpu", S0), {}),
    "sbp": (TypeError, lambda P: (P, None), {}),
    "sbp count": (ValueError, lambda P: (P, [S0, S0]), {}),
    "source": (ValueError, lambda P: (P, S0), {"source": "half"}),
    "existing": (ValueError, lambda P: (P, S0), {"existing": "replace"}),
    "buffers": (ValueError, lambda P: (P, S0), {"buffers": "split"}),
    "unsplittable": (ValueError, lambda P: (P, S0), {"unsplittable": "ignore"}),
    "same_placement": (TypeError, lambda P: (P, S0), {"same_placement": "yes"}),
    "progress": (TypeError, lambda P: (P, S0), {"progress": "yes"}),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_refused_at_the_door(P, case):
    kind, arguments, options = BAD[case]
    m = linear(W)
    with pytest.raises(kind, match=case.split()[0]):
        local_to_global(m, *arguments(P), **options)
    assert_local(m.weight, W)


def test_inside_a_graph_it_is_refused(P, graphs_end_together):
    m, caught = linear(W), []

    class Own(nn.Graph):
        def build(self, x):
            with pytest.raises(ConversionError, match="Graph"):
                local_to_global(m, P, B)
            caught.append(True)
            return x * 2

    Own()(tensor(W).to_global(P, B)).numpy()
    assert caught == [True]
    assert_local(m.weight, W)


# The bar


def test_progress_shows_a_bar_on_the_first_rank_only(P, rank, capfd):
    m = local_to_global(mixed(P), P, S0, progress=True)
    shown = capfd.readouterr().err
    assert local_names(m) == []
    assert bool(shown.strip()) is (rank == 0)


def test_no_bar_unless_asked_for(P, capfd):
    local_to_global(mixed(P), P, S0)
    assert capfd.readouterr().err == ""
