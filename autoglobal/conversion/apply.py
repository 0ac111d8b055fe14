"""Carries a plan out: agree, convert everything, then put it in place."""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from functools import partial
from typing import Any, Optional

from oneflow import nn
from tqdm import tqdm

from ..layout.spec import GlobalSpec
from ..modules.registry import Module, has_own_methods, store
from ..ranks.agreement import Event
from ..ranks.collectives import all_true, can_meet, this_rank
from ..tensors.batch import settle
from ..tensors.convert import Tensor, make_global
from ..tensors.pieces import Piece
from .items import Decision, Item, Place
from .memo import Memo, remember_replacement, replacement
from .plan import Plan
from .records import Records

# The assignment that is being carried out: the module, the name, the value.
pending: ContextVar[Optional[tuple[Module, str, Any]]] = ContextVar("pending", default=None)


def is_pending(module: Module, name: Any, value: Any) -> bool:
    """Whether another hook is at this assignment: __setattr__ calls register_parameter."""
    call = pending.get()
    return call is not None and call[2] is value and call[0] is module and call[1] is name


class _Job:
    """One item, where it is to be put, and what becomes of it."""

    __slots__ = ("grad", "grad_piece", "item", "kept", "known", "piece", "places")

    def __init__(self, item: Item, places: list[Place], pieces: list[Piece]) -> None:
        self.item = item
        self.places = places
        self.known = replacement(item.tensor)
        self.kept: Tensor = None  # a buffer that took the place of this one before
        self.piece: Piece | None = None
        self.grad_piece: Piece | None = None
        if self.known is not None:
            return
        tensor = item.tensor
        self.piece = Piece(item.label, item.kind, tensor, item.spec, item.target)
        pieces.append(self.piece)
        self.grad = tensor.grad
        if self.grad is not None and (self.grad.is_local or tensor.is_global):
            path = f"{item.label}.grad"
            self.grad_piece = Piece(path, "gradient", self.grad, item.spec, item.target)
            pieces.append(self.grad_piece)

    @property
    def is_buffer(self) -> bool:
        return self.piece is not None and not isinstance(self.item.tensor, nn.Parameter)

    @property
    def digest(self) -> bytes | None:
        return None if self.piece is None else self.piece.digest


class Work:
    """What one scope or call has made global.

    ``own`` are global tensors that do not count as existing ones.
    """

    def __init__(self, spec: GlobalSpec, records: Records, own: Iterable[Tensor] = ()) -> None:
        self._spec = spec
        self._records = records
        self.by_rule: dict[int, Decision] = {}
        self.own = {id(tensor): tensor for tensor in own}  # and what is made global here
        self._memo = Memo()

    def carry_out(
        self, plan: Plan, event: Event, progress: bool = False, fresh: bool = False
    ) -> bool:
        """Make global what the plan changes. Until all of it is converted nothing has changed.

        ``fresh``: what it changes holds nothing yet. Returned is whether values were sent.
        """
        pieces: list[Piece] = []
        jobs = [_Job(item, places, pieces) for item in plan.changes() if (places := _places(item))]
        for piece in pieces if fresh else ():
            piece.leave_empty()
        meets = self._spec.check or any(piece.spec.check for piece in pieces)
        if not pieces and event.kind != "close":
            meets = False
        buffers = [job for job in jobs if job.is_buffer]
        digested = [job.piece for job in buffers if job.piece is not None]
        for job in buffers:
            if job.piece is not None and self._memo.known(job.item.tensor):
                job.piece.kind = "buffer, as registered before,"
        shown = progress and this_rank() == 0
        passing = partial(tqdm, desc="local to global") if shown else iter
        sent = settle(pieces, event if meets else None, digested, passing)
        if buffers:
            with event.wait():
                self._find_kept(buffers, meets)
        for job in jobs:
            self._put(job)
        return sent

    def _find_kept(self, buffers: list[_Job], meets: bool) -> None:
        before = [job for job in buffers if self._memo.known(job.item.tensor)]
        kept = [self._memo.same(job.item, job.digest) for job in before]
        same = [one is not None for one in kept]
        if before and meets and can_meet():
            same = all_true(same)  # or one rank would have one buffer, and the others two
        for job, one, it_is in zip(before, kept, same):
            if it_is:
                job.kept = one

    def close(self) -> None:
        """Let go of every tensor."""
        self._memo.close()
        self.own.clear()
        self.by_rule.clear()

    def _put(self, job: _Job) -> None:
        item, old = job.item, job.item.tensor
        if job.known is not None:
            kept, fresh = job.known, False
        elif job.kept is not None:
            kept, fresh = job.kept, False
        else:
            assert job.piece is not None
            made, fresh = job.piece.made, True
            grad = job.grad if job.grad_piece is None else job.grad_piece.made
            if isinstance(old, nn.Parameter):
                kept = make_global(old, made, grad)
            else:
                kept = made
                kept.requires_grad_(old.requires_grad)
                kept.grad = grad
                self._memo.remember(old, job.digest, kept)
        if self._spec.existing == "error":
            self.own[id(kept)] = kept
        if item.pattern is not None:
            self.by_rule[id(kept)] = Decision(item.spec, item.pattern, item.wish, kept)
        if kept is not old:
            _replace(job.places, old, kept)
            if isinstance(old, nn.Parameter):
                remember_replacement(old, kept)
        if fresh:
            self._records.add(item, job.places, kept)


def _places(item: Item) -> list[Place]:
    # A hook nearer to the registry may have been here, or a class kept something else.
    return [
        (owner, which, name)
        for owner, which, name in item.places
        if store(owner, which).get(name) is item.tensor
    ]


def _replace(places: list[Place], old: Tensor, new: Tensor) -> None:
    for owner, which, name in places:
        store(owner, which)[name] = new
        # A class with a __setattr__ of its own may keep the Parameter elsewhere too, as the RNNs
        # of OneFlow do in _flat_weights.
        if isinstance(old, nn.Parameter) and has_own_methods(owner, ("__setattr__",)):
            token = pending.set((owner, name, new))
            try:
                setattr(owner, name, new)
            finally:
                pending.reset(token)
