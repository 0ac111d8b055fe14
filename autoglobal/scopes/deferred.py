"""Deferred conversions: what was assigned while a scope with ``when="exit"`` was open."""

from __future__ import annotations

import gc
from collections.abc import Set
from typing import Any
from weakref import ref

from .._compat import Module
from .._signals import uninterrupted
from ..conversion.plan import Plan
from ..conversion.records import mark
from ..conversion.session import Session
from ..modules.hook import Assignment
from ..modules.registry import STORES, children, join, store
from ..modules.tree import topmost, walk


class Deferred:
    """Modules, and the names that were assigned on each; the hook's handler for such a scope."""

    def __init__(self, session: Session) -> None:
        self._session = session
        # Weak: a module that was only a step on the way is none of the result.
        self._names: dict[int, tuple[ref[Module], set[str]]] = {}

    def on_assign(self, assignment: Assignment) -> Any:
        """Let OneFlow register what is assigned, and remember the name."""
        if assignment.kind is None:
            return self._session.pass_by(assignment)
        with uninterrupted:
            start = mark()
            try:
                is_update = id(assignment.value) in self._session.not_existing(assignment)
                result = assignment.forward()
            finally:
                self._session.records.add_cost(start)
            (self.forget if is_update else self._add)(assignment.module, assignment.name)
            return result

    def _add(self, module: Module, name: str) -> None:
        names = self._entry(module)
        if names is None:
            names = set()
            # Not in the place of a dead module that had this id: the order is that of the
            # program, and must not depend on one process's addresses.
            self._names.pop(id(module), None)
            self._names[id(module)] = (ref(module), names)
        names.add(name)

    def forget(self, module: Module, name: str) -> None:
        """The name was assigned again where nothing is converted, or something else was."""
        names = self._entry(module)
        if names is not None:
            names.discard(name)

    def forget_tree(self, module: Module) -> None:
        """A class that states its layout has taken over the module and all below it."""
        for node in walk(module):
            if self._entry(node.module) is not None:
                del self._names[id(node.module)]

    def add_to(self, plan: Plan) -> None:
        """Take all that was assigned into a plan, as one value."""
        for root in self._roots():
            label = type(root).__name__
            self._session.records.note_assigned(root)
            for node in walk(root, root=label, skip=self._names_of):
                names = self._names_of(node.module)
                plan.add_names(node, names)
                for name, child in children(node.module):
                    if name in names:
                        plan.add_tree(label, child, join(node.path, name), node)
            if plan.spec.same_placement:
                plan.look_at(label, root)

    def waiting(self) -> list[str]:
        """The names that are to be converted, each with the path from the root's class."""
        found = []
        for root in topmost(self._alive()):
            for node in walk(root, root=type(root).__name__, skip=self._names_of):
                names = self._names_of(node.module)
                held = (name for which in STORES for name in store(node.module, which))
                found += [join(node.label, name) for name in held if name in names]
        return found

    def _roots(self) -> list[Module]:
        """The modules assigned to that are not below another one of them."""
        gc.collect()  # so that what nobody holds is gone on all ranks alike
        return topmost(self._alive())

    def _alive(self) -> list[Module]:
        return [module for held, _ in self._names.values() if (module := held()) is not None]

    def _names_of(self, module: Module) -> Set[str]:
        """The names that were assigned on a module."""
        return self._entry(module) or frozenset()

    def _entry(self, module: Module) -> set[str] | None:
        found = self._names.get(id(module))
        return None if found is None or found[0]() is not module else found[1]
