"""Values and names as a message shows them: short, printable, and without other ranks.

Bad input is often a model, or a tensor where its sbp belongs. The text of a model fills pages; for
that of a global tensor OneFlow needs every rank, and aborts or hangs where one errs alone.
"""

from __future__ import annotations

import re
import reprlib
import sys
from typing import Any

_LONGEST = 200


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxother = self.maxstring = _LONGEST

    def repr1(self, x: Any, level: int) -> str:
        kind = type(x)
        # Not imported: errors are told too where it cannot be.
        flow = sys.modules.get("oneflow")
        if flow is not None and issubclass(kind, flow.Tensor):
            return f"<{'global' if x.is_global else 'local'} {kind.__name__}, {tuple(x.shape)}>"
        if flow is not None and issubclass(kind, flow.nn.Module):
            return f"<module {kind.__name__}>"
        return super().repr1(x, level)


_short = _Short()


def short_repr(value: Any) -> str:
    """``value`` in one line."""
    return re.sub(r"\s*\n\s*", " ", _short.repr(value))


def printable(text: str) -> str:
    """The text with what cannot be printed, such as codes for colours, written out.

    Names come from the user's code, and may hold anything: a line that they break could pass for
    another line of a log.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def one_line(error: BaseException) -> str:
    """An exception, as another rank's message shows it."""
    try:
        text = str(error)[:500]
    except Exception:  # the error is the user's, and its __str__ may be broken
        text = "(its text cannot be shown)"
    return f"{type(error).__name__}: {text}"
