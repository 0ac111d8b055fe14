"""What a scope or a call costs this rank: seconds, and bytes to and from other ranks."""

from __future__ import annotations

from time import perf_counter

from .ranks import traffic


class Meter:
    """Counts while it is entered; entered once more inside, it goes on counting once."""

    __slots__ = ("_depth", "_received", "_seconds", "_sent", "received", "seconds", "sent")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.sent = 0
        self.received = 0
        self._depth = 0

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1:
            self._sent, self._received = traffic.sent, traffic.received
            self._seconds = perf_counter()

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self.seconds += perf_counter() - self._seconds
            self.sent += traffic.sent - self._sent
            self.received += traffic.received - self._received
