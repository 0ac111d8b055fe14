"""Local OneFlow tensors become global as they are assigned to a module.

::

    with global_scope(placement, sbp):
        model.new = nn.Parameter(flow.zeros(4, 4))  # global from here on

- ``global_scope``: a block, or a function, in which what is assigned becomes global
- ``local_scope``: a block, or a function, in which nothing does
- ``auto_global``: the same for all instances of a class
- ``local_to_global``: a module that exists already
- ``optimizer_to_global``: the optimizer that goes with it
- ``current_scope``: the scope in force
- ``preview``: what that would do, for a cluster that need not be there
- ``describe``: what a module holds, where, and warnings

What is done is told to the logger ``autoglobal``, which is silent until it is given a handler.
"""

# For Python 3.8, on which the doctor runs too.
from __future__ import annotations

from ._version import __version__
from .commands.installation import named_on_the_command_line, require_installation

# ``python -m autoglobal doctor`` comes through here first, and has to run where nothing below does.
if not named_on_the_command_line():
    require_installation()

    from .conversion.local_to_global import local_to_global
    from .conversion.optimizer_to_global import optimizer_to_global
    from .conversion.records import Kept, Left, Record
    from .conversion.summary import ConversionRecord
    from .errors import (
        AutoglobalError,
        ConversionError,
        DivergenceError,
        HookRemovedWarning,
        LateRuleWarning,
        NeverEnteredWarning,
        OneFlowMissing,
        SharedMemoryWarning,
        SpecError,
        SpecTypeError,
        SplitUpdateWarning,
        TiedRulesWarning,
        UnconvertedWarning,
        UnusedRuleWarning,
    )
    from .layout.placed import Placed, nearest
    from .preview import Preview, preview
    from .report.describe import Report, describe
    from .scopes.active import ActiveScope
    from .scopes.auto_global import auto_global
    from .scopes.scope import current_scope, global_scope, local_scope

__all__ = [
    "ActiveScope",
    "AutoglobalError",
    "ConversionError",
    "ConversionRecord",
    "DivergenceError",
    "HookRemovedWarning",
    "Kept",
    "LateRuleWarning",
    "Left",
    "NeverEnteredWarning",
    "OneFlowMissing",
    "Placed",
    "Preview",
    "Record",
    "Report",
    "SharedMemoryWarning",
    "SpecError",
    "SpecTypeError",
    "SplitUpdateWarning",
    "TiedRulesWarning",
    "UnconvertedWarning",
    "UnusedRuleWarning",
    "__version__",
    "auto_global",
    "current_scope",
    "describe",
    "global_scope",
    "local_scope",
    "local_to_global",
    "nearest",
    "optimizer_to_global",
    "preview",
]


def __dir__() -> list[str]:
    """The public names alone, because ``from autoglobal import <TAB>`` offers what is here."""
    return __all__
