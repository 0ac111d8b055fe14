"""Reads a module tree: every tensor with all its names, and what is kept past the registry.

Nothing here runs an operation, meets another rank, or calls the code of a user's class.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Optional

from oneflow import Tensor, nn

from ..layout.spec import KINDS, GlobalSpec, Kind
from .decorated import stated_spec
from .registry import STORE_OF, STORES, TENSOR_STORES, Module, join, store

# What OneFlow keeps for itself in a module's __dict__: the registry, a cache of _apply, the weights
# that an RNN lists anew in each forward pass, DistributedDataParallel's buckets for gradients.
_OWN = {
    *STORES,
    *("_non_persistent_buffers_set", "_oneflow_internal_module_tensor_applied_dict__"),
    *("_flat_weights", "_bucket_tensors"),
}


class Level(NamedTuple):
    """A module under one of its names.

    ``spec`` is what the nearest class at or above it states, if one does, and ``rule_path`` the
    path from there, which is what its rules see.
    """

    module: Module
    path: str
    rule_path: str
    spec: Optional[GlobalSpec]
    above: Optional[Level]

    def children(self) -> Iterator[Level]:
        for name, child in store(self.module, "_modules").items():
            if child is not None:
                rule_path = join(self.rule_path, name)
                yield _governed(child, join(self.path, name), rule_path, self.spec, self)

    def ancestors(self) -> set[int]:
        found, level = set(), self.above
        while level is not None:
            found.add(id(level.module))
            level = level.above
        return found


def _governed(
    module: Module, path: str, rule_path: str, spec: GlobalSpec | None, above: Level | None
) -> Level:
    stated = stated_spec(module)
    if stated is not None:
        rule_path, spec = "", stated
    return Level(module, path, rule_path, spec, above)


class Name(NamedTuple):
    """One name of a tensor, and the module that holds it under that name."""

    level: Level
    name: str
    kind: Kind

    @property
    def path(self) -> str:
        return join(self.level.path, self.name)

    @property
    def rule_path(self) -> str:
        return join(self.level.rule_path, self.name)

    @property
    def owner(self) -> Module:
        return self.level.module

    @property
    def is_saved(self) -> bool:
        return self.name not in self.owner.__dict__.get("_non_persistent_buffers_set", ())


class Held(NamedTuple):
    """A tensor with all its names, the first that was met first."""

    tensor: Any
    names: list[Name]


class Loose(NamedTuple):
    """A tensor that a module keeps without having registered it, and where."""

    path: str
    owner: Module
    tensor: Any


def held_by(module: Module) -> list[Held]:
    """The Parameters and buffers of a tree, each once, in the order of the module."""
    found: dict[int, Held] = {}
    for level in _levels(module):
        for kind in KINDS:
            for name, tensor in store(level.module, STORE_OF[kind]).items():
                if tensor is not None:
                    held = found.setdefault(id(tensor), Held(tensor, []))
                    held.names.append(Name(level, name, kind))
    return list(found.values())


def _levels(root: Module) -> Iterator[Level]:
    """The module and all below it; what has several names under each of them.

    Below a module that was met before each module is met once more, however many ways lead to
    it, so that layers shared over and over do not take for ever; and a way back up is none.
    """
    met: set[int] = set()
    waiting = [(_governed(root, "", "", None, None), met)]
    while waiting:
        level, known = waiting.pop()
        if id(level.module) not in known:
            known.add(id(level.module))
            yield level
            waiting.extend((child, known) for child in reversed(list(level.children())))
        elif known is met:
            above = level.ancestors()
            if id(level.module) not in above:
                waiting.append((level, above))


def loose_in(module: Module, held: list[Held]) -> list[Loose]:
    """The tensors in plain attributes of a tree: also in lists, tuples, dicts and modules there."""
    known = {id(one.tensor) for one in held}
    levels: dict[int, Level] = {}
    for level in _levels(module):
        levels.setdefault(id(level.module), level)
    found = []
    for level in levels.values():
        waiting = [*reversed(list(_attributes(level.module, level.path)))]
        while waiting:
            path, value = waiting.pop()
            if id(value) in known or id(value) in levels:
                continue
            known.add(id(value))
            if issubclass(type(value), Tensor):
                found.append(Loose(path, level.module, value))
            else:
                waiting.extend(reversed(list(_inside(value, path))))
    return found


def _may_hold(kind: type) -> bool:
    return issubclass(kind, (Tensor, nn.Module, dict, list, tuple))


def _attributes(module: Module, path: str) -> Iterator[tuple[str, Any]]:
    """What a module keeps that it has not registered."""
    parameters = store(module, "_parameters")
    for name, value in module.__dict__.items():
        # What weight_norm keeps under the weight's name is computed anew in each forward pass.
        is_normed = f"{name}_g" in parameters and f"{name}_v" in parameters
        if name not in _OWN and _may_hold(type(value)) and not is_normed:
            yield join(path, name), value


def _inside(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    # By type() and the built-in types' own methods: isinstance asks a value for its __class__, and
    # the methods of a subclass may be anybody's.
    kind = type(value)
    if issubclass(kind, nn.Module):
        for which in (*TENSOR_STORES, "_modules"):
            for name, one in store(value, which).items():
                if one is not None:
                    yield join(path, name), one
        yield from _attributes(value, path)
        return
    if issubclass(kind, dict):
        values: Iterable[Any] = dict.values(value)
        entries: Iterable[tuple[Any, Any]] = dict.items(value)
    else:
        builtin = list if issubclass(kind, list) else tuple
        values, entries = builtin.__iter__(value), enumerate(builtin.__iter__(value))
    if not any(map(_may_hold, set(map(type, values)))):
        return  # so quickly that a list of millions of numbers does no harm
    for key, one in entries:
        if _may_hold(type(one)):
            yield f"{path}[{key!r}]" if type(key) in (str, int) else f"{path}[...]", one
