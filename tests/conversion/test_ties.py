"""Ties that no plan sees as one: made once the tensor was global, or by memory alone."""

from __future__ import annotations

import warnings

import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import (
    LateRuleWarning,
    SharedMemoryWarning,
    TiedRulesWarning,
    describe,
    global_scope,
    local_to_global,
    preview,
)
from tests.helpers.support import S0, S1, B, Model, assert_global, counted, linear, parameter, warns
from tests.helpers.trees import globally

A = counted(8, 8)
RULES = {"Embedding.weight": S0, "Linear.weight": S1, "*": B}


class Language(nn.Module):
    """The head's weight is that of the embedding, as in GPT-2 (transformers#47503)."""

    def __init__(self, tie=True):
        super().__init__()
        self.emb = nn.Embedding(8, 8)
        self.head = nn.Linear(8, 8, bias=False)
        if tie:
            self.head.weight = self.emb.weight


class TestInAnAssigningScope:
    """What is global already passes unseen, and is looked for as the scope closes."""

    def test_rules_that_differ(self, P):
        """Also DeepSpeed#8290."""
        with warns(TiedRulesWarning) as told, global_scope(P, RULES):
            m = Language()
        assert m.head.weight is m.emb.weight
        assert m.emb.weight.sbp == (S0,)
        for one in told:
            assert str(one.message).startswith(
                "Language.emb.weight and Language.head.weight are one tensor, and the rules "
                "'Embedding.weight' and 'Linear.weight' of sbp differ"
            )
        assert len(told) <= 1

    def test_a_model_that_was_there(self, P):
        m = Language(tie=False)
        names = r"Sequential\.0\.emb\.weight and Sequential\.0\.head\.weight"
        with warns(TiedRulesWarning, names), global_scope(P, RULES):
            outer = nn.Sequential()
            outer.add_module("0", m)
            m.head.weight = m.emb.weight
        assert outer[0].head.weight.sbp == (S0,)

    def test_a_specific_rule_for_what_the_last_one_has_decided(self, P):
        rules = {"Linear.weight": S1, "*": B}
        with warns(TiedRulesWarning, r"'\*' and 'Linear.weight'"), global_scope(P, rules):
            m = Language()
        assert m.emb.weight.sbp == (B,)

    def test_a_module_that_is_assigned_with_its_tie(self, P):
        """A tie is no rule that came too late."""
        m, emb, head = Model(), nn.Embedding(8, 8), linear(A)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with global_scope(P, RULES):
                m.emb = emb
                head.weight = emb.weight
                m.head = head
        found = [one.category for one in caught]
        assert found == [TiedRulesWarning] * (flow.env.get_rank() == 0)
        assert LateRuleWarning not in found

    @pytest.mark.parametrize(
        "rules",
        [
            {"Embedding.weight": S0, "Linear.weight": S0, "*": B},
            {"Embedding.weight": S0, "*": B},
            {"*": B},
            S0,
            lambda owner, path, tensor: S0 if type(owner) is nn.Linear else B,
        ],
        ids=["alike", "one rule", "for all the rest", "one sbp", "function"],
    )
    def test_no_warning(self, rules, P):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with global_scope(P, rules):
                m = Language()
        assert m.head.weight is m.emb.weight

    def test_not_of_what_was_global_before(self, P):
        m, old = Language(tie=False), globally(A, P, B)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with global_scope(P, {"Embedding.weight": S0, "Linear.weight": S1}):
                outer = Model()
                outer.m = m
                m.emb.weight = old
                m.head.weight = old
        assert m.head.weight.sbp == (B,)

    def test_one_made_an_error(self, P):
        """Each rank raises it, and the scope is closed."""
        held: list[nn.Module] = []
        with warnings.catch_warnings():
            warnings.simplefilter("error", TiedRulesWarning)
            with pytest.raises(TiedRulesWarning), global_scope(P, RULES):
                held.append(Language())
        assert nn.Linear(2, 2).weight.is_local

    def test_a_tie_in_a_module_that_is_assigned_under_a_path(self, P):
        """The rule is for the path that the assignment of the module gives."""
        m, a, b = Model(), linear(A), linear(A)
        rules = {"a.weight": S0, "b.weight": B, "*": B}
        names = r"Model\.a\.weight and Model\.b\.weight .*'b\.weight'"
        with warns(TiedRulesWarning, names), global_scope(P, rules):
            m.a = a
            b.weight = a.weight
            m.b = b
        assert m.b.weight.sbp == (S0,)

    @pytest.mark.parametrize("second", [S0, S1], ids=["alike", "another"])
    def test_the_rule_for_the_second_name_is_used(self, P, second):
        scope = global_scope(P, {"a": S0, "b": second}, unused="error")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with scope:
                m = Model()
                m.a = parameter(A)
                m.b = m.a
        expected = [TiedRulesWarning] if second == S1 and flow.env.get_rank() == 0 else []
        assert [one.category for one in caught] == expected

    def test_a_tie_that_is_gone_by_the_end(self, P):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with global_scope(P, RULES):
                m = Language()
                m.head.weight = parameter(A)
        assert m.head.weight.sbp == (S1,)


class TestThroughMemory:
    """``head.weight.data = emb.weight.data`` (fairscale#492, pytorch#64464)."""

    def model(self) -> Language:
        m = Language(tie=False)
        m.head.weight.data = m.emb.weight.data
        assert m.head.weight is not m.emb.weight
        return m

    def test_a_call_says_so(self, P):
        m = self.model()
        with warns(SharedMemoryWarning) as told:
            local_to_global(m, P, B)
        for one in told:
            text = str(one.message)
            assert text.startswith("Language.emb.weight and Language.head.weight are Parameters of")
            assert "Write head.weight = emb.weight" in text
        assert m.head.weight is not m.emb.weight
        assert m.head.weight.is_global

    def test_what_it_says_works(self, P):
        m = self.model()
        m.head.weight = m.emb.weight
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            local_to_global(m, P, S0)
        assert m.head.weight is m.emb.weight

    def test_as_a_scope_ends(self, P):
        line = r"Write m\.head\.weight = m\.emb\.weight"
        with warns(SharedMemoryWarning, line), global_scope(P, B, when="exit"):
            outer = Model()
            outer.m = self.model()

    def test_before_anything_has_changed(self, P):
        m = self.model()
        with warnings.catch_warnings():
            warnings.simplefilter("error", SharedMemoryWarning)
            with pytest.raises(SharedMemoryWarning):
                local_to_global(m, P, B)
        assert m.head.weight.is_local

    def test_in_reports(self, P):
        m = self.model()
        for found in (describe(m), preview(m, P, B)):
            (warning,) = found.warnings
            assert (warning.kind, warning.paths) == ("memory", ("emb.weight", "head.weight"))
        assert not describe(Language(tie=True)).warnings
        with warns(SharedMemoryWarning):
            assert not describe(local_to_global(m, P, B)).warnings

    def test_beside_many_others(self, P):
        layers = [nn.Linear(4, 4, bias=False) for _ in range(12)]
        m = nn.Sequential(*layers, nn.Linear(16, 4, bias=False), nn.Linear(16, 4, bias=False))
        m[12].weight.data = m[13].weight.data
        with warns(SharedMemoryWarning, r"Sequential\.12\.weight and Sequential\.13\.weight"):
            local_to_global(m, P, B)

    def test_no_false_alarm_on_any_rank(self, P):
        """What lies on another rank's device is read as a copy, as the weights of an RNN do."""
        m = nn.Sequential(nn.LSTM(2, 2, num_layers=2), Model())
        m[1].a = nn.Parameter(flow.zeros(2, 2, device="cpu:0"))
        m[1].b = nn.Parameter(flow.ones(2, 2, device="cpu:0"))
        assert not describe(m).warnings
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            local_to_global(m, P, B)

    def test_parts_of_one_tensor_are_not_meant(self, P):
        whole, m = flow.tensor(A), Model()
        m.first, m.second = nn.Parameter(whole[:4]), nn.Parameter(whole[4:])
        m.none, m.nothing = parameter(counted(0, 4)), parameter(counted(0, 4))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            local_to_global(m, P, {"n*": B, "*": S0})
        assert_global(m.second, A[4:], P, S0)

    @pytest.mark.parametrize("dtype", [flow.bfloat16, flow.float16])
    def test_half_types(self, dtype, P):
        """They cannot all be looked at, and are converted all the same."""
        m = Model()
        m.first = nn.Parameter(flow.tensor(A).to(dtype))
        m.second = nn.Parameter(flow.zeros(8, 8).to(dtype))
        m.second.data = m.first.data
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SharedMemoryWarning)
            local_to_global(m, P, B)
        assert m.second.is_global
