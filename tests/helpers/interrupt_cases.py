"""What is interrupted: each case makes fresh objects, and says what must hold of them afterwards.

The placement is one rank's: they are run on one rank.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import oneflow as flow
from oneflow import nn

from autoglobal import (
    AutoglobalError,
    auto_global,
    current_scope,
    global_scope,
    local_scope,
    local_to_global,
)
from tests.helpers.scopes import close
from tests.helpers.support import (
    S0,
    B,
    Model,
    counted,
    error_of,
    linear,
    local_names,
    parameter,
    tensor,
    tensors,
)
from tests.helpers.trees import logical

P = flow.placement("cpu", ranks=[0])
W, V = counted(4, 2), counted(2, start=20)
GRAD, SEEN = counted(4, 2, start=40), counted(3, start=60)


def with_grad(array: np.ndarray, grad: np.ndarray) -> nn.Parameter:
    made = parameter(array)
    made.grad = tensor(grad)
    return made


def small_tree() -> nn.Sequential:
    """Two layers, a buffer and a gradient."""
    tree = nn.Sequential(linear(W, counted(4, start=80)), linear(counted(2, 4)))
    tree[0].register_buffer("seen", tensor(SEEN))
    tree[0].weight.grad = tensor(GRAD)
    return tree


def wrong_numbers(what: str, found: flow.Tensor, array: np.ndarray) -> Iterator[str]:
    if not np.array_equal(logical(found), array):
        yield f"{what} has other numbers"


class Case:
    """Fresh objects; ``run`` is what is interrupted, and can be done with them once more."""

    def run(self) -> None:
        raise NotImplementedError

    def faults(self) -> Iterator[str]:
        """What is half done."""
        yield from ()

    def left(self) -> Iterator[str]:
        """What is not done, once ``run`` has come to its end."""
        yield from ()


class Assigned(Case):
    """A case in which a Parameter, a buffer and a tree are assigned to a module."""

    registered_local = False  # whether a module may hold one of them that is still local

    def __init__(self) -> None:
        self.module = Model()
        self.parameter, self.buffer = with_grad(W, GRAD), tensor(SEEN)
        self.tree = small_tree()
        self.numbers = {path: logical(one) for path, one in tensors(self.tree).items()}

    def assign(self, module: nn.Module) -> None:
        module.new = self.parameter
        module.register_buffer("seen", self.buffer)
        module.tree = self.tree

    def faults(self) -> Iterator[str]:
        yield from self.faults_of_values()
        yield from self.faults_of(self.module)

    def faults_of_values(self) -> Iterator[str]:
        """Each is local or global as a whole, with its gradients, and has its numbers."""
        found = {"new": self.parameter, **tensors(self.tree)}
        yield from wrong_numbers("new", self.parameter, W)
        for path, array in self.numbers.items():
            yield from wrong_numbers(f"tree.{path}", found[path], array)
        if 0 < len(local_names(self.tree)) < len(self.numbers):
            yield f"tree is half global, local are {local_names(self.tree)}"
        for path, weight in (("new", self.parameter), ("tree.0.weight", self.tree[0].weight)):
            if weight.grad is None or weight.grad.is_global != weight.is_global:
                yield f"{path} and its gradient are not both local or both global"
            else:
                yield from wrong_numbers(f"the gradient of {path}", weight.grad, GRAD)

    def faults_of(self, module: nn.Module) -> Iterator[str]:
        """What the module holds is global, and what is global the module holds."""
        values = {"new": self.parameter, "tree": self.tree}
        for name, value in values.items():
            held = module._parameters.get(name, module._modules.get(name))
            if held is not None and held is not value:
                yield f"{name} is not what was assigned"
            is_global = not tensor_of(value).is_local
            if is_global and held is None:
                yield f"{name} is global and not registered"
            if held is not None and not (is_global or self.registered_local):
                yield f"{name} is registered and local"
        seen = module._buffers.get("seen")
        if seen is not None:
            yield from wrong_numbers("seen", seen, SEEN)
            if seen.is_local and not self.registered_local:
                yield "seen is registered and local"
        if not self.buffer.is_local:
            yield "the caller's buffer was changed"
        if module._non_persistent_buffers_set:
            yield "seen is no longer persistent"

    def left(self) -> Iterator[str]:
        held = tensors(self.module)
        missing = {"new", "seen", *(f"tree.{path}" for path in self.numbers)} - held.keys()
        if missing:
            yield f"not registered: {sorted(missing)}"
        if local_names(self.module):
            yield f"still local: {local_names(self.module)}"


def tensor_of(value: nn.Module | flow.Tensor) -> flow.Tensor:
    return next(value.parameters()) if isinstance(value, nn.Module) else value


class OpenAndClose(Case):
    """Two empty scopes, one of which was made before."""

    def __init__(self) -> None:
        self.scope = global_scope(P, B)

    def run(self) -> None:
        with global_scope(P, B):
            pass
        with self.scope:
            pass

    def left(self) -> Iterator[str]:
        if not isinstance(error_of(lambda: close(self.scope)), AutoglobalError):
            yield "the scope can be closed once more"


class Assign(Assigned):
    """A Parameter, a buffer and a tree, assigned in a scope."""

    def run(self) -> None:
        with global_scope(P, B):
            self.assign(self.module)


class AtExit(Assigned):
    """The same, converted as the scope ends."""

    registered_local = True

    def run(self) -> None:
        with global_scope(P, B, when="exit"):
            self.assign(self.module)

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        names = local_names(self.module)
        if 0 < len(names) < len(tensors(self.module)):
            yield f"what was assigned is half global, local are {names}"


class Convert(Case):
    """A tree in the middle of its training: a tied Parameter, gradients, a buffer, an optimizer.

    The optimizer's state follows the tree in a second step, as ``optimizer_to_global`` afterwards.
    Between the two an interrupt leaves it local as a whole, and the same call takes it along.
    """

    def __init__(self) -> None:
        self.tree = small_tree()
        self.tree.tied = Model()
        self.tree.tied.weight = self.tree[0].weight
        self.weights = list(self.tree.parameters())
        self.optimizer = flow.optim.Adam(self.weights, lr=0.1)
        for weight in self.weights:
            weight.grad = tensor(counted(*weight.shape, start=40))
        self.optimizer.step()
        self.numbers = {path: logical(one) for path, one in tensors(self.tree).items()}
        self.grads = [logical(weight.grad) for weight in self.weights]
        self.averages = {path: logical(one) for path, one in self.state().items()}

    def state(self) -> dict[str, flow.Tensor]:
        held = [self.optimizer._state[weight] for weight in self.weights]
        return {f"{i}.{name}": one for i, names in enumerate(held) for name, one in names.items()}

    def run(self) -> None:
        local_to_global(self.tree, P, B, optimizer=self.optimizer)

    def faults(self) -> Iterator[str]:
        found, names = tensors(self.tree), local_names(self.tree)
        if found.keys() != self.numbers.keys():
            yield f"registered are only {list(found)}"
            return
        if 0 < len(names) < len(found):
            yield f"the tree is half global, local are {names}"
        for path, array in self.numbers.items():
            yield from wrong_numbers(path, found[path], array)
        held = [*self.tree.parameters(), self.tree.tied.weight]
        if any(one is not two for one, two in zip(held, [*self.weights, self.weights[0]])):
            yield "there are other Parameters than before, or the tie is gone"
        for index, (weight, array) in enumerate(zip(self.weights, self.grads)):
            if weight.grad is None or weight.grad.is_global != weight.is_global:
                yield f"weight {index} and its gradient are not both local or both global"
            else:
                yield from wrong_numbers(f"the gradient of weight {index}", weight.grad, array)
        yield from self.faults_of_state()

    def faults_of_state(self) -> Iterator[str]:
        state = self.state()
        if state.keys() != self.averages.keys():
            yield f"of the optimizer's state there is only {list(state)}"
            return
        for path, array in self.averages.items():
            yield from wrong_numbers(f"state {path}", state[path], array)
        names = [path for path, one in state.items() if one.is_local]
        if 0 < len(names) < len(state):
            yield f"the optimizer's state is half global, local are {names}"
        if len(names) < len(state) and self.weights[0].is_local:
            yield "the optimizer's state is global, and its Parameters are not"

    def left(self) -> Iterator[str]:
        names = [*local_names(self.tree), *(path for path, x in self.state().items() if x.is_local)]
        if names:
            yield f"still local: {names}"
        before = logical(self.weights[0])
        self.optimizer.step()
        if np.array_equal(logical(self.weights[0]), before):
            yield "the optimizer trains nothing"


@auto_global(P, B)
class Stated(nn.Module):
    """A class that states its layout, whose constructor assigns what a case has made."""

    def __init__(self, case: Decorated) -> None:
        super().__init__()
        case.made.append(self)
        case.assign(self)


class Decorated(Assigned):
    """A decorated class in nested scopes, one of which is a ``local_scope``."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Stated] = []
        self.first, self.last, self.teacher = parameter(W), parameter(V), linear(W)

    def run(self) -> None:
        with global_scope(P, S0):
            self.module.first = self.first
            with local_scope():
                self.module.teacher = self.teacher
                with global_scope(P, S0):
                    self.module.stated = Stated(self)
            self.module.last = self.last

    def faults(self) -> Iterator[str]:
        yield from self.faults_of_values()
        if len(self.made) == 1:
            yield from self.faults_of(self.made[0])
        if self.teacher.weight.is_global:
            yield "what was assigned in a local_scope is global"
        for name, value, array in (("first", self.first, W), ("last", self.last, V)):
            yield from wrong_numbers(name, value, array)
            if value.is_global != (self.module._parameters.get(name) is value):
                yield f"{name} is not both global and registered, or neither"
        for one in (self.first, self.last, self.parameter):
            if one.is_global and one.sbp != ((B,) if one is self.parameter else (S0,)):
                yield f"another layout than asked for: {one.sbp}"

    def left(self) -> Iterator[str]:
        if local_names(self.module) != ["teacher.weight"]:
            yield f"local are {local_names(self.module)}, and not the teacher alone"
        paths = {"new", "seen", *(f"tree.{path}" for path in self.numbers)}
        if self.module.stated is not self.made[-1] or tensors(self.made[-1]).keys() != paths:
            yield "the instance is not whole"


@global_scope(P, B)
def build(module: nn.Module, value: nn.Parameter) -> None:
    module.first = value


@global_scope(P, B)
def in_steps(case: Assigned) -> Iterator[None]:
    yield
    case.assign(case.module)
    yield


class Functions(Assigned):
    """A decorated function and a decorated generator, whose scope is put aside between steps."""

    def __init__(self) -> None:
        super().__init__()
        self.first = parameter(V)
        self.between: list[str] = []

    def run(self) -> None:
        build(self.module, self.first)
        for _ in in_steps(self):
            if current_scope() is not None:
                self.between.append("a suspended generator's scope is in force")

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        yield from self.between
        yield from wrong_numbers("first", self.first, V)
        if self.first.is_global != (self.module._parameters.get("first") is self.first):
            yield "first is not both global and registered, or neither"


CASES: dict[str, type[Case]] = {
    "open-and-close": OpenAndClose,
    "assign": Assign,
    "exit": AtExit,
    "local-to-global": Convert,
    "decorated-class": Decorated,
    "functions": Functions,
}
