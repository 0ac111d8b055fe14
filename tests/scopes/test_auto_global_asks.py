"""``@auto_global(function, sbp)``: a placement that each instance has of its own.

As in a pipeline, where a block's stage depends on its index, or in a library whose ranks are set up
after its classes are written (LiBai).
"""

from __future__ import annotations

import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import (
    ConversionError,
    DivergenceError,
    SpecError,
    SpecTypeError,
    auto_global,
    describe,
    global_scope,
    local_scope,
    local_to_global,
    preview,
)
from tests.helpers.support import (
    S0,
    S1,
    B,
    Model,
    Snapshot,
    assert_global,
    assert_local,
    counted,
    error_of,
    linear,
    parameter,
)
from tests.helpers.trees import globally

A = counted(8, 4)


@pytest.fixture
def stages(world):
    """One placement for each of two stages, the same one on a single rank but for its shape."""
    half = max(1, world // 2)
    ranks = [*range(world)]
    return [
        flow.placement("cpu", ranks[:half]),
        flow.placement("cpu", [ranks[-half:]] if world == 1 else ranks[-half:]),
    ]


def block(stages, sbp=B, **options) -> type:
    @auto_global(lambda module: stages[module.index], sbp, **options)
    class Block(Model):
        def __init__(self, index):
            super().__init__()
            self.index = index
            self.weight = parameter(A)

    return Block


@pytest.mark.ranks(2, 4)
def test_each_instance_goes_to_its_own(stages):
    kind = block(stages, S0)
    for index in (0, 1, 0):
        assert_global(kind(index).weight, A, stages[index], S0)


def test_a_placement_that_is_known_later(P):
    """The ranks are set up after the class was written, as LiBai does it."""
    known = {}

    @auto_global(lambda module: known["placement"], {"weight": S0, "*": B})
    class Layer(nn.Linear):
        pass

    known["placement"] = P
    layer = Layer(4, 8)
    assert (layer.weight.placement, layer.weight.sbp) == (P, (S0,))
    assert (layer.bias.placement, layer.bias.sbp) == (P, (B,))


def test_it_is_not_asked_for_what_is_nothing_to_convert(P):
    """Before the instance knows where it belongs."""
    asked = []

    @auto_global(lambda module: asked.append(module) or P, B)
    class Block(Model):
        def __init__(self):
            super().__init__()
            self.name = "block"
            self.act = nn.ReLU()
            self.old = globally(A, P, S0)
            self.table = [1, 2]
            self.missing = None
            assert not asked
            self.weight = parameter(A)
            assert asked == [self]

    assert Block().old.sbp == (S0,)


def test_existing_ones_too_where_they_are_to_change(P):
    kind = auto_global(lambda module: P, S0, existing="convert")(type("Layer", (Model,), {}))
    m = kind()
    m.w = globally(A, P, B)
    assert_global(m.w, A, P, S0)


@pytest.mark.ranks(2, 4)
def test_it_goes_before_a_scope(stages, P):
    kind, more, plain = block(stages), linear(A), linear(A)
    with global_scope(P, S0):
        m = Model()
        m.block = kind(1)
        m.block.more, m.plain = more, plain
    assert_global(m.block.weight, A, stages[1], B)
    assert_global(m.block.more.weight, A, stages[1], B)
    assert_global(m.plain.weight, A, P, S0)


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("way", ["call", "exit"])
def test_instances_that_were_built_local(stages, P, way):
    kind = block(stages, S1)
    with local_scope():
        m = nn.Sequential(kind(0), kind(1), linear(A))
    assert_local(m[0].weight, A)
    if way == "call":
        local_to_global(m, P, S0)
    else:
        outer = Model()
        with global_scope(P, S0, when="exit"):
            outer.m = m
    assert_global(m[0].weight, A, stages[0], S1)
    assert_global(m[1].weight, A, stages[1], S1)
    assert_global(m[2].weight, A, P, S0)


def test_a_preview_asks_it_and_needs_no_such_ranks():
    far = [flow.placement("cuda", [0, 1]), flow.placement("cuda", [2, 3])]
    kind = block(far, S0)
    with local_scope():
        m = nn.Sequential(kind(0), kind(1))
    found = preview(m, flow.placement("cuda", [[0, 1], [2, 3]]), [B, B])
    assert [row.after.placement for row in found] == far
    assert found["0.weight"].after.component in [(4, 4), (0,)]
    assert not found.errors


def test_a_report_does_not_ask_it(P):
    asked = []
    kind = auto_global(lambda module: asked.append(module) or P, B)(type("Layer", (Model,), {}))
    m = kind()
    m.w = parameter(A)
    asked.clear()
    describe(m)
    assert not asked


def test_a_subclass_can_be_decorated_again(stages):
    parent = type("Parent", (Model,), {})
    auto_global(lambda module: stages[0], B)(parent)
    child = auto_global(lambda module: stages[1], [B] * stages[1].ranks.ndim)(
        type("Child", (parent,), {})
    )
    m = child()
    m.w = parameter(A)
    assert m.w.placement == stages[1]


class TestRefusals:
    """With everything as it was, and on every rank alike."""

    @pytest.mark.parametrize(
        ("answer", "match"),
        [
            (None, "placement=None"),
            ("cuda", "placement='cuda'"),
            (flow.placement("cpu", [77]), "ranks that exist"),
            (flow.placement("cpu", [[0]]), "one entry per placement dimension"),
        ],
        ids=["None", "a string", "no such rank", "two dimensions"],
    )
    def test_what_it_returns(self, answer, match, P):
        m = auto_global(lambda module: answer, B)(type("Layer", (Model,), {}))()
        before = Snapshot(m)
        with pytest.raises(ConversionError, match=match) as caught:
            m.w = parameter(A)
        assert str(caught.value).startswith("Layer: the placement function of @auto_global")
        before.assert_unchanged()
        m = nn.Sequential(m)
        m.add_module("plain", linear(A))
        with pytest.raises(ConversionError, match=match):
            local_to_global(m, P, B)
        assert_local(m.plain.weight, A)

    @pytest.mark.parametrize(
        ("arguments", "options", "kind", "match"),
        [
            ((lambda: None, B), {}, SpecTypeError, "one parameter, the module"),
            ((lambda module, path: None, B), {}, SpecTypeError, "one parameter, the module"),
            ((lambda module: None, "split"), {}, SpecTypeError, "sbp must be"),
            ((lambda module: None, {"w": "S0"}), {}, SpecTypeError, r"in the rule 'w'"),
            ((lambda module: None, B), {"source": "half"}, SpecError, "source"),
            ((nn.Linear, B), {}, SpecTypeError, "placement must be a flow.placement"),
        ],
    )
    def test_at_the_door(self, arguments, options, kind, match):
        with pytest.raises(kind, match=match):
            auto_global(*arguments, **options)

    def test_its_own_error(self, P):
        """It passes as it is, and nothing has changed."""
        m = auto_global(lambda module: module.index, B)(type("Layer", (Model,), {}))()
        before = Snapshot(m)
        with pytest.raises(AttributeError, match="index"):
            m.w = parameter(A)
        before.assert_unchanged()

    @pytest.mark.ranks(2, 4)
    def test_its_own_error_on_one_rank_alone(self, rank, P):
        """The other ranks do not wait for that one."""

        def place(module):
            if rank == 1:
                raise LookupError("no stage")
            return P

        m = auto_global(place, B, timeout=20)(type("Layer", (Model,), {}))()
        before = Snapshot(m)
        error = error_of(lambda: setattr(m, "w", parameter(A)))
        assert type(error) is (LookupError if rank == 1 else DivergenceError)
        before.assert_unchanged()

    @pytest.mark.ranks(2, 4)
    def test_ranks_that_get_other_answers(self, rank, world):
        places = [flow.placement("cpu", [one]) for one in range(world)]
        m = auto_global(lambda module: places[rank], B, timeout=20)(type("Layer", (Model,), {}))()
        error = error_of(lambda: setattr(m, "w", parameter(A)))
        assert type(error) is DivergenceError
        assert "placement" in str(error)
