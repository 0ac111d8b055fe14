"""Notes on errors of OneFlow about local and global tensors, as they leave a scope.

OneFlow's messages there name neither a module nor a way out: "Only local tensors have 'device'",
"Got input tensors with inconsistent attributes".
"""

from __future__ import annotations

import re
from types import FrameType

from oneflow import nn

from .._text import printable
from ..errors import AutoglobalError
from ..modules.tree import tensors

MARK = "autoglobal: "
# Words of OneFlow's, not of those who write "local" or "global" in an error of their own.
_ABOUT_LOCAL_AND_GLOBAL = re.compile(
    r"Only (local|global) tensors? |inconsistent attributes|global, local|local, global"
    r"|expected for global tensor|in current model is global tensor"
    r"|random source op only support broadcast or split"
)
_MIXED = re.compile(r"inconsistent attributes|Only (local|global) tensor can be assigned")


def add_note(error: BaseException, at_once: bool) -> None:
    """Say what to write, where OneFlow raised over a tensor that is global, or still local.

    ``at_once``: what is assigned in the scope is global at once, as with ``when="assign"``.
    """
    if isinstance(error, AutoglobalError) or not isinstance(error, (RuntimeError, AssertionError)):
        return
    text = error.args[0] if error.args else None
    if not isinstance(text, str) or MARK in text or not _ABOUT_LOCAL_AND_GLOBAL.search(text):
        return
    note = _note(text, _frames(error), at_once)
    if note is not None:
        error.args = (f"{text}\n{MARK}{printable(note)}", *error.args[1:])


def _note(text: str, frames: list[FrameType], at_once: bool) -> str | None:
    name = _constructor(frames) if at_once else None
    if name is not None:
        return (
            f"the constructor of {name} uses its own weights, which are global as soon as it "
            'assigns them. Write global_scope(..., when="exit") to convert them when the block '
            "ends, or build it outside and assign it inside"
        )
    if "in current model is global tensor" in text:
        return (
            "the module was made global before its checkpoint came. Write "
            'global_scope(..., when="exit") around a function that builds and loads a module, or '
            "load it outside and assign it inside. A global module takes what "
            "flow.load(file, global_src_rank=0) gives, and numpy arrays, such as PyTorch's weights"
        )
    if not _MIXED.search(text):
        return None
    if any("/oneflow/optim/" in frame.f_code.co_filename for frame in frames):
        return (
            "the optimizer's state is still local and its Parameters are global. Write "
            "optimizer_to_global(optimizer) after they have become so"
        )
    exit_ = (
        'or global_scope(..., when="exit"), where what is assigned is local until the block ends'
        if at_once
        else 'and mind that with when="exit" what is assigned is local until the block ends'
    )
    return (
        "a local tensor has met a global one. Write x.to_global(placement, sbp) for what goes into "
        f"a global module, {exit_}; print(describe(module)) shows what in it is local"
    )


def _frames(error: BaseException) -> list[FrameType]:
    found, step = [], error.__traceback__
    while step is not None:
        found.append(step.tb_frame)
        step = step.tb_next
    return found


def _constructor(frames: list[FrameType]) -> str | None:
    """The class of the innermost module whose ``__init__`` failed with a global tensor in it."""
    found = None
    for frame in frames:
        first = frame.f_code.co_varnames[:1]  # self, by whatever name
        module = frame.f_locals.get(first[0]) if first else None
        if (
            frame.f_code.co_name == "__init__"
            and isinstance(module, nn.Module)
            and any(tensor.is_global for _, tensor in tensors(module))
        ):
            found = type(module).__name__
    return found
