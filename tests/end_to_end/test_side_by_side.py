"""Oneflow-Inc/oneflow#8869, last lines: three ways to convert a mixed module, side by side.

``Module.to_global``, the way round it by ``Module._apply``, and ``local_to_global``.
"""

from __future__ import annotations

import numpy as np
import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import local_to_global
from tests.helpers.support import (
    S0,
    B,
    Model,
    as_array,
    assert_global,
    counted,
    local_names,
    tensor,
)
from tests.helpers.trees import fill, globally, waves

W = counted(8, 4)


def issue_model(P) -> Model:
    """A configured global Parameter, a local one, and a nested LSTM that is local."""
    m = Model()
    m.param = globally(W, P, B)
    m.new = nn.Parameter(tensor(W + 1))
    m.body = Model()
    m.body.lstm = fill(nn.LSTM(3, 4))
    return m


def by_to_global(m, P):
    m.to_global(P, S0)


def by_apply(m, P):
    """Skips what is global, keeps the logical shape; this is what the issue's users write."""
    m._apply(lambda t: t if t.is_global else t.to_global(P, B).to_global(P, S0))


def by_local_to_global(m, P):
    assert local_to_global(m, P, S0) is m


WAYS = {"to_global": by_to_global, "_apply": by_apply, "local_to_global": by_local_to_global}
EVERY = pytest.mark.parametrize("way", WAYS)


@EVERY
def test_the_configured_parameter(P, way):
    m = issue_model(P)
    before = m.param
    WAYS[way](m, P)
    if way == "to_global":
        assert m.param.sbp == (S0,), "overwritten"
    else:
        assert m.param is before
        assert_global(m.param, W, P, B)


@pytest.mark.in_place
@EVERY
def test_the_local_parameter(P, world, way):
    m = issue_model(P)
    before = m.new
    WAYS[way](m, P)
    assert local_names(m) == []
    if way == "to_global":
        assert tuple(m.new.shape) == (8 * world, 4), "one copy a rank, taken for parts"
    else:
        assert_global(m.new, W + 1, P, S0)
    assert (m.new is before) is (way == "local_to_global")
    assert before.is_global is (way == "local_to_global")


@EVERY
def test_the_cache_of_a_nested_lstm(P, way):
    m = issue_model(P)
    WAYS[way](m, P)
    lstm = m.body.lstm
    named = [lstm._parameters[name] for name in lstm._flat_weights_names]
    fresh = all(a is b for a, b in zip(lstm._flat_weights, named))
    assert fresh is (way == "local_to_global")
    assert all(weight.is_local for weight in lstm._flat_weights) is (way != "local_to_global")


@pytest.mark.in_place
@EVERY
def test_an_optimizer_made_before(P, way):
    m = issue_model(P)
    optimizer = flow.optim.SGD(m.parameters(), lr=0.5)
    WAYS[way](m, P)
    before = as_array(m.new.to_local()).copy()
    (m.new * 2).sum().backward()
    optimizer.step()
    moved = 1 if way == "local_to_global" else 0
    np.testing.assert_array_equal(as_array(m.new.to_local()), before - moved)


def test_the_nested_lstm_computes_what_the_local_one_does(P, rank):
    """Locally OneFlow can run it on rank 0 only: the other ranks take part, rank 0 compares."""
    m, x = issue_model(P), waves(5, 2, 3, seed=9)
    expected = m.body.lstm(tensor(x))[0].detach().numpy() if rank == 0 else None
    local_to_global(m, P, S0)
    found = m.body.lstm(tensor(x).to_global(P, B))[0].numpy()
    if rank == 0:
        np.testing.assert_allclose(found, expected, atol=1e-6)
        assert np.abs(expected).max() > 0.1
