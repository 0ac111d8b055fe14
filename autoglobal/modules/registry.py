"""The registry of an ``nn.Module``, read past its ``__getattr__`` and ``__setattr__``."""

from __future__ import annotations

from typing import Any
from weakref import CallableProxyType

import oneflow as flow
from oneflow import nn

from .._compat import Module
from .._text import short_repr
from ..errors import SpecTypeError
from ..layout.spec import Kind

STORE_OF: dict[str, str] = {
    "parameter": "_parameters",
    "buffer": "_buffers",
    "module": "_modules",
}
STORES = tuple(STORE_OF.values())
TENSOR_STORES: tuple[tuple[Kind, str], ...] = (("parameter", "_parameters"), ("buffer", "_buffers"))
NON_PERSISTENT = "_non_persistent_buffers_set"
# The methods of nn.Module that register a tensor or a module.
METHODS = ("__setattr__", "register_parameter", "register_buffer", "add_module")
# Marks a method that a class has from us alone, by the id of that very function: what
# functools.wraps copies to another one marks nothing.
PASSES_ON = "_autoglobal_passes_on"


def store(module: Module, which: str) -> dict[str, Any]:
    """One of the module's :data:`STORES`, empty where its ``__init__`` has not run."""
    found: dict[str, Any] | None = module.__dict__.get(which)
    return {} if found is None else found


def real(module: Module | None) -> Module | None:
    """The module that a ``weakref.proxy`` stands for, None once it is gone; else the module."""
    if type(module) is not CallableProxyType:
        return module
    try:
        return module.__reduce_ex__.__self__  # type: ignore[attr-defined]
    except ReferenceError:
        return None


def children(module: Module) -> list[tuple[str, Module]]:
    """The modules that one holds directly, with their names."""
    found = []
    for name, held in store(module, "_modules").items():
        # Not by real() alone, because each module that is met comes through here.
        child = real(held) if type(held) is CallableProxyType else held
        if child is not None:
            found.append((name, child))
    return found


def join(path: str, name: str) -> str:
    """``name`` below ``path``; ``""`` is the path of a root."""
    return f"{path}.{name}" if path else name


def has_own_methods(module: Module, names: tuple[str, ...] = METHODS) -> bool:
    """Whether a class between the module's and ``nn.Module`` defines one of these methods."""
    for kind in type(module).__mro__:
        if kind is nn.Module:
            break
        for name in names:
            own = vars(kind).get(name)
            if own is not None and not _passes_on(own):
                return True
    return False


def _passes_on(method: Any) -> bool:
    return bool(getattr(method, PASSES_ON, None) == id(method))


# What was meant where something else than a module is given.
_INSTEAD: dict[Any, str] = {
    nn.Graph: "the module in it",
    flow.Tensor: "the module that holds it",
    type: "an instance of it",
    (list, tuple): "an nn.ModuleList of these",
    dict: "the module whose state it is, or an nn.ModuleDict",
}


def check_module(module: Any, function: str) -> Module:
    """The :func:`real` module; :class:`SpecTypeError` where what ``function`` got is none."""
    if not isinstance(module, nn.Module):
        which = next((words for kind, words in _INSTEAD.items() if isinstance(module, kind)), "")
        raise SpecTypeError(
            f"module must be an nn.Module. Received: module={short_repr(module)}. "
            f"Write {function} for {which or 'a module, such as nn.Linear(4, 4)'}"
        )
    return real(module)
