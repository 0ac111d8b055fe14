"""sbp by rules: a mapping of patterns, or a callable; a tied tensor has perhaps two rules."""

from __future__ import annotations

import warnings

import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import (
    AutoglobalError,
    ConversionError,
    TiedRulesWarning,
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
    error_of,
    linear,
    parameter,
    tensor,
    warns,
)

W = counted(8, 4)


def block() -> Model:
    """sub.attn and sub.norm, a table, and a buffer."""
    m = Model()
    m.sub = Model()
    m.sub.attn = linear(W, counted(8, start=100))
    m.sub.norm = nn.LayerNorm(8)
    m.table = nn.Embedding(8, 4)
    m.register_buffer("seen", tensor(counted(8)))
    return m


def sbps(module: nn.Module) -> dict[str, tuple]:
    return {path: weight.sbp for path, weight in module.named_parameters()}


def quietly(action) -> None:
    """Run ``action``, in which no rule is left unused."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnusedRuleWarning)
        action()


def test_patterns_of_paths_and_of_classes(P):
    m = block()
    rules = {"sub.attn.*": S0, "LayerNorm.weight": B, "sub.norm.bias": S0, "Embedding.*": S1}
    quietly(lambda: local_to_global(m, P, rules))
    assert sbps(m) == {
        "sub.attn.weight": (S0,),
        "sub.attn.bias": (S0,),
        "sub.norm.weight": (B,),
        "sub.norm.bias": (S0,),
        "table.weight": (S1,),
    }
    assert_global(m.sub.attn.weight, W, P, S0)


def test_the_first_match_wins(P):
    m = nn.Sequential(linear(W), linear(W + 1))
    quietly(lambda: local_to_global(m, P, {"1.weight": S1, "Linear.weight": S0}))
    assert_global(m[0].weight, W, P, S0)
    assert_global(m[1].weight, W + 1, P, S1)


def test_a_class_pattern_wins_where_it_comes_first(P):
    m = nn.Sequential(linear(W), nn.Embedding(8, 4))
    quietly(lambda: local_to_global(m, P, {"Embedding.weight": S1, "?.weight": S0}))
    assert sbps(m) == {"0.weight": (S0,), "1.weight": (S1,)}


def test_a_star_matches_dots_too(P):
    m = block()
    quietly(lambda: local_to_global(m, P, {"*.bias": B, "*weight": S0}))
    assert sbps(m) == {
        "sub.attn.weight": (S0,),
        "sub.attn.bias": (B,),
        "sub.norm.weight": (S0,),
        "sub.norm.bias": (B,),
        "table.weight": (S0,),
    }


def test_brackets_in_a_pattern(P):
    m = nn.Sequential(*[linear(W) for _ in range(3)])
    quietly(lambda: local_to_global(m, P, {"[02].weight": S0, "[!02].weight": S1}))
    assert sbps(m) == {"0.weight": (S0,), "1.weight": (S1,), "2.weight": (S0,)}


def test_patterns_know_upper_from_lower_case(P):
    m = Model()
    m.lower, m.LOWER = parameter(W), parameter(W)
    quietly(lambda: local_to_global(m, P, {"LOWER": S1, "lower": S0}))
    assert sbps(m) == {"lower": (S0,), "LOWER": (S1,)}


def test_a_pattern_has_to_match_from_end_to_end(P):
    m = block()
    before = Snapshot(m)
    with pytest.raises(ConversionError):
        local_to_global(m, P, {"attn.weight": S0, "sub.attn": S0, "Linear": S0})
    before.assert_unchanged()


def test_none_leaves_local(P):
    m = block()
    weight = m.sub.attn.weight
    quietly(lambda: local_to_global(m, P, {"sub.attn.weight": None, "*": S0}))
    assert m.sub.attn.weight is weight
    assert_local(weight, W)
    assert_global(m.sub.attn.bias, counted(8, start=100), P, S0)


def test_none_leaves_a_tensor_local_that_could_not_be_split(P):
    m = linear(W, counted(8))
    quietly(lambda: local_to_global(m, P, {"bias": None, "*": S1}))
    assert_local(m.bias, counted(8))
    assert_global(m.weight, W, P, S1)


@pytest.mark.ranks(2, 4)
def test_what_every_rule_leaves_local_tells_the_other_ranks_nothing(P, rank):
    if rank == 0:
        local_to_global(linear(W), P, {"*": None})
    assert_global(local_to_global(linear(W), P, S0).weight, W, P, S0)


@pytest.mark.parametrize("rule", [[S0], (S0,)], ids=["list", "tuple"])
def test_a_rule_may_be_a_sequence(P, rule):
    m = linear(W)
    local_to_global(m, P, {"weight": rule})
    assert_global(m.weight, W, P, S0)


def test_a_rule_for_a_placement_of_two_dimensions(world):
    placement = flow.placement("cpu", [list(range(world))])
    m = linear(W, counted(8))
    local_to_global(m, placement, {"weight": (B, S1), "bias": [S0, B]})
    assert_global(m.weight, W, placement, (B, S1))
    assert_global(m.bias, counted(8), placement, (S0, B))


# No rule


def test_a_tensor_that_no_rule_matches(P):
    """Named with the patterns that there are, and nothing has changed."""
    m = block()
    before = Snapshot(m)
    with pytest.raises(ConversionError) as caught:
        local_to_global(m, P, {"sub.*": S0, "Embed.weight": S1})
    assert "Model.table.weight" in str(caught.value)
    assert "sub.*" in str(caught.value)
    assert "Embed.weight" in str(caught.value)
    before.assert_unchanged()


def test_no_rules_at_all(P):
    m = linear(W)
    with pytest.raises(AutoglobalError):
        local_to_global(m, P, {})
    assert_local(m.weight, W)


def test_what_is_global_already_needs_no_rule(P):
    m = nn.Sequential(linear(W), linear(W + 1))
    m[0].to_global(P, B)
    quietly(lambda: local_to_global(m, P, {"1.weight": S0}))
    assert_global(m[0].weight, W, P, B)
    assert_global(m[1].weight, W + 1, P, S0)


def test_broadcast_buffers_need_no_rule(P):
    m = block()
    local_to_global(m, P, {"*weight": S0, "*bias": S0})
    assert_global(m.seen, counted(8), P, B)


def test_buffers_by_rules(P):
    m = block()
    m.register_buffer("other", tensor(counted(8)))
    quietly(lambda: local_to_global(m, P, {"seen": S0, "Model.other": None, "*": B}, buffers="sbp"))
    assert_global(m.seen, counted(8), P, S0)
    assert_local(m.other, counted(8))


def test_a_buffer_by_rules_that_no_rule_matches(P):
    m = block()
    with pytest.raises(ConversionError, match=r"Model\.seen"):
        local_to_global(m, P, {"*weight": S0, "*bias": S0}, buffers="sbp")
    assert_local(m.seen, counted(8))


# At the door


BAD_RULES = {
    "text": (TypeError, "split(0)"),
    "number": (TypeError, 0),
    "function": (TypeError, flow.sbp.split),
    "None in a list": (TypeError, [None]),
    "mapping": (TypeError, {"*": S0}),
    "two sbps": (ValueError, [S0, S0]),
    "no sbp": (ValueError, []),
}


@pytest.mark.parametrize("case", BAD_RULES)
@pytest.mark.parametrize("how", ["call", "scope"])
def test_a_rule_that_is_no_sbp(P, case, how):
    """Checked at the door, also where an earlier pattern would have won."""
    kind, value = BAD_RULES[case]
    m, rules = linear(W), {"*": S0, "never": value}
    holder = Model()

    def action():
        if how == "call":
            local_to_global(m, P, rules)
        with global_scope(P, rules):
            holder.entered = True

    found = error_of(action)
    assert isinstance(found, kind)
    assert isinstance(found, AutoglobalError)
    assert "never" in str(found)
    assert not hasattr(holder, "entered")
    assert_local(m.weight, W)


@pytest.mark.parametrize("key", [0, None, int, nn.Module(), ("a", "b")], ids=str)
def test_a_pattern_that_is_no_text(P, key):
    with pytest.raises(TypeError) as caught:
        local_to_global(linear(W), P, {key: S0})
    assert isinstance(caught.value, AutoglobalError)


A = counted(8, 8)


def tied() -> Model:
    m = Model()
    m.table, m.head = Model(), Model()
    m.table.weight = m.head.weight = parameter(A)
    return m


def test_rules_that_differ_are_named_and_the_first_is_taken(P):
    m = tied()
    with warns(TiedRulesWarning) as caught:
        local_to_global(m, P, {"head.*": S1, "table.*": S0})
    for one in caught:
        for word in ("Model.table.weight", "Model.head.weight", "'head.*'", "'table.*'"):
            assert word in str(one.message)
    assert len(caught) <= 1
    assert m.head.weight is m.table.weight
    assert m.table.weight.sbp == (S0,)


@pytest.mark.parametrize("rules", [{"head.*": S0, "table.*": S0}, {"table.*": S0}], ids=str)
def test_rules_that_agree_are_no_matter(P, rules):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        m = local_to_global(tied(), P, rules)
    assert m.head.weight.sbp == (S0,)


def test_a_tied_buffer_that_the_rules_do_not_decide(P):
    m, mask = tied(), nn.BatchNorm1d(8).running_mean
    m.table.register_buffer("mask", mask)
    m.head.register_buffer("mask", mask)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        local_to_global(m, P, {"*.weight": S0})
    assert m.table.mask is m.head.mask
    assert m.table.mask.sbp == (B,)


def test_the_first_is_taken_of_what_was_global_too(P):
    m = local_to_global(tied(), P, B)
    with warns(TiedRulesWarning):
        local_to_global(m, P, {"table.*": B, "head.*": S0}, existing="convert")
    assert m.head.weight.sbp == (B,)


@pytest.mark.parametrize("first", [None, S0], ids=["local first", "global first"])
def test_a_rule_that_leaves_it_local_is_a_rule_too(P, first):
    m, second = tied(), S0 if first is None else None
    with warns(TiedRulesWarning) as caught:
        local_to_global(m, P, {"table.*": first, "head.*": second})
    assert len(caught) <= 1
    assert m.head.weight.is_local == (first is None)


def test_one_module_under_two_names(P):
    m = Model()
    m.encoder = m.decoder = nn.Linear(8, 8)
    with warns(TiedRulesWarning, match=r"Model\.decoder\.(weight|bias)"):
        local_to_global(m, P, {"encoder.*": S0, "decoder.*": B})
    assert m.encoder.weight.sbp == (S0,)


def test_a_ring_of_modules_is_a_tie(P):
    """What a child holds of its parent has another path, and may have another rule."""
    m = Model()
    m.child, m.weight = Model(), parameter(W)
    m.child.parent = m
    with warns(TiedRulesWarning, match=r"Model\.weight and Model\.child\.parent\.weight"):
        local_to_global(m, P, {"child.parent.weight": S1, "weight": S0, "*": B})
    assert_global(m.weight, W, P, S0)
