"""One passage through a scope, or one call: it plans, converts, and records what it did."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Optional

import oneflow as flow
from oneflow import nn
from tqdm import tqdm

from .assigned import Assigned
from .convert import Tensor, globalize, make_global, nbytes
from .errors import TiedRulesWarning, UnusedRuleWarning
from .memo import Memo, replacement
from .plan import Item, Place, Plan
from .registry import STORE_OF, Before, Module, Slot, has_own_setattr, store
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
        if self.spec.when == "exit":
            result = forward()
            self._assigned.add(module, name)
            return result
        call = (module, name, value)
        pending = _pending.get()
        if pending is not None and all(a is b for a, b in zip(pending, call)):
            return forward()  # another hook is at it: __setattr__ calls register_parameter
        root = type(module).__name__
        plan = Plan(self.spec, self._own)
        if slot == "module":
            plan.add_tree(root, value, name)
        else:
            plan.add(root, module, name, name, slot, value)
        if plan.items and self.spec.same_placement:
            plan.look_at(root, module)
        plan.settle()
        self._used |= plan.used
        before = Before(module, name) if plan.items else None
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
        for pattern in self.spec.rules.patterns:
            if pattern not in self._used:
                text = (
                    f"the rule {pattern!r} of sbp matched nothing that it decides (patterns are "
                    "matched against the path and against OwnerClass.attribute, the first match "
                    f"wins, and buffers={self.spec.buffers!r} decides for the buffers); correct "
                    "it or leave it out"
                )
                messages.append((text, UnusedRuleWarning))
        for message, category in messages:
            warnings.warn(message, category, stacklevel=stacklevel + 1)

    def close(self) -> None:
        """Let go of every tensor and module."""
        self._memo.close()
        self._own.clear()
        self._assigned.clear()

    def _apply(self, plan: Plan, progress: bool = False) -> None:
        """Convert, then put in place. Until every tensor is converted nothing has changed."""
        quiet = not progress or flow.env.get_rank() != 0
        ready = []
        for item in tqdm(list(plan.items.values()), "local to global", disable=quiet):
            # A hook nearer to the registry may have been here, or a class kept something else.
            places = [
                (owner, which, name)
                for owner, which, name in item.places
                if store(owner, which).get(name) is item.tensor
            ]
            if places and not _is_done(item, self.spec):
                ready.append((item, places, *self._convert(item)))
        for item, places, new, grad in ready:
            self._put(item, places, new, grad)
        self._conflicts += plan.conflicts

    def _convert(self, item: Item) -> tuple[Tensor, Tensor | None]:
        known = self._replacement(item)
        if known is not None:
            return known, known.grad
        grad = item.tensor.grad
        if grad is not None and (grad.is_local or item.tensor.is_global):
            grad = globalize(grad, self.spec, item.sbp)
        return globalize(item.tensor, self.spec, item.sbp), grad

    def _replacement(self, item: Item) -> Tensor | None:
        """The Parameter that took this one's place before, so that ties stay ties."""
        known = self._memo.parameter(item.tensor)
        if known is None:
            known = replacement(item.tensor)
            if known is None or known.placement != self.spec.placement or known.sbp != item.sbp:
                return None
        return known

    def _put(self, item: Item, places: list[Place], new: Tensor, grad: Tensor | None) -> None:
        old = item.tensor
        if not isinstance(old, nn.Parameter):
            kept = self._memo.buffer(old, new)
            fresh = kept is new
            if fresh:
                new.requires_grad_(old.requires_grad)
                new.grad = grad
        elif (known := self._replacement(item)) is not None:
            kept, fresh = known, False
        else:
            kept, fresh = make_global(old, new, grad), True
        if self.spec.existing == "error":
            self._own[id(kept)] = kept
        if kept is not old:
            _replace(places, old, kept)
            if isinstance(old, nn.Parameter):
                self._memo.put_parameter(old, kept)
        if fresh:
            self.converted.append(
                Record(
                    path=item.path,
                    owner=type(places[0][0]).__name__,
                    kind=item.kind,
                    shape=tuple(kept.shape),
                    dtype=kept.dtype,
                    placement=kept.placement,
                    sbp=kept.sbp,
                    nbytes=nbytes(kept.to_local()),
                    fallback=item.fallback,
                )
            )


def _is_done(item: Item, spec: GlobalSpec) -> bool:
    tensor = item.tensor
    return bool(tensor.is_global and tensor.placement == spec.placement and tensor.sbp == item.sbp)


def _replace(places: list[Place], old: Tensor, new: Tensor) -> None:
    for owner, which, name in places:
        store(owner, which)[name] = new
        # A class with a __setattr__ of its own may keep the Parameter elsewhere too, as the RNNs
        # of OneFlow do in _flat_weights.
        if isinstance(old, nn.Parameter) and has_own_setattr(owner):
            setattr(owner, name, new)
