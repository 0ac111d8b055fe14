"""``local_to_global``: what is local in an existing module becomes global, the rest stays.

It keeps ties, gradients, flags, caches, entries and their order.
"""

from __future__ import annotations

import numpy as np
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
    assert_global,
    assert_local,
    counted,
    linear,
    local_names,
    parameter,
    tensor,
)
from tests.helpers.trees import fill, mixed, waves

W = counted(8, 4)


class Training(nn.Graph):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.add_optimizer(flow.optim.SGD(layer.parameters(), lr=0.5))

    def build(self, x):
        loss = self.layer(x).sum()
        loss.backward()
        return loss


def test_the_gradients_that_a_graph_leaves_hold_nothing_and_are_left_out(P, graphs_end_together):
    """They are lazy: OneFlow raised "not supported within nn.Graph", or spoke of a bug."""
    layer = linear(W).to_global(P, B)
    graph = Training(layer)
    graph(tensor(counted(2, 4)).to_global(P, B))
    assert layer.weight.grad.is_lazy
    trained = layer.weight.numpy()
    assert (trained != W).any()
    local_to_global(layer, P, S0, existing="convert")
    assert_global(layer.weight, trained, P, S0)
    assert layer.weight.grad is None
    del graph


@pytest.mark.ranks(1)
def test_a_local_module_that_was_trained_in_a_graph(P, graphs_end_together):
    layer = linear(W)
    graph = Training(layer)
    graph(tensor(counted(2, 4)))
    assert layer.weight.grad.is_lazy
    trained, m = layer.weight.numpy(), Model()
    with global_scope(P, S0):
        m.layer = layer
    assert_global(m.layer.weight, trained, P, S0)
    assert m.layer.weight.grad is None
    del graph


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


def test_tied_weights_stay_tied(P):
    """huggingface/accelerate#3668: tied weights came untied."""
    m = nn.Sequential(linear(W), linear(W))
    m[1].weight = m[0].weight
    local_to_global(m, P, S0)
    assert m[0].weight is m[1].weight
    assert_global(m[1].weight, W, P, S0)


@pytest.mark.in_place
def test_a_weight_tied_to_one_outside_of_the_module(P):
    m, other = linear(W), linear(W)
    other.weight = m.weight
    local_to_global(m, P, S0)
    assert_global(other.weight, W, P, S0)
    assert other.weight is m.weight


def test_a_shared_buffer_stays_shared(P):
    m, held = nn.Sequential(Model(), Model()), tensor(W)
    for child in m:
        child.register_buffer("seen", held)
    local_to_global(m, P, S0)
    assert m[0].seen is m[1].seen
    assert_global(m[0].seen, W, P, B)
    assert held.is_local


def test_a_module_reached_twice(P):
    layer = linear(W)
    m = local_to_global(nn.Sequential(layer, nn.ReLU(), layer), P, S0)
    assert m[0] is m[2] is layer
    assert_global(layer.weight, W, P, S0)


def test_none_entries(P):
    m = linear(W)
    m.register_buffer("b", None)
    m.add_module("s", None)
    local_to_global(m, P, S0)
    assert_global(m.weight, W, P, S0)
    assert (m.bias, m.b, m.s) == (None, None, None)


@pytest.mark.parametrize("sbp", [B, S0], ids=str)
def test_the_gradient_is_converted_too(P, rank, sbp):
    m = linear(counted(8, 4, start=1000 * rank))
    m.weight.grad = tensor(counted(8, 4, start=50 + 1000 * rank))
    local_to_global(m, P, sbp)
    assert_global(m.weight.grad, counted(8, 4, start=50), P, sbp)
    (m.weight * 3).sum().backward()
    assert_global(m.weight.grad.to_global(P, sbp), counted(8, 4, start=53), P, sbp)


def test_frozen_parameters_stay_frozen(P):
    m = linear(W, counted(8))
    m.weight.requires_grad_(False)
    local_to_global(m, P, S0)
    assert local_names(m) == []
    assert (m.weight.requires_grad, m.bias.requires_grad) == (False, True)
    assert m.bias.is_leaf


def test_a_parameter_subclass_and_its_attributes(P):
    class Tagged(nn.Parameter):
        pass

    m = Model()
    m.new = Tagged(tensor(W))
    m.new.tag = "column"
    local_to_global(m, P, S0)
    assert type(m.new) is Tagged
    assert m.new.tag == "column"
    assert_global(m.new, W, P, S0)


@pytest.mark.in_place
def test_an_optimizer_made_before_moves_the_weights(P):
    m = linear(W)
    optimizer = flow.optim.SGD(m.parameters(), lr=0.5)
    local_to_global(m, P, S0)
    (m.weight * 2).sum().backward()
    optimizer.step()
    assert_global(m.weight, W - 1, P, S0)


def test_order_of_the_entries(P):
    m = Model()
    for name in "cab":
        m.register_parameter(name, parameter(W))
        m.register_buffer(name + "_seen", tensor(W), persistent=name != "a")
    local_to_global(m, P, S0)
    assert local_names(m) == []
    assert list(m._parameters) == ["c", "a", "b"]
    assert list(m._buffers) == ["c_seen", "a_seen", "b_seen"]
    assert list(m.state_dict()) == ["c", "a", "b", "c_seen", "b_seen"]


def test_no_storage_is_shared_with_the_caller(P):
    held, seen = tensor(W), tensor(counted(8))
    m = Model()
    m.new = nn.Parameter(held)
    m.register_buffer("seen", seen)
    local_to_global(m, P, B)
    held.add_(1000)
    seen.add_(1000)
    assert_global(m.new, W, P, B)
    assert_global(m.seen, counted(8), P, B)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN], ids=lambda kind: kind.__name__)
def test_the_cache_of_weights_of_a_nested_recurrent_layer(P, kind):
    """Oneflow-Inc/oneflow#8869: Module._apply leaves this cache local."""
    m = Model()
    m.sub = Model()
    m.sub.rnn = kind(3, 4, num_layers=2, bidirectional=True)
    local_to_global(m, P, S0)
    assert local_names(m) == []
    rnn = m.sub.rnn
    named = [rnn._parameters[name] for name in rnn._flat_weights_names]
    assert len(named) == len(rnn._flat_weights)
    assert all(a is b for a, b in zip(named, rnn._flat_weights))


@pytest.mark.parametrize("sbp", [B, S0], ids=str)
def test_a_nested_lstm_computes_what_the_local_one_does(P, rank, sbp):
    """Locally OneFlow can run it on rank 0 only: the other ranks take part, rank 0 compares."""
    m = Model()
    m.rnn = fill(nn.LSTM(3, 4))
    x = waves(5, 2, 3, seed=9)
    expected = m.rnn(tensor(x))[0].detach().numpy() if rank == 0 else None
    local_to_global(m, P, sbp)
    found = m.rnn(tensor(x).to_global(P, B))[0].numpy()
    if rank == 0:
        np.testing.assert_allclose(found, expected, atol=1e-6)
        assert np.abs(expected).max() > 0.1


def wrapped() -> nn.Module:
    return flow.nn.parallel.DistributedDataParallel(linear(W, counted(8)))


def test_a_module_wrapped_for_data_parallelism_is_refused(P):
    m = wrapped()
    before = Snapshot(m)
    with pytest.raises(ConversionError, match="DistributedDataParallel") as caught:
        local_to_global(m, P, B)
    before.assert_unchanged()
    assert local_names(m) == ["weight", "bias"]
    text = str(caught.value)
    assert "Linear" in text
    assert len(text.split("DistributedDataParallel", 1)[1].split()) > 5, "a reason and a way out"


def test_a_module_wrapped_for_data_parallelism_inside_another_is_refused(P):
    m = Model()
    m.first, m.body = linear(W), wrapped()
    before = Snapshot(m)
    with pytest.raises(ConversionError, match=r"(?s)body.*DistributedDataParallel|Dist.*body"):
        local_to_global(m, P, B)
    before.assert_unchanged()


def test_a_wrapped_module_that_holds_no_tensor_itself_is_refused(P):
    """OneFlow marks the module that was wrapped, and its tensors are below."""
    m = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 4)))
    with pytest.raises(ConversionError, match="DistributedDataParallel"):
        local_to_global(m, P, B)
    assert m[0].weight.is_local


@pytest.mark.parametrize("name", ["exisiting", "when"])
def test_an_option_that_there_is_not_is_python_s_own_error(P, name):
    """A class and a call have no end, and so no option "when"."""
    m = linear(W)
    with pytest.raises(TypeError, match=rf"local_to_global\(\) .* '{name}'") as caught:
        local_to_global(m, P, B, **{name: "exit"})
    assert type(caught.value) is TypeError
    assert m.weight.is_local
