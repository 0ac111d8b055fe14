"""Runs every benchmark, and writes what they find to where people read it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from . import devices
from .plot import draw
from .results import Report
from .running import ALL, run
from .tables import page, text

TABLE = "table.md"
START, END = "<!-- benchmarks: start -->", "<!-- benchmarks: end -->"


def publish(
    kind: str, asked: Mapping[str, Any], results: Optional[Path], readme: Optional[Path]
) -> int:
    """All benchmarks on this kind of device and, after those on CPU, on CUDA where there is one."""
    reports = _run_all(kind, asked)
    if kind == "cpu":
        try:
            devices.choose("cuda")
        except devices.NoDevice as reason:
            print(reason)
        else:
            reports += _run_all("cuda", {**asked, "ranks": (1,)})
    if results:
        write(reports, results)
        if readme:
            insert(reports, results, readme)
    elif readme:
        print("--readme needs --results, whose pictures it shows", file=sys.stderr)
        return 2
    return 0


def _run_all(kind: str, asked: Mapping[str, Any]) -> list[Report]:
    reports = []
    for name in ALL[kind]:
        print(f"{name} ...", flush=True)
        reports.append(run(name, kind, **asked))
        print(text(reports[-1]), flush=True)
    return reports


def write(reports: list[Report], folder: Path) -> None:
    """A JSON and an SVG for each report, and one table."""
    folder.mkdir(parents=True, exist_ok=True)
    for report in reports:
        report.write(folder / f"{stem(report)}.json")
        draw(report, folder / f"{stem(report)}.svg")
    (folder / TABLE).write_text(page(reports))


def insert(reports: list[Report], results: Path, readme: Path) -> None:
    """Put the pictures and the table between the markers of a page."""
    before, _, rest = readme.read_text().partition(START)
    _, _, after = rest.partition(END)
    readme.write_text(f"{before}{START}\n{shown(reports, results, readme)}{END}{after}")


def shown(reports: list[Report], results: Path, readme: Path) -> str:
    """What stands between the markers."""
    where = results.resolve().relative_to(readme.resolve().parent)
    pictures = [f"![{report.name}]({where}/{stem(report)}.svg)" for report in reports]
    return "\n\n".join(
        [
            *pictures,
            f"<details>\n<summary>The table ({where}/{TABLE})</summary>",
            page(reports),
            "</details>\n",
        ]
    )


def stem(report: Report) -> str:
    """The name of its files."""
    return report.name if report.device == "cpu" else f"{report.name}-{report.device}"
