"""A sample of ``make test-models``: flowvision's models, each built inside a scope."""

from __future__ import annotations

import pytest

from tests.helpers.all_models import build, names
from tests.helpers.support import S0, local_names

pytestmark = pytest.mark.ranks(1)


@pytest.mark.parametrize("name", names(40))
def test_nothing_is_left_local(P, name):
    model = build(name, P)
    assert local_names(model) == []
    assert any(weight.sbp == (S0,) for weight in model.parameters())
