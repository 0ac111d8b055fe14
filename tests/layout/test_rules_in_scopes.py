"""Rules in a scope, those that are callables, those that matched nothing or came too late."""

from __future__ import annotations

import warnings

import pytest
from oneflow import nn

from autoglobal import (
    ConversionError,
    LateRuleWarning,
    UnusedRuleWarning,
    global_scope,
    local_to_global,
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
    linear,
    parameter,
    tensor,
    warns,
)

W = counted(8, 4)


def unused(action) -> list[str]:
    """What the warnings about unused rules say; they are shown on rank 0."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    return [str(one.message) for one in caught if issubclass(one.category, UnusedRuleWarning)]


# In a scope


def test_a_path_starts_at_the_name_that_is_assigned(P):
    m, tree = Model(), Model()
    tree.attn = linear(W)
    with global_scope(P, {"new": S0, "sub.attn.weight": S1}):
        m.new = parameter(W + 1)
        m.sub = tree
    assert_global(m.new, W + 1, P, S0)
    assert_global(m.sub.attn.weight, W, P, S1)


def test_a_constructor_assigns_by_its_own_names(P):
    """Each layer's path is "weight" as it is built; its class tells them apart."""
    with global_scope(P, {"Embedding.weight": S1, "weight": S0, "LayerNorm.bias": B, "*": S0}):
        m = Model()
        m.table, m.lin, m.norm = nn.Embedding(8, 4), nn.Linear(4, 8), nn.LayerNorm(8)
    assert m.table.weight.sbp == (S1,)
    assert (m.lin.weight.sbp, m.lin.bias.sbp) == ((S0,), (S0,))
    assert (m.norm.weight.sbp, m.norm.bias.sbp) == ((S0,), (B,))


def test_the_owner_is_the_class_of_the_object(P):
    class Own(nn.Linear):
        pass

    with global_scope(P, {"Own.weight": S1, "Linear.weight": S0, "*": S0}):
        own, plain = Own(4, 8), nn.Linear(4, 8)
    assert own.weight.sbp == (S1,)
    assert plain.weight.sbp == (S0,)


def test_none_leaves_an_assigned_parameter_local(P):
    m, p = Model(), parameter(W)
    with global_scope(P, {"new": None, "other": S0}) as scope:
        m.new, m.other = p, parameter(W)
    assert m.new is p
    assert_local(m.new, W)
    assert [record.path for record in scope.converted] == ["other"]


def test_an_assignment_that_no_rule_matches(P):
    m, p = Model(), parameter(W)
    with global_scope(P, {"other": S0, "Linear.*": S0}):
        with pytest.raises(ConversionError) as caught:
            m.new = p
        assert not hasattr(m, "new")
        m.other = parameter(W)
        nn.Linear(4, 8)
    message = str(caught.value)
    assert "Model.new" in message
    assert "other" in message
    assert "Linear.*" in message
    assert_local(p, W)


@pytest.mark.ranks(2, 4)
def test_a_tensor_that_no_rule_matches_sends_nothing(P, rank):
    """On one rank only, which would otherwise wait for the others until the time limit."""
    m, tree, layer = Model(), nn.Sequential(linear(W), linear(W, counted(8))), linear(W)
    with global_scope(P, {"*weight": S0, "new": S0}):
        if rank == 0:
            with pytest.raises(ConversionError):
                m.sub = tree
        m.new = parameter(W)
        m.layer = layer
    assert_global(m.new, W, P, S0)


# Callables


@pytest.mark.in_place
def test_a_callable_sees_owner_path_and_tensor(P):
    m, seen = Model(), []
    m.sub = linear(W, counted(8))

    def rule(owner, path, value):
        seen.append((owner, path, value, value.is_local))
        return S1 if value.ndim == 2 else S0

    local_to_global(m, P, rule)
    assert [entry[1] for entry in seen] == ["sub.weight", "sub.bias"]
    assert all(owner is m.sub and was_local for owner, _, _, was_local in seen)
    assert [entry[2] is value for entry, value in zip(seen, m.sub.parameters())] == [True, True]
    assert_global(m.sub.weight, W, P, S1)
    assert_global(m.sub.bias, counted(8), P, S0)


def test_a_callable_in_a_scope(P):
    m, layer, paths = Model(), linear(W + 2), []

    def rule(owner, path, value):
        paths.append((type(owner).__name__, path))
        return None if path == "keep" else [S0]

    with global_scope(P, rule):
        m.new, m.keep, m.sub = parameter(W), parameter(W + 1), layer
    assert paths == [("Model", "new"), ("Model", "keep"), ("Linear", "sub.weight")]
    assert_global(m.new, W, P, S0)
    assert_local(m.keep, W + 1)
    assert_global(m.sub.weight, W + 2, P, S0)


def test_a_callable_for_buffers(P):
    m = linear(W)
    m.register_buffer("seen", tensor(counted(8)))
    local_to_global(m, P, lambda owner, path, value: S0 if path == "seen" else S1, buffers="sbp")
    assert_global(m.seen, counted(8), P, S0)
    assert_global(m.weight, W, P, S1)


def test_an_object_that_can_be_called(P):
    class Rule:
        def __call__(self, owner, path, value):
            return S0

    assert_global(local_to_global(linear(W), P, Rule()).weight, W, P, S0)


BAD_RETURNS = {
    "text": lambda: "split(0)",
    "number": lambda: 0,
    "None in a list": lambda: [None],
    "two sbps": lambda: [S0, S0],
    "no sbp": lambda: [],
    "mapping": lambda: {"*": S0},
}


@pytest.mark.parametrize("case", BAD_RETURNS)
def test_a_callable_that_returns_no_sbp(P, case):
    """For the last tensor only: the first one has not changed either."""
    m = nn.Sequential(linear(W), linear(W + 1))
    before = Snapshot(m)
    with pytest.raises(ConversionError, match=r"1\.weight"):
        local_to_global(m, P, lambda owner, path, value: BAD_RETURNS[case]() if "1" in path else S0)
    before.assert_unchanged()


@pytest.mark.parametrize("how", ["call", "scope"])
def test_an_exception_of_a_callable_is_passed_on(P, how):
    tree, m = nn.Sequential(linear(W), linear(W + 1)), Model()
    before = Snapshot(tree)

    def rule(owner, path, value):
        if path.endswith("1.weight"):
            raise LookupError("own words")
        return S0

    def action():
        if how == "call":
            local_to_global(tree, P, rule)
        with global_scope(P, rule):
            m.sub = tree

    with pytest.raises(LookupError, match="own words"):
        action()
    before.assert_unchanged()
    assert not hasattr(m, "sub")


# Rules that matched nothing (what users of Keras's LayoutMap complain about)


def test_the_kind_of_the_warning():
    assert issubclass(UnusedRuleWarning, UserWarning)


def test_a_pattern_that_matched_nothing_in_a_call(P, rank):
    m = linear(W)
    said = unused(lambda: local_to_global(m, P, {"weigth": S1, "bais*": B, "*": S0}))
    if rank == 0:
        assert "weigth" in said[0]
        assert "bais*" in said[1]
    assert_global(m.weight, W, P, S0)


def test_a_call_without_unused_patterns_warns_of_nothing(P):
    assert unused(lambda: local_to_global(linear(W), P, {"Linear.*": S0})) == []
    assert unused(lambda: local_to_global(linear(W), P, S0)) == []


def test_a_pattern_that_matched_nothing_by_the_time_the_scope_closes(P):
    m = Model()

    def action():
        with global_scope(P, {"used_late": S0, "never": S1, "*": S0}):
            m.new = parameter(W)
            m.used_late = parameter(W)

    for said in unused(action):
        assert "never" in said
        assert "the rule 'used_late'" not in said
    with warns(UnusedRuleWarning):
        action()
    assert_global(m.used_late, W, P, S0)


def test_a_scope_that_an_exception_closes_does_not_warn(P):
    def action():
        with pytest.raises(KeyError), global_scope(P, {"never": S0}):
            raise KeyError

    assert unused(action) == []


def test_a_rule_that_leaves_local_is_used(P):
    assert unused(lambda: local_to_global(linear(W), P, {"weight": None})) == []


def test_a_call_that_fails_does_not_warn(P):
    def action():
        with pytest.raises(ConversionError):
            local_to_global(linear(W), P, {"never": S0})

    assert unused(action) == []


def test_a_rule_by_path_that_came_after_the_constructor_is_told(P):
    m = Model()
    with (
        warns(LateRuleWarning, match=r"'sub\.\*'.*Model\.sub\.weight.*when='exit'"),
        global_scope(P, {"sub.*": S0, "*": B}),
    ):
        m.sub = nn.Linear(4, 8)
    assert m.sub.weight.sbp == (B,)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with global_scope(P, {"sub.*": S0, "*": B}, when="exit"):
            m.sub = nn.Linear(4, 8)
        with global_scope(P, {"Linear.*": S0, "*": B}):
            m.sub = nn.Linear(4, 8)
        with global_scope(P, {"other.*": B, "*": B}):
            m.other = nn.Linear(4, 8)
    assert m.sub.weight.sbp == (S0,)


def test_a_last_star_may_have_nothing_to_do(P):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        local_to_global(linear(W), P, {"weight": S0, "*": B})


RULES = {"nothing": S0, "*": B}


def in_a_block(P):
    with global_scope(P, RULES):
        pass


def in_a_function(P):
    @global_scope(P, RULES)
    def build():
        pass

    build()


def in_a_call(P):
    local_to_global(Model(), P, RULES)


@pytest.mark.parametrize("action", [in_a_block, in_a_function, in_a_call])
def test_a_warning_names_the_line_of_the_caller(P, action):
    with warns(UnusedRuleWarning) as caught:
        action(P)
    assert {one.filename for one in caught} <= {__file__}


def test_a_warning_reaches_code_that_has_no_name(P):
    """Such code is run by ``exec`` with globals of its own."""
    code = "with global_scope(P, RULES):\n    pass"
    with warns(UnusedRuleWarning):
        exec(code, {"global_scope": global_scope, "P": P, "RULES": RULES})
