"""The ways in which named tensors become global, for the tests that hold for each of them."""

from __future__ import annotations

import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import global_scope, local_to_global
from tests.helpers.support import S0, S1, B, Model

# By the end of a tensor's name; the same whether the rule sees a name alone or a whole path.
PS = flow.sbp.partial_sum
RULES = {"*_s0": S0, "*_s1": S1, "*": B}
BY_SUFFIX = {"*_s0": S0, "*": B}
EACH_WAY = pytest.mark.parametrize("way", ["one by one", "as a tree", "at the exit", "by a call"])
TWO_WAYS = pytest.mark.parametrize("way", ["one by one", "by a call"])


def sbp_of(name: str) -> flow.sbp.sbp:
    """What ``RULES`` say of a tensor that has dimensions."""
    return {"_s0": S0, "_s1": S1}.get(name[-3:], B)


def put(m: nn.Module, values: dict[str, flow.Tensor]) -> None:
    for name, value in values.items():
        if isinstance(value, nn.Parameter):
            setattr(m, name, value)
        else:
            m.register_buffer(name, value)


def convert(way: str, values: dict[str, flow.Tensor], placement, sbp, **options) -> nn.Module:
    """The module that holds these Parameters and, of plain tensors, buffers; all of them global."""
    m, outer = Model(), Model()
    if way != "one by one":
        put(m, values)
    if way == "by a call":
        return local_to_global(m, placement, sbp, **options)
    with global_scope(placement, sbp, when="exit" if way == "at the exit" else "assign", **options):
        if way == "one by one":
            put(m, values)
        else:
            outer.sub = m
    return m
