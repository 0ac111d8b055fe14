"""Local OneFlow tensors become global as they are assigned to a module.

::

    with global_scope(placement, sbp):
        model.new = nn.Parameter(flow.zeros(4, 4))  # global from here on
"""

from ._oneflow import require_oneflow

require_oneflow()

from ._version import __version__  # noqa: E402
from .errors import (  # noqa: E402
    AutoglobalError,
    ConversionError,
    OneFlowMissing,
    SpecError,
    SpecTypeError,
)
from .plan import Record  # noqa: E402
from .scope import ActiveScope, global_scope  # noqa: E402

__all__ = [
    "ActiveScope",
    "AutoglobalError",
    "ConversionError",
    "OneFlowMissing",
    "Record",
    "SpecError",
    "SpecTypeError",
    "__version__",
    "global_scope",
]
