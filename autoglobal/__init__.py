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

What is done is told to the logger ``autoglobal``, which is silent until it is given a handler.
"""

from ._oneflow import require_oneflow

require_oneflow()

from ._version import __version__  # noqa: E402
from .active import ActiveScope  # noqa: E402
from .decorator import auto_global  # noqa: E402
from .errors import (  # noqa: E402
    AutoglobalError,
    ConversionError,
    DivergenceError,
    LateRuleWarning,
    OneFlowMissing,
    SpecError,
    SpecTypeError,
    SplitUpdateWarning,
    TiedRulesWarning,
    UnusedRuleWarning,
)
from .local import local_scope  # noqa: E402
from .migrate import local_to_global  # noqa: E402
from .optimizers import optimizer_to_global  # noqa: E402
from .records import Kept, Left, Record  # noqa: E402
from .scope import current_scope, global_scope  # noqa: E402

__all__ = [
    "ActiveScope",
    "AutoglobalError",
    "ConversionError",
    "DivergenceError",
    "Kept",
    "LateRuleWarning",
    "Left",
    "OneFlowMissing",
    "Record",
    "SpecError",
    "SpecTypeError",
    "SplitUpdateWarning",
    "TiedRulesWarning",
    "UnusedRuleWarning",
    "__version__",
    "auto_global",
    "current_scope",
    "global_scope",
    "local_scope",
    "local_to_global",
    "optimizer_to_global",
]
