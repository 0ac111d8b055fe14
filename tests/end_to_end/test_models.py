"""Real models that nobody here wrote: flowvision's, built inside a scope, and one extended.

The local model with the same weights, on the same rank, is what each is compared with.
Tolerance: float32 sums in another order, which a split weight brings about. Outputs differ by at
most 1e-5 of the largest output; the gradient of a Parameter by at most 1e-4 of its own largest
number, or by 1e-6 of the largest one of the whole model (a gradient that is zero in mathematics,
as that of a bias before a softmax, is rounding alone).
"""

from __future__ import annotations

import copy
import functools

import numpy as np
import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import _compat, global_scope
from tests.helpers.support import S0, B, Model, assert_global, local_names, tensor

pytestmark = pytest.mark.ranks(1, 2)
NAMES = [
    "resnet18",
    "mobilenet_v2",
    "vit_tiny_patch16_224",
    "swin_tiny_patch4_window7_224",
]
SHAPE = (1, 3, 224, 224)


def make(name: str, **options) -> nn.Module:
    import flowvision.models

    return getattr(flowvision.models, name)(**options)


def numbers(shape, seed: int) -> np.ndarray:
    return np.random.RandomState(seed).standard_normal(shape).astype(np.float32)


def weight_of(path: str, shape: tuple, seed: int) -> np.ndarray:
    """A value for this Parameter with which the numbers neither fade nor explode."""
    if len(shape) > 1:
        return numbers(shape, seed) * np.float32(np.sqrt(2 / np.prod(shape[1:])))
    return np.float32(path.endswith("weight")) + numbers(shape, seed) / 10


def local_model(name: str, **options) -> nn.Module:
    """A local model that is the same on all ranks and each time, and no two weights are equal.

    The values come from numpy: with one and the same flow.manual_seed two builds in one process
    sometimes differ. The BatchNorms hold the statistics of a real pass: with those that they
    start with the numbers fade to 1e-9 in fifty layers, where any comparison holds.
    """
    model = make(name, **options)
    for seed, (path, weight) in enumerate(model.named_parameters()):
        weight.data.copy_(tensor(weight_of(path, tuple(weight.shape), seed)))
    model.eval()
    norms = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
        norm.train()
    with flow.no_grad():
        model(tensor(numbers(SHAPE, 1)))
    for norm, momentum in zip(norms, momenta):
        norm.momentum = momentum
    return model.eval()


def run(model: nn.Module, x: flow.Tensor, factor: flow.Tensor) -> np.ndarray:
    """Forward and backward; every rank takes part in reading a global output."""
    model.zero_grad()
    out = model(x)
    (out * factor).sum().backward()
    return out.detach().numpy()


def gradients(model: nn.Module) -> dict[str, np.ndarray]:
    return {path: weight.grad.numpy() for path, weight in model.named_parameters()}


@functools.lru_cache(maxsize=1)
def reference(name: str) -> tuple[dict, np.ndarray, dict]:
    """Of the local model: its state, its output and its gradients."""
    model = local_model(name)
    out = run(model, tensor(numbers(SHAPE, 2)), tensor(numbers((1, 1000), 3)))
    state = {path: value.detach().clone() for path, value in model.state_dict().items()}
    return state, out, gradients(model)


def assert_close(found: np.ndarray, expected: np.ndarray, allowed: float) -> None:
    assert found.shape == expected.shape
    assert np.isfinite(found).all()
    assert np.abs(found - expected).max() <= allowed


def assert_same_gradients(found: dict, expected: dict) -> None:
    assert found.keys() == expected.keys()
    largest = max(np.abs(grad).max() for grad in expected.values())
    for path, grad in expected.items():
        assert_close(found[path], grad, max(1e-4 * np.abs(grad).max(), 1e-6 * largest))


def to_global(local: np.ndarray, placement) -> flow.Tensor:
    return tensor(local).to_global(placement, B)


@pytest.mark.parametrize("sbp", [B, S0], ids=["B", "S0"])
@pytest.mark.parametrize("name", NAMES)
def test_a_model_built_inside_computes_what_the_local_one_does(P, world, name, sbp):
    state, expected, expected_gradients = reference(name)
    # A ViT's class token, (1, 1, 192), cannot be split on two ranks.
    with global_scope(P, sbp, unsplittable="broadcast"):
        model = make(name)
    assert local_names(model) == []
    split = [path for path, weight in model.named_parameters() if weight.sbp == (S0,)]
    assert len(split) > (0.8 * len(expected_gradients) if sbp == S0 else -1)
    assert all(buffer.sbp == (B,) for buffer in model.buffers())

    model.load_state_dict({path: value.to_global(P, B) for path, value in state.items()})
    assert local_names(model) == []
    model.eval()
    x, factor = to_global(numbers(SHAPE, 2), P), to_global(numbers((1, 1000), 3), P)
    found = run(model, x, factor)
    assert np.abs(expected).max() > 1e-2
    assert_close(found, expected, 1e-5 * np.abs(expected).max())
    assert_same_gradients(gradients(model), expected_gradients)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_built_outside_becomes_global_as_it_is_assigned(P, name):
    local = local_model(name)
    state = {path: value.detach().numpy().copy() for path, value in local.state_dict().items()}
    weights = list(local.parameters())
    m = Model()
    with global_scope(P, S0, unsplittable="broadcast"):
        m.model = local
    assert local_names(m) == []
    same = [now is then for now, then in zip(local.parameters(), weights)]
    assert all(same) or not _compat.can_replace_data()
    for path, value in local.state_dict().items():
        assert_global(value, state[path], P, value.sbp)


@pytest.mark.ranks(2)
def test_a_class_token_that_cannot_be_split_is_named(P):
    """A ViT under split(0) as it is: the error says which tensor and what to write."""
    with (
        global_scope(P, S0),
        pytest.raises(RuntimeError, match=r"cls_token.*\(1, 1, 192\)(.|\n)*unsplittable"),
    ):
        make("vit_tiny_patch16_224")


def test_a_new_head_of_a_global_model_takes_a_training_step(P):
    """The migration: a global resnet18, its ``fc`` replaced inside a scope, one step of SGD."""
    local = local_model("resnet18")
    model = copy.deepcopy(local).to_global(P, B)
    body = {path: weight for path, weight in model.named_parameters() if "fc." not in path}
    head = numbers((10, 512), 4) / 20, numbers((10,), 5)

    local.fc = nn.Linear(512, 10)
    local.fc.load_state_dict({"weight": tensor(head[0]), "bias": tensor(head[1])})
    with global_scope(P, S0) as scope:
        model.fc = nn.Linear(512, 10)
    assert [record.path for record in scope.converted] == ["fc.weight", "fc.bias"]
    assert local_names(model) == []
    model.fc.load_state_dict({"weight": to_global(head[0], P), "bias": to_global(head[1], P)})
    assert model.fc.weight.sbp == (S0,)
    now = dict(model.named_parameters())
    assert all(now[path] is weight and weight.sbp == (B,) for path, weight in body.items())

    x, factor = numbers((2, 3, 224, 224), 6), numbers((2, 10), 7)
    before = {path: weight.detach().numpy().copy() for path, weight in local.named_parameters()}
    expected = step(local.train(), tensor(x), tensor(factor))
    found = step(model.train(), to_global(x, P), to_global(factor, P))
    assert found.keys() == expected.keys()
    for path, weight in expected.items():
        moved = np.abs(weight - before[path]).max()
        assert moved > 0
        assert_close(found[path], weight, 1e-3 * moved + 1e-6 * np.abs(weight).max())


def step(model: nn.Module, x: flow.Tensor, factor: flow.Tensor) -> dict[str, np.ndarray]:
    """The weights after one step of SGD."""
    optimizer = flow.optim.SGD(model.parameters(), lr=1e-3)
    run(model, x, factor)
    optimizer.step()
    return {path: weight.detach().numpy() for path, weight in model.named_parameters()}
