"""The doctor's checks one by one, of what a process or an environment was found to have."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest

from autoglobal.commands import doctor, installation, selftest
from autoglobal.commands.cli import main

pytestmark = pytest.mark.ranks(1)

ROOT = Path(__file__).resolve().parent.parent


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
