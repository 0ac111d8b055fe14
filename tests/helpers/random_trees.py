"""Random module trees, of which one rank often has another one: right tensors or the error.

A program: ``python -m autoglobal.commands.launcher --ranks 4 --limit 900 --
tests/helpers/random_trees.py 1000 [SEED]`` draws the same cases on every rank and in every run,
and shows the one that fails.
"""

from __future__ import annotations

import math
import os
import sys
import traceback
import zlib
from collections import Counter

import numpy as np
import oneflow as flow
from hypothesis import HealthCheck, Phase, given, seed, settings
from oneflow import nn

from autoglobal import ConversionError, DivergenceError, global_scope, local_to_global
from tests.helpers.random_cases import DIFFERENCES, GRIDS, WORLD, Case, Leaf, cases, odd_case
from tests.helpers.support import S0, S1, B, Model, assert_global, assert_local, tensor, tensors

RANK = flow.env.get_rank()
AXES = {S0: 0, S1: 1}
RIGHT, TOLD, OWN = range(3)


class Fault(Exception):
    """What fails in a constructor on one rank."""


class Failed(BaseException):
    """Not an Exception, for which hypothesis would run the case again, on this rank alone."""


def placement(case: Case) -> flow.placement:
    return flow.placement("cpu", GRIDS[case.grid])


def converted(case: Case, leaf: Leaf) -> bool:
    return leaf.kind == "parameter" or case.buffers is not False


def resolved(case: Case, leaf: Leaf) -> tuple:
    """The sbp that a leaf must get, with ``unsplittable="broadcast"``."""
    if leaf.kind == "buffer" and case.buffers == "broadcast":
        return (B,) * len(case.sbp)
    return tuple(
        one
        if one != B
        and AXES[one] < len(leaf.shape)
        and (case.source == "shard" or leaf.shape[AXES[one]] >= size)
        else B
        for one, size in zip(case.sbp, np.asarray(GRIDS[case.grid]).shape)
    )


def plan(case: Case) -> list:
    """All that the ranks must have alike."""
    found = []
    for leaf in case.leaves:
        if converted(case, leaf):
            sbp = resolved(case, leaf)
            split = sbp != (B,) * len(sbp)
            found.append((leaf, sbp, case.grid, case.source if split else None))
    return found


def numbers(case: Case, leaf: Leaf, rank: int, grad: bool = False) -> np.ndarray:
    """What a rank's own local tensor holds: whole numbers that each dtype can hold."""
    number = leaf.number if leaf.tie is None else leaf.tie
    own = rank if case.values or case.source == "shard" else 0
    if case.difference == "value" and (rank, number) == (case.odd, case.target):
        own += 1
    made = np.arange(math.prod(leaf.shape)) + 13 * number + 31 * own + 7 * grad
    return (made % (2 if leaf.dtype == flow.bool else 100)).reshape(leaf.shape).astype(np.float32)


def logical(case: Case, leaf: Leaf, grad: bool = False) -> np.ndarray:
    """What the global tensor has to be."""
    sbp = resolved(case, leaf)
    if case.source == "shard" and sbp != (B,):
        parts = [numbers(case, leaf, rank, grad) for rank in range(WORLD)]
        return np.concatenate(parts, axis=AXES[sbp[0]])
    return numbers(case, leaf, int(np.ravel(GRIDS[case.grid])[0]), grad)


def convert(case: Case, own: Case, root: nn.Module, fails: bool) -> None:
    """Do what the case says; ``own`` is what this rank has of it."""
    where, made, above = dict(root.named_modules()), {}, Model()
    options = {"source": own.source, "buffers": own.buffers, "timeout": 60}
    options["unsplittable"] = "broadcast"

    def put(leaf: Leaf) -> None:
        number = leaf.number if leaf.tie is None else leaf.tie
        if number not in made:
            made[number] = tensor(numbers(case, leaf, RANK), leaf.dtype)
            if leaf.kind == "parameter":
                made[number] = nn.Parameter(made[number])
            if leaf.has_grad:
                made[number].grad = tensor(numbers(case, leaf, RANK, grad=True), leaf.dtype)
        if leaf.kind == "parameter":
            setattr(where[leaf.where], leaf.name, made[number])
        else:
            where[leaf.where].register_buffer(leaf.name, made[number])

    if case.way != "each":
        for leaf in own.leaves:
            put(leaf)
    if case.way == "call":
        sbp = {"no such path": [B] * len(own.sbp)} if fails else own.sbp
        local_to_global(root, placement(own), sbp, **options)
        return
    with global_scope(placement(own), own.sbp, when=case.when, **options):
        for leaf in own.leaves if case.way == "each" else ():
            if fails and leaf.number == case.target:
                raise Fault("own words")
            put(leaf)
        if fails:
            raise Fault("own words")
        if case.way == "whole":
            above.new = root


def assert_state(case: Case, own: Case, root: nn.Module, failed: bool) -> None:
    """Every tensor is converted and right, or none is."""
    leaves, found = {leaf.path: leaf for leaf in own.leaves}, tensors(root)
    by_one = case.way == "each" and case.when == "assign"
    assert failed or found.keys() == leaves.keys()
    first: dict[int, flow.Tensor] = {}
    for path, value in found.items():
        leaf = leaves[path]
        tied = leaf.number if leaf.tie is None else leaf.tie
        assert first.setdefault(tied, value) is value, f"{path} has come untied"
        # Those of the assignments before the first difference stay converted.
        if leaf.shape == () and RANK not in np.ravel(GRIDS[own.grid]):
            # A rank that is left out holds a number of OneFlow's here, not nothing.
            assert value.is_global is (converted(own, leaf) and (by_one or not failed))
        elif converted(own, leaf) and (by_one or not failed):
            as_it_is = (placement(own), resolved(own, leaf))
            assert_global(value, logical(case, leaf), *as_it_is)
            if leaf.has_grad:
                assert_global(value.grad, logical(case, leaf, grad=True), *as_it_is)
        else:
            assert_local(value, numbers(case, leaf, RANK))
        assert value.dtype == leaf.dtype


def outcome_of(case: Case, error: Exception | None) -> int:
    if error is None:
        return RIGHT
    if case.difference == "exception" and case.odd == RANK:
        assert type(error) is (ConversionError if case.way == "call" else Fault), repr(error)
        return OWN
    # Shares that make no whole may be refused for that.
    told = ConversionError if case.source == "shard" else DivergenceError
    assert isinstance(error, told), repr(error)
    if type(error) is DivergenceError:
        assert f"rank {case.odd}" in str(error), error
    return TOLD


def gathered(number: int) -> list[int]:
    """The numbers of all ranks."""
    found = [flow.zeros(1, dtype=flow.int64) for _ in range(WORLD)]
    flow.comm.all_gather(found, flow.tensor([number], dtype=flow.int64))
    return [int(one.numpy()[0]) for one in found]


def check(case: Case) -> list[int]:
    """Convert as the case says, on this rank; the outcomes of all ranks."""
    assert len(set(gathered(zlib.crc32(repr(case).encode())))) == 1, "the ranks drew other cases"
    other = odd_case(case)
    own = other if case.odd == RANK else case
    root = Model()
    root.a, root.c = Model(), Model()
    root.a.b = Model()
    error = None
    try:
        convert(case, own, root, case.difference == "exception" and case.odd == RANK)
    except Exception as caught:
        error = caught
    outcomes = gathered(outcome_of(case, error))
    if case.difference == "exception" or plan(case) != plan(other):
        assert RIGHT not in outcomes, f"not all were told: {outcomes}"
    elif case == other:
        assert set(outcomes) == {RIGHT}, f"{outcomes}: {error}"
    assert len(set(outcomes) - {OWN}) == 1, f"not all alike: {outcomes}"
    assert_state(case, own, root, error is not None)
    return outcomes


def run(how_many: int, seed_number: int = 0) -> Counter:
    """Check so many cases; how often each difference had each outcome on the first rank."""
    seen: Counter = Counter()

    @seed(seed_number)
    @settings(
        max_examples=how_many,
        database=None,
        deadline=None,
        phases=[Phase.generate],  # to shrink, one rank would have to try without the others
        suppress_health_check=list(HealthCheck),
    )
    @given(cases())
    def each(case: Case) -> None:
        try:
            seen[case.difference, max(check(case)) != RIGHT] += 1
        except Exception as error:
            raise Failed(f"rank {RANK}, example {sum(seen.values())}: {case}") from error

    each()
    return seen


def main(how_many: int = 1000, seed_number: int = 0) -> None:
    seen = run(how_many, seed_number)
    if RANK == 0:
        for difference in DIFFERENCES:
            right, told = seen[difference, False], seen[difference, True]
            print(f"{difference:10} {right:4} right {told:4} told")
        print(f"{sum(seen.values())} cases")


if __name__ == "__main__":
    try:
        main(*map(int, sys.argv[1:]))
    except BaseException:
        # A rank that waits for this one ends only when the process has ended.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
