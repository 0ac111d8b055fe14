"""A virtual environment of links to the packages of the Python that runs: no download, no copy."""

from __future__ import annotations

import re
import sys
import sysconfig
import venv
from pathlib import Path

PACKAGES = Path(sysconfig.get_path("purelib"))


class LinkedVenv:
    """A virtual environment in ``folder``, less the packages whose names are in ``without``."""

    def __init__(self, folder: Path, *without: str) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.python = folder / "bin" / "python"
        version = "python{}.{}".format(*sys.version_info)
        self.packages = folder / "lib" / version / "site-packages"
        self._link(PACKAGES, self.packages, without)

    def open_up(self, package: str, *without: str) -> None:
        """Make a package's folder one of links in its turn, less what is named in ``without``."""
        folder = self.packages / package
        folder.unlink()
        self._link(PACKAGES / package, folder, without)

    def hold(self, name: str, version: str, code: str) -> None:
        """Put a package here that is no link."""
        write(self.packages / name / "__init__.py", code)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        write(self.packages / f"{name}-{version}.dist-info" / "METADATA", metadata)

    @staticmethod
    def _link(real: Path, links: Path, without: tuple[str, ...]) -> None:
        links.mkdir(exist_ok=True)
        for one in real.iterdir():
            # The package, and the folder of what is known of it: numpy, numpy-1.26.4.dist-info.
            if re.split(r"[-.]", one.name)[0] not in without:
                (links / one.name).symlink_to(one)


def write(file: Path, text: str) -> None:
    """Write a file, and make the folders on its way."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
