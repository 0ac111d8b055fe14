"""What every test runs under: the placement of this run, a time limit, and OneFlow as it was."""

from __future__ import annotations

import faulthandler
import gc
import os
import sys

import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import _compat

METHODS = ("__setattr__", "register_parameter", "register_buffer", "add_module")
RAW = {name: vars(nn.Module)[name] for name in METHODS}
_stderr = sys.stderr
TEST_LIMIT = 120  # seconds; a rank that waits for a collective which no other rank joins


@pytest.fixture
def world() -> int:
    """The number of ranks of this run."""
    return flow.env.get_world_size()


@pytest.fixture
def rank() -> int:
    """This process's rank."""
    return flow.env.get_rank()


@pytest.fixture
def P(world):
    """A 1-D CPU placement over all ranks."""
    return flow.placement("cpu", list(range(world)))


@pytest.fixture(autouse=True)
def _oneflow_is_unpatched_afterwards():
    faulthandler.dump_traceback_later(TEST_LIMIT, exit=True, file=_stderr)
    yield
    faulthandler.cancel_dump_traceback_later()
    left = [name for name in METHODS if vars(nn.Module)[name] is not RAW[name]]
    for name in left:  # or each later test would fail for this one's fault
        setattr(nn.Module, name, RAW[name])
    assert not left, f"still patched on nn.Module: {left}"
    assert nn.Linear(2, 2).weight.is_local, "a Linear built outside of any scope is not local"


@pytest.fixture
def graphs_end_together():
    """For a test that makes an nn.Graph.

    OneFlow ends a graph's runtime behind a barrier, so a garbage collector that finds one on
    another rank at another moment makes the ranks wait for each other for ever.
    """
    gc.disable()
    yield
    gc.collect()
    gc.enable()


def pytest_collection_modifyitems(items):
    """``@pytest.mark.ranks(2, 4)``: the test needs one of these numbers of ranks.

    ``@pytest.mark.in_place``: it holds only where OneFlow changes a local Parameter in place.
    """
    world = flow.env.get_world_size()
    for item in items:
        if item.get_closest_marker("in_place") and not _compat.can_replace_data():
            item.add_marker(pytest.mark.skip(reason="a new Parameter takes its place"))
        mark = item.get_closest_marker("ranks")
        if mark and world not in mark.args:
            item.add_marker(pytest.mark.skip(reason=f"needs {mark.args} ranks"))


def pytest_addoption(parser):
    parser.addoption(
        "--replacing",
        action="store_true",
        help="new Parameters take the place of local ones, as on OneFlow 1.0 and later",
    )


def pytest_configure(config):
    if config.getoption("--replacing"):
        _compat.can_replace_data = lambda: False
    # The real one, that of the launcher's log: while a test runs pytest captures the other.
    global _stderr
    _stderr = os.fdopen(os.dup(2), "w")
    config.addinivalue_line(
        "markers", "in_place: not where a new Parameter takes a local one's place"
    )
    config.addinivalue_line("markers", "ranks(*numbers): run only on these numbers of ranks")


def pytest_unconfigure():
    if _stderr is not sys.stderr:
        _stderr.close()


def pytest_runtest_logreport(report):
    """End a failing rank at once where there are others.

    They may wait for a collective that this rank has left out, and the launcher ends them
    only when this process has ended.
    """
    if report.failed and flow.env.get_world_size() > 1:
        print(f"\nFAILED {report.nodeid} ({report.when})\n{report.longrepr}\n", flush=True)
        for title, text in report.sections:
            print(f"--- {title} ---\n{text}", flush=True)
        sys.stderr.flush()
        os._exit(1)
