"""A child of fork, such as a DataLoader's worker, takes part in nothing that the ranks do."""

from __future__ import annotations

import os
import time

import oneflow as flow
import pytest
from oneflow import nn
from oneflow.utils.data import DataLoader, Dataset

from autoglobal import ConversionError, auto_global, global_scope, local_to_global
from tests.helpers.support import (
    S0,
    B,
    Model,
    Snapshot,
    assert_global,
    counted,
    error_of,
    global_names,
    parameter,
)


def in_child(action) -> bool:
    """Whether ``action`` returns True in a child, within a time limit."""
    child = os.fork()
    if child == 0:
        try:
            ok = action() is True
        except BaseException:
            ok = False
        os._exit(0 if ok else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def local_there() -> bool:
    m = Model()
    m.register_buffer("seen", flow.ones(4))
    return m.seen.is_local


@pytest.mark.parametrize("when", ["assign", "exit"])
def test_a_child_that_is_forked_in_a_scope_converts_nothing(P, when):
    m = Model()
    with global_scope(P, B, when=when):
        assert in_child(local_there)
        m.new = parameter(counted(8))
    assert_global(m.new, counted(8), P, B)


def test_a_child_may_leave_the_block_in_which_it_was_forked(P):
    def leave():
        scope.__exit__(None, None, None)
        return local_there()

    scope = global_scope(P, B)
    with scope:
        assert in_child(leave)


def test_an_instance_of_a_decorated_class_stays_local_in_a_child(P):
    @auto_global(P, S0)
    class Layer(nn.Module):
        pass

    def build():
        m = Layer()
        m.new = parameter(counted(8))
        return m.new.is_local

    assert in_child(build)
    m = Layer()
    m.new = parameter(counted(8))
    assert_global(m.new, counted(8), P, S0)


class Numbers(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return int(local_there())


def test_a_worker_of_a_data_loader_that_is_made_in_a_scope(P):
    with global_scope(P, B):
        found = [batch.tolist() for batch in DataLoader(Numbers(), batch_size=2, num_workers=1)]
    assert found == [[1, 1], [1, 1]]


def test_a_decorated_generator_that_is_resumed_in_a_child(P):
    @global_scope(P, B)
    def generate():
        m = Model()
        while True:
            m.new = parameter(counted(8))
            yield m.new.is_global

    generator = generate()
    assert next(generator)
    assert in_child(lambda: next(generator) is False)
    assert next(generator)
    generator.close()


def refused_there(P, how: str) -> bool:
    """Whether a child is told at once that nothing becomes global in it, and keeps what it has."""
    m = Model()
    m.old = parameter(counted(8))
    before = Snapshot(m)

    @global_scope(P, B)
    def build():
        m.new = parameter(counted(8))

    def act():
        if how == "call":
            local_to_global(m, P, B)
        elif how == "function":
            build()
        else:
            with global_scope(P, B, when=how):
                m.new = parameter(counted(8))

    error = error_of(act)
    assert type(error) is ConversionError, error
    assert "in a child of fork" in str(error)
    if how != "exit":
        before.assert_unchanged()
    with global_scope(P, B) as scope:
        m.number = 3
    return global_names(m) == [] and scope.converted == []


@pytest.mark.parametrize("how", ["call", "function", "assign", "exit"])
def test_what_a_child_begins_by_itself_is_an_error_at_once(P, how):
    """It has none of OneFlow's threads, and would wait for ranks that know nothing of it."""
    start = time.monotonic()
    assert in_child(lambda: refused_there(P, how))
    assert time.monotonic() - start < 10


class Built(Dataset):
    def __init__(self, P) -> None:
        self.P = P

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return int(refused_there(self.P, "function"))


def test_a_worker_of_a_data_loader_that_calls_a_decorated_function(P):
    found = [batch.tolist() for batch in DataLoader(Built(P), batch_size=2, num_workers=1)]
    assert found == [[1, 1]]
