"""Requirements of autoglobal, and for each fault of an installation its cause and the line to type.

Imports nothing but the standard library, on Python 3.8 too, since it speaks where the rest cannot
be imported.

OneFlow's wheel declares neither the CUDA libraries that it needs (on CPU too) nor the numpy
that it was built for, and where it has no wheel pip installs an empty stub of that name.
"""

from __future__ import annotations

import platform
import re
import shlex
import sys
from importlib import metadata
from types import ModuleType
from typing import NamedTuple

from ..errors import OneFlowMissing

# The lowest version of each that will do, as in setup.cfg.
LIBRARIES: dict[str, tuple[int, ...]] = {"wrapt": (2, 5), "rich": (), "tqdm": (), "xxhash": (3,)}
PLATFORM = "Linux x86_64"
WHEELS = (
    f"OneFlow 0.9.0 has wheels for CPython 3.7 to 3.10 on {PLATFORM}, "
    "and autoglobal needs 3.9 or 3.10 of these"
)
# As in the extra of setup.cfg.
REQUIREMENTS = {
    "oneflow": "oneflow>=0.9,<1",
    "numpy": "numpy<2",
    "libcudnn": "nvidia-cudnn-cu11>=8.5,<9",
    "libcublas": "nvidia-cublas-cu11>=11,<12",
}
NEW_ENVIRONMENT = (
    "python3.10 -m venv .venv && .venv/bin/python -m pip install '.[oneflow]'"
    "  # in a clone of autoglobal"
)
ELSEWHERE = "unset PYTHONPATH; cd ~"


# The modules that carry out an import statement.
_IMPORT_SYSTEM = ("importlib._bootstrap", "_frozen_importlib")


class Fault(NamedTuple):
    """What is wrong, and the line to type."""

    cause: str
    cure: str

    def __str__(self) -> str:
        return f"{self.cause}; type: {self.cure}"


def named_on_the_command_line() -> bool:
    """Whether ``python -m`` imports this package, on its way to a module of it.

    Only the package itself may call this, while it is imported, because the frame above the
    caller's decides. That frame belongs to ``runpy`` under ``python -m autoglobal``. It belongs to
    the program's own file where a program that ``python -m`` started imports this package.
    """
    frame = sys._getframe(1).f_back
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_IMPORT_SYSTEM):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") == "runpy"


def require_installation() -> None:
    """Import OneFlow and wrapt.

    Raises :class:`OneFlowMissing`, with the cause and the cure, where OneFlow cannot be imported,
    and ``ImportError`` where wrapt cannot be or is too old.
    """
    try:
        import oneflow
    except Exception as error:
        raise OneFlowMissing(_sentence(diagnose(error, installed()))) from error
    if not hasattr(oneflow, "nn"):
        raise OneFlowMissing(_sentence(diagnose(None, installed(), place_of(oneflow))))
    import wrapt

    if fault := fault_of("wrapt", getattr(wrapt, "__version__", "0")):
        raise ImportError(str(fault))


def _sentence(fault: Fault) -> str:
    return f"autoglobal cannot import OneFlow. {fault}"


def place_of(package: ModuleType) -> str:
    """The folder or file that a package was imported from."""
    return str(package.__file__ or next(iter(package.__path__), "something"))


def installed() -> dict[str, str]:
    """The versions of OneFlow and of what its wheel does not declare, of what is there."""
    found = {what: version_of(_name(line)) for what, line in REQUIREMENTS.items()}
    return {what: version for what, version in found.items() if version is not None}


def version_of(package: str) -> str | None:
    """The version of a package that is installed, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def numbers(version: str) -> tuple[int, ...]:
    """``(2, 5)`` of ``"2.5.1"``: enough to compare releases by."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def pip_install(*requirements: str, python: str = sys.executable) -> str:
    """The line that installs these beside the Python that runs, whichever ``pip`` is on PATH."""
    return shlex.join([python or "python", "-m", "pip", "install", *requirements])


def fault_of(library: str, version: str | None) -> Fault | None:
    """What is wrong with this version of one of :data:`LIBRARIES`; None stands for "not there"."""
    lowest = ".".join(map(str, LIBRARIES[library]))
    cure = pip_install(f"{library}>={lowest}" if lowest else library)
    if version is None:
        return Fault(f"autoglobal needs {library}, which is not installed", cure)
    if numbers(version) < LIBRARIES[library]:
        return Fault(f"autoglobal needs {library} {lowest} or later, and this is {version}", cure)
    return None


def diagnose(
    error: Exception | None,
    found: dict[str, str],
    place: str = "",
    python: tuple[int, int] = sys.version_info[:2],
    system: str = f"{platform.system()} {platform.machine()}",
) -> Fault:
    """Why ``import oneflow`` raised ``error``, or, with None, imported something else at ``place``.

    ``found`` is what :func:`installed` says.
    """
    text = str(error or "").strip()
    version = found.get("oneflow")
    if error is None and version is not None and numbers(version) >= (0, 9):
        return Fault(f"{place} is imported in the place of OneFlow {version}", ELSEWHERE)
    if version is None or error is None or "placeholder" in text:
        return _absent(version, python, system)
    for library in ("libcudnn", "libcublas"):
        if library in text:
            return _without_library(library, version, found.get(library))
    if "Numpy" in text:
        other = found.get("numpy")
        have = "no numpy is installed" if other is None else f"numpy {other} is installed"
        return Fault(
            f"OneFlow {version} was built for numpy 1 and {have}",
            pip_install(REQUIREMENTS["numpy"]),
        )
    if "Descriptors cannot" in text:
        return Fault(
            f"OneFlow {version} was built for protobuf 3 and "
            f"protobuf {version_of('protobuf')} is installed",
            pip_install("protobuf<4"),
        )
    if isinstance(error, ModuleNotFoundError) and error.name:
        top = error.name.split(".")[0]
        return Fault(
            f"OneFlow {version} needs the module {top}, which is not installed",
            pip_install({"PIL": "pillow", "google": "protobuf<4"}.get(top, top)),
        )
    return Fault(
        f"OneFlow {version} is installed and does not import "
        f"({type(error).__name__}: {text.splitlines()[0][:300] if text else ''})",
        pip_install("--force-reinstall", *REQUIREMENTS.values()),
    )


def fits(python: tuple[int, int], system: str) -> bool:
    """Whether there is a wheel of OneFlow 0.9.0 for this that autoglobal can use."""
    return (3, 9) <= python <= (3, 10) and system == PLATFORM


def _absent(version: str | None, python: tuple[int, int], system: str) -> Fault:
    what = (
        "OneFlow is not installed"
        if version is None
        else f"The oneflow {version} that is installed is the empty stub without a library in it"
    )
    if fits(python, system):
        return Fault(what, pip_install(*REQUIREMENTS.values()))
    where = f" on {PLATFORM}" * (system != PLATFORM)
    return Fault(
        f"{what}: {WHEELS}; this is Python {python[0]}.{python[1]} on {system}",
        NEW_ENVIRONMENT + where,
    )


def _without_library(library: str, version: str, there: str | None) -> Fault:
    requirement = REQUIREMENTS[library]
    lowest = numbers(requirement.split(">=")[1])
    if there is None or numbers(there)[:1] != lowest[:1]:
        have = "does not bring it" if there is None else f"{there} is installed, another one"
        return Fault(
            f"OneFlow {version} needs {library}, on CPU too, and {have}", pip_install(requirement)
        )
    # --force-reinstall, because pip takes the one that is installed elsewhere for good enough.
    return Fault(
        f"OneFlow {version} needs {library}, on CPU too, and looks for it in the folder nvidia "
        f"beside its own; {_name(requirement)} {there} is installed and is not there",
        pip_install("--force-reinstall", "--no-deps", requirement),
    )


def _name(requirement: str) -> str:
    return re.split("[<>=]", requirement)[0]
