"""Builds the sdist and the wheel, and tests what is installed of them from outside the checkout.

``python -m tools.check_dist [--into dist]``. The wheel is built from the sdist, so that one which
lacks a file shows. It is installed, without a download, beside links to the packages of the Python
that runs; the tests are those of the unpacked sdist, from whose folder the library was taken away.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from .linked import LinkedVenv

ROOT = Path(__file__).resolve().parent.parent
# What an installation of this checkout is called, an editable one too.
OURS = ("autoglobal", "__editable__")
LIMIT = 300  # seconds for each command
# A handful: what is installed, a scope, what the documents say, and the type checker.
TESTS = (
    "commands/test_import",
    "commands/test_doctor",
    "modules/test_assignment",
    "project/test_docstrings",
    "project/test_typing",
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the sdist and the wheel, and test them.")
    parser.add_argument("--into", type=Path, default=ROOT / "dist", help="the folder for both")
    into = parser.parse_args().into.resolve()
    shutil.rmtree(into, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", str(into), cwd=ROOT)
    (sdist,), (wheel,) = into.glob("*.tar.gz"), into.glob("*.whl")
    check_names(names_of(sdist), zipfile.ZipFile(wheel).namelist())
    with tempfile.TemporaryDirectory(prefix="dist-") as folder:
        try_out(sdist, wheel, Path(folder))
    print(f"{sdist.name} and {wheel.name} are in {into}")
    return 0


def names_of(sdist: Path) -> list[str]:
    """The files of an sdist, by their paths in the checkout."""
    with tarfile.open(sdist) as archive:
        return [one.name.partition("/")[2] for one in archive.getmembers() if one.isfile()]


def check_names(sdist: list[str], wheel: list[str]) -> None:
    """The sdist holds what git knows, and the wheel the library alone."""
    known = run("git", "ls-files", cwd=ROOT, capture=True).split()
    # What a machine that tests the repository reads.
    missing = {name for name in known if not name.startswith(".")} - set(sdist)
    assert not missing, f"not in the sdist: {sorted(missing)}"
    library = {name for name in known if name.startswith("autoglobal/")}
    inside = {name for name in wheel if ".dist-info/" not in name}
    assert inside == library, f"the wheel and the library differ: {sorted(inside ^ library)}"
    assert "autoglobal/py.typed" in inside
    assert any(name.endswith("/LICENSE") for name in wheel), "no LICENSE in the wheel"


def try_out(sdist: Path, wheel: Path, folder: Path) -> None:
    """Install the wheel and run some of the sdist's tests on it."""
    made = LinkedVenv(folder / "venv", *OURS)
    python = str(made.python)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder)
    (outside,) = folder.glob("autoglobal-*")
    shutil.rmtree(outside / "autoglobal")
    run(
        python, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", str(wheel), cwd=folder
    )
    where = "import autoglobal; print(autoglobal.__file__)"
    imported = run(python, "-c", where, cwd=outside, capture=True).strip()
    assert imported == str(made.packages / "autoglobal" / "__init__.py"), imported
    run(python, "-m", "autoglobal", "doctor", cwd=folder)
    tests = [f"tests/{name}.py" for name in TESTS]
    run(python, "-m", "tests.run", "--ranks", "1", "2", "--", *tests, cwd=outside)


def run(*command: str, cwd: Path, capture: bool = False) -> str:
    """Run a command, and end with its exit code if that is not 0."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command,
        cwd=cwd,
        env=env,
        text=True,
        timeout=LIMIT,
        stdout=subprocess.PIPE if capture else None,
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}")
    return done.stdout or ""


if __name__ == "__main__":
    sys.exit(main())
