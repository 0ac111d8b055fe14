"""Local OneFlow tensors become global as they are assigned to a module.

::

    with global_scope(placement, sbp):
        model.new = nn.Parameter(flow.zeros(4, 4))  # global from here on
"""

from ._oneflow import require_oneflow

require_oneflow()

from ._version import __version__  # noqa: E402
from .decorator import auto_global  # noqa: E402
from .errors import (  # noqa: E402
    AutoglobalError,
    ConversionError,
    OneFlowMissing,
    SpecError,
    SpecTypeError,
    SplitUpdateWarning,
    TiedRulesWarning,
    UnusedRuleWarning,
)
from .migrate import local_to_global  # noqa: E402
from .optimizers import optimizer_to_global  # noqa: E402
from .scope import ActiveScope, current_scope, global_scope, local_scope  # noqa: E402
from .session import Record  # noqa: E402

__all__ = [
    "ActiveScope",
    "AutoglobalError",
    "ConversionError",
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
