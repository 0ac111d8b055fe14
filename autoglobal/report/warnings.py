"""The warnings of a report: faults of a module that OneFlow shows later, or never."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Optional

from oneflow import nn

from ..layout.placement import layout_of
from ..layout.sbp import NdSbp, show_sbp, split_axis
from ..modules.tree import Held, Name
from .rows import Row, show_placement, totals_of

_SHOWN = 4  # paths in one sentence


@dataclass(frozen=True)
class ReportWarning:
    """One fault of a module: its kind, the ``paths`` concerned (all of them), and a sentence.

    ``kind`` is ``"local"`` (local tensors in a module that holds global ones), ``"attribute"``
    (local tensors that are kept and not registered), ``"tied"`` (classes state different layouts
    for one tensor), ``"placements"`` (there are several) or ``"statistics"`` (a BatchNorm's running
    statistics that are split, and so never updated).
    """

    kind: Literal["local", "attribute", "tied", "placements", "statistics"]
    paths: tuple[str, ...]
    text: str

    def to_dict(self) -> dict[str, Any]:
        """All of it in types that JSON has."""
        return {"kind": self.kind, "paths": list(self.paths), "text": self.text}


def warnings_of(
    rows: Sequence[Row], attributes: Sequence[Row], held: Sequence[Held]
) -> tuple[ReportWarning, ...]:
    """All that is found in what :func:`autoglobal.modules.tree.held_by` and the rows say."""
    return (
        *_mixed(rows),
        *_unregistered(attributes),
        *_tied(held),
        *_placements(rows),
        *_statistics(rows, held),
    )


def _mixed(rows: Sequence[Row]) -> Iterator[ReportWarning]:
    local = tuple(row.path for row in rows if not row.is_global)
    count = len(rows) - len(local)
    if local and count:
        there = (
            f"{count} of the module's {len(rows)} tensors {'is' if count == 1 else 'are'} global"
        )
        yield ReportWarning(
            "local",
            local,
            f"local, while {there}: {_listed(local)}. An operation on both raises 'inconsistent "
            "attributes'. Write local_to_global(module, placement, sbp)",
        )


def _unregistered(attributes: Sequence[Row]) -> Iterator[ReportWarning]:
    local = tuple(row.path for row in attributes if not row.is_global)
    if local:
        yield ReportWarning(
            "attribute",
            local,
            f"neither a Parameter nor a buffer, so that no conversion touches it: {_listed(local)}."
            " It stays local and is not saved. Write register_buffer(name, tensor), nn.ModuleList "
            "for a list of modules, or assign a global tensor",
        )


def _placements(rows: Sequence[Row]) -> Iterator[ReportWarning]:
    there = [total.placement for total in totals_of(rows) if total.placement is not None]
    if len(there) < 2:
        return
    first = [next(row.path for row in rows if row.placement == one) for one in there]
    where = _listed([f"{path} on {show_placement(one)}" for path, one in zip(first, there)])
    yield ReportWarning(
        "placements",
        tuple(first),
        f"global tensors on {len(there)} placements: {where}. An operation on two of them raises. "
        "Write x.to_global(placement, sbp) for what passes from one to "
        "the other, or same_placement=True where there should be one only",
    )


def _statistics(rows: Sequence[Row], held: Sequence[Held]) -> Iterator[ReportWarning]:
    split = tuple(
        row.path
        for row, (_, names) in zip(rows, held)
        if issubclass(type(names[0].owner), nn.modules.batchnorm._BatchNorm)
        and row.kind == "buffer"
        and _is_cut(row)
    )
    if split:
        yield ReportWarning(
            "statistics",
            split,
            f"running statistics that are split: {_listed(split)}. OneFlow 0.9.0 never updates "
            "them, and does not say so. Write buffers='broadcast', or to_global(sbp="
            "flow.sbp.broadcast)",
        )


def _is_cut(row: Row) -> bool:
    if row.placement is None or row.sbp is None:
        return False
    ranks = layout_of(row.placement).hierarchy
    return any(split_axis(one) is not None and n > 1 for one, n in zip(row.sbp, ranks))


def _tied(held: Iterable[Held]) -> Iterator[ReportWarning]:
    """Tensors that are held under classes which state different layouts.

    Stated by ``@auto_global`` with a placement, that is: what the rules of some scope would wish
    cannot be known here.
    """
    for _, names in held:
        stated = [(name, wish) for name in names if (wish := _stated(name)) is not None]
        for name, wish in stated[1:]:
            first = stated[0]
            if wish != first[1]:
                yield ReportWarning(
                    "tied",
                    (first[0].path, name.path),
                    f"one tensor, for which two layouts are stated: {first[0].path} "
                    f"({_show_wish(first)}) and {name.path} ({_show_wish((name, wish))}). "
                    "What is converted first decides. Write the same layout for both",
                )
                break


_Wish = tuple[Any, Optional[NdSbp]]  # a placement and an sbp; None: stays local


def _stated(name: Name) -> _Wish | None:
    """What the classes above this name state for it, if they do."""
    spec = name.node.spec
    if spec is None:
        return None
    if name.kind == "buffer" and spec.buffers != "sbp":
        return spec.placement, spec.layout.broadcast if spec.buffers == "broadcast" else None
    # A function is the caller's own code, and is not to be run by a look.
    stated = spec.rules.stated(name.owner, name.rule_path)
    return None if stated is None else (spec.placement, stated.sbp)


def _show_wish(stated: tuple[Name, _Wish]) -> str:
    placement, sbp = stated[1]
    return "local" if sbp is None else f"{show_sbp(sbp)} on {show_placement(placement)}"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
