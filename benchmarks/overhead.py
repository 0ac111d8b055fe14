"""What an open scope costs the assignments that it does not convert, and what a closed one costs.

The bars: an open scope, and an instance of a decorated class, at most 1.45 times the bare cost on
``m.x = 1``; an open scope at most 1.25 times on re-assigning a global Parameter; after a scope, and
for another class than the decorated one, nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import oneflow as flow
import wrapt
from oneflow import nn

from autoglobal import auto_global, global_scope

from .timing import Row, Variant, measure


def main(rounds: int) -> None:
    print("median time, median ratio to the first line and [its quartiles] over the rounds")
    placement = flow.placement("cpu", ranks=[0])
    parameter = nn.Parameter(flow.ones(4, 4).to_global(placement, flow.sbp.broadcast))
    bare = vars(nn.Module)["__setattr__"]

    class Model(nn.Module):  # type: ignore[misc]
        pass

    @auto_global(placement, flow.sbp.broadcast)
    class Decorated(nn.Module):  # type: ignore[misc]
        pass

    model, decorated = Model(), Decorated()

    def open_scope() -> Any:
        return global_scope(placement, flow.sbp.split(0))

    @contextmanager
    def closed_scope() -> Iterator[None]:
        with open_scope():
            pass
        assert vars(nn.Module)["__setattr__"] is bare
        yield

    def assign(value: object, to: nn.Module = model) -> Callable[[int], None]:
        def run(number: int) -> None:
            for _ in range(number):
                to.x = value

        return run

    for title, value in (("m.x = 1", 1), ("m.x = global Parameter", parameter)):
        _report(
            title,
            measure(
                {
                    "bare OneFlow (and another class is decorated)": Variant(assign(value)),
                    "open scope": Variant(assign(value), open_scope),
                    "after a scope": Variant(assign(value), closed_scope),
                    "instance of a decorated class": Variant(assign(value, decorated)),
                    "wrapt.FunctionWrapper that does nothing": Variant(assign(value), _as_proxy),
                },
                number=5000,
                rounds=rounds,
            ),
        )
        assert model.x is value
        assert decorated.x is value
        del model.x, decorated.x
    cycles = measure({"scope": Variant(_cycle(open_scope))}, number=50, rounds=rounds)
    _report("enter and leave a scope", cycles)


@contextmanager
def _as_proxy() -> Iterator[None]:
    def passing_on(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        return wrapped(*args, **kwargs)

    with wrapt.scoped_function_wrapper(nn.Module, "__setattr__", passing_on):
        yield


def _cycle(open_scope: Callable[[], Any]) -> Callable[[int], None]:
    def run(number: int) -> None:
        for _ in range(number):
            with open_scope():
                pass

    return run


def _report(title: str, rows: list[Row]) -> None:
    print(title)
    for row in rows:
        print(f"  {row}")
