"""A scope that is open, or was: what it does with an assignment, and its record."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from .._signals import uninterrupted
from .._text import printable
from ..conversion.session import Session
from ..conversion.summary import ConversionRecord
from ..layout.spec import GlobalSpec, looks_at_global
from .deferred import Deferred
from .error_notes import add_note
from .stack import Frame


class ActiveScope(Frame, ConversionRecord):
    """One passage through a ``with global_scope(...)`` block, and its record; what ``as`` gives.

    ::

        with global_scope(placement, sbp, buffers=False) as scope:
            model.head = nn.Linear(4, 4)
            model.body = nn.BatchNorm1d(4)
        found = [one.path for one in scope.converted]
        assert found == ["head.weight", "head.bias", "body.weight", "body.bias"]
        assert scope.left[0].reason == "buffers=False"
        assert 0 < scope.seconds < 60
        print(scope)

    ``print(scope)`` shows up to 20 of each list, and the totals for each placement and sbp; where
    rich prints it, as tables. The record can be read at any time, and stays after the block; with
    ``when="exit"`` most of it is there as the block ends. It is this rank's own: reading it tells
    the other ranks nothing. It holds no tensor and no module.

    The same numbers go to ``logging.getLogger("autoglobal")``, in one line on rank 0 at INFO as the
    scope closes, and at DEBUG in one line for each assignment that had something to convert.

    A path starts at the name that is assigned, and, once the block is over, at the topmost module
    that was assigned to. A scope can be copied and pickled: a copy is the record, and not open.

    Attributes:
        spec: what was asked for.
        left_alone: how many global tensors there are, once the block is over, in the modules that
            were added to, besides those in ``converted`` and ``kept``: they are as they were.
        seconds: how long this rank took to plan, agree and convert, with waiting for the others in
            it. The rest of the block does not count, nor what OneFlow is still doing afterwards:
            its operations only begin where they are called.
        sent: the bytes that this rank has sent to others for this scope. Counted are the values of
            tensors, as they were on the way (half types go through float32 on CPU), and what the
            ranks say to agree: 64 bytes at least each time. OneFlow's own broadcast of a large
            tensor, which is done inside of ``to_global``, is counted as the bytes of the tensor,
            sent by the rank that has it and received by each of the others. Not counted: what
            OneFlow moves to give another sbp to what is global already, as with
            ``existing="convert"``, and the headers of its messages. 0 with a single rank, and with
            ``check=False``.
        received: the bytes that this rank has received from others for this scope, as in ``sent``.
    """

    def __init__(self, spec: GlobalSpec, opened_by: object) -> None:
        Frame.__init__(self, opened_by)
        ConversionRecord.__init__(self)
        self.may_meet_again = spec.when == "assign"
        self.is_local = False
        self.spec = spec
        self.watch_global = looks_at_global(spec.existing, spec.same_placement)
        self._session = session = Session(spec, self, title=self._title, is_scope=True)
        self.block = session.block
        self.deferred = Deferred(session) if spec.when == "exit" else None
        self.handler = session if self.deferred is None else self.deferred

    def __getstate__(self) -> dict[str, Any]:
        return {**ConversionRecord.__getstate__(self), "spec": self.spec}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Frame.__setstate__(self, {})  # a copy is the record alone
        ConversionRecord.__setstate__(self, state)

    @property
    def waiting(self) -> list[str]:
        """With ``when="exit"``, what is to be converted as the block ends, by its path.

        The first word is the class of the module that the path starts from.
        """
        return [] if self.deferred is None else self.deferred.waiting()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return printable(f"<{self._title()}, {state}: {self._counts()}>")

    def _title(self) -> str:
        return f"global_scope({self.spec.placement}, {self.spec.rules})"

    def end(self, error: BaseException | None) -> None:
        """Do what is due as the block ends, ``error`` being how, unless that is done."""
        session: Session | None = getattr(self, "_session", None)
        if session is None:
            return
        what = "the end of the scope"
        if error is not None:
            # The error is the user's: whatever it does when it is looked at, the scope has to end.
            # What a signal's handler raises is not, and comes afterwards.
            with uninterrupted, suppress(Exception):
                add_note(error, self.spec.when == "assign")
        try:
            with session.running(what, left_by=error):
                session.note_unhooked(self.unhooked)
                if error is None and self.deferred is not None:
                    session.convert(self.deferred.add_to, "close", "", what)
                elif error is None:
                    session.warn()
                    session.meet("close", what)
        finally:
            # The record may stay for long, and needs none of these.
            self.handler = self.deferred = None
            del self._session
