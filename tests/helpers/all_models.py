"""Every flowvision model that needs no download, built inside a scope: nothing local is left.

``make test-models`` runs all of them; the tests run every 40th. On each rank of a launcher:
``python -m autoglobal.commands.launcher --ranks 2 --limit 7200 -- -m tests.helpers.all_models
[EVERY]``
"""

from __future__ import annotations

import gc
import sys
import time

import oneflow as flow

from autoglobal import global_scope
from tests.helpers.support import S0, local_names

# Built with when="exit": their constructors use their own weights (a forward pass, .device).
USES_ITS_WEIGHTS = ("fan_", "ssd300_vgg16", "ssdlite320")
# Fail without a scope too, for a reason of their own.
FAILS_LOCALLY = {
    "googlenet": "needs scipy",
    "resnest50": "flowvision 0.2.1 calls an initialiser that OneFlow 0.9.0 does not have",
    "resnest101": "as resnest50",
    "resnest200": "as resnest50",
    "resnest269": "as resnest50",
}


def names(every: int) -> list[str]:
    """The names of flowvision's models, every so-manieth of them."""
    from flowvision.models import ModelCreator

    return sorted(set(ModelCreator.model_list()) - set(FAILS_LOCALLY))[::every]


def options(name: str) -> dict[str, bool]:
    """What keeps a constructor from downloading weights."""
    from flowvision.models import ModelCreator

    module = ModelCreator._model_entrypoints[name].__module__
    return {"pretrained_backbone": False} if "detection" in module or "segment" in module else {}


def build(name: str, placement: flow.placement, sbp=S0):
    """The model, built inside a scope."""
    from flowvision.models import ModelCreator

    when = "exit" if name.startswith(USES_ITS_WEIGHTS) else "assign"
    with global_scope(placement, sbp, unsplittable="broadcast", when=when):
        return ModelCreator.create_model(name, **options(name))


def main(every: int) -> int:
    placement = flow.placement("cpu", list(range(flow.env.get_world_size())))
    failed = []
    for name in names(every):
        start = time.monotonic()
        try:
            model = build(name, placement)
            result = f"local: {left}" if (left := local_names(model)) else "ok"
        except Exception as error:
            result = f"{type(error).__name__}: {str(error).strip()[-300:]}"
        if result != "ok":
            failed.append(name)
        print(f"{name:40} {time.monotonic() - start:6.1f} s  {result}", flush=True)
        model = None
        gc.collect()
    print(f"{len(names(every)) - len(failed)} built, {len(failed)} failed: {' '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
