"""Decorated classes, and what each of them asks for."""

from __future__ import annotations

from typing import Any, Optional, Protocol
from weakref import ref

from .._compat import Module
from ..layout.spec import GlobalSpec
from .hook import Assignment, Find, put_on_class


class ClassHandler(Protocol):
    """What a decorated class does with what is assigned to its instances.

    One that ``states`` its layout keeps it inside a scope; one that does not follows.
    """

    states: bool

    def on_assign(self, assignment: Assignment) -> Any: ...

    def spec_of(self, module: Module, is_here: bool) -> Optional[GlobalSpec]:
        """What it states for an instance; the caller's function may be asked for its placement.

        ``is_here``: the placement's ranks and devices have to exist.
        """

    def known_spec(self) -> Optional[GlobalSpec]:
        """The same for all instances, where nobody has to be asked."""


# By id and not in a WeakKeyDictionary: a metaclass may have an __eq__ and no __hash__.
_known: dict[int, tuple[ref[type], ClassHandler]] = {}


def decorate(kind: type, handler: ClassHandler, find: Find) -> None:
    """Let ``handler`` see what is assigned to instances of a class, from now on.

    A class that is decorated already has another handler from now on. ``find`` is what the hook
    on the class asks for the handler in force.
    """
    key = id(kind)
    if key not in _known:
        put_on_class(kind, find)

    def forget(gone: ref[type]) -> None:
        if key in _known and _known[key][0] is gone:
            del _known[key]

    _known[key] = (ref(kind, forget), handler)


def handler_of(kind: type) -> ClassHandler | None:
    """The handler of a class, or of the nearest of its bases that has one."""
    if not _known:
        return None
    for one in kind.__mro__:
        found = _known.get(id(one))
        if found is not None:
            return found[1]
    return None


def stated_spec(module: Module, is_here: bool = True) -> GlobalSpec | None:
    """What the module's class states for it, if it does."""
    handler = handler_of(type(module))
    return None if handler is None else handler.spec_of(module, is_here)


def known_spec(module: Module) -> GlobalSpec | None:
    """The same as far as it is known without a call of the user's code."""
    handler = handler_of(type(module))
    return None if handler is None else handler.known_spec()


def follows(module: Module) -> bool:
    """Whether the module's class is decorated, and states no layout."""
    handler = handler_of(type(module))
    return handler is not None and not handler.states
