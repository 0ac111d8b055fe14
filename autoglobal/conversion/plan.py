"""The plan of a conversion: what is to become global in a value, settled before a tensor changes.

A value is a Parameter, a buffer, a module tree, or all that was assigned in a scope. Planning
resolves every rule, checks every shape and every option, and changes nothing, so that an
impossible tensor anywhere is told with everything as it was, on every rank alike.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Optional

from .. import _compat
from .._compat import Module, Tensor, in_one_memory, is_tracing
from ..errors import ConversionError
from ..layout.patterns import Pattern
from ..layout.placed import Target
from ..layout.placement import PlacementLayout, Shape, layout_of
from ..layout.rules import Decision
from ..layout.sbp import NdSbp, show_sbp
from ..layout.spec import GlobalSpec, Kind, fitting
from ..layout.unused import Seen
from ..modules.decorated import stated_spec
from ..modules.registry import STORE_OF, TENSOR_STORES, join, store
from ..modules.tree import Node, placements_in, tensors, walk
from ..tensors.batch import TensorConversion

Place = tuple[Module, str, str]  # a module, one of its stores, a name in it


class ByRule(NamedTuple):
    """By which rule a tensor has become global, its name in messages, and where it was then.

    ``places`` are ids of modules, with names. The tensor is held, because another one could have
    its id afterwards.
    """

    spec: GlobalSpec
    decision: Decision
    tensor: Tensor
    label: str
    places: frozenset[tuple[int, str]]


class PlannedTensor:
    """One tensor of a value, what was decided for it, and every place where the value holds it.

    ``node`` is the module that holds it under its first name, ``decision`` what the rules ask, and
    ``sbp`` that as the tensor can have it, on ``layout``. ``also`` are its further names.
    ``rule_path`` is the path that the rules see. One that is to change has a ``conversion``, once
    that is under way; one that cannot has an ``error``.
    """

    # By hand and not as a dataclass, because one is made for each tensor that is met.
    __slots__ = (
        *("also", "conversion", "decision", "error", "kind", "layout", "name", "node", "places"),
        *("sbp", "shape", "spec", "tensor"),
    )

    def __init__(self, node: Node, which: str, name: str, kind: Kind, tensor: Tensor) -> None:
        assert node.spec is not None
        self.node = node
        self.name = name
        self.spec = node.spec
        self.layout = node.spec.layout
        self.places: list[Place] = [(node.module, which, name)]
        self.kind = kind
        self.tensor = tensor
        self.shape: Shape = tuple(tensor.shape)
        self.also: list[PlannedTensor] | None = None
        self.decision: Decision | None = None
        self.sbp: Optional[NdSbp] = None
        self.conversion: TensorConversion | None = None
        self.error: ConversionError | None = None

    @property
    def path(self) -> str:
        # Not by join(), because each assignment comes through here.
        above = self.node.path
        return f"{above}.{self.name}" if above else self.name

    @property
    def rule_path(self) -> str:
        return join(self.node.rule_path, self.name)

    @property
    def label(self) -> str:
        """The tensor's name in messages."""
        return f"{self.node.root}.{self.path}"

    @property
    def owner(self) -> Module:
        return self.node.module

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
        return bool(tensor.placement != self.layout.placement or tensor.sbp != self.sbp)

    @property
    def rule(self) -> str | None:
        """What has decided, in words."""
        return None if self.decision is None else self.decision.rule

    @property
    def reason_left(self) -> str | None:
        """Why one that does not change is still local; None where it is global."""
        if self.tensor.is_global:
            return None
        if self.kind == "buffer" and self.spec.buffers is False:
            return "buffers=False"
        pattern = None if self.decision is None else self.decision.pattern
        rule = "the sbp function" if pattern is None else f"the rule {pattern.shown} of sbp"
        return f"{rule} says None"

    @property
    def fallback(self) -> bool:
        """Whether it cannot be split as it was asked for, and is broadcast in that place."""
        target = None if self.decision is None else self.decision.target
        if target is None or self.shape == ():
            return False
        asked = target.sbp if target.layout is not None else target.on(self.layout)
        return self.sbp != asked

    @property
    def is_by_rules(self) -> bool:
        """Whether the rules decide on it, and not ``buffers``."""
        return self.kind == "parameter" or self.spec.buffers == "sbp"

    def held_at(self) -> frozenset[tuple[int, str]]:
        """Where it is, under further names too: ids of modules, with names."""
        held = [(id(module), name) for module, _, name in self.places]
        return frozenset([*held, *((id(one.owner), one.name) for one in self.also or ())])

    @property
    def is_kept(self) -> bool:
        """Whether it is global already and stays as it is."""
        return bool(self.tensor.is_global) and self.spec.existing != "convert"

    def stated(self) -> Decision | None:
        """What the rules say of this name, as far as the caller's function is not needed."""
        return self.spec.rules.stated(type(self.node.module), self.rule_path)

    def asks_otherwise(self) -> bool:
        """Whether what the rules ask for a tensor that is kept is not what it has."""
        if self.decision is None and self.is_by_rules:
            self.decision = self.stated()
        target = None if self.decision is None else self.decision.target
        if target is None:
            return False
        tensor = self.tensor
        layout = layout_of(tensor.placement) if target.layout is None else target.layout
        sbp = target.on(layout) if target.layout is None else target.sbp
        if sbp is None or layout.placement != tensor.placement:
            return True
        try:
            target = Target(layout, sbp)
            sbp = self.spec.fit(lambda: self.label, self.kind, self.shape, target, "full")
        except ConversionError:
            return True
        return bool(sbp != tuple(tensor.sbp))


def conflict(first: str, decided: Decision, second: str, other: Decision) -> str:
    """What there is to say of one tensor with two names for which the rules differ."""
    return (
        f"{first} and {second} are one tensor, and the rules {decided.shown} and {other.shown} of "
        "sbp differ. The first is taken. Write the same sbp for both"
    )


class Plan:
    """The tensors of a value, with the layout that each will have.

    ``own`` holds the ids of global tensors that do not count as existing ones, ``by_rule`` what
    was decided by a rule for tensors of these ids. :meth:`settle` raises
    :class:`ConversionError` for what cannot be done; :meth:`decide` and :meth:`problems` collect
    it instead.
    """

    def __init__(
        self,
        spec: GlobalSpec,
        own: Iterable[int] = (),
        by_rule: Mapping[int, ByRule] | None = None,
    ) -> None:
        self.spec = spec
        self.used: set[Pattern] = set()  # those of spec that decided something
        # Between the rules for one tensor: two paths, and what to say of them.
        self.conflicts: list[tuple[tuple[str, ...], str]] = []
        # What is asked for a further name of a tensor that had become global before.
        self.ties: dict[tuple[int, str], Decision] = {}
        self.late: dict[Pattern, str] = {}  # one that came too late, and what to say of it
        self.kept_otherwise: dict[Pattern, str] = {}  # one that asks another layout than was kept
        self.is_due = False  # once it is settled: whether it changes anything
        self._planned: dict[int, PlannedTensor] = {}
        self._kept: dict[int, PlannedTensor] = {}
        self._own = frozenset(own)
        self._by_rule = {} if by_rule is None else by_rule
        self._existing: list[str] = []
        self._assigned: tuple[Module, str] | None = None  # what is to be replaced is no guide
        self._nearby: dict[int, dict[Any, str]] = {}
        # The first that is on the scope's placement, and the first that is not: what comes in, and
        # what is in the module that it comes to.
        self._on: tuple[str | None, str | None] = None, None
        self._elsewhere: list[tuple[str, Any] | None] = [None, None]
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

    def tensors(self) -> Iterator[PlannedTensor]:
        """All that was met: what is kept, and what is not."""
        yield from self._kept.values()
        yield from self._planned.values()

    def seen(self) -> Iterator[Seen]:
        """What the rules of the spec were tried against."""
        for one in self.tensors():
            for name in (one, *(one.also or ())):
                if name.spec is self.spec:
                    yield Seen(type(name.owner), name.rule_path, one.is_by_rules)

    def add_tensor(self, root: str, owner: Module, name: str, kind: Kind, tensor: Tensor) -> None:
        """Take in a tensor that is assigned to ``owner`` by itself."""
        # Not as its class states, because such a class converts by itself.
        node = Node(root, "", owner, self.spec)
        self._look_for_ddp(node)
        self._assigned = owner, name
        if not tensor.is_lazy:
            self._add(PlannedTensor(node, STORE_OF[kind], name, kind, tensor))

    def add_assigned(self, root: str, owner: Module, name: str, module: Module) -> None:
        """Take in a module that is assigned to ``owner``, and all below it."""
        self._assigned = owner, name
        self.add_tree(root, module, name, Node(root, "", owner, self.spec))

    def add_tree(self, root: str, module: Module, path: str, above: Node | None = None) -> None:
        """Take in a module and all below it; ``root`` is the class that paths start from.

        Below an instance of a class that states its layout, that is what counts.
        """
        for node in walk(
            module,
            path,
            root=root,
            spec=self.spec,
            spec_of=partial(stated_spec, is_here=self.spec.is_here),
            above=above,
            again=True,
            rings=True,
        ):
            self._look_for_ddp(node)
            if node.again:
                self._add_names_of(node)
            else:
                self._add_own(node)

    def add_names(self, node: Node, names: Iterable[str]) -> None:
        """Take in what one module itself holds under these names."""
        # Not as its class states, because such a class has converted what is its own by itself.
        own = Node(node.root, node.path, node.module, self.spec, above=node.above)
        self._look_for_ddp(own)
        self._add_own(own, names)

    def _add_own(self, node: Node, names: Iterable[str] | None = None) -> None:
        for kind, which in TENSOR_STORES:
            for name, tensor in store(node.module, which).items():
                if (names is None or name in names) and tensor is not None and not tensor.is_lazy:
                    self._add(PlannedTensor(node, which, name, kind, tensor))

    def look_at(self, root: str, module: Module, but: str = "") -> None:
        """Note where a module that is added to has its global tensors; ``but``: not that name."""
        for path, tensor in tensors(module):
            if tensor.is_global and path.split(".")[0] != but:
                self._note_placement(f"{root}.{path}", tensor, 1)

    def decide(self) -> bool:
        """Decide for each tensor; what cannot be done is its ``error``. Return whether all can."""
        all_can = True
        for one in self._planned.values():
            try:
                self._decide(one)
            except ConversionError as error:
                one.error, all_can = error, False
        return all_can

    def problems(self, changing: Sequence[PlannedTensor]) -> Iterator[ConversionError]:
        """What cannot be done, of each tensor and of the value as a whole, once it is decided."""
        for one in self._planned.values():
            if one.error is not None:
                yield one.error
        if self._existing:
            yield ConversionError(
                f"{', '.join(self._existing)}: global already. Expected with existing='error': "
                "local tensors only. Received: global ones. Write existing='keep' to leave these "
                "as they are, or "
                "existing='convert' to give them this placement and sbp"
            )
        first = changing[0] if changing else None
        if self.spec.same_placement:
            yield from self._two_placements(first)
        if first is not None and self._wrapped is not None:
            yield ConversionError(
                f"{first.label}: cannot become global under DistributedDataParallel, whose hooks "
                "reduce local gradients only. Expected: the module before it was wrapped. "
                f"Received: {self._wrapped}, wrapped. Leave the wrapper out: a global model with "
                "broadcast weights and inputs split along the batch is data parallel by itself"
            )

    def in_one_memory(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Parameters that are to change and share their memory: their paths, and what to say."""
        changing = (one for one in self.changing() if one.kind == "parameter")
        for group in in_one_memory((one, one.shape, one.tensor) for one in changing):
            first, second, *_ = group
            yield (
                tuple(one.path for one in group),
                f"{' and '.join(one.label for one in group)} are Parameters of their own on one "
                "memory. Once they are global a write to one may no longer reach the other. Write "
                f"{second.path} = {first.path}, which makes them one Parameter",
            )

    def settle(self) -> None:
        """Decide for each tensor, and raise the first problem."""
        all_can = self.decide()
        changing = self.changing()
        # Asked first, because each assignment comes through here.
        if not all_can or self._existing or self._wrapped or self.spec.same_placement:
            for error in self.problems(changing):
                raise error
        self.is_due = bool(changing)
        if not self.is_due:
            return
        if is_tracing():
            here, there = "inside nn.Graph.build", "before the graph is built"
        elif threading.current_thread() is not threading.main_thread():
            name = threading.current_thread().name
            here, there = f"in the thread {name!r}", "in the main thread"
        elif _compat.is_forked:
            here, there = "in a child of fork", "in the process that has imported oneflow"
        else:
            return
        first = changing[0]
        raise ConversionError(
            f"{first.label}: a {first.kind} cannot become global {here}, where OneFlow has no "
            f"such operation. Expected: an assignment or a call {there}. Received: one of shape "
            f"{first.shape}. Move it there"
        )

    def _two_placements(self, first: PlannedTensor | None) -> Iterator[ConversionError]:
        comes_on, is_on = self._on
        comes_elsewhere, is_elsewhere = self._elsewhere
        # What is on two placements by itself may be moved about, and may not be added to.
        if first is not None:
            on, elsewhere = first.label, comes_elsewhere or is_elsewhere
        elif comes_on is not None and is_elsewhere is not None:
            on, elsewhere = comes_on, is_elsewhere
        else:
            on, elsewhere = is_on or "", comes_elsewhere
        if not on or elsewhere is None:
            return
        label, placement = elsewhere
        yield ConversionError(
            f"{on}: {label}, beside it, is on another placement. Expected with "
            "same_placement=True: one placement for all global tensors of a module. Received: "
            f"{self.spec.placement} for {on}, and {placement} of {label}. Write the latter, or "
            "same_placement=False"
        )

    def _look_for_ddp(self, node: Node) -> None:
        if node.module.__dict__.get("_is_ddp_module"):
            self._wrapped = f"{node.label} (a {type(node.module).__name__})"

    def _add(self, met: PlannedTensor) -> None:
        tensor = met.tensor
        known = self._planned.get(id(tensor))
        if known is None:
            # Not by is_kept, because each tensor that is met comes through here.
            if tensor.is_global and met.spec.existing != "convert":
                self._keep(met)
            else:
                self._planned[id(tensor)] = met
            return
        first, other = known, met
        # What one module keeps as a buffer may be the Parameter of another one.
        if (known.kind, met.kind) == ("buffer", "parameter"):
            self._planned[id(tensor)], first, other = met, met, known
        first.places = [*known.places, *met.places]
        first.also = [*(known.also or ()), other]

    def _add_names_of(self, node: Node) -> None:
        """Take in the names that tensors have below a module that was met before."""
        for kind, which in TENSOR_STORES:
            for name, tensor in store(node.module, which).items():
                known = None if tensor is None else self._planned.get(id(tensor))
                if known is not None:
                    other = PlannedTensor(node, which, name, kind, tensor)
                    known.also = [*(known.also or ()), other]

    def _keep(self, met: PlannedTensor) -> None:
        tensor = met.tensor
        self._kept.setdefault(id(tensor), met)
        if met.spec.rules.decisions and met.is_by_rules:
            met.decision = stated = met.stated()
            if stated is not None and stated.pattern is not None:
                self._compare_with_rule(met, stated, stated.pattern)
        if id(tensor) not in self._own:
            if met.spec.existing == "error":
                self._existing.append(met.label)
            if self.spec.same_placement:
                self._note_placement(met.label, tensor, 0)
        if self.spec.same_placement and tensor.placement == self.spec.placement:
            self._on = self._on[0] or met.label, self._on[1]

    def _compare_with_rule(self, met: PlannedTensor, stated: Decision, pattern: Pattern) -> None:
        """Note whether a tensor that is kept has the layout that a rule asks."""
        before = self._by_rule.get(id(met.tensor))
        if before is not None and before.spec is not met.spec:
            before = None
        if before is not None and stated.target != before.decision.target:
            if (id(met.owner), met.name) not in before.places:
                self._use(met, pattern)
                self.ties[id(met.owner), met.name] = stated
                return
            by = before.decision.pattern
            self.late.setdefault(
                pattern,
                f"the rule {pattern.shown} came too late for {met.label}: a constructor had "
                f"assigned it before, under a shorter path, and {by and by.shown} has decided. "
                "Write when='exit' for rules by path, or a pattern of the form "
                "'OwnerClass.attribute'",
            )
        elif before is None and met.asks_otherwise():
            if met.spec is self.spec:
                self.kept_otherwise.setdefault(
                    pattern,
                    f"the rule {pattern.shown} of sbp asks {stated.target} for {met.label}, which "
                    f"is global already as {show_sbp(met.tensor.sbp)} on {met.tensor.placement} "
                    "and was kept. Write existing='convert', or leave the rule out",
                )
            return
        self._use(met, pattern)

    def _use(self, met: PlannedTensor, pattern: Pattern) -> None:
        if met.spec is self.spec:
            self.used.add(pattern)

    def _note_placement(self, label: str, tensor: Tensor, where: int) -> None:
        if tensor.placement != self.spec.placement:
            if self._elsewhere[where] is None:
                self._elsewhere[where] = label, tensor.placement
        elif where == 1:
            self._on = self._on[0], self._on[1] or label

    def _decide(self, met: PlannedTensor) -> None:
        decision, node = met.spec.rules.for_all, met.node
        if met.kind == "buffer" and met.spec.buffers != "sbp":
            decision = self._for_buffer(met)
        elif decision is None or met.also:
            decision, node = self._by_name(met)
        met.decision = decision
        target = decision.target
        if target is None:
            return
        if target.layout is None:
            target = self._resolved(met, node, target)
        assert target.layout is not None
        met.layout = target.layout
        # Of what is global already the shape is the logical one.
        source = "full" if met.tensor.is_global else met.spec.source
        # Not by fit() alone, because each tensor that is met comes through here.
        met.sbp, misfit = fitting(
            met.shape, target.sbp, target.layout.hierarchy, source, met.spec.unsplittable
        )
        if misfit is not None:
            met.sbp = None
            met.spec.fit(lambda: met.label, met.kind, met.shape, target, source)
        grad = met.tensor.grad if met.tensor.is_leaf else None
        if (grad is None and met.tensor.is_leaf) or not met.changes:
            return
        if grad is not None and not grad.is_lazy and tuple(grad.shape) != met.shape:
            met.sbp = None
            raise ConversionError(
                f"{met.label}: its gradient has another shape. Expected: {met.shape}, that of the "
                f"{met.kind}. Received: {tuple(grad.shape)}. Write .grad = None before, or give it "
                "the gradient that it has"
            )
        if not met.tensor.is_leaf:
            met.sbp = None
            raise ConversionError(
                f"{met.label}: a {met.kind} that autograd still tracks cannot become global "
                "without losing its history. Expected: a leaf tensor. Received: one with a "
                f"grad_fn, shape {met.shape}. Write .detach() where it is assigned"
            )

    def _by_name(self, met: PlannedTensor) -> tuple[Decision, Node]:
        """What the rules ask, and the module at whose name they do.

        Of several names the first counts, but for those that only the catch-all matches.
        """
        also = [name for name in met.also or () if name.is_by_rules or met.kind == "parameter"]
        if not also:
            decision = met.spec.rules.decide(met.owner, met.rule_path, met.tensor, met.label)
            if decision.pattern is not None:
                self._use(met, decision.pattern)
            return decision, met.node
        stated = []
        for name in (met, *also):
            found = name.stated()
            if found is not None and found.pattern is not None:
                self._use(name, found.pattern)
                stated.append((name, found))
        if not met.spec.rules.decisions or not stated:
            # One sbp for all, or a function, which is asked for the first name.
            decision = met.spec.rules.decide(met.owner, met.rule_path, met.tensor, met.label)
            return decision, met.node
        specific = [one for one in stated if one[1].is_specific]
        decider, decision = (specific or stated)[0]
        told = {met.path} if decider is not met else set()
        for name, found in specific:
            if found.target != decision.target and name.path not in told:
                told.add(name.path)
                text = conflict(decider.label, decision, name.label, found)
                self.conflicts.append(((decider.path, name.path), text))
        met.spec = decider.spec
        return decision, decider.node

    def _for_buffer(self, met: PlannedTensor) -> Decision:
        """What ``buffers`` asks for one of which the rules say whether and where it is global."""
        rule = f"buffers={met.spec.buffers!r}"
        if met.spec.buffers is False:
            return Decision(None, None, rule)
        rules = met.spec.rules
        by, found = self._rule_for_buffer(met)
        layout: PlacementLayout | None = by.spec.layout
        if found is not None:
            if found.pattern is not None and (rules.says_none or rules.names_placements):
                self._use(by, found.pattern)
            if found.target is None:
                return found
            layout = found.target.layout
        if layout is None:
            layout = self._nearest(met, by.node)
        return Decision(None, Target(layout, layout.broadcast), rule)

    def _rule_for_buffer(self, met: PlannedTensor) -> tuple[PlannedTensor, Decision | None]:
        """The name of a buffer that counts, as of a Parameter, and what the rules say of it."""
        first = met.spec.rules.find(met.owner, met.rule_path, met.tensor, met.label)
        if first is None or not first.is_specific:
            for name in met.also or ():
                found = name.stated()
                if found is not None and found.is_specific:
                    return name, found
        return met, first

    def _resolved(self, met: PlannedTensor, node: Node, target: Target) -> Target:
        layout = self._nearest(met, node)
        sbp = target.on(layout)
        if sbp is None:
            dims = len(layout.hierarchy)
            raise ConversionError(
                f"{met.label}: sbp must have one entry per placement dimension, and the nearest "
                f"placement has {dims}. Expected: {dims} of them. Received: "
                f"{show_sbp(target.sbp)} for {layout.placement}. Write "
                f"Placed(nearest, [{', '.join(['flow.sbp.broadcast'] * dims)}])"
            )
        return Target(layout, sbp)

    def _nearest(self, met: PlannedTensor, node: Node | None) -> PlacementLayout:
        """The placement of the nearest module at or above a node that holds global tensors."""
        while node is not None:
            found = self._placements_in(node.module)
            if len(found) > 1:
                where = ", ".join(f"{path} on {known}" for known, path in found.items())
                raise ConversionError(
                    f"{met.label}: nearest is to be the placement of {node.label}. Expected: its "
                    f"global tensors on one placement. Received: {where}. Write "
                    "Placed(placement, sbp) with one of them"
                )
            for placement in found:
                return layout_of(placement)
            node = node.above
        raise ConversionError(
            f"{met.label}: nearest names no placement, because no module at or above it holds a "
            f"global tensor. Expected: a global one in {met.node.root}. Received: local ones only. "
            "Write Placed(placement, sbp), or when='exit' for what a constructor builds first"
        )

    def _placements_in(self, module: Module) -> dict[Any, str]:
        """The placements of the global tensors of a tree, each with a path there."""
        found = self._nearby.get(id(module))
        if found is None:
            assigned = self._assigned
            but = assigned[1] if assigned is not None and assigned[0] is module else None
            found = self._nearby[id(module)] = placements_in(module, but)
        return found
