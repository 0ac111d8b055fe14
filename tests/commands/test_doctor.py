"""``python -m autoglobal doctor`` names the cause and the cure in each broken environment.

Each is a virtual environment of links to this one's packages, less one or with another in its
place. What stands in for a package makes OneFlow fail with the words of the real one: that numpy
2.2.6, oneflow 0.7.0 (the stub), wrapt 1.14.1 and protobuf 4 do so was tried by hand. The checks
also one by one, of what a process or an environment was found to have.
"""

from __future__ import annotations

import configparser
import contextlib
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import oneflow
import pytest

import autoglobal
from autoglobal.commands import doctor, installation, selftest
from autoglobal.commands.cli import main
from autoglobal.commands.launcher import RANK_VARIABLES
from tools.linked import LinkedVenv, write

pytestmark = pytest.mark.ranks(1)

STUB = "raise RuntimeError('This package is a placeholder. Please install oneflow following ...')\n"


def whole(folder: Path) -> LinkedVenv:
    return LinkedVenv(folder)


def no_oneflow(folder: Path) -> LinkedVenv:
    return LinkedVenv(folder, "oneflow")


def stub(folder: Path) -> LinkedVenv:
    made = LinkedVenv(folder, "oneflow")
    made.hold("oneflow", "0.7.0", STUB)
    return made


def numpy_2(folder: Path) -> LinkedVenv:
    made = LinkedVenv(folder, "numpy")
    made.hold("numpy", "2.2.6", "__version__ = '2.2.6'\n")
    # OneFlow asks this module for numpy's table of functions, which a numpy 2 refuses.
    write(made.packages / "numpy" / "core" / "__init__.py", "raise ImportError('for numpy 1')\n")
    return made


def no_cudnn(folder: Path) -> LinkedVenv:
    made = LinkedVenv(folder, "nvidia_cudnn_cu11")
    # OneFlow's library looks for the others in ../nvidia from where it lies, which must be here.
    made.open_up("oneflow")
    made.open_up("nvidia", "cudnn")
    return made


def cudnn_elsewhere(folder: Path) -> LinkedVenv:
    made = no_cudnn(folder)
    made.hold("nvidia_cudnn_cu11", "8.9.6.50", "")
    return made


def old_wrapt(folder: Path) -> LinkedVenv:
    made = LinkedVenv(folder, "wrapt")
    made.hold("wrapt", "1.14.1", "__version__ = '1.14.1'\n")
    return made


def import_aborts(folder: Path) -> LinkedVenv:
    made = LinkedVenv(folder, "oneflow")
    made.hold("oneflow", "0.9.0", "import os; os.abort()\n")
    return made


def one_rank_ends(folder: Path) -> LinkedVenv:
    made = LinkedVenv(folder)
    write(
        made.packages / "sitecustomize.py",
        "import os\nif os.environ.get('RANK') == '1':\n"
        "    os.write(2, b'RuntimeError: own words\\n')\n    os._exit(3)\n",
    )
    return made


ENVIRONMENTS = {
    one.__name__: one
    for one in (
        *(whole, no_oneflow, stub, numpy_2, no_cudnn, cudnn_elsewhere, old_wrapt, import_aborts),
        one_rank_ends,
    )
}


def start(python: str | Path, folder: Path, *arguments: str, **options) -> subprocess.Popen:
    """``python -m autoglobal`` in a folder that has the library, and nothing else."""
    (folder / "autoglobal").symlink_to(Path(autoglobal.__file__).parent)
    unset = (*RANK_VARIABLES, "PYTHONPATH")
    clean = {name: value for name, value in os.environ.items() if name not in unset}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        [str(python), "-m", "autoglobal", *arguments],
        cwd=folder,
        **{**pipes, **options, "env": {**clean, **options.get("env", {})}},
    )


class Report:
    """What a doctor said as JSON."""

    def __init__(self, process: subprocess.Popen) -> None:
        out, self.err = process.communicate(timeout=100)
        assert out, self.err
        said = json.loads(out)
        self.code = process.returncode
        self.well = said["ok"]
        self.checks = {check["name"]: check for check in said["checks"]}
        self.faulty = [name for name, check in self.checks.items() if check["state"] == "!!"]

    def told(self, name: str) -> str:
        return "{found} | {cause} | {cure}".format(**self.checks[name])


@pytest.fixture(scope="module")
def doctors(tmp_path_factory) -> dict[str, subprocess.Popen]:
    """All doctors at once, since most of the time each waits for another process."""
    launched = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "WORLD_SIZE": "2", "RANK": "1"}
    # Where the variables of a job are set, whose other rank never comes.
    started = {}
    for name, make in ENVIRONMENTS.items():
        folder = tmp_path_factory.mktemp(name)
        env = launched if name == "whole" else {}
        started[name] = start(make(folder / "venv").python, folder, "doctor", "--json", env=env)
    return started


@pytest.fixture(scope="module")
def reports(doctors) -> dict[str, Report]:
    return {name: Report(process) for name, process in doctors.items()}


def test_all_is_well_here_and_two_ranks_have_tried_it(reports):
    report = reports["whole"]
    assert (report.code, report.well, report.faulty) == (0, True, [])
    assert {check["state"] for check in report.checks.values()} == {"ok"}
    assert re.search(rf"{re.escape(oneflow.__version__)}, built for C", report.told("OneFlow"))
    assert "/venv/bin/python" in report.told("Python")
    assert "C extension" in report.told("wrapt")
    assert "in place" in report.told("Parameters")
    assert "rank 1 of 2" in report.told("launcher")
    assert "2 CPU ranks" in report.told("self-test")


PIP = r"/bin/python -m pip install "


@pytest.mark.parametrize(
    ("environment", "faulty", "told"),
    [
        ("no_oneflow", ["OneFlow"], f"not installed.*{PIP}'oneflow>=0.9,<1' 'numpy<2' 'nvidia-"),
        ("stub", ["OneFlow"], f"0.7.0.*empty stub.*{PIP}'oneflow>=0.9,<1'"),
        ("numpy_2", ["OneFlow", "numpy"], f"numpy 2.2.6 is installed.*{PIP}'numpy<2'$"),
        ("no_cudnn", ["OneFlow"], f"needs libcudnn, on CPU.*{PIP}'nvidia-cudnn-cu11>=8.5,<9'$"),
        ("cudnn_elsewhere", ["OneFlow"], f"8.9.6.50 .*not there.*{PIP}--force-reinstall --no-deps"),
        ("old_wrapt", ["wrapt"], f"wrapt 2.5 or later.* 1.14.1.*{PIP}'wrapt>=2.5'$"),
        ("import_aborts", ["OneFlow"], "importing oneflow, was ended by SIGABRT.*import oneflow"),
        (
            "one_rank_ends",
            ["self-test"],
            "rank 1: RuntimeError: own words.*commands.selftest",
        ),
    ],
)
def test_the_cause_and_the_cure_are_told(reports, environment, faulty, told):
    report = reports[environment]
    assert (report.code, report.well, report.faulty) == (1, False, faulty)
    assert re.search(told, report.told(faulty[0])), report.told(faulty[0])


def test_what_needs_something_faulty_is_not_checked(reports):
    states = {name: check["state"] for name, check in reports["numpy_2"].checks.items()}
    assert [name for name, state in states.items() if state == "--"] == [
        *("Parameters", "CUDA", "self-test")
    ]


def other_python(versions: tuple[str, ...]) -> str | None:
    """A Python of one of these versions, if this machine has one that runs."""
    found = [shutil.which(f"python{version}") for version in versions]
    for version in versions:
        found += sorted(Path.home().glob(f".pyenv/versions/{version}*/bin/python{version}"))
    for one in filter(None, found):
        if subprocess.run([one, "-c", ""], capture_output=True).returncode == 0:
            return str(one)
    return None


@pytest.mark.parametrize(
    "versions", [("3.8",), ("3.11", "3.12", "3.13", "3.14")], ids=["old", "new"]
)
def test_a_python_for_which_there_is_only_the_stub(tmp_path, versions):
    python = other_python(versions)
    if python is None:
        pytest.skip(f"no Python {' or '.join(versions)} here")
    write(tmp_path / "oneflow" / "__init__.py", STUB)
    write(tmp_path / "oneflow-0.7.0.dist-info" / "METADATA", "Name: oneflow\nVersion: 0.7.0\n")
    process = start(python, tmp_path, "doctor")
    out, _ = process.communicate(timeout=60)  # in plain words: there need be no rich either
    assert process.returncode == 1
    assert re.search(r"!!  OneFlow: .*0\.7\.0.*empty stub.*CPython 3\.7 to 3\.10", out)
    assert "\n    type: python3.10 -m venv .venv && .venv/bin/python -m pip install" in out
    assert "!!  Python: " in out
    assert "--  wrapt       not checked" in out


def test_plain_words_in_a_pipe(tmp_path):
    process = start(no_oneflow(tmp_path / "venv").python, tmp_path, "doctor", "--no-self-test")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "!!  OneFlow     not installed\n" in out
    assert "ok  Python      " in out
    assert "--  self-test   not checked" in out
    assert re.search(r"\n\n!!  OneFlow: .*\n    type: .* 'numpy<2' .*\n", out)
    assert "\x1b" not in out


def test_colours_in_a_terminal_and_a_line_to_type_that_is_not_broken(tmp_path):
    python = no_oneflow(tmp_path / "venv").python
    ours, its = pty.openpty()
    with open(ours, "rb", buffering=0) as screen:
        terminal = {"TERM": "xterm", "COLUMNS": "60"}
        process = start(python, tmp_path, "doctor", env=terminal, stdin=its, stdout=its)
        os.close(its)
        shown = b""
        with contextlib.suppress(OSError):  # in the end the other end has gone
            while more := screen.read(4096):
                shown += more
    assert process.wait(timeout=60) == 1
    assert b"\x1b[1;31m!!" in shown
    assert re.search(rb"type: .*'nvidia-cublas-cu11>=11,<12'", shown)


def test_the_version_is_told_without_oneflow(tmp_path):
    python = no_oneflow(tmp_path / "venv").python
    out, _ = start(python, tmp_path, "--version").communicate(timeout=60)
    assert out == f"autoglobal {autoglobal.__version__}\n"


ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
def test_a_timeout_that_is_none_is_refused(seconds, capsys):
    with pytest.raises(SystemExit) as end:
        main(["doctor", "--timeout", seconds])
    assert end.value.code == 2
    told = capsys.readouterr().err
    assert f"--timeout: must be a number of seconds, more than 0. Received: {seconds!r}" in told


def test_ranks_that_do_not_end_in_time_are_ended():
    fault = selftest.run(0.5)
    assert "not ended after 0.5 s" in fault.cause
    assert fault.cure.endswith("-m autoglobal doctor --timeout 2.5")


JOB = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1", "WORLD_SIZE": "2", "RANK": "1"}


@pytest.mark.parametrize(
    ("env", "state", "told"),
    [
        ({}, "ok", "1 rank"),
        (JOB, "ok", "rank 1 of 2"),
        ({**JOB, "WORLD_SIZE": "1", "RANK": "-1"}, "ok", "1 rank: OneFlow has set"),
        ({"WORLD_SIZE": "2", "RANK": "1"}, "!!", "MASTER_ADDR and MASTER_PORT.*only rank"),
        ({**JOB, "RANK": "2"}, "!!", "from 0 to 1"),
        ({**JOB, "WORLD_SIZE": "two"}, "!!", "whole numbers"),
    ],
)
def test_the_launchers_variables(env, state, told):
    check = doctor.launcher(env)
    assert check.state == state
    assert re.search(told, check.found + check.cause)
    assert check.cure == (f"unset {' '.join(env)}" if state == "!!" else "")


@pytest.mark.parametrize(
    ("error", "ended", "state", "told"),
    [
        (None, None, "ok", r"H200 \(9.0\); kernels run"),
        ("no kernel image", None, "!!", r"not run on H200 \(9.0\): no kernel image.*6.0 to 8.6"),
        (..., "was ended by SIGABRT", "!!", r"not run on H200 \(9.0\): was ended by SIGABRT"),
    ],
)
def test_what_a_cuda_device_can_do(error, ended, state, told):
    """Of what a process found that had a device: here there is none."""
    device = {"name": "H200", "capability": [9, 0], "error": error}
    if error is ...:
        del device["error"]
    check = doctor.cuda({"devices": 1, "cuda:0": device, "ended": ended})
    assert check.state == state
    assert re.search(told, check.found + check.cause)
    assert ("CUDA_VISIBLE_DEVICES" in check.cure) == (state == "!!")


def test_what_is_needed_is_what_is_declared():
    declared = configparser.ConfigParser()
    declared.read(ROOT / "setup.cfg")
    extra = declared["options.extras_require"]["oneflow"].split()
    assert extra == list(installation.REQUIREMENTS.values())
    needs = declared["options"]["install_requires"].split()
    lowest = {name: ".".join(map(str, version)) for name, version in installation.LIBRARIES.items()}
    assert needs == [f"{name}>={version}" if version else name for name, version in lowest.items()]


@pytest.mark.parametrize("isolated", [True, False], ids=["isolated", "not"])
def test_what_lies_in_the_current_folder_is_not_run(tmp_path, isolated):
    """A ``json.py`` there would be imported by each process that the doctor starts."""
    for name in ("json", "tqdm", "contextlib", "numpy"):
        write(tmp_path / f"{name}.py", f"open({str(tmp_path / 'was_run')!r}, 'a').write('{name} ')")
    env = {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}
    # By the program's file, since "-m" would put the current folder before Python's own modules.
    begin = "import sys; sys.path = [one for one in sys.path if one]; "
    begin += "from autoglobal.commands.cli import main; sys.exit(main(['doctor']))"
    options = ["-I"] if isolated else []
    if not isolated:
        env["PYTHONPATH"] = str(Path(autoglobal.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, *options, "-c", begin], cwd=tmp_path, env=env, capture_output=True
    )
    assert not (tmp_path / "was_run").exists(), (tmp_path / "was_run").read_text()
    assert done.returncode == 0, done.stdout


def test_what_variables_hold_is_printed_as_text():
    variables = {"MASTER_ADDR": "\x1b[31m\nok  all", "MASTER_PORT": "1", "WORLD_SIZE": "2"}
    found = doctor.launcher({**variables, "RANK": "0"}).found
    assert found.isprintable()
    assert "all" in found
