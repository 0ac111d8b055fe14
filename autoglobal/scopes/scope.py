"""``global_scope``, ``local_scope`` and ``current_scope``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .._signals import uninterrupted
from .._text import short_repr
from ..errors import SpecTypeError, short_traceback
from ..layout.spec import (
    TIMEOUT,
    Buffers,
    Existing,
    GlobalSpec,
    Source,
    Unsplittable,
    Unused,
    When,
)
from ..modules.hook import Assignment
from .active import ActiveScope
from .context import ScopeContext
from .deferred import Deferred
from .stack import Frame, innermost, open_frames


def current_scope() -> ActiveScope | None:
    """The innermost scope in force for this thread and asyncio task, or None.

    ::

        with global_scope(placement, sbp):
            print(current_scope().spec.placement)

    None inside of :class:`autoglobal.local_scope` too. What ``with global_scope(...) as scope``
    gives is the same object.
    """
    frame = innermost()
    return frame if isinstance(frame, ActiveScope) else None


class global_scope(ScopeContext[ActiveScope]):
    """Inside this block, what is assigned to any ``nn.Module`` becomes global.

    ::

        import oneflow as flow
        from oneflow import nn
        from autoglobal import global_scope

        model = nn.Linear(4, 4)  # or a model that is global already
        placement = flow.placement("cpu", ranks=[0])
        with global_scope(placement, flow.sbp.split(0)) as scope:
            model.new = nn.Parameter(flow.zeros(4, 4))
        assert model.new.is_global and model.new.sbp == (flow.sbp.split(0),)
        print(scope)  # what was converted

    Concerned is everything that registers state on a module: ``m.p = Parameter(...)``,
    ``register_parameter``, ``register_buffer``, re-assigning a buffer, ``m.sub = module`` and
    ``add_module`` (the whole tree), in the block's own code and in every constructor that runs
    in it. Plain tensor attributes and free tensors stay local, and what is global already stays
    the same object with the same sbp. The innermost scope counts. After the block
    ``oneflow.nn.Module`` is unpatched.

    A Parameter is changed in place, so that optimizers, tied weights and the caller's own
    variable stay right; its values, dtype, ``requires_grad`` and ``.grad`` are kept. A buffer is
    replaced. Every rank has to make the same assignments in the same order, those that the
    placement leaves out too.

    Args:
        placement: a ``flow.placement``, 1-D or n-D.
        sbp: one sbp; a list or tuple with one per placement dimension; a mapping of glob
            patterns to either, or to None for "stays local"; or a callable ``(owner_module,
            path, tensor)`` that returns one of these. In place of an sbp it may be
            :class:`autoglobal.Placed`, for another placement. Patterns are matched, case and all,
            against the path (``"sub.attn.weight"``; ``*`` matches dots too, and a leading ``*.``
            matches at the top level), against the paths of the modules above (``"sub.attn"``), and
            against ``"OwnerClass.attribute"`` (``"Embedding.weight"``, ``"Embedding"``). A key may
            be a class of modules, or an ``re.compile()`` that has to match the whole path. The
            first match wins; where none matches that is an error. With ``when="assign"`` the path
            starts at the name that is assigned, so inside a constructor it is that name alone.
            ``partial_sum`` is passed on as it is; OneFlow's initialisers raise on such a tensor,
            so a layer that initialises itself cannot be built under it.
        source: ``"full"``: each rank's local tensor is the whole logical tensor, the logical
            shape is kept and the placement's first rank gives the values. ``"shard"``: it is
            this rank's component, as in ``Tensor.to_global``: two ranks with ``(4, 4)`` under
            ``split(0)`` make ``(8, 4)``.
        when: ``"assign"``: each tensor is converted as it is assigned. ``"exit"``: nothing
            changes inside the block, and as it ends without an exception everything that was
            assigned in it is converted as one value. For constructors that use their own
            weights, for the first rank's initial values kept exactly, and for rules by path: the
            paths start at each root, a module assigned to that is not below another such one.
        existing: ``"keep"``: what is global already stays the same object with the same sbp.
            ``"error"``: it is an error that names all of it. ``"convert"``: it gets this
            placement and sbp too, as by ``Module.to_global``.
        buffers: ``"broadcast"``: buffers become global and broadcast, whatever sbp the rules ask
            (OneFlow 0.9.0 never updates a BatchNorm's running statistics when they are split,
            and says nothing); where a rule says ``None`` they stay local. ``"sbp"``: like
            Parameters, by the rules. ``False``: they stay local.
        unsplittable: what to do with a tensor whose split axis does not exist or is shorter than
            the ranks it is split over: ``"error"``, or ``"broadcast"`` to make it broadcast
            along that placement dimension (recorded as ``fallback``). A 0-dim tensor is broadcast
            wherever another one would be split.
        same_placement: True refuses to add to a module that holds global tensors on another
            placement.
        check: True: all ranks agree before each conversion, in one small message to rank 0 and
            one back, and as the block ends. Equal copies are then cut where they lie; where they
            differ the first rank's values are sent. False: the ranks are trusted to hold equal
            copies, or shards of equal shape, and nothing is compared or sent.
        timeout: how many seconds to wait for another rank in one of these messages (less where
            ``ONEFLOW_TIMEOUT_SECONDS`` is smaller). After 10 seconds the process says on stderr for
            whom it waits. At the limit it says what it was converting, and ends with exit code 124:
            a wait inside OneFlow cannot be given up, by Ctrl-C neither.
        unused: what to do with a pattern of ``sbp`` that decides for no tensor: ``"warn"``, or
            ``"error"`` for a ConversionError on every rank: with ``when="exit"`` before anything
            has changed, else as the block ends.

    Raises:
        SpecTypeError: placement or sbp is of another type; raised here, where the scope is made.
        SpecError: a rank that does not exist, a CUDA placement without that many usable devices,
            a wrong number of sbps, an unknown value of an option; raised here.
        ConversionError: raised by the assignment (with ``when="exit"`` by the end of the block),
            on every rank alike, with everything as it was before: a tensor that cannot be split
            as asked for, one that no rule matches or that autograd still tracks, what
            ``existing="error"`` and ``same_placement=True`` refuse, a module wrapped for
            ``DistributedDataParallel``, an assignment inside ``nn.Graph.build`` or outside the
            main thread.
        DivergenceError: the ranks do not make the same assignments; on every rank, and nothing has
            changed. Raised by the assignment or as the block ends. Where one rank has left the
            block by an exception of its own, that one keeps it, and nothing more becomes global in
            it on the others, whatever they catch. Outside of it the ranks meet again.

    Warns:
        UnusedRuleWarning: a pattern of ``sbp`` has decided for no tensor by the time the scope
            closes: the sentence says why, and what to write. With ``when="exit"`` this and the next
            ones come before anything has changed. All are shown on rank 0 alone; where a filter
            makes an error of one, each rank raises it.
        SharedMemoryWarning: with ``when="exit"``, Parameters lie in one memory, and are not one
            Parameter.
        LateRuleWarning: with ``when="assign"``, a rule by path met what a constructor inside the
            block had assigned, and another rule decided, under a shorter path.
        HookRemovedWarning: somebody has put back a method of ``nn.Module`` that was there before
            the scope. A scope that is opened after that puts the hook on again.
        NeverEnteredWarning: the scope is gone, and was neither entered nor a decorator.
        TiedRulesWarning: the rules differ over a tensor that is tied; the first met is taken, and
            any before ``"*"``.
    """

    for_a_class = "@auto_global(placement, sbp) for a class"

    def __init__(
        self,
        placement: Any,
        sbp: Any,
        *,
        source: Source = "full",
        when: When = "assign",
        existing: Existing = "keep",
        buffers: Buffers = "broadcast",
        unsplittable: Unsplittable = "error",
        same_placement: bool = False,
        check: bool = True,
        timeout: float = TIMEOUT,
        unused: Unused = "warn",
    ) -> None:
        with short_traceback:
            self._spec = GlobalSpec(
                placement=placement,
                sbp=sbp,
                source=source,
                when=when,
                existing=existing,
                buffers=buffers,
                unsplittable=unsplittable,
                same_placement=same_placement,
                check=check,
                timeout=timeout,
                unused=unused,
            )
        super().__init__()  # last: one that is refused was never made

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # Checked again, because this may be another program than that which wrote it.
        self._spec = replace(self._spec)

    def new_frame(self) -> ActiveScope:
        return ActiveScope(self._spec, self)

    def __repr__(self) -> str:
        return f"global_scope({self._spec.placement}, {self._spec.rules})"


class local_scope(ScopeContext[Frame]):
    """Inside this block nothing is converted, whatever scope or decorated class is around it.

    ::

        import oneflow as flow
        from oneflow import nn
        from autoglobal import global_scope, local_scope

        model = nn.Linear(4, 4)
        with global_scope(flow.placement("cpu", ranks=[0]), flow.sbp.broadcast):
            with local_scope():
                model.teacher = nn.Linear(4, 4)
            model.head = nn.Linear(4, 4)
        assert model.teacher.weight.is_local and model.head.weight.is_global

    A context manager and a decorator for functions, as :class:`autoglobal.global_scope` is; a
    scope that is opened inside it converts again.

    Raises:
        AutoglobalError: closed out of order or twice.
        SpecTypeError: used as a decorator on a class, or without its parentheses.
    """

    for_a_class = "it above the methods of the class, such as __init__"

    if not TYPE_CHECKING:  # which takes it for a scope without arguments, as it is

        def __init__(self, *nothing: Any) -> None:
            if nothing:  # of auto_global there is a form without parentheses
                raise SpecTypeError(
                    f"local_scope must have no arguments. Received: {short_repr(nothing[0])}. "
                    "Write @local_scope() above a def, or with local_scope():"
                )
            super().__init__()

    def new_frame(self) -> Frame:
        waiting = [frame.deferred for frame in open_frames() if frame.deferred is not None]
        return _Forgetting(self, waiting) if waiting else Frame(self)

    def __repr__(self) -> str:
        return "local_scope()"


class _Forgetting(Frame):
    """A local scope inside scopes that convert at their end: what is assigned is not theirs."""

    def __init__(self, opened_by: object, waiting: list[Deferred]) -> None:
        super().__init__(opened_by)
        self._waiting = waiting
        self.handler = self

    def on_assign(self, assignment: Assignment) -> Any:
        with uninterrupted:
            result = assignment.forward()
            for deferred in self._waiting:
                deferred.forget(assignment.module, assignment.name)
            return result
