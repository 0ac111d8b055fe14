"""What a scope or a call has made global."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from .contents import item_size
from .items import Item
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


_Noted = tuple[str, type, Kind, Shape, Any, GlobalSpec, NdSbp, bool]


class Records:
    """The records of one scope or call, written out when somebody asks for them."""

    def __init__(self) -> None:
        self._noted: list[_Noted] = []
        self._written: list[Record] = []

    def add(self, item: Item, owner: type, shape: Shape, dtype: Any) -> None:
        noted = (item.path, owner, item.kind, shape, dtype, item.spec, item.target, item.fallback)
        self._noted.append(noted)

    def all(self) -> list[Record]:
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
