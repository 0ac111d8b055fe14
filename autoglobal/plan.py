"""A whole value - a Parameter, a buffer, a module tree - made global: planned, then applied.

Planning settles every sbp and checks every shape and changes nothing, so that an impossible
tensor anywhere in a tree is told before the first one has changed, on every rank alike.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import oneflow as flow
from oneflow import nn

from .convert import Tensor, globalize, make_global, nbytes
from .errors import ConversionError
from .registry import STORE_OF, Before, Module, Slot, store, walk
from .spec import GlobalSpec, Kind, Sbp, Shape

Place = tuple[Module, str, str]  # a module, one of its stores, a name in it
KINDS: tuple[Kind, ...] = ("parameter", "buffer")


@dataclass(frozen=True)
class Record:
    """One tensor that was made global.

    ``path`` starts at the name that was assigned (``"sub.attn.weight"``), ``owner`` is the class
    of the module that holds the tensor, ``shape`` the logical shape, ``nbytes`` the bytes of
    this rank's component.
    """

    path: str
    owner: str
    kind: Kind
    shape: Shape
    dtype: Any
    placement: Any
    sbp: tuple[Sbp, ...]
    nbytes: int


@dataclass
class Item:
    """One local tensor of a value, and every place where the value holds it."""

    tensor: Tensor
    kind: Kind
    path: str
    sbp: tuple[Sbp, ...]
    places: list[Place] = field(default_factory=list)


class Memo:
    """The buffers that a scope has replaced, so that one shared by two modules stays shared."""

    def __init__(self) -> None:
        # OneFlow's tensors take no weak reference; the old one is kept so that its id stays its.
        self._known: dict[int, tuple[Tensor, tuple[Any, bytes], Tensor]] = {}

    def shared(self, old: Tensor, new: Tensor) -> Tensor:
        """The global tensor that took the place of ``old`` before, else ``new``."""
        # A scratch tensor that was written to in between is another buffer. The ranks decide
        # this alone, after the same messages, so a different answer cannot make one wait.
        made_of = (new.sbp, _digest(new.to_local()))
        known = self._known.get(id(old))
        if known is not None and known[1] == made_of:
            return known[2]
        self._known[id(old)] = (old, made_of, new)
        return new

    def clear(self) -> None:
        self._known.clear()


def _digest(local: Tensor) -> bytes:
    values = local.to(flow.float32) if local.dtype == flow.bfloat16 else local
    return hashlib.blake2b(values.numpy().tobytes(), digest_size=16).digest()


class Plan:
    """What is local in a value, with the sbp that each tensor will have.

    Raises :class:`ConversionError` for a tensor that cannot have it.
    """

    def __init__(self, spec: GlobalSpec, root: str) -> None:
        self.spec = spec
        self.items: dict[int, Item] = {}
        self._root = root

    def add(self, owner: Module, name: str, path: str, kind: Kind, tensor: Tensor | None) -> None:
        if tensor is None or tensor.is_global or tensor.is_lazy:
            return
        item = self.items.get(id(tensor))
        if item is None:
            label = f"{self._root}.{path}"
            sbp = self.spec.sbp_of(label, kind, tuple(tensor.shape))
            if sbp is None:
                return
            if not tensor.is_leaf:
                raise ConversionError(
                    f"{label}: a {kind} that autograd still tracks cannot become global without "
                    "losing its history. Expected: a leaf tensor. Received: one with a grad_fn, "
                    f"shape {tuple(tensor.shape)}. Write .detach() where it is assigned"
                )
            item = self.items[id(tensor)] = Item(tensor, kind, path, sbp)
        item.places.append((owner, STORE_OF[kind], name))

    def add_tree(self, module: Module, name: str) -> None:
        for path, owner in walk(module, name):
            for kind in KINDS:
                for attribute, tensor in store(owner, STORE_OF[kind]).items():
                    self.add(owner, attribute, f"{path}.{attribute}", kind, tensor)

    def check_here(self) -> None:
        """Raise where no tensor at all can become global: in a graph, outside the main thread."""
        if not self.items:
            return
        first = next(iter(self.items.values()))
        if flow._oneflow_internal.lazy_mode.is_enabled():
            why = "inside nn.Graph.build; assign before the graph is built, or under local_scope()"
        elif threading.current_thread() is not threading.main_thread():
            why = "in another thread than the main one, where OneFlow has no global operations"
        else:
            return
        raise ConversionError(
            f"{self._root}.{first.path}: a local {first.kind} cannot become global {why}. "
            f"Received: shape {tuple(first.tensor.shape)}"
        )

    def apply(self, memo: Memo) -> list[Record]:
        """Convert, then put in place. Until every tensor is converted nothing has changed."""
        ready = []
        for item in self.items.values():
            # A hook nearer to the registry may have been here, or a class kept something else.
            places = [
                (owner, which, name)
                for owner, which, name in item.places
                if store(owner, which).get(name) is item.tensor
            ]
            if item.tensor.is_global or not places:
                continue
            new = globalize(item.tensor, self.spec, item.sbp)
            grad = item.tensor.grad
            if grad is not None and grad.is_local:
                grad = globalize(grad, self.spec, item.sbp)
            ready.append((item, places, new, grad))
        return [record for one in ready if (record := _put(*one, memo)) is not None]


def _put(
    item: Item, places: list[Place], new: Tensor, grad: Tensor | None, memo: Memo
) -> Record | None:
    tensor = item.tensor
    if isinstance(tensor, nn.Parameter):
        make_global(tensor, new, grad)
    else:
        kept = memo.shared(tensor, new)
        for owner, which, name in places:
            store(owner, which)[name] = kept
        if kept is not new:
            return None
        new.requires_grad_(tensor.requires_grad)
        new.grad = grad
    return Record(
        path=item.path,
        owner=type(places[0][0]).__name__,
        kind=item.kind,
        shape=tuple(new.shape),
        dtype=new.dtype,
        placement=new.placement,
        sbp=new.sbp,
        nbytes=nbytes(new.to_local()),
    )


def assign(
    spec: GlobalSpec,
    memo: Memo,
    forward: Callable[[], Any],
    module: Module,
    slot: Slot,
    name: str,
    value: Any,
) -> tuple[Any, list[Record]]:
    """Let OneFlow register ``value`` by ``forward()``, then make global what is local in it.

    OneFlow goes first because it may refuse (a name that is a class attribute, say), which has
    to be known before anything is sent. Where the conversion fails afterwards the module is as
    it was before.
    """
    plan = Plan(spec, type(module).__name__)
    if slot == "module":
        plan.add_tree(value, name)
    else:
        plan.add(module, name, name, slot, value)
    if not plan.items:
        return forward(), []
    plan.check_here()
    before = Before(module, name)
    result = forward()
    if slot == "module" and store(module, "_modules").get(name) is not value:
        return result, []
    try:
        return result, plan.apply(memo)
    except BaseException:
        before.restore()
        raise
