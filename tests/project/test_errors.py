"""Every error says what was expected, what was received, where, and what to write instead.

The lists of them are in ``provoked.py``. A new error that is in none of them fails a test here, by
its file and function.
"""

from __future__ import annotations

from functools import cache

import pytest

from autoglobal import global_scope
from tests.helpers.provoked import CASES, ELSEWHERE_OR_NEVER, WARNINGS
from tests.helpers.raising import SITES, Told, missing, told
from tests.helpers.support import S0, Model, counted, parameter

one_rank = pytest.mark.ranks(1)


@cache
def provoked(where: str, at: int) -> Told | None:
    return told({**CASES, **WARNINGS}[where][at][0])


def listed(of):
    return pytest.mark.parametrize(
        ("where", "at", "words"),
        [(where, at, case[1:]) for where, cases in of.items() for at, case in enumerate(cases)],
    )


def from_place(found: Told | None, where: str) -> Told:
    assert found is not None
    assert found.site is not None, found
    assert found.site.where == where, found
    return found


def listed_text(where: str, at: int, words) -> str:
    """The text of what is provoked, which comes from its place in the list and has its words."""
    text = from_place(provoked(where, at), where).text
    for word in words:
        assert word in text
    return text


@one_rank
@listed(CASES)
def test_an_error_says_what_its_reader_needs(where, at, words):
    assert missing(listed_text(where, at, words)) == []


@one_rank
@listed(WARNINGS)
def test_a_warning_names_the_rule_and_says_what_to_write(where, at, words):
    lacking = set(missing(listed_text(where, at, words)))
    assert lacking <= {"what was expected", "what was received"}


@one_rank
def test_the_list_is_whole():
    """Whoever adds an error adds a way to provoke it, or why there is none."""
    hit = {
        found.site
        for where, cases in {**CASES, **WARNINGS}.items()
        for at in range(len(cases))
        if (found := provoked(where, at)) is not None
    }
    unlisted = [site for site in SITES if site not in hit and site.where not in ELSEWHERE_OR_NEVER]
    assert unlisted == []


@one_rank
def test_the_list_names_nothing_that_is_gone():
    there = {site.where for site in SITES}
    assert [where for where in (*CASES, *WARNINGS, *ELSEWHERE_OR_NEVER) if where not in there] == []


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize(
    ("where", "source", "rows"),
    [("agreement.py agree", "full", 8), ("batch.py fit_together", "shard", 9)],
)
def test_an_error_of_several_ranks_names_them(P, rank, where, source, rows):
    columns = 5 if rank == 1 and source == "full" else 4
    m, p = Model(), parameter(counted(rows if rank == 1 else 8, columns))

    def act():
        with global_scope(P, S0, source=source):
            m.new = p

    error = from_place(told(act), where)
    assert missing(error.text) == [], error.text
    assert error.text.startswith("Model.new: "), error.text
    assert f"This rank (rank {rank}): " in error.text
    assert "rank 1" in error.text.replace(f"This rank (rank {rank})", "") or rank == 1
    assert str(tuple(p.shape)) in error.text
