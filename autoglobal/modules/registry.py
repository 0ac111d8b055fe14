"""What a module has registered, read and put back past its ``__getattr__`` and ``__setattr__``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Literal

from oneflow import Tensor, nn

Module = Any  # oneflow.nn.Module; OneFlow ships no types
Slot = Literal["parameter", "buffer", "module"]

STORE_OF: dict[Slot, str] = {
    "parameter": "_parameters",
    "buffer": "_buffers",
    "module": "_modules",
}
STORES = tuple(STORE_OF.values())
PASSES_ON = "_autoglobal_passes_on"  # marks a method that a class has from us alone
TENSOR_STORES = ("_parameters", "_buffers")


def store(module: Module, which: str) -> dict[str, Any]:
    """One of the module's :data:`STORES`, empty where its ``__init__`` has not run."""
    found: dict[str, Any] | None = module.__dict__.get(which)
    return {} if found is None else found


def slot_of(module: Module, via: str, name: Any, value: Any) -> Slot | None:
    """What OneFlow registers ``value`` as in a call of the method ``via`` of ``nn.Module``.

    None where it registers nothing: it refuses, or keeps a plain attribute.
    """
    if not isinstance(module, nn.Module) or any(
        module.__dict__.get(which) is None for which in STORES
    ):
        return None
    is_parameter, is_module = isinstance(value, nn.Parameter), isinstance(value, nn.Module)
    if via == "register_parameter":
        return "parameter" if is_parameter else None
    if via == "register_buffer":
        return "buffer" if isinstance(value, Tensor) else None
    if via == "add_module":
        return "module" if is_module else None
    if is_parameter:
        return "parameter"
    if name in store(module, "_parameters"):
        return None
    if is_module:
        return "module"
    return "buffer" if name in store(module, "_buffers") else None


def join(path: str, name: str) -> str:
    """``name`` below ``path``; ``""`` is the path of a root."""
    return f"{path}.{name}" if path else name


def walk(module: Module, prefix: str) -> Iterator[tuple[str, Module]]:
    """``(path, module)`` for the module and everything below it, each module once."""
    seen: set[int] = set()
    waiting = [(prefix, module)]
    while waiting:
        path, current = waiting.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        yield path, current
        children = [(join(path, name), sub) for name, sub in store(current, "_modules").items()]
        waiting.extend(reversed(children))


METHODS = ("__setattr__", "register_parameter", "register_buffer", "add_module")


def has_own_methods(module: Module, names: tuple[str, ...] = METHODS) -> bool:
    """Whether a class between the module's and ``nn.Module`` defines one of these methods."""
    for kind in type(module).__mro__:
        if kind is nn.Module:
            break
        for name in names:
            own = vars(kind).get(name)
            if own is not None and not getattr(inspect.unwrap(own), PASSES_ON, False):
                return True
    return False


def tensors(module: Module) -> Iterator[tuple[str, Tensor]]:
    """``(path, tensor)`` for every Parameter and buffer of the module and below."""
    for path, owner in walk(module, ""):
        for which in TENSOR_STORES:
            for name, tensor in store(owner, which).items():
                if tensor is not None:
                    yield join(path, name), tensor


class Before:
    """How a module held one name before an assignment, to be put back if that fails."""

    def __init__(self, module: Module, name: str) -> None:
        self._module = module
        self._name = name
        # The whole store where the name is in it: its place in the order counts too.
        self._held = [
            (where, dict(where)) if name in where else (where, None)
            for where in (module.__dict__, *(store(module, which) for which in STORES))
        ]
        self._transient = name in module.__dict__.get("_non_persistent_buffers_set", ())

    def restore(self) -> None:
        for where, content in self._held:
            if content is None:
                where.pop(self._name, None)
            else:
                where.clear()
                where.update(content)
        transient = self._module.__dict__.get("_non_persistent_buffers_set")
        if transient is not None:
            (transient.add if self._transient else transient.discard)(self._name)
