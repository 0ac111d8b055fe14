"""On what, and with what, something was measured."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

PACKAGES = ("oneflow", "wrapt", "numpy", "xxhash", "flowvision")


def describe(device: str) -> dict[str, Any]:
    """The processor, memory and load of this machine, and the versions."""
    return {
        "processor": _first("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(_first("/proc/meminfo", "MemTotal").split()[0]) / 2**20, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "device": device,
        "load_average_before": [round(one, 2) for one in os.getloadavg()],
        "versions": {"python": platform.python_version(), **_versions()},
    }


def in_words(machine: dict[str, Any]) -> str:
    """One sentence for people."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    loads = ", ".join(map(str, machine["load_average_before"]))
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['system']}; {machine['device']}; {versions}; load average at the start: {loads}"
    )


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def _first(path: str, key: str) -> str:
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return "unknown"
