"""The keys of a mapping of rules: what each matches, on the paths of real models."""

from __future__ import annotations

import re
import warnings

import pytest
from flowvision import models
from oneflow import nn

from autoglobal import TiedRulesWarning, UnusedRuleWarning, local_to_global
from autoglobal.layout.patterns import Pattern
from tests.helpers.support import S0, S1, B, Model, Snapshot, counted, linear, parameter

W = counted(8, 4)


def tree() -> nn.Module:
    m = Model()
    m.up = linear(W)
    m.encoder = Model()
    m.encoder.up, m.encoder.norm = linear(W), nn.LayerNorm(4)
    m.words = nn.Embedding(8, 4)
    m.encoders = linear(W)
    return m


class Words(nn.Embedding):
    pass


# The table of docs/options.md, a row each.
TABLE = [
    ("encoder.up.weight", {"encoder.up.weight"}),
    ("encoder", {"encoder.up.weight", "encoder.norm.weight", "encoder.norm.bias"}),
    ("encoder.*", {"encoder.up.weight", "encoder.norm.weight", "encoder.norm.bias"}),
    ("*.bias", {"encoder.norm.bias"}),
    ("encoder.n*m", {"encoder.norm.weight", "encoder.norm.bias"}),
    ("*.up.*", {"up.weight", "encoder.up.weight"}),
    ("*.up", {"up.weight", "encoder.up.weight"}),
    ("Embedding.weight", {"words.weight"}),
    ("Linear", {"up.weight", "encoder.up.weight", "encoders.weight"}),
    (nn.Embedding, {"words.weight"}),
    (re.compile(r"enc\w+\.(up|down)\.weight"), {"encoder.up.weight"}),
    (re.compile(r"(?!encoder).*"), {"up.weight", "words.weight"}),
    ("words.weight", {"words.weight"}),
    ("word", set()),
    (re.compile("words"), set()),
]


def matched(key, module: nn.Module) -> set[str]:
    pattern = Pattern(key)
    return {
        f"{path}.{name}" if path else name
        for path, owner in module.named_modules()
        for name, _ in owner.named_parameters(recurse=False)
        if pattern.matches(type(owner), f"{path}.{name}" if path else name)
    }


@pytest.mark.parametrize(("key", "paths"), TABLE, ids=[str(key) for key, _ in TABLE])
def test_what_a_key_matches(P, key, paths):
    m = tree()
    assert matched(key, m) == paths
    if paths:
        local_to_global(m, P, {key: S0, "*": B})
        assert {path for path, one in m.named_parameters() if one.sbp == (S0,)} == paths


def test_a_class_is_its_subclasses_too(P):
    m = nn.Sequential(Words(8, 4), linear(W))
    local_to_global(m, P, {nn.Embedding: S0, "*": B})
    assert (m[0].weight.sbp, m[1].weight.sbp) == ((S0,), (B,))
    assert matched("Embedding", m) == set(), "by name it is that class alone"


# The same table on real models: what the rows of docs/options.md say, in Python, and how many.
IN_MODELS = [
    ("resnet18", "layer1.0.conv1.weight", lambda path, kind: path == "layer1.0.conv1.weight", 1),
    ("resnet18", "layer1", lambda path, kind: path.startswith("layer1."), 12),
    ("resnet18", "layer[12].*", lambda path, kind: path[:7] in ("layer1.", "layer2."), 27),
    ("resnet18", "*.bias", lambda path, kind: path.endswith(".bias"), 21),
    ("resnet18", "*.bn1.weight", lambda path, kind: path.endswith("bn1.weight"), 9),
    ("resnet18", "BatchNorm2d", lambda path, kind: kind == "BatchNorm2d", 40),
    (
        *("resnet18", "BatchNorm2d.weight"),
        *(lambda path, kind: kind == "BatchNorm2d" and path.endswith(".weight"), 20),
    ),
    ("resnet18", nn.Conv2d, lambda path, kind: kind == "Conv2d", 20),
    (
        *("resnet18", re.compile(r"layer\d\.0\.downsample\.0\.weight")),
        *(lambda path, kind: path.endswith("0.downsample.0.weight"), 3),
    ),
    ("vit_tiny_patch16_224", "*.attn.qkv", lambda path, kind: ".attn.qkv." in path, 24),
    ("vit_tiny_patch16_224", "blocks.1", lambda path, kind: path.startswith("blocks.1."), 12),
    ("vit_tiny_patch16_224", "blocks.1*", lambda path, kind: path.startswith("blocks.1"), 36),
    ("vit_tiny_patch16_224", "head", lambda path, kind: path.startswith("head."), 2),
    ("vit_tiny_patch16_224", "*.norm1.*", lambda path, kind: ".norm1." in path, 24),
    ("vit_tiny_patch16_224", nn.LayerNorm, lambda path, kind: kind == "LayerNorm", 50),
]


@pytest.mark.ranks(1)
@pytest.mark.parametrize(
    ("name", "key", "is_meant", "count"),
    IN_MODELS,
    ids=[f"{name} {key}" for name, key, *_ in IN_MODELS],
)
def test_what_a_key_matches_in_real_models(name, key, is_meant, count):
    model = getattr(models, name)()
    owners = dict(model.named_modules())
    expected = {
        path
        for path, _ in model.named_parameters()
        if is_meant(path, type(owners[path.rpartition(".")[0]]).__name__)
    }
    assert len(expected) == count
    assert matched(key, model) == expected


def test_a_class_without_modules_is_no_key(P):
    with pytest.raises(TypeError, match="subclass of nn"):
        local_to_global(linear(W), P, {int: S0})


# What decides for no tensor

SLIPS = [
    ({"wieght": S0, "*": B}, "Close to it: 'weight'", "Write 'weight'"),
    ({"*": B, "weight": S0}, "an earlier rule decides: '*'", "'weight' before"),
    ({"*.norm.running_mean": S0, "*": B}, "only buffers", "buffers='sbp'"),
    ({r"enc\w+\.up\..*": S0, "*": B}, "regular expression", "re.compile("),
    ({nn.Conv2d: S0, "*": B}, "of the class Conv2d", "matched nothing"),
]


def with_a_buffer() -> nn.Module:
    m = tree()
    m.weight = parameter(W)
    m.norm = nn.BatchNorm1d(8)
    return m


@pytest.mark.parametrize(("rules", "said", "write"), SLIPS, ids=[one[1] for one in SLIPS])
def test_an_unused_rule_says_which_slip_it_is_before_anything_has_changed(
    P, recwarn, rank, rules, said, write
):
    m = with_a_buffer()
    before = Snapshot(m)
    with pytest.raises(RuntimeError, match="unused='error'") as caught:
        local_to_global(m, P, rules, unused="error")
    assert said in str(caught.value)
    assert write in str(caught.value)
    before.assert_unchanged()
    local_to_global(m, P, rules)
    told = [one for one in recwarn if issubclass(one.category, UnusedRuleWarning)]
    assert len(told) == (rank == 0), "once for all ranks"


def test_a_filter_makes_an_error_of_it_on_every_rank(P):
    m = tree()
    before = Snapshot(m)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UnusedRuleWarning):
            local_to_global(m, P, {"wieght": S0, "*": B})
    before.assert_unchanged()


def test_a_corrected_rule_that_comes_too_late_is_told(P, recwarn, rank):
    m = linear(W)
    local_to_global(m, P, {"wieght": S0, "*": B})
    recwarn.clear()
    local_to_global(m, P, {"weight": S0, "*": B})
    told = [str(one.message) for one in recwarn]
    assert len(told) == (rank == 0)
    for text in told:
        assert "asks split(dim=0)" in text
        assert "kept. Write existing='convert'" in text
    assert m.weight.sbp == (B,)


def test_the_same_rules_again_say_nothing(P, recwarn):
    m = nn.Sequential(linear(W, counted(8)), nn.BatchNorm1d(8))
    rules = {"0.weight": S1, "1": B, "*": S0}
    local_to_global(m, P, rules)
    local_to_global(m, P, rules)
    assert not list(recwarn)


# Ties


def test_a_tie_is_not_decided_by_the_catch_all(P, recwarn):
    m = Model()
    m.lm_head, m.wte = linear(W), nn.Embedding(8, 4)
    m.wte.weight = m.lm_head.weight
    local_to_global(m, P, {"wte.weight": S0, "*": B})
    assert m.lm_head.weight is m.wte.weight
    assert m.wte.weight.sbp == (S0,)
    assert not list(recwarn)


def test_two_names_of_a_layer_in_a_module_of_two_names_are_all_compared(P, recwarn, rank):
    m = Model()
    m.a = m.b = Model()
    m.a.c = m.a.d = linear(W)
    local_to_global(m, P, {"a.c.weight": S0, "b.d.weight": S1, "*": B})
    told = [one for one in recwarn if issubclass(one.category, TiedRulesWarning)]
    assert len(told) == (rank == 0)
