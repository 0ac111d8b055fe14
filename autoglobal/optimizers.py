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
    rank's values count), one of the shape of its local component as that component. What is
    global already, and the state of local Parameters, stays. Where OneFlow replaces Parameters
    (1.0 and later), the optimizer's groups get the new ones. Every rank has to call it.

    Raises:
        SpecTypeError: ``optimizer`` is not a ``flow.optim.Optimizer``.
        ConversionError: a state tensor has another shape than its Parameter; nothing has changed.

    Warns:
        SplitUpdateWarning: ``LAMB`` with a split Parameter, which OneFlow 0.9.0 does not move.
    """
    if not isinstance(optimizer, flow.optim.Optimizer):
        raise SpecTypeError(
            f"optimizer must be a flow.optim.Optimizer. Received: {type(optimizer)!r}"
        )
    follow = _Follow(optimizer)
    follow.plan()
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
        part = tuple(parameter.to_local().shape)
        for name, value in state.items():
            if not isinstance(value, flow.Tensor) or value.is_global:
                continue
            shape = tuple(value.shape)
            if shape == tuple(parameter.shape):
                self._moves.append((state, name, whole, parameter.sbp))
            elif shape == part:
                self._moves.append((state, name, replace(whole, source="shard"), parameter.sbp))
            elif value.numel() == 1:  # a counter
                self._moves.append((state, name, whole, whole.whole()))
            else:
                raise ConversionError(
                    f"{label}: its optimizer state {name!r} has shape {shape}. Expected: "
                    f"{tuple(parameter.shape)}, the whole, or {part}, this rank's component. "
                    "Make a new optimizer"
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
