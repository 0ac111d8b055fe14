"""What a plan is made of: the tensors of a value, and the places in a tree where they are met."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..layout.rules import NdSbp, Wish
from ..layout.spec import GlobalSpec, Kind, Shape
from ..modules.decorated import stated_spec
from ..modules.registry import Module, join, store
from ..tensors.convert import Tensor

Place = tuple[Module, str, str]  # a module, one of its stores, a name in it


class Decision(NamedTuple):
    """By which rule a tensor has become global; with the tensor, so that its id stays its."""

    spec: GlobalSpec
    pattern: str
    wish: Wish
    tensor: Tensor


class Met(NamedTuple):
    """A tensor that stays as it is, where it was met first; the reason, if it stays local."""

    path: str
    owner: Module
    name: str
    kind: str
    tensor: Tensor
    reason: str | None


class Item:
    """One tensor of a value, what was decided for it, and every place where the value holds it.

    ``pattern`` is the rule that decided, where one did, and ``sbp`` the ``wish`` as the tensor
    can have it.
    """

    # By hand and not as a dataclass: one is made for each tensor, as is each class below.
    __slots__ = (
        *("kind", "path", "pattern", "places", "root", "sbp", "shape", "spec", "tensor"),
        "wish",
    )

    def __init__(
        self, at: Node, kind: Kind, tensor: Tensor, pattern: str | None, wish: Wish, sbp: Wish
    ) -> None:
        self.tensor = tensor
        self.kind = kind
        self.root = at.root
        self.path = at.path
        self.spec = at.spec
        self.pattern = pattern
        self.wish = wish
        self.sbp = sbp
        self.places: list[Place] = []
        self.shape: Shape = tuple(tensor.shape)

    @property
    def label(self) -> str:
        return _label(self.root, self.path)

    @property
    def target(self) -> NdSbp:
        """The sbp of one that :attr:`changes`."""
        assert self.sbp is not None
        return self.sbp

    @property
    def changes(self) -> bool:
        if self.sbp is None:
            return False
        tensor = self.tensor
        if not tensor.is_global:
            return True
        return bool(tensor.placement != self.spec.placement or tensor.sbp != self.sbp)

    def unchanged(self) -> Met:
        """What is told of one that does not change."""
        owner, _, name = self.places[0]
        return Met(self.path, owner, name, self.kind, self.tensor, self._reason())

    def _reason(self) -> str | None:
        if self.tensor.is_global:
            return None
        if self.kind == "buffer" and self.spec.buffers is False:
            return "buffers=False"
        rule = "the sbp function" if self.pattern is None else f"the rule {self.pattern!r} of sbp"
        return f"{rule} says None"

    @property
    def fallback(self) -> bool:
        return self.shape != () and self.sbp != self.wish


class Node:
    """A module in a tree, or one name of it, and the spec that counts there.

    ``rule_path`` is the path that the rules of that spec see.
    """

    __slots__ = ("module", "path", "root", "rule_path", "spec")

    def __init__(
        self, root: str, path: str, rule_path: str, module: Module, spec: GlobalSpec
    ) -> None:
        self.root = root
        self.path = path
        self.rule_path = rule_path
        self.module = module
        self.spec = spec

    @property
    def label(self) -> str:
        return _label(self.root, self.path)

    def at(self, name: str, module: Module | None = None) -> Node:
        path = join(self.path, name)
        # Nearly always one string: rules see another path below a class that states its layout.
        same = self.rule_path is self.path
        return Node(
            self.root,
            path,
            path if same else join(self.rule_path, name),
            self.module if module is None else module,
            self.spec,
        )

    def governed(self) -> Node:
        """The same, with what the module's class states."""
        stated = stated_spec(self.module)
        return self if stated is None else Node(self.root, self.path, "", self.module, stated)

    def children(self) -> Iterator[Node]:
        for name, child in store(self.module, "_modules").items():
            if child is not None:
                yield self.at(name, child)


def _label(root: str, path: str) -> str:
    return join(root, path) if path else root
