"""``same_placement=True``: nothing is added beside global tensors on another placement."""

from __future__ import annotations

from functools import partial

import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import ConversionError, auto_global, global_scope, local_scope, local_to_global
from tests.helpers.support import (
    S0,
    B,
    Model,
    Snapshot,
    assert_global,
    assert_local,
    counted,
    linear,
    parameter,
)
from tests.helpers.trees import globally, mixed

W = counted(8, 4)


@pytest.fixture
def first():
    return flow.placement("cpu", [0])


def globally_linear(placement) -> nn.Linear:
    return local_to_global(nn.Linear(4, 2), placement, B)


def names_both(message: str, placements, *names: str) -> None:
    for placement in placements:
        assert str(placement.ranks.tolist()) in message.replace("(", "[").replace(")", "]")
    for name in names:
        assert name in message


@pytest.mark.ranks(2, 4)
def test_another_placement_in_the_tree_is_refused(P, first):
    tree = mixed(P)
    tree.sub.far = globally(W, first, B)
    del tree.old
    before = Snapshot(tree)
    with pytest.raises(ConversionError) as caught:
        local_to_global(tree, P, S0, same_placement=True)
    names_both(str(caught.value), [P, first], "Model.sub.far")
    before.assert_unchanged()
    assert_local(tree.new, W)


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("where", ["itself", "below"])
def test_another_placement_in_the_module_that_is_extended_is_refused(P, first, where):
    m, p = Model(), parameter(W)
    m.body = Model()
    (m if where == "itself" else m.body).far = globally(W, first, B)
    with (
        global_scope(P, S0, same_placement=True),
        pytest.raises(ConversionError) as caught,
    ):
        m.new = p
    names_both(str(caught.value), [P, first], "far", "new")
    assert_local(p, W)
    assert not hasattr(m, "new")


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("via", ["setattr", "add_module"])
def test_a_layer_that_is_built_inside_the_scope_is_refused_too(P, first, via):
    """It is global, and where the scope wants it, before it comes to what is elsewhere."""
    m = Model()
    m.body = globally_linear(P)
    with global_scope(first, B, same_placement=True):
        head = nn.Linear(4, 2)
        add = m.add_module if via == "add_module" else partial(setattr, m)
        with pytest.raises(ConversionError) as caught:
            add("head", head)
    names_both(str(caught.value), [P, first], "Model.body.weight", "Model.head.weight")
    assert not hasattr(m, "head")


@pytest.mark.ranks(2, 4)
def test_what_lies_on_two_placements_already_is_moved_about_freely(P, first):
    top, both = Model(), Model()
    both.near, both.far = globally_linear(P), globally_linear(first)
    with global_scope(P, B, same_placement=True):
        top.both = both
    assert top.both is both


@pytest.mark.ranks(2, 4)
def test_another_placement_sends_nothing(P, rank, first):
    tree, layer = mixed(P), linear(W)
    tree.far = globally(W, first, B)
    if rank == 0:
        with pytest.raises(ConversionError):
            local_to_global(tree, P, S0, same_placement=True, check=False)
    assert_global(local_to_global(layer, P, S0).weight, W, P, S0)


def test_the_same_placement_is_taken(P):
    m = mixed(P)
    local_to_global(m, P, S0, same_placement=True)
    with global_scope(P, S0, same_placement=True):
        m.extra = parameter(W)
    assert_global(m.extra, W, P, S0)
    assert_global(m.new, W, P, S0)


@pytest.mark.ranks(2, 4)
def test_another_placement_is_taken_by_default(P, first):
    m = mixed(P)
    m.far = globally(W, first, B)
    local_to_global(m, P, S0)
    assert_global(m.far, W, first, B)
    assert_global(m.new, W, P, S0)


def test_a_value_of_a_wrong_type(P):
    with pytest.raises(TypeError, match="same_placement"), global_scope(P, S0, same_placement=1):
        pass


def test_what_is_replaced_does_not_count(world):
    first, other = flow.placement("cpu", [0]), flow.placement("cpu", list(range(world)))
    m = Model()
    with global_scope(first, B):
        m.new = parameter(W)
    with global_scope(other, B, same_placement=True):
        m.new = parameter(W + 1)
    assert_global(m.new, W + 1, other, B)


@pytest.mark.ranks(2, 4)
class TestAGlobalTensorByItself:
    """One that is assigned, not converted: in both directions, in both kinds of scope."""

    @pytest.fixture(params=["value elsewhere", "module elsewhere"])
    def places(self, request, P, first):
        """Of the scope, of what is there, and of what comes."""
        return (P, P, first) if request.param == "value elsewhere" else (P, first, P)

    @pytest.mark.parametrize("kind", ["parameter", "buffer"])
    def test_as_it_is_assigned(self, places, kind):
        here, there, comes = places
        m, value = Model(), globally(W, comes, B)
        m.body = globally_linear(there)
        before = Snapshot(m)
        assign = "register_parameter" if kind == "parameter" else "register_buffer"
        value = value if kind == "parameter" else value.data
        with global_scope(here, B, same_placement=True), pytest.raises(ConversionError) as caught:
            getattr(m, assign)("new", value)
        names_both(str(caught.value), [there, comes], "Model.new", "Model.body.weight")
        before.assert_unchanged()

    def test_at_the_end_of_a_scope(self, places):
        here, there, comes = places
        m, value = Model(), globally(W, comes, B)
        m.body = globally_linear(there)
        scope = global_scope(here, B, same_placement=True, when="exit")
        with pytest.raises(ConversionError) as caught, scope:
            m.new = value
        names_both(str(caught.value), [there, comes], "Model.new", "Model.body.weight")

    def test_to_an_instance_of_a_decorated_class(self, places):
        here, there, comes = places
        m = auto_global(here, B, same_placement=True)(type("Layer", (Model,), {}))()
        with local_scope():
            m.body = globally_linear(there)
        value = globally(W, comes, B)
        with pytest.raises(ConversionError) as caught:
            m.new = value
        names_both(str(caught.value), [there, comes], "Layer.new", "Layer.body.weight")

    def test_in_the_place_of_one_elsewhere(self, P, first):
        """What is replaced does not count."""
        m, value = Model(), globally(W, P, B)
        m.new = globally(W, first, B)
        with global_scope(P, B, same_placement=True):
            m.new = value
        assert m.new is value
