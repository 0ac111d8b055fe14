"""The application of a plan: agree, convert everything, then put it in place."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from oneflow import nn

from .. import _compat
from .._compat import (
    Module,
    Tensor,
    get_data,
    get_grad,
    this_rank,
    world_size,
)
from ..errors import DivergenceError
from ..layout.spec import GlobalSpec
from ..modules.hook import Assignment, under_way
from ..modules.registry import NON_PERSISTENT, has_own_methods, store
from ..ranks.agreement import Proposal
from ..ranks.collectives import all_true, can_meet
from ..tensors.batch import TensorConversion, convert_batch
from ..tensors.convert import make_global
from .plan import PlannedTensor


def apply_plan(
    changing: Sequence[PlannedTensor],
    proposal: Proposal,
    buffers: ReplacedBuffers,
    note: Callable[[PlannedTensor, Tensor, bool], None],
    *,
    check: bool,
    uninitialized: bool = False,
    progress: bool = False,
) -> None:
    """Make global what a plan changes. Until all of it is converted nothing has changed.

    ``check``: the ranks agree. ``uninitialized``: what it changes holds nothing yet. ``note`` is
    called for each tensor with what is in its places from then on, and whether that is new.
    """
    present: list[PlannedTensor] = []
    batch: list[TensorConversion] = []
    new_buffers: list[PlannedTensor] = []
    digested: list[TensorConversion] = []
    for planned in changing:
        if not _drop_stale_places(planned):
            continue
        present.append(planned)
        if id(planned.tensor) in _replaced:
            continue
        conversion = _start(planned, batch)
        if uninitialized:
            conversion.leave_empty()
        if not isinstance(planned.tensor, nn.Parameter):
            new_buffers.append(planned)
            digested.append(conversion)
            if buffers.has(planned.tensor):
                conversion.kind = "buffer, as registered before,"
            if any(
                name in owner.__dict__.get(NON_PERSISTENT, ()) for owner, _, name in planned.places
            ):
                conversion.kind += ", not persistent,"
    meets = world_size() > 1 and (check or any(one.check for one in batch))
    meets = meets and (bool(batch) or proposal.event == "close")
    # Such a class may refuse what takes the place of its Parameter, on one rank alone.
    again = meets and not _compat.can_replace_data() and any(map(_is_kept_elsewhere, present))
    if meets:
        proposal.options = _options(present)
        proposal.options += ["a class with a __setattr__ of its own"] * again
    convert_batch(batch, proposal if meets else None, digested=digested, progress=progress)
    known = _known_buffers(new_buffers, buffers, proposal, meets) if new_buffers else {}
    put = _put_all(present, buffers, known, proposal if again else None)
    for planned, (now, is_new) in zip(present, put):
        note(planned, now, is_new)


def _drop_stale_places(planned: PlannedTensor) -> bool:
    """Drop the places where the tensor is no more; return whether one is left."""
    places = []
    for place in planned.places:
        owner, which, name = place
        # A hook nearer to the registry may have been here, or a class kept something else.
        if owner.__dict__[which].get(name) is planned.tensor:
            places.append(place)
    planned.places = places
    return bool(places)


def _start(planned: PlannedTensor, batch: list[TensorConversion]) -> TensorConversion:
    """Put the tensor, and its gradient, into a batch."""
    tensor, spec, layout, sbp = planned.tensor, planned.spec, planned.layout, planned.target
    is_shard = spec.source == "shard"
    conversion = TensorConversion(
        planned.label, planned.kind, tensor, layout, sbp, is_shard=is_shard, check=spec.check
    )
    # By value: of more placements than are remembered there may be two objects for one.
    conversion.is_placed = is_placed = layout is not spec.layout and layout != spec.layout
    planned.conversion = conversion
    batch.append(conversion)
    grad = tensor.grad
    # An nn.Graph that has trained leaves gradients that are lazy, and hold no values (0.9.0).
    if grad is not None and not grad.is_lazy and (grad.is_local or tensor.is_global):
        path = f"{planned.label}.grad"
        conversion.grad = TensorConversion(
            path, "gradient", grad, layout, sbp, is_shard=is_shard, check=spec.check
        )
        conversion.grad.is_placed = is_placed
        batch.append(conversion.grad)
    return conversion


def _options(present: Sequence[PlannedTensor]) -> list[str]:
    """What all ranks have to ask for alike."""
    specs: dict[int, GlobalSpec] = {id(one.spec): one.spec for one in present if one.conversion}
    return [text for spec in specs.values() for text in spec.statements]


def _known_buffers(
    new: Sequence[PlannedTensor], buffers: ReplacedBuffers, proposal: Proposal, meets: bool
) -> dict[int, Tensor]:
    """By the planned tensor's id, the global buffer that took its tensor's place before."""
    before = [one for one in new if buffers.has(one.tensor)]
    known = [buffers.same(one) for one in before]
    same = [one is not None for one in known]
    if before and meets and can_meet():
        with proposal.waiting():
            same = all_true(same)  # or one rank would have one buffer, and the others two
    return {id(one): tensor for one, tensor, is_same in zip(before, known, same) if is_same}


def _put_all(
    present: Sequence[PlannedTensor],
    buffers: ReplacedBuffers,
    known: Mapping[int, Tensor],
    proposal: Proposal | None,
) -> list[tuple[Tensor, bool]]:
    """Put everything in its places, or nothing: for each what is there now, and whether it is new.

    With a ``proposal`` the ranks agree once more whether all of them could.
    """
    before: list[tuple[PlannedTensor, Tensor, Tensor | None]] = []
    put: list[tuple[Tensor, bool]] = []
    refused: BaseException | None = None
    try:
        for planned in present:
            before.append((planned, get_data(planned.tensor), get_grad(planned.tensor)))
            put.append(_put(planned, buffers, known.get(id(planned))))
    except BaseException as error:
        refused = error
    if proposal is not None:
        with proposal.waiting():
            (all_did,) = all_true([refused is None])
        proposal.all_undo = not all_did
        if not all_did and refused is None:
            refused = DivergenceError(
                f"{proposal.title.text} was refused on another rank by a __setattr__ of its class, "
                f"and is undone on this one (rank {this_rank()}). Expected: a class that takes a "
                "global Parameter in the place of a local one on every rank. Received: one that "
                "raised. Look there for what depends on the rank"
            )
    if refused is not None:
        for planned, data, grad in reversed(before):
            _take_back(planned, data, grad)
            if planned.conversion is not None and id(planned) not in known:
                buffers.forget(planned.tensor)
        raise refused
    return put


def _take_back(planned: PlannedTensor, data: Tensor, grad: Tensor | None) -> None:
    """Undo :func:`_put`, how far it may have come."""
    old = planned.tensor
    for owner, which, name in planned.places:
        if store(owner, which).get(name) is not old:
            with suppress(Exception):  # a class that refuses took this one before
                _set(owner, which, name, old)
    # One that was replaced before has no conversion, and goes on being replaced.
    if isinstance(old, nn.Parameter) and planned.conversion is not None:
        _replaced.pop(id(old), None)
        if old.is_global or _compat.can_replace_data():
            make_global(old, data, grad)


def _is_kept_elsewhere(planned: PlannedTensor) -> bool:
    """Whether a class may keep the Parameter elsewhere too, as the RNNs do in _flat_weights."""
    return isinstance(planned.tensor, nn.Parameter) and any(
        has_own_methods(owner, _SETTERS) for owner, _, _ in planned.places
    )


def _put(
    planned: PlannedTensor, buffers: ReplacedBuffers, known: Tensor | None
) -> tuple[Tensor, bool]:
    """Put into the tensor's places what takes its place; return that, and whether it is new."""
    old, conversion = planned.tensor, planned.conversion
    if conversion is None:
        now = replacement(old)
    elif known is not None:
        now = known
    else:
        grad = old.grad if conversion.grad is None else conversion.grad.result
        if grad is not None and grad.is_lazy:
            grad = None
        if isinstance(old, nn.Parameter):
            now = make_global(old, conversion.result, grad)
        else:
            now = conversion.result
            now.requires_grad_(old.requires_grad)
            now.grad = grad
            buffers.remember(old, conversion.digest, now)
    if now is not old:
        _replace(planned, now)
    return now, conversion is not None and known is None


def _replace(planned: PlannedTensor, new: Tensor) -> None:
    old = planned.tensor
    for owner, which, name in planned.places:
        _set(owner, which, name, new)
    if isinstance(old, nn.Parameter):
        _remember_replacement(old, new)


def _set(owner: Module, which: str, name: str, new: Tensor) -> None:
    """Put ``new`` into a module's store, and a Parameter to where its class keeps it elsewhere."""
    store(owner, which)[name] = new
    if isinstance(new, nn.Parameter) and has_own_methods(owner, _SETTERS):
        _assign_by_its_class(owner, name, new)


def _assign_by_its_class(owner: Module, name: str, new: Tensor) -> None:
    def forward() -> None:
        setattr(owner, name, new)

    # The frame in no variable, or it would hold itself and the Parameter until a collection.
    token = under_way.set(Assignment(forward, owner, "__setattr__", name, new, sys._getframe()))
    try:
        forward()
    finally:
        under_way.reset(token)


_SETTERS = ("__setattr__",)
_FEW = 64  # replaced buffers


class ReplacedBuffers:
    """The buffers that one scope or call has replaced by global ones, so that ties stay ties."""

    def __init__(self) -> None:
        # OneFlow's tensors take no weak reference. The old one is kept, because another tensor
        # could have its id afterwards.
        self._pairs: dict[int, tuple[Tensor, bytes, Tensor]] = {}
        self._many = 0

    def has(self, old: Tensor) -> bool:
        """Whether ``old`` was replaced before."""
        return id(old) in self._pairs

    def same(self, planned: PlannedTensor) -> Tensor | None:
        """What took the place of its tensor before, if it would do so again.

        A scratch tensor that was written to in between is another buffer.
        """
        known = self._pairs.get(id(planned.tensor))
        digest = None if planned.conversion is None else planned.conversion.digest
        if known is None or digest is None:
            return None
        _, made_of, now = known
        same = made_of == digest and now.sbp == planned.target
        return now if same and now.placement == planned.layout.placement else None

    def remember(self, old: Tensor, digest: bytes | None, new: Tensor) -> None:
        # Who drops what it has registered cannot register it again. Where there are many they are
        # looked through as often as there are twice as many, because that looks at all of them.
        if len(self._pairs) < _FEW or len(self._pairs) >= self._many:
            for key in _held_by_none_but(self._pairs):
                del self._pairs[key]
            self._many = 2 * len(self._pairs)
        if digest is not None:
            self._pairs[id(old)] = (old, digest, new)

    def forget(self, old: Tensor) -> None:
        """``old`` is in its place again."""
        self._pairs.pop(id(old), None)

    def close(self) -> None:
        """Let go of every tensor."""
        self._pairs.clear()
        _prune()


# The Parameters that were replaced, by all scopes and calls: an optimizer, or another scope, may
# come with the old one later.
_replaced: dict[int, tuple[Tensor, Tensor]] = {}


def replacement(old: Tensor) -> Tensor | None:
    """The global Parameter that took the place of a local one, if there is one."""
    return _replaced.get(id(old), (None, None))[1]


def _remember_replacement(old: Tensor, new: Tensor) -> None:
    """Keep the pair for as long as anybody else holds ``old``."""
    _replaced[id(old)] = (old, new)
    if _at_collection not in gc.callbacks:
        gc.callbacks.append(_at_collection)


def _prune() -> None:
    for key in _held_by_none_but(_replaced):
        del _replaced[key]
    if not _replaced and _at_collection in gc.callbacks:
        gc.callbacks.remove(_at_collection)


def carry_ties() -> None:
    """Put new Parameters where modules that were not converted themselves hold the old ones.

    Such a module was built under ``local_scope()``, or hangs in no tree yet. In place the one
    Parameter would have become global for it too.
    """
    held = set(_replaced) - set(_held_by_none_but(_replaced))
    if not held:
        return
    # By type(), because isinstance() asks a proxy for its class, which may be anybody's code.
    modules = [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]
    for module in modules:
        for name, tensor in list(store(module, "_parameters").items()):
            if id(tensor) in held:
                with suppress(Exception):
                    _set(module, "_parameters", name, _replaced[id(tensor)][1])


def _references(one: object) -> int:
    return sys.getrefcount(one)


# What is counted of an object that nothing but a pair in a dict holds, counted the same way.
_ALONE = next(_references(pair[0]) for pair in {0: (object(), None)}.values())


def _held_by_none_but(pairs: Mapping[int, tuple[Any, ...]]) -> list[int]:
    """The keys of the pairs whose first is held by nobody else."""
    return [key for key, pair in pairs.items() if _references(pair[0]) <= _ALONE]


def _at_collection(phase: str, _: dict[str, int]) -> None:
    # In the place of the weak references that OneFlow's Parameters do not take.
    if phase == "stop":
        _prune()
