"""A note on an error that a constructor raised because its weights were global already."""

from __future__ import annotations

import re
from types import TracebackType

from oneflow import nn

from .errors import AutoglobalError
from .registry import tensors


def add_advice(error: BaseException) -> None:
    """Say ``when="exit"`` where a module's constructor failed over its own global weights.

    OneFlow's messages there speak of local and global tensors and name neither the class nor the
    scope: "Only local tensors have 'device'", "Got input tensors with inconsistent attributes".
    """
    if isinstance(error, AutoglobalError) or not isinstance(error, (RuntimeError, TypeError)):
        return
    if not re.search(r"\b(local|global)\b", str(error)):
        return
    name = _constructor(error.__traceback__)
    if name is None:
        return
    note = (
        f"autoglobal: the constructor of {name} uses its own weights, which are global as soon "
        'as it assigns them. Write global_scope(..., when="exit") to convert them when the block '
        "ends, or build it outside and assign it inside"
    )
    if hasattr(error, "add_note"):  # Python 3.11
        error.add_note(note)
    elif error.args and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]}\n{note}", *error.args[1:])


def _constructor(traceback: TracebackType | None) -> str | None:
    """The class of the innermost module whose ``__init__`` failed with a global tensor in it."""
    found = None
    while traceback is not None:
        frame = traceback.tb_frame
        module = frame.f_locals.get("self")
        if (
            frame.f_code.co_name == "__init__"
            and isinstance(module, nn.Module)
            and any(tensor.is_global for _, tensor in tensors(module))
        ):
            found = type(module).__name__
        traceback = traceback.tb_next
    return found
