"""Records of what a scope or a call has met: made global, kept as it was, or left local."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, Optional, Union
from weakref import ref

from .._compat import Module, Tensor, item_size
from ..layout.placement import PlacementLayout, Shape
from ..layout.sbp import NdSbp
from ..layout.spec import Kind
from ..ranks.collectives import traffic

if TYPE_CHECKING:
    from .plan import PlannedTensor


@dataclass(frozen=True)
class Entry:
    """What every record says of a tensor."""

    path: str
    owner: str
    kind: Literal["parameter", "buffer", "attribute"]
    shape: Shape
    dtype: Any


@dataclass(frozen=True)
class Record(Entry):
    """One tensor that was made global.

    ``path`` starts at the name that was assigned (``"sub.attn.weight"``), ``owner`` is the class
    of the module that holds the tensor, ``shape`` the logical shape, ``nbytes`` the bytes of
    this rank's component. ``fallback`` is True where ``unsplittable="broadcast"`` made it
    broadcast along some placement dimension. ``rule`` says what has decided: the key of a mapping,
    ``"the sbp function"``, ``"buffers='broadcast'"``, or ``"sbp"`` where one sbp is for all.
    """

    kind: Kind
    placement: Any
    sbp: NdSbp
    nbytes: int
    fallback: bool = False
    rule: Optional[str] = None


@dataclass(frozen=True)
class Kept(Entry):
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

    kind: Kind
    placement: Any
    sbp: NdSbp


@dataclass(frozen=True)
class Left(Entry):
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

    reason: str


_Unwritten = tuple[str, type, Kind, Shape, Any, PlacementLayout, NdSbp, bool, Optional[str]]
_Unchanged = Union[Kept, Left]
Mark = tuple[float, int, int]


def mark() -> Mark:
    """Where the clock and the traffic stand."""
    return perf_counter(), traffic.sent, traffic.received


class Records:
    """The records of one scope or call, and what it has cost this rank.

    ``lasts``: what was made global may be met again. They hold no tensor and no module.

    What ``seconds``, ``sent`` and ``received`` count stands in :class:`autoglobal.ActiveScope`.
    """

    def __init__(self, lasts: bool = False) -> None:
        self.seconds = 0.0
        self.sent = 0
        self.received = 0
        self._looks = lasts
        self._unwritten: list[_Unwritten] = []
        self._written: list[Record] = []
        # By the id of a tensor that was made global here: a module that got it. OneFlow's tensors
        # take no weak reference, and while that module lives the id is hardly another one's.
        self._made: dict[int, ref[Module]] = {}
        # By module and name, the last entry of each. A module has one such reference for as long
        # as anybody holds that, so its id stands for the module, also for one that is gone.
        self._unchanged: dict[tuple[int, str], tuple[ref[Module], _Unchanged]] = {}

    @property
    def converted(self) -> list[Record]:
        """What became global, in the order in which it did."""
        # The same list each time, with what has come since.
        unwritten, self._unwritten = self._unwritten, []
        for path, owner, kind, shape, dtype, layout, sbp, fallback, rule in unwritten:
            component = layout.component(shape, sbp, layout.position)
            self._written.append(
                Record(
                    path=path,
                    owner=owner.__name__,
                    kind=kind,
                    shape=shape,
                    dtype=dtype,
                    placement=layout.placement,
                    sbp=sbp,
                    nbytes=math.prod(component) * item_size(dtype),
                    fallback=fallback,
                    rule=rule,
                )
            )
        return self._written

    @property
    def kept(self) -> list[Kept]:
        """What was met, was global already and is as it was.

        Met is what lies below a module that is assigned. A global Parameter or buffer that is
        assigned by itself passes unseen unless ``existing`` is another than ``"keep"``: to look
        at it would cost every such assignment. What the scope itself has made global is in
        ``converted`` alone. One that is met twice is listed once, with the path of the last time.
        """
        return [one for _, one in self._unchanged.values() if isinstance(one, Kept)]

    @property
    def left(self) -> list[Left]:
        """What was met and is still local, each with the reason; met and listed as in ``kept``.

        One that was made global afterwards under the same name is listed in ``converted`` alone.
        Tensors that lie in a list or are attributes of a module that is assigned are not met.
        """
        return [one for _, one in self._unchanged.values() if isinstance(one, Left)]

    def count_converted(self) -> int:
        """How many tensors were made global."""
        return len(self._unwritten) + len(self._written)

    def add_cost(self, since: Mark) -> None:
        """Add what has come since a :func:`mark`."""
        # No context manager: that would take 4 % of the time of an assignment, this takes 1 %.
        seconds, sent, received = since
        self.seconds += perf_counter() - seconds
        self.sent += traffic.sent - sent
        self.received += traffic.received - received

    def add_converted(self, planned: PlannedTensor, made: Tensor) -> None:
        """Note that ``made`` has become global, or has taken the planned tensor's place."""
        owner, kind, shape, dtype = (
            planned.places[0][0],
            planned.kind,
            tuple(made.shape),
            made.dtype,
        )
        layout, sbp, fallback = planned.layout, planned.target, planned.fallback
        what = planned.path, type(owner), kind, shape, dtype, layout, sbp, fallback
        self._unwritten.append((*what, planned.rule))
        if self._looks:
            self._made[id(made)] = ref(owner)
            if self._unchanged:
                for module, _, name in planned.places:
                    self._unchanged.pop((id(ref(module)), name), None)

    def add_unchanged(self, planned: Iterable[PlannedTensor]) -> int:
        """Note what stays as it is, but for what was made global here; how many that are."""
        count = 0
        for one in planned:
            tensor, (owner, _, name) = one.tensor, one.places[0]
            reason = one.reason_left
            if reason is None and self._is_own(tensor):
                continue
            count += 1
            what = one.path, type(owner).__name__, one.kind, tuple(tensor.shape), tensor.dtype
            if reason is None:
                kept = Kept(*what, placement=tensor.placement, sbp=tensor.sbp)
                self._add_unchanged(owner, name, kept)
            else:
                self._add_unchanged(owner, name, Left(*what, reason=reason))
        return count

    def add_attribute(self, module: Module, name: str, value: Tensor) -> None:
        """Note a local tensor that OneFlow has not registered."""
        reason = "a plain attribute, which OneFlow does not register"
        owner, shape = type(module).__name__, tuple(value.shape)
        entry = Left(name, owner, "attribute", shape, value.dtype, reason)
        self._add_unchanged(module, name, entry)

    def _is_own(self, tensor: Tensor) -> bool:
        owner = self._made.get(id(tensor))
        return owner is not None and owner() is not None

    def _add_unchanged(self, owner: Module, name: str, entry: _Unchanged) -> None:
        held, self._looks = ref(owner), True
        self._unchanged[id(held), name] = held, entry

    def forget_made(self) -> None:
        """Nothing more will come."""
        self._made.clear()
