"""What a scope or a call has met: made global, kept because it was global, or left local."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union, cast
from weakref import ref

from .._compat import item_size
from ..layout.rules import NdSbp
from ..layout.spec import GlobalSpec, Kind, Shape
from ..modules.registry import Module
from ..tensors.convert import Tensor
from .items import Item, Met, Place


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


@dataclass(frozen=True)
class Kept:
    """One tensor that was global already and stays as it is.

    ::

        model.to_global(placement, sbp)
        outer = nn.Sequential()
        with global_scope(placement, sbp) as scope:
            outer.add_module("sub", model)
        assert [one.path for one in scope.kept] == ["sub.weight", "sub.bias"]

    ``path``, ``owner`` and ``shape`` are those of :class:`autoglobal.Record`, ``placement`` and
    ``sbp`` what the tensor has.
    """

    path: str
    owner: str
    kind: Kind
    shape: Shape
    dtype: Any
    placement: Any
    sbp: NdSbp


@dataclass(frozen=True)
class Left:
    """One tensor that is local and stays local, with the ``reason``.

    ::

        with global_scope(placement, {"*.bias": None, "*": sbp}) as scope:
            model.head = nn.Linear(2, 2)
            model.table = flow.zeros(4)
        print(scope.left[-1].path, scope.left[-1].reason)

    That is a rule or a function whose sbp for it is None, ``buffers=False``, or that it was
    assigned as a plain attribute (``kind="attribute"``), which OneFlow does not register.
    ``path`` and ``owner`` are those of :class:`autoglobal.Record`.
    """

    path: str
    owner: str
    kind: Literal["parameter", "buffer", "attribute"]
    shape: Shape
    dtype: Any
    reason: str


_Noted = tuple[str, type, Kind, Shape, Any, GlobalSpec, NdSbp, bool]
_Unchanged = Union[Kept, Left]


class Records:
    """The records of one scope or call, written out when somebody asks for them.

    ``lasts``: what was made global may be met again.
    """

    def __init__(self, lasts: bool) -> None:
        self._looks = lasts
        self._noted: list[_Noted] = []
        self._written: list[Record] = []
        # By the id of a tensor that was made global here: a module that got it. OneFlow's tensors
        # take no weak reference, and while that module lives the id is hardly another one's.
        self._made: dict[int, ref[Module]] = {}
        # By module and name, the last word on each. A module has one such reference for as long as
        # anybody holds that, so its id stands for the module, also for one that is gone.
        self._unchanged: dict[tuple[int, str], tuple[ref[Module], _Unchanged]] = {}

    @property
    def count(self) -> int:
        """How many tensors were made global."""
        return len(self._noted) + len(self._written)

    def add(self, item: Item, places: Sequence[Place], made: Tensor) -> None:
        """Note that ``made`` has become global, or taken the item's tensor's place."""
        owner, kind, shape, dtype = type(places[0][0]), item.kind, tuple(made.shape), made.dtype
        noted = (item.path, owner, kind, shape, dtype, item.spec, item.target, item.fallback)
        self._noted.append(noted)
        if self._looks:
            self._made[id(made)] = ref(places[0][0])
            for module, _, name in places if self._unchanged else ():
                self._unchanged.pop((id(ref(module)), name), None)

    def note(self, met: Iterable[Met]) -> int:
        """Note what stays as it is, but for what was made global here; how many that are."""
        count = 0
        for one in met:
            if one.reason is not None or not self._is_own(one.tensor):
                self._note(one)
                count += 1
        return count

    def _is_own(self, tensor: Tensor) -> bool:
        owner = self._made.get(id(tensor))
        return owner is not None and owner() is not None

    def _note(self, one: Met) -> None:
        tensor, owner = one.tensor, type(one.owner).__name__
        # Any: mypy cannot know that what is kept is no attribute.
        what = one.path, owner, cast(Any, one.kind), tuple(tensor.shape), tensor.dtype
        unchanged: _Unchanged
        if one.reason is None:
            unchanged = Kept(*what, placement=tensor.placement, sbp=tensor.sbp)
        else:
            unchanged = Left(*what, reason=one.reason)
        held, self._looks = ref(one.owner), True
        self._unchanged[id(held), one.name] = held, unchanged

    @property
    def kept(self) -> list[Kept]:
        return [one for _, one in self._unchanged.values() if isinstance(one, Kept)]

    @property
    def left(self) -> list[Left]:
        return [one for _, one in self._unchanged.values() if isinstance(one, Left)]

    @property
    def converted(self) -> list[Record]:
        """The same list each time, with what has come since."""
        noted, self._noted = self._noted, []
        for path, owner, kind, shape, dtype, spec, sbp, fallback in noted:
            part = spec.component(shape, sbp, spec.position)
            self._written.append(
                Record(
                    path=path,
                    owner=owner.__name__,
                    kind=kind,
                    shape=shape,
                    dtype=dtype,
                    placement=spec.placement,
                    sbp=sbp,
                    nbytes=math.prod(part) * item_size(dtype),
                    fallback=fallback,
                )
            )
        return self._written

    def close(self) -> None:
        """Nothing more will come."""
        self._made.clear()
