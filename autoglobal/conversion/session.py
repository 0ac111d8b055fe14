"""One passage through a scope, or one call: it plans, converts, and records what it did."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ..errors import (
    DivergenceError,
    LateRuleWarning,
    TiedRulesWarning,
    UnusedRuleWarning,
)
from ..layout.spec import GlobalSpec
from ..modules.registry import STORE_OF, Before, Module, Slot, join, store
from ..modules.uninitialized import is_fresh
from ..ranks.agreement import Event, Line, agree
from ..ranks.collectives import can_meet, this_rank
from ..scopes.deferred import Assigned
from ..tensors.convert import Tensor
from . import log
from .apply import Work, is_pending, pending
from .items import Met
from .meter import Meter
from .plan import Plan
from .records import Records
from .summary import headline


class Session:
    """The state of one scope that is open, or of one call.

    ``own`` are global tensors that do not count as existing ones; ``lasts``: it may come upon what
    it has made global itself. Whoever enters its ``meter`` has it count what the session costs.
    """

    def __init__(
        self, spec: GlobalSpec, own: Iterable[Tensor] = (), *, lasts: bool = False
    ) -> None:
        self.spec = spec
        self.records = Records(lasts)
        self.meter = Meter()
        self._work = Work(spec, self.records, own)
        self._used: set[str] = set()
        self._conflicts: list[str] = []
        self._late: dict[str, str] = {}
        self._assigned = Assigned()  # with when="exit"
        self._parted = False  # the ranks have met for the last time in this one
        self._tells = False  # inside of telling()
        self._oneflows: BaseException | None = None  # an error of OneFlow's own, meanwhile

    def assign(
        self, forward: Callable[[], Any], module: Module, slot: Slot, name: str, value: Any
    ) -> Any:
        """Let OneFlow register ``value`` by ``forward()``, then make global what is local in it.

        OneFlow goes first because it may refuse (a name that is a class attribute, say), which
        has to be known before anything is sent. Where the conversion fails afterwards the module
        is as it was before.
        """
        if is_pending(module, name, value):
            return self._by_oneflow(forward)
        if self.spec.when == "exit":
            goes_on = id(value) in self._not_existing(module, slot, name, value)
            result = forward()
            (self._assigned.forget if goes_on else self._assigned.add)(module, name)
            return result
        plan = self._planned(module, slot, name, value)
        label = join(type(module).__name__, name)
        title = Line(label, f"the assignment of {label}")
        before, fresh, since, sent = None, False, self.records.count, False
        if plan.is_due:
            before = Before(module, name)
            if slot == "parameter" and can_meet():
                # The hook's caller, if nobody stands between.
                fresh = is_fresh(module, name, sys._getframe(3))
        token = pending.set((module, name, value))
        try:
            result = self._by_oneflow(forward)
        finally:
            pending.reset(token)
        if before is not None:
            if slot == "module" and store(module, STORE_OF[slot]).get(name) is not value:
                return result  # a class of its own mind keeps it elsewhere, or another one
            try:
                sent = self._apply(plan, "value", title, fresh=fresh)
            except BaseException:
                before.restore()
                raise
        self._over(plan, title, since, sent)
        return result

    def _planned(self, module: Module, slot: Slot, name: str, value: Any) -> Plan:
        root = type(module).__name__
        own = self._not_existing(module, slot, name, value)
        plan = Plan(self.spec, own, self._work.by_rule)
        if slot == "module":
            plan.add_tree(root, value, name)
        else:
            plan.add(root, module, name, slot, value)
        if self.spec.same_placement:
            plan.look_at(root, module, but=name)
        plan.settle()
        self._used |= plan.used
        self._late.update(plan.late)
        return plan

    def _by_oneflow(self, forward: Callable[[], Any]) -> Any:
        try:
            return forward()
        except Exception as error:
            if self._tells:
                self._oneflows = error
            raise

    def _not_existing(self, module: Module, slot: Slot, name: str, value: Any) -> Iterable[int]:
        """The ids of global tensors that are no find for ``existing="error"``."""
        if self.spec.existing != "error":
            return ()
        own = set(self._work.own)
        held = None if slot == "module" else store(module, STORE_OF[slot]).get(name)
        if held is not None and held.is_global:
            own.add(id(value))  # what is global goes on as such: an average that is updated
        return own

    def forget(self, module: Module, name: str) -> None:
        """With ``when="exit"``: the name was assigned again where nothing is converted."""
        self._assigned.forget(module, name)

    def forget_tree(self, module: Module) -> None:
        """With ``when="exit"``: a class that states its layout has taken the tree over."""
        self._assigned.forget_tree(module)

    def convert_tree(self, module: Module, progress: bool = False) -> None:
        """Make global what is local in a module that exists."""
        label = type(module).__name__
        plan = Plan(self.spec)
        plan.add_tree(label, module, "")
        plan.settle()
        self._used |= plan.used
        title = Line(label, f"the conversion of {label}")
        self._over(plan, title, 0, self._apply(plan, "value", title, progress))

    def convert_assigned(self) -> None:
        """With ``when="exit"``: make global what was assigned, as one value."""
        plan = Plan(self.spec)
        for root in self._assigned.roots():
            for path, owner, names in self._assigned.below(root):
                if names is None:
                    plan.add_tree(type(root).__name__, owner, path)
                else:
                    plan.add_own(type(root).__name__, owner, path, names)
            if self.spec.same_placement:
                plan.look_at(type(root).__name__, root)
        plan.settle()
        self._used |= plan.used
        title = Line("", "the end of the scope")
        self._over(plan, title, 0, self._apply(plan, "close", title))

    def _apply(
        self, plan: Plan, kind: str, title: Line, progress: bool = False, fresh: bool = False
    ) -> bool:
        """Carry the plan out; whether values were sent."""
        event = Event(kind, title, self.spec.timeout)
        try:
            sent = self._work.carry_out(plan, event, progress, fresh)
        except DivergenceError:
            self._parted = True
            raise
        self._conflicts += plan.conflicts
        return sent

    def _over(self, plan: Plan, title: Line, since: int, sent: bool) -> None:
        """Record what has stayed as it was, and log the event, which is over and done.

        ``since``: how many tensors had been converted before it.
        """
        stayed = self.records.note(plan.unchanged()) if plan.has_unchanged else 0
        if log.is_on(log.DEBUG) and (stayed or plan.is_due):
            made = self.records.converted[since:]
            nbytes, values = sum(one.nbytes for one in made), "sent" if sent else "not sent"
            what = f"{len(made)} made global, {nbytes} bytes here, values {values}"
            log.say(log.DEBUG, lambda: f"{title.text}: {what}; {stayed} stayed as they were")

    def tell_end(
        self, what: Callable[[], str], ended_by: type[BaseException] | None = None
    ) -> None:
        """Log on rank 0 what the whole scope or call, which ``what`` names, has done."""
        if log.is_on(log.INFO) and this_rank() == 0:
            by = "" if ended_by is None else f", ended by {ended_by.__name__}"
            log.say(log.INFO, lambda: f"{what()}{by}: {headline(self.records, self.meter)}")

    def note_attribute(self, module: Module, name: str, value: Tensor) -> None:
        """Record a local tensor that OneFlow has not registered."""
        why = "a plain attribute, which OneFlow does not register"
        self.records.note([Met(name, module, name, "attribute", value, why)])

    def warn(self, stacklevel: int) -> None:
        """Name the patterns that decided nothing, and those that differ over a tied tensor."""
        messages: list[tuple[str, type[Warning]]] = [
            (message, TiedRulesWarning) for message in self._conflicts
        ]
        messages += [(message, LateRuleWarning) for message in self._late.values()]
        patterns = self.spec.rules.patterns
        for pattern in patterns:
            # A last '*' for what the others leave over may have nothing to do.
            if pattern not in self._used and not (pattern == "*" == patterns[-1]):
                text = (
                    f"the rule {pattern!r} of sbp decided for no tensor: it matched nothing, or "
                    "only what an earlier rule or buffers="
                    f"{self.spec.buffers!r} decides. Patterns are matched against the path and "
                    "against OwnerClass.attribute. Correct it or leave it out"
                )
                messages.append((text, UnusedRuleWarning))
        for message, category in messages:
            warnings.warn(message, category, stacklevel=stacklevel + 1)

    def closed(self) -> None:
        """The scope has ended, on this rank."""
        self._meet("close", "the end of the scope")

    def left(self, error: BaseException) -> None:
        """It was left by an exception, which goes on."""
        # Where a generator is closed, or a program interrupted, the others may not come.
        if not isinstance(error, (GeneratorExit, KeyboardInterrupt)):
            with suppress(DivergenceError):
                self._meet("left", f"left the scope by {_say(error)}")

    @contextmanager
    def telling(self, what: str) -> Iterator[None]:
        """A block whose exceptions the other ranks are told at once, since no scope's end will.

        OneFlow's own errors are nobody else's.
        """
        self._tells = True
        try:
            yield
        except Exception as error:
            if error is not self._oneflows:
                with suppress(DivergenceError):
                    self._meet("refused", f"{what} was refused by {_say(error)}")
            raise
        finally:
            self._tells, self._oneflows = False, None

    def _meet(self, kind: str, text: str) -> None:
        if self.spec.check and not self._parted and can_meet():
            self._parted = True
            agree(Event(kind, Line("", text), self.spec.timeout))

    def close(self) -> None:
        """Let go of every tensor and module."""
        self.records.close()
        self._work.close()
        self._assigned.clear()


def _say(error: BaseException) -> str:
    try:
        text = str(error)[:500]
    except Exception:  # it is the user's, and may be broken
        text = "(its text cannot be shown)"
    return f"{type(error).__name__}: {text}"
