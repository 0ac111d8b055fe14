"""What was assigned while a scope with ``when="exit"`` was open, to be found again as it closes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from weakref import ref

from ..modules.registry import Module, join, store, walk


class Assigned:
    """Modules, and the names that were assigned on each."""

    def __init__(self) -> None:
        # Weak: a module that was only a step on the way is none of the result.
        self._names: dict[int, tuple[ref[Module], set[str]]] = {}

    def add(self, module: Module, name: str) -> None:
        names = self._names_of(module)
        if names is None:
            names = set()
            # Not in the place of a dead module that had this id: the order is that of the
            # program, and must not depend on one process's addresses.
            self._names.pop(id(module), None)
            self._names[id(module)] = (ref(module), names)
        names.add(name)

    def forget(self, module: Module, name: str) -> None:
        """The name was assigned again by somebody else."""
        (self._names_of(module) or set()).discard(name)

    def forget_tree(self, module: Module) -> None:
        """Somebody else has taken over the module and all below it."""
        for _, owner in walk(module, ""):
            if self._names_of(owner) is not None:
                del self._names[id(owner)]

    def clear(self) -> None:
        self._names.clear()

    def roots(self) -> list[Module]:
        """The modules assigned to that are not below another one of them."""
        gc.collect()  # so that what nobody holds is gone on all ranks alike
        alive = [module for held, _ in self._names.values() if (module := held()) is not None]
        below: set[int] = set()
        for module in alive:
            for child in store(module, "_modules").values():
                if child is not None and id(child) not in below:
                    below.update(id(found) for _, found in walk(child, ""))
        roots = [module for module in alive if id(module) not in below]
        reached = {id(found) for root in roots for _, found in walk(root, "")}
        for module in alive:  # left over is a ring, of modules that hold each other
            if id(module) not in reached:
                roots.append(module)
                reached.update(id(found) for _, found in walk(module, ""))
        return roots

    def below(self, root: Module) -> Iterator[tuple[str, Module, frozenset[str] | None]]:
        """``(path, module, names)`` from ``root`` down, where ``names`` of it were assigned.

        None for all of its names and all below it: the module is one that was itself assigned.
        """
        seen: set[int] = set()
        waiting = [("", root)]
        while waiting:
            path, module = waiting.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            names = self._names_of(module) or set()
            yield path, module, frozenset(names)
            below = []
            for name, child in store(module, "_modules").items():
                if child is not None and name in names:
                    yield join(path, name), child, None
                elif child is not None:
                    below.append((join(path, name), child))
            waiting.extend(reversed(below))

    def _names_of(self, module: Module) -> set[str] | None:
        found = self._names.get(id(module))
        return None if found is None or found[0]() is not module else found[1]
