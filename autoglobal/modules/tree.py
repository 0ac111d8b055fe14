"""The tree of a module: its walker, its tensors with all their names, and what is not registered.

Nothing here runs an operation, meets another rank, or calls the code of a user's class, but where
``spec_of`` asks a decorated one for its placement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Optional

from oneflow import Tensor, nn

from .._compat import Module
from ..layout.spec import GlobalSpec, Kind
from .decorated import known_spec
from .registry import NON_PERSISTENT, STORES, TENSOR_STORES, children, join, real, store

# What OneFlow keeps for itself in a module's __dict__: the registry, a cache of _apply, the weights
# that an RNN lists anew in each forward pass, DistributedDataParallel's buckets for gradients.
_OWN = {
    *STORES,
    *(NON_PERSISTENT, "_oneflow_internal_module_tensor_applied_dict__"),
    *("_flat_weights", "_bucket_tensors"),
}


SpecOf = Callable[[Module], Optional[GlobalSpec]]
_NAMES = 32  # of one module below one that was met before


class Node:
    """A module under one of its names.

    ``root`` is the name of the class that paths start from. ``spec`` is the one that counts here:
    what the nearest class at or above it states, else what the walk was begun with; ``rule_path``
    is the path that the rules of that spec see. ``again``: the module was met before, under
    another name.
    """

    # By hand and not as a dataclass, because one is made for each module that is met.
    __slots__ = ("above", "again", "module", "path", "root", "rule_path", "spec")

    def __init__(
        self,
        root: str,
        path: str,
        module: Module,
        spec: GlobalSpec | None,
        rule_path: str | None = None,
        above: Node | None = None,
    ) -> None:
        self.root = root
        self.path = path
        self.module = module
        self.spec = spec
        self.rule_path = path if rule_path is None else rule_path
        self.above = above
        self.again = False

    @property
    def label(self) -> str:
        """The module's name in messages."""
        return join(self.root, self.path) if self.path else self.root

    def let_state(self, spec_of: SpecOf | None) -> Node:
        """Take what the module's class states, if it does."""
        stated = None if spec_of is None else spec_of(self.module)
        if stated is not None:
            self.spec, self.rule_path = stated, ""
        return self

    def children(self, spec_of: SpecOf | None, skip: Container[str] = ()) -> Iterator[Node]:
        for name, child in children(self.module):
            if name not in skip:
                path = join(self.path, name)
                # Nearly always one string: rules see another path below a class that states one.
                same = self.rule_path is self.path
                rule_path = path if same else join(self.rule_path, name)
                yield Node(self.root, path, child, self.spec, rule_path, self).let_state(spec_of)

    def is_below_itself(self, until: Node | None = None) -> bool:
        """Whether the module is above itself, looking no further up than ``until``."""
        node = self
        while node is not until and node.above is not None:
            node = node.above
            if node.module is self.module:
                return True
        return False


def walk(
    module: Module,
    path: str = "",
    *,
    root: str = "",
    spec: GlobalSpec | None = None,
    spec_of: SpecOf | None = None,
    above: Node | None = None,
    again: bool = False,
    rings: bool = False,
    skip: Callable[[Module], Container[str]] | None = None,
) -> Iterator[Node]:
    """The module and all below it, each once, in the order in which they are registered.

    ``spec_of`` gives what a module's class states; ``above`` is the module that this one is below.
    ``again``: what has several names comes under each of them; below a module that was met before
    under 32 of them at most, so that layers shared over and over do not take for ever. ``rings``:
    so does a module that one of its own children holds, and what is below it. ``skip`` gives the
    names of a module that are not to be followed.
    """
    met: set[int] = set()
    first = Node(root, path, real(module), spec, above=above).let_state(spec_of)
    names: Counter[int] = Counter()  # of modules below one that was met before
    # With each node: at or below which node of a module that was met before it lies.
    waiting: list[tuple[Node, Node | None]] = [(first, None)]
    while waiting:
        node, since = waiting.pop()
        key = id(node.module)
        if since is not None:
            if names[key] >= _NAMES or node.is_below_itself(since if rings else None):
                continue
            names[key] += 1
            node.again = True
        elif key not in met:
            met.add(key)
        elif again and (rings or not node.is_below_itself()):
            since = node
            node.again = True
        else:
            continue
        yield node
        children = node.children(spec_of, () if skip is None else skip(node.module))
        waiting.extend((child, since) for child in reversed([*children]))


def topmost(modules: Sequence[Module]) -> list[Module]:
    """Those of the modules that are not below another one of them."""
    below: set[int] = set()
    for module in modules:
        for _, child in children(module):
            _reach(child, below)
    roots = [module for module in modules if id(module) not in below]
    reached: set[int] = set()
    for root in roots:
        _reach(root, reached)
    for module in modules:  # left over are rings, of modules that hold each other, and below
        if id(module) not in reached and _holds_itself(module):
            roots.append(module)
            _reach(module, reached)
    return roots


def _reach(module: Module, reached: set[int]) -> None:
    """Add a module and all below it to those that are reached, and look below none of these."""
    waiting = [module]
    while waiting:
        one = waiting.pop()
        if id(one) not in reached:
            reached.add(id(one))
            waiting += [child for _, child in children(one)]


def _holds_itself(module: Module) -> bool:
    """Whether a module is below itself."""
    return any(node.module is module for _, child in children(module) for node in walk(child))


def tensors(module: Module) -> Iterator[tuple[str, Tensor]]:
    """``(path, tensor)`` for every Parameter and buffer of the module and below."""
    for node in walk(module):
        for _, which in TENSOR_STORES:
            for name, tensor in store(node.module, which).items():
                if tensor is not None:
                    yield join(node.path, name), tensor


def placements_in(module: Module, but: str | None = None) -> dict[Any, str]:
    """The placements of a tree's global tensors, each with a path there; ``but``: not that name."""
    found: dict[Any, str] = {}
    for path, tensor in tensors(module):
        if tensor.is_global and path.partition(".")[0] != but:
            found.setdefault(tensor.placement, path)
    return found


class Name(NamedTuple):
    """One name of a tensor, and the module that holds it under that name."""

    node: Node
    name: str
    kind: Kind

    @property
    def path(self) -> str:
        return join(self.node.path, self.name)

    @property
    def rule_path(self) -> str:
        return join(self.node.rule_path, self.name)

    @property
    def owner(self) -> Module:
        return self.node.module

    @property
    def is_saved(self) -> bool:
        return self.name not in self.owner.__dict__.get(NON_PERSISTENT, ())


class Held(NamedTuple):
    """A tensor with all its names, the first that was met first."""

    tensor: Any
    names: list[Name]


def held_by(module: Module) -> list[Held]:
    """The Parameters and buffers of a tree, each once, in the order of the module."""
    found: dict[int, Held] = {}
    for node in walk(module, again=True, spec_of=known_spec):
        for kind, which in TENSOR_STORES:
            for name, tensor in store(node.module, which).items():
                if tensor is not None:
                    held = found.setdefault(id(tensor), Held(tensor, []))
                    held.names.append(Name(node, name, kind))
    return list(found.values())


class Unregistered(NamedTuple):
    """A tensor that a module keeps without having registered it, and where."""

    path: str
    owner: Module
    tensor: Any


def unregistered_in(module: Module, held: Iterable[Held]) -> list[Unregistered]:
    """The tensors in plain attributes of a tree: also in lists, tuples, dicts and modules there."""
    known = {id(one.tensor) for one in held}
    nodes = list(walk(module))
    known.update(id(node.module) for node in nodes)
    found = []
    for node in nodes:
        waiting = [*reversed(list(_attributes(node.module, node.path)))]
        while waiting:
            path, value = waiting.pop()
            if id(value) in known:
                continue
            known.add(id(value))
            if issubclass(type(value), Tensor):
                found.append(Unregistered(path, node.module, value))
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
        for which in STORES:
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
