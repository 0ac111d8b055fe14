"""A look at what this Python has, by a process of its own: an import can end one, or hang.

That process is told nothing of other ranks and writes a line of JSON for each thing as it comes to
know it, so that what it knew before it ended is not lost.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .installation import LIBRARIES, diagnose, installed, place_of, version_of
from .launcher import apart, ended_by, last_words

if TYPE_CHECKING:  # since Python 3.8, on which the doctor runs too, cannot subscript dict
    Findings = dict[str, Any]


def ask(limit: float) -> Findings:
    """What the other process finds, by name, and under ``ended`` how it failed, if it did."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [sys.executable, "-m", __name__],
                env=apart(),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=limit,
            )
        code, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as error:
        code, out, err = None, error.stdout or b"", error.stderr or b""
    findings: Findings = {}
    for line in out.decode(errors="replace").splitlines():
        # Some lines are not ours, and the process may have ended in the middle of the last one.
        with contextlib.suppress(ValueError, TypeError):
            findings.update(json.loads(line))
    if code != 0:
        how = f"has not ended after {limit:g} s" if code is None else ended_by(code)
        findings["ended"] = ": ".join([how, *last_words(err.decode(errors="replace"))])
    return findings


def main() -> None:
    # What OneFlow and others print goes to stderr, because only our lines may stand in stdout.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def report(**found: Any) -> None:
        print(json.dumps(found), file=out, flush=True)

    for name in (*LIBRARIES, "numpy"):
        report(stage=f"importing {name}", **{name: _library(name)})
    report(stage="importing oneflow")
    oneflow = _oneflow()
    report(oneflow=oneflow)
    if oneflow["fault"] is None:
        report(stage="converting a Parameter")
        report(parameters=_parameters())
        report(stage="looking for CUDA devices")
        for found in _devices():
            report(**found)


def _library(name: str) -> Findings:
    try:
        module = importlib.import_module(name)
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == name
        fault = None if missing else f"{type(error).__name__}: {error}"
        return {"version": None if missing else version_of(name), "error": fault}
    found: Findings = {"version": getattr(module, "__version__", version_of(name)), "error": None}
    if name == "wrapt":
        found["extension"] = "wrapt._wrappers" in sys.modules
    return found


def _oneflow() -> Findings:
    versions = installed()
    fault = None
    try:
        import oneflow
    except Exception as error:
        fault = diagnose(error, versions)
    else:
        if not hasattr(oneflow, "nn"):
            fault = diagnose(None, versions, place_of(oneflow))
    if fault:
        return {"version": versions.get("oneflow"), "fault": fault}
    return {"version": oneflow.__version__, "build": _build(), "fault": None}


def _build() -> str:
    try:
        from oneflow import sysconfig

        cuda = sysconfig.get_cuda_version() if sysconfig.with_cuda() else 0
    except Exception:
        return "a build that does not say what for"
    return f"built for CUDA {cuda // 1000}.{cuda % 1000 // 10}" if cuda else "built for CPU only"


def _parameters() -> Findings:
    try:
        import oneflow as flow

        from .. import _compat
        from ..scopes.scope import global_scope

        module = flow.nn.Module()
        with global_scope(flow.placement("cpu", [0]), flow.sbp.broadcast):
            module.weight = flow.nn.Parameter(flow.zeros(1))
        return {"in_place": _compat.can_replace_data(), "error": None}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _devices() -> Iterator[Findings]:
    """Findings about CUDA devices, one after another, since each may end the process."""
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
