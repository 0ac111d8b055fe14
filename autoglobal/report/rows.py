"""The rows of a report: what one tensor is, and what of it lies on this rank."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Literal, Optional, Protocol, TypeVar

from .._compat import Module, dtype_name, item_size, nbytes_of
from .._text import short_repr
from ..layout.placement import PlacementLayout, Shape, layout_of
from ..layout.sbp import NdSbp, show_sbp
from ..modules.tree import Held, Unregistered


class Named(Protocol):
    """What has a path, and other names."""

    @property
    def path(self) -> str: ...

    @property
    def tied(self) -> tuple[str, ...]: ...


R = TypeVar("R", bound=Named)


@dataclass(frozen=True)
class Row:
    """One tensor of a module.

    ``path`` is its first name and ``tied`` its other ones; ``owner`` the class of the module that
    holds it; ``kind`` is ``"parameter"``, ``"buffer"``, or ``"attribute"`` for what is kept and
    not registered. ``shape`` is the logical shape, ``component`` the shape of what lies on this
    rank (``(0,)`` where the placement leaves it out) and ``nbytes`` its bytes. Of a local tensor
    both shapes are its own, ``placement`` and ``sbp`` are None, and ``device`` says where it is.
    ``saved`` is False for a buffer that is not persistent and for an attribute.
    """

    path: str
    tied: tuple[str, ...]
    owner: str
    kind: Literal["parameter", "buffer", "attribute"]
    saved: bool
    requires_grad: bool
    shape: Shape
    component: Shape
    dtype: Any
    placement: Optional[Any]
    sbp: Optional[NdSbp]
    device: Optional[str]
    nbytes: int

    @property
    def is_global(self) -> bool:
        return self.placement is not None

    @property
    def logical_nbytes(self) -> int:
        """The bytes of the whole tensor."""
        return math.prod(self.shape) * item_size(self.dtype)

    @property
    def dtype_name(self) -> str:
        return dtype_name(self.dtype)

    def component_on(self, rank: int) -> Shape:
        """The shape of what lies on a rank; of a local tensor the same on each."""
        if self.placement is None or self.sbp is None:
            return self.shape
        layout = layout_of(self.placement)
        return layout.component(self.shape, self.sbp, layout.positions.get(rank))

    def nbytes_on(self, rank: int) -> int:
        """The bytes of that."""
        return math.prod(self.component_on(rank)) * item_size(self.dtype)

    def placed(self, shape: Shape, layout: PlacementLayout, sbp: NdSbp) -> Row:
        """The row of the same tensor where it has this logical shape, placement and sbp."""
        component = layout.component(shape, sbp, layout.position)
        return replace(
            self,
            shape=shape,
            component=component,
            placement=layout.placement,
            sbp=sbp,
            device=None,
            nbytes=math.prod(component) * item_size(self.dtype),
        )

    def to_dict(self) -> dict[str, Any]:
        """All of it in types that JSON has."""
        return {
            "path": self.path,
            "tied": list(self.tied),
            "class": self.owner,
            "kind": self.kind,
            "saved": self.saved,
            "requires_grad": self.requires_grad,
            "global": self.is_global,
            "shape": list(self.shape),
            "component": list(self.component),
            "dtype": self.dtype_name,
            "placement": placement_dict(self.placement),
            "sbp": None if self.sbp is None else [show_sbp((sbp,)) for sbp in self.sbp],
            "device": self.device,
            "nbytes": self.nbytes,
        }


@dataclass(frozen=True)
class Total:
    """How many tensors one placement has (None: how many are local), and their bytes.

    ``nbytes`` are those on this rank, ``logical_nbytes`` those of the whole tensors.
    """

    placement: Optional[Any]
    tensors: int
    nbytes: int
    logical_nbytes: int

    def to_dict(self) -> dict[str, Any]:
        """All of it in types that JSON has."""
        return {**vars(self), "placement": placement_dict(self.placement)}


def at_path(rows: Sequence[R], path: Any, module: str) -> R:
    """The row of a tensor, by any of its names; ``module`` is the class in the KeyError."""
    for row in rows:
        if path == row.path or path in row.tied:
            return row
    paths = [row.path for row in rows]
    close = get_close_matches(path, paths) if isinstance(path, str) else []
    such_as = ", ".join(map(repr, close or paths[:3]))
    raise KeyError(
        f"{module} holds no tensor of this path. Expected: one of its paths"
        f"{', such as ' * bool(paths)}{such_as}. Received: {short_repr(path)}. "
        "Write print(report) to see them"
    )


def rows_of(held: Iterable[Held]) -> tuple[Row, ...]:
    """A row for each Parameter and buffer."""
    return tuple(
        _row(
            names[0].path,
            names[0].owner,
            tensor,
            tied=tuple(name.path for name in names[1:]),
            kind="parameter" if any(name.kind == "parameter" for name in names) else "buffer",
            saved=any(name.is_saved for name in names),
        )
        for tensor, names in held
    )


def unregistered_rows(unregistered: Iterable[Unregistered]) -> tuple[Row, ...]:
    """A row for each tensor that is not registered."""
    return tuple(
        _row(path, owner, tensor, tied=(), kind="attribute", saved=False)
        for path, owner, tensor in unregistered
    )


def totals_of(rows: Iterable[Row]) -> tuple[Total, ...]:
    """One for each placement, in the order in which they are met, and one for what is local."""
    by_placement: dict[Any, list[Row]] = {}
    for row in rows:
        by_placement.setdefault(row.placement, []).append(row)
    return tuple(
        Total(
            placement,
            tensors=len(group),
            nbytes=sum(row.nbytes for row in group),
            logical_nbytes=sum(row.logical_nbytes for row in group),
        )
        for placement, group in by_placement.items()
    )


def _row(path: str, owner: Module, tensor: Any, **known: Any) -> Row:
    shape = tuple(tensor.shape)
    row = Row(
        **known,
        path=path,
        owner=type(owner).__name__,
        requires_grad=bool(tensor.requires_grad),
        shape=shape,
        component=shape,
        dtype=tensor.dtype,
        placement=None,
        sbp=None,
        device=str(tensor.device) if tensor.is_local else None,
        nbytes=nbytes_of(tensor),
    )
    if tensor.is_local:
        return row
    return row.placed(shape, layout_of(tensor.placement), tuple(tensor.sbp))


def show_placement(placement: Any) -> str:
    """``cpu [[0, 1], [2, 3]]``, or ``cpu [0, ..., 63]`` of more ranks along a dimension than 8."""
    return f"{placement.type} {_show_ranks(placement.ranks.tolist())}"


def _show_ranks(ranks: Any) -> str:
    if not isinstance(ranks, list):
        return str(ranks)
    if len(ranks) > 8:
        return f"[{_show_ranks(ranks[0])}, ..., {_show_ranks(ranks[-1])}]"
    return f"[{', '.join(map(_show_ranks, ranks))}]"


def placement_dict(placement: Any) -> dict[str, Any] | None:
    """The device type of a placement and its ranks, nested as its dimensions are."""
    if placement is None:
        return None
    return {"type": placement.type, "ranks": placement.ranks.tolist()}


def kind_of(row: Row) -> str:
    """``parameter``, or ``buffer, not saved``."""
    frozen = row.kind == "parameter" and not row.requires_grad
    return f"{row.kind}{', frozen' * frozen}{', not saved' * (not row.saved)}"
