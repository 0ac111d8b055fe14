"""The list of all errors and warnings of autoglobal on one rank, each with a way to provoke it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import oneflow as flow
from oneflow import nn

from autoglobal import (
    Placed,
    auto_global,
    describe,
    global_scope,
    local_scope,
    local_to_global,
    nearest,
    optimizer_to_global,
)
from autoglobal.commands.cli import _seconds
from tests.helpers.scopes import close, following, in_threads
from tests.helpers.support import S0, S1, B, Model, counted, linear, parameter, tensor
from tests.helpers.trees import globally

A = counted(8, 4)
ON_ONE = flow.placement("cpu", [0])
ELSEWHERE = flow.placement("cpu", [[0]])  # of one rank as well, and another placement


def scope(*arguments, **options):
    return lambda: global_scope(*(arguments or (ON_ONE, B)), **options)


def assigned(*arguments, value=None, to=Model, **options):
    """Assign a Parameter, or what ``value()`` makes, as ``Model.new`` in a scope."""

    def act():
        m, made = to(), parameter(A) if value is None else value()
        with global_scope(*(arguments or (ON_ONE, B)), **options):
            m.new = made

    return act


def decorated(function):
    return lambda: global_scope(ON_ONE, B)(function)


def drawn(path="m.svg", **options):
    return lambda: describe(linear(A)).draw(path, **options)


def over_a_text():
    with TemporaryDirectory() as folder:
        file = Path(folder, "text.svg")
        file.write_text("not to be lost")
        drawn(file)()


def through_a_link():
    with TemporaryDirectory() as folder:
        file = Path(folder, "link.svg")
        file.symlink_to("elsewhere.svg")
        drawn(file)()


def following_a_module():
    return auto_global(lambda module: module, B)(type("Own", (Model,), {}))()


def with_auto_global():
    with auto_global(ON_ONE, B):
        pass


def in_a_graph():
    class Own(nn.Graph):
        def build(self, x):
            assigned()()
            return x

    Own()(tensor(A).to_global(ON_ONE, B))


def far_away():
    return nn.Parameter(flow.zeros(8, 4, placement=ELSEWHERE, sbp=(B, B)))


def misfitting_gradient():
    p = parameter(A)
    p.grad = tensor(counted(4))
    assigned(value=lambda: p)()


def on_two_placements():
    m = following(ON_ONE)
    m.other = far_away()
    m.new = parameter(A)


def beside_another():
    m = Model()
    m.far = far_away()
    return m


def near_another():
    m = beside_another()
    m.new = parameter(A)
    return m


def near_two_placements():
    m = near_another()
    m.near = nn.Parameter(flow.zeros(8, 4, placement=ON_ONE, sbp=B))
    local_to_global(m, ON_ONE, Placed(nearest, B))


def of_a_result():
    with global_scope(ON_ONE, B):
        Model().register_buffer("new", parameter(A) * 2)


def sgd(module):
    return flow.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


def of_a_misfit(together=False):
    layer = linear(A)
    optimizer = sgd(layer)
    layer(tensor(A[:, :4])).sum().backward()
    optimizer.step()
    optimizer._state[layer.weight]["momentum_buf"] = tensor(counted(3, 3))
    local_to_global(layer, ON_ONE, B, optimizer=optimizer if together else None)
    optimizer_to_global(optimizer)


def of_lamb():
    layer = local_to_global(linear(A), ON_ONE, S0)
    optimizer_to_global(flow.optim.LAMB(layer.parameters()))


def out_of_order():
    outer, inner = global_scope(ON_ONE, B), local_scope()
    with ExitStack() as stack:
        outer.__enter__()
        stack.enter_context(inner)
        close(outer)


def from_another_thread():
    with global_scope(ON_ONE, B) as frame:
        in_threads(lambda: close(frame.opened_by))


class Late(Model):
    def __init__(self):
        super().__init__()
        self.weight = parameter(A)


def tied():
    m = Model()
    m.a = m.b = parameter(A)
    local_to_global(m, ON_ONE, {"a": B, "b": S0})


def late():
    with global_scope(ON_ONE, {"sub.weight": S0, "*": B}):
        Model().sub = Late()


# What provokes it, and words that it must hold: the option or the path, and what was received.
CASES = {
    "placed.py check_type": [(scope("cpu", B), "placement", "'cpu'")],
    "placed.py check_placement": [
        (scope(flow.placement("cpu", [0, 7]), B), "rank 7", "[0, 7]", "--nproc_per_node 8"),
    ],
    "placed.py _check_cuda": [(scope(flow.placement("cuda", [0]), B), "placement", "cuda", "none")],
    "local_to_global.py _check_record": [
        (
            lambda: local_to_global(linear(A), ON_ONE, B, record=[]),
            "record=[]",
            "ConversionRecord()",
        )
    ],
    "spec.py check_together": [
        (
            scope(ON_ONE, Placed(ELSEWHERE, [B, B]), same_placement=True),
            *("same_placement=True", "Placed(", "same_placement=False"),
        )
    ],
    "spec.py check_options": [(scope(source="half"), "source='half'", "'shard'")],
    "spec.py check_flag": [(scope(check=1), "check=1"), (scope(same_placement=None), "=None")],
    "registry.py check_module": [
        (lambda: local_to_global([linear(A)], ON_ONE, B), "module=[<module Linear>]", "ModuleList"),
        (lambda: describe(nn.Linear), "Linear", "Write describe for an instance"),
        (lambda: describe(globally(A, ON_ONE, B)), "<global Parameter, (8, 4)>"),
    ],
    "spec.py _check_timeout": [
        (scope(timeout="soon"), "timeout='soon'"),
        (scope(timeout=float("inf")), "timeout=inf"),
    ],
    "spec.py GlobalSpec.fit": [
        (assigned(ON_ONE, S1, value=lambda: parameter(A[0])), "Model.new", "split(dim=1)", "(4,)")
    ],
    "rules.py SbpRules.__init__": [
        (scope(ON_ONE, {}), "sbp={}"),
        (scope(ON_ONE, flow.sbp.split), "sbp=flow.sbp.split", "split(0)"),
    ],
    "rules.py check_signature": [
        (scope(ON_ONE, lambda tensor: B), "sbp=<function", "(tensor)", "lambda owner, path, tensor")
    ],
    "patterns.py Pattern.__init__": [(scope(ON_ONE, {3: B}), "sbp", "Received: 3", "re.compile")],
    "placed.py check_sbps": [
        (scope(ON_ONE, "broadcast"), "Received: sbp='broadcast'", "Write flow.sbp.broadcast"),
        (scope(ON_ONE, "S0"), "Received: sbp='S0'", "Write flow.sbp.split(0)"),
        (scope(ON_ONE, [("0.*", S0)]), "sbp=dict([('0.*', "),
    ],
    "placed.py checked_sbp": [
        (scope(ON_ONE, [B, B]), "2 in sbp=", "placement=", "sbp=[flow.sbp.broadcast]"),
    ],
    "rules.py SbpRules._rule": [(scope(ON_ONE, {"*": 3}), "in the rule '*'", "sbp=3")],
    "rules.py SbpRules._asked": [
        (assigned(ON_ONE, lambda *_: 3), "Model.new", "function", "sbp=3")
    ],
    "rules.py SbpRules.decide": [(assigned(ON_ONE, {"x.*": B}), "'new'", "'Model.new'", "'x.*'")],
    "auto_global.py _check_options": [
        (lambda: auto_global(ON_ONE, B, sauce=1), "auto_global", "'sauce'", "sauce=1", "source"),
        (lambda: auto_global(ON_ONE, B, when="exit"), "when='exit'", "global_scope"),
    ],
    "auto_global.py auto_global": [(lambda: auto_global(Model, check=False), "{'check': False}")],
    "auto_global.py _checked": [(lambda: auto_global(len), "auto_global", "len")],
    "auto_global.py _Decorator.__enter__": [(with_auto_global, "auto_global", "a with statement")],
    "auto_global.py _Asking.spec_of": [
        (
            lambda: setattr(following_a_module(), "w", parameter(A)),
            *("Own", "placement function", "placement=<module Own>"),
        )
    ],
    "auto_global.py _Following._spec_for": [
        (on_two_placements, "Follower.new", "Follower.other on")
    ],
    "context.py ScopeContext.__call__": [
        (decorated(Model), "global_scope", "class Model", "@auto_global"),
        (lambda: local_scope()(Model), "local_scope", "class Model", "__init__"),
        (decorated(staticmethod(len)), "below @staticmethod"),
        (decorated(3), "global_scope", "Received: 3"),
    ],
    "scope.py local_scope.__init__": [(lambda: local_scope(len), "local_scope", "function len")],
    "context.py ScopeContext.end_frame": [(out_of_order, "global_scope(", "local_scope()")],
    "context.py ScopeContext._refuse_to_close": [
        (lambda: close(local_scope()), "local_scope()", "is not open"),
        (from_another_thread, "global_scope(", "another thread"),
    ],
    "plan.py Plan.settle": [
        (
            assigned(to=beside_another, same_placement=True),
            *("Model.new", "Model.far", "[0]", "[[0]]", "same_placement=False"),
        ),
        (
            lambda: local_to_global(beside_another(), ON_ONE, B, existing="error"),
            *("Model.far", "existing='error'"),
        ),
        (
            lambda: local_to_global(nn.parallel.DistributedDataParallel(linear(A)), ON_ONE, B),
            *("Linear.weight", "(a Linear), wrapped"),
        ),
        (in_a_graph, "Model.new", "inside nn.Graph.build", "(8, 4)"),
        (lambda: in_threads(assigned()), "Model.new", "in the thread 'Thread-", "(8, 4)"),
    ],
    "plan.py Plan._resolved": [
        (
            lambda: local_to_global(near_another(), ON_ONE, Placed(nearest, S0)),
            *("Model.new", "nearest", "Placed(nearest, ["),
        )
    ],
    "plan.py Plan._nearest": [
        (assigned(ON_ONE, Placed(nearest, B)), "Model.new", "nearest", "when='exit'"),
        (near_two_placements, "Model.new", "far on", "near on", "Placed(placement, sbp)"),
    ],
    "session.py Session.warn": [
        (assigned(ON_ONE, {"x": B, "*": B}, unused="error"), "the rule 'x'", "matched nothing"),
    ],
    "plan.py Plan._decide": [
        (misfitting_gradient, "Model.new", "(8, 4)", "(4,)", ".grad = None"),
        (of_a_result, "Model.new", "grad_fn", "(8, 4)", ".detach()"),
    ],
    "optimizer_to_global.py check_optimizer": [
        (lambda: optimizer_to_global(linear(A)), "optimizer=<module Linear>"),
    ],
    "optimizer_to_global.py check_states": [
        (lambda: of_a_misfit(together=True), "Parameter 0", "'momentum_buf'", "(3, 3)")
    ],
    "optimizer_to_global.py _load": [
        (lambda: optimizer_to_global(sgd(linear(A)), {"lr": 1}), "state_dict={'lr': 1}", "'state'")
    ],
    "optimizer_to_global.py _Follow.agree": [
        (of_a_misfit, "Parameter 0", "'momentum_buf'", "(3, 3)")
    ],
    "drawing.py draw": [
        (drawn(limit="all"), "limit='all'"),
        (drawn(limit=0), "limit=0"),
        (drawn("/no/such/folder/m.svg"), "path='/no/such/folder/m.svg'"),
        (over_a_text, "text.svg", "no SVG picture"),
        (through_a_link, "link.svg", "a link to what is not there"),
    ],
    "drawing.py _checked": [(drawn(3), "path=3"), (drawn("m.png"), "path='m.png'", "'m.svg'")],
    "rows.py at_path": [(lambda: describe(linear(A))["wieght"], "Linear", "'weight'")],
    "cli.py _seconds": [(lambda: _seconds("0"), "'0'"), (lambda: _seconds("soon"), "'soon'")],
}

# The same of warnings, each of which names a rule.
WARNINGS = {
    "session.py warn_caller": [
        (lambda: local_to_global(linear(A), ON_ONE, {"x.*": B, "*": B}), "the rule 'x.*'"),
        (tied, "Model.a and Model.b", "'a'", "'b'"),
        (of_lamb, "Parameter 0 of group 0", "split(dim=0)"),
        (lambda: optimizer_to_global(sgd(linear(A))), "SGD", "local_to_global(model"),
        (late, "the rule 'sub.weight'", "Model.sub.weight", "when='exit'"),
    ],
}
# Those that are not provoked on one rank, and why.
ELSEWHERE_OR_NEVER = {
    "agreement.py agree": "of several ranks",
    "apply.py _put_all": "of several ranks",
    "batch.py fit_together": "of several ranks",
    "spec.py check_names": "Python's own words: test_local_to_global.py",
    "installation.py require_installation": "without OneFlow, or an older wrapt: test_import.py",
    "watchdog.py _end": "it ends the process: test_waiting.py",
    "selftest.py _expect": "where OneFlow computes wrong; the doctor says what to type",
    "agreement.py _first_difference": "never, unless autoglobal compares what it does not tell",
    "context.py ScopeContext.new_frame": "never: each kind of scope has its own",
    "auto_global.py _Handler._spec_for": "never: each kind of class has its own",
    "auto_global.py _Decorator.__exit__": "never: there is no way in",
    "context.py _Suspendable._closed": "Python's own sign that a generator was closed",
}
if flow.cuda.is_available():
    del CASES["placed.py _check_cuda"]
    ELSEWHERE_OR_NEVER["placed.py _check_cuda"] = "where there is no CUDA device"
