"""What was replaced by what: so that ties stay ties, and an optimizer can follow."""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from typing import Any

from ..tensors.convert import Tensor
from .items import Item


class Memo:
    """The buffers that one scope or call has replaced by global ones."""

    def __init__(self) -> None:
        # OneFlow's tensors take no weak reference; the old one is kept so that its id stays its.
        self._buffers: dict[int, tuple[Tensor, bytes, Tensor]] = {}

    def known(self, old: Tensor) -> bool:
        """Whether ``old`` was replaced before."""
        return id(old) in self._buffers

    def same(self, item: Item, digest: bytes | None) -> Tensor | None:
        """What took the place of an item's tensor before, if it would do so again.

        A scratch tensor that was written to in between is another buffer.
        """
        known = self._buffers.get(id(item.tensor))
        if known is None or digest is None:
            return None
        _, made_of, kept = known
        same = made_of == digest and kept.sbp == item.target
        return kept if same and kept.placement == item.spec.placement else None

    def remember(self, old: Tensor, digest: bytes | None, new: Tensor) -> None:
        # Who drops what it has registered cannot register it again.
        for key in _held_by_none_but(self._buffers):
            del self._buffers[key]
        if digest is not None:
            self._buffers[id(old)] = (old, digest, new)

    def close(self) -> None:
        self._buffers.clear()
        _prune()


# Of all scopes and calls: an optimizer, or another scope, may come with the old one later.
_replaced: dict[int, tuple[Tensor, Tensor]] = {}


def replacement(old: Tensor) -> Tensor | None:
    """The global Parameter that took the place of a local one, if there is one."""
    return _replaced.get(id(old), (None, None))[1]


def remember_replacement(old: Tensor, new: Tensor) -> None:
    """Keep the pair for as long as anybody else holds ``old``."""
    _replaced[id(old)] = (old, new)
    if _at_collection not in gc.callbacks:
        gc.callbacks.append(_at_collection)


def _prune() -> None:
    for key in _held_by_none_but(_replaced):
        del _replaced[key]
    if not _replaced and _at_collection in gc.callbacks:
        gc.callbacks.remove(_at_collection)


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
