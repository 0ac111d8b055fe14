"""One tensor that is to become global, and the way in which it does."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from .agree import Line
from .convert import Tensor, box, claim, copy_of, from_component, from_whole, is_even, item_size
from .rules import BROADCAST, NdSbp, show_sbp, split_axis
from .spec import GlobalSpec, Shape

# "copy": each rank has the whole, and the first rank's counts. "own": each has a component of
# its own. "global": it is that already, elsewhere or with another sbp.
Way = Literal["copy", "own", "global"]


@dataclass
class Piece:
    """A tensor to be made global; ``path`` names it, ``kind`` says what it is.

    ``mine``: nobody else holds the tensor's memory, which may become the component's.
    """

    path: str
    kind: str
    tensor: Tensor
    spec: GlobalSpec
    sbp: NdSbp
    mine: bool = False
    made: Tensor = None
    digest: bytes | None = None
    shape: Shape = field(init=False)
    logical: Shape = field(init=False)
    way: Way = field(init=False)

    def __post_init__(self) -> None:
        self.shape = self.logical = tuple(self.tensor.shape)
        if self.tensor.is_global:
            self.way = "global"
        elif self.spec.source == "full" or all(one == BROADCAST for one in self.sbp):
            self.way = "copy"
        else:
            self.way = "own"
            self.logical = _grown(self.shape, self.spec, self.sbp)

    @property
    def nbytes(self) -> int:
        return int(self.tensor.numel()) * item_size(self.tensor.dtype)

    @property
    def is_compared(self) -> bool:
        """Whether what the ranks hold has to be equal, or be made so."""
        return self.way == "copy" and self.spec.check and len(self.spec.members) > 1

    def line(self) -> Line:
        """What all ranks have to say alike."""
        tensor = self.tensor
        shape: Any = self.shape
        if self.way == "own":  # components may be longer on some ranks, along a split axis
            axes = {split_axis(one) for one in self.sbp}
            shape = tuple("any" if axis in axes else size for axis, size in enumerate(shape))
        if self.way == "global":
            where = f"{_show(tensor.sbp)} on {tensor.placement}"
        else:
            where = tensor.device.type
        grad = ", requires_grad" if tensor.requires_grad else ""
        return Line(
            self.path,
            f"{self.kind} {self.path}, shape {shape}, {_name(tensor.dtype)}, {where}{grad}, "
            f"to be {_show(self.sbp)}",
        )

    def make(self) -> Tensor:
        """The global tensor; where the ranks' copies differ, of this rank's."""
        tensor, spec, sbp = self.tensor, self.spec, self.sbp
        if self.way == "global":
            return box(tensor, spec, sbp)
        if self.way == "copy":
            return from_whole(tensor, spec, sbp)
        if spec.check and BROADCAST in sbp:
            return box(tensor, spec, sbp)
        if is_even(self.logical, spec, sbp):
            return claim(copy_of(tensor.detach()), spec, sbp)
        return from_component(tensor, self.logical, spec, sbp)


@cache
def _name(dtype: Any) -> str:
    return str(dtype)


@cache
def _show(sbp: NdSbp) -> str:
    return show_sbp(sbp)


def _grown(component: Shape, spec: GlobalSpec, sbp: NdSbp) -> Shape:
    """The logical shape where all ranks have components of this shape."""
    shape = list(component)
    for one, ranks in zip(sbp, spec.hierarchy):
        axis = split_axis(one)
        if axis is not None:
            shape[axis] *= ranks
    return tuple(shape)
