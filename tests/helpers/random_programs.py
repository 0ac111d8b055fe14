"""Random programs, of which one rank often has another one: all ranks end, and end alike.

A program: ``python -m autoglobal.commands.launcher --ranks 2 --limit 900 --
tests/helpers/random_programs.py 1000 [FIRST SEED]`` runs the same programs on every rank and in
every run, and shows the one that fails or hangs.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import oneflow as flow
from oneflow import nn

from autoglobal import (
    DivergenceError,
    auto_global,
    current_scope,
    global_scope,
    local_scope,
    local_to_global,
)
from tests.helpers.random_statements import Block, Call, Case, Make, Put, Scope, Try, draw
from tests.helpers.random_trees import Fault, gathered
from tests.helpers.scopes import clean
from tests.helpers.support import (
    S0,
    B,
    Model,
    assert_global,
    assert_local,
    counted,
    parameter,
    tensor,
)

RANK = flow.env.get_rank()
WORLD = flow.env.get_world_size()
P = flow.placement("cpu", list(range(WORLD)))
SBP = {"B": B, "S0": S0}
TIMEOUT = 10  # seconds; a rank that waits for longer ends with exit code 124
ABSENT, LOCAL, MODULE = "absent", "local", "module"
RESULT, TOLD, OWN = range(3)
OUTCOMES = {Fault: OWN, DivergenceError: TOLD}


class Failed(Exception):
    """What a rank found wrong, with the program."""


class Plain(nn.Module):
    """Its constructor does what it is told."""

    def __init__(self, fill) -> None:
        super().__init__()
        fill(self)


@cache
def stated(sbp: str, live: bool) -> type[Plain]:
    """A class that states its layout, if this is to have an effect."""
    kind = type("Stated", (Plain,), {})
    return auto_global(P, SBP[sbp], timeout=TIMEOUT)(kind) if live else kind


@dataclass
class Entry:
    """A name of a module, and what has to be there: nothing, a module, a local tensor, or an sbp.

    It holds the module too, so that what a scope has seen lives equally long on all ranks.
    """

    owner: nn.Module
    name: str
    number: int
    shape: tuple[int, ...]
    buffer: bool
    state: str = ABSENT

    def converted(self, sbp: str) -> tuple:
        """Note that it is global now; what the ranks must have alike."""
        self.state = "B" if self.buffer else sbp
        return (type(self.owner).__name__, self.name, self.shape, self.state)

    def check(self, values: bool) -> None:
        held = {**self.owner._parameters, **self.owner._buffers, **self.owner._modules}
        if self.state == ABSENT:
            assert self.name not in held, f"{self.name} was refused, and is there"
            return
        found = held[self.name]
        if self.state == MODULE:
            assert isinstance(found, nn.Module)
        elif self.state == LOCAL:
            assert_local(found, numbers(self.number, self.shape, RANK * values))
        else:
            # The values of the first rank.
            assert_global(found, numbers(self.number, self.shape, 0), P, SBP[self.state])


def numbers(number: int, shape: tuple[int, ...], rank: int) -> np.ndarray:
    """What a rank's own tensor holds, with the number of the statement that makes it."""
    return counted(*shape, start=100_000 * rank + 40 * number)


@dataclass
class Opened:
    """A scope that is open, and what its end has to convert."""

    sbp: str
    when: str
    waiting: list[Entry] = field(default_factory=list)


class Run:
    """A program, run with the scopes or, to know what it would do alone, without them.

    ``log`` has what the ranks must have alike: each conversion and each end of a scope that
    went well. ``steps`` has more, what they may be told of too: the options of each scope, and
    the order of all assignments. ``errors`` has every error that was seen.
    """

    def __init__(self, block: Block, values: bool, live: bool) -> None:
        self.values, self.live = values, live
        self.module = Model()
        self.entries: list[Entry] = []
        self.scopes: list[Opened] = []
        self.log: list[object] = []
        self.steps: list[object] = []
        self.errors: list[tuple[type, str]] = []
        self.outcome = RESULT  # that of the whole program
        # All that a program does lies in one scope. So its end is where all ranks come to, and
        # no rank waits for one that has ended.
        try:
            self._scope(Scope("B", "assign", block))
        except Exception as error:
            self._note(error)
            self.outcome = OUTCOMES[type(error)]

    def _note(self, error: Exception) -> None:
        self.errors.append((type(error), str(error)))
        assert type(error) in OUTCOMES, repr(error)

    def _block(self, block: Block) -> None:
        for one in block:
            if isinstance(one, Put):
                self._put(self.module, one)
            elif isinstance(one, Make):
                self._make(one)
            elif isinstance(one, Call):
                self._call(one)
            elif isinstance(one, Scope):
                self._scope(one)
            elif isinstance(one, Try):
                self._try(one)
            else:
                raise Fault("own words")

    def _scope(self, one: Scope) -> None:
        opened = Opened(one.sbp, one.when)
        options = {"when": one.when, "timeout": TIMEOUT}
        self.scopes.append(opened)
        self.steps.append((one.sbp, one.when))
        try:
            with global_scope(P, SBP[one.sbp], **options) if self.live else nullcontext():
                self._block(one.body)
        finally:
            self.scopes.pop()
        # The end may sort by module what it converts.
        self.log.append(["end", *sorted(entry.converted(one.sbp) for entry in opened.waiting)])

    def _try(self, one: Try) -> None:
        try:
            self._block(one.body)
        except Exception as error:
            self._note(error)
            self._put(self.module, one.fallback)

    def _tensor(self, put: Put, owner: nn.Module, name: str, at: int = 0) -> Entry:
        """Assign a local tensor, the one with this number in the statement."""
        number = 10 * put.number + at
        buffer = put.what == "buffer" or at == 2
        entry = Entry(owner, name, number, put.shape, buffer)
        self.entries.append(entry)
        self.steps.append((name, put.shape))
        array = numbers(number, put.shape, RANK * self.values)
        if buffer:
            owner.register_buffer(name, tensor(array))
        else:
            setattr(owner, name, parameter(array))
        entry.state = LOCAL
        return entry

    def _tree(self, put: Put) -> tuple[Model, list[Entry]]:
        """Two Parameters and a buffer, all local."""
        with local_scope() if self.live else nullcontext():
            root, inner = Model(), Model()
            root.inner = inner
            places = [(root, "w"), (inner, "w"), (inner, "b")]
            return root, [
                self._tensor(put, owner, f"{put.name}_{name}", at)
                for at, (owner, name) in enumerate(places)
            ]

    def _module(self, owner: nn.Module, name: str, value: nn.Module) -> None:
        entry = Entry(owner, name, 0, (), False)
        self.entries.append(entry)
        setattr(owner, name, value)
        entry.state = MODULE

    def _put(self, owner: nn.Module, put: Put, sbp: str | None = None) -> None:
        """One assignment; ``sbp`` is what the class of the owner states."""
        if put.what == "tree":
            tree, made = self._tree(put)
            self._module(owner, put.name, tree)
        else:
            made = [self._tensor(put, owner, put.name)]
        if sbp is None and self.scopes[-1].when == "exit":
            self.scopes[-1].waiting += made
        else:
            sbp = sbp or self.scopes[-1].sbp
            self.log.append([put.name, *(entry.converted(sbp) for entry in made)])

    def _make(self, one: Make) -> None:
        def fill(module: nn.Module) -> None:
            for at, part in enumerate(one.parts):
                if at == one.fault:
                    raise Fault("own words")
                self._put(module, part, one.sbp)
            if one.fault == len(one.parts):
                raise Fault("own words")

        kind = stated(one.sbp, self.live) if one.sbp else Plain
        self._module(self.module, one.name, kind(fill))

    def _call(self, one: Call) -> None:
        tree, made = self._tree(one.tree)
        if self.live:
            local_to_global(tree, P, SBP[one.sbp], timeout=TIMEOUT)
        self.log.append(["call", *(entry.converted(one.sbp) for entry in made)])


def rest_in_step(case: Case) -> Block | None:
    """The statements behind the only one that differs, if they must be done alike.

    They must where all that differs lies in a scope that every rank has, and every rank catches
    what leaves the scope: all ranks leave it with an error, or none does.
    """
    usual, other = case.usual, case.other
    at = next((at for at, (x, y) in enumerate(zip(usual, other)) if x != y), len(usual))
    if len(usual) != len(other) or at == len(usual) or usual[at + 1 :] != other[at + 1 :]:
        return None
    one, two = usual[at], other[at]
    if not (isinstance(one, Try) and isinstance(two, Try) and one.fallback == two.fallback):
        return None
    if len(one.body) != 1 or len(two.body) != 1:
        return None
    within = [one.body[0], two.body[0]]
    if not all(isinstance(scope, Scope) for scope in within):
        return None
    # Where the time of conversion differs there is no assignment that is made alike.
    return usual[at + 1 :] if len({scope[:2] for scope in within}) == 1 else None


def same_on_all(words: object) -> bool:
    return len(set(gathered(zlib.crc32(repr(words).encode())))) == 1


def goes_on() -> None:
    """The job goes on: no rank was left a message behind."""
    m = Model()
    with global_scope(P, S0, timeout=TIMEOUT):
        m.new = parameter(counted(8, 4, start=1000 * RANK))
    assert_global(m.new, counted(8, 4), P, S0)


def check(case: Case) -> str:
    """Run the case on this rank, and say how it ended: "right", "caught" or "told".

    What all ranks do together comes first. So a rank that finds something wrong leaves none alone.
    """
    assert same_on_all(case), "the ranks drew other cases"
    own = case.other if case.odd == RANK else case.usual
    plans = [Run(block, case.values, live=False) for block in (case.usual, case.other)]
    began = time.monotonic()
    done = Run(own, case.values, live=True)
    seconds = time.monotonic() - began
    unpatched, scope = clean(), current_scope()
    outcomes, saw_errors = gathered(done.outcome), gathered(len(done.errors))
    alike = same_on_all(done.log)
    goes_on()

    kinds = [kind for kind, _ in done.errors]
    story = f"outcomes {outcomes}, errors {done.errors}, log {done.log}"
    assert unpatched, "still patched"
    assert scope is None, scope
    assert seconds < TIMEOUT, f"{seconds:.1f} s"
    assert alike, f"the ranks converted other things: {story}"
    for entry in done.entries:
        entry.check(case.values)
    assert len({outcome == RESULT for outcome in outcomes}) == 1, f"not all alike: {story}"
    if plans[0].log == plans[1].log:
        plan = plans[case.odd == RANK]
        is_as_alone = (done.log, done.errors) == (plan.log, plan.errors)
        # Another sbp, or another order, is told too where it makes no difference.
        may_be_told = plans[0].steps != plans[1].steps or "sbp" in case.differences
        assert is_as_alone or may_be_told, f"not as alone: {story}"
        if is_as_alone:
            return "right"
    assert all(saw_errors), f"not all were told: {saw_errors}, {story}"
    if DivergenceError in kinds:
        first = done.errors[kinds.index(DivergenceError)][1]
        assert f"rank {case.odd}" in first, f"who? {story}"
    rest = rest_in_step(case)
    if rest is not None:
        plan = Run(rest, case.values, live=False)
        assert done.log[-len(plan.log) :] == plan.log, f"not in step behind the scope: {story}"
        assert done.outcome == plan.outcome, f"not in step behind the scope: {story}"
    return "told" if done.outcome else "caught"


@contextmanager
def shown_if_it_hangs(text: str) -> Iterator[None]:
    """Show the text, on the first rank, before the process is ended, which can say no more then."""
    timer = threading.Timer(0.8 * TIMEOUT, print, [text], {"file": sys.stderr, "flush": True})
    timer.daemon = True
    if RANK == 0:  # it comes to no next program while another rank waits
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def run(how_many: int, first_seed: int = 0) -> Counter:
    """Run so many programs; how often they ended in each way on this rank."""
    seen: Counter = Counter()
    for seed in range(first_seed, first_seed + how_many):
        case = draw(seed, WORLD)
        with shown_if_it_hangs(f"autoglobal: seed {seed} waits for too long, {case}"):
            try:
                seen[check(case)] += 1
            except Exception as error:
                raise Failed(f"rank {RANK}, seed {seed}, {case}") from error
    return seen


def main(how_many: int = 1000, first_seed: int = 0) -> None:
    seen = run(how_many, first_seed)
    if RANK == 0:
        print(f"{sum(seen.values())} programs: {dict(seen)}")


if __name__ == "__main__":
    try:
        main(*map(int, sys.argv[1:]))
    except BaseException:
        # A rank that waits for this one ends only when the process has ended.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
