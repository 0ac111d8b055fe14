"""What the tests of ranks that disagree share: who is the odd one out, and what must be told."""

from __future__ import annotations

import re

import pytest

from autoglobal import DivergenceError, global_scope, local_to_global
from tests.helpers.support import S0, B, Model, assert_global, counted, linear, parameter, tensor

W = counted(8, 4)
# Of two ranks either, of four the first or the last: the rank whose values win, and another one.
odd_one_out = pytest.mark.parametrize("odd", [0, -1], ids=["first", "last"])


def tree(start: float = 0) -> Model:
    """A tree of all kinds, in which two Parameters have the same shape."""
    m = Model()
    m.lin = linear(W + start, counted(8, start=50 + start))
    m.sub = Model()
    m.sub.one, m.sub.two = parameter(W + 100 + start), parameter(W + 200 + start)
    m.register_buffer("seen", tensor(counted(8, start=300 + start)))
    return m


def assert_told(error, rank: int, odd: int, *words: str) -> None:
    """``error`` names this rank, the odd one (which is told of another), and what each has."""
    assert type(error) is DivergenceError, repr(error)
    text = str(error)
    named = {int(number) for number in re.findall(r"\brank (\d+)", text)}
    assert rank in named, text
    assert odd in named, text
    assert len(named) >= 2, text
    for word in words:
        assert word in text, text


def assert_the_job_goes_on(P, rank: int) -> None:
    """No rank is left a message behind: the next conversions are right on all of them."""
    m = Model()
    with global_scope(P, S0):
        m.new = parameter(W + 1000 * rank)
    assert_global(m.new, W, P, S0)
    m = local_to_global(tree(start=1000 * rank), P, S0)
    assert_global(m.lin.weight, W, P, S0)
    assert_global(m.sub.one, W + 100, P, S0)
    assert_global(m.sub.two, W + 200, P, S0)
    assert_global(m.seen, counted(8, start=300), P, B)
