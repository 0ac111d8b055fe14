"""Runs a benchmark: starts the ranks, and puts together what each number of them has found."""

from __future__ import annotations

import ast
import importlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from autoglobal.commands.launcher import launch

from . import devices
from .results import Report, read

SUITES = Path(__file__).parent.parent / "suites"
# Each is the name of a file there, with "_" for "-".
BENCHMARKS = ("overhead", "by-hand", "migrate", "peers", "copies")
# Those that "all" runs on each kind of device; on CPU a copy to the device is but a copy.
ALL = {
    "cpu": ("overhead", "by-hand", "migrate", "peers"),
    "cuda": ("copies", "overhead", "by-hand", "migrate"),
}
LIMIT = 1800.0


def about(name: str) -> str:
    """The first line of its documentation; nothing is imported for it."""
    source = Path(SUITES, f"{_module(name)}.py").read_text()
    return (ast.get_docstring(ast.parse(source)) or "").splitlines()[0]


def run(
    name: str,
    kind: str,
    ranks: Optional[Sequence[int]] = None,
    rounds: Optional[int] = None,
    torch: Optional[str] = None,
) -> Report:
    """One benchmark on each of these numbers of ranks; ends the program where one fails."""
    module = importlib.import_module(f"benchmarks.suites.{_module(name)}")
    ranks, rounds = ranks or module.RANKS, rounds or module.ROUNDS
    try:
        device = devices.choose(kind, max(ranks))
    except devices.NoDevice as reason:
        sys.exit(str(reason))
    command = f"python -m benchmarks {name} --device {kind}"
    command += f" --ranks {','.join(map(str, ranks))} --rounds {rounds}"
    report = Report(
        name=name, device=kind, command=command, machine=devices.describe(device.about())
    )
    for number in ranks:
        report.add(_on(number, _module(name), device, rounds, torch))
    return report


def _module(name: str) -> str:
    return name.replace("-", "_")


def _on(
    ranks: int, module: str, device: devices.Device, rounds: int, torch: Optional[str]
) -> Report:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "found.json")
        program = ["-m", "benchmarks.harness.ranks", module, "--out", str(out)]
        program += ["--device", device.kind, "--rounds", str(rounds)]
        if torch:
            program += ["--torch-python", torch]
        if launch(ranks, program, limit=LIMIT) != 0:
            # Where a kernel is missing OneFlow may abort the process, without a word of that.
            reason = f" on {device.about()}" if device.kind == "cuda" else ""
            sys.exit(f"{module}: no figures where the number of ranks is {ranks}{reason}")
        return read(out)
