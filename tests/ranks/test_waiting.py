"""A rank whose peer never comes says so and ends within its limit, instead of waiting for ever."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from autoglobal import global_scope
from autoglobal.commands.launcher import free_port, launch
from tests.helpers.support import S0, Model, assert_global, counted, parameter

LIMIT = 2  # seconds, the timeout of the programs below
LATE = 15  # seconds after which no rank may be waiting any more
GIVEN_UP = 124  # the exit code of a rank that has given up waiting

START = """
import atexit, os, random, signal, subprocess, sys, threading, time
import oneflow as flow
atexit.register(lambda: last())
last = lambda: None
from autoglobal import global_scope
from autoglobal.commands.launcher import free_port, launch
from tests.helpers.support import S0, Model, assert_global, counted, parameter
rank, P, W, m = flow.env.get_rank(), flow.placement("cpu", [0, 1]), counted(8, 4), Model()
def stop(seconds):
    subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)
def now_waiting():
    print(time.time(), flush=True)
"""
PROGRAMS = {
    # More seconds than the limit between two conversions are nobody's business, and half a second
    # in one is within it. What is stopped for longer finds its peer gone, and has to end as well.
    "stopped": """
with global_scope(P, S0, timeout=2):
    m.first = parameter(W)
    time.sleep(2.2)
    if rank == 1:
        stop(0.5)
    m.second = parameter(W + 1000 * rank)
    assert_global(m.second, W, P, S0)
    now_waiting()
    if rank == 1:
        stop(3)
        now_waiting()
    m.third = parameter(W)
""",
    "killed": """
with global_scope(P, S0, timeout=2):
    if rank == 1:
        threading.Timer(random.uniform(0.1, 0.6), os.kill, (os.getpid(), signal.SIGKILL)).start()
    while True:
        now_waiting()
        m.new = parameter(W + rank)
""",
    # It is stopped where it is about to receive a value: nobody waits for that before the next one.
    "stopped on the way": """
def stop_there(frame, event, _):
    if frame.f_code.co_name == "scatter":
        sys.setprofile(None)
        stop(5)
with global_scope(P, S0, timeout=2):
    m.first = parameter(W + 1000 * rank)
    if rank == 1:
        sys.setprofile(stop_there)
    m.second = parameter(W + 1000 * rank)
    now_waiting()
    m.third = parameter(W + 1000 * rank)
""",
    # Both are stopped for longer than the limit, as a batch system does with a whole job.
    "suspended": """
with global_scope(P, S0, timeout=2):
    m.first = parameter(W)
    threading.Timer(0.5, stop, (4,)).start()
    if rank == 1:
        time.sleep(1)
    m.second = parameter(W + 1000 * rank)
assert_global(m.second, W, P, S0)
""",
    "slow": """
with global_scope(P, S0, timeout=60):
    m.first = parameter(W)
    if rank == 1:
        time.sleep(11.8)
    m.second = parameter(W)
""",
    # What was registered before autoglobal was imported runs after autoglobal's own function.
    "at exit": """
def last():
    now_waiting()
    if rank == 1:
        time.sleep(60)
    with global_scope(P, S0, timeout=2):
        m.new = parameter(W)
with global_scope(P, S0, timeout=2):
    m.first = parameter(W)
""",
    "interrupted": """
import signal
with global_scope(P, S0, timeout=2):
    m.first = parameter(W)
    if rank == 0:
        threading.Timer(0.5, signal.raise_signal, (signal.SIGINT,)).start()
    else:
        time.sleep(1)
    try:
        m.second = parameter(W)
        assert rank == 1
    except KeyboardInterrupt:
        assert rank == 0
    assert_global(m.second, W, P, S0)
    time.sleep(3.5)
    m.third = parameter(W)
""",
    # OneFlow's own limit is shorter: it is set for this one program.
    "elsewhere": """
with global_scope(P, S0, timeout=600):
    m.first = parameter(W)
    if rank == 1:
        time.sleep(60)
    now_waiting()
    m.second = parameter(W)
""",
}


class Ended(NamedTuple):
    """How a rank ended: after how many seconds of waiting, and what it said."""

    code: int
    seconds: float
    lines: list[str]
    stderr: str


def run(folder: Path, name: str, environment: dict[str, str]) -> list[Ended]:
    """Start the two ranks without a launcher, which would end one for the other's sake."""
    program, port = folder / f"{name}.py", str(free_port())
    program.write_text(START + PROGRAMS[name])
    root = str(Path(__file__).resolve().parents[2])
    ranks = []
    for rank in "01":
        env = {
            **environment,
            **{"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "PYTHONPATH": root},
            **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"},
            "GLOG_log_dir": str(folder),
        }
        command = [sys.executable, str(program)]
        ranks.append(subprocess.Popen(command, env=env, stdout=-1, stderr=-1, cwd=folder))
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(follow, ranks))


def follow(process: subprocess.Popen[bytes]) -> Ended:
    killer = threading.Timer(60, process.kill)
    killer.start()
    out, err = process.communicate()
    killer.cancel()
    return ended(process.returncode, out.decode(), err.decode(errors="replace"))


def ended(code: int, out: str, err: str) -> Ended:
    started = re.findall(r"^\d{9,}\.\d+$", out, re.MULTILINE)
    seconds = time.time() - float(started[-1]) if started else 0
    return Ended(code, seconds, [x for x in err.splitlines() if x.startswith("autoglobal: ")], err)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory) -> dict[str, list[Ended]]:
    """All programs at once, so that they wait at the same time; by their names."""
    folder, shown = tmp_path_factory.mktemp("jobs"), io.StringIO()
    by_hand = [name for name in PROGRAMS if name != "elsewhere"]
    with ThreadPoolExecutor(len(by_hand)) as threads:
        environment = dict(os.environ)  # as it is here, and not once the patch below is in force
        done = threads.map(lambda name: run(folder, name, environment), by_hand)
        program = folder / "elsewhere.py"
        program.write_text(START + PROGRAMS["elsewhere"])
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(shown):
            patch.setenv("ONEFLOW_TIMEOUT_SECONDS", "3")
            code = launch(2, [str(program)], limit=60, quiet=True)
        found = {"elsewhere": [ended(code, shown.getvalue(), shown.getvalue())]}
        return {**found, **dict(zip(by_hand, done))}


def assert_gave_up(rank: Ended, own: int, path: str, limit: float = LIMIT) -> None:
    assert len(rank.lines) == 1, rank.stderr
    line = rank.lines[0]
    assert re.search(rf"\brank {own}\b", line)
    assert re.search(path, line), line
    assert re.search(r"since \D*\d", line), line
    assert re.search(rf"\brank {1 - own}\b", line), "for whom it waits"
    assert limit - 0.2 < rank.seconds < LATE


@pytest.mark.ranks(1)
def test_a_peer_that_is_stopped_for_longer_than_the_limit(jobs):
    first, second = jobs["stopped"]
    assert first.code == GIVEN_UP, first.stderr
    assert_gave_up(first, 0, r"\bModel\.third\b")
    assert second.code not in (0, -signal.SIGKILL), second.stderr
    assert second.seconds < LATE


@pytest.mark.ranks(1)
def test_a_peer_that_is_stopped_before_it_has_a_value(jobs):
    first, _ = jobs["stopped on the way"]
    assert first.code == GIVEN_UP, first.stderr
    assert_gave_up(first, 0, r"\bModel\.third\b")


@pytest.mark.ranks(1)
def test_ranks_that_are_stopped_together_have_not_waited(jobs):
    for rank in jobs["suspended"]:
        assert (rank.code, rank.lines) == (0, []), rank.stderr


@pytest.mark.ranks(1)
def test_who_waits_for_long_says_for_whom_before_the_end(jobs):
    first, second = jobs["slow"]
    assert (first.code, second.code, second.lines) == (0, 0, [])
    (line,) = first.lines
    assert re.search(r"rank 0, .*Model\.second: still waiting for rank 1 \(1\d s of 60 s\)$", line)


@pytest.mark.ranks(1)
def test_a_wait_at_the_end_of_the_program_ends_as_well(jobs):
    first, _ = jobs["at exit"]
    assert first.code == GIVEN_UP, first.stderr
    assert_gave_up(first, 0, r"\bModel\.new\b")


@pytest.mark.ranks(1)
def test_an_interrupt_while_waiting_leaves_no_watch_behind(jobs):
    """It comes as the wait is over, what was agreed on is done, and nobody is waited for then."""
    for rank in jobs["interrupted"]:
        assert (rank.code, rank.lines) == (0, []), rank.stderr


@pytest.mark.ranks(1)
def test_a_peer_that_is_killed_at_a_random_conversion(jobs):
    first, second = jobs["killed"]
    assert second.code == -signal.SIGKILL
    # The connection is lost as well, and OneFlow's own thread aborts where it notices first.
    assert first.code in (GIVEN_UP, -signal.SIGABRT), first.stderr
    assert first.seconds < LATE
    if first.code == GIVEN_UP:
        assert_gave_up(first, 0, r"\bModel\.new\b")


@pytest.mark.ranks(1)
def test_a_peer_that_does_something_else_and_a_shorter_limit_of_oneflow(jobs):
    """The launcher ends the rank that sleeps, since the one that waited has failed."""
    (job,) = jobs["elsewhere"]
    assert job.code not in (0, 124), "the launcher's own limit"
    assert_gave_up(job, 0, r"\bModel\.second\b", limit=1)


# Outside of a conversion


def wakes() -> dict[int, int]:
    """How often each thread of Python's but this one has been woken."""
    found = {}
    for thread in threading.enumerate():
        if thread is threading.current_thread() or type(thread).__module__.startswith("tqdm"):
            continue
        status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
        found[thread.native_id] = int(re.search(r"\nvoluntary_ctxt_switches:\s+(\d+)", status)[1])
    return found


@pytest.mark.ranks(2)
def test_what_watches_costs_nothing_between_two_conversions(P):
    """It may look at the clock twice a second until it ends, and keeps no program from ending."""
    m = Model()
    with global_scope(P, S0, timeout=60):
        m.new = parameter(counted(8, 4))
        before = wakes()
        time.sleep(1)
        after = wakes()
    assert sum(after[thread] - before.get(thread, 0) for thread in after) <= 3
    assert_global(m.new, counted(8, 4), P, S0)
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    assert all(thread.daemon for thread in others)
