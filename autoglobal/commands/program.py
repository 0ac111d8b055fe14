"""Tells ``python -m autoglobal`` from ``import autoglobal``."""

from __future__ import annotations

import sys


def named_on_the_command_line() -> bool:
    """Whether ``python -m`` imports this package, on its way to a module of it.

    To be called by the package as it is imported. A program that is started by ``python -m`` and
    imports this package does so from a file of its own, which is then what stands before us.
    """
    frame = sys._getframe(1).f_back
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_IMPORTLIB):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") == "runpy"


# What an import statement is carried out by.
_IMPORTLIB = ("importlib._bootstrap", "_frozen_importlib")
