"""``preview``: what ``local_to_global`` would do, for ranks and devices that need not be there.

What it says of the layout afterwards is compared with what ``describe`` says once it is done.
"""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import flowvision.models
import numpy as np
import oneflow as flow
import pytest
from oneflow import nn
from rich.console import Console

from autoglobal import (
    AutoglobalError,
    ConversionError,
    Placed,
    Preview,
    SpecError,
    SpecTypeError,
    TiedRulesWarning,
    UnusedRuleWarning,
    auto_global,
    describe,
    local_scope,
    local_to_global,
    nearest,
    preview,
)
from tests.helpers.support import (
    S0,
    S1,
    B,
    Model,
    Snapshot,
    counted,
    error_of,
    linear,
    parameter,
    tensor,
    warns,
)
from tests.helpers.trees import globally

CLUSTER = flow.placement("cuda", [[0, 1, 2, 3], [4, 5, 6, 7]])
BB = [B, B]


RULES = {"0.weight": [S0, S1], "1": [B, B], "2": [B, S1], "*": [S0, B]}


def network() -> nn.Sequential:
    first, last = linear(counted(8, 4), counted(8)), linear(counted(8, 8))
    return nn.Sequential(first, nn.BatchNorm1d(8), last)


def grids(world):
    """A placement of two dimensions on this world, and the cluster of that shape."""
    ranks = np.arange(world).reshape(-1, max(1, world // 2))
    return flow.placement("cpu", ranks), flow.placement("cuda", ranks)


def on(report, placement):
    """The rows of a report with another placement in place of its own."""
    return [
        row if row.placement is None else replace(row, placement=placement) for row in report.rows
    ]


class TestAfterwards:
    """What it says of a conversion is what ``describe`` says afterwards."""

    def test_of_a_network(self, world):
        here, there = grids(world)
        found = preview(network(), there, RULES, buffers="sbp")
        report = describe(local_to_global(network(), here, RULES, buffers="sbp"))
        assert on(found.after, here) == [*report.rows]
        assert found.after.totals == tuple(
            replace(total, placement=there) for total in report.totals
        )

    def test_on_a_placement_that_is_here_all_of_it(self, P, world):
        found = preview(network(), P, {"2": None, "*": S0}, unsplittable="broadcast")
        model = local_to_global(network(), P, {"2": None, "*": S0}, unsplittable="broadcast")
        report = describe(model)
        assert found.after == report
        expected = ["local", "features"] if world > 1 else ["local"]
        assert [one.kind for one in found.warnings] == expected
        assert found.now == describe(network())

    @pytest.mark.parametrize("source", ["full", "shard"])
    def test_of_uneven_parts_and_shards(self, source, P, world):
        def model():
            m = Model()
            m.w = parameter(counted(4 * world + 1, 4))
            return m

        found = preview(model(), P, S0, source=source)
        report = describe(local_to_global(model(), P, S0, source=source))
        assert found.after == report
        rows = 4 * world + 1
        assert found["w"].after.shape == (rows * world if source == "shard" else rows, 4)

    def test_of_what_is_global_already(self, P):
        def model():
            m = Model()
            m.old = globally(counted(4, 4), P, B)
            m.new = parameter(counted(4, 4))
            return m

        rules = {"old": S0, "*": S1}
        found = preview(model(), P, rules, existing="convert")
        assert found.after == describe(local_to_global(model(), P, rules, existing="convert"))
        found = preview(model(), P, rules)
        with warns(UnusedRuleWarning, "was kept"):
            report = describe(local_to_global(model(), P, rules))
        assert found.after == report

    def test_of_the_stages_of_a_pipeline(self, P, world):
        last = flow.placement("cpu", [world - 1])
        rules = {"2": Placed(last, S0), "*": B}
        found = preview(network(), P, rules)
        assert found.after == describe(local_to_global(network(), P, rules))
        assert found["2.weight"].after.placement == last

    def test_of_resnet50_on_a_cluster_of_this_shape(self, world):
        here, there = grids(world)
        rules = {"*.conv*.weight": [S0, S1], "fc": [S0, B], "*": BB}
        found = preview(flowvision.models.resnet50(), there, rules)
        assert not found.errors
        model = local_to_global(flowvision.models.resnet50(), here, rules)
        assert on(found.after, here) == [*describe(model).rows]

    @pytest.mark.ranks(4)
    def test_of_each_rank_by_any_of_them(self, rank):
        """Rank 0 says what each rank will hold, and each rank finds that it does."""
        here, there = grids(4)
        model = flowvision.models.resnet50()
        rules = {"*.conv*.weight": [S0, S1], "*": [B, S0]}
        found = preview(model, there, rules)
        report = describe(local_to_global(model, here, rules))
        assert [row.component for row in report] == [row.after.component_on(rank) for row in found]
        assert [row.nbytes for row in report] == [row.after.nbytes_on(rank) for row in found]


class TestOnALaptop:
    def test_a_cluster_that_is_not_there(self):
        found = preview(network(), CLUSTER, {"0.weight": [S0, S1], "*": BB})
        row = found["0.weight"]
        assert (row.after.placement, row.after.sbp) == (CLUSTER, (S0, S1))
        assert row.components == {(4, 1): (0, 1, 2, 3, 4, 5, 6, 7)}
        assert [row.after.nbytes_on(rank) for rank in (0, 7, 8)] == [16, 16, 0]
        assert row.now.nbytes_on(7) == 128
        assert found.after.world_size == 8
        with pytest.raises(SpecError, match=r"ranks that exist|CUDA device"):
            local_to_global(network(), CLUSTER, BB)

    def test_rules_that_place_elsewhere(self):
        far = flow.placement("cuda", [8, 9])
        found = preview(network(), CLUSTER, {"0": Placed(far, S0), "*": BB})
        assert found["0.bias"].after.placement == far
        assert found["0.bias"].components == {(4,): (8, 9)}
        assert found.after.world_size == 10
        function = preview(network(), CLUSTER, lambda owner, path, tensor: Placed(far, B))
        assert {row.after.placement for row in function} == {far}

    @pytest.mark.parametrize("where", ["cuda", "cpu"])
    def test_by_one_rank_alone(self, where, rank, world):
        """No other rank is asked for anything."""
        if rank == world - 1:
            placement = flow.placement(where, [[0, 1], [2, 99]])
            assert len(preview(network(), placement, BB)) == 8

    def test_in_another_thread(self, P):
        found = []
        thread = threading.Thread(target=lambda: found.append(preview(network(), P, B)))
        thread.start()
        thread.join()
        assert not found[0].errors


class TestNothingChanges:
    def test_in_the_module(self, P):
        m = network()
        m.old = globally(counted(4, 4), P, B)
        before = Snapshot(m)
        preview(m, P, {"0": S0, "*": B}, existing="convert")
        before.assert_unchanged()

    def test_no_tensor_is_held(self, P):
        found = preview(network(), P, B)
        values = [
            value for row in found for part in (row, row.now) for value in vars(part).values()
        ]
        assert not any(isinstance(value, flow.Tensor) for value in values)


class TestRules:
    """Which rule decides, and what they would do that nobody asks for."""

    def test_the_one_that_decides(self, P):
        m = network()
        m.old = globally(counted(4, 4), P, B)
        found = preview(m, P, {"Linear.weight": S0, nn.BatchNorm1d: B, "*": B})
        rules = {row.path: row.rule for row in found}
        assert rules["0.weight"] == "Linear.weight"
        assert rules["1.weight"] == "BatchNorm1d"
        assert rules["1.running_mean"] == "buffers='broadcast'"
        assert rules["0.bias"] == "*"
        assert rules["old"] == "existing='keep'"
        assert preview(m, P, lambda owner, path, tensor: B)["0.weight"].rule == "the sbp function"
        assert preview(m, P, B)["0.weight"].rule == "sbp"

    def test_unused(self, P):
        found = preview(network(), P, {"0.wieght": S0, "*": B})
        (warning,) = found.warnings
        assert warning.kind == "unused"
        with warns(UnusedRuleWarning) as told:
            local_to_global(network(), P, {"0.wieght": S0, "*": B})
        assert [str(one.message) for one in told] in ([], [warning.text])

    def test_unused_as_an_error(self, P):
        found = preview(network(), P, {"0.wieght": S0, "*": B}, unused="error")
        (text,) = found.errors
        error = error_of(
            lambda: local_to_global(network(), P, {"0.wieght": S0, "*": B}, unused="error")
        )
        assert type(error) is ConversionError
        assert str(error) == text
        assert not found.warnings

    def test_a_tie_whose_rules_differ(self, P):
        def tied():
            m = nn.Sequential(linear(counted(8, 8)), linear(counted(8, 8)))
            m[1].weight = m[0].weight
            return m

        rules = {"0.weight": S0, "1.weight": S1}
        found = preview(tied(), P, rules)
        (warning,) = [one for one in found.warnings if one.kind == "tied"]
        assert warning.paths == ("0.weight", "1.weight")
        assert found["1.weight"] is found["0.weight"]
        assert found["0.weight"].after.sbp == (S0,)
        with warns(TiedRulesWarning) as told:
            local_to_global(tied(), P, rules, unused="warn")
        assert [str(one.message) for one in told] in ([], [warning.text])

    def test_kept_with_another_layout_than_asked(self, P):
        m = nn.Sequential(linear(counted(8, 8)), linear(counted(8, 8)), linear(counted(8, 8)))
        m[0].weight = globally(counted(8, 8), P, B)
        m[1].weight = globally(counted(8, 8), P, S0)
        m[2].weight = globally(counted(8, 8), P, S1)
        found = preview(m, P, {"0": S0, "1": S0, "*": B})
        assert [row.asked is not None for row in found] == [True, False, True]
        assert found["0.weight"].asked == f"split(dim=0) on {P}"
        (warning,) = [one for one in found.warnings if one.kind == "kept"]
        assert warning.paths == ("0.weight",), "what '*' matches is kept on purpose"
        assert "'0' asks split(dim=0)" in warning.text


class TestErrors:
    """All that cannot be done, and not the first of it alone."""

    def test_each_tensor_has_its_own(self, P):
        def build():
            m = Model()
            m.scalar = parameter(np.float32(1.0))
            m.narrow = parameter(counted(1, 4))
            m.wide = parameter(counted(8, 4))
            m.other = parameter(counted(8))
            m.near = parameter(counted(8))
            return m

        far = flow.placement("cpu", [0, 1, 2, 3])
        rules = {
            "narrow": Placed(far, S0),
            "other": Placed(far, S1),
            "near": Placed(nearest, B),
            "*": B,
        }
        found = preview(build(), P, rules)
        errors = [row.error for row in found if row.error is not None]
        assert [row.path for row in found if row.error is not None] == ["narrow", "other", "near"]
        assert found.errors == tuple(errors)
        for path, text in zip(("narrow", "other", "near"), found.errors):
            assert text.startswith(f"Model.{path}: ")
        assert found["wide"].changes
        assert not found["narrow"].changes
        assert found["narrow"].after == found["narrow"].now

    def test_the_first_is_what_the_conversion_raises(self, P, world):
        rules = {"0.weight": flow.sbp.split(4), "0.bias": flow.sbp.split(5), "1": B}
        found = preview(network(), P, rules)
        assert len(found.errors) == 3, "2.weight has no rule"
        error = error_of(lambda: local_to_global(network(), P, rules))
        assert str(error) == found.errors[0]

    def test_of_a_class_whose_placement_is_not_known(self, P):
        kind = auto_global(lambda module: None, B)(type("Layer", (Model,), {}))
        with local_scope():
            m = nn.Sequential(linear(counted(8, 4)), kind())
            m[1].w = parameter(counted(4))
        (text,) = preview(m, P, B).errors
        assert text == str(error_of(lambda: local_to_global(m, P, B)))

    def test_of_the_value_as_a_whole(self, P):
        m = network()
        grid = flow.placement("cpu", [[*map(int, P.ranks)]])
        m.old = nn.Parameter(tensor(counted(4, 4)).to_global(grid, [B, B]))
        assert "Model" not in preview(m, P, B, existing="error").errors[0]
        assert "existing='keep'" in preview(m, P, B, existing="error").errors[0]
        assert "same_placement" in preview(m, P, B, same_placement=True).errors[0]

    @pytest.mark.parametrize(
        ("arguments", "options", "kind", "match"),
        [
            ((nn.Linear, CLUSTER, BB), {}, SpecTypeError, "nn.Module"),
            ((nn.Linear(2, 2), "cuda", BB), {}, SpecTypeError, "placement"),
            ((nn.Linear(2, 2), CLUSTER, B), {}, SpecError, "one entry per placement dimension"),
            ((nn.Linear(2, 2), CLUSTER, BB), {"source": "half"}, SpecError, "source"),
        ],
    )
    def test_at_the_door(self, arguments, options, kind, match):
        with pytest.raises(kind, match=match) as caught:
            preview(*arguments, **options)
        assert isinstance(caught.value, AutoglobalError)

    def test_an_option_that_there_is_not(self):
        with pytest.raises(TypeError, match=r"preview\(\) got an unexpected .* 'when'"):
            preview(nn.Linear(2, 2), CLUSTER, BB, when="exit")

    def test_a_path_that_there_is_not(self):
        with pytest.raises(KeyError, match=r"such as '0\.weight'"):
            preview(network(), CLUSTER, BB)["0.wieght"]


class TestShown:
    def found(self) -> Preview:
        m = network()
        m.add_module("tied", m[0])
        return preview(m, CLUSTER, {"0.weight": [S0, S1], "2": [S0, S0], "hm": BB, "*": BB})

    def test_as_text(self):
        text = self.found().text()
        assert text.isascii()
        for part in (
            "0.weight (also tied.weight)",
            "(split(dim=0), split(dim=1)) on cuda [[0, 1, 2, 3], [4, 5, 6, 7]]",
            "128 -> 16",
            "(4, 1)",
            "all ranks: ",
            "the rule 'hm' of sbp decided for no tensor",
        ):
            assert part in text

    def test_refusals_are_listed(self):
        text = preview(network(), CLUSTER, {"0": [flow.sbp.split(5), B], "*": BB}).text()
        assert "Cannot be done (2):" in text
        assert "cannot be converted" in text

    def test_in_a_terminal_of_any_width(self):
        for width in (60, 400):
            console = Console(width=width, color_system=None)
            with console.capture() as capture:
                console.print(self.found())
            assert "hm" in capture.get()
            assert max(map(len, capture.get().splitlines())) <= width

    def test_in_a_notebook(self):
        assert "0.weight" in self.found()._repr_html_()

    def test_as_json(self):
        found = json.loads(json.dumps(self.found().to_dict()))
        row = found["rows"][0]
        assert row["after"]["sbp"] == ["split(dim=0)", "split(dim=1)"]
        assert row["components"] == [{"shape": [4, 1], "nbytes": 16, "ranks": [*range(8)]}]
        assert (row["rule"], row["changes"]) == ("0.weight", True)
        assert found["world_size"] == 8

    def test_as_a_picture(self, tmp_path):
        self.found().draw(tmp_path / "m.svg")
        text = (tmp_path / "m.svg").read_text()
        assert "on 8 ranks" in text
        assert "A: cuda, 2 x 4 ranks" in text

    def test_ranks_with_unequal_bytes(self, world):
        m = Model()
        m.w = parameter(counted(9))
        placement = flow.placement("cuda", [*range(8)])
        assert "rank 0: 36 -> 8 bytes\nrank 1-7: 36 -> 4 bytes" in preview(m, placement, S0).text()
