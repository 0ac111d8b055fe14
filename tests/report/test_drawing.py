"""``describe(m).draw``: each tensor as a rectangle, cut where its sbp cuts it."""

from __future__ import annotations

import zlib
from xml.etree import ElementTree

import numpy as np
import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import SpecError, SpecTypeError, describe, global_scope
from autoglobal.ranks.collectives import all_gather
from tests.helpers.pictures import NS, check_against, one, panels, parts, texts
from tests.helpers.support import S0, S1, B, Model, counted, parameter, tensor
from tests.helpers.trees import globally, mixed

PS = flow.sbp.partial_sum


@pytest.fixture
def drawn(tmp_path):
    """Draws a module, and reads the file."""

    def draw(m: nn.Module, **options) -> ElementTree.Element:
        describe(m).draw(tmp_path / "m.svg", **options)
        return ElementTree.parse(tmp_path / "m.svg").getroot()

    return draw


@pytest.mark.parametrize("sbp", [S0, S1], ids=str)
def test_a_split_is_cut_to_scale_with_a_rank_in_each_part(drawn, P, world, sbp):
    array = counted(9, 7)
    panel = panels(drawn(one("w", array, P, sbp)))["w"]
    assert [text for text in texts(panel) if text.isdigit()] == list(map(str, range(world)))
    assert len(parts(panel)) == world
    check_against(array, P, (sbp,), panel)
    side, other = (3, 2) if sbp == S0 else (2, 3)
    lengths = [box[side] for _, box in parts(panel)]
    expected = [len(piece) for piece in np.array_split(range(9 if sbp == S0 else 7), world)]
    scale = sum(lengths) / sum(expected)
    assert lengths == pytest.approx([scale * length for length in expected], abs=0.02)
    (across,) = {box[other] for _, box in parts(panel)}
    ratio = sum(lengths) / across
    assert ratio == pytest.approx(9 / 7 if sbp == S0 else 7 / 9, rel=0.01), "in proportion"
    for text in ("Model, parameter", "(9, 7) float32", f"split(dim={int(sbp == S1)}) on A"):
        assert text in texts(panel)
    assert {"axis 1: 7 \N{RIGHTWARDS ARROW}", "\N{LEFTWARDS ARROW} axis 0: 9"} <= {*texts(panel)}


def test_what_all_hold_is_one_part(drawn, P, world):
    m = one("w", counted(4, 4), P, B)
    with global_scope(P, B):
        m.dot = nn.Parameter(tensor(counted(1)).sum().detach())
    root = drawn(m)
    everybody = {1: "0", 2: "0, 1", 4: "0-3"}[world]
    for path in ("w", "dot"):
        assert everybody in texts(panels(root)[path])
    assert len(parts(panels(root)["w"])) == 1
    (dot,) = panels(root)["dot"].iter(f"{NS}circle")
    assert dot.find(f"{NS}title").text == f"rank {everybody}"


def test_one_axis_is_a_row(drawn, P, world):
    panel = panels(drawn(one("w", counted(9), P, S0)))["w"]
    boxes = [box for _, box in parts(panel)]
    assert len({(y, height) for _, y, _, height in boxes}) == 1
    assert [x for x, *_ in boxes] == sorted(x for x, *_ in boxes)
    check_against(counted(9), P, (S0,), panel)


def test_summands_are_marked(drawn, P, world):
    panel = panels(drawn(one("w", counted(4, 4), P, PS)))["w"]
    assert " + ".join(map(str, range(world))) in texts(panel)
    assert "partial_sum on A" in texts(panel)
    assert any(text.startswith("partial_sum:") for text in texts(panel))
    if world > 1:
        assert any(box.get("class") == "part sum" for box in panel.iter(f"{NS}rect"))


@pytest.mark.ranks(4)
class TestMesh:
    @pytest.mark.parametrize(
        ("sbp", "labels"),
        [
            ((S0, S1), ["0", "1", "2", "3"]),
            ((S0, S0), ["0", "1", "2", "3"]),
            ((S1, B), ["0, 1", "2, 3"]),
            ((B, S0), ["0, 2", "1, 3"]),
            ((PS, S0), ["0 + 2", "1 + 3"]),
            ((PS, B), ["(0, 1) + (2, 3)"]),
            ((PS, PS), ["0 + 1 + 2 + 3"]),
        ],
        ids=str,
    )
    def test_who_holds_what(self, drawn, sbp, labels):
        array, mesh = counted(41, 7), flow.placement("cpu", [[0, 1], [2, 3]])
        panel = panels(drawn(one("w", array, mesh, sbp)))["w"]
        assert {*labels} <= {*texts(panel)}
        assert {text.split(" on rank ")[1] for text, _ in parts(panel)} == {*labels}
        check_against(array, mesh, sbp, panel)

    def test_its_grid_has_its_dimensions(self, drawn):
        mesh = flow.placement("cpu", [[0, 1], [2, 3]])
        root = drawn(one("w", counted(8, 8), mesh, (S0, S1)))
        legend = next(g for g in root.iter(f"{NS}g") if texts(g)[0] == "A: cpu, 2 x 2 ranks")
        assert "dimensions 0 \N{DOWNWARDS ARROW}, 1 \N{RIGHTWARDS ARROW}" in texts(legend)
        places = {
            text.text: (float(text.get("x")), float(text.get("y")))
            for text in legend.iter(f"{NS}text")
            if text.text.isdigit()
        }
        assert places["0"][1] == places["1"][1] < places["2"][1] == places["3"][1]
        assert places["0"][0] == places["2"][0] < places["1"][0] == places["3"][0]

    def test_of_more_axes_the_cut_ones_are_drawn(self, drawn):
        mesh = flow.placement("cpu", [[0, 1], [2, 3]])
        array = counted(4, 3, 3, 6)
        panel = panels(drawn(one("w", array, mesh, (flow.sbp.split(3), S0))))["w"]
        found = texts(panel)
        assert {"axis 3: 6 \N{RIGHTWARDS ARROW}", "\N{LEFTWARDS ARROW} axis 0: 4"} <= {*found}
        assert "axes not drawn: 1, 2" in found
        assert len(parts(panel)) == 4
        check_against(array, mesh, (flow.sbp.split(3), S0), panel)

    def test_three_dimensions_and_three_cut_axes(self, drawn):
        deep = flow.placement("cpu", [[[0, 1]], [[2, 3]]])
        array = counted(4, 4, 4)
        root = drawn(one("w", array, deep, (S0, S1, flow.sbp.split(2))))
        panel = panels(root)["w"]
        assert {"0 | 1", "2 | 3", "| between what is cut along these"} <= {*texts(panel)}
        assert any(text.startswith("[1, :, :]: dimensions 1") for text in texts(root))

    def test_a_placement_that_leaves_ranks_out(self, drawn):
        root = drawn(one("w", counted(4), flow.placement("cpu", [1, 2]), S0))
        assert "A: cpu, 2 ranks, not on 0, 3" in texts(root)
        assert [text for text, _ in parts(panels(root)["w"])] == [
            "[0:2] on rank 1",
            "[2:4] on rank 2",
        ]


def test_what_is_local_or_empty_is_outlined(drawn, P):
    m = mixed(P)
    m.empty = globally(counted(0, 4), P, S0)
    m.dot = nn.Parameter(tensor(counted(1)).sum().detach())
    m.register_buffer("tmp", tensor(counted(2)), persistent=False)
    found = panels(drawn(m))
    for path in ("new", "seen", "tmp", "sub.lin.weight"):
        (box,) = [b for b in found[path].iter(f"{NS}rect") if b.get("class") != "panel"]
        assert box.get("class") == "line local"
        assert "each rank has one of its own" in texts(found[path])
        assert not parts(found[path])
    assert "Model, buffer, not saved" in texts(found["tmp"])
    assert any(text.endswith(": no elements") for text in texts(found["empty"]))
    assert found["dot"].find(f"{NS}circle").get("class") == "line local"


def test_a_tied_tensor_is_drawn_once(drawn, P):
    m = one("w", counted(4), P, B)
    m.other = m.w
    root = drawn(m)
    assert list(panels(root)) == ["w"]
    assert "also other" in texts(panels(root)["w"])


def test_the_limit_and_what_is_left_out(drawn):
    m = Model()
    for index in range(5):
        setattr(m, f"p{index}", parameter(counted(2)))
    root = drawn(m, limit=3)
    assert list(panels(root)) == ["p0", "p1", "p2"]
    assert "Not drawn (limit=3): 2 more, p3 ... p4" in texts(root)
    assert not any("Not drawn" in text for text in texts(drawn(m, limit=5)))


def test_names_of_any_kind(drawn):
    m = Model()
    m._parameters["<b>&\"'\x00\x1b\n\ud800\ufffe"] = parameter(counted(2))
    m._parameters["long" * 30] = parameter(counted(2))
    hostile, long = panels(drawn(m))
    assert hostile == "<b>&\"'\\x00\\x1b\\n\\ud800\\ufffe"
    assert len(long) < 60
    assert "long" * 30 in {title.text for title in drawn(m).iter(f"{NS}title")}


def test_the_same_bytes_each_time_and_on_every_rank(tmp_path, P):
    m = one("w", counted(9, 7), P, S0)
    files = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for file in files:
        describe(m).draw(str(file))
    first, second = (file.read_bytes() for file in files)
    assert first == second
    assert len({tuple(row) for row in all_gather([zlib.crc32(first)])}) == 1
    assert [file.name for file in sorted(tmp_path.iterdir())] == ["a.svg", "b.svg"]


def test_it_reads_in_light_and_in_dark(drawn):
    style = drawn(nn.Linear(2, 2)).find(f"{NS}style").text
    assert "prefers-color-scheme: dark" in style


def test_a_module_that_holds_nothing(drawn):
    assert any("0 tensors" in text for text in texts(drawn(nn.ReLU())))


def test_what_cannot_be_written_is_refused(tmp_path):
    report = describe(nn.Linear(2, 2))
    for path, kind, words in (
        (tmp_path / "m.png", SpecError, "must end in .svg"),
        (tmp_path / "m", SpecError, "must end in .svg"),
        ("", SpecError, "must end in .svg"),
        (tmp_path, SpecError, "must end in .svg"),
        (tmp_path / "none" / "m.svg", SpecError, "No such file"),
        (str(tmp_path / "m\x00.svg"), SpecError, "null byte"),
        (b"m.svg", SpecTypeError, "a string or a pathlib.Path"),
        (None, SpecTypeError, "Received: path=None"),
        (7, SpecTypeError, "Received: path=7"),
    ):
        with pytest.raises(kind, match=words):
            report.draw(path)
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(SpecError, match="directory"):
        report.draw(tmp_path / "folder.svg")
    for limit, kind in ((0, SpecError), (True, SpecTypeError), ("3", SpecTypeError)):
        with pytest.raises(kind, match="limit"):
            report.draw(tmp_path / "m.svg", limit=limit)
    assert [file.name for file in tmp_path.iterdir()] == ["folder.svg"]
