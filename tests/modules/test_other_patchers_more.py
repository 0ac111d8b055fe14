"""Several wrappers, many scopes, decorated classes, and wrapt without its C extension."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autoglobal import auto_global, global_scope
from autoglobal.tensors import convert
from tests.helpers.support import S0, Model, assert_global, assert_local, counted
from tests.modules import test_other_patchers as others
from tests.modules.test_other_patchers import (
    KINDS,
    PURE,
    assert_converted,
    expected,
    fill,
)

_restored = others._restored  # the fixture, used here too

A = counted(4, 4)


@KINDS
def test_one_before_and_one_inside(P, rank, world, kind):
    count = expected("__setattr__")
    first = kind("__setattr__")
    with global_scope(P, S0):
        second, m = kind("__setattr__"), Model()
        assert first.sees(lambda: fill(m)) == count
        assert second.sees(lambda: fill(m)) == count
    later = Model()
    assert first.sees(lambda: fill(later)) == count
    assert second.sees(lambda: fill(later)) == count
    assert_local(later.new, A)
    assert_converted(P, rank, world)
    second.take_off()
    assert second.sees(lambda: fill(later)) == 0
    assert first.sees(lambda: fill(later)) == count
    assert_converted(P, rank, world)


@KINDS
def test_no_layer_is_left_by_scope_after_scope(P, kind):
    """Theirs is left on; what an assignment costs after many scopes is what it cost after one."""

    def cost() -> int:
        count, m = 0, Model()

        def profile(frame, event, argument):
            nonlocal count
            count += event == "call"

        sys.setprofile(profile)
        try:
            m.number = 3
        finally:
            sys.setprofile(None)
        return count

    with global_scope(P, S0):
        theirs = kind("__setattr__")
    with global_scope(P, S0):
        inside = cost()
    after = cost()
    for _ in range(200):
        with global_scope(P, S0):
            pass
    assert cost() == after
    with global_scope(P, S0):
        assert cost() == inside
    assert theirs.is_on()


@KINDS
@pytest.mark.parametrize("when", ["before", "after"])
def test_on_a_decorated_class(P, rank, world, kind, when):
    layer = type("Layer", (Model,), {"__setattr__": lambda *args: Model.__setattr__(*args)})
    if when == "after":
        auto_global(P, S0, source="shard")(layer)
    theirs = kind("__setattr__", layer)
    if when == "before":
        auto_global(P, S0, source="shard")(layer)
    m = layer()
    count = theirs.sees(lambda: fill(m, rank))
    assert count == 3 if convert.in_place else count > 3  # number, new and sub
    assert_global(m.new, counted(4 * world, 4), P, S0)
    if when == "after":
        theirs.take_off()
        assert theirs.sees(lambda: fill(m, rank)) == 0
        assert_global(m.new, counted(4 * world, 4), P, S0)


@pytest.mark.ranks(1)
@pytest.mark.skipif(bool(os.environ.get(PURE)), reason="this is that run")
def test_the_same_with_wrapts_pure_python_build():
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", others.__file__, __file__],
        cwd=Path(__file__).resolve().parents[2],
        env={**os.environ, PURE: "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
    )
    assert result.returncode == 0, result.stdout
    assert "passed" in result.stdout
