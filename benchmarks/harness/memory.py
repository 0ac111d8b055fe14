"""What a piece of work takes: memory of this process at its peak, and bytes between the ranks."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import oneflow as flow

from .devices import Device

MIB = 1 << 20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
Reading = Callable[[], float]


@contextmanager
def watched(device: Device) -> Iterator[Reading]:
    """MiB at the peak of the block, above what was held before it."""
    _let_go()
    if device.kind == "cuda":
        before = device.used() or 0.0
        yield lambda: (device.used() or 0.0) - before
        return
    held = of_status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts anew from here
    yield lambda: of_status("VmHWM") - held


@contextmanager
def sent_over_loopback() -> Iterator[Reading]:
    """MiB that this machine's loopback interface has carried: those of other programs as well."""
    before = after = _loopback_bytes()

    def sent() -> float:
        return (after - before) / MIB

    yield sent
    after = _loopback_bytes()


def _let_go() -> None:
    """Give back all that nobody holds, to the operating system too."""
    _give_back_at_once()
    gc.collect()
    flow._oneflow_internal.eager.Sync()
    flow._oneflow_internal.EmptyCache()
    ctypes.CDLL("libc.so.6").malloc_trim(0)


@cache
def _give_back_at_once() -> None:
    # Left alone, malloc learns to keep what is freed, and a later piece of work would find its
    # memory there. It slows what follows down: so all timing comes before.
    for option in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
        ctypes.CDLL("libc.so.6").mallopt(option, 64 << 10)


def of_status(key: str) -> float:
    """A line of this process's status, in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) / 1024
    raise LookupError(key)


def _loopback_bytes() -> int:
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[8])
    return 0
