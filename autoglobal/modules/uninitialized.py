"""Uninitialized Parameters: those of OneFlow's own layers that hold nothing yet.

A stock layer assigns its Parameters as uninitialised memory and fills them afterwards, by then on
the global tensor. To compare and send that memory would be work for nothing. Known are only those
layers of which every assignment is of that kind, and whose own ``reset_parameters`` comes next.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any

import oneflow as flow
from oneflow import nn

from .._compat import Module

_LAYERS: tuple[Any, ...] = (
    *(nn.Linear, nn.Embedding, nn.LayerNorm, nn.GroupNorm),
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)
_INITIALISERS = ("kaiming_uniform_", "uniform_", "normal_", "ones_", "zeros_")


def _is_from(file: str | None, function: Any) -> bool:
    # Not where another library has replaced it before, or wrapped it.
    code = getattr(function, "__code__", None)
    return code is not None and code.co_filename == file


def _constructors() -> dict[CodeType, Any]:
    known = {}
    for kind in _LAYERS:
        file = sys.modules[kind.__module__].__file__
        constructor, reset = vars(kind).get("__init__"), vars(kind).get("reset_parameters")
        if _is_from(file, constructor) and _is_from(file, reset):
            known[constructor.__code__] = (kind, reset)
    return known


_initialisers = [(name, getattr(nn.init, name, None)) for name in _INITIALISERS]
_originals = all(_is_from(nn.init.__file__, function) for _, function in _initialisers)
_known = _constructors() if _originals else {}


def is_uninitialized(module: Module, name: str, frame: FrameType) -> bool:
    """Whether what the code of ``frame`` assigns to ``module`` is still to be filled."""
    found = _known.get(frame.f_code)
    if found is None:
        return False
    kind, reset = found
    return (
        name in ("weight", "bias")
        and isinstance(module, kind)
        # Who replaces one of these, often to save time before a checkpoint is loaded, may fill
        # nothing, and would find other numbers on each rank.
        and type(module).reset_parameters is reset
        and "reset_parameters" not in vars(module)
        and not any("__getattribute__" in vars(one) for one in type(module).__mro__[:-1])
        and all(getattr(flow.nn.init, one, None) is its for one, its in _initialisers)
        # The one given to an Embedding, which holds values.
        and frame.f_locals.get("_weight") is None
    )
