"""Components that are not of one shape on all ranks: what they are parts of, if of anything."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import product

from ..errors import DivergenceError
from ..layout.parts import show_ranks
from ..layout.rules import split_axis
from ..layout.spec import Shape
from ..ranks.collectives import consult, this_rank
from .pieces import Piece

_FEW = 4


def fit_together(pieces: Sequence[Piece]) -> None:
    """Settle the logical shapes, or raise :class:`DivergenceError` on all ranks."""

    def decide(said: list[bytes]) -> bytes:
        everybodys = [[tuple(shape) for shape in json.loads(one)] for one in said]
        found = []
        for at, piece in enumerate(pieces):
            shapes = {rank: everybodys[rank][at] for rank in piece.spec.members}
            logical = _sum(piece, shapes)
            for rank, shape in shapes.items():
                if shape != _component(piece, logical, rank) or (0 in shape and 0 not in logical):
                    return json.dumps([at, rank, logical, _received(shapes)]).encode()
            found.append(logical)
        return json.dumps(found).encode()

    answer = json.loads(consult(json.dumps([piece.shape for piece in pieces]).encode(), decide))
    if answer and isinstance(answer[0], int):
        at, rank, logical, everybodys = answer
        piece = pieces[at]
        raise DivergenceError(
            f"{piece.path}: the ranks' components are not those of one split. Expected on rank "
            f"{rank}: {_component(piece, tuple(logical), rank)}, as OneFlow splits "
            f"{tuple(logical)}, and none of them empty. Received: {everybodys}. "
            f"This rank (rank {this_rank()}): {piece.kind} of shape {piece.shape}. Write "
            "source='full' where each rank has the whole"
        )
    for piece, logical in zip(pieces, answer):
        piece.logical = tuple(logical)


def _received(shapes: Mapping[int, Shape]) -> str:
    """Which ranks have which shape, the first few of them."""
    ranks: dict[Shape, list[int]] = {}
    for rank, shape in shapes.items():
        ranks.setdefault(shape, []).append(rank)
    few = [f"{shape} on rank {show_ranks(its)}" for shape, its in [*ranks.items()][:_FEW]]
    return "; ".join([*few, "..."] if len(ranks) > _FEW else few)


def _component(piece: Piece, logical: Shape, rank: int) -> Shape:
    return piece.spec.component(logical, piece.sbp, piece.spec.positions[rank])


def _sum(piece: Piece, shapes: Mapping[int, Shape]) -> Shape:
    """Along each axis the sum of the lengths over the ranks that it is split over."""
    spec = piece.spec
    ranks_at = {position: rank for rank, position in spec.positions.items()}
    logical = list(shapes[spec.first])
    for axis in range(len(logical)):
        split = [split_axis(one) == axis for one in piece.sbp]
        if any(split):
            across = product(*(range(n) if on else (0,) for n, on in zip(spec.hierarchy, split)))
            lengths = [shapes[ranks_at[position]] for position in across]
            logical[axis] = sum(shape[axis] for shape in lengths if axis < len(shape))
    return tuple(logical)
