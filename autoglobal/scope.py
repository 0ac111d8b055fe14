"""Which spec is in force here: ``global_scope`` and what it hands out."""

from __future__ import annotations

from contextvars import ContextVar
from types import TracebackType
from typing import Any, Literal, Optional

from . import hook
from .errors import AutoglobalError
from .plan import Memo, Record, assign
from .registry import Module, slot_of
from .spec import Buffers, GlobalSpec, Source, Unsplittable, show_sbp


class ActiveScope:
    """One passage through a ``with global_scope(...)`` block; what ``as`` gives.

    ``converted`` lists what became global in it, in order, one :class:`autoglobal.Record` each;
    ``str(scope)`` shows that as text.
    """

    def __init__(
        self, spec: GlobalSpec, outer: ActiveScope | None, opened_by: global_scope
    ) -> None:
        self.spec = spec
        self.converted: list[Record] = []
        self._outer = outer
        self._opened_by = opened_by
        self._memo = Memo()

    def __str__(self) -> str:
        spec = self.spec
        lines = [
            f"global_scope({spec.placement}, {show_sbp(spec.sbp)}, source={spec.source!r}): "
            f"{len(self.converted)} converted"
        ]
        for one in self.converted:
            lines.append(
                f"  {one.path} ({one.kind} of {one.owner}): {one.shape} {one.dtype}, "
                f"{show_sbp(one.sbp)}, {one.nbytes} bytes on this rank"
            )
        return "\n".join(lines)

    def on_assign(
        self, forward: hook.Forward, module: Module, via: str, name: Any, value: Any
    ) -> Any:
        slot = slot_of(module, via, name, value)
        if slot is None:
            return forward()
        result, records = assign(self.spec, self._memo, forward, module, slot, name, value)
        self.converted += records
        return result


_innermost: ContextVar[Optional[ActiveScope]] = ContextVar("autoglobal_scope", default=None)
_installer = hook.Installer(_innermost.get)


class global_scope:
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
        sbp: one sbp, or a list or tuple with one per placement dimension. ``partial_sum`` is
            passed on as it is; OneFlow's initialisers raise on such a tensor, so a layer that
            initialises itself cannot be built under it.
        source: ``"full"``: each rank's local tensor is the whole logical tensor, the logical
            shape is kept and the placement's first rank gives the values. ``"shard"``: it is
            this rank's component, as in ``Tensor.to_global``: two ranks with ``(4, 4)`` under
            ``split(0)`` make ``(8, 4)``.
        when: ``"assign"``: each tensor is converted as it is assigned.
        existing: ``"keep"``: what is global already is left alone.
        buffers: ``"broadcast"``: buffers become global and broadcast, whatever ``sbp`` is
            (OneFlow 0.9.0 never updates a BatchNorm's running statistics when they are split,
            and says nothing). ``"sbp"``: like Parameters. ``False``: they stay local.
        unsplittable: what to do with a tensor whose split axis does not exist or is shorter than
            the ranks it is split over: ``"error"``, or ``"broadcast"`` to make it broadcast
            along that placement dimension. A 0-dim tensor is always broadcast.

    Raises:
        SpecTypeError: placement or sbp is of another type; raised here, where the scope is made.
        SpecError: a rank that does not exist, a CUDA placement without that many usable devices,
            a wrong number of sbps, an unknown value of an option; raised here.
        ConversionError: raised by the assignment, on every rank alike, with everything as it was
            before: a tensor that cannot be split as asked for, one that autograd still tracks,
            an assignment inside ``nn.Graph.build`` or outside the main thread.
    """

    def __init__(
        self,
        placement: Any,
        sbp: Any,
        *,
        source: Source = "full",
        when: Literal["assign"] = "assign",
        existing: Literal["keep"] = "keep",
        buffers: Buffers = "broadcast",
        unsplittable: Unsplittable = "error",
    ) -> None:
        self._spec = GlobalSpec(
            placement=placement,
            sbp=sbp,
            source=source,
            when=when,
            existing=existing,
            buffers=buffers,
            unsplittable=unsplittable,
        )

    def __enter__(self) -> ActiveScope:
        _installer.acquire()
        scope = ActiveScope(self._spec, outer=_innermost.get(), opened_by=self)
        _innermost.set(scope)
        return scope

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        scope = _innermost.get()
        if scope is None or scope._opened_by is not self:
            raise AutoglobalError(
                "global_scope was closed where it is not the innermost open scope of this thread "
                "and task. Expected: each scope is closed once, inner ones first. Write it as "
                "with global_scope(...):"
            )
        _innermost.set(scope._outer)
        scope._memo.clear()
        _installer.release()
