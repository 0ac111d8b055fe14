"""OneFlow's ``global_mode`` around a scope or a call: the results are those of outside.

Oneflow-Inc/oneflow#10056. The mode makes what OneFlow creates global, a Linear's weight and what
this library needs for itself alike. It lasts as long as its object lives.
"""

from __future__ import annotations

import contextlib

import numpy as np
import oneflow as flow
import pytest
from oneflow import nn
from oneflow.utils.global_view import current_global_mode, global_mode

from autoglobal import (
    ConversionError,
    auto_global,
    describe,
    global_scope,
    local_scope,
    local_to_global,
    optimizer_to_global,
    preview,
)
from autoglobal.commands.launcher import launch
from tests.helpers.divergence import assert_the_job_goes_on, assert_told, odd_one_out
from tests.helpers.support import (
    S0,
    B,
    Model,
    Snapshot,
    assert_global,
    assert_local,
    counted,
    error_of,
    global_names,
    linear,
    parameter,
    tensor,
)
from tests.helpers.trees import assert_all_close, fill, globally, train_step, waves, weights

W = counted(8, 4)
IDS = counted(6, dtype=np.int64)
OPTIONS = {"timeout": 5}  # seconds
# How far the ranks' copies differ.
COPIES = pytest.mark.parametrize("step", [0, 1000], ids=["equal", "differing"])
WHEN = pytest.mark.parametrize("when", ["assign", "exit"])
# The placement and the sbp of the mode, which are none of a scope's business.
MODES = {
    "as the scope": lambda P: (P, S0),
    "broadcast": lambda P: (P, B),
    "on one rank": lambda P: (flow.placement("cpu", [len(P.ranks) - 1]), B),
    "of two dimensions": lambda P: (flow.placement("cpu", [list(range(len(P.ranks)))]), (B, S0)),
}
EACH_MODE = pytest.mark.parametrize("mode", MODES)


def local_tree(start: float = 0) -> Model:
    """One of each kind; to be made outside of the mode, because all of it is local."""
    m = Model()
    m.lin = linear(W + start, counted(8, start=50 + start))
    m.small = parameter(counted(4, 4), flow.float16)
    m.frozen = parameter(W + 100 + start, requires_grad=False)
    m.again = m.lin.weight
    m.lin.weight.grad = tensor(W + 300 + start)
    m.register_buffer("ids", tensor(IDS + int(start)))
    return m


def assert_converted(m: Model, P) -> None:
    """The tree is global with the first rank's values, its gradient and its tie too."""
    assert_global(m.lin.weight, W, P, S0)
    assert_global(m.lin.weight.grad, W + 300, P, S0)
    assert_global(m.lin.bias, counted(8, start=50), P, S0)
    assert_global(m.small, counted(4, 4), P, S0)
    assert_global(m.frozen, W + 100, P, S0)
    assert_global(m.ids, IDS, P, B)
    assert m.again is m.lin.weight
    assert not m.frozen.requires_grad


def assert_on(placement, sbp) -> None:
    """The mode is what the program made it, and OneFlow creates global tensors."""
    now = current_global_mode()
    assert now.is_enabled
    assert now.placement == placement
    assert tuple(now.sbp) == (sbp if isinstance(sbp, tuple) else (sbp,))
    if np.size(placement.ranks) == flow.env.get_world_size():  # or OneFlow ends the others' process
        made = flow.zeros(4)
        assert made.is_global
        assert made.placement == placement


def assert_off() -> None:
    assert not current_global_mode().is_enabled
    assert flow.zeros(4).is_local


# A process that has converted nothing before. It runs ranks of its own.

FRESH = """
import oneflow as flow
from oneflow import nn
from oneflow.utils.global_view import current_global_mode, global_mode
from autoglobal import global_scope, local_to_global
from tests.helpers.support import *
rank, P, W = flow.env.get_rank(), flow.placement("cpu", range(2)), counted(8, 4)
m, other, layer = Model(), Model(), linear(W + STEP * rank)
with global_mode(True, placement=P, sbp=B):
    with global_scope(P, S0, when=WHEN, timeout=5):
        nn.Linear(4, 4)
        m.layer = layer
    assert current_global_mode().is_enabled
assert_global(m.layer.weight, W, P, S0)
with global_scope(P, S0, timeout=5):
    other.new = parameter(W + STEP * rank)
assert_global(other.new, W, P, S0)
local_to_global(linear(W + 1000 * rank), P, S0, timeout=5)
print("all is well", flush=True)
"""


@pytest.mark.ranks(1)
@COPIES
@WHEN
def test_the_first_conversion_of_a_process(capfd, step, when):
    """It has made nothing before the mode that it could use in it."""
    program = f"STEP, WHEN = {step}, {when!r}\n{FRESH}"
    code = launch(2, ["-c", program], limit=60, show_all=True)
    shown = capfd.readouterr()
    assert code == 0, shown.out + shown.err
    assert shown.out.count("all is well") == 2


# Scopes


@EACH_MODE
@COPIES
@WHEN
def test_a_scope_in_the_mode(P, rank, when, step, mode):
    m, value = Model(), local_tree(step * rank)
    placement, sbp = MODES[mode](P)
    with global_mode(True, placement=placement, sbp=sbp):
        with global_scope(P, S0, when=when, **OPTIONS) as scope:
            m.sub = value
            assert_on(placement, sbp)
        assert_on(placement, sbp)
    assert_off()
    assert_converted(m.sub, P)
    assert len(scope.converted) == 5
    assert_the_job_goes_on(P, rank)


@COPIES
def test_each_of_the_four_methods_in_the_mode(P, rank, step):
    m = Model()
    p, q, seen, layer = parameter(W), parameter(W), tensor(W + step * rank), linear(W + step * rank)
    with global_mode(True, placement=P, sbp=B), global_scope(P, S0, **OPTIONS):
        m.p = p
        m.register_parameter("q", q)
        m.register_buffer("seen", seen)
        m.add_module("layer", layer)
    assert_global(m.p, W, P, S0)
    assert_global(m.q, W, P, S0)
    assert_global(m.seen, W, P, B)
    assert_global(m.layer.weight, W, P, S0)
    assert_the_job_goes_on(P, rank)


@COPIES
@WHEN
def test_the_mode_in_a_scope(P, rank, when, step):
    m, p, q, r = Model(), *(parameter(W + start + step * rank) for start in (0, 1, 2))
    with global_scope(P, S0, when=when, **OPTIONS):
        m.p = p
        with global_mode(True, placement=P, sbp=B):
            m.q = q
            assert_on(P, B)
        m.r = r
    for start, found in enumerate((m.p, m.q, m.r)):
        assert_global(found, W + start, P, S0)
    assert_the_job_goes_on(P, rank)


@COPIES
@WHEN
def test_the_mode_begins_in_a_scope_and_outlives_it(P, rank, when, step):
    m, p, q = Model(), parameter(W + step * rank), parameter(W + 1 + step * rank)
    with contextlib.ExitStack() as stack:
        with global_scope(P, S0, when=when, **OPTIONS):
            m.p = p
            stack.enter_context(global_mode(True, placement=P, sbp=B))
            m.q = q
        assert_on(P, B)
        del stack
    assert_off()
    assert_global(m.p, W, P, S0)
    assert_global(m.q, W + 1, P, S0)
    assert_the_job_goes_on(P, rank)


@COPIES
@WHEN
def test_a_mode_that_is_off_in_one_that_is_on(P, rank, when, step):
    """In it a Linear is local until it is assigned, as without any mode."""
    m = Model()
    with global_mode(True, placement=P, sbp=B):
        with global_mode(False), global_scope(P, S0, when=when, **OPTIONS):
            m.new = parameter(W + step * rank)
            m.layer = nn.Linear(4, 8)
            assert not current_global_mode().is_enabled
        assert_on(P, B)
    assert_global(m.new, W, P, S0)
    assert m.layer.weight.sbp == m.layer.bias.sbp == (S0,)
    assert_the_job_goes_on(P, rank)


@WHEN
@pytest.mark.parametrize("existing", ["keep", "convert"])
def test_what_the_mode_has_made_is_global_already(P, rank, when, existing):
    m, local = Model(), parameter(W + 1000 * rank)
    with global_mode(True, placement=P, sbp=B):
        with global_scope(P, S0, when=when, existing=existing, **OPTIONS) as scope:
            m.layer = nn.Linear(4, 8)
            m.new = local
        assert_on(P, B)
    kept = existing == "keep"
    for found in (m.layer.weight, m.layer.bias):
        assert found.placement == P
        assert found.sbp == (B if kept else S0,)
    assert {one.path.rsplit(".", 1)[-1] for one in scope.kept} >= ({"weight"} if kept else set())
    assert_global(m.new, W, P, S0)
    assert_the_job_goes_on(P, rank)


@WHEN
def test_a_linear_alone_in_a_scope(P, rank, when):
    """Today's error was an AssertionError without a word."""
    with global_mode(True, placement=P, sbp=B):
        with global_scope(P, S0, when=when, **OPTIONS):
            layer = nn.Linear(4, 4)
        assert_on(P, B)
    assert global_names(layer) == ["weight", "bias"]
    assert_the_job_goes_on(P, rank)


def test_shares_in_the_mode(P, rank, world):
    m, own = Model(), parameter(counted(4, 4, start=16 * rank))
    with global_mode(True, placement=P, sbp=B), global_scope(P, S0, source="shard", **OPTIONS):
        m.new = own
    assert_global(m.new, counted(4 * world, 4), P, S0)
    assert_the_job_goes_on(P, rank)


@WHEN
def test_ranks_that_are_trusted_in_the_mode(P, rank, when):
    m, value = Model(), local_tree()
    with (
        global_mode(True, placement=P, sbp=B),
        global_scope(P, S0, when=when, check=False, **OPTIONS),
    ):
        m.sub = value
    assert_converted(m.sub, P)
    assert_the_job_goes_on(P, rank)


def test_a_local_scope_in_the_mode(P, rank):
    m, p, q = Model(), parameter(W + rank), parameter(W + 1000 * rank)
    with global_mode(True, placement=P, sbp=B), global_scope(P, S0, **OPTIONS):
        with local_scope():
            m.p = p
        m.q = q
    assert_local(m.p, W + rank)
    assert_global(m.q, W, P, S0)
    assert_the_job_goes_on(P, rank)


# Classes and calls


@COPIES
@pytest.mark.parametrize("kind", ["stated", "follows"])
def test_a_decorated_class_in_the_mode(P, rank, step, kind):
    decorate = auto_global(P, S0, **OPTIONS) if kind == "stated" else auto_global
    m = decorate(type("Layer", (Model,), {}))()
    m.old = globally(W + 7, P, S0)
    new, value = parameter(W + step * rank), linear(W + step * rank)
    with global_mode(True, placement=P, sbp=B):
        m.new = new
        m.sub = value
        assert_on(P, B)
    sbp = S0 if kind == "stated" else B
    assert_global(m.new, W, P, sbp)
    assert_global(m.sub.weight, W, P, sbp)
    assert_the_job_goes_on(P, rank)


@EACH_MODE
@COPIES
def test_local_to_global_in_the_mode(P, rank, step, mode):
    m = local_tree(step * rank)
    placement, sbp = MODES[mode](P)
    with global_mode(True, placement=placement, sbp=sbp):
        local_to_global(m, P, S0, **OPTIONS)
        assert_on(placement, sbp)
    assert_off()
    assert_converted(m, P)
    assert_the_job_goes_on(P, rank)


def test_local_to_global_on_one_rank_of_all_in_the_mode(P, rank, world):
    placement = flow.placement("cpu", [world - 1])
    m = linear(W + 1000 * rank)
    with global_mode(True, placement=P, sbp=B):
        local_to_global(m, placement, B, **OPTIONS)
    assert_global(m.weight, W + 1000 * (world - 1), placement, B)
    assert_the_job_goes_on(P, rank)


def trained(P, rank: int, make, together: bool, mode) -> dict:
    """The weights after a step, the conversion with its optimizer, and another step."""
    m = fill(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)))
    for one in m.parameters():
        one.data.add_(0.25 * rank)
    optimizer = make(m.parameters())
    train_step(m, optimizer, waves(6, 4), waves(6, 4, seed=40), tensor)
    with mode():
        local_to_global(m, P, S0, optimizer=optimizer if together else None, **OPTIONS)
        if not together:
            optimizer_to_global(optimizer)
    assert_off()
    place = lambda array: tensor(array).to_global(P, B)  # noqa: E731
    train_step(m, optimizer, waves(6, 4, seed=1), waves(6, 4, seed=41), place)
    assert all(one.sbp == (S0,) for one in m.parameters())
    return weights(m)


@pytest.mark.parametrize("together", [True, False], ids=["together", "apart"])
@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_an_optimizer_follows_in_the_mode(P, rank, together, name):
    def make(parameters):
        if name == "Adam":
            return flow.optim.Adam(parameters, lr=0.01)
        return flow.optim.SGD(parameters, lr=0.05, momentum=0.9)

    expected = trained(P, rank, make, together, contextlib.nullcontext)
    found = trained(P, rank, make, together, lambda: global_mode(True, placement=P, sbp=B))
    assert_all_close(found, expected)
    assert_the_job_goes_on(P, rank)


# What is only looked at


def test_describe_and_preview_in_the_mode(P, rank):
    """The same texts as outside; and nothing is changed."""
    m, rules = local_tree(1000 * rank), {"*.bias": B, "*": S0}
    there = local_to_global(local_tree(1000 * rank), P, S0)
    outside = [str(describe(m)), str(preview(m, P, rules)), str(describe(there))]
    before = Snapshot(m)
    with global_mode(True, placement=P, sbp=B):
        inside = [str(describe(m)), str(preview(m, P, rules)), str(describe(there))]
        before.assert_unchanged()
        made = describe(nn.Linear(4, 8))
        assert_on(P, B)
    assert inside == outside
    assert "broadcast" in str(made)
    before.assert_unchanged()
    assert_the_job_goes_on(P, rank)


def test_a_plan_in_the_mode_is_what_then_happens_in_it(P, rank):
    m = local_tree(1000 * rank)
    with global_mode(True, placement=P, sbp=B):
        found = preview(m, P, S0)
        local_to_global(m, P, S0, **OPTIONS)
        now = describe(m)
    assert str(found.after) == str(now)
    assert_converted(m, P)
    assert_the_job_goes_on(P, rank)


# Errors


def test_an_error_in_the_mode_is_that_of_outside(P, rank):
    """The ranks need an axis that there is not."""
    m, texts = Model(), []
    m.new = parameter(counted(8))
    before = Snapshot(m)
    for mode in (contextlib.nullcontext, lambda: global_mode(True, placement=P, sbp=B)):
        with mode():
            error = error_of(lambda: local_to_global(m, P, flow.sbp.split(1), **OPTIONS))
        assert type(error) is ConversionError
        texts.append(str(error))
    assert texts[0] == texts[1]
    before.assert_unchanged()
    assert_off()
    assert_the_job_goes_on(P, rank)


@pytest.mark.ranks(2, 4)
@odd_one_out
@WHEN
def test_ranks_that_differ_in_the_mode_are_told(P, rank, world, odd, when):
    m, value = Model(), linear(counted(8, 5) if rank == odd % world else W)

    def act():
        with (
            global_mode(True, placement=P, sbp=B),
            global_scope(P, S0, when=when, **OPTIONS),
        ):
            m.layer = value

    assert_told(error_of(act), rank, odd % world, "layer.weight", "(8, 4)", "(8, 5)")
    assert value.weight.is_local
    assert_off()
    assert_the_job_goes_on(P, rank)
