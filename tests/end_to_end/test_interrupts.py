"""Ctrl-C at any moment leaves no hook, no scope in force, and nothing half global.

A part of the moments, spread over each case. All of them: ``python -m tests.helpers.interrupts``
and the same with ``--events opcode``.
"""

from __future__ import annotations

import sys

import pytest

from tests.helpers.interrupt_cases import CASES
from tests.helpers.interrupts import count, interrupt, summary

# How many interrupts of each kind there are in a case.
AT_LINES, AT_INSTRUCTIONS = 500, 150

pytestmark = [
    pytest.mark.ranks(1),
    pytest.mark.in_place,
    # It may separate the end of a body from the call of __exit__, which no library can mend.
    pytest.mark.skipif(sys.version_info < (3, 10), reason="CPython 3.9 is interrupted anywhere"),
]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("events", "runs"), [("line", AT_LINES), ("opcode", AT_INSTRUCTIONS)])
def test_an_interrupt_leaves_everything_whole(name, events, runs):
    total = count(name, events)
    assert total > 100, "nothing was traced"
    # Another start for each case: they have their first and last lines in common.
    start = 1 + list(CASES).index(name)
    places = range(start, total + 1, max(1, total // runs))
    told = interrupt(name, events, places)
    assert not told, summary(told, len(places))
