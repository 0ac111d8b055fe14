"""``optimizer_to_global``: what an optimizer holds follows its Parameters."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeVar

import oneflow as flow

from .convert import Tensor, globalize
from .errors import ConversionError, SpecTypeError, SplitUpdateWarning
from .memo import replacement
from .ranks import all_true
from .rules import NdSbp, split_axis
from .spec import GlobalSpec

O = TypeVar("O")  # noqa: E741


def optimizer_to_global(optimizer: O) -> O:
    """Bring the state of an optimizer to where its Parameters are now; return the optimizer.

    ::

        import oneflow as flow
        from oneflow import nn
        from autoglobal import local_to_global, optimizer_to_global

        model = nn.Linear(4, 4)
        optimizer = flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model(flow.ones(2, 4)).sum().backward()
        optimizer.step()                        # from here on it holds local averages
        local_to_global(model, flow.placement("cpu", ranks=[0]), flow.sbp.broadcast)
        optimizer_to_global(optimizer)          # and goes on as if nothing had happened

    Momentum, averages and sums of a Parameter that is global become global with its placement
    and sbp: a state tensor of the Parameter's logical shape is taken as the whole (the first
    rank's values count), one of the shape of its local component as that component. State that is
    global and lies elsewhere, as after ``existing="convert"``, follows too; the state of local
    Parameters stays. Where OneFlow replaces Parameters
    (1.0 and later), the optimizer's groups get the new ones. Every rank has to call it.

    Raises:
        SpecTypeError: ``optimizer`` is not a ``flow.optim.Optimizer``.
        ConversionError: a state tensor has another shape than its Parameter; raised on all ranks,
            and nothing has changed.

    Warns:
        SplitUpdateWarning: ``LAMB`` with a split Parameter, which OneFlow 0.9.0 does not move.
    """
    if not isinstance(optimizer, flow.optim.Optimizer):
        raise SpecTypeError(
            f"optimizer must be a flow.optim.Optimizer. Received: {type(optimizer)!r}"
        )
    follow = _Follow(optimizer)
    follow.plan()
    follow.agree()
    follow.apply()
    if isinstance(optimizer, flow.optim.LAMB):
        for label, parameter in follow.parameters():
            if parameter.is_global and any(split_axis(one) is not None for one in parameter.sbp):
                warnings.warn(
                    f"LAMB of OneFlow 0.9.0 does not move a split Parameter ({label} is "
                    f"{parameter.sbp}); make it broadcast, or take another optimizer",
                    SplitUpdateWarning,
                    stacklevel=2,
                )
                break
    return optimizer


class _Follow:
    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._moves: list[tuple[dict[str, Any], str, GlobalSpec, NdSbp]] = []
        self._misfits: list[str] = []

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Each Parameter as it is now, with a label."""
        for g, group in enumerate(self._optimizer.param_groups):
            for p, parameter in enumerate(group.parameters):
                yield f"Parameter {p} of group {g}", _now(parameter)

    def plan(self) -> None:
        for g, group in enumerate(self._optimizer.param_groups):
            for p, parameter in enumerate(group.parameters):
                now = _now(parameter)
                if now.is_global:
                    state = self._optimizer._state.get(parameter, {})
                    self._plan_state(f"Parameter {p} of group {g}", now, state)

    def _plan_state(self, label: str, parameter: Tensor, state: dict[str, Any]) -> None:
        whole = GlobalSpec(parameter.placement, list(parameter.sbp))
        logical, part = tuple(parameter.shape), tuple(parameter.to_local().shape)
        # A rank that is not in the placement holds nothing, and its own shape does not count.
        member = flow.env.get_rank() in parameter.placement.ranks
        for name, value in state.items():
            if not isinstance(value, flow.Tensor):
                continue
            shape = tuple(value.shape)
            if shape == logical:
                spec, sbp = whole, parameter.sbp
            elif value.numel() == 1:  # a counter
                spec, sbp = whole, whole.whole()
            elif value.is_local and (shape == part or not member):
                spec, sbp = replace(whole, source="shard"), parameter.sbp
            else:
                self._misfits.append(
                    f"{label}: its optimizer state {name!r} has shape {shape}. Expected: "
                    f"{logical}, the whole, or {part}, this rank's component. Make a new optimizer"
                )
                continue
            if value.is_local or value.placement != parameter.placement or value.sbp != sbp:
                self._moves.append((state, name, spec, sbp))

    def agree(self) -> None:
        """Raise on all ranks where one of them has state that does not fit."""
        if not self._moves and not self._misfits:
            return  # nothing to follow, and nobody is told
        if all_true(not self._misfits):
            return
        raise ConversionError(
            self._misfits[0]
            if self._misfits
            else "optimizer_to_global: on another rank some state does not fit its Parameter, and "
            "the error there says which. Nothing has changed"
        )

    def apply(self) -> None:
        ready = [globalize(state[name], spec, sbp) for state, name, spec, sbp in self._moves]
        for (state, name, _, _), value in zip(self._moves, ready):
            state[name] = value
        for group in self._optimizer.param_groups:
            for p, parameter in enumerate(group.parameters):
                now = _now(parameter)
                if now is not parameter:
                    group.parameters[p] = now
                    self._optimizer._state[now] = self._optimizer._state.pop(parameter, {})


def _now(parameter: Tensor) -> Tensor:
    new = None if parameter.is_global else replacement(parameter)
    return parameter if new is None else new
