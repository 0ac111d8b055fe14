"""``local_scope``: a block in which nothing is converted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._text import received
from ..errors import SpecTypeError
from ..modules import hook
from ..modules.registry import Module
from .active import ActiveScope
from .context import Block
from .stack import Frame, open_frames


class local_scope(Block[Frame]):
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
            super().__init__()
            if nothing:  # of auto_global there is a form without parentheses
                raise SpecTypeError(
                    f"local_scope must have no arguments. Received: {received(nothing[0])}. Write "
                    "@local_scope() above a def, or with local_scope():"
                )

    def new_frame(self) -> Frame:
        around = [frame for frame in open_frames() if isinstance(frame, ActiveScope)]
        waiting = [frame for frame in around if frame.spec.when == "exit"]
        return _Forgetting(self, waiting) if waiting else Frame(self)

    def __repr__(self) -> str:
        return "local_scope()"


class _Forgetting(Frame):
    """A local frame inside scopes that convert at their end: what is assigned is not theirs."""

    def __init__(self, opened_by: object, waiting: list[ActiveScope]) -> None:
        super().__init__(opened_by)
        self._waiting = waiting
        self.handler = self

    def on_assign(
        self, forward: hook.Forward, module: Module, via: str, name: Any, value: Any
    ) -> Any:
        result = forward()
        for scope in self._waiting:
            scope.forget(module, name)
        return result
