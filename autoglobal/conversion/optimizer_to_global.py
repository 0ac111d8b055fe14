"""``optimizer_to_global``: what an optimizer holds follows its Parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import oneflow as flow

from .._compat import Module, Tensor, host, local_empty, this_rank
from .._signals import uninterrupted
from .._text import short_repr
from ..errors import (
    ConversionError,
    SpecTypeError,
    SplitUpdateWarning,
    UnconvertedWarning,
    short_traceback,
)
from ..layout.placement import PlacementLayout, Shape, layout_of
from ..layout.sbp import BROADCAST, show_sbp, split_axis
from ..layout.spec import TIMEOUT, check_options
from ..modules.tree import tensors
from ..ranks.agreement import Block, Proposal, Statement, agree
from ..ranks.collectives import all_gather
from ..tensors.batch import TensorConversion, convert_batch
from .apply import replacement
from .session import tell_refused, warn_caller

O = TypeVar("O")  # noqa: E741


def optimizer_to_global(
    optimizer: O, state_dict: Mapping[str, Any] | None = None, *, timeout: float = TIMEOUT
) -> O:
    """Bring the state of an optimizer to where its Parameters are now; return the optimizer.

    ::

        import oneflow as flow
        from oneflow import nn
        from autoglobal import local_to_global, optimizer_to_global

        model = nn.Linear(4, 4)
        optimizer = flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model(flow.ones(2, 4)).sum().backward()
        optimizer.step()                        # from here on it holds local averages
        saved = optimizer.state_dict()
        local_to_global(model, flow.placement("cpu", ranks=[0]), flow.sbp.broadcast)
        optimizer_to_global(optimizer)          # and goes on as if nothing had happened

        new = flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer_to_global(new, saved)         # a local checkpoint, for global Parameters

    Momentum, averages and sums of a Parameter that is global become global with its placement
    and sbp: a state tensor of the Parameter's logical shape is taken as the whole (the first
    rank's values count), one of the shape of its local component as that component. State that is
    global and lies elsewhere, as after ``existing="convert"``, follows too; the state of local
    Parameters stays. Where OneFlow replaces Parameters (1.0 and later), the optimizer's groups get
    the new ones. Every rank has to call it.
    ``local_to_global(model, ..., optimizer=optimizer)`` does both.

    Args:
        optimizer: the optimizer, changed in place.
        state_dict: what the optimizer of a local model has given as ``state_dict()``, to be loaded
            first: OneFlow's own ``load_state_dict`` raises "Only local tensors have 'device'" where
            a Parameter is global and its state is local (huggingface/accelerate#4142).
        timeout: how many seconds to wait for another rank, as in
            :class:`autoglobal.global_scope`.

    Raises:
        SpecTypeError: ``optimizer`` is not a ``flow.optim.Optimizer``, or ``state_dict`` not what
            one gives, or ``timeout`` is no number.
        SpecError: ``timeout`` is not more than 0, or not finite.
        ConversionError: a state tensor has another shape than its Parameter; raised on all ranks,
            and nothing has changed.
        DivergenceError: the ranks' optimizers do not hold the same states; on every rank. One that
            holds none is not heard, and the others wait for ``timeout`` seconds.
        ValueError: OneFlow's own, of a ``state_dict`` of other groups of Parameters.

    Warns:
        UnconvertedWarning: none of its Parameters is global: convert the module first.
        SplitUpdateWarning: ``LAMB`` with a split Parameter, which OneFlow 0.9.0 does not move.
            Both on rank 0 alone.
    """
    with short_traceback:
        check_optimizer(optimizer)
        check_options({"timeout": timeout})
        if state_dict is None:
            follow(optimizer, timeout)
        else:
            _load(optimizer, state_dict, timeout)
        return optimizer


def follow(optimizer: Any, timeout: float) -> None:
    """Bring its state to where its Parameters are; agree on that before anything changes."""
    following = _Follow(optimizer, timeout)
    with uninterrupted:
        following.agree()
        following.apply()
    _warn(optimizer, [*following.parameters()])


def check_optimizer(optimizer: Any) -> None:
    """Raise :class:`SpecTypeError` for what is no optimizer."""
    if not isinstance(optimizer, flow.optim.Optimizer):
        raise SpecTypeError(
            "optimizer must be a flow.optim.Optimizer. Received: "
            f"optimizer={short_repr(optimizer)}. Write, for example, "
            "optimizer_to_global(flow.optim.SGD(model.parameters(), lr=0.1))"
        )


def check_states(optimizer: Any, module: Module) -> int:
    """The number of states that are to follow the Parameters of a module.

    Raises :class:`ConversionError` where one cannot, before the conversion, so that nothing has
    changed.
    """
    count = 0
    concerned = {id(tensor) for _, tensor in tensors(module)}
    for label, parameter in _parameters_of(optimizer):
        if id(parameter) not in concerned:
            continue
        whole = tuple(parameter.shape)
        fitting = (
            {whole, (), tuple(parameter.to_local().shape)} if parameter.is_global else {whole, ()}
        )
        for name, value in optimizer._state.get(parameter, {}).items():
            if not isinstance(value, flow.Tensor):
                continue
            count += 1
            if tuple(value.shape) not in fitting:
                raise ConversionError(
                    f"{label}: its optimizer state {name!r} does not fit. Expected: shape {whole}, "
                    f"the Parameter's, or (). Received: shape {tuple(value.shape)}. Make a new "
                    "optimizer"
                )
    return count


def _load(optimizer: Any, state_dict: Any, timeout: float) -> None:
    """Load a state dict and let it follow; where that cannot be, all is as it was."""
    if not _is_state_dict(state_dict):
        raise SpecTypeError(
            "state_dict must be what optimizer.state_dict() gives, with 'state' and "
            f"'param_groups'. Received: state_dict={short_repr(state_dict)}. Write, for example, "
            "optimizer_to_global(optimizer, flow.load(file))"
        )
    groups, state = optimizer.state_dict()["param_groups"], optimizer._state
    try:
        # OneFlow loads the options, and cannot load local tensors.
        optimizer.load_state_dict({**state_dict, "state": {}})
    except Exception as error:
        tell_refused(f"optimizer_to_global of {type(optimizer).__name__}", error, True, timeout)
        raise
    try:
        saved = [index for group in state_dict["param_groups"] for index in group["params"]]
        held = dict(zip(saved, (one for _, one in _parameters_of(optimizer))))
        optimizer._state = {
            held.get(key, key): _copied(value, held[key]) if key in held else value
            for key, value in state_dict["state"].items()
        }
        follow(optimizer, timeout)
    except BaseException:
        optimizer.load_state_dict({"state": {}, "param_groups": groups})
        optimizer._state = state
        raise


def _is_state_dict(value: Any) -> bool:
    """Whether it is such as an optimizer gives, as far as its types go."""
    if not isinstance(value, Mapping) or not isinstance(value.get("state"), Mapping):
        return False
    groups = value.get("param_groups")
    return isinstance(groups, (list, tuple)) and all(
        isinstance(group, Mapping) and "params" in group for group in groups
    )


def _copied(value: Any, parameter: Tensor) -> Any:
    """The state of one Parameter, of which tensors and dicts are new ones."""
    if isinstance(value, Mapping):
        return {name: _copied(one, parameter) for name, one in value.items()}
    if not isinstance(value, flow.Tensor):
        return value
    if parameter.is_local:
        # Of a global one this rank's component, which is all of it where it is broadcast.
        local = value.to_local() if value.is_global else value
        return local.to(parameter.device, copy=True)
    return value.clone()


def _warn(optimizer: Any, parameters: Sequence[tuple[str, Tensor]]) -> None:
    if parameters and not any(parameter.is_global for _, parameter in parameters):
        warn_caller(
            f"no Parameter of {type(optimizer).__name__} is global, so that there is nothing to "
            "follow. Expected: global Parameters. Received: local ones only. Write "
            "local_to_global(model, placement, sbp) before it, for the model that these belong to",
            UnconvertedWarning,
        )
    if not isinstance(optimizer, flow.optim.LAMB):
        return
    for label, parameter in parameters:
        if parameter.is_global and any(split_axis(one) is not None for one in parameter.sbp):
            warn_caller(
                f"{label}: LAMB of OneFlow 0.9.0 does not move a Parameter that is split. "
                f"Expected: broadcast. Received: {show_sbp(parameter.sbp)}. Make it broadcast, "
                "or use another optimizer",
                SplitUpdateWarning,
            )
            return


def _parameters_of(optimizer: Any) -> Iterator[tuple[str, Tensor]]:
    for g, group in enumerate(optimizer.param_groups):
        for p, parameter in enumerate(group.parameters):
            yield f"Parameter {p} of group {g}", parameter


# What a state tensor is to become, as the ranks tell each other.
_REPLICA, _SHARD, _COUNTER, _MISFIT, _UNKNOWN = range(5)
_WORDS = ("the whole", "its component", "one number", "another shape", "")


@dataclass
class _State:
    """One state tensor that has to move."""

    label: str
    holder: dict[str, Any]
    name: str
    parameter: Tensor

    @property
    def value(self) -> Tensor:
        return self.holder[self.name]

    @cached_property
    def layout(self) -> PlacementLayout:
        return layout_of(self.parameter.placement)

    @cached_property
    def component(self) -> Shape:
        return tuple(self.parameter.to_local().shape)

    @property
    def is_ignored(self) -> bool:
        """Whether what this rank has counts for nothing: it is not in the placement."""
        return bool(self.value.is_local and self.layout.position is None)

    def kind(self) -> int:
        """What it is by this rank's own shape, which counts on the ranks of the placement only."""
        shape = tuple(self.value.shape)
        if self.is_ignored:
            return _UNKNOWN
        if shape == tuple(self.parameter.shape):
            return _REPLICA
        if self.value.is_local and shape == self.component:
            return _SHARD
        return _COUNTER if shape == () else _MISFIT

    def conversion(self, kind: int) -> TensorConversion:
        """How it becomes what the ranks have settled that it is."""
        sbp = self.layout.broadcast if kind == _COUNTER else tuple(self.parameter.sbp)
        logical, value = tuple(self.parameter.shape), self.value
        if self.is_ignored:
            value = local_empty(() if kind == _COUNTER else logical, value.dtype, host())
        path, is_shard = f"{self.label}.{self.name}", kind == _SHARD
        conversion = TensorConversion(path, "state", value, self.layout, sbp, is_shard=is_shard)
        if is_shard:
            conversion.logical = logical
        return conversion

    def complaint(self, kinds: Sequence[int]) -> str:
        """What is wrong with it; ``kinds`` are those of all ranks."""
        mine = this_rank()
        differing = [rank for rank, kind in enumerate(kinds) if kind not in (kinds[mine], _UNKNOWN)]
        other = max(differing, key=lambda rank: kinds[rank], default=mine)  # a misfit, if any
        theirs = "" if other == mine else f"; on rank {other}: {_WORDS[kinds[other]]}"
        return (
            f"{self.label}: its optimizer state {self.name!r} does not fit. Expected, alike on all "
            f"ranks: shape {tuple(self.parameter.shape)}, the whole, or {self.component}, this "
            f"rank's component. Received on this rank (rank {mine}): shape "
            f"{tuple(self.value.shape)}{theirs}. Make a new optimizer"
        )


class _Follow:
    """The state of an optimizer that has to move, agreed on and then moved."""

    def __init__(self, optimizer: Any, timeout: float) -> None:
        self._optimizer = optimizer
        self._timeout = timeout
        self._states = [
            _State(label, holder, name, now)
            for label, parameter in _parameters_of(self._optimizer)
            if (now := _now(parameter)).is_global
            for holder in [optimizer._state.get(parameter, {})]
            for name, value in holder.items()
            if isinstance(value, flow.Tensor) and _is_elsewhere(value, now)
        ]
        self._kinds: list[int] = []

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Each Parameter as it is now, with a label."""
        return ((label, _now(parameter)) for label, parameter in _parameters_of(self._optimizer))

    def _proposal(self) -> Proposal:
        kind = type(self._optimizer).__name__
        title = Statement(kind, f"optimizer_to_global of {kind}")
        return Proposal("optimizer", title, self._timeout, Block())

    def agree(self) -> None:
        """Settle what each state is, or raise on all ranks where one has state that misfits."""
        if not self._states:
            return  # nothing to follow, and no other rank hears of it
        proposal = self._proposal()
        proposal.statements = [
            Statement(state.label, f"state {state.name!r} of {state.label}")
            for state in self._states
        ]
        agree(proposal)
        gathered = list(zip(*all_gather([state.kind() for state in self._states])))
        for state, kinds in zip(self._states, gathered):
            # By what all ranks said, so that those outside the placement raise as well.
            known = {kind for kind in kinds if kind != _UNKNOWN}
            if len(known) > 1 or _MISFIT in known:
                raise ConversionError(state.complaint(kinds))
        self._kinds = [min(kinds) for kinds in gathered]

    def apply(self) -> None:
        if self._states:
            batch = [state.conversion(kind) for state, kind in zip(self._states, self._kinds)]
            proposal = self._proposal()
            asked = dict.fromkeys((one.layout, one.sbp) for one in batch)
            for layout, sbp in asked:
                proposal.options += [f"placement={layout.placement}", f"sbp={show_sbp(sbp)}"]
            # A shard needs no more agreement: its logical shape is the Parameter's.
            convert_batch([one for one in batch if one.state != "shard"], proposal)
            for conversion in batch:
                conversion.convert()
            for state, conversion in zip(self._states, batch):
                state.holder[state.name] = conversion.result
        for group in self._optimizer.param_groups:
            for p, parameter in enumerate(group.parameters):
                now = _now(parameter)
                if now is not parameter:
                    group.parameters[p] = now
                    self._optimizer._state[now] = self._optimizer._state.pop(parameter, {})


def _is_elsewhere(value: Tensor, parameter: Tensor) -> bool:
    if value.is_local:
        return True
    # A counter stays broadcast.
    sbp = parameter.sbp if value.ndim else (BROADCAST,) * len(parameter.sbp)
    return bool(value.placement != parameter.placement or value.sbp != sbp)


def _now(parameter: Tensor) -> Tensor:
    new = None if parameter.is_global else replacement(parameter)
    return parameter if new is None else new
