"""What inspect, help, pickle and a traceback show: OneFlow's methods, and the caller's lines."""

from __future__ import annotations

import functools
import inspect
import pickle
import pydoc
import traceback
from pathlib import Path

import pytest
from oneflow import nn

import autoglobal
from autoglobal import (
    AutoglobalError,
    auto_global,
    global_scope,
    local_to_global,
    optimizer_to_global,
    preview,
)
from autoglobal.modules.registry import has_own_methods
from tests.helpers.scopes import METHODS
from tests.helpers.support import S0, B, Model, counted, error_of, linear, parameter

RAW = {name: vars(nn.Module)[name] for name in METHODS}
OURS = str(Path(autoglobal.__file__).parent)
A = counted(8, 4)
NO_RULE = {"never": B}


@auto_global
class Following(nn.Module):
    """A class of the test's own."""


class Wrapped(Following):
    @functools.wraps(Following.register_buffer)
    def register_buffer(self, *args, **kwargs):
        return super().register_buffer(*args, **kwargs)


def shown(method) -> tuple:
    return inspect.signature(method), inspect.getfullargspec(method), method.__doc__


@pytest.mark.parametrize("name", METHODS)
def test_a_method_in_a_scope_looks_like_oneflows(P, name):
    with global_scope(P, B):
        now = vars(nn.Module)[name]
        assert now is not RAW[name]
        assert shown(now) == shown(RAW[name])
        assert (now.__module__, now.__qualname__) == (RAW[name].__module__, RAW[name].__qualname__)
        assert pickle.loads(pickle.dumps(now)) is now


@pytest.mark.parametrize("name", METHODS)
def test_a_method_of_a_decorated_class_looks_like_oneflows(name):
    method = getattr(Following, name)
    assert method is not RAW[name]
    assert shown(method) == shown(RAW[name])
    assert (method.__name__, method.__module__) == (name, __name__)
    assert pickle.loads(pickle.dumps(method)) is method


@pytest.mark.parametrize("name", METHODS)
def test_a_class_that_is_decorated_in_a_scope_keeps_no_hook_of_it(P, name):
    with global_scope(P, B):
        kind = auto_global(P, B)(type("Kind", (nn.Module,), {}))
        hook = vars(nn.Module)[name]
    method, step = vars(kind)[name], vars(kind)[name]
    while step is not None:
        assert step is not hook
        step = getattr(step, "__wrapped__", None)
    assert shown(method) == shown(RAW[name])


def test_help_shows_no_comment_of_ours():
    def comments(kind: type) -> list[str]:
        lines = pydoc.render_doc(kind, renderer=pydoc.plaintext).splitlines()
        return [line for line in lines if line.strip(" |").startswith("# ")]

    plain = type("Plain", (nn.Module,), {})
    assert comments(Following) == comments(plain)
    assert "A class of the test's own." in pydoc.render_doc(Following, renderer=pydoc.plaintext)


def test_what_a_subclass_wraps_by_a_decorated_method_is_its_own():
    assert not has_own_methods(Following())
    assert has_own_methods(Wrapped())


def of_ours(error: BaseException) -> tuple[int, str]:
    """How many frames of ours are in a traceback, and the code that called the first."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [at for at, frame in enumerate(frames) if frame.filename.startswith(OURS)]
    assert ours, "nothing of ours was called"
    return len(ours), frames[ours[0] - 1].line or ""


def in_scope(P, act, when="assign"):
    m = Model()
    with global_scope(P, NO_RULE, when=when):
        act(m)


def decorated(P):
    @auto_global(P, NO_RULE)
    class Stated(nn.Module):
        pass

    Stated().new = parameter(A)


def in_scope_a_tree(P):
    tree = linear(A)
    in_scope(P, lambda m: setattr(m, "new", tree))


def set_a_parameter(m):
    m.new = parameter(A)


CALLS = {
    "a Parameter": (lambda P: in_scope(P, set_a_parameter), "m.new = parameter(A)"),
    "a tree": (in_scope_a_tree, 'setattr(m, "new", tree)'),
    "a call": (
        lambda P: in_scope(P, lambda m: m.register_parameter("seen", parameter(A))),
        "m.register_parameter",
    ),
    "the end of a scope": (lambda P: in_scope(P, set_a_parameter, "exit"), "with global_scope"),
    "local_to_global": (lambda P: local_to_global(linear(A), P, NO_RULE), "local_to_global("),
    "a decorated class": (decorated, "Stated().new = "),
    "a scope that is refused": (lambda P: global_scope(P, "split"), "global_scope(P"),
    "a class that is refused": (lambda P: auto_global(P, "split"), "auto_global(P"),
    "preview": (lambda P: preview(3, P, B), "preview(3"),
    "optimizer_to_global": (lambda P: optimizer_to_global(3), "optimizer_to_global(3"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_traceback_has_few_frames_of_ours(P, call):
    """Of eight and more: the last line of the user's own was far from the end."""
    action, line = CALLS[call]
    error = error_of(lambda: action(P))
    assert isinstance(error, AutoglobalError)
    count, caller = of_ours(error)
    assert count <= 3
    assert line in caller


def test_a_traceback_keeps_the_users_own_frames_between_ours(P):
    def refused(owner, path, value):
        Model().inner = parameter(A)  # in the outer scope, whose rules do not match it
        return S0

    layer = linear(A)
    with pytest.raises(AutoglobalError) as caught, global_scope(P, NO_RULE):
        local_to_global(layer, P, refused)
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert "refused" in names
    assert names.index("local_to_global") < names.index("refused") < names.index("__setattr__")
