"""What this Python has, asked of a process of its own: an import can end one, or hang.

That process is told nothing of other ranks and writes a line of JSON for each thing as it comes to
know it, so that what it knew before it ended is not lost.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .needs import LIBRARIES, version_of

LAUNCHER = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK")
# OneFlow's own start-up remarks about hardware that a CPU run does not need.
_NOISE = ("libibverbs not available", "cuda_device_descriptor_class.cpp", "rpc_client.cpp")
# A Python exception, a check of OneFlow's C++ that has failed, or our own watchdog.
_TELLING = re.compile(r"[\w.]*(Error|Exception): |F\d{8} .*Check failed|autoglobal: ")
if TYPE_CHECKING:  # since Python 3.8, on which the doctor runs too, cannot subscript dict
    Found = dict[str, Any]


def ask(limit: float) -> Found:
    """What the other process has found, by name, and under ``ended`` how it failed, if it did."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit,
        )
        code, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as error:
        code, out, err = None, error.stdout or b"", error.stderr or b""
    found: Found = {}
    for line in out.decode(errors="replace").splitlines():
        # Not ours, or the last one, where the process ended in it.
        with contextlib.suppress(ValueError, TypeError):
            found.update(json.loads(line))
    if code != 0:
        how = f"has not ended after {limit:g} s" if code is None else ended_by(code)
        found["ended"] = ": ".join([how, *last_words(err.decode(errors="replace"))])
    return found


def environment() -> dict[str, str]:
    """This process's, without what a launcher set in it: a process for which no rank waits."""
    return {name: value for name, value in os.environ.items() if name not in LAUNCHER}


def ended_by(code: int) -> str:
    """An exit code as ``subprocess`` gives it, in words."""
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def last_words(stderr: str) -> list[str]:
    """The line of a process's standard error that says why it ended, if one says something."""
    lines = [line.strip() for line in stderr.splitlines()]
    lines = [line for line in lines if line and not any(word in line for word in _NOISE)]
    telling = [line for line in lines if _TELLING.match(line)]
    return (telling or lines)[-1:]


def main() -> None:
    # What OneFlow and others print is not to come between our lines.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def tell(**found: Any) -> None:
        print(json.dumps(found), file=out, flush=True)

    for name in (*LIBRARIES, "numpy"):
        tell(stage=f"importing {name}", **{name: _library(name)})
    tell(stage="importing oneflow")
    oneflow = _oneflow()
    tell(oneflow=oneflow)
    if oneflow["fault"] is None:
        tell(stage="converting a Parameter")
        tell(way=_way())
        tell(stage="looking for CUDA devices")
        for found in _devices():
            tell(**found)


def _library(name: str) -> Found:
    try:
        module = importlib.import_module(name)
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == name
        told = None if missing else f"{type(error).__name__}: {error}"
        return {"version": None if missing else version_of(name), "error": told}
    found: Found = {"version": getattr(module, "__version__", version_of(name)), "error": None}
    if name == "wrapt":
        found["extension"] = "wrapt._wrappers" in sys.modules
    return found


def _oneflow() -> Found:
    from .installation import diagnose, installed, place_of

    there = installed()
    fault = None
    try:
        import oneflow
    except Exception as caught:
        fault = diagnose(caught, there)
    else:
        if not hasattr(oneflow, "nn"):
            fault = diagnose(None, there, place_of(oneflow))
    if fault:
        return {"version": there.get("oneflow"), "fault": fault}
    return {"version": oneflow.__version__, "build": _build(), "fault": None}


def _build() -> str:
    try:
        from oneflow import sysconfig

        cuda = sysconfig.get_cuda_version() if sysconfig.with_cuda() else 0
    except Exception:
        return "a build that does not say what for"
    return f"built for CUDA {cuda // 1000}.{cuda % 1000 // 10}" if cuda else "built for CPU only"


def _way() -> Found:
    try:
        import oneflow as flow

        from .. import _compat
        from ..scopes.scope import global_scope

        module = flow.nn.Module()
        with global_scope(flow.placement("cpu", [0]), flow.sbp.broadcast):
            module.weight = flow.nn.Parameter(flow.zeros(1))
        return {"in_place": _compat.can_replace_data, "error": None}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _devices() -> Iterator[Found]:
    """What there is to tell of CUDA devices, one after another: each may be the end of us."""
    import oneflow as flow

    count = flow.cuda.device_count()
    yield {"devices": count}
    for index in range(count):
        major, minor = flow.cuda.get_device_capability(index)
        found = {"name": flow.cuda.get_device_name(index), "capability": [major, minor]}
        yield {"stage": f"running a kernel on cuda:{index}", f"cuda:{index}": found}
        try:
            (flow.ones(2, device=f"cuda:{index}") + 1).numpy()
        except Exception as error:
            found["error"] = str(error)[:300]
        else:
            found["error"] = None
        yield {f"cuda:{index}": found}


if __name__ == "__main__":
    main()
