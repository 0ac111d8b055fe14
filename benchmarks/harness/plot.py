"""A report as a picture: for each table its lines, by the time ratio to the line they relate to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

from .results import Report, Table, quartiles
from .tables import seconds

OURS, THEIRS = "#2b6cb0", "#a0aec0"
_LINE = 0.24  # inches
_HEAD = 0.75


def draw(report: Report, path: Path) -> None:
    """Write the SVG; the same report gives the same bytes."""
    from matplotlib.figure import Figure

    tables = [table for table in report.tables if any(line.base for line in table.lines)]
    heights = [len(table.lines) * _LINE + _HEAD for table in tables]
    style = {"svg.hashsalt": report.name, "svg.fonttype": "none", "font.size": 7.5}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(9, max(1.0, sum(heights))), layout="constrained")
        axes = figure.subplots(len(tables), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axis, table in zip(axes, tables):
            _panel(axis, table)
        figure.savefig(path, format="svg", metadata={"Date": None}, facecolor="white")


def _panel(axis: Any, table: Table) -> None:
    names, medians, spans, colours, words = [], [], [], [], []
    for line in table.lines:
        low, middle, high = quartiles(table.to_base(line) or [1.0, 1.0])
        names.append(line.name)
        medians.append(middle)
        spans.append((middle - low, high - middle))
        colours.append(OURS if line.base else THEIRS)
        words.append(f"{f'x{middle:.3g}, ' * bool(line.base)}{seconds(line.median / table.count)}")
    places = range(len(names))
    axis.barh(places, medians, xerr=list(zip(*spans)), color=colours, height=0.7,
              error_kw={"elinewidth": 0.8, "ecolor": "#1a202c"})  # fmt: skip
    axis.set_yticks(places, names)
    axis.invert_yaxis()
    axis.axvline(1, color="#1a202c", linewidth=0.6, linestyle=":")
    _label(axis, medians, spans, words)
    axis.spines[["top", "right"]].set_visible(False)
    ranks = f"{table.ranks} rank{'s' * (table.ranks > 1)}"
    title = f"{table.title} ({ranks}): time ratio (less is faster), time / {table.unit}"
    axis.set_title(title, loc="left", fontsize=8)


def _label(
    axis: Any, medians: Sequence[float], spans: Sequence[tuple[float, float]], words: Sequence[str]
) -> None:
    furthest = max(middle + above for middle, (_, above) in zip(medians, spans))
    axis.set_xlim(0, furthest * 1.25)
    for at, (middle, (_, above), text) in enumerate(zip(medians, spans, words)):
        axis.text(middle + above + furthest * 0.01, at, text, va="center", fontsize=6.5)
