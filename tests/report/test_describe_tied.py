"""A tensor that a module holds under several names is one row of its report."""

from __future__ import annotations

import pytest

from autoglobal import describe
from tests.helpers.support import Model, counted, linear, parameter


def test_a_tensor_is_shown_once_with_its_other_names():
    m = Model()
    m.table, m.head = Model(), Model()
    m.table.weight = m.head.weight = m.own = parameter(counted(4, 4))
    report = describe(m)
    (row,) = report
    assert (row.path, row.tied) == ("own", ("table.weight", "head.weight"))
    assert report["head.weight"] is row
    assert "own (also table.weight, head.weight)" in report.text()
    with pytest.raises(KeyError):
        report["head"]


def test_a_module_under_two_names():
    m = Model()
    m.encoder = Model()
    m.encoder.lin = linear(counted(2, 2))
    m.decoder = m.encoder
    (row,) = describe(m)
    assert (row.path, row.tied) == ("encoder.lin.weight", ("decoder.lin.weight",))


def test_a_way_back_up_is_no_other_name():
    m = Model()
    m.sub = Model()
    m.sub.new = parameter(counted(2))
    m.sub._modules["parent"], m._modules["me"] = m, m
    (row,) = describe(m)
    assert (row.path, row.tied) == ("sub.new", ())


def test_modules_shared_over_and_over():
    top = current = Model()
    for _ in range(60):  # with 2 ** 60 ways to the last
        below = Model()
        current.a = current.b = below
        current = below
    current.new = parameter(counted(2))
    (row,) = describe(top)
    assert row.path == ".".join(["a"] * 60 + ["new"])
    assert 1 <= len(row.tied) <= 60


def test_a_buffer_that_is_a_parameter_elsewhere():
    m, p = Model(), parameter(counted(2))
    m.first, m.second = Model(), Model()
    m.first._buffers["seen"] = m.second.new = p
    m.first._non_persistent_buffers_set.add("seen")
    (row,) = describe(m)
    assert (row.path, row.tied) == ("first.seen", ("second.new",))
    assert (row.kind, row.saved) == ("parameter", True)
