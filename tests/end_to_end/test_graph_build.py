"""Inside nn.Graph.build nothing can be converted: an error that says so, before anything."""

from __future__ import annotations

import numpy as np
import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import AutoglobalError, ConversionError, global_scope
from tests.helpers.support import (
    S0,
    B,
    Model,
    Snapshot,
    assert_global,
    counted,
    linear,
    local_names,
    parameter,
    tensor,
)

pytestmark = pytest.mark.usefixtures("graphs_end_together")
A = counted(8, 4)


def built(P, action) -> np.ndarray:
    """Run ``action`` inside a Graph's build and return what the graph computes."""

    class Own(nn.Graph):
        def build(self, x):
            action()
            return x * 2

    return Own()(tensor(A).to_global(P, B)).numpy()


def register_parameter(m, value):
    m.register_parameter("new", value)


def register_buffer(m, value):
    m.register_buffer("new", value)


def add_module(m, value):
    m.add_module("new", value)


def set_attribute(m, value):
    m.new = value


WAYS = {
    "parameter": (lambda: parameter(A), set_attribute),
    "module": (lambda: linear(A), set_attribute),
    "registered parameter": (lambda: parameter(A), register_parameter),
    "registered buffer": (lambda: tensor(A), register_buffer),
    "added module": (lambda: linear(A), add_module),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("source", ["full", "shard"])
def test_an_assignment_is_refused(P, way, source):
    make, assign = WAYS[way]
    m, value = Model(), make()
    before = Snapshot(m)
    caught = []

    def action():
        with pytest.raises(ConversionError) as info:
            assign(m, value)
        caught.append(info.value)

    with global_scope(P, S0, source=source) as scope:
        built(P, action)
    (error,) = caught
    assert isinstance(error, AutoglobalError)
    assert "Model.new" in str(error)
    assert "Graph" in str(error)
    before.assert_unchanged()
    assert scope.converted == []
    if isinstance(value, nn.Module):
        assert local_names(value) == ["weight"]
    else:
        assert value.is_local


def test_a_scope_opened_inside_refuses_too(P):
    m, p = Model(), parameter(A)

    def action():
        with global_scope(P, S0), pytest.raises(ConversionError):
            m.new = p

    built(P, action)
    assert p.is_local
    assert not hasattr(m, "new")


def test_the_graph_computes_what_it_should_after_a_refusal(P):
    m, p = Model(), parameter(A)

    def action():
        with pytest.raises(ConversionError):
            m.new = p

    with global_scope(P, S0):
        found = built(P, action)
    np.testing.assert_array_equal(found, A * 2)


def test_the_same_assignment_works_after_the_graph_is_built(P):
    m, p = Model(), parameter(A)

    def action():
        with pytest.raises(ConversionError):
            m.new = p

    with global_scope(P, S0):
        built(P, action)
        m.new = p
    assert_global(m.new, A, P, S0)


@pytest.mark.ranks(2, 4)
def test_a_refusal_sends_nothing(P, rank):
    """On one rank only, which would otherwise wait for the others until the time limit."""
    m, p = Model(), parameter(A)

    def action():
        if rank == 0:
            with pytest.raises(ConversionError):
                m.new = p

    with global_scope(P, S0):
        built(P, action)
        m.new = p
    assert_global(m.new, A, P, S0)


def test_what_needs_no_conversion_can_be_assigned(P):
    m = Model()
    m.register_buffer("seen", None)
    p = nn.Parameter(flow.zeros(8, 3, placement=P, sbp=B))
    lazy = []

    class Own(nn.Graph):
        def build(self, x):
            m.number, m.ready = 3, p
            y = x * 2
            m.seen = y
            lazy.append(m.seen is y)
            m.seen = None
            return y

    with global_scope(P, S0):
        Own()(tensor(A).to_global(P, B))
    assert m.number == 3
    assert m.ready is p
    assert lazy == [True]


def test_a_module_built_in_a_scope_trains_in_a_graph(P):
    """The weights are broadcast: OneFlow 0.9.0 aborts on split ones in a CPU graph."""
    layer = linear(counted(8, 4) / 10)
    m = Model()
    with global_scope(P, B):
        m.layer = layer

    class Train(nn.Graph):
        def __init__(self):
            super().__init__()
            self.m = m
            self.add_optimizer(flow.optim.SGD(m.parameters(), lr=0.5))

        def build(self, x):
            loss = self.m.layer(x).sum()
            loss.backward()
            return loss

    x = counted(2, 4)
    Train()(tensor(x).to_global(P, B))
    expected = counted(8, 4) / 10 - 0.5 * x.sum(axis=0)
    np.testing.assert_allclose(m.layer.weight.detach().to_local().numpy(), expected, atol=1e-5)
