"""OneFlow's own errors stay OneFlow's own, raised before anything is converted or sent."""

from __future__ import annotations

import functools

import pytest
from oneflow import nn

from autoglobal import global_scope
from tests.helpers.support import (
    S0,
    Model,
    Snapshot,
    assert_global,
    counted,
    error_of,
    linear,
    local_names,
    parameter,
    tensor,
    tensors,
)

A = counted(8, 4)


def a_parameter():
    return parameter(A)


def a_tensor():
    return tensor(A)


def a_module():
    return linear(A)


def setting(name):
    return lambda m, value: setattr(m, name, value)


def calling(method, *names, **keywords):
    return lambda m, value: getattr(m, method)(*names, value, **keywords)


# What is assigned, and how, to the module of filled().
WRONG = {
    "tensor for a parameter": (a_tensor, setting("p")),
    "module for a parameter": (a_module, setting("p")),
    "tensor for a module": (a_tensor, setting("sub")),
    "number for a module": (lambda: 3, setting("sub")),
    "number for a buffer": (lambda: 3, setting("b")),
    "parameter named like a method": (a_parameter, setting("forward")),
    "registered parameter named like a method": (
        a_parameter,
        calling("register_parameter", "forward"),
    ),
    "registered buffer named like a method": (a_tensor, calling("register_buffer", "forward")),
    "added module named like a method": (a_module, calling("add_module", "forward")),
    "parameter named like a class attribute": (a_parameter, setting("constant")),
    "registered parameter named like an attribute": (
        a_parameter,
        calling("register_parameter", "plain"),
    ),
    "registered parameter named like a module": (a_parameter, calling("register_parameter", "sub")),
    "registered buffer named like a parameter": (a_tensor, calling("register_buffer", "p")),
    "added module named like a buffer": (a_module, calling("add_module", "b")),
    "registered parameter that is a tensor": (a_tensor, calling("register_parameter", "new")),
    "registered parameter that is a module": (a_module, calling("register_parameter", "new")),
    "registered buffer that is a module": (a_module, calling("register_buffer", "new")),
    "added module that is a parameter": (a_parameter, calling("add_module", "new")),
    "added module that is a class": (lambda: nn.ReLU, calling("add_module", "new")),
    "parameter with a dot": (a_parameter, calling("register_parameter", "a.b")),
    "buffer with a dot": (a_tensor, calling("register_buffer", "a.b")),
    "module with a dot": (a_module, calling("add_module", "a.b")),
    "parameter set with a dot": (a_parameter, setting("a.b")),
    "parameter without a name": (a_parameter, calling("register_parameter", "")),
    "buffer without a name": (a_tensor, calling("register_buffer", "")),
    "module without a name": (a_module, calling("add_module", "")),
    "parameter with a number as its name": (a_parameter, calling("register_parameter", 3)),
    "buffer with a number as its name": (a_tensor, calling("register_buffer", 3)),
    "module with a number as its name": (a_module, calling("add_module", 3)),
    "missing argument": (a_parameter, lambda m, value: m.register_parameter("new")),
    "no argument": (a_tensor, lambda m, value: m.register_buffer()),
    "unknown keyword": (a_tensor, calling("register_buffer", "new", persistant=False)),
    "argument too many": (a_module, calling("add_module", "new", "newer")),
    "setattr without a value": (a_parameter, lambda m, value: nn.Module.__setattr__(m, "new")),
}
ALL = pytest.mark.parametrize("case", WRONG)


class Filled(Model):
    constant = 3

    def __init__(self):
        super().__init__()
        self.p = parameter(A)
        self.register_buffer("b", tensor(A), persistent=False)
        self.sub = linear(A)
        self.plain = 3


def left_local(value) -> bool:
    if isinstance(value, nn.Module):
        return local_names(value) == list(tensors(value))
    return getattr(value, "is_local", True)


@ALL
def test_the_same_error_as_without_a_scope(P, case):
    make, action = WRONG[case]
    expected = error_of(lambda: action(Filled(), make()))
    m, value = Filled(), make()
    with global_scope(P, S0):
        found = error_of(lambda: action(m, value))
    assert expected is not None
    assert type(found) is type(expected)
    assert str(found) == str(expected)
    assert left_local(value)


@ALL
def test_the_module_is_left_as_oneflow_leaves_it(P, case):
    make, action = WRONG[case]
    m, value = Filled(), make()
    before = Snapshot(m)
    with global_scope(P, S0) as scope:
        assert error_of(lambda: action(m, value)) is not None
    before.assert_unchanged()
    assert scope.converted == []


@pytest.mark.ranks(2, 4)
def test_nothing_is_sent_before_the_error(P, rank):
    """On one rank only, which would otherwise wait for the others until the time limit."""
    prepared = [(action, Filled(), make()) for make, action in WRONG.values()]
    m = Model()
    with global_scope(P, S0):
        for action, module, value in prepared if rank == 0 else ():
            assert error_of(functools.partial(action, module, value)) is not None
        m.new = parameter(A)
    assert_global(m.new, A, P, S0)


def early(action, value):
    class Early(nn.Module):
        def __init__(self):
            action(self, value)
            super().__init__()

    return Early()


EARLY = {
    "parameter": (a_parameter, setting("new")),
    "module": (a_module, setting("new")),
    "registered parameter": (a_parameter, calling("register_parameter", "new")),
    "registered buffer": (a_tensor, calling("register_buffer", "new")),
    "added module": (a_module, calling("add_module", "new")),
}


@pytest.mark.parametrize("case", EARLY)
def test_before_the_constructor_of_module(P, case):
    make, action = EARLY[case]
    expected = error_of(lambda: early(action, make()))
    value = make()
    with global_scope(P, S0):
        found = error_of(lambda: early(action, value))
    assert isinstance(expected, AttributeError)
    assert type(found) is type(expected)
    assert str(found) == str(expected)
    assert left_local(value)


def test_a_plain_tensor_before_the_constructor_of_module(P):
    """No error in OneFlow: it is a plain attribute, and stays one."""
    t = tensor(A)
    with global_scope(P, S0):
        m = early(setting("new"), t)
    assert vars(m)["new"] is t
    assert t.is_local


@pytest.mark.ranks(2, 4)
def test_nothing_is_sent_before_the_constructor_of_module(P, rank):
    prepared = [(action, make()) for make, action in EARLY.values()]
    m = Model()
    with global_scope(P, S0):
        for action, value in prepared if rank == 0 else ():
            with pytest.raises(AttributeError):
                early(action, value)
        m.new = parameter(A)
    assert_global(m.new, A, P, S0)
