"""flowvision models whose constructors use their own weights: ``when="exit"`` builds them.

``fan_tiny_8_p4_hybrid`` runs a forward pass on local data in its constructor, ``ssd300_vgg16``
asks a weight for its ``.device``; under ``when="assign"`` both fail.
"""

from __future__ import annotations

import flowvision.models
import oneflow as flow
import pytest

from autoglobal import global_scope
from tests.helpers.support import S0, B, as_array, assert_global, global_names, local_names, tensors

pytestmark = pytest.mark.ranks(1, 2)


def fan():
    return flowvision.models.fan_tiny_8_p4_hybrid()


def ssd():
    return flowvision.models.detection.ssd300_vgg16(pretrained_backbone=False)


MODELS = {"fan_tiny_8_p4_hybrid": fan, "ssd300_vgg16": ssd}


@pytest.mark.parametrize(
    ("name", "sbp"),
    [("fan_tiny_8_p4_hybrid", B), ("fan_tiny_8_p4_hybrid", S0), ("ssd300_vgg16", S0)],
    ids=str,
)
def test_it_is_built_and_nothing_is_left_local(P, name, sbp):
    with global_scope(P, sbp, when="exit", unsplittable="broadcast") as scope:
        model = MODELS[name]()
        assert global_names(model) == []
    assert local_names(model) == []
    assert set(tensors(model)) <= {record.path for record in scope.converted}
    assert all(buffer.sbp == (B,) for buffer in model.buffers())
    split = [weight for weight in model.parameters() if weight.sbp == (S0,)]
    assert len(split) > (0.8 * len(list(model.parameters())) if sbp == S0 else -1)


@pytest.mark.parametrize("name", MODELS)
def test_as_it_assigns_its_constructor_fails_with_a_note(P, name):
    with (
        pytest.raises(RuntimeError) as caught,
        global_scope(P, B, unsplittable="broadcast"),
    ):
        MODELS[name]()
    said = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert 'when="exit"' in said


@pytest.mark.parametrize("sbp", [B, S0], ids=["B", "S0"])
def test_a_fan_keeps_the_first_ranks_initial_values(P, rank, sbp):
    """Its own forward asks for ``.device`` too, so flowvision's fan cannot compute globally."""
    flow.manual_seed(rank)
    with global_scope(P, sbp, when="exit", unsplittable="broadcast"):
        model = fan()
        initial = {path: value.detach().clone() for path, value in model.state_dict().items()}
    assert len(initial) > 100
    for path, value in model.state_dict().items():
        expected = as_array(initial[path].to_global(P, B).to_local())
        assert_global(value, expected, P, value.sbp)
