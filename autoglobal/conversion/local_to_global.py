"""``local_to_global``: a module that exists already becomes global."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from .._text import short_repr
from ..errors import SpecTypeError, short_traceback
from ..layout.spec import (
    CALL_OPTIONS,
    CallOptions,
    GlobalSpec,
    check_flag,
    check_names,
    takes_options,
)
from ..modules.registry import check_module
from .optimizer_to_global import check_optimizer, check_states, follow
from .plan import Plan
from .session import Session
from .summary import ConversionRecord

if TYPE_CHECKING:
    from typing_extensions import Unpack

M = TypeVar("M")


@takes_options(CALL_OPTIONS)
def local_to_global(
    module: M,
    placement: Any,
    sbp: Any,
    *,
    progress: bool = False,
    record: ConversionRecord | None = None,
    optimizer: Any = None,
    **options: Unpack[CallOptions],
) -> M:
    """Make global, in place, what is local in a module and all below it; return the module.

    ::

        import oneflow as flow
        from oneflow import nn
        from autoglobal import local_to_global

        P, B, S0 = flow.placement("cpu", ranks=[0]), flow.sbp.broadcast, flow.sbp.split(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))
        model[0].to_global(P, B)                # global already: stays as it is
        local_to_global(model, P, {"*.weight": S0, "*": B})
        assert model[0].weight.sbp == (B,) and model[1].weight.sbp == (S0,)

    Where ``Module.to_global`` overwrites the sbp of what is global already and
    ``module._apply(...)`` leaves an RNN's cache and an optimizer with the old Parameters
    (Oneflow-Inc/oneflow#8869), here tied weights stay tied, and gradients, frozen Parameters,
    buffers and caches come along. Every rule and shape is checked before the first tensor
    changes. Every rank has to call it.

    Args:
        module: an ``nn.Module``.
        placement, sbp, source, existing, buffers, unsplittable, same_placement, check, timeout,
            unused: as in :class:`autoglobal.global_scope`. The paths that patterns and a callable
            ``sbp`` see start below ``module``: ``"blocks.0.attn.weight"``.
        progress: show a tqdm bar, on rank 0.
        record: a :class:`autoglobal.ConversionRecord` that is told what the call has done.
        optimizer: an optimizer of the module's Parameters. Its state follows them, as with
            :func:`autoglobal.optimizer_to_global` afterwards; whether its shapes fit is known
            before anything changes.

    Raises:
        SpecTypeError, SpecError: as :class:`autoglobal.global_scope` does, and for another thing
            than a record or an optimizer.
        ConversionError: what is in the module cannot become global as asked for; on every rank,
            with everything as it was before. Also for a module that is wrapped for
            ``DistributedDataParallel``.
        DivergenceError: the ranks' modules are not alike, or another rank refused; on all others.

    Warns:
        UnusedRuleWarning: a pattern of ``sbp`` decides for no tensor.
        SharedMemoryWarning: Parameters lie in one memory, and are not one Parameter
            (``b.weight.data = a.weight.data``), which ends with the conversion.
        TiedRulesWarning: the rules differ over a tensor that is tied; the first met is taken, and
            any before ``"*"``. All these come before anything has changed, on rank 0 alone; where a
            filter makes an error of one, each rank raises it.
        UnconvertedWarning, SplitUpdateWarning: as :func:`autoglobal.optimizer_to_global` does.
    """
    with short_traceback:
        check_names("local_to_global", options)
        root = check_module(module, "local_to_global")
        check_flag("progress", progress)
        _check_record(record)
        if optimizer is not None:
            check_optimizer(optimizer)
        spec = GlobalSpec(placement, sbp, **options)
        label = type(root).__name__
        title = f"local_to_global of {label}"
        session = Session(spec)
        with session.running(title):
            take_in = partial(Plan.add_tree, root=label, module=root, path="")
            what = f"the conversion of {label}"
            if optimizer is not None:
                states = check_states(optimizer, root)
                what += f" with {type(optimizer).__name__} and {states} states of its Parameters"
            is_last = optimizer is None
            session.convert(take_in, "value", label, what, is_last=is_last, progress=progress)
            if optimizer is not None:
                session.let(lambda: follow(optimizer, timeout=spec.timeout))
        session.log_end(lambda: title)
        if record is not None:
            record.add_call(title, session.records)
        return module


def _check_record(record: Any) -> None:
    if record is not None and type(record) is not ConversionRecord:
        raise SpecTypeError(
            f"record must be a ConversionRecord. Received: record={short_repr(record)}. Write "
            "record = ConversionRecord(), and read it after the call"
        )
