"""The checks of ``python -m autoglobal doctor``, each with what was found, its cause and its cure.

Imports neither OneFlow nor anything else that may be broken: ``probe.py`` looks at these in a
process of its own, and the ranks of ``selftest.py`` are processes too.
"""

from __future__ import annotations

import platform
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING

from .._text import printable
from .._version import __version__
from . import probe, selftest
from .installation import (
    LIBRARIES,
    NEW_ENVIRONMENT,
    WHEELS,
    Fault,
    fault_of,
    fits,
    numbers,
    pip_install,
)
from .launcher import RANK_VARIABLES

if TYPE_CHECKING:
    from .probe import Findings

TIMEOUT = 60.0  # seconds
NECESSARY = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")  # without one OneFlow runs alone
# As measured. The wheel brings no PTX from which a driver could make kernels for other devices.
KERNELS = "OneFlow 0.9.0's wheel has kernels for compute capability 6.0 to 8.6"


@dataclass(frozen=True)
class Check:
    """One line of the doctor's report.

    ``state`` is ``"ok"``, ``"!!"`` for a fault, with its ``cause`` and ``cure`` (the line to type;
    where one line cures several faults the first has it), or ``"--"`` for what was not checked.
    """

    name: str
    state: str
    found: str
    cause: str = ""
    cure: str = ""


def examine(self_test: bool = True, timeout: float = TIMEOUT) -> Iterator[Check]:
    """The checks, each as it is made.

    ``timeout`` is how many seconds the process that imports OneFlow may take, and the self-test.
    """
    findings = probe.ask(timeout)
    yield Check("autoglobal", "ok", f"{__version__} in {Path(__file__).parent.parent}")
    oneflow = _oneflow(findings)
    yield oneflow
    python = _python(oneflow)
    yield python
    if python.state == "ok":
        packages = [_numpy(findings.get("numpy"), oneflow)]
        packages += [_library(name, findings.get(name)) for name in LIBRARIES]
    else:
        packages = [_not_checked(name, "it needs another Python") for name in ("numpy", *LIBRARIES)]
    yield from packages
    yield launcher(environ)
    if all(check.state == "ok" for check in (oneflow, *packages)):
        parameters = _parameters(findings)
    else:
        parameters = _not_checked("Parameters", "it needs what is above")
    yield parameters
    yield cuda(findings) if oneflow.state == "ok" else _not_checked("CUDA", "it needs OneFlow")
    if not self_test:
        yield _not_checked("self-test", "as you asked")
    elif parameters.state != "ok":
        yield _not_checked("self-test", "it needs what is above")
    else:
        yield _self_test(timeout)


def _faulty(name: str, found: str, fault: Fault) -> Check:
    return Check(name, "!!", found, *fault)


def _not_checked(name: str, why: str) -> Check:
    return Check(name, "--", f"not checked, {why}")


def _line_for(statement: str) -> str:
    """The line to type that shows a fault in full."""
    return shlex.join([sys.executable or "python", "-X", "faulthandler", "-c", statement])


def _oneflow(findings: Findings) -> Check:
    oneflow = findings.get("oneflow")
    if oneflow is None:
        return _faulty("OneFlow", "does not import", _fatal(findings, "import oneflow"))
    if oneflow["fault"]:
        return _faulty("OneFlow", oneflow["version"] or "not installed", Fault(*oneflow["fault"]))
    return Check("OneFlow", "ok", f"{oneflow['version']}, {oneflow['build']}")


def _fatal(findings: Findings, statement: str) -> Fault:
    """The fault that ended the process which looked."""
    ended, stage = findings.get("ended", "said nothing"), findings.get("stage", "starting")
    return Fault(f"The process that looked, while {stage}, {ended}", _line_for(statement))


def _python(oneflow: Check) -> Check:
    system = f"{platform.system()} {platform.machine()}"
    found = f"{platform.python_version()} on {system}, {sys.executable}"
    if sys.version_info < (3, 9):  # noqa: UP036  for which there are wheels of OneFlow
        return Check("Python", "!!", found, WHEELS, NEW_ENVIRONMENT)
    if oneflow.state == "ok" or fits(sys.version_info[:2], system):
        return Check("Python", "ok", found)
    return Check("Python", "!!", found, f"{WHEELS}: see OneFlow")


def _numpy(numpy: Findings | None, oneflow: Check) -> Check:
    if numpy is None:
        return _not_checked("numpy", "the process that looked has ended")
    version = numpy["version"]
    if oneflow.state == "!!" and (version is None or numbers(version) >= (2,)):
        found = version or "not installed"
        return Check("numpy", "!!", found, "OneFlow 0.9.0 was built for numpy 1: see OneFlow")
    return _import_of("numpy", numpy, "numpy<2") or Check("numpy", "ok", version)


def _library(name: str, library: Findings | None) -> Check:
    if library is None:
        return _not_checked(name, "the process that looked has ended")
    found = library["version"]
    if fault := fault_of(name, found):
        return _faulty(name, found or "not installed", fault)
    if name == "wrapt":
        # The hook is a plain function that wrapt puts on, and so as fast without the extension.
        with_it = "with" if library.get("extension") else "without"
        found += f", {with_it} its C extension, which autoglobal has no need of"
    return _import_of(name, library, name) or Check(name, "ok", found)


def _import_of(name: str, package: Findings, requirement: str) -> Check | None:
    """The check of a package that does not import, or None if it does."""
    if package["error"] is None:
        return None
    cause = f"{name} is installed and does not import ({package['error']})"
    cure = pip_install("--force-reinstall", "--no-deps", requirement)
    return Check(name, "!!", package["version"] or "", cause, cure)


def launcher(env: Mapping[str, str]) -> Check:
    """What the variables that a launcher sets mean for a process that has them."""
    there = [name for name in RANK_VARIABLES if name in env]
    shown = printable(", ".join(f"{name}={env[name]}" for name in there))
    missing = [name for name in NECESSARY if name not in env]
    cure = shlex.join(["unset", *there])
    if len(missing) == len(NECESSARY):
        return Check("launcher", "ok", "1 rank: no launcher has set its variables here")
    if missing:
        cause = f"Without {' and '.join(missing)} OneFlow takes this process for the only rank"
        return Check("launcher", "!!", shown, cause, cure)
    try:
        world, rank, _ = (int(env[name]) for name in ("WORLD_SIZE", "RANK", "MASTER_PORT"))
    except ValueError:
        return Check("launcher", "!!", shown, "Expected: whole numbers, and an address", cure)
    if (world, rank) == (1, -1):
        return Check("launcher", "ok", "1 rank: OneFlow has set the variables, in a parent process")
    if not 0 <= rank < world:
        return Check("launcher", "!!", shown, f"Expected: RANK from 0 to {world - 1}", cure)
    return Check("launcher", "ok", f"rank {rank} of {world} ({shown})")


def _parameters(findings: Findings) -> Check:
    parameters = findings.get("parameters")
    if parameters is None:
        fault = _fatal(findings, "import autoglobal")
        return _faulty("Parameters", "cannot be converted", fault)
    if parameters["error"]:
        fault = Fault(parameters["error"], _line_for("import autoglobal"))
        return _faulty("Parameters", "cannot be converted", fault)
    if parameters["in_place"]:
        return Check("Parameters", "ok", "are changed in place")
    return Check("Parameters", "ok", "new ones take their place")


def cuda(findings: Findings) -> Check:
    """Which devices the process that looked has found, and whether kernels ran on them."""
    if "devices" not in findings:
        fault = _fatal(findings, "import oneflow; oneflow.cuda.device_count()")
        return _faulty("CUDA", "", fault)
    count = findings["devices"]
    if count == 0:
        return _no_device(findings["oneflow"]["build"], environ.get("CUDA_VISIBLE_DEVICES"))
    # The process may have ended at one of them.
    devices = [findings[name] for i in range(count) if (name := f"cuda:{i}") in findings]
    names = [f"{device['name']} ({'.'.join(map(str, device['capability']))})" for device in devices]
    for device, name in zip(devices, names):
        error = device.get("error", findings.get("ended"))
        if error:
            cause = f"A kernel does not run on {name}: {error}. {KERNELS}"
            cure = "export CUDA_VISIBLE_DEVICES=  # and placements on CPU"
            return Check("CUDA", "!!", ", ".join(names), cause, cure)
    return Check("CUDA", "ok", f"{', '.join(names)}; kernels run")


def _no_device(build: str, visible: str | None) -> Check:
    if visible is not None:
        shown = printable(f"CUDA_VISIBLE_DEVICES={visible}")
        return Check("CUDA", "ok", f"no device ({shown}), CPU ranks only")
    if Path("/dev/nvidia0").exists() and "for CUDA" in build:
        cause = f"The driver does not serve OneFlow, which is {build}: see what it says"
        return Check("CUDA", "!!", "a device that OneFlow does not see", cause, "nvidia-smi")
    return Check("CUDA", "ok", "no device, CPU ranks only")


def _self_test(timeout: float) -> Check:
    if fault := selftest.run(timeout):
        return _faulty("self-test", "failed", fault)
    done = f"{selftest.RANKS} CPU ranks have converted a Parameter and trained it for a step"
    return Check("self-test", "ok", done)
