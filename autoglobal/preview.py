"""The preview of a conversion: the plan of ``local_to_global`` as a report, before it happens."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Optional

from rich.console import Console, ConsoleOptions, RenderResult

from ._compat import world_size
from .conversion.plan import Plan, PlannedTensor
from .errors import ConversionError, short_traceback
from .layout.placement import Shape, layout_of, show_ranks
from .layout.sbp import show_sbp
from .layout.spec import CALL_OPTIONS, CallOptions, DistantSpec, check_names, takes_options
from .layout.unused import refused, unused_rules
from .modules.registry import check_module
from .modules.tree import Held, held_by
from .report.describe import Report, describe
from .report.rows import Row, at_path, kind_of, show_placement, totals_of
from .report.table import Columns, Line, Sheet, show_names
from .report.warnings import ReportWarning, listed, warnings_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

_LINES = 8  # of ranks with equal bytes
_COLUMNS = Columns(
    (
        *("path", "class", "kind", "shape", "dtype", "now", "after", "rule", "component"),
        "bytes per rank",
    ),
    ((0, 1, 2), (3, 8), (4, 9), (5, 6), (7,)),
)


@dataclass(frozen=True)
class PlannedRow:
    """One tensor of a module: what it is now, what it would be, and what says so.

    ``now`` and ``after`` are rows of a report, equal where nothing would change. ``rule`` is what
    decides: a key of the mapping, ``"the sbp function"``, ``"buffers='broadcast'"``, ``"sbp"``, or
    ``"existing='keep'"``; ``asked`` is what the rules ask, of a tensor that is kept with another
    layout; ``error`` is what the conversion would raise for this tensor.
    """

    now: Row
    after: Row
    changes: bool
    rule: Optional[str] = None
    asked: Optional[str] = None
    error: Optional[str] = None

    @property
    def path(self) -> str:
        """The first name."""
        return self.now.path

    @property
    def tied(self) -> tuple[str, ...]:
        """The other names."""
        return self.now.tied

    @property
    def components(self) -> dict[Shape, tuple[int, ...]]:
        """Each shape that a component would have, with the ranks of it; of a local tensor none."""
        if self.after.placement is None:
            return {}
        found: dict[Shape, tuple[int, ...]] = {}
        for rank in map(int, self.after.placement.ranks.flatten()):
            shape = self.after.component_on(rank)
            found[shape] = (*found.get(shape, ()), rank)
        return found

    def to_dict(self) -> dict[str, Any]:
        """All of it in types that JSON has."""
        return {
            "path": self.path,
            "changes": self.changes,
            "rule": self.rule,
            "asked": self.asked,
            "error": self.error,
            "now": self.now.to_dict(),
            "after": self.after.to_dict(),
            "components": [
                {"shape": [*shape], "nbytes": self.after.nbytes_on(ranks[0]), "ranks": [*ranks]}
                for shape, ranks in self.components.items()
            ],
        }


@dataclass(frozen=True, repr=False)
class Preview:
    """What :func:`autoglobal.preview` found: what a conversion would do to each tensor.

    ::

        found = preview(model, placement, sbp)
        print(found)                            # a table, then errors and warnings
        assert not found.errors
        found["weight"].rule                    # the key that decides
        found["weight"].after.component_on(3)   # the shape on rank 3

    Iterating gives ``rows``, one for each Parameter and buffer in the order of the module, a tied
    one once: ``path``, ``tied``, ``now`` and ``after`` (rows as in :class:`autoglobal.Report`),
    ``changes``, ``rule``, ``asked``, ``error`` and ``components`` (shapes, with their ranks).
    ``preview[path]`` is one of them, by any of its names.

    ``now`` is the report on the module as it is, ``after`` the one that
    :func:`autoglobal.describe` would give after the conversion; what cannot be converted is in it
    as it is now. ``errors`` lists every error, of which the conversion would raise the first.
    ``warnings`` are those that it would give, what it would keep with another layout than a rule
    asks, and the warnings of ``after``. The preview holds no tensor of the module.
    """

    now: Report
    after: Report
    rows: tuple[PlannedRow, ...]
    errors: tuple[str, ...]
    warnings: tuple[ReportWarning, ...]

    def __iter__(self) -> Iterator[PlannedRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, path: str) -> PlannedRow:
        return at_path(self.rows, path, self.now.module)

    def to_dict(self) -> dict[str, Any]:
        """All of it in types that JSON has; ``json.dumps`` takes it as it is."""
        return {
            "module": self.now.module,
            "rank": self.after.rank,
            "world_size": self.after.world_size,
            "rows": [row.to_dict() for row in self.rows],
            "totals": [total.to_dict() for total in self.after.totals],
            "errors": [*self.errors],
            "warnings": [warning.to_dict() for warning in self.warnings],
        }

    def text(self) -> str:
        """The table in plain text, wherever the standard output goes."""
        return self._sheet().text()

    def draw(self, path: str | os.PathLike[str], *, limit: int = 60) -> None:
        """Write an SVG of what each tensor would be, as :meth:`autoglobal.Report.draw` does.

        ::

            import tempfile

            with tempfile.TemporaryDirectory() as folder:
                preview(model, placement, sbp).draw(f"{folder}/model.svg")

        Args:
            path: a file that ends in ``.svg``, in a folder that exists.
            limit: how many tensors are drawn at most.

        Raises:
            SpecTypeError, SpecError: as there.
        """
        self.after.draw(path, limit=limit)

    def __str__(self) -> str:
        return self._sheet().printed()

    __repr__ = __str__  # what a prompt shows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._sheet()

    def _repr_html_(self) -> str:
        return self._sheet().html()

    def _sheet(self) -> Sheet:
        count, wrong = len(self.rows), len(self.errors)
        would = f"convert {sum(row.changes for row in self.rows)} of them"
        if wrong:
            would = f"refuse, for {wrong} error{'s' * (wrong != 1)}"
        return Sheet(
            f"{self.now.module}: {count} tensor{'s' * (count != 1)}; local_to_global would {would}",
            _COLUMNS,
            [Line([*_cells(row)], _style(row)) for row in self.rows],
            [*self._bytes(), *self._refusals()],
            [warning.text for warning in self.warnings],
        )

    def _bytes(self) -> Iterator[str]:
        before, after = (
            [sum(row.nbytes_on(rank) for row in rows) for rank in range(self.after.world_size)]
            for rows in (self.now.rows, self.after.rows)
        )
        alike: dict[tuple[int, int], list[int]] = {}
        for rank, sizes in enumerate(zip(before, after)):
            alike.setdefault(sizes, []).append(rank)
        for sizes, ranks in [*alike.items()][:_LINES]:
            what = "all ranks" if len(alike) == 1 else f"rank {show_ranks(ranks)}"
            yield f"{what}: {_change(*sizes)} bytes"
        if len(alike) > _LINES:
            yield f"at most: {_change(max(before), max(after))} bytes"

    def _refusals(self) -> Iterator[str]:
        if self.errors:
            yield f"Cannot be done ({len(self.errors)}):"
        for error in self.errors:
            yield f"- {error}"


@takes_options(CALL_OPTIONS)
def preview(module: Any, placement: Any, sbp: Any, **options: Unpack[CallOptions]) -> Preview:
    """Show what ``local_to_global`` would do, with nothing changed and nothing sent.

    ::

        import oneflow as flow
        from oneflow import nn
        from autoglobal import preview

        B, S0 = flow.sbp.broadcast, flow.sbp.split(0)
        cluster = flow.placement("cuda", [[0, 1, 2, 3], [4, 5, 6, 7]])  # need not be there
        model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
        found = preview(model, cluster, {"*.weight": [B, S0], "*": [B, B]})
        print(found)
        assert found["0.weight"].after.component_on(5) == (2, 4)
        assert found["0.bias"].rule == "*"
        assert "axis 0 is too short" in found["1.weight"].error  # 3 rows over 4 ranks

    The plan is the very one that :func:`autoglobal.local_to_global` makes with the same arguments.
    What matters at the moment of the call alone is no part of it: a side thread, a graph that is
    being built, an optimizer.
    The result (:class:`autoglobal.Preview`) has for each tensor what it is, what it would be, on
    each rank, and the rule that decides; all errors and not the first alone; and rules that
    decide nothing, ties over which the rules differ, and what would be kept with another layout
    than the rules ask.

    Any rank may call it alone, and one process may for a placement of any size, on devices that
    it does not have; then build the model inside :class:`autoglobal.local_scope` where its classes
    are decorated. With ``source="shard"`` all ranks are taken to hold components of the shape that
    this one has. What differs between ranks cannot be seen.

    Args:
        module: the module, changed in nothing.
        placement, sbp, and the options: those of :func:`autoglobal.local_to_global`, save that
            ranks and devices need not exist.

    Raises:
        SpecTypeError, SpecError: as :func:`autoglobal.local_to_global` does, but for ranks and
            devices that do not exist. A ``ConversionError`` of its is not raised, but listed.
    """
    with short_traceback:
        check_names("preview", options)
        module = check_module(module, "preview")
        spec = DistantSpec(placement, sbp, **options)
    plan = Plan(spec)
    errors: list[ConversionError] = []
    try:
        plan.add_tree(type(module).__name__, module, "")
    except ConversionError as error:  # a decorated class does not know its placement
        errors.append(error)
    plan.decide()
    unused = unused_rules(spec, plan.used, [*plan.seen()], plan.kept_otherwise)
    errors += plan.problems(plan.changing())
    if unused and spec.unused == "error":
        errors.append(refused(unused))
    planned = {id(one.tensor): one for one in plan.tensors()}
    held, now = held_by(module), describe(module)
    rows = tuple(_row(row, one, planned) for row, one in zip(now.rows, held))
    after = _after(now, rows, held)
    return Preview(
        now=now,
        after=after,
        rows=rows,
        errors=tuple(map(str, errors)),
        warnings=(*_warnings(plan, unused), *after.warnings),
    )


def _row(row: Row, held: Held, planned: dict[int, PlannedTensor]) -> PlannedRow:
    one = planned.get(id(held.tensor))
    if one is None:  # OneFlow's own, of a graph
        return PlannedRow(row, row, changes=False)
    if one.error is not None:
        return PlannedRow(row, row, changes=False, rule=one.rule, error=str(one.error))
    if not one.is_kept:
        if not one.changes:
            return PlannedRow(row, row, changes=False, rule=one.rule)
        layout, sbp = one.layout, one.target
        is_component = row.placement is None and one.spec.source == "shard"
        shape = layout.logical(row.shape, sbp) if is_component else row.shape
        return PlannedRow(row, row.placed(shape, layout, sbp), changes=True, rule=one.rule)
    asked = None
    if one.asks_otherwise() and one.decision is not None:
        asked = str(one.decision.target)
    return PlannedRow(row, row, changes=False, rule=f"existing={one.spec.existing!r}", asked=asked)


def _after(now: Report, rows: Sequence[PlannedRow], held: Sequence[Held]) -> Report:
    after = tuple(row.after for row in rows)
    placements = {row.placement for row in after if row.placement is not None}
    ranks = (rank for placement in placements for rank in layout_of(placement).members)
    return replace(
        now,
        world_size=max(world_size(), 1 + max(ranks, default=0)),
        rows=after,
        totals=totals_of(after),
        warnings=warnings_of(
            after,
            now.attributes,
            held,
            local=[one for row, one in zip(after, held) if not row.is_global],
        ),
    )


def _warnings(plan: Plan, unused: Sequence[str]) -> Iterator[ReportWarning]:
    for paths, text in plan.conflicts:
        yield ReportWarning("tied", paths, text)
    for paths, text in plan.in_one_memory():
        yield ReportWarning("memory", paths, text)
    for text in unused if plan.spec.unused == "warn" else ():
        yield ReportWarning("unused", (), text)
    kept = {
        one.path: f"{one.path} ({one.decision.pattern.shown} asks {one.decision.target})"
        for one in plan.tensors()
        if one.is_kept and one.decision is not None and one.decision.pattern is not None
        # Not of what is for all the rest: that others keep theirs is what they are there for.
        if not one.decision.pattern.is_catch_all and one.asks_otherwise()
    }
    if kept:
        shown = listed([*kept.values()])
        yield ReportWarning(
            "kept",
            tuple(kept),
            f"global already and kept, though the rules ask another layout: {shown}. Write "
            "existing='convert', or leave the rules out",
        )


def _cells(row: PlannedRow) -> Iterator[str]:
    components, now = row.components, row.now
    yield show_names(now)
    yield now.owner
    yield kind_of(now)
    yield str(row.after.shape)
    yield now.dtype_name
    yield _where(now)
    if row.error is not None:
        yield "cannot be converted"
    elif row.asked is not None:
        yield f"stays; asked: {row.asked}"
    else:
        yield _where(row.after) if row.changes else "stays"
    yield row.rule or "-"
    yield " or ".join(map(str, components)) or str(now.shape)
    holding = [ranks[0] for ranks in components.values()] or [0]  # a local one is alike on all
    yield _change(*max((now.nbytes_on(rank), row.after.nbytes_on(rank)) for rank in holding))


def _where(row: Row) -> str:
    if row.placement is None or row.sbp is None:
        return f"local, {row.device}"
    return f"{show_sbp(row.sbp)} on {show_placement(row.placement)}"


def _style(row: PlannedRow) -> str | None:
    if row.error is not None:
        return "red"
    return None if row.asked is None else "yellow"


def _change(before: int, after: int) -> str:
    return f"{before:,} -> {after:,}" if before != after else f"{before:,}"
