"""A scope that is open, or was: what it does with an assignment, and its record."""

from __future__ import annotations

from typing import Any

from oneflow import Tensor, nn
from rich.console import Group

from ..conversion.apply import is_pending
from ..conversion.meter import mark
from ..conversion.records import Kept, Left, Record
from ..conversion.session import Session
from ..conversion.summary import plain, pretty
from ..layout.spec import GlobalSpec
from ..modules import hook
from ..modules.registry import Module, slot_of
from .error_notes import add_advice
from .stack import Frame


class ActiveScope(Frame):
    """One passage through a ``with global_scope(...)`` block, and its record; what ``as`` gives.

    ::

        with global_scope(placement, sbp, buffers=False) as scope:
            model.head = nn.Linear(4, 4)
            model.body = nn.BatchNorm1d(4)
        assert [one.path for one in scope.converted] == ["weight", "bias", "weight", "bias"]
        assert scope.left[0].reason == "buffers=False"
        assert 0 < scope.seconds < 60
        print(scope)

    ``print(scope)`` shows up to 20 of each list, and the totals for each placement and sbp; where
    rich prints it, as tables. The record can be read at any time, and stays after the block; with
    ``when="exit"`` most of it is there as the block ends. It is this rank's own: reading it tells
    the other ranks nothing. It holds no tensor and no module.

    The same numbers go to ``logging.getLogger("autoglobal")``, in one line on rank 0 at INFO as the
    scope closes, and at DEBUG in one line for each assignment that had something to convert.

    Attributes:
        spec: what was asked for.
    """

    def __init__(self, spec: GlobalSpec, opened_by: object) -> None:
        super().__init__(opened_by)
        self.is_local = False
        self.spec = spec
        self.watch_global = spec.existing != "keep"
        self._session = Session(spec, lasts=spec.when == "assign")
        self.handler = _SessionHandler(self._session)

    @property
    def converted(self) -> list[Record]:
        """What became global, in the order in which it did."""
        return self._session.records.converted

    @property
    def kept(self) -> list[Kept]:
        """What was met, was global already and is as it was.

        Met is what lies below a module that is assigned. A global Parameter or buffer that is
        assigned by itself passes unseen unless ``existing`` is another than ``"keep"``: to look
        at it would cost every such assignment. What the scope itself has made global is in
        ``converted`` alone. Whoever is met twice is told once, with the path of the last time.
        """
        return self._session.records.kept

    @property
    def left(self) -> list[Left]:
        """What was met and is still local, each with the reason; met and told as in ``kept``.

        One that was made global afterwards under the same name is told in ``converted`` alone.
        Tensors that lie in a list or are attributes of a module that is assigned are not met.
        """
        return self._session.records.left

    @property
    def seconds(self) -> float:
        """How long this rank took to plan, agree and convert, with waiting for the others in it.

        The rest of the block does not count, nor what OneFlow is still doing afterwards: its
        operations only begin where they are called.
        """
        return self._session.meter.seconds

    @property
    def sent(self) -> int:
        """The bytes that this rank has sent to others for this scope.

        Counted are the values of tensors, as they were on the way (half types go through float32
        on CPU), and what the ranks say to agree: 64 bytes at least each time. OneFlow's own
        broadcast of a large tensor, which is done inside of ``to_global``, is counted as the bytes
        of the tensor, sent by the rank that has it and received by each of the others. Not
        counted: what OneFlow moves to give another sbp to what is global already, as with
        ``existing="convert"``, and the headers of its messages. 0 with a single rank, and with
        ``check=False``.
        """
        return self._session.meter.sent

    @property
    def received(self) -> int:
        """The bytes that this rank has received from others for this scope, as in ``sent``."""
        return self._session.meter.received

    def __str__(self) -> str:
        return plain(self._title(), self._session.records, self._session.meter)

    def __rich__(self) -> Group:
        return pretty(self._title(), self._session.records, self._session.meter)

    def __repr__(self) -> str:
        records, state = self._session.records, "closed" if self.closed else "open"
        return (
            f"<{self._title()}, {state}: {records.count} converted, {len(self.kept)} kept, "
            f"{len(self.left)} left local>"
        )

    def _title(self) -> str:
        return f"global_scope({self.spec.placement}, {self.spec.rules})"

    def forget(self, module: Module, name: str) -> None:
        """``name`` was assigned again inside a ``local_scope``."""
        self._session.forget(module, name)

    def taken_over(self, value: Any) -> None:
        if isinstance(value, nn.Module):
            self._session.forget_tree(value)

    def end(self, error: BaseException | None) -> None:
        """Do what is due as the block ends, ``error`` being how."""
        session = self._session
        ended_by = None if error is None else type(error)
        start = mark()
        try:
            self._meet(error)
        except BaseException as refusal:
            ended_by = type(refusal)
            raise
        finally:
            session.meter.add_since(start)
            session.close()
            session.tell_end(self._title, ended_by)
        if error is None:
            session.warn(stacklevel=4)

    def _meet(self, error: BaseException | None) -> None:
        """The last time that the ranks meet in this scope."""
        session = self._session
        if error is not None:
            add_advice(error, self.spec.when == "assign")
            session.left(error)
        elif self.spec.when == "exit":
            with session.telling("the end of the scope"):
                session.convert_assigned()
        else:
            session.closed()


class _SessionHandler:
    """Hands what the hook sees to a session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._meter = session.meter

    def on_assign(
        self, forward: hook.Forward, module: Module, via: str, name: Any, value: Any
    ) -> Any:
        if is_pending(module, name, value):
            return forward()
        slot = slot_of(module, via, name, value)
        if slot is None:
            result = forward()
            # Not where the class keeps it elsewhere, or it was never a module's state.
            if isinstance(value, Tensor) and module.__dict__.get(name) is value and value.is_local:
                self._session.note_attribute(module, name, value)
            return result
        start = mark()
        try:
            return self._session.assign(forward, module, slot, name, value)
        finally:
            self._meter.add_since(start)
