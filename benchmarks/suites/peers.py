"""What assigning a Parameter costs beside its peers, each as a ratio to its own bare assignment.

PyTorch's registration hook, doing nothing and making DTensors; accelerate's ``init_on_device``;
autoglobal's scope, looking and converting. They need a Python that has torch and accelerate: name
it by ``--torch-python`` or AUTOGLOBAL_BENCH_TORCH, or run ``make bench-peers`` once.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from oneflow import nn

from autoglobal import global_scope

from ..harness.pytorch import Peer, pytorch
from ..harness.results import Found
from ..harness.rounds import Job, Variant, Work, measure
from .subjects import S0, B, Subject

RANKS, ROUNDS = (2,), 9
COUNT, EDGE = 100, 64

BARE = "OneFlow: m.x = Parameter"
LOOKS = "autoglobal: open scope, global already"
TRUSTS = "autoglobal: open scope, converts, check=False"
AGREES = "autoglobal: open scope, converts"
CHECKED = "OneFlow: m.x = Parameter(t.to_global(P, B).to_global(P, S0))"
TORCH_BARE = "PyTorch: m.x = Parameter"
TORCH = {
    "hook": "PyTorch: registration hook that does nothing",
    "init_on_device": "accelerate: init_on_device",
    "DTensor, nothing sent": "PyTorch: registration hook, distribute_tensor, src_data_rank=None",
    "DTensor from rank 0": "PyTorch: registration hook, distribute_tensor, src_data_rank=0",
}


def find(job: Job) -> Found:
    with pytorch(job) as (peer, note):
        variants = _ours(job)
        base = dict.fromkeys((LOOKS, TRUSTS, AGREES, CHECKED), BARE)
        if peer:
            variants |= _theirs(peer)
            base |= dict.fromkeys(TORCH.values(), TORCH_BARE)
        table = measure(
            f"{COUNT} Parameters of {EDGE}x{EDGE} assigned",
            variants,
            job.device,
            job.rounds,
            count=COUNT,
            unit="Parameter",
            base=base,
        )
        return Found([table], [], [note] if note else [])


def _ours(job: Job) -> dict[str, Variant]:
    subject, P = Subject(job, COUNT, EDGE), job.placement

    def globally(tensor: Any) -> Any:
        return tensor.to_global(P, B).to_global(P, S0)

    def work(
        around: Callable[[], Any], before: Callable[[Any], Any], meanwhile: Callable[[Any], Any]
    ) -> Work:
        def make() -> list[Any]:
            return [before(tensor) for tensor in subject.tensors(different=False)]

        def assign(tensors: list[Any]) -> nn.Module:
            module = nn.Module()
            for name, tensor in zip(subject.names(), tensors):
                setattr(module, name, nn.Parameter(meanwhile(tensor)))
            return module

        return Work(
            make, assign, _are_local if around is nullcontext else subject.check(S0), around
        )

    def as_it_is(tensor: Any) -> Any:
        return tensor

    hand = work(nullcontext, as_it_is, globally)
    return {
        BARE: work(nullcontext, as_it_is, as_it_is),
        LOOKS: work(lambda: global_scope(P, S0), globally, as_it_is),
        TRUSTS: work(lambda: global_scope(P, S0, check=False), as_it_is, as_it_is),
        AGREES: work(lambda: global_scope(P, S0), as_it_is, as_it_is),
        CHECKED: Work(hand.make, hand.run, subject.check(S0)),
    }


def _theirs(peer: Peer) -> dict[str, Variant]:
    hows = {TORCH_BARE: "bare", **{name: how for how, name in TORCH.items()}}
    return {name: peer.rounds("assign", COUNT, EDGE, how=how) for name, how in hows.items()}


def _are_local(module: nn.Module) -> None:
    held = list(module.parameters())
    assert len(held) == COUNT
    assert all(parameter.is_local for parameter in held)
