"""A report as Markdown, for a terminal and for a page alike."""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import tabulate  # type: ignore[import-untyped]

from .machine import in_words
from .results import Bar, Line, Report, Table, quartiles

HEADERS = ("ranks", "what", "way", "median", "each", "time ratio [quartiles]", "peak", "sent")


def page(reports: Sequence[Report]) -> str:
    """All reports, one behind the other: the machine and the command, the table, the bars."""
    return "\n".join(map(text, reports))


def text(report: Report) -> str:
    """One report."""
    parts = [
        f"### {report.name}, on {report.device}",
        f"`{report.command}` on {in_words(report.machine)}.",
        _table(report.tables),
    ]
    if report.bars:
        parts.append(_bars(report.bars))
    parts += report.notes
    return "\n\n".join(parts) + "\n"


def _table(tables: Sequence[Table]) -> str:
    rows = [_row(table, line) for table in tables for line in table.lines]
    # A column that is empty all the way down says nothing.
    used = [at for at in range(len(HEADERS)) if at < 6 or any(row[at] for row in rows)]
    return _markdown([[row[at] for at in used] for row in rows], [HEADERS[at] for at in used])


def _row(table: Table, line: Line) -> list[str]:
    ratios = table.to_base(line)
    return [
        str(table.ranks),
        table.title,
        line.name,
        seconds(line.median),
        f"{seconds(line.median / table.count)} / {table.unit}",
        spread(ratios) if ratios else "",
        "" if line.peak is None else f"{line.peak:.0f} MiB",
        "" if line.sent is None else f"{line.sent:.1f} MiB",
    ]


def _bars(bars: Sequence[Bar]) -> str:
    rows = [
        [
            str(bar.ranks),
            bar.text,
            f"at {'least' if bar.at_least else 'most'} {bar.limit:g}",
            spread(bar.rounds),
            "yes" if bar.met else "**no**",
        ]
        for bar in bars
    ]
    return _markdown(rows, ["ranks", "bar", "limit", "measured [quartiles]", "met"])


def _markdown(rows: Sequence[Sequence[str]], headers: Sequence[str]) -> str:
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return str(tabulate(escaped, headers, tablefmt="github", disable_numparse=True))


def seconds(value: float) -> str:
    """In a unit that leaves three digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e9:.0f} ns"


def spread(rounds: Sequence[float]) -> str:
    """The median and its quartiles."""
    low, middle, high = quartiles(rounds)
    return f"{middle:.3g} [{low:.3g}, {high:.3g}]"
