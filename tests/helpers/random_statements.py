"""What random_programs.py draws: a short program, and what one rank has otherwise in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple, Optional, Union

SHAPES = [(8, 4), (4, 8), (6, 3)]
SBPS = ["B", "S0"]
DEEPEST = 4  # scopes and try blocks in one another


class Put(NamedTuple):
    """``module.name = value``, a Parameter, a buffer, or a tree that was built locally."""

    number: int  # its numbers are made of this one
    name: str
    what: str
    shape: tuple[int, ...]


class Make(NamedTuple):
    """``m.name = Plain()``: a constructor that makes assignments; or a class with a layout."""

    name: str
    parts: tuple[Put, ...]
    sbp: Optional[str]  # None: a plain class
    fault: Optional[int]  # before which part the constructor fails


class Call(NamedTuple):
    """``local_to_global`` of a tree of its own."""

    tree: Put
    sbp: str


class Scope(NamedTuple):
    sbp: str
    when: str
    body: Block


class Try(NamedTuple):
    """``try: body``, ``except Exception: fallback``."""

    body: Block
    fallback: Put


class Raise(NamedTuple):
    """``raise Fault``."""


Statement = Union[Put, Make, Call, Scope, Try, Raise]
Block = tuple[Statement, ...]


class Case(NamedTuple):
    usual: Block
    other: Block  # what rank ``odd`` has
    odd: int
    differences: tuple[str, ...]
    values: bool  # whether each rank has numbers of its own

    def __str__(self) -> str:
        lines = ["every rank:", *lines_of(self.usual, "    ")]
        if self.differences:
            lines[0] = f"every rank but rank {self.odd}:"
            lines += [f"rank {self.odd} ({', '.join(self.differences)}):"]
            lines += lines_of(self.other, "    ")
        return "\n".join(lines)


# To show a program


def lines_of(block: Block, indent: str = "") -> Iterator[str]:
    """The program as one would write it."""
    if not block:
        yield f"{indent}pass"
    for one in block:
        if isinstance(one, Put):
            yield f"{indent}m.{text_of(one)}"
        elif isinstance(one, Make):
            layout = "Plain" if one.sbp is None else f"Stated[P, {one.sbp}]"
            parts = [f"self.{text_of(part)}" for part in one.parts]
            if one.fault is not None:
                parts.insert(one.fault, "raise Fault")
            yield f"{indent}m.{one.name} = {layout}()  # {'; '.join(parts)}"
        elif isinstance(one, Call):
            yield f"{indent}{text_of(one.tree)}; local_to_global({one.tree.name}, P, {one.sbp})"
        elif isinstance(one, Scope):
            yield f"{indent}with global_scope(P, {one.sbp}, when={one.when!r}):"
            yield from lines_of(one.body, indent + "    ")
        elif isinstance(one, Try):
            yield f"{indent}try:"
            yield from lines_of(one.body, indent + "    ")
            yield f"{indent}except Exception:"
            yield f"{indent}    m.{text_of(one.fallback)}"
        else:
            yield f"{indent}raise Fault"


def text_of(put: Put) -> str:
    return f"{put.name} = {put.what}{put.shape}"


# To draw one


class Drawing:
    """Draws statements; no two of one program have a name in common.

    Else another order of two modules with the same names would not be found (LIMITATIONS.md).
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self._number = 0

    def put(self) -> Put:
        self._number += 1
        what = self.random.choice(["parameter", "parameter", "buffer", "tree"])
        return Put(self._number, f"{what[0]}{self._number}", what, self.random.choice(SHAPES))

    def block(self, left: int, depth: int = 0) -> Block:
        """Statements, as many as are ``left`` with all that is in them."""
        made: list[Statement] = []
        while left > 0:
            inside = self.random.randint(1, left)
            one = self._statement(inside, depth)
            made.append(one)
            left -= size_of((one,))
        return tuple(made)

    def _statement(self, inside: int, depth: int) -> Statement:
        kinds = ["put", "put", "plain", "stated", "call"]
        if depth < DEEPEST and inside > 1:
            kinds += ["scope", "scope", "try", "guarded"]
        kind = self.random.choice(kinds)
        if kind == "plain" or kind == "stated":
            parts = tuple(self.put() for _ in range(self.random.randint(1, 3)))
            sbp = None if kind == "plain" else self.random.choice(SBPS)
            return Make(f"{kind}{self._number}", parts, sbp, None)
        if kind == "call":
            return Call(self.put()._replace(what="tree"), self.random.choice(SBPS))
        if kind == "scope":
            return self._scope(self.block(inside - 1, depth + 1))
        if kind == "try":
            body = self.block(inside - 1, depth + 1)
            # The fault of every rank, which is nobody's difference.
            return Try(body + (Raise(),) * (self.random.random() < 0.2), self.put())
        if kind == "guarded":
            return Try((self._scope(self.block(inside - 1, depth + 2)),), self.put())
        return self.put()

    def _scope(self, body: Block) -> Scope:
        when = self.random.choice(["assign", "assign", "exit"])
        return Scope(self.random.choice(SBPS), when, body)


def size_of(block: Block) -> int:
    """The number of statements, those inside others too."""
    return sum(1 for _ in places(block))


def places(block: Block) -> Iterator[Block]:
    """Each statement together with those behind it in its block, in the order of reading."""
    for at, one in enumerate(block):
        yield block[at:]
        if isinstance(one, (Scope, Try)):
            yield from places(one.body)


# One rank's difference


def edited(block: Block, place: int, change: Callable[[Block], Block]) -> Block:
    """The block with the statements from ``place`` on, a number in ``places``, changed."""
    made: list[Statement] = []
    for at, one in enumerate(block):
        if place == 0:
            return (*made, *change(block[at:]))
        inside = size_of((one,))
        if place < inside:
            one = one._replace(body=edited(one.body, place - 1, change))
            return (*made, one, *block[at + 1 :])
        made.append(one)
        place -= inside
    return block


def other_put(put: Put, difference: str, random: Random) -> Put:
    if difference == "name":
        return put._replace(name=f"{put.name}x")
    return put._replace(shape=random.choice([one for one in SHAPES if one != put.shape]))


def changed_first(one: Statement, difference: str, random: Random) -> Statement:
    """The statement with a difference in itself; the same one if it has nothing of the kind."""
    if difference in ("name", "shape"):
        if isinstance(one, Put):
            return other_put(one, difference, random)
        if isinstance(one, Call):
            return one._replace(tree=other_put(one.tree, difference, random))
        if isinstance(one, Make):
            at = random.randrange(len(one.parts))
            part = other_put(one.parts[at], difference, random)
            return one._replace(parts=(*one.parts[:at], part, *one.parts[at + 1 :]))
    elif difference == "constructor" and isinstance(one, Make):
        return one._replace(fault=random.randint(0, len(one.parts)))
    elif difference == "sbp" and getattr(one, "sbp", None):
        return one._replace(sbp="S0" if one.sbp == "B" else "B")
    elif difference == "when" and isinstance(one, Scope):
        return one._replace(when="exit" if one.when == "assign" else "assign")
    return one


def changed(rest: Block, difference: str, drawing: Drawing) -> Block:
    """The statements from a place on, as the odd rank has them."""
    first, random = rest[0], drawing.random
    if difference == "drop":
        return rest[1:]
    if difference == "add":
        return (drawing.put(), *rest)
    if difference == "swap":
        return (*rest[1:2], first, *rest[2:])
    if difference == "raise":
        return (Raise(), *rest)
    if difference == "catch":
        upto = random.randint(1, len(rest))
        return (Try(rest[:upto], drawing.put()), *rest[upto:])
    if difference == "no scope":
        return rest[1:] if isinstance(first, Scope) else rest
    if difference == "no with":
        return (*first.body, *rest[1:]) if isinstance(first, Scope) else rest
    return (changed_first(first, difference, random), *rest[1:])


DIFFERENCES = [
    *("drop", "add", "swap", "raise", "catch", "no scope", "no with"),
    *("name", "shape", "constructor", "sbp", "when"),
]


def other_block(block: Block, difference: str, drawing: Drawing) -> Block:
    """The block with this difference somewhere; the same one if there is no place for it."""
    order = list(range(size_of(block)))
    drawing.random.shuffle(order)
    for place in order:
        made = edited(block, place, lambda rest: changed(rest, difference, drawing))
        if made != block:
            return made
    return block


def draw(seed: int, world: int) -> Case:
    """The case of this seed, the same one on every rank."""
    random = Random(seed)
    drawing = Drawing(random)
    usual = drawing.block(random.randint(3, 10))
    other, differences = usual, []
    for _ in range(random.choice([0, 1, 1, 1, 1, 2, 2, 2])):
        difference = random.choice(DIFFERENCES)
        made = other_block(other, difference, drawing)
        if made != other:
            differences.append(difference)
            other = made
    return Case(usual, other, random.randrange(world), tuple(differences), random.random() < 0.5)
