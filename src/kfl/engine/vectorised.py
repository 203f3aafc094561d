"""Any module, many devices at once: `torch.func.vmap` over stacked parameters.

The general path: every objective and every module that PyTorch can vectorise. What a step does to one device is
written once, as for a single model, and runs for the whole cohort.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from kfl._kernels import Descent
from kfl._kernels.arithmetic import Arithmetic
from kfl._kernels.cuda import Batch
from kfl.engine.objectives import Objective
from kfl.models import State, parts

if TYPE_CHECKING:
    from kfl.engine.objective_parts import ObjectiveParts, Path


def as_function(module: nn.Module) -> Callable[[State, Tensor], tuple[Tensor, Tensor]]:
    """A module as a pure function (parameters, inputs) → (features, logits)."""
    body, head = parts(module)

    def forward(state: State, inputs: Tensor) -> tuple[Tensor, Tensor]:
        feature = functional_call(body, _part(state, "body."), (inputs,))
        return feature, functional_call(head, _part(state, "head."), (feature,))

    return forward


def _part(state: State, prefix: str) -> State:
    return {name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)}


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
    return {name: moving.get(name, value) for name, value in state.items()}


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
        both = vmap(grad(loss), in_dims=(0, None, None, None))(stacked, kept, inputs, labels)
        single = [grad(loss)(one, kept, inputs, labels) for one in pair]
    except Exception as problem:  # whatever a user's module does, one device after another still works
        return Verdict(False, True, (str(problem).strip().splitlines() or [type(problem).__name__])[0])
    for index, one in enumerate(single):
        for name, value in one.items():
            if not torch.allclose(both[name][index], value, rtol=1e-3, atol=1e-5):
                return Verdict(False, separable, f"its gradients in a batch differ from those alone ({name})")
    return Verdict(True, separable, "torch.func")
