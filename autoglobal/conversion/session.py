"""A session: one passage through a scope, or one call, that plans, converts and records."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from oneflow import Tensor

from .._compat import Module, this_rank, world_size
from .._signals import uninterrupted
from .._text import one_line, printable
from ..errors import (
    DivergenceError,
    HookRemovedWarning,
    LateRuleWarning,
    SharedMemoryWarning,
    TiedRulesWarning,
    UnusedRuleWarning,
)
from ..layout.patterns import Pattern
from ..layout.rules import Decision
from ..layout.spec import GlobalSpec, looks_at_global
from ..layout.unused import Seen, refused, unused_rules
from ..modules.hook import Assignment, under_way
from ..modules.registry import STORE_OF, join, store
from ..modules.tree import topmost, walk
from ..modules.uninitialized import is_uninitialized
from ..ranks.agreement import (
    Block,
    Event,
    Proposal,
    Statement,
    agree,
    note_undone,
)
from ..ranks.agreement import current_block as current_block  # for scopes
from ..ranks.collectives import can_meet
from .apply import ReplacedBuffers, apply_plan, carry_ties
from .plan import ByRule, Plan, PlannedTensor, conflict
from .records import Records, mark
from .summary import DEBUG, INFO, headline, is_logged, write_log


class Session:
    """The state of one scope that is open, or of one call; the hook's handler for a scope.

    ``block`` is that scope or call, among those around it where the session is made. ``own`` are
    global tensors that do not count as existing ones. ``title`` names the session in the log, where
    its end is to be a line there.
    """

    def __init__(
        self,
        spec: GlobalSpec,
        records: Records | None = None,
        own: Iterable[Tensor] = (),
        title: Callable[[], str] | None = None,
        is_scope: bool = False,
    ) -> None:
        self.spec = spec
        self.block = Block()
        self.records = Records() if records is None else records
        self._title = title
        self._own = {id(tensor): tensor for tensor in own}  # and what is made global here
        self._by_rule: dict[int, ByRule] = {}
        self._buffers = ReplacedBuffers()
        self._used: set[Pattern] = set()
        self._seen: dict[Seen, None] = {}  # in their order, so that all ranks say the same
        self._conflicts: list[str] = []
        self._tied: dict[tuple[int, str], Decision] = {}
        self._late: dict[Pattern, str] = {}
        self._kept_otherwise: dict[Pattern, str] = {}
        self._unhooked: Sequence[str] = ()
        self._is_scope = is_scope
        self._is_whole = is_scope  # not one assignment of several, as of a decorated class
        self._is_over = False  # the other ranks wait for nothing more of it
        self._watches = False  # for errors of OneFlow's own, inside of running()
        self._oneflows: BaseException | None = None  # such an error

    def on_assign(self, assignment: Assignment) -> Any:
        """Let OneFlow register what is assigned, then make global what is local in it."""
        if assignment.kind is None:
            return self.pass_by(assignment)
        start = mark()
        try:
            return self.assign(assignment)
        finally:
            self.records.add_cost(start)

    def pass_by(self, assignment: Assignment) -> Any:
        """Let OneFlow have what it does not register, and note it where that is a local tensor."""
        result = assignment.forward()
        module, name, value = assignment.module, assignment.name, assignment.value
        # Not where the class keeps it elsewhere, or it was never a module's state.
        if isinstance(value, Tensor) and module.__dict__.get(name) is value and value.is_local:
            self.records.add_attribute(module, name, value)
        return result

    def assign(self, assignment: Assignment) -> Any:
        """Convert one assignment.

        OneFlow goes first because it may refuse (a name that is a class attribute, say), which
        has to be known before anything is sent. Where the conversion fails afterwards the module
        is as it was before.
        """
        plan = self._planned(assignment)
        with uninterrupted:
            result = self._carry_out(plan, assignment)
            self._is_over = not self._is_scope
            return result

    def _carry_out(self, plan: Plan, assignment: Assignment) -> Any:
        since = self.records.count_converted()
        kind, module, name = assignment.kind, assignment.module, assignment.name
        self.records.note_assigned(module)
        uninitialized = False
        if plan.is_due:
            assignment.keep_before()
            # On one rank nobody compares or sends, so that it makes no difference.
            if kind == "parameter" and world_size() > 1 and can_meet():
                uninitialized = is_uninitialized(module, name, assignment.frame)
        token = under_way.set(assignment)
        try:
            result = self._by_oneflow(assignment)
        finally:
            under_way.reset(token)
        label = f"{type(module).__name__}.{name}"
        proposal = self._proposal("value", Statement(label, f"the assignment of {label}"))
        if not plan.is_due:
            self._note(plan, proposal, (), since)
            return result
        if kind == "module" and module.__dict__["_modules"].get(name) is not assignment.value:
            return result  # the class keeps it elsewhere, or keeps another one
        if plan.conflicts:
            self._conflicts += [text for _, text in plan.conflicts]
        try:
            changing = self._apply(plan, proposal, uninitialized=uninitialized)
        except BaseException:
            assignment.undo()
            raise
        self._note(plan, proposal, changing, since)
        return result

    def _planned(self, assignment: Assignment) -> Plan:
        kind, module, name = assignment.kind, assignment.module, assignment.name
        root = type(module).__name__
        plan = Plan(self.spec, self.not_existing(assignment), self._by_rule)
        if kind == "parameter" or kind == "buffer":
            plan.add_tensor(root, module, name, kind, assignment.value)
        elif not self._is_done(assignment.value):
            plan.add_assigned(root, module, name, assignment.value)
        if self.spec.same_placement:
            plan.look_at(root, module, but=name)
        plan.settle()
        if self.spec.rules.decisions:
            self._learn(plan)
        return plan

    def _is_done(self, module: Module) -> bool:
        """Whether all in a tree was made global here, and there is nothing else to see in it.

        Building from the inside out assigns each tree to the next one, and to plan all of it anew
        each time takes several times as long as to look whether that is needed.
        """
        spec = self.spec
        sees = spec.rules.decisions or looks_at_global(spec.existing, spec.same_placement)
        return not sees and self.records.are_all_own(module)

    def _learn(self, plan: Plan) -> None:
        """Note what the rules have done in a plan."""
        self._used |= plan.used
        self._seen.update(dict.fromkeys(plan.seen()))
        self._tied.update(plan.ties)
        self._late.update(plan.late)
        self._kept_otherwise.update(plan.kept_otherwise)

    def _by_oneflow(self, assignment: Assignment) -> Any:
        try:
            return assignment.forward()
        except Exception as error:
            if self._watches:
                self._oneflows = error
            raise

    def not_existing(self, assignment: Assignment) -> Iterable[int]:
        """The ids of global tensors that ``existing="error"`` does not refuse."""
        if self.spec.existing != "error":
            return ()
        own, kind = set(self._own), assignment.kind
        if kind != "module" and kind is not None:
            held = store(assignment.module, STORE_OF[kind]).get(assignment.name)
            if held is not None and held.is_global:
                # A global tensor takes the place of a global one, such as an updated average.
                own.add(id(assignment.value))
        return own

    def convert(
        self,
        take_in: Callable[[Plan], None],
        event: Event,
        path: str,
        what: str,
        is_last: bool = True,
        **how: bool,
    ) -> None:
        """Make global what is local in a value that exists, which ``take_in`` adds to the plan.

        ``what`` this is, and the ``path`` that it is about, is what messages say. ``is_last``: the
        session has nothing else to do.
        """
        title = Statement(path, what)
        self._is_whole = True
        # No caller holds the plan, because the plan holds the tensors that are replaced.
        plan = Plan(self.spec)
        take_in(plan)
        plan.settle()
        if self.spec.rules.decisions:
            self._learn(plan)
        self._conflicts += [text for _, text in plan.conflicts]
        shared: list[str] = []
        proposal = self._proposal(event, title)
        if plan.is_due:
            # To see where memory lies waits for what is under way, such as a value from a rank.
            with proposal.waiting() if can_meet() else nullcontext():
                shared = [text for _, text in plan.in_one_memory()]
        self.warn(shared)
        with uninterrupted:
            changing = self._apply(plan, proposal, **how)
            self._note(plan, proposal, changing, 0)
            self._is_over = is_last

    def let(self, last: Callable[[], None]) -> None:
        """Do something else that the ranks agree on, with which the session is over."""
        with uninterrupted:
            last()
            self._is_over = True

    def _proposal(self, event: Event, title: Statement) -> Proposal:
        # A scope alone goes on where the ranks have differed over a value.
        leaves = event != "value" or not self._is_scope
        return Proposal(event, title, self.spec.timeout, self.block, leaves)

    def _apply(self, plan: Plan, proposal: Proposal, **how: bool) -> list[PlannedTensor]:
        """Carry a plan out; return what has changed."""
        changing = plan.changing()
        try:
            apply_plan(changing, proposal, self._buffers, self._put, check=self.spec.check, **how)
        except DivergenceError:
            raise  # on every rank
        except BaseException as error:
            note_undone(proposal, error)
            self._is_over = proposal.leaves and proposal.agreed
            raise
        return changing

    def _put(self, planned: PlannedTensor, tensor: Tensor, is_new: bool) -> None:
        """Note that ``tensor`` is in the places of a planned one now, and whether it is new."""
        if self.spec.existing == "error":
            self._own[id(tensor)] = tensor
        decision = planned.decision
        if decision is not None and decision.pattern is not None:
            by = ByRule(planned.spec, decision, tensor, planned.label, planned.held_at())
            self._by_rule[id(tensor)] = by
        if is_new:
            self.records.add_converted(planned, tensor)

    def _note(
        self,
        plan: Plan,
        proposal: Proposal,
        changing: Sequence[PlannedTensor],
        since: int,
    ) -> None:
        """Record what has stayed as it was, and log what has been done.

        ``since``: how many tensors had been converted before.
        """
        unchanged = plan.unchanged(changing)
        stayed = self.records.add_unchanged(unchanged) if unchanged else 0
        if is_logged(DEBUG) and (stayed or plan.is_due):
            made = self.records.converted[since:]
            nbytes = sum(one.nbytes for one in made)
            values = "sent" if proposal.sends_values else "not sent"
            what = f"{len(made)} made global, {nbytes} bytes here, values {values}"
            write_log(DEBUG, lambda: f"{proposal.title.text}: {what}; {stayed} stayed as they were")

    @contextmanager
    def running(self, what: str, left_by: BaseException | None = None) -> Iterator[None]:
        """The block with which the session ends: a whole call, or the end of a scope.

        ``left_by`` is the exception by which a scope was left before. Where the block is refused
        the other ranks are told at once, since no end of a scope will tell them; errors of
        OneFlow's own concern nobody else.
        """
        ended_by = left_by
        start = mark()
        self._watches = True
        try:
            # Where a generator is closed, or a program interrupted, the others may not come.
            says_so = not isinstance(left_by, (GeneratorExit, KeyboardInterrupt))
            if left_by is not None and says_so and not self._is_over:
                with suppress(DivergenceError):
                    self.meet("left", f"left the scope by {one_line(left_by)}")
            yield
        except BaseException as error:
            ended_by = error
            # A DivergenceError of the session's own all ranks have had, and are out of it.
            if (
                isinstance(error, Exception)
                and not isinstance(error, DivergenceError)
                and not self._is_over
                and error is not self._oneflows
            ):
                with suppress(DivergenceError):
                    self.meet("refused", f"{what} was refused by {one_line(error)}")
            raise
        finally:
            self._watches, self._oneflows = False, None
            self.records.add_cost(start)
            self.block.left_by = None  # this rank has left it too
            self._let_go()
            if self._title is not None:
                self.log_end(self._title, ended_by)

    def meet(self, event: Event, text: str) -> None:
        """Meet the other ranks for the last time in this session."""
        with uninterrupted:
            if self.spec.check and can_meet():
                agree(self._proposal(event, Statement("", text)))
            self._is_over = True

    def _let_go(self) -> None:
        """Let go of every tensor and module."""
        self.records.settle()
        if self._is_whole:
            with uninterrupted:
                carry_ties()
        self._buffers.close()
        self._own.clear()
        self._by_rule.clear()
        self._seen.clear()

    def log_end(self, title: Callable[[], str], ended_by: BaseException | None = None) -> None:
        """Log on rank 0 what the whole scope or call has done."""
        if is_logged(INFO) and this_rank() == 0:
            by = "" if ended_by is None else f", ended by {type(ended_by).__name__}"
            write_log(INFO, lambda: f"{title()}{by}: {headline(self.records)}")

    def _ties(self) -> Iterator[str]:
        """What there is to say of tensors that were tied once they were global.

        The assignment of such a tensor by itself passes unseen, so that they are looked for. The
        rules that match such a name are used.
        """
        rules = self.spec.rules
        specific = {one.target for one in rules.decisions if one.is_specific}
        if not self._by_rule or not specific:
            return
        firsts: dict[int, str] = {}
        others: list[tuple[ByRule, str, Decision]] = []
        for root in topmost(self.records.assigned()):
            for node in walk(root, root=type(root).__name__):
                for name, tensor in store(node.module, "_parameters").items():
                    by = self._by_rule.get(id(tensor))
                    if by is None or by.spec is not self.spec:
                        continue
                    label, place = join(node.label, name), (id(node.module), name)
                    if place in by.places:
                        firsts.setdefault(id(tensor), label)
                        continue
                    # Of one that passed unseen the path was its name.
                    stated = self._tied.get(place) or rules.stated(type(node.module), name)
                    if stated is None or stated.pattern is None:
                        continue
                    self._used.add(stated.pattern)
                    if stated.is_specific and stated.target != by.decision.target:
                        others.append((by, label, stated))
        for by, label, stated in others:
            yield conflict(firsts.get(id(by.tensor), by.label), by.decision, label, stated)

    def note_unhooked(self, methods: Sequence[str]) -> None:
        """Somebody has taken the hook off these methods of ``nn.Module`` while this was open."""
        self._unhooked = methods

    def warn(self, shared: Sequence[str] = ()) -> None:
        """Name the patterns that decided nothing, and those that differ over a tied tensor.

        ``shared`` is what there is to say of memory that Parameters share.

        Raises :class:`ConversionError` for the former with ``unused="error"``.
        """
        if not (self.spec.rules.decisions or self._conflicts or shared or self._unhooked):
            return
        ties = [*self._conflicts, *self._ties()]
        unused = unused_rules(self.spec, self._used, self._seen, self._kept_otherwise)
        if unused and self.spec.unused == "error":
            raise refused(unused)
        messages: list[tuple[str, type[Warning]]] = [
            *((message, TiedRulesWarning) for message in ties),
            *((message, LateRuleWarning) for message in self._late.values()),
            *((message, UnusedRuleWarning) for message in unused),
            *((message, SharedMemoryWarning) for message in shared),
            *((_of_unhooked(one), HookRemovedWarning) for one in self._unhooked),
        ]
        self._conflicts, self._late = [], {}
        for message, category in messages:
            warn_caller(message, category)


def _of_unhooked(method: str) -> str:
    return (
        f"nn.Module.{method} was set inside of the scope to a function that does not come to the "
        "scope's hook, such as the one that was there before another library's patch. Expected: "
        "what is patched inside of a scope calls what it finds. Received: another method; what was "
        "assigned by it may have stayed local. Undo the patch after the scope, or write "
        "local_to_global(module, placement, sbp)"
    )


def tell_refused(what: str, error: Exception, check: bool, timeout: float) -> None:
    """Tell the other ranks that something was refused before there could be a session."""
    if check and can_meet():
        text = f"{what} was refused by {one_line(error)}"
        with suppress(DivergenceError):
            agree(Proposal("refused", Statement("", text), timeout, Block()))


def warn_caller(message: str, category: type[Warning]) -> None:
    """Warn the caller of the library, on rank 0.

    Where a filter makes an error of it that is raised on every rank, or the others would go on.
    """
    depth = _depth_of_the_caller()
    others = nullcontext() if this_rank() == 0 else warnings.catch_warnings(record=True)
    with others:
        warnings.warn(printable(message), category, stacklevel=depth)


def warn_at(file: str, line: int, message: str, category: type[Warning]) -> None:
    """Warn of a line of the program, once, on rank 0."""
    if this_rank() == 0:
        # Python's own key in a registry has no file.
        registry = _told.setdefault(file, {})
        warnings.warn_explicit(printable(message), category, file, line, registry=registry)


_told: dict[str, dict[Any, Any]] = {}


def _depth_of_the_caller() -> int:
    """The ``stacklevel`` in the function that calls this of the nearest code that is not ours."""
    ours, depth, frame = __name__.partition(".")[0], 1, sys._getframe(1)
    while frame.f_back is not None:
        # Code that exec() runs may have no __name__.
        if str(frame.f_globals.get("__name__")).partition(".")[0] != ours:
            break
        frame, depth = frame.f_back, depth + 1
    return depth
