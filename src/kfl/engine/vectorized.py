"""Any module, many devices at once: `torch.func.vmap` over stacked parameters.

The general path: every objective and every module that PyTorch can vectorize. What a step does to one device is
written once, as for a single model, and runs for the whole cohort. Objectives are dataclasses, so the tensors in
which those of a cohort differ can be taken out, stacked over devices, and put back inside that function. Buffers that
a module changes while it trains, such as BatchNorm's statistics, are part of a device's state and stacked like it.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from kfl.engine.descent import as_function, step
from kfl.engine.layers import Layers, draws
from kfl.engine.objectives import Descent, Objective
from kfl.engine.precision import Arithmetic
from kfl.engine.samples import Batch
from kfl.engine.stacked_convolution import StackedConvolution
from kfl.models import State

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
    """Whether a loss accepts a weight per sample."""
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


@dataclass(frozen=True, eq=False)
class CohortStep:
    """One step of training a cohort, w ← w − η v with v ← m v + ∇, for every device at once."""

    module: nn.Module
    objective: ObjectiveParts
    descent: Descent
    buffers: frozenset[str]
    """Entries of a model's state that are not parameters."""
    draws: bool
    """Whether the module has dropout."""
    arithmetic: Arithmetic
    convolution: StackedConvolution | None = None

    def __call__(
        self,
        state: State,
        velocity: State,
        tensors: Mapping[Path, Tensor],
        batch: Batch,
        active: Tensor | None,
        seeds: Tensor | None,
    ) -> None:
        """Change the stacked state and velocity in place.

        `tensors` are the objective's, stacked or shared. `active` says which devices have a step left; None: all.
        `seeds` are those of this step's draws.
        """
        inputs, targets, weights = batch
        moving = {name: value for name, value in state.items() if name in self.descent.rates}
        fixed = {name: value for name, value in state.items() if name not in moving}
        dims = {path: 0 if path in self.objective.stacked else None for path in tensors}
        each = (None if weights is None else 0, 0 if self.draws else None)
        gradients = vmap(grad(self._loss, has_aux=True), in_dims=(0, 0, dims, 0, 0, *each))
        with self.arithmetic.autocast():
            gradient, changed = gradients(
                moving, fixed, dict(tensors), inputs, targets, weights, seeds if self.draws else None
            )
        with torch.no_grad():
            self._move(moving, velocity, gradient, active)
            for name, value in moving.items():
                if self._projects:
                    value.copy_(self._projected(name, value, tensors, dims))
            for name, value in changed.items():
                state[name].copy_(value if active is None else torch.where(_beside(active, value), value, state[name]))

    def _loss(
        self,
        own: State,
        kept: State,
        extra: dict[Path, Tensor],
        x: Tensor,
        y: Tensor,
        w: Tensor | None,
        seed: Tensor | None,
    ) -> tuple[Tensor, State]:
        """The loss of one device, and its buffers after the pass."""
        task = self.objective.with_tensors(extra)
        # A pass writes into buffers: those of its own.
        changed = {name: value.clone() for name, value in kept.items() if name.rpartition("/")[2] in self.buffers}
        whole = {**kept, **own, **changed}
        forward = as_function(self.module.train())
        with Layers(seed=seed, weights=w, convolve=self.convolution):
            loss = task.loss(forward, whole, x, y) if w is None else task.loss(forward, whole, x, y, weights=w)
        return loss, changed

    def _move(self, moving: State, velocity: State, gradient: State, active: Tensor | None) -> None:
        limit = self.objective.sample.gradient_limit
        if limit is not None:
            norm = torch.stack([value.flatten(1).square().sum(1) for value in gradient.values()]).sum(0).sqrt()
            gradient = {name: value * _beside((limit / norm).clamp(max=1.0), value) for name, value in gradient.items()}
        speeds = [velocity[name] for name in moving]
        torch._foreach_mul_(speeds, self.descent.momentum)
        torch._foreach_add_(speeds, [gradient[name] for name in moving])
        if active is not None:
            speeds = [torch.where(_beside(active, speed), speed, 0) for speed in speeds]
        step(list(moving.values()), [self.descent.rates[name] for name in moving], speeds)

    @property
    def _projects(self) -> bool:
        return type(self.objective.sample).project is not Objective.project

    def _projected(
        self, name: str, value: Tensor, tensors: Mapping[Path, Tensor], dims: dict[Path, int | None]
    ) -> Tensor:
        def project(one: Tensor, extra: dict[Path, Tensor]) -> Tensor:
            return self.objective.with_tensors(extra).project(name, one)

        projected: Tensor = vmap(project, in_dims=(0, dims))(value, dict(tensors))
        return projected


def _beside(active: Tensor, value: Tensor) -> Tensor:
    """One truth per device in the shape of what it is for."""
    return active.reshape(-1, *[1] * (value.dim() - 1))


@torch.no_grad()
def run_vectorized(
    module: nn.Module,
    state: State,
    inputs: Tensor,
    arithmetic: Arithmetic,
    convolution: StackedConvolution | None = None,
) -> tuple[Tensor, Tensor]:
    """Features and logits of a cohort in evaluation mode; inputs have one row per device."""
    forward = as_function(module.eval())

    def one(own: State, x: Tensor) -> tuple[Tensor, Tensor]:
        with Layers(convolve=convolution):
            return forward(own, x)

    with arithmetic.autocast(), _no_shortcut():
        feature, logits = vmap(one)(state, inputs)
    return feature.to(arithmetic.dtype), logits.to(arithmetic.dtype)


@contextmanager
def _no_shortcut() -> Iterator[None]:
    """PyTorch's attention layers as they are written: their shortcut in evaluation mode cannot be vectorized."""
    mha: Any = torch.backends.mha
    before = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        mha.set_fastpath_enabled(before)


# ── Which modules can be batched ─────────────────────────────────────────────


@dataclass(frozen=True)
class Vectorizability:
    """Whether devices of an architecture can be batched."""

    vectorized: bool
    separable: bool
    """Whether a sample's output is its own matter in training: then samples of weight 0 may be added."""
    reason: str
    separable_reading: bool = True
    """The same in evaluation mode."""
    draws: bool = False
    """Whether it has dropout."""


def try_module(module: nn.Module, inputs: Tensor, labels: Tensor) -> Vectorizability:
    """Try a module on three samples: batched and alone, with more and with fewer samples.

    In float64, where rounding cannot be mistaken for a difference; a module that insists on float32 is tried in that.
    """
    for dtype, tolerance in ((torch.float64, 1e-7), (torch.float32, 1e-3)):
        try:
            return _Trial(copy.deepcopy(module).cpu().to(dtype), inputs.to(dtype), labels, tolerance).verdict()
        except _NotVectorizableError as problem:
            return Vectorizability(False, False, str(problem), False)
        except Exception as problem:  # whatever a user's module does, one device after another still works
            reason = _in_words(problem)
    return Vectorizability(False, False, reason, False)


class _NotVectorizableError(Exception):
    """Says why."""


class _Trial:
    """A module on a few samples, alone and as one of two."""

    def __init__(self, module: nn.Module, inputs: Tensor, labels: Tensor, tolerance: float) -> None:
        self.module, self.inputs, self.labels, self.tolerance = module, inputs, labels, tolerance
        names = {name for name, _ in module.named_buffers()}
        whole = {name: value.detach() for name, value in module.state_dict().items()}
        self.kept = {name: value for name, value in whole.items() if name in names}
        moving = {name: value for name, value in whole.items() if name not in names}
        # Two devices that differ. Weights that are shared are entries of their own, and equal.
        self.pair = [moving, {name: value * 0.9 for name, value in moving.items()}]
        self.samples = [(inputs, labels), (inputs.flip(0), labels.flip(0))]

    def verdict(self) -> Vectorizability:
        """What came of it."""
        with torch.random.fork_rng(devices=[]), _no_shortcut(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is slow in a batch: here it only has to work
            alone, dropout = self._alone()
            separable = self._is_separable(training=True)
            self._compare(alone)
            return Vectorizability(True, separable, "torch.func", self._reads(), dropout)

    def _loss(self, moving: State, kept: State, x: Tensor, y: Tensor, seed: Tensor) -> tuple[Tensor, State]:
        changed = {name: value.clone() for name, value in kept.items()}
        with Layers(seed=seed):
            logits = as_function(self.module.train())({**moving, **changed}, x)[1]
            return nn.functional.cross_entropy(logits, y), changed

    def _alone(self) -> tuple[list[tuple[State, State]], bool]:
        """Gradients and buffers of both, each alone; and whether there is dropout."""
        before = torch.random.get_rng_state()
        found = [
            grad(self._loss, has_aux=True)(one, self.kept, *samples, torch.tensor(seed))
            for seed, (one, samples) in enumerate(zip(self.pair, self.samples, strict=True))
        ]
        if not torch.equal(torch.random.get_rng_state(), before):
            raise _NotVectorizableError("it draws random numbers by other means than dropout layers")
        return found, draws(self.module, self.inputs)

    def _compare(self, alone: list[tuple[State, State]]) -> None:
        stacked = {name: torch.stack([one[name] for one in self.pair]) for name in self.pair[0]}
        kept = {name: torch.stack([value, value]) for name, value in self.kept.items()}
        x, y = (torch.stack(values) for values in zip(*self.samples, strict=True))
        try:
            gradient, changed = vmap(grad(self._loss, has_aux=True))(stacked, kept, x, y, torch.arange(2))
        except Exception as problem:
            raise _NotVectorizableError(_in_words(problem)) from problem
        for index, (own, buffers) in enumerate(alone):
            # A gradient that should be zero (a bias before a norm layer) is rounding: measured against all others.
            largest = max([float(value.abs().max()) for value in own.values() if value.numel()], default=0.0)
            for name, value in {**own, **buffers}.items():
                if not self._close({**gradient, **changed}[name][index], value, largest if name in own else 0.0):
                    raise _NotVectorizableError(f"its gradients in a batch differ from those alone ({name})")

    def _is_separable(self, *, training: bool) -> bool:
        """Whether a third sample, in training of weight 0, leaves the outputs of two others and the buffers alone."""
        module = self.module.train(training)
        unequal = torch.tensor([0.5, 0.5, 0.0], dtype=self.inputs.dtype) if training else None
        found = []
        for count, weights in ((2, None), (3, unequal)):
            changed = {name: value.clone() for name, value in self.kept.items()}
            with torch.no_grad(), Layers(seed=torch.tensor(0), weights=weights):
                logits = as_function(module)({**self.pair[0], **changed}, self.inputs[:count])[1]
            found.append((logits[:2], changed))
        (one, buffers), (other, others) = found
        return self._close(one, other) and all(self._close(buffers[name], others[name]) for name in buffers)

    def _reads(self) -> bool:
        """Try evaluation mode; returns whether samples are separable there."""
        forward = as_function(self.module.eval())
        whole = [{**one, **self.kept} for one in self.pair]
        stacked = {name: torch.stack([one[name] for one in whole]) for name in whole[0]}
        x = torch.stack([inputs for inputs, _ in self.samples])
        with torch.no_grad():
            try:
                together = vmap(forward)(stacked, x)[1]
            except Exception as problem:
                raise _NotVectorizableError(_in_words(problem)) from problem
            if not all(self._close(together[index], forward(one, x[index])[1]) for index, one in enumerate(whole)):
                raise _NotVectorizableError("its outputs in a batch differ from those alone")
        return self._is_separable(training=False)

    def _close(self, one: Tensor, other: Tensor, largest: float = 0.0) -> bool:
        """Equal up to rounding, measured against the largest value: a small one may be the difference of large ones."""
        if not one.is_floating_point():
            return torch.equal(one, other)
        largest = max(largest, float(other.abs().max()) if other.numel() else 0.0)
        return torch.allclose(one, other, rtol=self.tolerance, atol=self.tolerance * largest)


_KNOWN_PROBLEMS = {
    "data-dependent control flow": "it decides in Python by what is in a batch",
    "inplace arithmetic": "it writes in place into a tensor that it makes itself",
}


def _in_words(problem: Exception) -> str:
    """Why PyTorch cannot: in our words where it is a common reason, or the first sentence of its own."""
    for words, reason in _KNOWN_PROBLEMS.items():
        if words in str(problem):
            return reason
    line = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
    return line.split(". ")[0].removesuffix(".")
