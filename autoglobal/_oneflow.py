"""Imports OneFlow, or says in one sentence why it cannot be and what to type.

OneFlow's wheel declares neither the CUDA libraries that it needs (on CPU too) nor the numpy
that it was built for, and where it has no wheel pip installs an empty stub of that name.
"""

from __future__ import annotations

import platform
import sys
from importlib import metadata

from .errors import OneFlowMissing

INSTALL = "pip install '.[oneflow]' (in a clone of autoglobal)"
WHEELS = "OneFlow 0.9.0 has wheels for CPython 3.7 to 3.10 on Linux x86_64"


def require_oneflow() -> None:
    """Import OneFlow.

    Raises :class:`OneFlowMissing`, with the cause and the cure, where that is impossible.
    """
    try:
        import oneflow
    except Exception as error:
        raise OneFlowMissing(
            explain(error, _version_of("oneflow"), _version_of("numpy"))
        ) from error
    if not hasattr(oneflow, "nn"):
        raise OneFlowMissing(explain(None, _version_of("oneflow"), _version_of("numpy")))


def explain(
    error: Exception | None,
    oneflow_version: str | None,
    numpy_version: str | None,
    python: tuple[int, int] = sys.version_info[:2],
) -> str:
    """The sentence for a failed ``import oneflow`` and what is installed here."""
    here = f"this is Python {python[0]}.{python[1]} on {platform.system()} {platform.machine()}"
    fits = (3, 7) <= python <= (3, 10) and platform.system() == "Linux"
    text = str(error or "")
    stub = error is None or "placeholder" in text
    if (oneflow_version is None or stub) and not fits:
        what = "oneflow is not installed" if oneflow_version is None else _stub(oneflow_version)
        return (
            f"autoglobal needs OneFlow, and {what}: {WHEELS}, {here}; make a virtual "
            f"environment with Python 3.10 and type there: {INSTALL}"
        )
    if oneflow_version is None:
        return f"autoglobal needs OneFlow, which is not installed; type: {INSTALL}"
    if stub:
        return f"autoglobal needs OneFlow, and {_stub(oneflow_version)}; type: {INSTALL}"
    for library, package in (
        ("libcudnn", "nvidia-cudnn-cu11>=8.5,<9"),
        ("libcublas", "nvidia-cublas-cu11>=11,<12"),
    ):
        if library in text:
            return (
                f"OneFlow {oneflow_version} needs {library}, on CPU too, and does not bring it; "
                f"type: pip install '{package}'; for all that it needs: {INSTALL}"
            )
    if "umpy" in text and numpy_version and int(numpy_version.split(".")[0]) >= 2:
        return (
            f"OneFlow {oneflow_version} was built for numpy 1 and numpy {numpy_version} is "
            "installed; type: pip install 'numpy<2'"
        )
    return f"OneFlow {oneflow_version} is installed and does not import ({text.strip()[:300]})"


def _stub(version: str) -> str:
    return f"the oneflow {version} that is installed is the empty stub without a library in it"


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
