"""Ranks that convert different things are told, each of them, before anything has changed."""

from __future__ import annotations

import numpy as np
import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import ConversionError, Placed, auto_global, global_scope, local_to_global
from tests.helpers.divergence import W, assert_the_job_goes_on, assert_told, odd_one_out, tree
from tests.helpers.support import (
    S0,
    S1,
    B,
    Model,
    Snapshot,
    assert_global,
    counted,
    error_of,
    linear,
    parameter,
    tensor,
)
from tests.helpers.trees import globally

pytestmark = pytest.mark.ranks(2, 4)
# Each way to convert, and which rank is the odd one out.
in_each_way = pytest.mark.parametrize(
    ("way", "odd"), [("assign", 0), ("assign", -1), ("exit", 0), ("call", -1), ("class", -1)]
)


def attempt(way: str, value: nn.Module, *arguments, **options) -> Exception | None:
    """The error of converting ``value``, which it has to leave alone, as entry ``new``."""
    m = Model()
    if way == "class":
        m = auto_global(*arguments, **options)(type("Model", (nn.Module,), {}))()
    if way == "call":
        m.new = value
    before = [Snapshot(m), Snapshot(value)]

    def act():
        if way == "class":
            m.new = value
        elif way == "call":
            local_to_global(m, *arguments, **options)
        else:
            with global_scope(*arguments, when=way, **options):
                m.new = value
                if way == "exit":
                    before[0] = Snapshot(m)

    error = error_of(act)
    for one in before:
        one.assert_unchanged()
    return error


def last_again(m, name: str) -> None:
    """The entry, moved behind those that came after it."""
    value = getattr(m, name)
    delattr(m, name)
    setattr(m, name, value)


def renamed(m) -> None:
    m.sub.three = m.sub.two
    del m.sub.two


def parameter_for_buffer(m) -> None:
    del m.seen
    m.seen = parameter(counted(8, start=300))


def buffer_for_parameter(m) -> None:
    del m.sub.two
    m.sub.register_buffer("two", tensor(W + 200))


# What the odd rank's tree has otherwise, and what every rank's message says.
TREES = {
    "shape": (
        lambda m: setattr(m.lin, "weight", parameter(counted(8, 5))),
        ("new.lin.weight", "(8, 4)", "(8, 5)"),
    ),
    "dimensions": (
        lambda m: setattr(m.sub, "one", parameter(counted(8, 4, 1))),
        ("new.sub.one", "(8, 4)", "(8, 4, 1)"),
    ),
    "dtype": (
        lambda m: setattr(m.sub, "two", parameter(W.astype(np.float64))),
        ("new.sub.two", "float32", "float64"),
    ),
    "dtype of a buffer": (
        lambda m: setattr(m, "seen", tensor(counted(8, dtype=np.int64))),
        ("new.seen", "float32", "int64"),
    ),
    "name": (renamed, ("new.sub.two", "new.sub.three")),
    "one more": (lambda m: setattr(m.sub, "extra", parameter(W)), ("new.sub.extra",)),
    "one more, last": (lambda m: setattr(m, "zz", linear(W)), ("new.zz.weight",)),
    "persistent": (
        lambda m: m.register_buffer("seen", m.seen, persistent=False),
        ("new.seen", "not persistent"),
    ),
    "one less": (lambda m: setattr(m.lin, "bias", None), ("new.lin.bias",)),
    "one buffer less": (lambda m: delattr(m, "seen"), ("new.seen",)),
    "Parameter, not buffer": (parameter_for_buffer, ("new.seen", "parameter", "buffer")),
    "buffer, not Parameter": (buffer_for_parameter, ("new.sub.two", "parameter", "buffer")),
    "order": (lambda m: last_again(m.sub, "one"), ("new.sub.one", "new.sub.two")),
    "tied": (lambda m: setattr(m.sub, "two", m.sub.one), ("new.sub.two",)),
    "frozen": (lambda m: m.sub.one.requires_grad_(False), ("new.sub.one", "requires_grad")),
    "with a gradient": (
        lambda m: setattr(m.sub.one, "grad", tensor(W)),
        ("new.sub.one", "grad"),
    ),
}


@in_each_way
@pytest.mark.parametrize("what", TREES)
def test_a_tree_that_is_another_on_one_rank(P, rank, world, odd, way, what):
    change, words = TREES[what]
    value = tree()
    if rank == odd % world:
        change(value)
    assert_told(attempt(way, value, P, S0), rank, odd % world, *words)
    assert_the_job_goes_on(P, rank)


# What the odd rank asks for, instead of S0 on all ranks, and what every rank's message says.
REQUESTS = {
    "sbp": (lambda P: (P, B), {}, ("split", "broadcast")),
    "rules": (lambda P: (P, {"*.two": B, "*": S0}), {}, ("*.two", "broadcast")),
    "rules that leave local": (lambda P: (P, {"*.two": None, "*": S0}), {}, ("*.two", "None")),
    "placement": (lambda P: (flow.placement("cpu", [0]), S0), {}, ("[0]", "[0, 1")),
    "placement of two dimensions": (
        lambda P: (flow.placement("cpu", [list(range(len(P.ranks)))]), (B, S0)),
        {},
        ("=[[0, 1", "=[0, 1"),
    ),
    "source": (lambda P: (P, S0), {"source": "shard"}, ("source", "full", "shard")),
    "existing": (lambda P: (P, S0), {"existing": "convert"}, ("existing", "keep", "convert")),
    "buffers": (lambda P: (P, S0), {"buffers": "sbp"}, ("buffers", "broadcast", "sbp")),
    "buffers left local": (lambda P: (P, S0), {"buffers": False}, ("buffers", "False")),
}


@in_each_way
@pytest.mark.parametrize("what", REQUESTS)
def test_another_request_on_one_rank(P, rank, world, odd, way, what):
    arguments, options, words = REQUESTS[what]
    if rank == odd % world:
        error = attempt(way, tree(), *arguments(P), **options)
    else:
        error = attempt(way, tree(), P, S0)
    assert_told(error, rank, odd % world, *words)
    assert_the_job_goes_on(P, rank)


@in_each_way
def test_ranks_that_convert_on_placements_of_their_own_are_told_the_way(P, rank, world, odd, way):
    """https://github.com/Oneflow-Inc/oneflow/issues/9741 and 9756: an expert on each rank."""
    own = flow.placement("cpu", [rank])
    error = attempt(way, tree(), own, B)
    assert_told(error, rank, (rank + 1) % world if rank == 0 else 0, f"ranks=[{rank}]")
    assert "one scope or call for each placement" in str(error)
    error = attempt(way, tree(), P, {"*": Placed(own, B)})
    assert "one scope or call for each placement" in str(error)
    error = attempt(way, tree(), P, {"placement": S0, "*": B if rank else S0})
    assert "Look there for what depends on the rank" in str(error)
    assert_the_job_goes_on(P, rank)
    for one in range(world):
        m, there = Model(), flow.placement("cpu", [one])
        with global_scope(there, B):
            m.expert = parameter(W + one)
        assert m.expert.placement == there
        if rank == one:
            np.testing.assert_array_equal(m.expert.to_local().numpy(), W + one)


@odd_one_out
@pytest.mark.parametrize("existing", ["keep", "convert"])
def test_a_tensor_that_is_global_already_on_one_rank(P, rank, world, odd, existing):
    value, there = tree(), globally(W + 100, P, B)
    if rank == odd % world:
        value.sub.one = there
    error = attempt("call", value, P, S0, existing=existing)
    assert_told(error, rank, odd % world, "new.sub.one")
    assert_the_job_goes_on(P, rank)


@odd_one_out
def test_a_rank_that_the_placement_leaves_out(rank, world, odd, P):
    """It would hold nothing, and has to say the same all the same."""
    placement = flow.placement("cpu", [0 if odd == -1 else world - 1])
    value = tree()
    if rank == odd % world:
        value.lin.weight = parameter(counted(8, 5))
    error = attempt("call", value, placement, S0)
    assert_told(error, rank, odd % world, "new.lin.weight", "(8, 4)", "(8, 5)")
    assert_the_job_goes_on(P, rank)


@in_each_way
def test_what_one_rank_alone_refuses(P, rank, world, odd, way):
    """A bias has no axis 1: the rank that has one says so, the others say who did."""
    value = nn.Sequential(linear(W), linear(W, counted(8) if rank == odd % world else None))
    error = attempt(way, value, P, S1)
    if rank == odd % world:
        assert type(error) is ConversionError
        assert "new.1.bias" in str(error)
    else:
        assert_told(error, rank, odd % world, "new.1.bias")
    assert_the_job_goes_on(P, rank)


# One tensor

SINGLE = {
    "shape": ("new", lambda: parameter(counted(8, 5)), ("(8, 4)", "(8, 5)")),
    "dtype": ("new", lambda: parameter(W, flow.float64), ("float32", "float64")),
    "name": ("other", lambda: parameter(W), ("Model.other",)),
    "kind": ("new", lambda: tensor(W), ("parameter", "buffer")),
    "tree": ("new", lambda: linear(W), ("Model.new.weight",)),
    "frozen": ("new", lambda: parameter(W, requires_grad=False), ("requires_grad",)),
}


@odd_one_out
@pytest.mark.parametrize("what", SINGLE)
def test_one_parameter_that_is_another_on_one_rank(P, rank, world, odd, what):
    name, make, words = SINGLE[what]
    name, value = (name, make()) if rank == odd % world else ("new", parameter(W))
    m = Model()
    how = "register_buffer" if type(value) is flow.Tensor else "__setattr__"
    before = Snapshot(m)
    with global_scope(P, S0):
        error = error_of(lambda: getattr(m, how)(name, value))
        before.assert_unchanged()
        m.next = parameter(W + 1000 * rank)
    assert_told(error, rank, odd % world, "Model.new", *words)
    assert_global(m.next, W, P, S0)
    assert_the_job_goes_on(P, rank)


@odd_one_out
@pytest.mark.parametrize("when", ["assign", "exit"])
def test_a_buffer_that_is_in_the_state_dict_of_one_rank_alone(P, rank, world, odd, when):
    m = Model()

    def act():
        with global_scope(P, B, when=when):
            m.register_buffer("seen", tensor(W), persistent=rank == odd % world)

    assert_told(error_of(act), rank, odd % world, "Model.seen", "not persistent")
    assert_the_job_goes_on(P, rank)


# Shards: a share may be longer than another, but not anything.

SHARES = {
    "columns": lambda: counted(4, 5),
    "dimensions": lambda: counted(4, 4, 1),
    "no balanced split": lambda: counted(9, 4),
    "dtype": lambda: counted(4, 4, dtype=np.float64),
}


@odd_one_out
@pytest.mark.parametrize("sbp", [S0, B], ids=str)
@pytest.mark.parametrize("what", SHARES)
def test_shares_that_make_no_whole(P, rank, world, odd, what, sbp):
    own = SHARES[what]() if rank == odd % world else counted(4, 4)
    value = Model()
    value.one, value.two = parameter(counted(4, 4)), parameter(own)
    error = attempt("call", value, P, sbp, source="shard")
    assert isinstance(error, ConversionError)
    assert "new.two" in str(error)
    assert_the_job_goes_on(P, rank)
