"""The machine and the device that are measured on: all that is different on CUDA is here."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import oneflow as flow
import oneflow.sysconfig

# Of the wheel oneflow 0.9.0 on PyPI, which brings no PTX from which a newer GPU's could be made.
OLDEST, NEWEST = (6, 0), (8, 6)
# Whose versions a result states.
PACKAGES = ("oneflow", "wrapt", "numpy", "xxhash", "flowvision")


class NoDevice(Exception):
    """The device that was asked for cannot be measured on; the text says why."""


@dataclass(frozen=True)
class Device:
    """``kind`` is "cpu" or "cuda"; ``capabilities`` those of the CUDA devices of this machine."""

    kind: str
    capabilities: tuple[tuple[int, int], ...] = ()

    def placement(self, world: int) -> Any:
        """All ranks."""
        return flow.placement(self.kind, list(range(world)))

    def copy(self, tensor: Any) -> Any:
        """A copy of a host tensor on this rank's device: a copy alone, no kernel."""
        if self.kind == "cpu":
            return tensor.clone()
        return tensor.to(f"cuda:{flow.env.get_local_rank()}")

    def synchronize(self) -> None:
        """Wait for what was enqueued: OneFlow's calls return long before their work is done."""
        flow._oneflow_internal.eager.Sync()
        if self.kind == "cuda":
            flow.cuda.synchronize()

    def used(self) -> Optional[float]:
        """MiB of this rank's CUDA device that are in use, None on CPU.

        OneFlow keeps what it has once allocated until it is told to let go, so that right after
        something has been done this is its peak.
        """
        if self.kind == "cpu":
            return None
        rank = int(flow.env.get_local_rank())
        return memory_used(_nvidia_smi("memory.used"))[rank]

    def about(self) -> str:
        """In words, with what cannot be done on it."""
        if self.kind == "cpu":
            return "CPU"
        return "; ".join(map(about_capability, self.capabilities))

    def explain(self, error: BaseException) -> Optional[str]:
        """What is behind an error that says no more than that a kernel is missing."""
        if self.kind == "cuda" and is_missing_kernel(str(error)):
            return f"a kernel is missing. {self.about()}. OneFlow said: {error}"
        return None


def choose(kind: str, ranks: int = 1) -> Device:
    """The device of that kind, for so many ranks on this machine, or :class:`NoDevice`."""
    if kind == "cpu":
        return Device("cpu")
    built = oneflow.sysconfig.with_cuda()
    count = flow.cuda.device_count() if flow.cuda.is_available() else 0
    if reason := why_not(built, count, ranks):
        raise NoDevice(reason)
    return Device("cuda", tuple(flow.cuda.get_device_capability(at) for at in range(count)))


def why_not(built: bool, count: int, ranks: int) -> Optional[str]:
    """Why ``ranks`` ranks cannot be measured on ``count`` CUDA devices, None if they can."""
    if not built:
        return "CUDA: this OneFlow was built without it; install a CUDA build"
    if count == 0:
        return "CUDA: no device can be used here (none found, or no driver for it)"
    if count < ranks:
        return f"CUDA: {ranks} ranks need {ranks} devices and there {_are(count)}; ask for fewer"
    return None


def about_capability(capability: tuple[int, int]) -> str:
    """What a device of this compute capability can do with the wheel."""
    major, minor = capability
    found = f"compute capability {major}.{minor} found"
    if OLDEST <= capability <= NEWEST:
        return f"{found}, for which the wheel has kernels"
    span = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
    return f"{found}; the wheel has kernels for {span} and no PTX, so that here only copies work"


def is_missing_kernel(text: str) -> bool:
    """Whether CUDA says that the wheel has no kernel for the device."""
    # OneFlow aborts the process with this where it checks the launch, and raises it elsewhere.
    known = ("no kernel image is available", "invalid device function", "named symbol not found")
    return any(one in text for one in known)


def memory_used(printed: str) -> list[float]:
    """MiB in use, device by device, of what nvidia-smi prints."""
    return [float(line) for line in printed.splitlines() if line.strip()]


def _nvidia_smi(what: str) -> str:
    command = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _are(count: int) -> str:
    return "is 1" if count == 1 else f"are {count}"


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
