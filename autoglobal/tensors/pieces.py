"""One tensor that is to become global, and the way in which it does."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, Literal

from .._compat import nbytes_of
from ..layout.rules import BROADCAST, PARTIAL_SUM, NdSbp, show_sbp, split_axis
from ..layout.spec import GlobalSpec, Shape
from ..ranks.agreement import Line
from .convert import Tensor, box, empty, from_component, from_whole

# "copy": each rank has the whole, and the first rank's counts. "own": each has a component of
# its own. "global": it is that already, elsewhere or with another sbp. "fresh": it holds nothing.
Way = Literal["copy", "own", "global", "fresh"]


class Piece:
    """A tensor to be made global; ``path`` names it, ``kind`` says what it is."""

    __slots__ = (
        *("digest", "kind", "logical", "made", "path", "sbp", "shape", "spec"),
        *("tensor", "way"),
    )

    def __init__(
        self,
        path: str,
        kind: str,
        tensor: Tensor,
        spec: GlobalSpec,
        sbp: NdSbp,
    ) -> None:
        self.path = path
        self.kind = kind
        self.tensor = tensor
        self.spec = spec
        self.sbp = sbp
        self.made: Tensor = None
        self.digest: bytes | None = None
        self.shape: Shape = tuple(tensor.shape)
        self.logical = self.shape
        self.way: Way
        if tensor.is_global:
            self.way = "global"
        elif spec.source == "full" or all(one == BROADCAST for one in sbp):
            self.way = "copy"
        else:
            self.way = "own"
            self.logical = _grown(self.shape, spec.hierarchy, sbp)

    @property
    def nbytes(self) -> int:
        return nbytes_of(self.tensor)

    @property
    def is_compared(self) -> bool:
        """Whether what the ranks hold has to be equal, or be made so."""
        return self.way == "copy" and self.spec.check and len(self.spec.members) > 1

    def leave_empty(self) -> None:
        """The tensor holds nothing yet, and is going to be filled."""
        if self.way == "copy" and PARTIAL_SUM not in self.sbp:
            self.way = "fresh"

    def line(self) -> Line:
        """What all ranks have to say alike."""
        shape: object = self.shape
        if self.way == "own":  # components may be longer on some ranks, along a split axis
            axes = {split_axis(one) for one in self.sbp}
            shape = tuple("any" if axis in axes else size for axis, size in enumerate(self.shape))
        return Line(self.path, f"{self.kind} {self.path}, shape {shape}, {self._rest()}")

    def shown(self) -> str:
        """The same, for people."""
        return f"{self.kind} {self.path}, shape {self.shape}, {self._rest()}"

    def _rest(self) -> str:
        tensor = self.tensor
        if self.way == "global":
            where = f"{_show(tensor.sbp)} on {tensor.placement}"
        else:
            where = tensor.device.type + ", not initialised yet" * (self.way == "fresh")
        return _rest(tensor.dtype, where, tensor.requires_grad, self.sbp)

    def make(self) -> Tensor:
        """The global tensor; where the ranks' copies differ, of this rank's."""
        tensor, spec, sbp = self.tensor, self.spec, self.sbp
        if self.way == "global":
            return box(tensor, spec, sbp)
        if self.way == "fresh":
            return empty(self.logical, tensor.dtype, spec, sbp)[0]
        if self.way == "own" and spec.check and BROADCAST in sbp:
            # Without its check OneFlow takes the components to be of one shape.
            return box(tensor, spec, sbp, check_meta=not _are_alike(self.logical, spec, sbp))
        if self.way == "copy":
            return from_whole(tensor, spec, sbp)
        return from_component(tensor, self.logical, spec, sbp)


@lru_cache(maxsize=1024)
def _rest(dtype: Any, where: str, requires_grad: bool, sbp: NdSbp) -> str:
    grad = ", requires_grad" if requires_grad else ""
    return f"{dtype}, {where}{grad}, to be {_show(sbp)}"


@cache
def _show(sbp: NdSbp) -> str:
    return show_sbp(sbp)


def _are_alike(logical: Shape, spec: GlobalSpec, sbp: NdSbp) -> bool:
    """Whether all ranks' components are of one shape."""
    shapes = {spec.component(logical, sbp, position) for position in spec.positions.values()}
    return len(shapes) == 1


@lru_cache(maxsize=1024)
def _grown(component: Shape, hierarchy: Shape, sbp: NdSbp) -> Shape:
    """The logical shape where all ranks have components of this shape."""
    shape = list(component)
    for one, ranks in zip(sbp, hierarchy):
        axis = split_axis(one)
        if axis is not None:
            shape[axis] *= ranks
    return tuple(shape)
