"""A user's own file under ``mypy --strict``: no complaint, no Any where a type can be known.

OneFlow ships no types, so everything of its own is Any; a class below ``nn.Module`` stays a class.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import autoglobal

pytestmark = pytest.mark.ranks(1)

CONFIG = """
[mypy]
strict = true
disallow_subclassing_any = false
[mypy-oneflow.*]
ignore_missing_imports = true
"""

USER = """
import oneflow as flow
from oneflow import nn

from autoglobal import (
    ActiveScope, AutoglobalError, ConversionError, ConversionRecord, DivergenceError,
    HookRemovedWarning, LateRuleWarning, NeverEnteredWarning, OneFlowMissing, Kept, Left, Placed,
    Preview, Record, Report,
    SharedMemoryWarning, SpecError, SpecTypeError, SplitUpdateWarning, TiedRulesWarning,
    UnconvertedWarning, UnusedRuleWarning, __version__, auto_global, current_scope, describe,
    global_scope, local_scope, local_to_global, nearest, optimizer_to_global,
    preview,
)

P, B, S0 = flow.placement("cpu", ranks=[0]), flow.sbp.broadcast, flow.sbp.split(0)

@auto_global
class Following(nn.Module):
    def depth(self) -> int:
        return 1

@auto_global(P, {"weight": S0, "head.*": None, "*": (B,)}, source="shard", check=False, timeout=6)
class Stating(nn.Module):
    def depth(self) -> int:
        return 1

reveal_type(Following().depth())  # is: int
reveal_type(Stating().depth())  # is: int
follows: type[Following] = Following
states: type[Stating] = Stating

class Plain:
    pass

# mypy does not ask what decorates a class what it returns; editors do.
reveal_type(auto_global(Plain))  # is: def () -> user.Plain
reveal_type(auto_global(P, B)(Plain))  # is: def () -> user.Plain

@global_scope(P, B, when="exit", existing="error", buffers=False, unsplittable="broadcast")
def build(depth: int, *, wide: bool = False) -> Following:
    return Following()

@local_scope()
async def load(path: str) -> bytes:
    return b""

reveal_type(build)  # is: def (depth: int, *, wide: bool =) -> user.Following
reveal_type(load)  # is: def (path: str) -> typing.Coroutine[Any, Any, bytes]
build("deep")  # error: arg-type
build(1, wise=True)  # error: call-arg

with global_scope(P, lambda owner, path, tensor: S0 if tensor.ndim == 2 else B) as scope:
    reveal_type(scope)  # is: autoglobal.scopes.active.ActiveScope
    reveal_type(scope.converted)  # is: list[autoglobal.conversion.records.Record]
    with local_scope():
        reveal_type(current_scope())  # is: autoglobal.scopes.active.ActiveScope | None

def told(open_one: ActiveScope) -> list[str]:
    return [f"{one.path} {one.shape} {one.nbytes}" for one in open_one.converted]

def others(open_one: ActiveScope) -> list[Kept | Left]:
    return [*open_one.kept, *open_one.left]

def total(records: list[Record]) -> int:
    return sum(record.nbytes for record in records)

def paths(report: Report) -> list[str]:
    return [row.path for row in report if row.nbytes > 1]

model = Stating()
reveal_type(describe(model))  # is: autoglobal.report.describe.Report
reveal_type(preview(model, P, {"*": B}, unused="error"))  # is: autoglobal.preview.Preview
reveal_type([row.rule for row in preview(model, P, B)])  # is: list[str | None]
preview(model, P, B, when="exit")  # error: call-arg
record = ConversionRecord()
reveal_type(record.converted)  # is: list[autoglobal.conversion.records.Record]
local_to_global(model, P, B, record=[])  # error: arg-type
reveal_type(local_to_global(model, P, B, record=record))  # is: user.Stating
reveal_type(local_to_global(model, P, B, progress=True))  # is: user.Stating

class Optimizer(flow.optim.SGD):
    pass

local_to_global(model, P, B, optimizer=Optimizer([]))
optimizer_to_global(Optimizer([]), "state.pt")  # error: arg-type
reveal_type(optimizer_to_global(Optimizer([]), {"state": {}}))  # is: user.Optimizer
reveal_type(optimizer_to_global(Optimizer([])))  # is: user.Optimizer
reveal_type(__version__)  # is: str

errors: list[type[AutoglobalError]] = [ConversionError, DivergenceError, SpecError, SpecTypeError]
as_usual: tuple[type[ValueError], type[TypeError], type[ImportError], type[RuntimeError]] = (
    SpecError, SpecTypeError, OneFlowMissing, ConversionError,
)
warnings: list[type[UserWarning]] = [
    HookRemovedWarning, LateRuleWarning, NeverEnteredWarning, SharedMemoryWarning,
    SplitUpdateWarning, UnconvertedWarning, TiedRulesWarning, UnusedRuleWarning,
]

global_scope(P, B, when="later")  # error: arg-type
global_scope(P, B, wen="exit")  # error: call-arg
global_scope(P)  # error: call-arg
local_to_global(model, P, B, when="exit")  # error: call-arg
auto_global(P, B, when="exit")  # error: call-overload
auto_global(P, B)(1)  # error: type-var
local_scope(P, B)  # error: call-arg
"""


def expected() -> dict[int, str]:
    """By line, the type that it reveals or the code of its error."""
    comments = re.compile(r"# (?:is|error): (.*)")
    lines = enumerate(USER.splitlines(), 1)
    return {number: found[1] for number, line in lines if (found := comments.search(line))}


def test_every_public_name_is_there():
    imported = re.search(r"from autoglobal import \((.*?)\)", USER, re.DOTALL)[1]
    assert sorted(re.findall(r"\w+", imported)) == sorted(autoglobal.__all__)


@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy, of the extra 'lint', is not installed")
def test_mypy_knows_what_each_name_gives(tmp_path):
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "mypy.ini").write_text(CONFIG)
    home = Path(autoglobal.__file__).parent.parent
    # Where autoglobal is installed mypy finds it by itself, and minds its py.typed.
    path = {} if home.name == "site-packages" else {"MYPYPATH": str(home)}
    run = subprocess.run(
        [*(sys.executable, "-m", "mypy"), *("--cache-dir", "cache", "user.py")],
        env={**os.environ, **path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    answer = re.compile(r'(\S+):(\d+): (?:note: Revealed type is "(.*)"|error: .*\[(.*)\])')
    said = {}
    for file, line, kind, code in answer.findall(run.stdout):
        assert file == "user.py", run.stdout
        said.setdefault(int(line), kind or code)
    assert said == expected(), run.stdout + run.stderr


def test_the_package_says_that_it_has_types():
    assert Path(autoglobal.__file__).with_name("py.typed").exists()
