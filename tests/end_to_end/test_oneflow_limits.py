"""What OneFlow 0.9.0 itself gets wrong or cannot do, as LIMITATIONS.md says, and the way round it.

Each test holds the fault as it is today and what to write instead, so that a change of OneFlow's is
noticed.
"""

from __future__ import annotations

import numpy as np
import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import DivergenceError, global_scope, local_to_global
from autoglobal.commands.launcher import TIMED_OUT, launch
from tests.helpers.support import (
    S0,
    S1,
    B,
    Model,
    assert_global,
    counted,
    parameter,
    tensor,
)
from tests.helpers.trees import assert_all_close, fill, logical, train_step, waves, weights

FEATURES = {"S0": {"0.*": S0}, "S1": {"0.weight": S1}}


def by_autoglobal(m, P, rules):
    return local_to_global(m, P, {**rules, "*": B})


def by_oneflow(m, P, rules):
    m.to_global(P, B)
    for path, sbp in rules.items():
        for name, weight in m[0].named_parameters():
            if path in (f"0.{name}", "0.*"):
                weight.data = weight.to_global(sbp=sbp)
    return m


class TestBatchNormAfterASplitLinear:
    """The Linear splits its features, and the BatchNorm cuts what it is given by the batch."""

    def make(self) -> nn.Sequential:
        return fill(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)))

    def run(self, m, place, between=lambda x: x) -> dict[str, np.ndarray]:
        out = m[1](between(m[0](place(waves(8, 4)))))
        return {"output": logical(out), "mean": logical(m[1].running_mean)}

    @pytest.mark.in_place  # by_oneflow sets .data
    @pytest.mark.ranks(2, 4)
    @pytest.mark.parametrize("convert", [by_autoglobal, by_oneflow])
    @pytest.mark.parametrize("rules", FEATURES)
    def test_the_numbers_are_wrong_and_nothing_says_so(self, P, rank, rules, convert):
        m = convert(self.make(), P, FEATURES[rules])
        features = m[0](tensor(waves(8, 4)).to_global(P, B))
        assert features.sbp == (S1,)
        assert m[1](features).sbp == (S0,), "the batch has been cut"
        found = self.run(m, lambda array: tensor(array).to_global(P, B))
        means = m[1].running_mean.to_local().numpy().copy()  # said to be the same on all ranks
        of_rank_0 = tensor(means).to_global(P, B).to_local().numpy()
        if rank == 0:
            expected = self.run(self.make(), tensor)
            assert np.abs(found["output"] - expected["output"]).max() > 0.5
        else:
            assert np.abs(means - of_rank_0).max() > 0.01

    @pytest.mark.parametrize("rules", FEATURES)
    def test_with_the_activations_broadcast_they_are_right(self, P, rank, rules):
        m = by_autoglobal(self.make(), P, FEATURES[rules])
        place = lambda array: tensor(array).to_global(P, B)  # noqa: E731
        found = self.run(m, place, lambda x: x.to_global(sbp=B))
        found["own mean"] = m[1].running_mean.to_local().numpy()
        if rank == 0:
            expected = self.run(self.make(), tensor)
            assert_all_close(found, {**expected, "own mean": expected["mean"]})


def test_sync_batchnorm_wants_a_gpu_and_batchnorm_does_the_same(P, rank):
    """The statistics of the whole batch are what a global BatchNorm takes of a broadcast one."""
    m = local_to_global(fill(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))), P, B)
    halves = tensor(waves(8, 4)).to_global(P, B).to_global(sbp=S0)
    found = logical(m[1](m[0](halves).to_global(sbp=B)))
    if rank == 0:
        whole = fill(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)))
        np.testing.assert_allclose(found, whole(tensor(waves(8, 4))).detach().numpy(), atol=1e-5)
    nn.SyncBatchNorm.convert_sync_batchnorm(m)
    assert type(m[1]) is nn.SyncBatchNorm
    with pytest.raises(ValueError, match="expected input tensor to be on GPU"):
        m(halves)


ZERO = """
import sys
import oneflow as flow
from oneflow import nn

P, B = flow.placement("cpu", [0, 1]), flow.sbp.broadcast
model = nn.Linear(64, 64).to_global(P, B)
optimizer = flow.optim.Adam(model.parameters(), lr=0.1)

class Train(nn.Graph):
    def __init__(self):
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)
        if sys.argv[1] == "zero":
            self.config.enable_zero()

    def build(self, x):
        loss = self.model(x).sum()
        loss.backward()
        return loss

graph = Train()
for _ in range(2):
    graph(flow.ones(2, 64, placement=P, sbp=B)).numpy()
print("trained", flush=True)
del graph
"""


@pytest.mark.ranks(1)  # it starts two of its own, which may abort
@pytest.mark.parametrize("zero", [True, False], ids=["zero", "plain"])
def test_enable_zero_ends_the_process_on_cpu(tmp_path, capfd, zero):
    """A Parameter of 64 x 64 numbers is above the size from which OneFlow cuts its state."""
    file = tmp_path / "program.py"
    file.write_text(ZERO)
    code = launch(2, [str(file), "zero" if zero else "plain"], limit=60, show_all=True)
    shown = capfd.readouterr()
    assert code != TIMED_OUT
    assert (code != 0) == zero
    assert ("trained" in shown.out) == (not zero)
    assert ("Check failed: separated_header_mem_ptr() == nullptr" in shown.err) == zero


@pytest.mark.ranks(2, 4)
def test_the_ranks_of_a_placement_are_sorted(P, rank, world):
    """Oneflow-Inc/oneflow#9727: another order of the ranks changes nothing."""
    backwards = flow.placement("cpu", [*reversed(range(world))])
    assert backwards == P
    assert backwards.ranks.tolist() == [*range(world)]
    m, array = Model(), counted(8, 4)
    with global_scope(backwards, B):
        m.first = parameter(array + 1000 * rank)
    assert_global(m.first, array, P, B)  # those of rank 0, not of the one that is written first
    last = flow.placement("cpu", [world - 1])
    m.last = nn.Parameter(tensor(array + 1000 * rank).to_global(last, B).to_global(P, B))
    assert_global(m.last, array + 1000 * (world - 1), P, B)


def test_orthogonal_changes_nothing_and_returns_a_new_tensor(P):
    for weight in (flow.zeros(8, 8), flow.zeros(8, 8, placement=P, sbp=B)):
        made = nn.init.orthogonal_(weight)
        assert made.is_local
        assert made.dtype == flow.float64
        assert logical(weight).tolist() == np.zeros((8, 8)).tolist()
    m = Model()
    with global_scope(P, S0):
        m.weight = nn.Parameter(nn.init.orthogonal_(flow.empty(8, 8)).to(flow.float32))
    assert m.weight.sbp == (S0,)
    found = logical(m.weight)
    np.testing.assert_allclose(found @ found.T, np.eye(8), atol=1e-5)


class TestExpertsOnPlacementsOfTheirOwn:
    """Oneflow-Inc/oneflow#9741 and #9756: an expert for each group of ranks."""

    def groups(self, world) -> list[flow.placement]:
        half = world // 2
        return [flow.placement("cpu", ranks) for ranks in (range(half), range(half, world))]

    def expert(self) -> nn.Sequential:
        return fill(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)))

    @pytest.mark.ranks(2, 4)
    def test_no_rank_can_convert_its_own_alone(self, world, rank):
        own = self.groups(world)[rank * 2 // world]
        expert = self.expert()
        with pytest.raises(DivergenceError, match="placement="):
            local_to_global(expert, own, B)
        assert all(weight.is_local for weight in expert.parameters())

    @pytest.mark.ranks(2)
    def test_nor_can_oneflow_itself(self, world, rank):
        """It compares what all ranks say; on 4 ranks they wait for each other for ever."""
        own, expert = self.groups(world)[rank], self.expert()
        for placement in self.groups(world):  # which it has to know, or one rank waits here too
            tensor(waves(4, 4)).to_global(placement, B)
        refused = "Each rank must have the same input placement"
        with pytest.raises(RuntimeError, match=refused):
            expert.to_global(own, B)
        with pytest.raises(RuntimeError, match=refused):
            tensor(waves(4, 4)).to_global(own, B)

    @pytest.mark.ranks(2, 4)
    @pytest.mark.parametrize("sbp", [B, S0], ids=str)
    def test_one_scope_for_each_on_all_ranks(self, world, rank, sbp):
        m, groups = Model(), self.groups(world)
        m.experts = nn.ModuleList()
        for placement in groups:
            expert = self.expert()
            with global_scope(placement, sbp):
                m.experts.append(expert)
        for expert, placement in zip(m.experts, groups):
            self.train(expert, lambda x, placement=placement: tensor(x).to_global(placement, B))
        local = self.expert()
        self.train(local, tensor)
        for expert, placement in zip(m.experts, groups):
            for path, weight in expert.named_parameters():
                assert weight.placement == placement
                own = weight.to_global(sbp=B).to_local().detach().numpy()
                expected = weights(local)[path] if rank in placement.ranks else own
                np.testing.assert_allclose(own, expected, atol=1e-5)
                assert (own.size > 0) == (rank in placement.ranks)

    def train(self, expert, place) -> None:
        optimizer = flow.optim.SGD(expert.parameters(), lr=0.05, momentum=0.9)
        for seed in range(2):
            train_step(expert, optimizer, waves(4, 4, seed=seed), waves(4, 4, seed=9), place)
