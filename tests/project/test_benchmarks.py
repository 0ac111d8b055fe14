"""The benchmarks run, say what they found alike everywhere, and end as they should."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import oneflow as flow
import pytest

from benchmarks.__main__ import _parser
from benchmarks.harness.compare import moved
from benchmarks.harness.devices import NoDevice, choose
from benchmarks.harness.plot import draw
from benchmarks.harness.publish import pages, stem, write
from benchmarks.harness.pytorch import VARIABLE
from benchmarks.harness.results import Bar, Line, Report, Table, faster, read, relative
from benchmarks.harness.running import ALL
from benchmarks.harness.tables import seconds, spread, text

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
pytestmark = pytest.mark.ranks(1)


def report(slow: list[float], fast: list[float]) -> Report:
    table = Table(
        "work",
        2,
        10,
        "Parameter",
        [Line("slow", slow, slow), Line("fast", fast, fast, base="slow")],
    )
    bars = [faster(table, "fast", "slow", "fast", 3), relative(table, "fast", "fast", "slow", 0.1)]
    machine = {
        **{"processor": "P", "cores": 2, "memory_gib": 1.0, "system": "S", "device": "CPU"},
        **{"load_average_before": [0.5], "versions": {"python": "3.10"}},
    }
    return Report([table], bars, ["a note"], "made-up", "cpu", "python -m ...", machine)


BEFORE = report([4.0, 4.0, 8.0], [1.0, 1.0, 2.0])


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    env = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)


def test_one_benchmark_from_the_command_to_the_files(tmp_path):
    """On two ranks, with every line checked before it is timed; without PyTorch, which it says."""
    files = {name: tmp_path / f"new.{name}" for name in ("json", "plot")}
    options = [part for name, file in files.items() for part in (f"--{name}", str(file))]
    done = run("peers", "--rounds", "2", *options)
    assert done.returncode == 0, done.stderr
    found = read(files["json"])
    (table,) = found.tables
    assert table.ranks == 2
    for line in table.lines:
        assert len(line.done) == len(line.enqueued) == 2
        assert all(0 < start <= end for start, end in zip(line.enqueued, line.done))
        assert line.name in done.stdout
    assert set(found.machine["versions"]) >= {"oneflow", "wrapt", "python"}
    assert found.notes[0].startswith("PyTorch: left out")
    assert found.notes[0] in done.stdout
    assert files["plot"].read_text().lstrip().startswith("<?xml")


def test_a_device_that_is_not_there():
    """Exit code 2 and one line that says why, whichever benchmark it was asked for."""
    if flow.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(NoDevice) as refused:
        choose("cuda")
    done = run("overhead", "--device", "cuda")
    assert done.returncode == 2
    assert str(refused.value) in done.stderr
    assert done.stdout == ""


WEIGH = """
import oneflow as flow
from oneflow import nn
from benchmarks.harness.devices import Device
from benchmarks.harness.memory import watched
P, B = flow.placement("cpu", [0]), flow.sbp.broadcast

def build():
    return nn.Sequential(*[nn.Linear(512, 512) for _ in range(48)])

def converted():
    return build()._apply(lambda tensor: tensor.to_global(P, B, copy=True))

for kind in (build, converted, build, converted, build):
    with watched(Device("cpu")) as weight:
        made = kind()
        flow._oneflow_internal.eager.Sync()
        peak = weight()
    del made
    print(round(peak))
"""


def test_memory_at_its_peak_is_found_again_and_again():
    """Two copies of 48 MiB, although malloc would like to keep what was given back before."""
    command = [sys.executable, "-c", WEIGH]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    _, first, _, second, _ = map(int, done.stdout.split())
    assert first > 96
    assert abs(second - first) <= 4


@pytest.mark.parametrize("wrong", [["--rounds", "1"], ["--ranks", "0"], ["--device", "tpu"]])
def test_options_that_make_no_sense(wrong, capsys):
    with pytest.raises(SystemExit):
        _parser().parse_args(["overhead", *wrong])
    assert wrong[1] in capsys.readouterr().err


def test_medians_and_ratios():
    (table,), (times, ratio) = BEFORE.tables, BEFORE.bars
    assert [line.median for line in table.lines] == [4.0, 1.0]
    assert table.to_base(table.line("fast")) == [0.25, 0.25, 0.25]
    assert times.met
    assert not ratio.met
    assert not Bar("at the limit", 1, [2.0, 2.0], 1.9).met
    assert Bar("at the limit", 1, [2.0, 2.0], 2.0, at_least=True).met


def test_the_words_of_a_report():
    printed = text(BEFORE)
    assert (
        "| 2       | work   | fast  | 1 s      | 100 ms / Parameter | 0.25 [0.25, 0.25]" in printed
    )
    assert "at least 3" in printed
    assert "**no**" in printed
    assert printed.endswith("a note\n")
    assert "peak" not in printed  # nobody has weighed it
    assert [seconds(one) for one in (2.5, 0.0123, 4.2e-6, 7e-8)] == [
        *("2.5 s", "12.3 ms", "4.2 us", "70 ns")
    ]


def test_a_report_comes_back_as_it_was_written(tmp_path):
    BEFORE.write(tmp_path / "r.json")
    assert read(tmp_path / "r.json") == BEFORE


def test_the_same_report_draws_the_same_picture(tmp_path):
    for name in ("one", "other"):
        draw(BEFORE, tmp_path / name)
    drawn = (tmp_path / "one").read_bytes()
    assert drawn == (tmp_path / "other").read_bytes()
    assert b">fast<" in drawn.replace(b"\n", b"")  # as text that can be found
    draw(report([4.0, 4.0], [3.0, 3.0]), tmp_path / "third")
    assert drawn != (tmp_path / "third").read_bytes()


def test_what_moved_beyond_noise():
    def sentences(slow: list[float], fast: list[float]) -> list[str]:
        return list(moved(BEFORE, report(slow, fast)))

    assert sentences([4.0, 4.0, 8.0], [1.0, 1.0, 2.0]) == []
    # Twice as slow a machine: the ratio stays, and only what has no base has moved.
    (machine,) = sentences([8.1, 8.2, 8.3], [2.025, 2.05, 2.075])
    assert machine.startswith("slower: work, slow (2 ranks): seconds 4 before, 8.2 now")
    assert sentences([4.0, 4.0, 8.0], [2.0, 2.0, 4.0]) == [
        "slower: work, fast (2 ranks): time ratio 0.25 before, 0.5 now"
    ]
    assert sentences([4.0, 4.0, 4.0], [0.4, 1.6, 4.0]) == []  # it may be either
    assert sentences([4.0, 4.0, 8.0], [1.02, 1.02, 2.04]) == []  # too little to speak of


def test_what_is_new_and_what_is_gone():
    after = report([4.0, 4.0], [1.0, 1.0])
    after.tables[0].lines[1].name = "faster"
    assert list(moved(BEFORE, after)) == [
        "new: work, faster (2 ranks)",
        "gone: work, fast (2 ranks)",
    ]


def test_the_files_of_a_run(tmp_path):
    """Another run writes them anew; bars.md has a bar that was not met, and table.md has none."""
    for _ in range(2):
        write([BEFORE], tmp_path / "results")
        files = {path.name: path.read_text() for path in (tmp_path / "results").iterdir()}
        assert sorted(files) == ["bars.md", "made-up.json", "made-up.svg", "table.md"]
    assert "## made-up, on cpu\n\n`python -m ...`" in files["table.md"]
    assert "| slow  |" in files["table.md"]
    assert "a note" in files["table.md"]
    assert "**no**" not in files["table.md"]
    assert "at least 3" in files["bars.md"]
    assert "**no**" in files["bars.md"]


def test_the_pages_show_the_results_that_are_there():
    """Regenerated, not typed: the pages are what the JSON files give."""
    reports = [read(RESULTS / f"{name}.json") for name in ALL["cpu"]]
    assert [stem(one) for one in reports] == list(ALL["cpu"])
    for name, expected in pages(reports).items():
        assert (RESULTS / name).read_text() == expected, name


# What README says about costs: the benchmark, the ranks, the table and the line.
STATED = [
    ("overhead", 1, "m.x = 1", "open scope"),
    (
        "by-hand",
        2,
        "40 of 64x64, one by one",
        "different copies: m.x = Parameter(t) in an open scope",
    ),
    ("by-hand", 2, "GPT-like, 48 blocks, S0", 'scope, when="exit"'),
    ("migrate", 2, "300 of 64x64", "equal copies, S0: local_to_global"),
    ("migrate", 1, "20 of 2048x2048", "equal copies, S0: local_to_global"),
    ("overhead", 1, "m.x = module of 1000 global Parameters", "open scope"),
]


@pytest.mark.parametrize(("name", "ranks", "title", "line"), STATED)
def test_the_readme_states_ratios_that_were_measured(name, ranks, title, line):
    tables = read(RESULTS / f"{name}.json").tables
    (table,) = [one for one in tables if (one.ranks, one.title) == (ranks, title)]
    ratio = spread(table.to_base(table.line(line))).split()[0]
    text = (ROOT / "README.md").read_text()
    in_the_table = f"| {ranks} | {ratio} | `python -m benchmarks {name}` |" in text
    assert in_the_table or f"a ratio of {ratio}" in text, ratio
