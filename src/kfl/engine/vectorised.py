"""Any module, many devices at once: `torch.func.vmap` over stacked parameters.

The general path: every objective and every module that PyTorch can vectorise. What a step does to one device is
written once, as for a single model, and runs for the whole cohort. Objectives are dataclasses, so the tensors in
which those of a cohort differ can be taken out, stacked over devices, and put back inside that function.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from kfl._kernels import Descent
from kfl._kernels.arithmetic import Arithmetic
from kfl._kernels.cuda import Batch
from kfl.engine.objectives import Objective
from kfl.engine.sequential import as_function
from kfl.models import State, tied, with_ties

Path = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class ObjectiveParts:
    """One objective for all devices of a cohort, with its tensors taken out."""

    sample: Objective
    """The first device's, to put tensors into."""
    shared: dict[Path, Tensor]
    """Tensors that are the same for all devices."""
    stacked: dict[Path, Tensor]
    """Tensors with one row per device."""
    spec: Hashable
    """Everything but the tensors: equal specs are the same function of them."""

    def with_tensors(self, tensors: dict[Path, Tensor]) -> Objective:
        """The objective with other tensors in the same fields."""
        return cast(Objective, _rebuilt(self.sample, (), tensors))


def split_objective(objectives: Sequence[Objective]) -> ObjectiveParts | None:
    """Take the tensors out of the objectives of a cohort; None where they differ in more than tensors."""
    first = objectives[0]
    spec = spec_of(first)
    # Devices mostly share one object: few are looked at, however many devices there are.
    distinct = {id(objective): objective for objective in objectives}
    if len(distinct) > 1 and any(spec_of(objective) != spec for objective in distinct.values()):
        return None
    leaves = {key: dict(_leaves(objective, ())) for key, objective in distinct.items()}
    own = leaves[id(first)]
    shared = {path: leaf for path, leaf in own.items() if all(other[path] is leaf for other in leaves.values())}
    rows = [leaves[id(objective)] for objective in objectives]
    stacked = {path: torch.stack([row[path] for row in rows]) for path in own if path not in shared}
    return ObjectiveParts(first, shared, stacked, spec)


@cache
def takes_weights(kind: type[Objective]) -> bool:
    """Whether a loss can be told how much each sample weighs."""
    return "weights" in inspect.signature(kind.loss).parameters


def _leaves(thing: Any, path: Path) -> Iterator[tuple[Path, Tensor]]:
    for field in fields(thing):
        value = getattr(thing, field.name)
        if isinstance(value, Tensor):
            yield (*path, field.name), value
        elif is_dataclass(value) and not isinstance(value, type):
            yield from _leaves(value, (*path, field.name))


def spec_of(thing: Any) -> Hashable:
    """Everything of an objective but its tensors' values: with equal specs, two can be one batch."""
    found: list[Any] = [type(thing)]
    for field in fields(thing):
        value = getattr(thing, field.name)
        if isinstance(value, Tensor):
            found.append((field.name, value.shape, value.dtype))
        elif is_dataclass(value) and not isinstance(value, type):
            found.append((field.name, spec_of(value)))
        else:
            # What cannot be compared by value is compared by identity: too careful is only slow.
            found.append((field.name, value if isinstance(value, Hashable) else id(value)))
    return tuple(found)


def _rebuilt(thing: Any, path: Path, tensors: dict[Path, Tensor]) -> Any:
    new = copy.copy(thing)
    for field in fields(thing):
        value, where = getattr(thing, field.name), (*path, field.name)
        if where in tensors:
            object.__setattr__(new, field.name, tensors[where])
        elif is_dataclass(value) and not isinstance(value, type):
            object.__setattr__(new, field.name, _rebuilt(value, where, tensors))
    return new


def train_vectorised(
    module: nn.Module,
    state: State,
    objective: ObjectiveParts,
    tensors: dict[Path, Tensor],
    steps: Sequence[Callable[[], Batch]],
    descent: Descent,
    arithmetic: Arithmetic,
) -> State:
    """Descend from a stacked state, once per entry of `steps`; `tensors` are the objective's, stacked or shared."""
    forward = as_function(module.train())
    moving = {name: value for name, value in state.items() if descent.rates.get(name)}
    fixed = {name: value for name, value in state.items() if name not in moving}
    tensor_dims = {path: 0 if path in objective.stacked else None for path in tensors}

    def loss(own: State, kept: State, extra: dict[Path, Tensor], x: Tensor, y: Tensor, w: Tensor | None) -> Tensor:
        task = objective.with_tensors(extra)
        whole = {name: own[name] if name in own else kept[name] for name in state}
        if w is None:
            return task.loss(forward, whole, x, y)
        return task.loss(forward, whole, x, y, weights=w)

    velocity: State = {}
    for index, read in enumerate(steps):
        if index == 0 or read is not steps[index - 1]:
            inputs, targets, weights = read()
        dims = (0, 0, tensor_dims, 0, 0, None if weights is None else 0)
        with arithmetic.autocast():
            gradient = vmap(grad(loss), in_dims=dims)(moving, fixed, tensors, inputs, targets, weights)
        for name, value in gradient.items():
            if name in velocity:
                velocity[name].mul_(descent.momentum).add_(value)
            else:
                velocity[name] = value
            moved = moving[name] - descent.rates[name] * velocity[name]
            moving[name] = _projected(objective, name, moved, tensors, tensor_dims)
    ended = {name: moving.get(name, value) for name, value in state.items()}
    return with_ties(ended, tied(module), copies=True)


def _projected(
    objective: ObjectiveParts, name: str, value: Tensor, tensors: dict[Path, Tensor], dims: dict[Path, int | None]
) -> Tensor:
    if type(objective.sample).project is Objective.project:
        return value

    def project(one: Tensor, extra: dict[Path, Tensor]) -> Tensor:
        return objective.with_tensors(extra).project(name, one)

    projected: Tensor = vmap(project, in_dims=(0, dims))(value, tensors)
    return projected


@torch.no_grad()
def run_vectorised(module: nn.Module, state: State, inputs: Tensor, arithmetic: Arithmetic) -> tuple[Tensor, Tensor]:
    """Features and logits of a cohort in evaluation mode; inputs have one row per device."""
    with arithmetic.autocast():
        feature, logits = vmap(as_function(module.eval()))(state, inputs)
    return feature.to(arithmetic.dtype), logits.to(arithmetic.dtype)


@dataclass(frozen=True)
class Verdict:
    """Whether devices of an architecture can be batched."""

    vectorised: bool
    separable: bool
    """Whether a sample's output is its own matter: then samples of weight 0 may be added."""
    reason: str


def try_module(module: nn.Module, state: State, inputs: Tensor, labels: Tensor) -> Verdict:
    """Try a module on a few samples: batched and alone, with more and with fewer samples."""
    forward = as_function(module.train())

    def loss(moving: State, kept: State, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(forward({**moving, **kept}, x)[1], y)

    buffers = {name for name, _ in module.named_buffers()}
    kept = {name: value.clone() for name, value in state.items() if name in buffers}
    moving = {name: value for name, value in state.items() if name not in buffers}
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            random = torch.random.get_rng_state()
            alone = forward({**moving, **kept}, inputs[:2])[1]
            if not torch.equal(torch.random.get_rng_state(), random):
                return Verdict(False, True, "it draws random numbers")
            if any(not torch.equal(value, state[name]) for name, value in kept.items()):
                return Verdict(False, True, "it changes its buffers in place")
            separable = torch.allclose(forward({**moving, **kept}, inputs)[1][:2], alone, rtol=1e-4, atol=1e-5)
        pair = [moving, {name: value * 0.9 for name, value in moving.items()}]
        stacked = {name: torch.stack([one[name] for one in pair]) for name in moving}
        samples = [(inputs, labels), (inputs.flip(0), labels.flip(0))]
        x, y = (torch.stack(values) for values in zip(*samples, strict=True))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is slow in a batch: here it only has to work
            both = vmap(grad(loss), in_dims=(0, None, 0, 0))(stacked, kept, x, y)
            single = [grad(loss)(one, kept, *own) for one, own in zip(pair, samples, strict=True)]
            with torch.no_grad():
                forward = as_function(module.eval())
                vmap(lambda one, x: forward({**one, **kept}, x))(stacked, x)
    except Exception as problem:  # whatever a user's module does, one device after another still works
        return Verdict(False, True, _in_short(problem))
    for index, one in enumerate(single):
        for name, value in one.items():
            if not torch.allclose(both[name][index], value, rtol=1e-3, atol=1e-5):
                return Verdict(False, separable, f"its gradients in a batch differ from those alone ({name})")
    return Verdict(True, separable, "torch.func")


_KNOWN_PROBLEMS = {
    "data-dependent control flow": "it decides in Python by what is in a batch",
    "inplace arithmetic": "it writes in place into a tensor that it makes itself",
}


def _in_short(problem: Exception) -> str:
    """Why PyTorch cannot: in our words where it is a common reason, or the first sentence of its own."""
    for words, reason in _KNOWN_PROBLEMS.items():
        if words in str(problem):
            return reason
    line = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
    return line.split(". ")[0].removesuffix(".")
