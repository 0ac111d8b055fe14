"""What a plan is made of: the tensors of a value, and the places in a tree where they are met."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from .classes import stated_spec
from .convert import Tensor
from .registry import Module, join, store
from .rules import NdSbp, Wish
from .spec import GlobalSpec, Kind

Place = tuple[Module, str, str]  # a module, one of its stores, a name in it


class Decision(NamedTuple):
    """By which rule a tensor has become global; with the tensor, so that its id stays its."""

    spec: GlobalSpec
    pattern: str
    wish: Wish
    tensor: Tensor


@dataclass
class Item:
    """One tensor of a value, what was decided for it, and every place where the value holds it."""

    tensor: Tensor
    kind: Kind
    path: str
    label: str
    spec: GlobalSpec
    pattern: str | None  # the rule that decided, where one did
    wish: Wish
    sbp: Wish  # the wish as the tensor can have it
    places: list[Place] = field(default_factory=list)

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
        there = tensor.is_global and tensor.placement == self.spec.placement
        return not (there and tensor.sbp == self.sbp)

    @property
    def fallback(self) -> bool:
        return self.tensor.ndim > 0 and self.sbp != self.wish


@dataclass(frozen=True)
class Node:
    """A module in a tree, or one name of it, and the spec that counts there.

    ``rule_path`` is the path that the rules of that spec see.
    """

    root: str
    path: str
    rule_path: str
    module: Module
    spec: GlobalSpec

    @property
    def label(self) -> str:
        return join(self.root, self.path) if self.path else self.root

    def at(self, name: str, module: Module | None = None) -> Node:
        return replace(
            self,
            path=join(self.path, name),
            rule_path=join(self.rule_path, name),
            module=self.module if module is None else module,
        )

    def governed(self) -> Node:
        """The same, with what the module's class states."""
        stated = stated_spec(self.module)
        return self if stated is None else replace(self, spec=stated, rule_path="")

    def children(self) -> Iterator[Node]:
        for name, child in store(self.module, "_modules").items():
            if child is not None:
                yield self.at(name, child)
