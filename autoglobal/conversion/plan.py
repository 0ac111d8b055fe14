"""What is to become global in a value, settled as a whole before the first tensor changes.

A value is a Parameter, a buffer, a module tree, or all that was assigned in a scope. Planning
resolves every rule, checks every shape and every option, and changes nothing, so that an
impossible tensor anywhere is told with everything as it was, on every rank alike.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

import oneflow as flow

from ..errors import ConversionError
from ..layout.spec import KINDS, GlobalSpec, Kind
from ..modules.registry import STORE_OF, Module, store, tensors
from ..tensors.convert import Tensor
from .items import Decision, Item, Met, Node


class Plan:
    """The tensors of a value, with the sbp that each will have.

    ``own`` holds the ids of global tensors that do not count as existing ones, ``decided`` what
    was decided by a rule for tensors of these ids. The methods raise
    :class:`ConversionError` for what cannot be done.
    """

    def __init__(
        self,
        spec: GlobalSpec,
        own: Iterable[int] = (),
        decided: Mapping[int, Decision] | None = None,
    ) -> None:
        self.spec = spec
        self.used: set[str] = set()  # the patterns of spec that decided something
        self.conflicts: list[str] = []  # between the rules for one tensor, for a warning
        self.is_due = False  # once it is settled: whether it changes anything
        self._items: dict[int, Item] = {}
        self._changing: list[Item] = []
        self._kept: dict[int, Met] = {}
        self.late: dict[str, str] = {}  # a pattern that came too late, and what to say of it
        self._own = frozenset(own)
        self._decided = {} if decided is None else decided
        self._existing: list[str] = []
        self._elsewhere: tuple[str, Any] | None = None
        self._joins: str | None = None  # what is on the placement already, and comes to others
        self._is_apart = False  # the module that is added to has its tensors elsewhere
        self._wrapped: str | None = None  # a module wrapped for DistributedDataParallel

    def changes(self) -> list[Item]:
        """What is to be converted, in the order in which it was met."""
        self._changing = [item for item in self._items.values() if item.changes]
        return self._changing

    @property
    def has_unchanged(self) -> bool:
        """Whether anything stays as it is; to be asked after :meth:`changes`, if that is called."""
        return bool(self._kept) or len(self._changing) < len(self._items)

    def unchanged(self) -> list[Met]:
        """What that is."""
        changing = {id(item) for item in self._changing}
        items = [item for item in self._items.values() if id(item) not in changing]
        return [*self._kept.values(), *(item.unchanged() for item in items)]

    def add(self, root: str, owner: Module, name: str, kind: Kind, tensor: Tensor) -> None:
        """Take in a tensor that is assigned to ``owner`` by itself."""
        self._look_for_ddp(root, owner)
        self._add(Node(root, name, name, owner, self.spec), name, kind, tensor)

    def add_tree(self, root: str, module: Module, path: str) -> None:
        """Take in a module and all below it; ``root`` is the class that paths start from.

        Below an instance of a class that states its layout, that is what counts.
        """
        seen: set[int] = set()
        waiting = [Node(root, path, path, module, self.spec)]
        while waiting:
            node = waiting.pop().governed()
            self._look_for_ddp(node.label, node.module)
            if id(node.module) in seen:
                self._compare_tree(node)
                continue
            seen.add(id(node.module))
            self._add_own(node)
            waiting.extend(reversed(list(node.children())))

    def add_own(self, root: str, owner: Module, path: str, names: frozenset[str]) -> None:
        """Take in what one module itself holds under ``names``."""
        node = Node(root, path, path, owner, self.spec)
        self._look_for_ddp(node.label, owner)
        self._add_own(node, names)

    def look_at(self, root: str, module: Module, but: str = "") -> None:
        """Note where a module that is added to has its global tensors; ``but``: not that name."""
        for path, tensor in tensors(module):
            if tensor.is_global and path.split(".")[0] != but:
                self._note_placement(f"{root}.{path}", tensor)
                self._is_apart |= tensor.placement != self.spec.placement

    def settle(self) -> None:
        """Raise for what only the value as a whole shows."""
        if self._existing:
            raise ConversionError(
                f"{', '.join(self._existing)}: global already. Expected with existing='error': "
                "local tensors only. Received: global ones. Write existing='keep' to leave these "
                "as they are, or "
                "existing='convert' to give them this placement and sbp"
            )
        first = next((item for item in self._items.values() if item.changes), None)
        self._refuse_two_placements(first)
        if first is None:
            return
        self.is_due = True
        if self._wrapped is not None:
            raise ConversionError(
                f"{first.label}: cannot become global under DistributedDataParallel, whose hooks "
                "reduce local gradients only. Expected: the module before it was wrapped. "
                f"Received: {self._wrapped}, wrapped. Leave the wrapper out: a global model with "
                "broadcast weights and inputs split along the batch is data parallel by itself"
            )
        if flow._oneflow_internal.lazy_mode.is_enabled():
            here, there = "inside nn.Graph.build", "before the graph is built"
        elif threading.current_thread() is not threading.main_thread():
            name = threading.current_thread().name
            here, there = f"in the thread {name!r}", "in the main thread"
        else:
            return
        raise ConversionError(
            f"{first.label}: a {first.kind} cannot become global {here}, where OneFlow has no "
            f"such operation. Expected: an assignment or a call {there}. Received: one of shape "
            f"{first.shape}. Move it there"
        )

    def _refuse_two_placements(self, first: Item | None) -> None:
        added = first.label if first is not None else self._joins if self._is_apart else None
        if not self.spec.same_placement or self._elsewhere is None or added is None:
            return
        label, placement = self._elsewhere
        raise ConversionError(
            f"{added}: {label}, beside it, is on another placement. Expected with "
            "same_placement=True: one placement for all global tensors of a module. Received: "
            f"{self.spec.placement} for {added}, and {placement} of {label}. Write the latter, or "
            "same_placement=False"
        )

    def _look_for_ddp(self, label: str, module: Module) -> None:
        if module.__dict__.get("_is_ddp_module"):
            self._wrapped = f"{label} (a {type(module).__name__})"

    def _add_own(self, node: Node, names: frozenset[str] | None = None) -> None:
        for kind in KINDS:
            for name, tensor in store(node.module, STORE_OF[kind]).items():
                if names is None or name in names:
                    self._add(node.at(name), name, kind, tensor)

    def _add(self, at: Node, name: str, kind: Kind, tensor: Tensor | None) -> None:
        if tensor is None or tensor.is_lazy:
            return
        item = self._items.get(id(tensor))
        # What one module keeps as a buffer may be the Parameter of another one.
        if item is None or (item.kind, kind) == ("buffer", "parameter"):
            if tensor.is_global and at.spec.existing != "convert":
                self._keep(at, name, kind, tensor)
                return
            places = [] if item is None else item.places
            item = self._items[id(tensor)] = self._decide(at, kind, tensor)
            item.places = places
        elif at.path != item.path:
            self._compare(item, at)
        item.places.append((at.module, STORE_OF[kind], name))

    def _keep(self, at: Node, name: str, kind: Kind, tensor: Tensor) -> None:
        if id(tensor) not in self._kept:
            self._kept[id(tensor)] = Met(at.path, at.module, name, kind, tensor, None)
        rules = at.spec.rules
        pattern = rules.matching(at.module, at.rule_path)
        before = self._decided.get(id(tensor))
        if before is not None and before.spec is not at.spec:
            before = None
        if before is not None and pattern and rules.of(pattern) != before.wish:
            self.late.setdefault(
                pattern,
                f"the rule {pattern!r} came too late for {at.label}: a constructor had assigned it "
                f"before, under a shorter path, and {before.pattern!r} has decided. Write "
                "when='exit' for rules by path, or a pattern of the form 'OwnerClass.attribute'",
            )
        # A pattern that stands for a tensor which is kept is no slip of the pen.
        self._use(at, pattern)
        if id(tensor) not in self._own:
            if at.spec.existing == "error":
                self._existing.append(at.label)
            self._note_placement(at.label, tensor)
        if self.spec.same_placement and tensor.placement == self.spec.placement:
            self._joins = self._joins or at.label

    def _use(self, at: Node, pattern: str | None) -> None:
        if pattern is not None and at.spec is self.spec:
            self.used.add(pattern)

    def _note_placement(self, label: str, tensor: Tensor) -> None:
        if self._elsewhere is None and tensor.placement != self.spec.placement:
            self._elsewhere = (label, tensor.placement)

    def _compare_tree(self, node: Node) -> None:
        """Look at a module that was met under another name before, for its rules there."""
        seen: set[int] = set()
        waiting = [node]
        while waiting:
            at = waiting.pop().governed()
            if id(at.module) in seen:
                continue
            seen.add(id(at.module))
            for kind in KINDS:
                for name, tensor in store(at.module, STORE_OF[kind]).items():
                    item = None if tensor is None else self._items.get(id(tensor))
                    if item is not None:
                        self._compare(item, at.at(name))
            waiting.extend(at.children())

    def _compare(self, item: Item, at: Node) -> None:
        """Note where a tied tensor has another rule under another of its names."""
        if item.kind == "buffer" and at.spec.buffers != "sbp":
            return
        pattern = at.spec.rules.matching(at.module, at.rule_path)
        if pattern is None:
            return
        self._use(at, pattern)
        if item.pattern is not None and item.wish != at.spec.rules.of(pattern):
            self.conflicts.append(
                f"{item.label} and {at.label} are one tensor, and the rules {item.pattern!r} and "
                f"{pattern!r} of sbp differ. The first is taken. Write the same sbp for both"
            )

    def _decide(self, at: Node, kind: Kind, tensor: Tensor) -> Item:
        spec, pattern = at.spec, None
        if kind == "buffer" and spec.buffers != "sbp":
            wish = spec.whole() if spec.buffers == "broadcast" else None
        else:
            pattern, wish = spec.rules.wish(at.label, at.module, at.rule_path, tensor)
            self._use(at, pattern)
        item = Item(at, kind, tensor, pattern, wish, wish)
        if wish is not None:
            # Of what is global already the shape is the logical one.
            source = "full" if tensor.is_global else spec.source
            item.sbp = spec.fit(at.label, kind, item.shape, wish, source)
        if not tensor.is_leaf and item.changes:
            raise ConversionError(
                f"{at.label}: a {kind} that autograd still tracks cannot become global without "
                "losing its history. Expected: a leaf tensor. Received: one with a grad_fn, "
                f"shape {item.shape}. Write .detach() where it is assigned"
            )
        return item
