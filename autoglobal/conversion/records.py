"""Records of what a scope or a call has met: made global, kept as it was, or left local."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, Optional, Union
from weakref import CallableProxyType, ref

from .._compat import Module, Tensor, item_size
from ..layout.placement import PlacementLayout, Shape
from ..layout.sbp import NdSbp
from ..layout.spec import Kind
from ..modules.registry import TENSOR_STORES, children, join, store
from ..modules.tree import topmost, walk
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

    ``path`` starts at the name that was assigned (``"sub.attn.weight"``), and once a scope is over
    at the topmost module that was assigned to; ``owner`` is the class of the module that holds the
    tensor, ``shape`` the logical shape, ``nbytes`` the bytes of this rank's component.
    ``fallback`` is True where ``unsplittable="broadcast"`` made it broadcast along some placement
    dimension. ``rule`` says what has decided: the key of a mapping, ``"the sbp function"``,
    ``"buffers='broadcast'"``, or ``"sbp"`` where one sbp is for all.
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


_Place = tuple["ref[Module]", str]  # a module that holds a tensor, and under which name
_Unwritten = tuple[str, type, Kind, Shape, Any, PlacementLayout, NdSbp, bool, Optional[str]]
_Unchanged = Union[Kept, Left]
Mark = tuple[float, int, int]


def mark() -> Mark:
    """Where the clock and the traffic stand."""
    return perf_counter(), traffic.sent, traffic.received


class Records:
    """The records of one scope or call, and what it has cost this rank.

    They hold no tensor and no module once they are settled.
    """

    is_shown = False  # to the user, who may ask where everything is

    def __init__(self) -> None:
        self.seconds = 0.0
        self.sent = 0
        self.received = 0
        self.left_alone = 0
        self.may_meet_again = False  # what was made global here
        self._written: list[Record] = []
        self._unwritten: list[_Unwritten] = []
        self._places: list[_Place] = []  # of each tensor of these two, one after the other
        # By id, the modules that something was assigned to.
        self._assigned: dict[int, ref[Module]] = {}
        # By the id of a tensor that was made global here: a module that got it. OneFlow's tensors
        # take no weak reference, and while that module lives the id is hardly another one's.
        self._made: dict[int, ref[Module]] = {}
        # By module and name, the last entry of each. A module has one such reference for as long
        # as anybody holds that, so its id stands for the module, also for one that is gone.
        self._unchanged: dict[tuple[int, str], tuple[Optional[ref[Module]], _Unchanged]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """All that is told, and nothing of the modules: what a copy has, or a file."""
        return {
            **{"seconds": self.seconds, "sent": self.sent, "received": self.received},
            **{"left_alone": self.left_alone, "_written": [*self.converted]},
            "_unchanged": {
                (index, ""): (None, entry)
                for index, (_, entry) in enumerate(self._unchanged.values())
            },
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        Records.__init__(self)
        self.__dict__.update(state)

    @property
    def waiting(self) -> list[str]:
        """What is to be converted later, by its path."""
        return []

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
        assigned by itself passes unseen unless ``existing`` is another than ``"keep"``, or
        ``same_placement=True``: to look at it would cost every such assignment. What the scope
        itself has made global is in ``converted`` alone. One that is met twice is listed once, with
        the path of the last time.
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
        assert planned.conversion is not None
        layout, sbp, fallback = planned.layout, planned.conversion.sbp, planned.fallback
        what = planned.path, type(owner), kind, shape, dtype, layout, sbp, fallback
        decision = planned.decision
        self._unwritten.append((*what, None if decision is None else decision.rule))
        if not (self.is_shown or self.may_meet_again):
            return
        self._made[id(made)] = held = ref(owner)
        self._places.append((held, planned.places[0][2]))
        if self.may_meet_again and self._unchanged:
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

    def are_all_own(self, root: Module) -> bool:
        """Whether all tensors of a tree are global, and were made so here."""
        # Not by walk() or store(), because building from the inside out comes here for all below.
        met: set[int] = set()
        waiting, made = [root], self._made
        while waiting:
            module = waiting.pop()
            if id(module) in met:
                continue
            met.add(id(module))
            if type(module) is CallableProxyType:
                return False  # it may be gone; what looks at all of it knows
            held = module.__dict__
            if held.get("_is_ddp_module"):
                return False
            for _, which in TENSOR_STORES:
                for tensor in (held.get(which) or {}).values():
                    if tensor is None:
                        continue
                    owner = made.get(id(tensor))
                    if owner is None or owner() is None or not tensor.is_global:
                        return False
            waiting += [one for one in (held.get("_modules") or {}).values() if one is not None]
        return True

    def _add_unchanged(self, owner: Module, name: str, entry: _Unchanged) -> None:
        held = ref(owner)
        # It may become global later, under the same name.
        self.may_meet_again = True
        self._unchanged[id(held), name] = held, entry

    def note_assigned(self, module: Module) -> None:
        """Note that something was assigned to a module."""
        if self.is_shown:
            held = ref(module)
            self._assigned[id(held)] = held

    def absorb(self, other: Records) -> None:
        """Add what other ones tell, which are settled."""
        self.seconds += other.seconds
        self.sent += other.sent
        self.received += other.received
        self.converted.extend(other.converted)
        self._unchanged.update(other._unchanged)

    def assigned(self) -> list[Module]:
        """The modules that something was assigned to and that are still there."""
        return [module for held in self._assigned.values() if (module := held()) is not None]

    def settle(self) -> None:
        """Say where everything is by now, and let go of all modules: nothing more will come."""
        alive = self.assigned()
        if alive:
            roots = alive
            if len(alive) > 1:  # else each path starts at that one already
                roots = topmost(alive)
                self._resolve(roots)
            self.left_alone += self._count_left_alone(roots)
        self._places.clear()
        self._assigned.clear()
        self._made.clear()

    def _resolve(self, roots: Sequence[Module]) -> None:
        """Let each path start at the topmost module that was assigned to."""
        above = {id(node.module): node.path for root in reversed(roots) for node in walk(root)}

        def path_of(held: ref[Module] | None, name: str, path: str) -> str:
            module = None if held is None else held()
            at = None if module is None else above.get(id(module))
            return path if at is None else join(at, name)

        written = len(self._written)
        for index, (held, name) in enumerate(self._places):
            if index < written:
                one = self._written[index]
                self._written[index] = replace(one, path=path_of(held, name, one.path))
            else:
                path, *what = self._unwritten[index - written]
                self._unwritten[index - written] = (path_of(held, name, path), *what)
        for (key, name), (owner, entry) in self._unchanged.items():
            path = path_of(owner, name, entry.path)
            self._unchanged[key, name] = owner, replace(entry, path=path)

    def _count_left_alone(self, roots: Sequence[Module]) -> int:
        """How many global tensors there are that nothing here tells of."""
        # Not by walk(), because each scope that something was assigned in comes through here.
        found: set[int] = set()
        met: set[int] = set()
        waiting = [*roots]
        while waiting:
            module = waiting.pop()
            if id(module) in met:
                continue
            met.add(id(module))
            for _, which in TENSOR_STORES:
                for name, tensor in store(module, which).items():
                    if tensor is None or self._is_own(tensor) or not tensor.is_global:
                        continue
                    if (id(ref(module)), name) not in self._unchanged:
                        found.add(id(tensor))
            waiting += [child for _, child in children(module)]
        return len(found)
