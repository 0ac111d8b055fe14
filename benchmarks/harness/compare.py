"""What moved between two reports of one benchmark, beyond the noise of both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .results import Line, Report, Table, quartiles

# What is closer is called the same, however quiet both measurements were.
_LEAST = 0.05


def moved(old: Report, new: Report) -> Iterator[str]:
    """One sentence a line.

    A line with a base is compared by its ratio to that, which a faster or slower machine changes
    little, one without by its time. It has moved where the quartiles of the rounds are apart and
    the medians differ by more than 5%.
    """
    before = {_key(table, line): _figures(table, line) for table, line in _lines(old)}
    after = {_key(table, line): _figures(table, line) for table, line in _lines(new)}
    for key, (kind, rounds) in after.items():
        if key not in before:
            yield f"new: {_words(key)}"
        elif before[key][0] == kind and _apart(before[key][1], rounds):
            was, now = (quartiles(one)[1] for one in (before[key][1], rounds))
            how = "faster" if now < was else "slower"
            yield f"{how}: {_words(key)}: {kind} {was:.3g} before, {now:.3g} now"
    for key in before:
        if key not in after:
            yield f"gone: {_words(key)}"


def _lines(report: Report) -> Iterator[tuple[Table, Line]]:
    return ((table, line) for table in report.tables for line in table.lines)


def _key(table: Table, line: Line) -> tuple[int, str, str]:
    return table.ranks, table.title, line.name


def _words(key: tuple[int, str, str]) -> str:
    ranks, title, name = key
    return f"{title}, {name} ({ranks} rank{'s' * (ranks > 1)})"


def _figures(table: Table, line: Line) -> tuple[str, Sequence[float]]:
    ratios = table.to_base(line)
    return ("time ratio", ratios) if ratios else ("seconds", line.done)


def _apart(old: Sequence[float], new: Sequence[float]) -> bool:
    (low, was, high), (lower, now, higher) = quartiles(old), quartiles(new)
    return (higher < low or lower > high) and abs(now - was) > _LEAST * was
