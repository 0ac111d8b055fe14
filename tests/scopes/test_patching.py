"""The hook is on nn.Module while a scope is open, and nowhere else and never after it."""

from __future__ import annotations

import contextlib

import pytest
from oneflow import nn

from autoglobal import ConversionError, global_scope
from tests.helpers.scopes import METHODS
from tests.helpers.support import (
    S0,
    S1,
    B,
    Model,
    assert_global,
    assert_local,
    counted,
    parameter,
    tensor,
)

A = counted(8, 4)


def on_module() -> list:
    return [vars(nn.Module)[name] for name in METHODS]


def on_all_classes() -> dict:
    """What Module and each of its subclasses itself defines of the four methods."""
    found, classes = {}, [nn.Module]
    while classes:
        cls = classes.pop()
        classes += type.__subclasses__(cls)
        found[id(cls)] = {name: vars(cls)[name] for name in METHODS if name in vars(cls)}
    return found


def same(before: list) -> bool:
    return all(now is then for now, then in zip(on_module(), before))


def test_the_four_methods_are_the_same_objects_after_the_scope(P):
    before, m = on_module(), Model()
    with global_scope(P, S0):
        m.new = parameter(A)
    assert m.new.is_global
    assert same(before)


def test_the_attributes_of_module_are_the_same_after_the_scope(P):
    before = list(vars(nn.Module))
    with global_scope(P, S0):
        Model().new = parameter(A)
    assert sorted(vars(nn.Module)) == sorted(before)


def test_a_scope_that_is_not_entered_patches_nothing(P):
    before = on_module()
    scope = global_scope(P, S0)
    assert same(before)
    del scope


def test_an_exception_in_the_block_comes_out_as_it_is(P):
    before, error = on_module(), ZeroDivisionError("mine")
    with pytest.raises(ZeroDivisionError) as caught, global_scope(P, S0):
        raise error
    assert caught.value is error
    assert same(before)


def test_an_interrupt_in_the_block_comes_out(P):
    before = on_module()
    with pytest.raises(KeyboardInterrupt), global_scope(P, S0):
        raise KeyboardInterrupt
    assert same(before)


def test_a_refused_assignment_that_leaves_the_block(P):
    before = on_module()
    with pytest.raises(ConversionError), global_scope(P, S1):
        Model().new = parameter(counted(8))
    assert same(before)


def test_what_was_converted_before_an_exception_stays_converted(P):
    m = Model()
    with contextlib.suppress(ZeroDivisionError), global_scope(P, S0):
        m.new = parameter(A)
        raise ZeroDivisionError
    assert_global(m.new, A, P, S0)


def test_a_return_out_of_the_block(P):
    def build():
        with global_scope(P, S0):
            m = Model()
            m.new = parameter(A)
            return m

    before = on_module()
    assert_global(build().new, A, P, S0)
    assert same(before)


def test_the_methods_are_the_same_after_many_scopes(P):
    before = on_module()
    for _ in range(50):
        with global_scope(P, S0), global_scope(P, B):
            pass
    assert same(before)


def test_subclasses_define_what_they_defined_before(P):
    before = on_all_classes()
    assert any(names for cls, names in before.items() if cls is not nn.Module), "nn.RNNBase does"
    with global_scope(P, S0):
        nn.LSTM(3, 4)
    after = on_all_classes()
    for cls, names in before.items():
        assert after[cls].keys() == names.keys(), cls
        assert all(after[cls][name] is names[name] for name in names), cls


def define() -> type:
    class Defined(nn.Module):
        def __init__(self):
            super().__init__()
            self.new = parameter(A)

    return Defined


def test_a_class_defined_inside_carries_no_trace(P):
    """microsoft/DeepSpeed#2812: classes defined inside kept the patch, or were missed."""
    outside = define()
    with global_scope(P, S0):
        inside = define()
        assert set(vars(inside)) == set(vars(outside))
    assert set(vars(inside)) == set(vars(outside))
    assert type(vars(inside)["__init__"]) is type(vars(outside)["__init__"])
    assert not any(name in vars(inside) for name in METHODS)


def test_a_class_defined_inside_is_converted_inside_and_local_after(P):
    """microsoft/DeepSpeed#2812"""
    with global_scope(P, S0):
        inside = define()
        m = inside()
    assert_global(m.new, A, P, S0)
    assert_local(inside().new, A)


def test_a_method_of_a_class_defined_inside_is_the_function_itself(P):
    def own(self, name, value):
        nn.Module.__setattr__(self, name, value)

    with global_scope(P, S0):

        class Own(nn.Module):
            __setattr__ = own

        m = Own()
        m.new = parameter(A)
    assert vars(Own)["__setattr__"] is own
    assert_global(m.new, A, P, S0)


def test_an_instance_built_inside_has_the_attributes_of_one_built_outside(P):
    cls = define()
    outside = cls()
    with global_scope(P, S0):
        inside = cls()
    assert list(vars(inside)) == list(vars(outside))


def test_an_object_kept_from_inside_converts_nothing_after(P):
    """A bound method, ``super()`` and the module itself, taken inside and used after."""
    m = Model()
    with global_scope(P, S0):
        register, class_method = m.register_parameter, nn.Module.__setattr__
    register("a", parameter(A))
    class_method(m, "b", parameter(A))
    m.register_buffer("c", tensor(A))
    for found in (m.a, m.b, m.c):
        assert_local(found, A)


def test_the_scope_object_patches_nothing_after_the_block(P):
    before = on_module()
    with global_scope(P, S0) as scope:
        pass
    assert same(before)
    m = Model()
    m.new = parameter(A)
    assert_local(m.new, A)
    assert scope.converted == []
