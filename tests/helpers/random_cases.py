"""What random_trees.py draws: a module tree, a way to convert it, and one rank's difference."""

from __future__ import annotations

from typing import NamedTuple

import oneflow as flow
from hypothesis import strategies as st

from tests.helpers.support import S0, S1, B

WORLD = flow.env.get_world_size()
FLOATS = (flow.float32, flow.float64, flow.float16, flow.bfloat16)
DTYPES = {"parameter": FLOATS, "buffer": (*FLOATS, flow.int64, flow.int8, flow.uint8, flow.bool)}
GRIDS = {
    "all": list(range(WORLD)),
    "square": [[0, 1], [2, 3]] if WORLD == 4 else [list(range(WORLD))],
    "last": [WORLD - 1],
    "but the first": list(range(1, WORLD)),
}
WAYS = [(way, when) for way in ("each", "whole", "call") for when in ("assign", "exit")]
DIFFERENCES = [
    *("none", "value", "shape", "dtype", "name", "extra", "missing", "order", "exception"),
    *("sbp", "buffers", "source", "grid"),
]


class Leaf(NamedTuple):
    """A tensor to be, known by its number; the one that it is tied to stands for it."""

    number: int
    tie: int | None
    where: str
    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: flow.dtype
    has_grad: bool

    @property
    def path(self) -> str:
        return f"{self.where}.{self.name}" if self.where else self.name


class Case(NamedTuple):
    leaves: tuple[Leaf, ...]
    way: str  # "each": one by one inside a scope; "whole": as one tree; "call": local_to_global
    when: str
    grid: str  # a placement, of GRIDS
    sbp: tuple
    source: str
    buffers: str | bool
    values: bool  # whether each rank has numbers of its own
    difference: str  # one of DIFFERENCES, on rank ``odd``, in leaf ``target`` if in one
    odd: int
    target: int


@st.composite
def cases(draw) -> Case:
    leaves: list[Leaf] = []
    difference = draw(st.sampled_from(DIFFERENCES))
    # Tensors that could be taken for one another are what another order is dangerous for.
    alike = difference == "order"
    for number in range(draw(st.integers(4 if alike else 1, 6))):
        kind = draw(st.sampled_from(["parameter", "buffer"])) if number else "parameter"
        tie = draw(st.integers(0, 12))
        leaf = Leaf(
            number,
            None,
            draw(st.sampled_from(["", "a", "a.b", "c"])) if not alike else "a",
            f"t{number}",
            kind,
            tuple(draw(st.lists(st.integers(1, 6), max_size=3))),
            draw(st.sampled_from(DTYPES[kind])),
            draw(st.booleans()) and kind == "parameter",
        )
        if alike and leaves:
            leaf = leaf._replace(shape=leaves[0].shape, dtype=leaves[0].dtype)
        if tie < number and leaves[tie].tie is None and leaves[tie].kind == kind:
            leaf = leaves[tie]._replace(number=number, tie=tie, where=leaf.where, name=leaf.name)
        leaves.append(leaf)
    source = draw(st.sampled_from(["full", "full", "shard"]))
    grid = draw(st.sampled_from(list(GRIDS))) if source == "full" else "all"
    two = [(S0, B), (B, S1), (S0, S1)]
    return Case(
        tuple(leaves),
        *draw(st.sampled_from(WAYS)),
        grid,
        draw(st.sampled_from(two if grid == "square" else [(B,), (S0,), (S1,)])),
        source,
        draw(st.sampled_from(["broadcast", "sbp", False])),
        draw(st.booleans()),
        difference,
        draw(st.integers(0, WORLD - 1)),
        draw(st.sampled_from([leaf.number for leaf in leaves if leaf.tie is None])),
    )


def odd_case(case: Case) -> Case:
    """The case as the odd rank has it; the same one if there is nothing to differ in."""
    leaves = list(case.leaves)
    at, leaf, other = case.target, leaves[case.target], {}
    if case.difference == "shape":
        grown = (*leaf.shape[:-1], leaf.shape[-1] + 1) if leaf.shape else (1,)
        # Shares may differ in length, if they make a balanced split; not in dimensions.
        other = {"shape": (*leaf.shape, 1) if case.source == "shard" else grown}
    elif case.difference == "dtype":
        other = {"dtype": flow.float64 if leaf.dtype == flow.float32 else flow.float32}
    elif case.difference == "name":
        leaves[at] = leaf._replace(name="other")
    elif case.difference == "extra":
        leaves.append(leaf._replace(number=len(leaves), name="extra"))
    elif case.difference == "missing":
        # A call with nothing to convert sends nothing, and the others would wait for a next one.
        if case.way != "call" or sum(one.kind == "parameter" for one in leaves) > 1:
            del leaves[at]
    elif case.difference == "order":
        rest = [n for n, one in enumerate(leaves) if one.tie is None and n > at]
        peers = [n for n in rest if (leaves[n].where, leaves[n].kind) == (leaf.where, leaf.kind)]
        if peers:
            leaves[at], leaves[peers[0]] = leaves[peers[0]], leaf
    elif case.difference == "sbp":
        return case._replace(sbp=tuple(B if one != B else S0 for one in case.sbp))
    elif case.difference == "buffers":
        return case._replace(buffers=False if case.buffers == "broadcast" else "broadcast")
    elif case.difference == "source" and case.grid == "all":
        return case._replace(source="full" if case.source == "shard" else "shard")
    elif case.difference == "grid" and case.grid != "square" and case.source == "full":
        return case._replace(grid="all" if case.grid != "all" else "last")
    made = [one._replace(**other) if at in (one.number, one.tie) else one for one in leaves]
    return case._replace(leaves=tuple(made))
