"""A sample of helpers/random_programs.py: whatever one rank does otherwise, no rank waits for ever.

All ranks end with a result or all with an error, and what was converted is alike on all of them.
"""

from __future__ import annotations

import pytest

from tests.helpers import random_programs

pytestmark = pytest.mark.ranks(2, 4)
HOW_MANY = 50


def test_every_rank_ends_with_a_result_or_with_an_error(capfd):
    """Fifty; for a thousand see ``tests/helpers/random_programs.py``."""
    # The program that hangs is shown just before the process is ended, which pytest would lose.
    with capfd.disabled():
        seen = random_programs.run(HOW_MANY)
    assert sum(seen.values()) == HOW_MANY
    assert all(seen[way] > 1 for way in ("right", "caught", "told")), seen
