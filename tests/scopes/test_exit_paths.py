"""``when="exit"``: rules by whole paths, constructors that use their weights, scopes in scopes."""

from __future__ import annotations

import pytest
from oneflow import nn

from autoglobal import ConversionError, UnusedRuleWarning, global_scope
from tests.helpers.support import (
    S0,
    S1,
    B,
    Model,
    assert_global,
    assert_local,
    counted,
    linear,
    local_names,
    parameter,
    tensor,
    warns,
)

W = counted(8, 4)


def paths(scope) -> list[str]:
    return sorted(record.path for record in scope.converted)


def test_a_path_starts_at_the_root_module(P):
    with global_scope(P, {"sub.lin.weight": S1, "*": S0}, when="exit") as scope:
        m = Model()
        m.sub = Model()
        m.sub.lin = nn.Linear(4, 8)
    assert m.sub.lin.weight.sbp == (S1,)
    assert m.sub.lin.bias.sbp == (S0,)
    assert paths(scope) == ["sub.lin.bias", "sub.lin.weight"]


def test_a_root_that_was_built_outside(P):
    m = Model()
    m.sub = Model()
    with global_scope(P, {"sub.lin.weight": S1, "*": S0}, when="exit") as scope:
        m.sub.lin = linear(W)
        m.new = parameter(W)
    assert_global(m.sub.lin.weight, W, P, S1)
    assert paths(scope) == ["new", "sub.lin.weight"]


def test_a_module_above_that_is_not_assigned_to_is_no_root(P):
    m = Model()
    m.sub = Model()
    m.other = parameter(W + 1)
    with global_scope(P, {"lin.weight": S1}, when="exit") as scope:
        m.sub.lin = linear(W)
    assert_global(m.sub.lin.weight, W, P, S1)
    assert_local(m.other, W + 1)
    assert paths(scope) == ["lin.weight"]


def test_a_layer_on_its_own_is_a_root(P):
    with global_scope(P, {"weight": S1, "Linear.bias": S0}, when="exit") as scope:
        layer = nn.Linear(4, 8)
    assert (layer.weight.sbp, layer.bias.sbp) == ((S1,), (S0,))
    assert paths(scope) == ["bias", "weight"]


def test_several_roots(P):
    one, two = Model(), Model()
    with global_scope(P, {"a.weight": S1, "b": S0}, when="exit") as scope:
        one.a, two.b = linear(W), parameter(W)
    assert_global(one.a.weight, W, P, S1)
    assert_global(two.b, W, P, S0)
    assert paths(scope) == ["a.weight", "b"]


def test_a_module_that_nobody_holds_any_more_is_no_root(P):
    """As the whole VGG of which flowvision's ssd300_vgg16 keeps some layers and drops the rest."""
    with global_scope(P, {"body.0.weight": S1, "*": S0}, when="exit") as scope:
        whole = Model()
        whole.features, whole.classifier = nn.Sequential(nn.Linear(4, 8)), nn.Linear(8, 4)
        m = Model()
        m.body = nn.Sequential(*whole.features)
        del whole
    assert m.body[0].weight.sbp == (S1,)
    assert paths(scope) == ["body.0.bias", "body.0.weight"]


def test_what_the_module_held_before_is_not_converted(P):
    m = Model()
    m.old, m.body = parameter(W), linear(W + 1)
    with global_scope(P, S0, when="exit"):
        m.new = parameter(W + 2)
    assert_local(m.old, W)
    assert_local(m.body.weight, W + 1)
    assert_global(m.new, W + 2, P, S0)


def test_what_was_local_before_in_an_assigned_module_is_converted(P):
    m, body = Model(), Model()
    body.old = parameter(W)
    with global_scope(P, S0, when="exit") as scope:
        m.body = body
        body.new = parameter(W + 1)
    assert_global(body.old, W, P, S0)
    assert_global(body.new, W + 1, P, S0)
    assert paths(scope) == ["body.new", "body.old"]


def test_a_callable_sees_whole_paths_as_the_block_closes(P):
    seen = []

    def rule(owner, path, value):
        seen.append((owner, path))
        return None if path == "sub.1.bias" else S0

    with global_scope(P, rule, when="exit"):
        m = Model()
        m.sub = nn.Sequential(nn.ReLU(), nn.Linear(4, 8))
        assert seen == []
    assert seen == [(m.sub[1], "sub.1.weight"), (m.sub[1], "sub.1.bias")]
    assert local_names(m) == ["sub.1.bias"]


def test_a_pattern_that_matched_nothing(P):
    with warns(UnusedRuleWarning, match="never"):  # noqa: SIM117
        with global_scope(P, {"never.*": S1, "*": S0}, when="exit"):
            m = nn.Linear(4, 8)
    assert m.weight.sbp == (S0,)


def test_a_path_that_no_rule_matches(P):
    m = Model()
    with pytest.raises(ConversionError, match=r"Model\.sub\.bias"):  # noqa: SIM117
        with global_scope(P, {"sub.weight": S0}, when="exit"):
            m.sub = linear(W, counted(8))
    assert local_names(m) == ["sub.weight", "sub.bias"]


# Constructors that use their own weights


class Forwards(nn.Module):
    """A dry run, as in flowvision's fan models."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 8)
        self.features = self.lin(tensor(W)).shape[1]


class AsksForDevice(nn.Module):
    """As flowvision's ssd300_vgg16."""

    def __init__(self):
        super().__init__()
        self.weight = parameter(W)
        self.register_buffer("seen", tensor(counted(8)).to(self.weight.device))


class WritesThroughView(nn.Module):
    """Under a global weight this would change a copy, without a word."""

    def __init__(self):
        super().__init__()
        self.weight = parameter(W + 1)
        self.weight.data[0].zero_()


@pytest.mark.parametrize("kind", [Forwards, AsksForDevice])
def test_a_constructor_that_uses_its_weights_works(P, kind):
    with global_scope(P, S0, when="exit"):
        m = kind()
    assert local_names(m) == []
    assert all(weight.sbp == (S0,) for weight in m.parameters())


def test_a_constructor_that_writes_through_a_view(P):
    with global_scope(P, S0, when="exit"):
        m = WritesThroughView()
    expected = W + 1
    expected[0] = 0
    assert_global(m.weight, expected, P, S0)


def said(error: Exception) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


@pytest.mark.parametrize("kind", [Forwards, AsksForDevice])
def test_an_assigning_scope_says_what_to_write_where_such_a_constructor_fails(P, kind):
    with pytest.raises(RuntimeError) as caught, global_scope(P, S0):
        kind()
    assert 'when="exit"' in said(caught.value)
    assert kind.__name__ in said(caught.value)


def test_a_constructor_that_fails_for_another_reason_gets_no_note(P):
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            raise ValueError("own words")

    with pytest.raises(ValueError, match="own words") as caught, global_scope(P, S0):
        Fails()
    assert said(caught.value) == "own words"


# Scopes in scopes


def test_an_assigning_scope_inside(P):
    m = Model()
    with global_scope(P, S0, when="exit") as outer:
        with global_scope(P, B) as inner:
            m.inner = parameter(W)
            assert m.inner.is_global
        m.outer = parameter(W)
        assert m.outer.is_local
    assert m.inner.sbp == (B,)
    assert_global(m.outer, W, P, S0)
    assert (paths(inner), paths(outer)) == (["inner"], ["outer"])


def test_an_exit_scope_inside_an_assigning_one(P):
    m = Model()
    with global_scope(P, S0):
        with global_scope(P, B, when="exit"):
            m.inner = parameter(W)
            assert m.inner.is_local
        assert_global(m.inner, W, P, B)
        m.outer = parameter(W)
        assert_global(m.outer, W, P, S0)


def test_an_exit_scope_inside_another(P):
    m = Model()
    with global_scope(P, S0, when="exit"):
        m.outer = parameter(W)
        with global_scope(P, B, when="exit"):
            m.inner = parameter(W)
        assert_global(m.inner, W, P, B)
        assert m.outer.is_local
    assert_global(m.outer, W, P, S0)
    assert m.inner.sbp == (B,)
