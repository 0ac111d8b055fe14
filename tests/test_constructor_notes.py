"""The note on an error of a constructor whose weights were global already, and on no other."""

from __future__ import annotations

import pytest
from oneflow import nn

from autoglobal import global_scope
from tests.support import S0, B, parameter, tensor
from tests.support import counted as numbers


class AsksForDevice(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = parameter(numbers(8))
        self.device = self.weight.device


def text_of(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


def test_scopes_in_scopes_add_it_once(P):
    with pytest.raises(RuntimeError) as caught, global_scope(P, B), global_scope(P, S0):
        AsksForDevice()
    assert text_of(caught.value).count('when="exit"') == 1


def test_an_error_in_words_of_ones_own_gets_none(P):
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = parameter(numbers(8))
            raise RuntimeError("the weights are not in the local cache")

    with pytest.raises(RuntimeError) as caught, global_scope(P, B):
        Fails()
    assert text_of(caught.value) == "the weights are not in the local cache"


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
    assert "Copies" in text_of(caught.value)
    assert 'when="exit"' in text_of(caught.value)
