"""The packages are small, and an assignment walks straight through them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import autoglobal
from autoglobal import global_scope
from tests.helpers.support import S0, Model, assert_global, counted, parameter

PACKAGE = Path(autoglobal.__file__).parent
MOST_FILES, MOST_CALLS, MOST_FILES_OF_A_CALL = 8, 60, 11

pytestmark = pytest.mark.ranks(1)


@pytest.mark.parametrize(
    "package",
    [PACKAGE, *(init.parent for init in PACKAGE.glob("*/__init__.py"))],
    ids=lambda path: path.name,
)
def test_no_package_has_many_files(package):
    files = sorted(path.name for path in package.glob("*.py"))
    assert len(files) <= MOST_FILES, files


def calls_of(action) -> list[tuple[str, str]]:
    """The functions of autoglobal that ``action`` calls, and the file of each."""
    calls = []

    def note(frame, event, _):
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(PACKAGE):
            calls.append((str(file.relative_to(PACKAGE)), frame.f_code.co_name))

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.in_place
def test_one_assignment_makes_few_calls_through_few_files(P, record_property):
    """Of 112 calls through 19 files, 11 deep, some 50 are left."""
    m, array = Model(), counted(4, 4)
    first, second = parameter(array), parameter(array)
    with global_scope(P, S0):
        m.first = first  # caches are filled
        calls = calls_of(lambda: setattr(m, "second", second))
    assert_global(m.second, array, P, S0)
    files = {file for file, _ in calls}
    record_property("calls", len(calls))
    print(f"{len(calls)} calls through {len(files)} files")
    assert len(calls) <= MOST_CALLS, calls
    assert len(files) <= MOST_FILES_OF_A_CALL, sorted(files)
    assert len(calls) > 20, "nothing was counted"
