"""What is to become global in a value, settled as a whole before the first tensor changes.

A value is a Parameter, a buffer, a module tree, or all that was assigned in a scope. Planning
resolves every rule, checks every shape and every option, and changes nothing, so that an
impossible tensor anywhere is told with everything as it was, on every rank alike.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import oneflow as flow

from .convert import Tensor
from .errors import ConversionError
from .registry import STORE_OF, Module, join, store, tensors, walk
from .rules import NdSbp
from .spec import GlobalSpec, Kind

Place = tuple[Module, str, str]  # a module, one of its stores, a name in it
KINDS: tuple[Kind, ...] = ("parameter", "buffer")


@dataclass
class Item:
    """One tensor that is to become global, and every place where the value holds it."""

    tensor: Tensor
    kind: Kind
    path: str
    label: str
    sbp: NdSbp
    fallback: bool
    places: list[Place] = field(default_factory=list)

    @property
    def first(self) -> tuple[Module, str]:
        """Where it was met first: the module and the path."""
        return self.places[0][0], self.path


class Plan:
    """The tensors of a value that will change, with the sbp that each will have.

    ``own`` holds the ids of global tensors that do not count as existing ones. The methods raise
    :class:`ConversionError` for what cannot be done.
    """

    def __init__(self, spec: GlobalSpec, own: Iterable[int] = ()) -> None:
        self.spec = spec
        self.items: dict[int, Item] = {}
        self.used: set[str] = set()  # the patterns that decided something
        self.conflicts: list[str] = []  # between the rules for one tensor, for a warning
        self._own = frozenset(own)
        self._left: set[int] = set()  # tensors that a rule leaves local
        self._existing: list[str] = []
        self._elsewhere: tuple[str, Any] | None = None

    def add(
        self, root: str, owner: Module, name: str, path: str, kind: Kind, tensor: Tensor | None
    ) -> None:
        """Take in one tensor of a value; ``root`` is the class that its path starts from."""
        if tensor is None or tensor.is_lazy or id(tensor) in self._left:
            return
        label = f"{root}.{path}"
        if tensor.is_global and not self._is_to_change(label, owner, path, tensor):
            return
        item = self.items.get(id(tensor))
        if item is None:
            item = self._item(label, owner, path, kind, tensor)
            if item is None:
                return
            self.items[id(tensor)] = item
        elif path != item.path:
            self._compare(item, label, owner, path)
        item.places.append((owner, STORE_OF[kind], name))

    def add_tree(self, root: str, module: Module, name: str) -> None:
        """Take in a module and all below it; ``name`` is its path, "" for a root."""
        for path, owner in walk(module, name):
            self.add_own(root, owner, path)

    def add_own(
        self, root: str, owner: Module, path: str, names: frozenset[str] | None = None
    ) -> None:
        """Take in what one module itself holds, all of it or what is in ``names``."""
        for kind in KINDS:
            for name, tensor in store(owner, STORE_OF[kind]).items():
                if names is None or name in names:
                    self.add(root, owner, name, join(path, name), kind, tensor)

    def look_at(self, root: str, module: Module) -> None:
        """Note where a module that is added to has its global tensors."""
        for path, tensor in tensors(module):
            if tensor.is_global:
                self._note_placement(f"{root}.{path}", tensor)

    def settle(self) -> None:
        """Raise for what only the value as a whole shows."""
        if self._existing:
            raise ConversionError(
                f"{', '.join(self._existing)}: global already. Expected with existing='error': "
                "local tensors only. Write existing='keep' to leave global ones as they are, or "
                "existing='convert' to give them this placement and sbp"
            )
        if not self.items:
            return
        first = next(iter(self.items.values()))
        if self.spec.same_placement and self._elsewhere is not None:
            label, placement = self._elsewhere
            raise ConversionError(
                f"{first.label} would be on {self.spec.placement} and {label} is on {placement}. "
                "Expected with same_placement=True: one placement for all global tensors of a "
                "module. Write that placement, or same_placement=False"
            )
        for item in self.items.values():
            for owner, _, _ in item.places:
                if owner.__dict__.get("_is_ddp_module"):
                    raise ConversionError(
                        f"{item.label}: {type(owner).__name__} is wrapped for "
                        "DistributedDataParallel, whose hooks reduce local gradients only. "
                        "Expected: the module before it was wrapped. A global model with "
                        "broadcast weights and inputs split along the batch is data parallel by "
                        "itself, so leave the wrapper out"
                    )
        if flow._oneflow_internal.lazy_mode.is_enabled():
            why = "inside nn.Graph.build; assign before the graph is built"
        elif threading.current_thread() is not threading.main_thread():
            why = "in another thread than the main one, where OneFlow has no global operations"
        else:
            return
        raise ConversionError(
            f"{first.label}: a {first.kind} cannot become global {why}. "
            f"Received: shape {tuple(first.tensor.shape)}"
        )

    def _compare(self, item: Item, label: str, owner: Module, path: str) -> None:
        """Note where a tied tensor has another rule under another of its names."""
        if item.kind == "buffer" and self.spec.buffers != "sbp":
            return
        rules = self.spec.rules
        first, second = rules.matching(*item.first), rules.matching(owner, path)
        if second is None:
            return
        self.used.add(second)
        if first is not None and rules.of(first) != rules.of(second):
            self.conflicts.append(
                f"{item.label} and {label} are one tensor, and the rules {first!r} and {second!r} "
                "of sbp differ. The first is taken. Write the same sbp for both"
            )

    def _is_to_change(self, label: str, owner: Module, path: str, tensor: Tensor) -> bool:
        if self.spec.existing == "convert":
            return True
        # A pattern that stands for a tensor which is kept is no slip of the pen.
        pattern = self.spec.rules.matching(owner, path)
        if pattern is not None:
            self.used.add(pattern)
        if id(tensor) not in self._own:
            if self.spec.existing == "error":
                self._existing.append(label)
            self._note_placement(label, tensor)
        return False

    def _note_placement(self, label: str, tensor: Tensor) -> None:
        if self._elsewhere is None and tensor.placement != self.spec.placement:
            self._elsewhere = (label, tensor.placement)

    def _item(
        self, label: str, owner: Module, path: str, kind: Kind, tensor: Tensor
    ) -> Item | None:
        spec = self.spec
        if kind == "buffer" and spec.buffers != "sbp":
            wish = spec.whole() if spec.buffers == "broadcast" else None
        else:
            pattern, wish = spec.rules.wish(label, owner, path, tensor)
            if pattern is not None:
                self.used.add(pattern)
        if wish is None:
            self._left.add(id(tensor))
            return None
        shape = tuple(tensor.shape)
        # Of what is global already the shape is the logical one.
        source = "full" if tensor.is_global else spec.source
        sbp = spec.fit(label, kind, shape, wish, source)
        if tensor.is_global and tensor.placement == spec.placement and tensor.sbp == sbp:
            return None
        if not tensor.is_leaf:
            raise ConversionError(
                f"{label}: a {kind} that autograd still tracks cannot become global without "
                "losing its history. Expected: a leaf tensor. Received: one with a grad_fn, "
                f"shape {shape}. Write .detach() where it is assigned"
            )
        return Item(tensor, kind, path, label, sbp, fallback=shape != () and sbp != wish)
