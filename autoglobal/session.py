"""One passage through a scope, or one call: it plans, converts, and records what it did."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Optional

import oneflow as flow
from oneflow import nn
from tqdm import tqdm

from .assigned import Assigned
from .convert import Tensor, globalize, item_size, make_global
from .errors import LateRuleWarning, TiedRulesWarning, UnusedRuleWarning
from .items import Decision, Item, Place
from .memo import Memo, remember_replacement, replacement
from .plan import Plan
from .registry import STORE_OF, Before, Module, Slot, has_own_methods, store
from .rules import NdSbp
from .spec import GlobalSpec, Kind, Shape


@dataclass(frozen=True)
class Record:
    """One tensor that was made global.

    ``path`` starts at the name that was assigned (``"sub.attn.weight"``), ``owner`` is the class
    of the module that holds the tensor, ``shape`` the logical shape, ``nbytes`` the bytes of
    this rank's component. ``fallback`` is True where ``unsplittable="broadcast"`` made it
    broadcast along some placement dimension.
    """

    path: str
    owner: str
    kind: Kind
    shape: Shape
    dtype: Any
    placement: Any
    sbp: NdSbp
    nbytes: int
    fallback: bool = False


# The assignment that is being carried out: the module, the name, the value.
_pending: ContextVar[Optional[tuple[Module, str, Any]]] = ContextVar("pending", default=None)


class Session:
    """The state of one scope that is open, or of one call.

    ``own`` are global tensors that do not count as existing ones.
    """

    def __init__(self, spec: GlobalSpec, own: Iterable[Tensor] = ()) -> None:
        self.spec = spec
        self.converted: list[Record] = []
        self._memo = Memo()
        self._used: set[str] = set()
        self._conflicts: list[str] = []
        self._late: dict[str, str] = {}
        self._by_rule: dict[int, Decision] = {}
        self._own = {id(tensor): tensor for tensor in own}  # and what this session makes global
        self._assigned = Assigned()  # with when="exit"

    def assign(
        self, forward: Callable[[], Any], module: Module, slot: Slot, name: str, value: Any
    ) -> Any:
        """Let OneFlow register ``value`` by ``forward()``, then make global what is local in it.

        OneFlow goes first because it may refuse (a name that is a class attribute, say), which
        has to be known before anything is sent. Where the conversion fails afterwards the module
        is as it was before.
        """
        call = (module, name, value)
        pending = _pending.get()
        if pending is not None and all(a is b for a, b in zip(pending, call)):
            return forward()  # another hook is at it: __setattr__ calls register_parameter
        if self.spec.when == "exit":
            goes_on = id(value) in self._not_existing(module, slot, name, value)
            result = forward()
            (self._assigned.forget if goes_on else self._assigned.add)(module, name)
            return result
        root = type(module).__name__
        own = self._not_existing(module, slot, name, value)
        plan = Plan(self.spec, own, self._by_rule)
        if slot == "module":
            plan.add_tree(root, value, name)
        else:
            plan.add(root, module, name, slot, value)
        if self.spec.same_placement:
            plan.look_at(root, module, but=name)
        plan.settle()
        self._used |= plan.used
        self._late.update(plan.late)
        before = Before(module, name) if plan.changes() else None
        token = _pending.set(call)
        try:
            result = forward()
        finally:
            _pending.reset(token)
        if before is None:
            return result
        if slot == "module" and store(module, STORE_OF[slot]).get(name) is not value:
            return result  # a class of its own mind keeps it elsewhere, or another one
        try:
            self._apply(plan)
        except BaseException:
            before.restore()
            raise
        return result

    def _not_existing(self, module: Module, slot: Slot, name: str, value: Any) -> Iterable[int]:
        """The ids of global tensors that are no find for ``existing="error"``."""
        if self.spec.existing != "error":
            return ()
        own = set(self._own)
        held = None if slot == "module" else store(module, STORE_OF[slot]).get(name)
        if held is not None and held.is_global:
            own.add(id(value))  # what is global goes on as such: an average that is updated
        return own

    def forget(self, module: Module, name: str) -> None:
        """With ``when="exit"``: the name was assigned again where nothing is converted."""
        self._assigned.forget(module, name)

    def forget_tree(self, module: Module) -> None:
        """With ``when="exit"``: a class that states its layout has taken the tree over."""
        self._assigned.forget_tree(module)

    def convert_tree(self, module: Module, progress: bool = False) -> None:
        """Make global what is local in a module that exists."""
        plan = Plan(self.spec)
        plan.add_tree(type(module).__name__, module, "")
        plan.settle()
        self._used |= plan.used
        self._apply(plan, progress)

    def convert_assigned(self) -> None:
        """With ``when="exit"``: make global what was assigned, as one value."""
        plan = Plan(self.spec)
        for root in self._assigned.roots():
            for path, owner, names in self._assigned.below(root):
                if names is None:
                    plan.add_tree(type(root).__name__, owner, path)
                else:
                    plan.add_own(type(root).__name__, owner, path, names)
            if self.spec.same_placement:
                plan.look_at(type(root).__name__, root)
        plan.settle()
        self._used |= plan.used
        self._apply(plan)

    def warn(self, stacklevel: int) -> None:
        """Name the patterns that decided nothing, and those that differ over a tied tensor."""
        messages: list[tuple[str, type[Warning]]] = [
            (message, TiedRulesWarning) for message in self._conflicts
        ]
        messages += [(message, LateRuleWarning) for message in self._late.values()]
        patterns = self.spec.rules.patterns
        for pattern in patterns:
            # A last '*' for what the others leave over may have nothing to do.
            if pattern not in self._used and not (pattern == "*" == patterns[-1]):
                text = (
                    f"the rule {pattern!r} of sbp decided for no tensor: it matched nothing, or "
                    "only what an earlier rule or buffers="
                    f"{self.spec.buffers!r} decides. Patterns are matched against the path and "
                    "against OwnerClass.attribute. Correct it or leave it out"
                )
                messages.append((text, UnusedRuleWarning))
        for message, category in messages:
            warnings.warn(message, category, stacklevel=stacklevel + 1)

    def close(self) -> None:
        """Let go of every tensor and module."""
        self._memo.close()
        self._own.clear()
        self._by_rule.clear()
        self._assigned.clear()

    def _apply(self, plan: Plan, progress: bool = False) -> None:
        """Convert, then put in place. Until every tensor is converted nothing has changed."""
        changes: Iterable[Item] = plan.changes()
        if progress and flow.env.get_rank() == 0:
            changes = tqdm(changes, "local to global")
        ready = []
        for item in changes:
            # A hook nearer to the registry may have been here, or a class kept something else.
            places = [
                (owner, which, name)
                for owner, which, name in item.places
                if store(owner, which).get(name) is item.tensor
            ]
            if places and item.changes:
                ready.append((item, places, *self._convert(item)))
        for one in ready:
            self._put(*one)
        self._conflicts += plan.conflicts

    def _convert(self, item: Item) -> tuple[Tensor, Tensor | None]:
        known = replacement(item.tensor)
        if known is not None:
            return known, known.grad
        grad = item.tensor.grad
        if grad is not None and (grad.is_local or item.tensor.is_global):
            grad = globalize(grad, item.spec, item.target)
        return globalize(item.tensor, item.spec, item.target), grad

    def _put(self, item: Item, places: list[Place], new: Tensor, grad: Tensor | None) -> None:
        old = item.tensor
        if not isinstance(old, nn.Parameter):
            kept = self._memo.buffer(old, new)
            fresh = kept is new
            if fresh:
                new.requires_grad_(old.requires_grad)
                new.grad = grad
        elif (known := replacement(old)) is not None:
            kept, fresh = known, False
        else:
            kept, fresh = make_global(old, new, grad), True
        if self.spec.existing == "error":
            self._own[id(kept)] = kept
        if item.pattern is not None:
            self._by_rule[id(kept)] = Decision(item.spec, item.pattern, item.wish, kept)
        if kept is not old:
            _replace(places, old, kept)
            if isinstance(old, nn.Parameter):
                remember_replacement(old, kept)
        if fresh:
            shape = tuple(kept.shape)
            self.converted.append(
                Record(
                    path=item.path,
                    owner=type(places[0][0]).__name__,
                    kind=item.kind,
                    shape=shape,
                    dtype=kept.dtype,
                    placement=kept.placement,
                    sbp=kept.sbp,
                    nbytes=math.prod(item.spec.component(shape, item.target))
                    * item_size(kept.dtype),
                    fallback=item.fallback,
                )
            )


def _replace(places: list[Place], old: Tensor, new: Tensor) -> None:
    for owner, which, name in places:
        store(owner, which)[name] = new
        # A class with a __setattr__ of its own may keep the Parameter elsewhere too, as the RNNs
        # of OneFlow do in _flat_weights.
        if isinstance(old, nn.Parameter) and has_own_methods(owner, ("__setattr__",)):
            token = _pending.set((owner, name, new))
            try:
                setattr(owner, name, new)
            finally:
                _pending.reset(token)
