"""The plan of a conversion: what is to become global in a value, settled before a tensor changes.

A value is a Parameter, a buffer, a module tree, or all that was assigned in a scope. Planning
resolves every rule, checks every shape and every option, and changes nothing, so that an
impossible tensor anywhere is told with everything as it was, on every rank alike.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from .._compat import Module, Tensor, is_tracing
from ..errors import ConversionError
from ..layout.placement import Shape
from ..layout.sbp import NdSbp, Wish
from ..layout.spec import GlobalSpec, Kind
from ..modules.registry import STORE_OF, TENSOR_STORES, join, store
from ..modules.tree import Node, tensors, walk
from ..tensors.batch import TensorConversion

Place = tuple[Module, str, str]  # a module, one of its stores, a name in it


class ByRule(NamedTuple):
    """By which rule a tensor has become global.

    The tensor is held, because another one could have its id afterwards.
    """

    spec: GlobalSpec
    pattern: str
    wish: Wish
    tensor: Tensor


class PlannedTensor:
    """One tensor of a value, what was decided for it, and every place where the value holds it.

    ``pattern`` is the rule that decided, where one did, ``wish`` what it asks, and ``sbp`` the wish
    as the tensor can have it. ``rule_path`` is the path that the rules see. One that is to change
    has a ``conversion``, once that is under way.
    """

    # By hand and not as a dataclass, because one is made for each tensor that is met.
    __slots__ = (
        *("conversion", "kind", "path", "pattern", "places", "root", "rule_path", "sbp", "shape"),
        *("spec", "tensor", "wish"),
    )

    def __init__(
        self,
        root: str,
        path: str,
        rule_path: str,
        spec: GlobalSpec,
        place: Place,
        kind: Kind,
        tensor: Tensor,
    ) -> None:
        self.root = root
        self.path = path
        self.rule_path = rule_path
        self.spec = spec
        self.places = [place]
        self.kind = kind
        self.tensor = tensor
        self.shape: Shape = tuple(tensor.shape)
        self.pattern: str | None = None
        self.wish: Wish = None
        self.sbp: Wish = None
        self.conversion: TensorConversion | None = None

    @property
    def label(self) -> str:
        """The tensor's name in messages."""
        return f"{self.root}.{self.path}" if self.path else self.root

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

    @property
    def reason_left(self) -> str | None:
        """Why one that does not change is still local; None where it is global."""
        if self.tensor.is_global:
            return None
        if self.kind == "buffer" and self.spec.buffers is False:
            return "buffers=False"
        rule = "the sbp function" if self.pattern is None else f"the rule {self.pattern!r} of sbp"
        return f"{rule} says None"

    @property
    def fallback(self) -> bool:
        """Whether it cannot be split as it was wished, and is broadcast in that place."""
        return self.sbp != self.wish and self.shape != ()


class Plan:
    """The tensors of a value, with the sbp that each will have.

    ``own`` holds the ids of global tensors that do not count as existing ones, ``by_rule`` what
    was decided by a rule for tensors of these ids. The methods raise
    :class:`ConversionError` for what cannot be done.
    """

    def __init__(
        self,
        spec: GlobalSpec,
        own: Iterable[int] = (),
        by_rule: Mapping[int, ByRule] | None = None,
    ) -> None:
        self.spec = spec
        self.used: set[str] = set()  # the patterns of spec that decided something
        self.conflicts: list[str] = []  # between the rules for one tensor, for a warning
        self.late: dict[str, str] = {}  # a pattern that came too late, and what to say of it
        self.is_due = False  # once it is settled: whether it changes anything
        self._planned: dict[int, PlannedTensor] = {}
        self._kept: dict[int, PlannedTensor] = {}
        self._own = frozenset(own)
        self._by_rule = {} if by_rule is None else by_rule
        self._existing: list[str] = []
        self._elsewhere: tuple[str, Any] | None = None
        self._joins: str | None = None  # what is on the placement already, and comes to others
        self._is_apart = False  # the module that is added to has its tensors elsewhere
        self._wrapped: str | None = None  # a module wrapped for DistributedDataParallel

    def changing(self) -> list[PlannedTensor]:
        """What is to be converted, in the order in which it was met."""
        changing = []
        for one in self._planned.values():
            if one.changes:
                changing.append(one)
        return changing

    def unchanged(self, changing: Collection[PlannedTensor]) -> list[PlannedTensor]:
        """What stays as it is, where this is what is or was to be converted."""
        if not self._kept and len(changing) == len(self._planned):
            return []
        but = {id(one) for one in changing}
        others = [one for one in self._planned.values() if id(one) not in but]
        return [*self._kept.values(), *others]

    def add_tensor(self, root: str, owner: Module, name: str, kind: Kind, tensor: Tensor) -> None:
        """Take in a tensor that is assigned to ``owner`` by itself."""
        self._look_for_ddp(root, owner)
        if not tensor.is_lazy:
            place = (owner, STORE_OF[kind], name)
            self._add(PlannedTensor(root, name, name, self.spec, place, kind, tensor))

    def add_tree(self, root: str, module: Module, path: str) -> None:
        """Take in a module and all below it; ``root`` is the class that paths start from.

        Below an instance of a class that states its layout, that is what counts.
        """
        for node in walk(module, path, root=root, spec=self.spec, again=True, rings=True):
            self._look_for_ddp(node.label, node.module)
            if node.again:
                self._compare_own(node)
            else:
                self._add_own(node)

    def add_names(self, root: str, module: Module, path: str, names: Iterable[str]) -> None:
        """Take in what one module itself holds under these names."""
        node = Node(root, path, module, self.spec)
        # Not as its class states, because such a class has converted what is its own by itself.
        node.spec, node.rule_path = self.spec, path
        self._look_for_ddp(node.label, module)
        self._add_own(node, names)

    def _add_own(self, node: Node, names: Iterable[str] | None = None) -> None:
        for kind, which in TENSOR_STORES:
            for name, tensor in store(node.module, which).items():
                if (names is None or name in names) and tensor is not None and not tensor.is_lazy:
                    self._add(_planned(node, kind, which, name, tensor))

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
        changing = self.changing()
        first = changing[0] if changing else None
        if self.spec.same_placement:
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
        if is_tracing():
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

    def _refuse_two_placements(self, first: PlannedTensor | None) -> None:
        added = first.label if first is not None else self._joins if self._is_apart else None
        if self._elsewhere is None or added is None:
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

    def _add(self, met: PlannedTensor) -> None:
        tensor = met.tensor
        known = self._planned.get(id(tensor))
        # What one module keeps as a buffer may be the Parameter of another one.
        if known is None or (known.kind, met.kind) == ("buffer", "parameter"):
            if tensor.is_global and met.spec.existing != "convert":
                self._keep(met)
                return
            self._decide(met)
            if known is not None:
                met.places = [*known.places, *met.places]
            self._planned[id(tensor)] = met
            return
        if met.path != known.path:
            self._compare(known, met)
        known.places += met.places

    def _keep(self, met: PlannedTensor) -> None:
        tensor = met.tensor
        self._kept.setdefault(id(tensor), met)
        stated = met.spec.rules.stated(met.places[0][0], met.rule_path)
        pattern = None if stated is None else stated.pattern
        before = self._by_rule.get(id(tensor))
        if before is not None and before.spec is not met.spec:
            before = None
        if before is not None and stated is not None and pattern and stated.sbp != before.wish:
            self.late.setdefault(
                pattern,
                f"the rule {pattern!r} came too late for {met.label}: a constructor had assigned "
                f"it before, under a shorter path, and {before.pattern!r} has decided. Write "
                "when='exit' for rules by path, or a pattern of the form 'OwnerClass.attribute'",
            )
        # A pattern counts as used where it matches a tensor that is kept.
        if pattern is not None:
            self._use(met, pattern)
        if id(tensor) not in self._own:
            if met.spec.existing == "error":
                self._existing.append(met.label)
            self._note_placement(met.label, tensor)
        if self.spec.same_placement and tensor.placement == self.spec.placement:
            self._joins = self._joins or met.label

    def _use(self, met: PlannedTensor, pattern: str) -> None:
        if met.spec is self.spec:
            self.used.add(pattern)

    def _note_placement(self, label: str, tensor: Tensor) -> None:
        if self._elsewhere is None and tensor.placement != self.spec.placement:
            self._elsewhere = (label, tensor.placement)

    def _compare_own(self, node: Node) -> None:
        """Look at a module that was met under another name before, for its rules there."""
        for kind, which in TENSOR_STORES:
            for name, tensor in store(node.module, which).items():
                known = None if tensor is None else self._planned.get(id(tensor))
                if known is not None:
                    self._compare(known, _planned(node, kind, which, name, tensor))

    def _compare(self, known: PlannedTensor, met: PlannedTensor) -> None:
        """Note where a tied tensor has another rule under another of its names."""
        if known.kind == "buffer" and met.spec.buffers != "sbp":
            return
        stated = met.spec.rules.stated(met.places[0][0], met.rule_path)
        if stated is None or stated.pattern is None:
            return
        self._use(met, stated.pattern)
        if known.pattern is not None and known.wish != stated.sbp:
            self.conflicts.append(
                f"{known.label} and {met.label} are one tensor, and the rules {known.pattern!r} "
                f"and {stated.pattern!r} of sbp differ. The first is taken. Write the same sbp for "
                "both"
            )

    def _decide(self, met: PlannedTensor) -> None:
        spec, kind, tensor, label = met.spec, met.kind, met.tensor, met.label
        if kind == "buffer" and spec.buffers != "sbp":
            met.wish = spec.layout.broadcast if spec.buffers == "broadcast" else None
        else:
            owner = met.places[0][0]
            met.pattern, met.wish = spec.rules.decide(owner, met.rule_path, tensor, label)
            if met.pattern is not None:
                self._use(met, met.pattern)
        if met.wish is None:
            return
        # Of what is global already the shape is the logical one.
        source = "full" if tensor.is_global else spec.source
        met.sbp = spec.fit(label, kind, met.shape, met.wish, source)
        if not tensor.is_leaf and met.changes:
            raise ConversionError(
                f"{label}: a {kind} that autograd still tracks cannot become global without "
                "losing its history. Expected: a leaf tensor. Received: one with a grad_fn, "
                f"shape {met.shape}. Write .detach() where it is assigned"
            )


def _planned(node: Node, kind: Kind, which: str, name: str, tensor: Tensor) -> PlannedTensor:
    path = join(node.path, name)
    rule_path = path if node.rule_path is node.path else join(node.rule_path, name)
    assert node.spec is not None
    place = (node.module, which, name)
    return PlannedTensor(node.root, path, rule_path, node.spec, place, kind, tensor)
