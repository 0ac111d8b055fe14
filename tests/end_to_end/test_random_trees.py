"""A sample of helpers/random_trees.py: whatever one rank has otherwise, all ranks end alike."""

from __future__ import annotations

import pytest

from tests.helpers import random_trees

pytestmark = pytest.mark.ranks(2, 4)
HOW_MANY = 25


def test_every_rank_ends_with_the_right_tensors_or_with_the_error():
    """Two hundred; for a thousand see ``tests/helpers/random_trees.py``."""
    seen = random_trees.run(HOW_MANY)
    assert sum(seen.values()) == HOW_MANY
    assert any(told for _, told in seen)
    assert any(not told for _, told in seen)
