"""The warnings of a report: faults of a module that OneFlow shows later, or never."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Optional

from oneflow import nn

from .._compat import in_one_memory
from ..layout.placement import layout_of
from ..layout.sbp import NdSbp, show_sbp, split_axis
from ..modules.decorated import follows
from ..modules.registry import children, join, store
from ..modules.tree import Held, Name, Node
from .rows import Row, show_placement

_SHOWN = 4  # paths in one sentence
# Layers that leave each number in its place, so that what was split stays split.
_ELEMENTWISE = {
    *(nn.CELU, nn.Dropout, nn.ELU, nn.GELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish),
    *(nn.Hardtanh, nn.Identity, nn.LeakyReLU, nn.LogSigmoid, nn.Mish, nn.QuickGELU, nn.ReLU),
    *(nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Softshrink, nn.Softsign, nn.Tanh),
}


@dataclass(frozen=True)
class ReportWarning:
    """One fault of a module or a plan: its kind, all ``paths`` concerned, and a sentence.

    ``kind`` is ``"local"`` (local tensors in a module that holds global ones), ``"attribute"``
    (local tensors that are kept and not registered), ``"tied"`` (classes state, or rules ask,
    different layouts for one tensor), ``"placements"`` (there are several), ``"statistics"`` (a
    BatchNorm's running statistics that are split, and so never updated), ``"features"`` (a
    BatchNorm1d right after a Linear whose weight is split), ``"memory"`` (Parameters of their own
    share one) or ``"follows"`` (a bare ``@auto_global`` had nothing to follow). A preview has
    ``"unused"`` (a rule that decides nothing; no paths) and ``"kept"`` (global already, with
    another layout than a rule asks) as well.
    """

    kind: Literal[
        "local",
        "attribute",
        "tied",
        "placements",
        "statistics",
        "features",
        "memory",
        "follows",
        "unused",
        "kept",
    ]
    paths: tuple[str, ...]
    text: str

    def to_dict(self) -> dict[str, Any]:
        """All of it in types that JSON has."""
        return {"kind": self.kind, "paths": list(self.paths), "text": self.text}


def warnings_of(
    rows: Sequence[Row],
    attributes: Sequence[Row],
    held: Sequence[Held],
    local: Sequence[Held] | None = None,
) -> tuple[ReportWarning, ...]:
    """All faults that are seen in the rows and in a tree's tensors with all their names.

    ``local`` are those that are local where the rows speak of another time than now.
    """
    return (
        *_mixed(rows),
        *_unregistered(attributes),
        *_tied(held),
        *_placements(rows),
        *_statistics(rows, held),
        *_features(rows, held),
        *_in_one_memory(held if local is None else local),
        *_followers(rows, held),
    )


def _mixed(rows: Sequence[Row]) -> Iterator[ReportWarning]:
    local = tuple(row.path for row in rows if not row.is_global)
    count = len(rows) - len(local)
    if local and count:
        others = (
            f"{count} of the module's {len(rows)} tensors {'is' if count == 1 else 'are'} global"
        )
        yield ReportWarning(
            "local",
            local,
            f"local, while {others}: {listed(local)}. An operation on both raises 'inconsistent "
            "attributes'. Write local_to_global(module, placement, sbp)",
        )


def _unregistered(attributes: Sequence[Row]) -> Iterator[ReportWarning]:
    local = tuple(row.path for row in attributes if not row.is_global)
    if local:
        yield ReportWarning(
            "attribute",
            local,
            f"neither a Parameter nor a buffer, so that no conversion touches it: {listed(local)}."
            " It stays local and is not saved. Write register_buffer(name, tensor), nn.ModuleList "
            "for a list of modules, or assign a global tensor",
        )


def _placements(rows: Sequence[Row]) -> Iterator[ReportWarning]:
    first: dict[Any, str] = {}  # the path of the first tensor on each placement
    for row in rows:
        if row.placement is not None:
            first.setdefault(row.placement, row.path)
    if len(first) < 2:
        return
    where = listed([f"{path} on {show_placement(place)}" for place, path in first.items()])
    yield ReportWarning(
        "placements",
        tuple(first.values()),
        f"global tensors on {len(first)} placements: {where}. An operation on two of them raises. "
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
            f"running statistics that are split: {listed(split)}. OneFlow 0.9.0 never updates "
            "them, and does not say so. Write buffers='broadcast', or to_global(sbp="
            "flow.sbp.broadcast)",
        )


def _features(rows: Sequence[Row], held: Sequence[Held]) -> Iterator[ReportWarning]:
    """A BatchNorm1d that an nn.Sequential hands the features of a split Linear.

    OneFlow cuts such an input by the batch, whichever axis of the weight is split and however the
    data is, so that what goes into the Linear need not be known.
    """
    cut = {id(tensor) for row, (tensor, _) in zip(rows, held) if _is_cut(row)}
    local = {id(tensor) for row, (tensor, _) in zip(rows, held) if not row.is_global}
    nodes = {
        id(node.module): node
        for _, names in held
        for name in names
        if (node := name.node.above) is not None and type(node.module) is nn.Sequential
    }
    found = []
    for node in nodes.values():
        linear = None  # the name of the one whose features come along
        for name, layer in children(node.module):
            if linear is not None and _normalises_the_batch(layer, local):
                found.append((join(node.path, linear), join(node.path, name)))
            if _has_hooks(layer) or type(layer) not in _ELEMENTWISE:
                linear = None
            if not _has_hooks(layer) and type(layer) is nn.Linear:
                weight = store(layer, "_parameters").get("weight")
                linear = name if id(weight) in cut else None
    if found:
        yield ReportWarning(
            "features",
            tuple(path for _, path in found),
            "a BatchNorm1d after a Linear whose weight is split: "
            f"{listed([f'{path} after {linear}' for linear, path in found])}. OneFlow 0.9.0 cuts "
            "its input by the batch: each rank takes the statistics of its own rows, and nothing "
            "says so. Write x.to_global(sbp=flow.sbp.broadcast) between the two, or broadcast the "
            "weight",
        )


def _normalises_the_batch(layer: Any, local: set[int]) -> bool:
    """Whether it is a global BatchNorm1d that takes the statistics of what it is given."""
    if type(layer) is not nn.BatchNorm1d or _has_hooks(layer):
        return False
    buffers = store(layer, "_buffers")
    tensors = [*store(layer, "_parameters").values(), *buffers.values()]
    if all(one is None for one in tensors) or any(id(one) in local for one in tensors):
        return False
    return layer.__dict__["training"] or buffers.get("running_mean") is None


def _has_hooks(layer: Any) -> bool:
    """Whether code of the caller's own may change what goes in or comes out."""
    return any(layer.__dict__.get(name) for name in ("_forward_hooks", "_forward_pre_hooks"))


def _in_one_memory(held: Sequence[Held]) -> Iterator[ReportWarning]:
    parameters = (one for one in held if one.names[0].kind == "parameter")
    for group in in_one_memory(
        (one.names[0].path, tuple(one.tensor.shape), one.tensor) for one in parameters
    ):
        yield ReportWarning(
            "memory",
            tuple(group),
            f"Parameters of their own on one memory: {listed(group)}. Once they are global a write "
            "to one may no longer reach the other. "
            f"Write {group[1]} = {group[0]}, which makes them one Parameter",
        )


def _followers(rows: Sequence[Row], held: Sequence[Held]) -> Iterator[ReportWarning]:
    """Instances of classes that follow their global tensors, and hold none."""
    found: dict[int, tuple[str, bool]] = {}  # a path, and whether there is a global tensor
    for row, (_, names) in zip(rows, held):
        for name in names:
            node: Node | None = name.node
            while node is not None:
                if follows(node.module):
                    key = id(node.module)
                    path, some = found.get(key, (node.path or "the module itself", False))
                    found[key] = path, some or row.is_global
                node = node.above
    alone = tuple(path for path, some in found.values() if not some)
    if alone:
        yield ReportWarning(
            "follows",
            alone,
            f"of classes under a bare @auto_global, and without a global tensor: {listed(alone)}. "
            "Such a class follows the global tensors that it holds, so that nothing of these was "
            "converted. Write @auto_global(placement, sbp), or assign a global tensor first",
        )


def _is_cut(row: Row) -> bool:
    if row.placement is None or row.sbp is None:
        return False
    sizes = layout_of(row.placement).hierarchy
    return any(split_axis(sbp) is not None and size > 1 for sbp, size in zip(row.sbp, sizes))


# A placement and an sbp; no sbp: stays local.
_Stated = tuple[Any, Optional[NdSbp]]


def _tied(held: Iterable[Held]) -> Iterator[ReportWarning]:
    """Tensors with names for which classes state different layouts.

    Only what ``@auto_global`` states with a placement counts, because the rules of a scope are
    not known here.
    """
    for _, names in held:
        layouts = [(name, layout) for name in names if (layout := _stated(name)) is not None]
        for name, layout in layouts[1:]:
            first, first_layout = layouts[0]
            if layout != first_layout:
                yield ReportWarning(
                    "tied",
                    (first.path, name.path),
                    f"one tensor, for which two layouts are stated: {first.path} "
                    f"({_show_stated(first_layout)}) and {name.path} ({_show_stated(layout)}). "
                    "What is converted first decides. Write the same layout for both",
                )
                break


def _stated(name: Name) -> _Stated | None:
    """What the nearest class at or above this name states for it, if it does."""
    spec = name.node.spec
    if spec is None:
        return None
    if name.kind == "buffer" and spec.buffers != "sbp":
        return spec.placement, spec.layout.broadcast if spec.buffers == "broadcast" else None
    # Not a function, because it is the caller's own code, which a report must not run.
    stated = spec.rules.stated(type(name.owner), name.rule_path)
    if stated is None:
        return None
    if stated.target is None:
        return spec.placement, None
    layout = stated.target.layout  # None: where other tensors are, which is no statement
    return None if layout is None else (layout.placement, stated.target.sbp)


def _show_stated(stated: _Stated) -> str:
    placement, sbp = stated
    return "local" if sbp is None else f"{show_sbp(sbp)} on {show_placement(placement)}"


def listed(names: Sequence[str]) -> str:
    """The first few of them, and how many more there are."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
