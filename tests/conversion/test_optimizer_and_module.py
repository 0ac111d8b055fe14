"""An optimizer beside its module: converted with it, too early, or from a local state dict."""

from __future__ import annotations

import copy
import warnings

import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import (
    ConversionError,
    DivergenceError,
    SpecTypeError,
    SplitUpdateWarning,
    UnconvertedWarning,
    local_to_global,
    optimizer_to_global,
)
from tests.conversion.test_optimizers import OPTIMIZERS, STATEFUL, local_run, make, placer, train
from tests.helpers.support import (
    S0,
    S1,
    B,
    assert_global,
    assert_local,
    error_of,
    local_names,
    tensor,
    warns,
)
from tests.helpers.trees import assert_all_close, fill, waves, weights


class TestTooEarly:
    """Nothing follows, and the next step would fail."""

    def test_it_says_what_to_write(self):
        optimizer = OPTIMIZERS["momentum"](make().parameters())
        with warns(UnconvertedWarning, r"local_to_global\(model, placement, sbp\) before it"):
            assert optimizer_to_global(optimizer) is optimizer

    @pytest.mark.parametrize("rules", [{"2.weight": S0, "*": None}, B], ids=["one", "all"])
    def test_no_word_where_one_is_global(self, rules, P):
        m = local_to_global(make(), P, rules)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            optimizer_to_global(OPTIMIZERS["momentum"](m.parameters()))


class TestWithTheModule:
    """``local_to_global(..., optimizer=optimizer)``"""

    @pytest.mark.parametrize("name", ["SGD", "momentum", "Adam"])
    def test_training_goes_on(self, P, name):
        m = make()
        optimizer = OPTIMIZERS[name](m.parameters())
        train(m, optimizer, range(2), tensor)
        assert local_to_global(m, P, {"*.weight": S0, "*": B}, optimizer=optimizer) is m
        train(m, optimizer, range(2, 4), placer(P))
        assert_all_close(weights(m), local_run(name, 4), atol=1e-4)

    def test_shards_with_states_that_are_shards(self, P, world):
        m = fill(nn.Linear(4, 4, bias=False))
        optimizer = OPTIMIZERS["momentum"](m.parameters())
        m(tensor(waves(2, 4))).sum().backward()
        optimizer.step()
        local_to_global(m, P, S0, source="shard", optimizer=optimizer)
        (state,) = optimizer._state[m.weight].values()
        assert tuple(state.shape) == (4 * world, 4)
        assert state.sbp == (S0,)

    def test_a_state_that_does_not_fit_is_found_before(self, P):
        m = make()
        optimizer = OPTIMIZERS["momentum"](m.parameters())
        train(m, optimizer, range(1), tensor)
        state = optimizer._state[m[0].weight]
        state["momentum_buf"] = flow.zeros(3)
        with pytest.raises(ConversionError, match=r"Parameter 0 of group 0.*shape \(3,\)"):
            local_to_global(m, P, B, optimizer=optimizer)
        assert len(local_names(m)) == 4
        assert state["momentum_buf"].is_local

    @pytest.mark.ranks(2, 4)
    def test_one_that_does_not_fit_on_one_rank(self, P, rank):
        m = make()
        optimizer = OPTIMIZERS["momentum"](m.parameters())
        train(m, optimizer, range(1), tensor)
        if rank == 1:
            optimizer._state[m[0].weight]["momentum_buf"] = flow.zeros(3)
        error = error_of(lambda: local_to_global(m, P, B, optimizer=optimizer, timeout=20))
        assert type(error) is (ConversionError if rank == 1 else DivergenceError)
        assert len(local_names(m)) == 4

    @pytest.mark.ranks(2, 4)
    def test_a_rank_that_gives_none(self, P, rank):
        """It is told before anything has changed, and nobody waits for it afterwards."""
        m = make()
        optimizer = OPTIMIZERS["momentum"](m.parameters()) if rank else None
        error = error_of(lambda: local_to_global(m, P, B, optimizer=optimizer, timeout=20))
        assert type(error) is DivergenceError
        assert "with SGD" in str(error)
        assert len(local_names(m)) == 4

    def test_it_warns_as_both_do(self, P):
        m = make()
        with warns(UnconvertedWarning):
            local_to_global(m, P, {"*": None}, optimizer=OPTIMIZERS["SGD"](m.parameters()))
        m = make()
        lamb = OPTIMIZERS["LAMB"](m.parameters())
        with warns(SplitUpdateWarning, "LAMB"):
            local_to_global(m, P, {"*.weight": S0, "*": B}, optimizer=lamb)

    @pytest.mark.parametrize("value", ["SGD", flow.optim.SGD, 0], ids=str)
    def test_what_is_no_optimizer(self, value, P):
        m = make()
        with pytest.raises(SpecTypeError, match="optimizer must be a flow"):
            local_to_global(m, P, B, optimizer=value)
        assert len(local_names(m)) == 4


class TestALocalStateDict:
    """Into an optimizer of global Parameters (accelerate#4142)."""

    @pytest.mark.parametrize("sbp", [B, S0, S1], ids=str)
    @pytest.mark.parametrize("name", STATEFUL)
    def test_training_goes_on(self, P, name, sbp):
        m = make()
        before = OPTIMIZERS[name](m.parameters())
        train(m, before, range(2), tensor)
        saved = before.state_dict()
        local_to_global(m, P, {"*.weight": sbp, "*": B})
        after = OPTIMIZERS[name](m.parameters())
        with pytest.raises(RuntimeError):
            after.load_state_dict(saved)
        assert optimizer_to_global(after, saved) is after
        train(m, after, range(2, 4), placer(P))
        assert_all_close(weights(m), local_run(name, 4), atol=1e-4)

    def test_its_options_too(self, P):
        m = make()
        saved = flow.optim.SGD(m.parameters(), lr=0.5, momentum=0.5).state_dict()
        local_to_global(m, P, B)
        other = OPTIMIZERS["momentum"](m.parameters())
        optimizer_to_global(other, saved)
        assert other.param_groups[0].options["lr"] == 0.5

    def test_of_parameters_that_are_local(self, P):
        m = make()
        before = OPTIMIZERS["momentum"](m.parameters())
        train(m, before, range(2), tensor)
        saved = before.state_dict()
        local_to_global(m, P, {"0.weight": S0, "*": None})
        after = OPTIMIZERS["momentum"](m.parameters())
        optimizer_to_global(after, saved)
        held = saved["state"][3]["momentum_buf"]
        assert_local(after._state[m[2].bias]["momentum_buf"], held.numpy())
        assert after._state[m[2].bias]["momentum_buf"] is not held
        whole = saved["state"][0]["momentum_buf"].numpy()
        assert_global(after._state[m[0].weight]["momentum_buf"], whole, P, S0)
        assert saved["state"][0]["momentum_buf"].is_local, "the caller's own"

    def test_one_that_is_global(self, P):
        m = local_to_global(make(), P, S0)
        before = OPTIMIZERS["momentum"](m.parameters())
        train(m, before, range(2), placer(P))
        after = optimizer_to_global(OPTIMIZERS["momentum"](m.parameters()), before.state_dict())
        held = after._state[m[0].weight]["momentum_buf"]
        assert held.sbp == (S0,)
        assert held is not before._state[m[0].weight]["momentum_buf"]

    @pytest.mark.ranks(2, 4)
    def test_one_that_one_rank_cannot_load(self, P, rank):
        """The others do not wait for it."""
        m = make()
        local = OPTIMIZERS["momentum"](m.parameters())
        train(m, local, range(1), tensor)
        saved = local.state_dict()
        local_to_global(m, P, B)
        if rank == 1:
            saved = {"state": {}, "param_groups": []}
        other = OPTIMIZERS["momentum"](m.parameters())
        state = other._state
        error = error_of(lambda: optimizer_to_global(other, saved))
        assert type(error) is (ValueError if rank == 1 else DivergenceError)
        assert other._state is state

    @pytest.mark.parametrize(
        ("change", "kind", "match"),
        [
            (lambda d: d["state"][0].update(momentum_buf=flow.zeros(3)), ConversionError, "fit"),
            (lambda d: d["param_groups"].clear(), ValueError, "parameter groups"),
            (lambda d: d.pop("state"), SpecTypeError, "state_dict must be"),
        ],
        ids=["shape", "groups", "no state"],
    )
    def test_one_that_cannot_be_loaded_changes_nothing(self, P, change, kind, match):
        m = make()
        local = flow.optim.SGD(m.parameters(), lr=0.5, momentum=0.9)
        train(m, local, range(1), tensor)
        saved = copy.copy(local.state_dict())
        local_to_global(m, P, B, optimizer=local)
        saved["state"] = copy.copy(saved["state"])
        saved["state"][0] = dict(saved["state"][0])
        change(saved)
        other = OPTIMIZERS["momentum"](m.parameters())
        train(m, other, range(1), placer(P))
        state, held = other._state, other._state[m[0].weight]["momentum_buf"]
        with pytest.raises(kind, match=match):
            optimizer_to_global(other, saved)
        assert other._state is state
        assert other._state[m[0].weight]["momentum_buf"] is held
        assert other.param_groups[0].options["lr"] == 0.05

    @pytest.mark.parametrize(
        "value",
        [
            *([], "state.pt", {"model": 1}, {"state": None, "param_groups": []}),
            *({"state": {}, "param_groups": 5}, {"state": {}, "param_groups": [{}]}),
        ],
        ids=str,
    )
    def test_what_is_none(self, value):
        optimizer = OPTIMIZERS["SGD"](make().parameters())
        with pytest.raises(SpecTypeError, match=r"state_dict must be .*optimizer\.state_dict"):
            optimizer_to_global(optimizer, value)


@pytest.mark.ranks(2, 4)
def test_one_state_more_on_one_rank_is_told_before_the_module_changes(P, rank):
    model = nn.Linear(4, 4)
    optimizer = flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(flow.ones(2, 4)).sum().backward()
    optimizer.step()
    if rank == 1:
        optimizer._state[model.weight]["more"] = flow.zeros(4, 4)
    with pytest.raises(DivergenceError, match="states of its Parameters"):
        local_to_global(model, P, B, optimizer=optimizer)
    assert local_names(model) == ["weight", "bias"]
