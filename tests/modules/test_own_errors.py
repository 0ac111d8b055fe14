"""OneFlow's own errors stay OneFlow's own, raised before anything is converted or sent.

The same of decorated classes: too early, of the wrong type, again, ``None`` and ``del``.
"""

from __future__ import annotations

import functools

import pytest
from oneflow import nn

from autoglobal import auto_global, global_scope
from tests.helpers.support import (
    S0,
    B,
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
from tests.helpers.trees import globally

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


@pytest.mark.filterwarnings("ignore::autoglobal.UnusedRuleWarning")
@pytest.mark.parametrize("name", [3, None, ("a", "b"), b"new"], ids=repr)
@pytest.mark.parametrize("method", ["register_parameter", "register_buffer", "add_module"])
def test_a_name_that_is_no_string_under_rules(P, method, name):
    """Patterns were tried on it, and an AttributeError of ours came out."""
    made = {"register_parameter": a_parameter, "register_buffer": a_tensor, "add_module": a_module}
    value = made[method]()
    expected = error_of(lambda: getattr(Model(), method)(name, value))
    for when in ("assign", "exit"):
        with global_scope(P, {"a": S0, "*": B}, when=when):
            found = error_of(lambda: getattr(Model(), method)(name, value))
        assert type(found) is type(expected) is TypeError
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


KINDS = pytest.mark.parametrize("kind", ["stated", "follows"])


def decorated(P, kind: str, base: type, name: str) -> type:
    cls = type(name, (base,), {"__module__": base.__module__})
    return auto_global(cls) if kind == "follows" else auto_global(P, S0)(cls)


def early_in(base: type, action, value) -> nn.Module:
    class Early(base):
        def __init__(self):
            action(self, value)
            super().__init__()

    return Early()


@KINDS
@pytest.mark.parametrize("case", EARLY)
def test_before_the_constructor_of_module_of_a_decorated_class(P, kind, case):
    make, action = EARLY[case]
    expected = error_of(lambda: early_in(nn.Module, action, make()))
    value = make()
    base = decorated(P, kind, nn.Module, "Base")
    found = error_of(lambda: early_in(base, action, value))
    assert isinstance(expected, AttributeError)
    assert (type(found), str(found)) == (type(expected), str(expected))
    assert left_local(value)


def filled_locally(cls: type) -> nn.Module:
    """What the class ``Filled`` fills itself with, without a conversion."""
    m = cls.__new__(cls)
    m.__dict__.update(vars(Filled()))
    return m


@KINDS
@pytest.mark.parametrize("case", WRONG)
def test_the_error_is_oneflows_own(P, kind, case):
    make, action = WRONG[case]
    expected = error_of(lambda: action(Filled(), make()))
    m, value = filled_locally(decorated(P, kind, Filled, "Filled")), make()
    m._parameters["old"] = globally(A, P, B)
    before = Snapshot(m)
    found = error_of(lambda: action(m, value))
    assert expected is not None
    assert (type(found), str(found)) == (type(expected), str(expected))
    assert left_local(value)
    before.assert_unchanged()


@pytest.mark.ranks(2, 4)
@KINDS
def test_nothing_is_sent_before_the_error_of_a_decorated_class(P, rank, kind):
    """On one rank only, which would otherwise wait for the others until the time limit."""
    cls = decorated(P, kind, Filled, "Filled")
    base = decorated(P, kind, nn.Module, "Base")
    m = Model()
    m.sub = filled_locally(cls)
    m.sub._parameters["old"] = globally(A, P, B)
    if rank == 0:
        for make, action in WRONG.values():
            value = make()
            assert error_of(lambda a=action, v=value: a(m.sub, v)) is not None
        for make, action in EARLY.values():
            value = make()
            assert error_of(lambda a=action, v=value: early_in(base, a, v)) is not None
    m.sub.new = parameter(A)
    assert_global(m.sub.new, A, P, S0 if kind == "stated" else B)


def target(P, how: str) -> tuple[nn.Module, object]:
    """A module that converts, and the sbp that it converts to."""
    if how == "follows":
        m = decorated(P, "follows", Model, "Layer")()
        m.old = globally(A, P, S0)
        return m, B
    if how == "stated":
        return decorated(P, "stated", Model, "Layer")(), S0
    return Model(), S0


@pytest.mark.parametrize("how", ["scope", "stated", "follows"])
def test_again_none_and_del(P, how):
    m, sbp = target(P, how)
    layers = [linear(A + start) for start in range(4)]

    def act():
        m.p, m.sub = parameter(A), layers[0]
        m.register_buffer("seen", tensor(A))
        first = m.p
        m.p, m.sub, m.seen = parameter(A + 1), layers[1], tensor(A + 1)
        assert_global(first, A, P, sbp)
        assert_global(m.p, A + 1, P, sbp)
        assert_global(m.sub.weight, A + 1, P, sbp)
        assert_global(m.seen, A + 1, P, B)
        m.p = m.sub = m.seen = None
        assert (m.p, m.sub, m.seen) == (None, None, None)
        assert "p" in m._parameters
        assert "sub" in m._modules
        assert "seen" in m._buffers
        m.p, m.sub, m.seen = parameter(A + 2), layers[2], tensor(A + 2)
        assert_global(m.p, A + 2, P, sbp)
        assert_global(m.sub.weight, A + 2, P, sbp)
        assert_global(m.seen, A + 2, P, B)
        del m.p, m.sub, m.seen
        assert [name for name in tensors(m) if name != "old"] == []
        assert not hasattr(m, "p")
        with pytest.raises(AttributeError):
            del m.nothing
        m.p = layers[3]
        m.p = parameter(A + 4)
        assert list(m._modules) == []
        m.register_parameter("none", None)
        m.register_buffer("nothing", None)
        m.add_module("no_module", None)
        assert (m.none, m.nothing, m.no_module) == (None, None, None)

    if how == "scope":
        with global_scope(P, S0):
            act()
    else:
        act()
    assert_global(m.p, A + 4, P, sbp)
    assert local_names(m) == []


@pytest.mark.parametrize("how", ["scope", "stated", "follows"])
def test_assigning_what_it_holds_already(P, how):
    (m, sbp), layer = target(P, how), linear(A)

    def act():
        m.p, m.sub = parameter(A), layer
        m.p, m.q, m.sub = m.p, m.p, m.sub

    if how == "scope":
        with global_scope(P, S0):
            act()
    else:
        act()
    assert m.p is m.q
    assert_global(m.p, A, P, sbp)
    assert_global(m.sub.weight, A, P, sbp)
