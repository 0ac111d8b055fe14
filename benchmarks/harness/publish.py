"""Every benchmark in one go: the files that show what they found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from . import devices
from .plot import draw
from .results import Report
from .running import ALL, run
from .tables import bars_page, table_page, text


def publish(kind: str, asked: Mapping[str, Any], results: Optional[Path]) -> None:
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


def _run_all(kind: str, asked: Mapping[str, Any]) -> list[Report]:
    reports = []
    for name in ALL[kind]:
        print(f"{name} ...", flush=True)
        reports.append(run(name, kind, **asked))
        print(text(reports[-1]), flush=True)
    return reports


def write(reports: Sequence[Report], folder: Path) -> None:
    """A JSON and an SVG for each report, and the pages of all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for report in reports:
        report.write(folder / f"{stem(report)}.json")
        draw(report, folder / f"{stem(report)}.svg")
    for name, page in pages(reports).items():
        (folder / name).write_text(page)


def pages(reports: Sequence[Report]) -> dict[str, str]:
    """The text of each page, by its file name."""
    return {"table.md": table_page(reports), "bars.md": bars_page(reports)}


def stem(report: Report) -> str:
    """The name of its files."""
    return report.name if report.device == "cpu" else f"{report.name}-{report.device}"
