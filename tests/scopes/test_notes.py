"""The notes on OneFlow's errors about local and global tensors, and on no other."""

from __future__ import annotations

import numpy as np
import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import global_scope, local_to_global, optimizer_to_global
from tests.helpers.support import S0, B, Model, assert_global, linear, parameter, tensor
from tests.helpers.support import counted as numbers
from tests.helpers.trees import globally
from tests.helpers.ways import PS


class AsksForDevice(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = parameter(numbers(8))
        self.device = self.weight.device


def noted(action, *arguments, **options) -> str:
    """The error with which ``action``, run in a scope, fails."""
    with (
        pytest.raises((RuntimeError, AssertionError)) as caught,
        global_scope(*arguments, **options),
    ):
        action()
    return str(caught.value)


def test_scopes_in_scopes_add_it_once(P):
    with pytest.raises(RuntimeError) as caught, global_scope(P, B), global_scope(P, S0):
        AsksForDevice()
    assert str(caught.value).count('when="exit"') == 1


class GoesTo(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.layer.to(device)


@pytest.mark.parametrize("device", ["cpu:0", flow.device("cpu")], ids=repr)
def test_a_constructor_that_moves_its_layers_to_a_device(P, device):
    """https://github.com/Oneflow-Inc/oneflow/issues/9083."""
    text = noted(lambda: GoesTo(device), P, B)
    assert "the constructor of GoesTo uses its own weights" in text
    assert 'when="exit"' in text
    with global_scope(P, B, when="exit"):
        assert GoesTo(device).layer.weight.is_local


def test_an_error_in_words_of_ones_own_gets_none(P):
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = parameter(numbers(8))
            raise RuntimeError("the weights are not in the local cache")

    with pytest.raises(RuntimeError) as caught, global_scope(P, B):
        Fails()
    assert str(caught.value) == "the weights are not in the local cache"


def test_an_error_that_cannot_be_shown_comes_through(P):
    class Hidden(RuntimeError):
        def __str__(self):
            return self.detail

    with pytest.raises(Hidden), global_scope(P, B):
        raise Hidden


def test_a_constructor_that_copies_and_has_another_word_for_self(P):
    class Copies(nn.Module):
        def __init__(this):
            super().__init__()
            this.weight = parameter(numbers(8))
            this.weight.data.copy_(tensor(numbers(8)))

    with pytest.raises((RuntimeError, AssertionError)) as caught, global_scope(P, B):
        Copies()
    assert "Copies" in str(caught.value)
    assert 'when="exit"' in str(caught.value)


A = numbers(8, 4)
X = numbers(2, 4)


def test_an_initialiser_that_cannot_fill_a_partial_sum(P):
    assert "the constructor of Linear" in noted(lambda: nn.Linear(4, 8), P, PS)
    m = Model()
    with global_scope(P, PS, when="exit"):  # as the note says
        m.layer = linear(A)
    assert m.layer.weight.sbp == (PS,)


def test_a_local_checkpoint_that_a_module_built_in_the_scope_loads(P):
    saved = linear(A).state_dict()
    told = noted(lambda: nn.Linear(4, 8, bias=False).load_state_dict(saved), P, S0)
    assert "autoglobal: the module was made global before its checkpoint came" in told
    assert 'Write global_scope(..., when="exit")' in told
    assert "global_src_rank=0) gives, and numpy arrays, such as PyTorch's weights" in told


@pytest.mark.parametrize("sbp", [B, S0, flow.sbp.split(1)], ids=str)
@pytest.mark.parametrize("array", [A, A.astype(np.float64), A.T.copy().T], ids=["", "64", "T"])
def test_numpy_arrays_go_into_a_global_model_as_they_are(P, sbp, array):
    """Oneflow-Inc/vision#98 and Oneflow-Inc/libai#284: PyTorch's weights."""
    m = Model()
    with global_scope(P, sbp, unsplittable="broadcast"):
        m.layer = nn.Linear(4, 8, bias=False)
        m.norm = nn.BatchNorm1d(8)
        saved = {path: value.numpy() for path, value in nn.BatchNorm1d(8).state_dict().items()}
        saved["running_mean"] = numbers(8)
        m.layer.load_state_dict({"weight": array})
        m.norm.load_state_dict(saved)
    assert_global(m.layer.weight, A, P, sbp)
    assert_global(m.norm.running_mean, numbers(8), P, B)


@pytest.mark.ranks(2, 4)
def test_numpy_arrays_that_differ_between_the_ranks_are_refused(P, rank):
    m = local_to_global(linear(A), P, S0)
    with pytest.raises(RuntimeError, match="Each rank must have same input"):
        m.load_state_dict({"weight": A + rank})


def test_what_the_note_on_a_checkpoint_says_works(P):
    m, saved = Model(), linear(A).state_dict()
    with global_scope(P, S0, when="exit"):
        m.layer = nn.Linear(4, 8, bias=False)
        m.layer.load_state_dict(saved)
    assert_global(m.layer.weight, A, P, S0)


def test_a_global_checkpoint_for_a_local_module_gets_none(P):
    saved = local_to_global(linear(A), P, B).state_dict()
    layer = linear(A)
    assert "autoglobal" not in noted(lambda: layer.load_state_dict(saved), P, S0)


def test_a_local_input_of_a_global_module(P):
    layer = local_to_global(linear(A), P, B)
    told = noted(lambda: layer(tensor(X)), P, S0)
    assert "autoglobal: a local tensor has met a global one. Write x.to_global(" in told
    assert 'or global_scope(..., when="exit")' in told


def test_a_module_that_is_local_until_the_block_ends(P):
    m, x = Model(), tensor(X).to_global(P, B)

    def use_it_at_once():
        m.layer = linear(A)
        m.layer(x)

    told = noted(use_it_at_once, P, S0, when="exit")
    assert 'mind that with when="exit" what is assigned is local until the block ends' in told


def test_a_local_tensor_copied_into_a_global_one(P):
    p = globally(A, P, B)
    assert "x.to_global(placement, sbp)" in noted(lambda: p.data.copy_(tensor(A)), P, B)


@pytest.mark.in_place
@pytest.mark.parametrize("kind", [flow.optim.SGD, flow.optim.Adam])
def test_an_optimizer_whose_state_is_local(P, kind):
    layer, m = linear(A), Model()
    options = {"momentum": 0.9} if kind is flow.optim.SGD else {}
    optimizer = kind(layer.parameters(), lr=0.1, **options)

    def step(x):
        layer(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step(tensor(X))

    def assign_and_step():
        m.layer = layer
        step(tensor(X).to_global(P, B))

    told = noted(assign_and_step, P, B)
    assert "Write optimizer_to_global(optimizer)" in told
    optimizer.zero_grad()
    optimizer_to_global(optimizer)
    step(tensor(X).to_global(P, B))


class Unreadable(RuntimeError):
    """An error that fails when its arguments are read."""

    args = property(lambda self: 1 / 0)


def test_a_scope_ends_whatever_the_error_does_when_it_is_looked_at(P):
    m, scopes = Model(), []

    def fail():
        with global_scope(P, B) as scope:
            scopes.append(scope)
            m.new = parameter(numbers(8, 4))
            raise Unreadable

    with pytest.raises(Unreadable):
        fail()
    (scope,) = scopes
    assert scope.closed
    assert scope.handler is None, "it holds what converts no more"
    assert [one.path for one in scope.converted] == ["new"]
