"""Real models built in a scope, against the same made global by hand, in three ways.

``.to_global`` behind each layer, in the model's own code; build, then ``Module.to_global``; build,
then the ``_apply`` of Oneflow-Inc/oneflow#8869. With them one Parameter at a time, a stack of stock
layers against a hand-written hook, and for each whole model the memory at its peak and what was
sent. P is the placement of all ranks, B broadcast, S0 split(0).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Optional

import flowvision
import numpy as np
import oneflow as flow
from oneflow import nn

from autoglobal import global_scope

from ..harness.results import Found, Table
from ..harness.rounds import Job, Variant, Work, measure
from . import assigning, building
from .subjects import S0, B

RANKS, ROUNDS = (2,), 4

Put = Callable[[Any], Any]  # what is done with a layer before it is assigned

LOCAL = "local, not made global"
LAYERS = "by hand: .to_global behind each layer"
WHOLE = "build, then Module.to_global"
APPLY = "build, then the thread's _apply"
SCOPE = "scope"
AT_EXIT = 'scope, when="exit"'
TRUSTING = "scope, check=False"


def as_it_is(layer: Any) -> Any:
    return layer


class Block(nn.Module):  # type: ignore[misc]
    """The layers of attention and of a perceptron, each behind a LayerNorm."""

    def __init__(self, width: int, put: Put) -> None:
        super().__init__()
        self.norm1 = put(nn.LayerNorm(width))
        self.qkv = put(nn.Linear(width, 3 * width))
        self.out = put(nn.Linear(width, width))
        self.norm2 = put(nn.LayerNorm(width))
        self.up = put(nn.Linear(width, 4 * width))
        self.down = put(nn.Linear(4 * width, width))


class GPT(nn.Module):  # type: ignore[misc]
    """Embeddings, ``blocks`` blocks, and a head over the vocabulary: the layers alone."""

    def __init__(
        self, blocks: int, width: int = 256, vocabulary: int = 1024, put: Put = as_it_is
    ) -> None:
        super().__init__()
        self.words = put(nn.Embedding(vocabulary, width))
        self.blocks = nn.Sequential(*[Block(width, put) for _ in range(blocks)])
        self.norm = put(nn.LayerNorm(width))
        self.head = put(nn.Linear(width, vocabulary, bias=False))


@dataclass(frozen=True)
class Model:
    """How it is built; it is never run. ``sbp`` is what its Parameters get.

    Only ``own`` code can be changed.
    """

    title: str
    build: Callable[..., nn.Module]
    sbp: Any
    own: bool = False
    slow: bool = False


MODELS = (
    Model("GPT-like, 12 blocks, S0", partial(GPT, 12), S0, own=True),
    Model("GPT-like, 48 blocks, S0", partial(GPT, 48), S0, own=True),
    Model("flowvision resnet50, B", flowvision.models.resnet50, B),
    Model("flowvision vit_base, B", flowvision.models.vit_base_patch16_224, B, slow=True),
)


def find(job: Job) -> Found:
    found = Found()
    for each in (assigning, building):
        found.add(each.find(job))
    for model in MODELS:
        found.add(Found([_table(model, job)]))
    return found


def _table(model: Model, job: Job) -> Table:
    variants = _variants(model, job)
    base = LAYERS if model.own else WHOLE
    return measure(
        model.title,
        variants,
        job.device,
        max(2, job.rounds // 2) if model.slow else job.rounds,
        count=1,
        unit="model",
        base={name: base for name in variants if name != base},
        weigh=True,
    )


def _variants(model: Model, job: Job) -> dict[str, Variant]:
    P = job.placement
    steps = (B,) if model.sbp == B else (B, model.sbp)

    def globally(value: Any) -> Any:
        """A module, or a tensor, with the first rank's values."""
        for sbp in steps:
            value = value.to_global(P, sbp)
        return value

    def work(
        inside: Callable[[], AbstractContextManager[object]] = nullcontext,
        after: Put = as_it_is,
        is_global: bool = True,
        drawn: bool = False,
        **options: Any,
    ) -> Work:
        def run(_: object) -> nn.Module:
            with inside():
                return after(model.build(**options))

        # As a user does who wants equal copies to start from.
        return Work(_seed, run, partial(_check, model, P, expected if is_global else None, drawn))

    _seed()
    expected = {name: _numbers(tensor) for name, tensor in _state(model.build())}
    found: dict[str, Variant] = {LOCAL: work(is_global=False)}
    if model.own:
        found[LAYERS] = work(put=globally)
    found[WHOLE] = work(after=globally)
    found[APPLY] = work(after=lambda built: built._apply(globally))
    found[SCOPE] = work(lambda: global_scope(P, model.sbp), drawn=True)
    found[AT_EXIT] = work(lambda: global_scope(P, model.sbp, when="exit"))
    if not model.slow:
        found[TRUSTING] = work(lambda: global_scope(P, model.sbp, check=False), drawn=True)
    return found


def _check(
    model: Model,
    placement: Any,
    expected: Optional[dict[str, Any]],
    drawn: bool,
    built: nn.Module,
) -> None:
    """Every tensor is where it should be, with the numbers of the local model.

    ``drawn``: its layers fill it when it is global already, with random numbers of their own.
    """
    state = dict(_state(built))
    assert state
    if expected is None:
        assert all(tensor.is_local for tensor in state.values())
        return
    assert list(state) == list(expected)
    for name, tensor in state.items():
        sbp = model.sbp if isinstance(tensor, nn.Parameter) else B
        assert (tensor.placement, tensor.sbp) == (placement, (sbp,)), name
        whole = _numbers(tensor.to_global(placement, B).to_local())
        assert whole.shape == expected[name].shape, name
        if not drawn:
            np.testing.assert_array_equal(whole, expected[name], name)


def _state(module: nn.Module) -> list[tuple[str, Any]]:
    return [*module.named_parameters(), *module.named_buffers()]


def _numbers(local: Any) -> Any:
    return local.detach().numpy()


def _seed() -> None:
    flow.manual_seed(0)
