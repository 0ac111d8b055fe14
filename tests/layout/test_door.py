"""Bad arguments are refused at the door: nothing is patched, nothing is converted.

``check`` and ``timeout`` too, at each door, and what they are when not given.
"""

from __future__ import annotations

import inspect
import math
from typing import get_type_hints

import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import (
    AutoglobalError,
    ConversionError,
    SpecError,
    SpecTypeError,
    auto_global,
    global_scope,
    local_to_global,
)
from autoglobal.layout.spec import OPTIONS, CallOptions, GlobalSpec, Options
from tests.helpers.scopes import METHODS, clean
from tests.helpers.support import (
    S0,
    B,
    Model,
    assert_global,
    assert_local,
    counted,
    linear,
    parameter,
)
from tests.helpers.trees import globally


def refused(kind: type, *arguments, ours: bool = True, **options) -> str:
    """What the door says; it must let nobody in and leave nn.Module alone."""
    before = [vars(nn.Module)[name] for name in METHODS]
    entered = False
    with pytest.raises(kind) as caught, global_scope(*arguments, **options):
        entered = True
    assert not entered
    assert all(vars(nn.Module)[name] is raw for name, raw in zip(METHODS, before))
    assert nn.Linear(2, 2).weight.is_local
    assert isinstance(caught.value, AutoglobalError) or not ours
    return str(caught.value)


def test_the_kinds_of_errors():
    assert issubclass(ConversionError, AutoglobalError)
    assert issubclass(ConversionError, RuntimeError)
    assert issubclass(AutoglobalError, Exception)


def not_placements():
    return ["cpu", None, flow.device("cpu"), [0], B]


@pytest.mark.parametrize("placement", not_placements(), ids=lambda value: type(value).__name__)
def test_a_placement_of_a_wrong_type(placement):
    message = refused(TypeError, placement, S0)
    assert "placement" in message
    assert type(placement).__name__ in message or repr(placement) in message


def test_arguments_the_wrong_way_round(P):
    assert "placement" in refused(TypeError, S0, P)


def test_ranks_beyond_the_world(world):
    message = refused(ValueError, flow.placement("cpu", [0, 7]), B)
    assert "7" in message
    assert str(world) in message.replace("7", "")
    assert "python -m oneflow.distributed.launch --nproc_per_node" in message


def test_ranks_beyond_the_world_in_two_dimensions(world):
    message = refused(ValueError, flow.placement("cpu", [[0, 1], [2, 7]]), (B, B))
    assert "7" in message
    assert "python -m oneflow.distributed.launch --nproc_per_node" in message


@pytest.mark.ranks(1)
def test_a_negative_rank_needs_no_more_ranks():
    """OneFlow makes such a placement on one rank."""
    assert "launch" not in refused(ValueError, flow.placement("cpu", [-1]), B)


def test_the_launcher_line_names_the_ranks_that_are_needed():
    message = refused(ValueError, flow.placement("cpu", list(range(8))), B)
    assert "--nproc_per_node 8" in message


@pytest.mark.skipif(flow.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_a_cuda_placement_without_a_cuda_device(world):
    """One rank would raise at the conversion and the others wait for ever."""
    message = refused(ValueError, flow.placement("cuda", list(range(world))), B)
    assert "cuda" in message.lower()


NOT_SBPS = {
    "None": lambda: None,
    "text": lambda: "broadcast",
    "text in a list": lambda: ["split(0)"],
    "number": lambda: 0,
    "function": lambda: flow.sbp.split,
    "None in a list": lambda: [None],
    "None after an sbp": lambda: [B, None],
    "list in a list": lambda: [[B]],
    "module": lambda: nn.Linear(2, 2),  # can be called, as a class can
    "class": lambda: nn.Linear,
    "function of one parameter": lambda: lambda tensor: B,
    "array": lambda: counted(3, 4),
    "set": lambda: {B} if B.__hash__ else {0},
}


@pytest.mark.parametrize("make", NOT_SBPS.values(), ids=NOT_SBPS.keys())
def test_what_is_no_sbp(P, make):
    """``[B, None]`` would end the process inside OneFlow."""
    message = refused(TypeError, P, make())
    assert "sbp" in message
    assert "\n" not in message


def test_a_function_that_tells_not_what_it_takes(P):
    """Nor does it have to: some functions of C's do not."""
    with global_scope(P, max):
        pass


@pytest.mark.parametrize("sbp", [lambda *all_: B, lambda o, p, t, more=1: B], ids=["any", "more"])
def test_a_function_that_takes_more(P, sbp):
    m = Model()
    with global_scope(P, sbp):
        m.new = parameter(counted(8))
    assert_global(m.new, counted(8), P, B)


@pytest.mark.parametrize("sbp", [[], (), [B, B], (S0, B, B)], ids=str)
def test_a_wrong_number_of_sbps(P, sbp):
    message = refused(ValueError, P, sbp)
    assert "sbp" in message
    assert str(len(sbp)) in message


@pytest.mark.parametrize("sbp", [B, [B], (B, B, B)], ids=str)
def test_a_wrong_number_of_sbps_for_two_dimensions(world, sbp):
    message = refused(ValueError, flow.placement("cpu", [list(range(world))]), sbp)
    assert "2" in message


BAD_VALUES = {
    "source": "half",
    "when": "later",
    "existing": "replace",
    "buffers": "split",
    "unsplittable": "ignore",
}


@pytest.mark.parametrize(("option", "value"), BAD_VALUES.items(), ids=BAD_VALUES.keys())
def test_an_unknown_value_of_an_option(P, option, value):
    message = refused(ValueError, P, S0, **{option: value})
    assert option in message
    assert value in message


def test_the_message_lists_the_values_there_are(P):
    message = refused(ValueError, P, S0, source="half")
    assert "full" in message
    assert "shard" in message


def test_buffers_true_is_no_value(P):
    """False is one, so True is a likely guess; which of the two ways it meant is unclear."""
    message = refused((TypeError, ValueError), P, S0, buffers=True)
    assert "buffers" in message


def test_an_unknown_option(P):
    assert "sauce" in refused(TypeError, P, S0, ours=False, sauce="full")


def test_options_are_keywords_only(P):
    refused(TypeError, P, S0, "shard", ours=False)


def test_missing_sbp(P):
    refused(TypeError, P, ours=False)


def test_a_bad_scope_inside_a_good_one_leaves_the_good_one_in_force(P):
    m = Model()
    with global_scope(P, S0) as scope:
        with pytest.raises(TypeError), global_scope(P, None):
            pass
        m.new = parameter(counted(8))
    assert_global(m.new, counted(8), P, S0)
    assert len(scope.converted) == 1


@pytest.mark.ranks(2, 4)
def test_a_global_tensor_for_an_sbp_on_one_rank_only_leaves_the_others_alone(P, rank):
    """OneFlow makes its text together with the other ranks, which do not come."""
    there, m = globally(counted(8, 4), P, S0), Model()
    if rank == 0:
        for arguments in ((P, there), (there, S0), (P, {"*": [there]})):
            assert "<global Parameter, (8, 4)>" in refused(TypeError, *arguments)
    with global_scope(P, S0):
        m.new = parameter(counted(8))
    assert_global(m.new, counted(8), P, S0)


def test_a_large_model_is_named_and_not_printed(P):
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(100)))
    message = refused(TypeError, model, P)
    assert "placement=<module Sequential>" in message
    assert len(message) < 200


def test_what_cannot_be_shown_is_an_error_of_the_option_all_the_same(P):
    class Broken:
        def __repr__(self):
            raise RuntimeError("no text")

    assert "Broken" in refused(TypeError, P, Broken())


def test_an_option_that_auto_global_does_not_have(P):
    with pytest.raises(TypeError, match=r"no option 'sauce'\. .* Write one of source, ") as caught:
        auto_global(P, S0, sauce="full")
    assert isinstance(caught.value, AutoglobalError)


@pytest.mark.ranks(2, 4)
def test_a_refusal_on_one_rank_only_leaves_the_others_alone(P, rank):
    """Nothing is asked of the other ranks before the arguments are right."""
    m = Model()
    if rank == 0:
        refused(ValueError, P, [S0, S0])
    with global_scope(P, S0):
        m.new = parameter(counted(8))
    assert_global(m.new, counted(8), P, S0)


W = counted(8, 4)


def by_scope(P, m, **options) -> None:
    with global_scope(P, S0, **options):
        m.new = parameter(W)


def by_class(P, m, **options) -> None:
    made = auto_global(P, S0, **options)(type("Layer", (nn.Module,), {}))()
    made.new = parameter(W)
    m.new = made.new


def by_call(P, m, **options) -> None:
    m.new = parameter(W)
    local_to_global(m, P, S0, **options)


at_each_door = pytest.mark.parametrize(
    "convert", [by_scope, by_class, by_call], ids=["global_scope", "auto_global", "local_to_global"]
)

WRONG = {
    "check": (SpecTypeError, [1, 0, None, "yes", 1.0]),
    "timeout": (SpecTypeError, [True, False, None, "10", [5], 1j]),
    "timeout value": (SpecError, [0, 0.0, -1, -0.5, math.nan, math.inf, -math.inf]),
}


@at_each_door
@pytest.mark.parametrize(
    ("option", "kind", "value"),
    [
        pytest.param(case.split()[0], kind, value, id=f"{case}-{value}")
        for case, (kind, values) in WRONG.items()
        for value in values
    ],
)
def test_what_it_may_not_be(P, convert, option, kind, value):
    m = Model()
    with pytest.raises(kind) as caught:
        convert(P, m, **{option: value})
    assert type(caught.value) is kind
    assert option in str(caught.value)
    assert repr(value) in str(caught.value), "what was received"
    if convert is by_call:
        assert_local(m.new, W)
    else:
        assert not m._parameters
    assert clean()


@at_each_door
@pytest.mark.parametrize(
    "options",
    [{"check": True}, {"check": False}, {"timeout": 60}, {"timeout": 90.5}, {"timeout": 1e9}],
    ids=str,
)
def test_what_it_may_be(P, convert, options):
    m = Model()
    convert(P, m, **options)
    assert_global(m.new, W, P, S0)


@pytest.mark.parametrize("function", [global_scope, local_to_global])
def test_what_it_is_when_not_given(function):
    given = inspect.signature(function).parameters
    assert given["check"].default is True
    assert given["timeout"].default == 600.0
    assert given["timeout"].kind is given["check"].kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.ranks(2, 4)
@at_each_door
def test_a_refused_option_on_one_rank_only_leaves_the_others_alone(P, rank, world, convert):
    """Nothing is asked of the other ranks before the options are right."""
    m = Model()
    if rank == world - 1:
        with pytest.raises(SpecError):
            convert(P, Model(), timeout=-1)
    m = local_to_global(linear(W + 1000 * rank), P, S0)
    assert_global(m.weight, W, P, S0)


def test_the_options_are_the_same_everywhere():
    """They are stated in global_scope; the other entry points and their types derive from these."""
    stated = inspect.signature(global_scope).parameters
    of_a_call = {name: one for name, one in stated.items() if name != "when"}
    endless = {name: one for name, one in of_a_call.items() if name != "unused"}
    for function, known in ((local_to_global, of_a_call), (auto_global, endless)):
        shown = inspect.signature(function).parameters
        for name, one in known.items():
            if name not in ("placement", "sbp"):
                assert shown[name].default == one.default
                assert shown[name].kind == one.kind
        assert set(shown) - set(known) <= {"module", "progress", "record", "optimizer"}
        assert "when" not in shown
    fields = get_type_hints(GlobalSpec)
    for types, known in ((CallOptions, of_a_call), (Options, endless)):
        own = {name: fields[name] for name in known if name not in ("placement", "sbp")}
        assert get_type_hints(types) == own
    assert {one.name for one in OPTIONS} == set(stated) - {"placement", "sbp"}
