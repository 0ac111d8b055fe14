"""A note on an error that a constructor raised because its weights were global already."""

from __future__ import annotations

import re
from types import TracebackType

from oneflow import nn

from .errors import AutoglobalError
from .registry import tensors

MARK = "autoglobal: the constructor of"
# Words of OneFlow's, not of those who write "local" or "global" in an error of their own.
_ABOUT_LOCAL_AND_GLOBAL = re.compile(
    r"Only (local|global) tensors? |inconsistent attributes|global, local|local, global"
)


def add_advice(error: BaseException) -> None:
    """Say ``when="exit"`` where a module's constructor failed over its own global weights.

    OneFlow's messages there speak of local and global tensors and name neither the class nor the
    scope: "Only local tensors have 'device'", "Got input tensors with inconsistent attributes".
    """
    if isinstance(error, AutoglobalError) or not isinstance(error, (RuntimeError, AssertionError)):
        return
    text = error.args[0] if error.args else None
    if not isinstance(text, str) or MARK in text or not _ABOUT_LOCAL_AND_GLOBAL.search(text):
        return
    name = _constructor(error.__traceback__)
    if name is None:
        return
    note = (
        f"{MARK} {name} uses its own weights, which are global as soon "
        'as it assigns them. Write global_scope(..., when="exit") to convert them when the block '
        "ends, or build it outside and assign it inside"
    )
    if hasattr(error, "add_note"):  # Python 3.11
        error.add_note(note)
    else:
        error.args = (f"{text}\n{note}", *error.args[1:])


def _constructor(traceback: TracebackType | None) -> str | None:
    """The class of the innermost module whose ``__init__`` failed with a global tensor in it."""
    found = None
    while traceback is not None:
        frame = traceback.tb_frame
        first = frame.f_code.co_varnames[:1]  # self, by whatever name
        module = frame.f_locals.get(first[0]) if first else None
        if (
            frame.f_code.co_name == "__init__"
            and isinstance(module, nn.Module)
            and any(tensor.is_global for _, tensor in tensors(module))
        ):
            found = type(module).__name__
        traceback = traceback.tb_next
    return found
