"""What autoglobal needs beside OneFlow, and how a fault of the installation is told.

Imports nothing but the standard library, on any Python: it speaks where the rest cannot be
imported.
"""

from __future__ import annotations

import re
import shlex
import sys
from importlib import metadata
from typing import NamedTuple

# The lowest version of each that will do, as in setup.cfg.
LIBRARIES: dict[str, tuple[int, ...]] = {"wrapt": (2, 5), "rich": (), "tqdm": (), "xxhash": (3,)}


class Fault(NamedTuple):
    """What is wrong, and the line to type."""

    cause: str
    cure: str

    def __str__(self) -> str:
        return f"{self.cause}; type: {self.cure}"


def pip_install(*requirements: str, python: str = sys.executable) -> str:
    """The line that installs these beside the Python that runs, whichever ``pip`` is on PATH."""
    return shlex.join([python or "python", "-m", "pip", "install", *requirements])


def version_of(package: str) -> str | None:
    """The version of a package that is installed, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def numbers(version: str) -> tuple[int, ...]:
    """``(2, 5)`` of ``"2.5.1"``: enough to compare releases by."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def fault_of(library: str, version: str | None) -> Fault | None:
    """What is wrong with this version of one of :data:`LIBRARIES`, None being "not there"."""
    lowest = ".".join(map(str, LIBRARIES[library]))
    cure = pip_install(f"{library}>={lowest}" if lowest else library)
    if version is None:
        return Fault(f"autoglobal needs {library}, which is not installed", cure)
    if numbers(version) < LIBRARIES[library]:
        return Fault(f"autoglobal needs {library} {lowest} or later, and this is {version}", cure)
    return None
