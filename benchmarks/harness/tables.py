"""Reports as Markdown, for a terminal and for the pages in the results."""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import tabulate  # type: ignore[import-untyped]

from .devices import in_words
from .results import Line, Report, Table, quartiles

HEADERS = ("ranks", "what", "way", "median", "each", "time ratio [quartiles]", "peak", "sent")


def text(report: Report) -> str:
    """One report, for a terminal."""
    return _paragraphs(
        f"### {_title(report)}",
        _origin(report),
        _table(report.tables),
        _bars(report),
        *report.notes,
    )


def table_page(reports: Sequence[Report]) -> str:
    """Every line of all reports, with the machine and the command of each."""
    parts = ["# Every line of every benchmark"]
    for report in reports:
        parts += [f"## {_title(report)}", _origin(report), _table(report.tables), *report.notes]
    return _paragraphs(*parts)


def bars_page(reports: Sequence[Report]) -> str:
    """The bars of all reports that have any."""
    parts = ["# What the project holds itself to, and whether it was met"]
    for report in reports:
        if report.bars:
            parts += [f"## {_title(report)}", f"`{report.command}`", _bars(report)]
    return _paragraphs(*parts)


def _title(report: Report) -> str:
    return f"{report.name}, on {report.device}"


def _origin(report: Report) -> str:
    return f"`{report.command}` on {in_words(report.machine)}."


def _paragraphs(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


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


def _bars(report: Report) -> str:
    """A table, or nothing where there are no bars."""
    rows = [
        [
            str(bar.ranks),
            bar.text,
            f"at {'least' if bar.at_least else 'most'} {bar.limit:g}",
            spread(bar.rounds),
            "yes" if bar.met else "**no**",
        ]
        for bar in report.bars
    ]
    headers = ["ranks", "bar", "limit", "measured [quartiles]", "met"]
    return _markdown(rows, headers) if rows else ""


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
