"""The warnings of ``describe``; each fault is seen to do harm, or to be harmless."""

from __future__ import annotations

import numpy as np
import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import auto_global, describe, local_scope, local_to_global, preview
from tests.helpers.support import S0, S1, B, Model, counted, error_of, linear, parameter, tensor
from tests.helpers.trees import fill, globally, logical, mixed, waves


def kinds(m) -> list[str]:
    return [one.kind for one in describe(m).warnings]


def the_only(m):
    (found,) = describe(m).warnings
    return found


def test_local_tensors_beside_global_ones(P):
    m = mixed(P)
    found = the_only(m)
    assert (found.kind, found.paths) == ("local", ("new", "seen", "sub.lin.weight", "sub.lin.bias"))
    assert "1 of the module's 5 tensors is global: new, seen, sub.lin.weight" in found.text
    assert "inconsistent attributes" in found.text
    assert "inconsistent attributes" in str(error_of(lambda: m.old + m.new))
    assert kinds(local_to_global(m, P, B)) == []


def test_a_local_module_is_none(P):
    assert kinds(nn.Linear(2, 2)) == kinds(Model()) == []


def test_a_long_list_is_cut_in_the_sentence_only(P):
    m = Model()
    m.old = globally(counted(2), P, B)
    for index in range(9):
        setattr(m, f"p{index}", parameter(counted(2)))
    found = the_only(m)
    assert len(found.paths) == 9
    assert "p3 and 5 more" in found.text


class TestAttributes:
    def test_wherever_a_module_keeps_them(self):
        m, inner = Model(), linear(counted(2, 2))
        m.mask = tensor(counted(2))
        m.sub = Model()
        m.sub.caches = {"k": [tensor(counted(2))], 3: (tensor(counted(2)),), (1,): parameter([2.0])}
        m.sub.layers = [inner, inner, [4, "x", None]]
        m.sub.layers.append(m.sub.layers)  # in itself
        report = describe(m)
        assert [(row.path, row.owner, row.kind) for row in report.attributes] == [
            ("mask", "Model", "attribute"),
            ("sub.caches['k'][0]", "Model", "attribute"),
            ("sub.caches[3][0]", "Model", "attribute"),
            ("sub.caches[...]", "Model", "attribute"),
            ("sub.layers[0].weight", "Model", "attribute"),
        ]
        assert report["mask"].nbytes == 8
        (found,) = report.warnings
        assert found.kind == "attribute"
        assert found.paths == tuple(row.path for row in report.attributes)
        for words in ("mask", "register_buffer", "nn.ModuleList"):
            assert words in found.text

    def test_no_conversion_touches_them(self, P):
        m = Model()
        m.mask, m.layers = tensor(counted(2)), [linear(counted(2, 2))]
        local_to_global(m, P, B)
        assert the_only(m).paths == ("mask", "layers[0].weight")

    def test_a_global_one_does_no_harm(self, P):
        m = Model()
        m.mask = tensor(counted(2)).to_global(P, B)
        report = describe(m)
        assert report.attributes[0].is_global
        assert report.warnings == ()

    def test_what_is_registered_too_is_none(self):
        m = nn.LSTM(2, 2)  # which keeps its Parameters in a list as well
        m.sub = nn.Linear(2, 2)
        m.again = [m.sub, m.sub.weight, m]
        assert describe(m).attributes == ()

    def test_the_list_that_an_rnn_makes_anew_is_none(self, P):
        m = Model()
        m.rnn = nn.LSTM(2, 2)
        m.to_global(P, B)  # which leaves the old local Parameters in the list
        assert vars(m.rnn)["_flat_weights"][0].is_local
        assert describe(m).attributes == ()

    @pytest.mark.ranks(2, 4)
    def test_the_buckets_of_a_wrapped_module_are_none(self):
        assert describe(nn.parallel.DistributedDataParallel(nn.Linear(2, 2))).attributes == ()

    def test_what_weight_norm_computes_anew_is_none(self):
        m = nn.utils.weight_norm(nn.Linear(2, 2))
        assert isinstance(vars(m)["weight"], flow.Tensor)
        assert describe(m).attributes == ()

    def test_pos_weight_of_a_loss(self):
        m = nn.BCEWithLogitsLoss(pos_weight=tensor(counted(2)))
        assert the_only(m).paths == ("pos_weight",)


def stating(P, sbp, **options):
    @auto_global(P, sbp, **options)
    class Stating(nn.Module):
        pass

    return Stating()


def held_by_both(first, second, name="weight"):
    """One local Parameter, registered in both by a way that no hook sees."""
    m = Model()
    with local_scope():
        m.first, m.second = first, second
    first._parameters[name] = second._parameters[name] = parameter(counted(8, 8))
    return m


class TestTied:
    def test_classes_that_state_different_layouts(self, P):
        found = the_only(held_by_both(stating(P, S0), stating(P, B)))
        assert (found.kind, found.paths) == ("tied", ("first.weight", "second.weight"))
        assert "split(dim=0) on cpu" in found.text
        assert "broadcast on cpu" in found.text

    def test_by_rules_with_the_paths_that_rules_see(self, P):
        m = held_by_both(
            stating(P, {"sub.*": B, "weight": S0}), stating(P, {"*": S1}), name="weight"
        )
        assert "split(dim=1)" in the_only(m).text

    def test_one_that_leaves_it_local(self, P):
        found = the_only(held_by_both(stating(P, {"*": None}), stating(P, B)))
        assert "first.weight (local)" in found.text

    @pytest.mark.ranks(2, 4)
    def test_two_placements(self, P):
        only = flow.placement("cpu", [0])
        assert kinds(held_by_both(stating(P, B), stating(only, B))) == ["tied"]

    def test_a_class_that_states_counts_for_what_is_below(self, P):
        outer = stating(P, S0)
        with local_scope():
            outer.sub = Model()
        outer.sub._parameters["weight"] = parameter(counted(8, 8))
        m = Model()
        with local_scope():
            m.outer, m.other = outer, stating(P, B)
        m.other._parameters["weight"] = outer.sub._parameters["weight"]
        assert the_only(m).paths == ("outer.sub.weight", "other.weight")

    def test_buffers_go_by_the_option_for_buffers(self, P):
        for options, expected in (({}, []), ({"buffers": "sbp"}, ["tied"])):
            first, second = stating(P, S0, **options), stating(P, B, **options)
            first._buffers["seen"] = second._buffers["seen"] = tensor(counted(8))
            m = Model()
            with local_scope():
                m.first, m.second = first, second
            assert kinds(m) == expected

    def test_what_agrees_or_is_not_stated_is_none(self, P):
        unasked = stating(P, lambda *_: pytest.fail("a look has called the caller's function"))
        for first, second in (
            (stating(P, S0), stating(P, S0)),
            (stating(P, S0), Model()),
            (stating(P, S0), unasked),
            (stating(P, S0), stating(P, {"other": B})),
        ):
            assert kinds(held_by_both(first, second)) == []


@pytest.mark.ranks(2, 4)
def test_several_placements(P, world):
    m, last = Model(), flow.placement("cpu", [world - 1])
    m.first, m.other = globally(counted(2), P, B), globally(counted(2), P, B)
    m.last = globally(counted(2), last, B)
    found = the_only(m)
    assert (found.kind, found.paths) == ("placements", ("first", "last"))
    assert f"last on cpu [{world - 1}]" in found.text
    assert error_of(lambda: m.first + m.last) is not None


def test_running_statistics_that_are_split(P, world):
    m = Model()
    m.bn = nn.BatchNorm1d(8)
    local_to_global(m, P, S0, buffers="sbp")
    assert kinds(m) == (["statistics"] if world > 1 else [])
    if world > 1:
        assert the_only(m).paths == ("bn.running_mean", "bn.running_var")
    m = Model()
    m.bn = nn.BatchNorm1d(8)
    assert kinds(local_to_global(m, P, S0)) == []


class Whole(nn.Module):
    """What the warning says to write between the two, as a layer."""

    def forward(self, x):
        return x.to_global(sbp=B) if x.is_global else x


def error_in(P, rank, make, weight, training=True) -> float:
    """How far a model with this sbp of its first weight is from the local one."""
    local, m = (make().train(training) for _ in range(2))
    local_to_global(m, P, {"0.weight": weight, "*": B})
    found = logical(m(tensor(waves(8, 4)).to_global(P, B)))
    expected = local(tensor(waves(8, 4))).detach().numpy() if rank == 0 else found
    return float(np.abs(found - expected).max())


class TestABatchNormAfterASplitLinear:
    """Each rank takes the statistics of its own rows, as tests/end_to_end/test_oneflow_limits.py
    shows with OneFlow alone."""

    def make(self, *between) -> nn.Sequential:
        return fill(nn.Sequential(nn.Linear(4, 8), *between, nn.BatchNorm1d(8)))

    def told(self, m, P, sbp) -> list[str]:
        return kinds(local_to_global(m, P, {"0.weight": sbp, "*": B}))

    @pytest.mark.parametrize("sbp", [S0, S1], ids=str)
    @pytest.mark.parametrize("between", [[], [nn.GELU, nn.Identity], [nn.Tanh]])
    def test_it_is_told_and_does_harm(self, P, world, rank, sbp, between):
        m = self.make(*(kind() for kind in between))
        assert self.told(m, P, sbp) == (["features"] if world > 1 else [])
        error = error_in(P, rank, lambda: self.make(*(kind() for kind in between)), sbp)
        if rank == 0:
            assert (error > 0.5) == (world > 1)

    @pytest.mark.ranks(2, 4)
    def test_its_words(self, P):
        m = Model()
        m.head = self.make(nn.ReLU(), nn.Dropout(0.5))
        found = the_only(local_to_global(m, P, {"*.0.weight": S0, "*": B}))
        assert found.paths == ("head.3",)
        assert "head.3 after head.0" in found.text
        assert "x.to_global(sbp=flow.sbp.broadcast)" in found.text

    @pytest.mark.ranks(2, 4)
    def test_a_preview_tells_it_before(self, P):
        plan = preview(self.make(), P, {"0.weight": S0, "*": B})
        assert [one.kind for one in plan.warnings] == ["features"]

    @pytest.mark.ranks(2, 4)
    def test_what_it_says_to_write_helps(self, P, rank):
        for between, sbp in (([Whole()], S0), ([], B)):
            assert self.told(self.make(*between), P, sbp) == []
            assert error_in(P, rank, lambda between=between: self.make(*between), sbp) < 1e-5

    @pytest.mark.ranks(2, 4)
    def test_in_evaluation_mode_it_does_no_harm(self, P, rank):
        assert self.told(self.make().eval(), P, S0) == []
        assert error_in(P, rank, self.make, S0, training=False) < 1e-5

    @pytest.mark.ranks(2, 4)
    def test_elsewhere_nothing_is_said(self, P):
        for m in (
            self.make(nn.Linear(8, 8)),  # what it makes of split features is not known here
            self.make(nn.LayerNorm(8)),
            nn.Sequential(nn.Linear(4, 8), nn.ReLU()),
            nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.BatchNorm1d(8))),
        ):
            assert self.told(m, P, S0) == []
        m = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(4))
        m.add_module("0", m.__dict__["_modules"].pop("0"))  # the BatchNorm comes first
        assert self.told(m, P, S0) == []

    @pytest.mark.ranks(2, 4)
    def test_where_the_callers_code_comes_between_nothing_is_said(self, P):
        for which in range(3):
            m = self.make(nn.ReLU())
            m[which].register_forward_hook(lambda layer, given, out: out.to_global(sbp=B))
            assert self.told(m, P, S0) == []

        class Own(nn.Sequential):
            pass

        assert self.told(Own(nn.Linear(4, 8), nn.BatchNorm1d(8)), P, S0) == []

    @pytest.mark.ranks(2, 4)
    def test_a_local_batchnorm_is_another_fault(self, P):
        m = self.make()
        m[0].to_global(P, B).to_global(P, S0)
        assert kinds(m) == ["local"]


class TestFollowing:
    """A bare ``@auto_global`` on a class that never holds a global tensor looks like success."""

    def kind(self) -> type:
        return auto_global(type("Layer", (Model,), {}))

    def test_an_instance_without_a_global_tensor(self, P):
        m = Model()
        m.old = globally(counted(2), P, B)
        m.layer, m.twice = self.kind()(), self.kind()()
        m.layer.w, m.layer.sub = parameter(counted(2)), linear(counted(2, 2))
        m.twice.w = globally(counted(2), P, B)
        m.twice.new = parameter(counted(2))
        found = {one.kind: one for one in describe(m).warnings}
        assert sorted(found) == ["follows", "local"]
        assert found["follows"].paths == ("layer",)
        assert "Write @auto_global(placement, sbp), or assign a global tensor first" in (
            found["follows"].text
        )

    def test_the_module_itself(self):
        m = self.kind()()
        m.w = parameter(counted(2))
        assert the_only(m).paths == ("the module itself",)

    def test_no_false_alarm(self, P):
        m = Model()
        m.empty, m.below, m.stated = self.kind()(), self.kind()(), Model()
        m.below.sub = Model()
        m.below.sub.old = globally(counted(2), P, B)
        assert kinds(m) == []
