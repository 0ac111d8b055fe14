"""The logger ``autoglobal``, which is silent until the program gives it a handler.

A line is written when what it tells is over, and one that cannot be written changes nothing: it
must neither leave a module half converted nor part the ranks, of which one alone may log.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from logging import DEBUG, INFO

__all__ = ["DEBUG", "INFO", "is_on", "say"]

_logger = logging.getLogger("autoglobal")
_logger.addHandler(logging.NullHandler())

# Whether a line of a level is wanted; to be asked before anything is made up for one.
is_on = _logger.isEnabledFor


def say(level: int, text: Callable[[], str]) -> None:
    """Write one line; an error in it, or of a handler's or a filter's own, goes to stderr."""
    try:
        _logger.log(level, text(), stacklevel=2)
    except Exception:
        # As logging.Handler.handleError does, which not every handler gets to.
        if logging.raiseExceptions and sys.stderr is not None:
            with suppress(Exception):
                traceback.print_exc()
