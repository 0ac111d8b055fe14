"""What an open scope, a closed one and a decorated class cost each assignment.

Assignments that a scope has nothing to do with, those that it looks at and leaves alone, those that
it converts, and what it costs to enter and to leave one. wrapt's FunctionWrapper, doing nothing,
stands beside the plain function that wrapt puts on here. On one rank: what the ranks tell each
other is the subject of the other benchmarks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Optional

import oneflow as flow
import wrapt
from oneflow import nn

from autoglobal import auto_global, global_scope

from ..harness.results import Bar, Found, Table, relative
from ..harness.rounds import Job, Variant, Work, measure
from .subjects import B

RANKS, ROUNDS = (1,), 20

BARE = "bare OneFlow"
OTHER = "bare OneFlow, another class is decorated"
OPEN = "open scope"
CLOSED = "after a scope"
DECORATED = "instance of a decorated class"
WRAPPER = "wrapt.FunctionWrapper that does nothing"
BY_HAND = "bare OneFlow, made global by hand before"
SIZES = ((10, 100), (100, 20), (1000, 2))  # Parameters of a module, and assignments in a round
SUBCLASSES = 1000

Around = Callable[[], AbstractContextManager[object]]
Put = Callable[[nn.Module, Sequence[Any]], None]


@dataclass
class Bench:
    """The rounds of one job, and the surroundings of an assignment."""

    job: Job

    def __post_init__(self) -> None:
        self.P = self.job.placement
        self.decorated = auto_global(self.P, B)(type("Decorated", (nn.Module,), {}))
        self.here: dict[str, tuple[Around, type[nn.Module]]] = {
            BARE: (nullcontext, nn.Module),
            OTHER: (self._another_class, nn.Module),
            OPEN: (self.open, nn.Module),
            CLOSED: (self._closed, nn.Module),
            DECORATED: (nullcontext, self.decorated),
            WRAPPER: (_as_proxy, nn.Module),
        }

    def open(self) -> AbstractContextManager[object]:
        return global_scope(self.P, B)

    @contextmanager
    def _closed(self) -> Iterator[None]:
        bare = vars(nn.Module)["__setattr__"]
        with self.open():
            pass
        assert vars(nn.Module)["__setattr__"] is bare
        yield

    @contextmanager
    def _another_class(self) -> Iterator[None]:
        assert "__setattr__" in vars(self.decorated)
        yield

    def globally(self, tensor: Any) -> Any:
        return tensor.to_global(self.P, B)

    def table(
        self, title: str, count: int, variants: Mapping[str, Variant], base: str, unit: str
    ) -> Table:
        others = {name: base for name in variants if name != base}
        job = self.job
        return measure(title, variants, job.device, job.rounds, count=count, unit=unit, base=others)

    def kept(self, title: str, value: Any, count: int, put: Optional[Put] = None) -> Table:
        """Assignments of a value that nothing is to be done with."""
        variants: dict[str, Variant] = {
            name: _assign(kind, around, lambda: [value] * count, put or _set, _is(value))
            for name, (around, kind) in self.here.items()
        }
        return self.table(title, count, variants, BARE, "assignment")

    def converted(self, title: str, fresh: Callable[[], Any], count: int) -> Table:
        """Assignments of values that become global, made anew for each round."""

        def values() -> list[Any]:
            return [fresh() for _ in range(count)]

        def by_hand(module: nn.Module, made: Sequence[Any]) -> None:
            for value in made:
                module.x = _globally(value, self.globally)

        variants: dict[str, Variant] = {
            BY_HAND: _assign(nn.Module, nullcontext, values, by_hand, _is_global),
            BARE: _assign(nn.Module, nullcontext, values, _set, lambda _: None),
        }
        for name in (OPEN, DECORATED):
            around, kind = self.here[name]
            variants[name] = _assign(kind, around, values, _set, _is_global)
        return self.table(title, count, variants, BY_HAND, "assignment")


def find(job: Job) -> Found:
    bench = Bench(job)
    attribute = bench.kept("m.x = 1", 1, 5000)
    parameter = nn.Parameter(bench.globally(flow.ones(4, 4)))
    again = bench.kept("m.x = global Parameter", parameter, 2000)
    tables = [
        attribute,
        again,
        bench.kept("register_parameter, global", parameter, 2000, _register_parameter),
        bench.kept("register_buffer, global", parameter.data, 2000, _register_buffer),
        *(
            bench.kept(f"m.x = module of {size} global Parameters", whole, count)
            for size, count in SIZES
            for whole in [_globally(_module(size), bench.globally)]
        ),
        bench.converted("m.x = local Parameter", lambda: nn.Parameter(flow.ones(4, 4)), 200),
        *(
            bench.converted(f"m.x = module of {size} local Parameters", partial(_module, size), 1)
            for size, _ in SIZES
        ),
        _cycles(bench),
    ]
    return Found(tables, _bars(attribute, again))


def _bars(attribute: Table, again: Table) -> list[Bar]:
    return [
        relative(attribute, OPEN, OPEN, BARE, 1.45),
        relative(attribute, DECORATED, DECORATED, BARE, 1.45),
        relative(again, OPEN, OPEN, BARE, 1.25),
    ]


def _cycles(bench: Bench) -> Table:
    """Entering and leaving: the hook is put on Module, and all its subclasses see it."""

    def cycle(_: object) -> None:
        for _ in range(50):
            with bench.open():
                pass

    @contextmanager
    def crowd() -> Iterator[None]:
        kinds = [type(f"Kind{at}", (nn.Module,), {}) for at in range(SUBCLASSES)]
        yield
        assert len(kinds) == SUBCLASSES

    few, many = "OneFlow's own subclasses of Module", f"{SUBCLASSES} subclasses more"
    variants: dict[str, Variant] = {
        few: Work(lambda: None, cycle, lambda _: None),
        many: Work(lambda: None, cycle, lambda _: None, crowd),
    }
    return bench.table("enter and leave a scope", 50, variants, few, "scope")


def _assign(
    kind: type[nn.Module],
    around: Around,
    values: Callable[[], list[Any]],
    put: Put,
    check: Callable[[Any], None],
) -> Work:
    """``put`` on a new module of this kind, which is what is checked."""

    def run(made: tuple[nn.Module, list[Any]]) -> nn.Module:
        put(*made)
        return made[0]

    return Work(lambda: (kind(), values()), run, lambda module: check(module.x), around)


def _set(module: nn.Module, values: Sequence[Any]) -> None:
    for value in values:
        module.x = value


def _register_parameter(module: nn.Module, values: Sequence[Any]) -> None:
    for value in values:
        module.register_parameter("x", value)


def _register_buffer(module: nn.Module, values: Sequence[Any]) -> None:
    for value in values:
        module.register_buffer("x", value)


def _module(size: int) -> nn.Module:
    module = nn.Module()
    for at in range(size):
        module.register_parameter(f"p{at}", nn.Parameter(flow.ones(4, 4)))
    return module


def _globally(value: Any, globally: Callable[[Any], Any]) -> Any:
    if isinstance(value, nn.Module):
        return value._apply(globally)
    return nn.Parameter(globally(value.data))


def _is(expected: Any) -> Callable[[Any], None]:
    def check(found: Any) -> None:
        assert found is expected

    return check


def _is_global(found: Any) -> None:
    held = list(found.parameters()) if isinstance(found, nn.Module) else [found]
    assert held
    assert all(one.is_global for one in held)


@contextmanager
def _as_proxy() -> Iterator[None]:
    def passing_on(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        return wrapped(*args, **kwargs)

    with wrapt.scoped_function_wrapper(nn.Module, "__setattr__", passing_on):
        yield
