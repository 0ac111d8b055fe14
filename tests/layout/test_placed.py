"""Rules that give a placement as well as an sbp: ``Placed``, and ``nearest``."""

from __future__ import annotations

import re

import numpy as np
import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import (
    ConversionError,
    DivergenceError,
    Placed,
    SpecError,
    SpecTypeError,
    auto_global,
    global_scope,
    local_to_global,
    nearest,
    optimizer_to_global,
)
from tests.helpers.support import (
    S0,
    S1,
    B,
    Model,
    Snapshot,
    assert_global,
    counted,
    linear,
    parameter,
    tensor,
)

W = counted(8, 4)


@pytest.fixture
def stages(world: int) -> tuple[flow.placement, flow.placement]:
    """Two placements that share no rank, but where there is only one."""
    if world == 1:
        return flow.placement("cpu", [0]), flow.placement("cpu", [[0]])
    half = world // 2
    return (
        flow.placement("cpu", list(range(half))),
        flow.placement("cpu", list(range(half, world))),
    )


def like(placement: flow.placement, sbp) -> list:
    """One sbp for each dimension of a placement."""
    return [sbp] * placement.ranks.ndim


def pair(rank: int = 0) -> nn.Sequential:
    return nn.Sequential(linear(W + 1000 * rank), linear(W + 50 + 1000 * rank))


ways = pytest.mark.parametrize("way", ["call", "assign", "exit", "class"])


def converted(way: str, placement, sbp, module: nn.Module) -> nn.Module:
    """A module that holds ``module`` as ``sub``, converted in one of the ways."""
    m = Model()
    if way == "class":

        @auto_global(placement, sbp)
        class Stating(Model):
            pass

        m = Stating()
    if way in ("assign", "exit"):
        with global_scope(placement, sbp, when=way):
            m.sub = module
    else:
        m.sub = module
    return local_to_global(m, placement, sbp) if way == "call" else m


@ways
def test_each_rule_may_give_a_placement(stages, rank, way):
    """Oneflow-Inc/oneflow#8869: in hybrid parallel models the placement differs by weight."""
    first, second = stages
    rules = {"sub.0": S0, "sub.1": Placed(second, like(second, S0))}
    m = converted(way, first, rules, pair(rank))
    assert_global(m.sub[0].weight, W, first, S0)
    start = 1000 * second.ranks.flatten()[0]
    assert_global(m.sub[1].weight, W + 50 + start, second, like(second, S0))


@ways
def test_a_function_may_return_a_placement(stages, way):
    first, second = stages

    def lay_out(owner, path, value):
        return Placed(second, like(second, B)) if path.startswith("sub.1") else S0

    m = converted(way, first, lay_out, pair())
    assert_global(m.sub[0].weight, W, first, S0)
    assert_global(m.sub[1].weight, W + 50, second, like(second, B))


@ways
def test_the_sbp_itself_may_be_placed(stages, way):
    first, second = stages
    m = converted(way, first, Placed(second, like(second, S1)), pair())
    assert_global(m.sub[0].weight, W, second, like(second, S1))


@pytest.mark.parametrize("is_function", [False, True])
def test_a_buffer_that_is_broadcast_goes_where_its_rule_says(stages, is_function):
    first, second = stages
    m = nn.Sequential(linear(W), nn.BatchNorm1d(8))
    there = Placed(second, like(second, S0))
    rules = {"1": there, "*": B}
    by_function = lambda owner, path, value: there if path.startswith("1") else B  # noqa: E731
    local_to_global(m, first, by_function if is_function else rules)
    assert m[1].running_mean.placement == second
    assert m[1].running_mean.sbp == tuple(like(second, B))


def test_a_function_that_names_no_placement_is_asked_about_buffers_too(P):
    asked, norm = [], nn.BatchNorm1d(8)
    local_to_global(norm, P, lambda owner, path, value: asked.append(path) or S0)
    assert asked == ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    assert norm.weight.sbp == tuple(like(P, S0))
    assert norm.running_mean.sbp == tuple(like(P, B))


def test_values_and_gradients_go_to_their_placement(stages):
    first, second = stages
    m = pair()
    m[1].weight.grad = tensor(W + 7)
    local_to_global(m, first, {"0": B, "1": Placed(second, like(second, S0))})
    assert_global(m[1].weight.grad, W + 7, second, like(second, S0))


def test_an_optimizer_follows_to_each_placement(stages):
    first, second = stages
    m = pair()
    optimizer = flow.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
    for layer in m:
        layer(tensor(counted(2, 4))).sum().backward()
    optimizer.step()
    local_to_global(m, first, {"0": B, "1": Placed(second, like(second, S0))})
    optimizer_to_global(optimizer)
    momentum = optimizer._state[m[1].weight]["momentum_buf"]
    assert momentum.placement == second
    assert momentum.sbp == tuple(like(second, S0))


def test_nothing_is_half_converted_where_the_last_stage_cannot_work(stages):
    first, second = stages
    m = nn.Sequential(linear(W), linear(W), linear(counted(8, 4), counted(8)))
    before = Snapshot(m)
    with pytest.raises(ConversionError, match=r"Sequential\.2\.bias"):
        local_to_global(m, first, {"0": B, "2": Placed(second, like(second, S1)), "1": B})
    before.assert_unchanged()


@pytest.mark.ranks(2, 4)
def test_ranks_that_name_other_placements_are_told(P, stages, rank):
    m = linear(W)
    before = Snapshot(m)
    with pytest.raises(DivergenceError, match=r"Linear|placement"):
        local_to_global(m, P, {"*": Placed(stages[rank % 2], B)})
    before.assert_unchanged()


@pytest.mark.ranks(2, 4)
def test_a_function_that_names_other_placements_by_rank_is_told(P, stages, rank):
    m = linear(W)
    before = Snapshot(m)
    with pytest.raises(DivergenceError, match=r"Linear\.weight"):
        local_to_global(m, P, lambda owner, path, value: Placed(stages[rank % 2], B))
    before.assert_unchanged()


# nearest


@pytest.mark.parametrize("way", ["call", "assign", "exit"])
def test_nearest_is_where_the_module_above_is(stages, way):
    """LoRA on a pipeline, in one line."""
    first, second = stages
    m = pair()
    local_to_global(m, first, {"0": B, "1": Placed(second, like(second, S0))})
    adapters = [linear(W + 1), linear(W + 2)]
    rules = {"*.adapter": Placed(nearest, B)}
    if way == "call":
        for layer, adapter in zip(m, adapters):
            layer.add_module("adapter", adapter)
        local_to_global(m, first, rules)
    else:
        with global_scope(first, rules, when=way):
            for layer, adapter in zip(m, adapters):
                layer.add_module("adapter", adapter)
    assert_global(m[0].adapter.weight, W + 1, first, like(first, B))
    assert_global(m[1].adapter.weight, W + 2, second, like(second, B))


def test_nearest_without_a_global_tensor_is_an_error(P):
    m = pair()
    before = Snapshot(m)
    with pytest.raises(ConversionError, match=r"Sequential\.0\.weight: nearest names no placement"):
        local_to_global(m, P, Placed(nearest, B))
    before.assert_unchanged()


def test_what_is_replaced_does_not_say_where_nearest_is(stages):
    first, second = stages
    m = Model()
    m.new = nn.Parameter(flow.zeros(8, 4, placement=second, sbp=like(second, B)))
    m.other = nn.Parameter(flow.zeros(8, 4, placement=first, sbp=B))
    with global_scope(first, Placed(nearest, S0)):
        m.new = parameter(W)
    assert_global(m.new, W, first, S0)


# At the door


def test_a_placement_that_is_none_is_told():
    with pytest.raises(SpecTypeError, match="nearest"):
        Placed("cpu", B)
    with pytest.raises(SpecTypeError, match=re.escape("flow.sbp.split(0)")):
        Placed(nearest, "S0")
    with pytest.raises(SpecError, match="one entry per placement dimension"):
        Placed(flow.placement("cpu", [[0]]), B)


def test_a_rank_that_does_not_exist_is_told_where_the_rule_is_used(P, world):
    there = Placed(flow.placement("cpu", [world]), B)
    with pytest.raises(SpecError, match=rf"in the rule 'x'.*rank {world}"):
        global_scope(P, {"x": there, "*": B})


def test_same_placement_and_placed_contradict_each_other(P):
    with pytest.raises(SpecError, match="contradict"):
        local_to_global(linear(W), P, {"*": Placed(P, B)}, same_placement=True)


# same_placement, in both directions


def test_a_module_from_elsewhere_is_not_added_to_one_on_the_placement(stages):
    first, second = stages
    m = local_to_global(linear(W), first, B)
    other = local_to_global(linear(W), second, like(second, B))
    with pytest.raises(ConversionError, match="another placement"):  # noqa: SIM117
        with global_scope(first, B, same_placement=True):
            m.sub = other
    assert "sub" not in m._modules


@pytest.mark.parametrize("how", ["sbp", "mapping", "function", "Placed"])
def test_a_list_of_sbps_goes_in_as_it_is(world, how):
    """As LiBai's ``get_nd_sbp`` gives it: a list, on a placement of two dimensions."""
    mesh = flow.placement("cpu", np.arange(world).reshape(max(1, world // 2), -1))
    nd_sbp = [B, S0]
    sbp = {
        "sbp": nd_sbp,
        "mapping": {"weight": nd_sbp, "*": [B, B]},
        "function": lambda owner, path, tensor: nd_sbp,
        "Placed": Placed(mesh, nd_sbp),
    }[how]
    array = counted(8, 4)
    found = local_to_global(linear(array), mesh, sbp)
    assert_global(found.weight, array, mesh, nd_sbp)
    assert nd_sbp == [B, S0]
