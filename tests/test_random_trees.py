"""A sample of tests/random_trees.py: whatever one rank has otherwise, all ranks end alike."""

from __future__ import annotations

import pytest

from tests import random_trees

pytestmark = pytest.mark.ranks(2, 4)
HOW_MANY = 25


def test_every_rank_ends_with_the_right_tensors_or_with_the_error():
    """1,000 of them: ``python -m autoglobal.commands.launcher --ranks 4 -- tests/random_trees.py
    1000``.
    """
    seen = random_trees.run(HOW_MANY)
    assert sum(seen.values()) == HOW_MANY
    assert any(told for _, told in seen)
    assert any(not told for _, told in seen)
