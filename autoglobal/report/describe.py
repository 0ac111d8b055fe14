"""The report on a module, and ``describe``, which makes it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult

from .._compat import this_rank, world_size
from ..modules.registry import check_module
from ..modules.tree import held_by, unregistered_in
from . import drawing
from .rows import Row, Total, at_path, rows_of, totals_of, unregistered_rows
from .table import sheet_of
from .warnings import ReportWarning, warnings_of


@dataclass(frozen=True, repr=False)
class Report:
    """What :func:`autoglobal.describe` found: the state of a module at that moment.

    ::

        report = describe(model)
        print(report)                           # a table, and the warnings below it
        big = [row.path for row in report if row.nbytes > 1 << 20]
        assert report["weight"].is_global is False
        text = report.text()                    # the table for a log: never a colour code

    Iterating gives ``rows``, one for each Parameter and buffer in the order of the module, a tied
    one once: ``path``, ``tied`` (its other names), ``owner``, ``kind``, ``saved``,
    ``requires_grad``, ``shape`` (the logical one), ``component`` (the shape on this rank),
    ``dtype``, ``is_global``, ``placement``, ``sbp``, ``device`` and ``nbytes`` (on this rank).
    ``report[path]`` is one of them, by any of its names. ``attributes`` are such rows too, for
    tensors that the module keeps and has not registered. ``totals`` has one entry for each
    placement: ``placement`` (None: local), ``tensors``, ``nbytes``, ``logical_nbytes``.
    ``warnings`` are faults of the module: ``kind``, ``paths``, ``text``.

    ``print`` shows it with rich in a terminal, a notebook does by itself, and anywhere else it
    is plain text. The report holds no tensor of the module.
    """

    module: str
    rank: int
    world_size: int
    rows: tuple[Row, ...]
    attributes: tuple[Row, ...]
    totals: tuple[Total, ...]
    warnings: tuple[ReportWarning, ...]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, path: str) -> Row:
        return at_path((*self.rows, *self.attributes), path, self.module)

    @property
    def title(self) -> str:
        """The first line of it."""
        count = len(self.rows)
        return (
            f"{self.module}: {count} tensor{'s' * (count != 1)}, "
            f"rank {self.rank} of {self.world_size}"
        )

    def to_dict(self) -> dict[str, Any]:
        """All of it in types that JSON has; ``json.dumps`` takes it as it is."""
        return {
            "module": self.module,
            "rank": self.rank,
            "world_size": self.world_size,
            "rows": [row.to_dict() for row in self.rows],
            "attributes": [row.to_dict() for row in self.attributes],
            "totals": [total.to_dict() for total in self.totals],
            "warnings": [warning.to_dict() for warning in self.warnings],
        }

    def text(self) -> str:
        """The table in plain text, wherever the standard output goes."""
        return sheet_of(self).text()

    def draw(self, path: str | os.PathLike[str], *, limit: int = 60) -> None:
        """Write an SVG of each tensor cut over the ranks, on the rank that calls this.

        ::

            import tempfile

            with tempfile.TemporaryDirectory() as folder:
                describe(model).draw(f"{folder}/model.svg")

        A tensor is a rectangle of its logical shape, cut where its sbp cuts it and to scale
        along each axis; in each part are the ranks that hold it: ``0, 1`` hold the same, and
        ``0 + 1`` summands (``partial_sum``). Of more than two axes those that are cut are drawn. A
        local tensor has a dashed outline. Each placement is a grid of its ranks. Nobody is asked
        for anything, so that the picture is the same on all ranks, but for what is local, and the
        same bytes each time.

        Args:
            path: a file that ends in ``.svg``, in a folder that exists.
            limit: how many tensors are drawn at most; the picture says how many more there are.

        Raises:
            SpecTypeError: ``path`` is not a path, or ``limit`` not a whole number.
            SpecError: ``path`` does not end in ``.svg`` or cannot be written, or ``limit`` is
                less than 1.
        """
        drawing.draw(self, path, limit)

    def __str__(self) -> str:
        return sheet_of(self).printed()

    __repr__ = __str__  # what a prompt shows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield sheet_of(self)

    def _repr_html_(self) -> str:
        return sheet_of(self).html()


def describe(module: Any) -> Report:
    """Show what a module holds: which tensors, where they are, and what of them on this rank.

    ::

        import oneflow as flow
        from oneflow import nn
        from autoglobal import describe

        model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))
        model[0].to_global(flow.placement("cpu", ranks=[0]), flow.sbp.broadcast)
        report = describe(model)
        print(report)
        assert [row.path for row in report if not row.is_global] == ["1.weight", "1.bias"]
        assert report.warnings[0].kind == "local"   # beside global ones

    The report (:class:`autoglobal.Report`) tells of every Parameter and buffer its path, class,
    logical shape, component on this rank, dtype, placement, sbp and bytes here, and has warnings
    of:

    - tensors that are still local in a module that holds global ones;
    - local tensors in plain attributes, also in lists, tuples, dicts and unregistered modules
      there: no conversion touches them. Those in sets, slots and objects of other kinds are not
      found;
    - a tied tensor whose classes state different layouts by ``@auto_global(placement, sbp)``.
      What the rules of a scope or of ``local_to_global`` would wish cannot be known here; they
      warn themselves (:class:`autoglobal.TiedRulesWarning`). An ``sbp`` function is not called;
    - global tensors on several placements;
    - local Parameters on one memory (``b.weight.data = a.weight.data``), which are two tensors once
      they are global; as far as :class:`autoglobal.SharedMemoryWarning` knows them;
    - instances of a class under a bare ``@auto_global`` that hold no global tensor to follow;
    - running statistics of a BatchNorm that are split, which OneFlow 0.9.0 never updates;
    - a BatchNorm1d in training mode that follows a Linear whose weight is split in the same
      ``nn.Sequential``, with nothing but activations between: each rank takes the statistics of
      its own rows.

    Looking changes nothing, sends nothing to other ranks and runs no operation, so that any rank
    and any thread may do it alone. (Where local Parameters lie is known once their values are: it
    waits for what this rank is still computing.) A component is what OneFlow's split makes of the
    logical shape: the first parts are the longer ones.

    Raises:
        SpecTypeError: ``module`` is not an ``nn.Module``.
    """
    module = check_module(module, "describe")
    held = held_by(module)
    rows, attributes = rows_of(held), unregistered_rows(unregistered_in(module, held))
    return Report(
        module=type(module).__name__,
        rank=this_rank(),
        world_size=world_size(),
        rows=rows,
        attributes=attributes,
        totals=totals_of(rows),
        warnings=warnings_of(rows, attributes, held),
    )
