"""The constants of Theorem 1, estimated from real models on real data.

They are estimates: maxima over a few devices and a few points that training visited, each a lower bound of what the
assumptions ask for. True constants can only be larger, true largest rates only smaller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING

import numpy as np

from kfl.algorithms import Algorithm, Kfl, Local
from kfl.core.errors import ConfigError, ModelError
from kfl.core.randomness import stream
from reproduction.theory.theorem1 import Constants

if TYPE_CHECKING:
    from torch import Tensor, nn

    from kfl.models import State
    from kfl.simulation.world import World
    from reproduction.theory.curvature import PointMeasures

DEVICES, ITERATIONS, JACOBIANS = 3, 10, 4
"""Defaults: enough for the order of magnitude, in seconds."""


@dataclass(frozen=True)
class Estimate:
    """Estimated constants, and what they were estimated from."""

    constants: Constants
    cross_smoothness: float
    """max(L_uv, L_vu), from which χ follows."""
    devices: tuple[int, ...]
    points: int
    """Models looked at: starting models and, where given, later ones."""
    initial_loss: float
    """F(W_0) over these devices. The gap takes F* as 0, the least a cross-entropy can be."""
    later_loss: float | None
    """F over these devices at the later models (a device without one is where it started); None without any."""
    notes: tuple[str, ...]
    """What must be said with the numbers."""


def estimate_constants(
    world: World,
    later: Mapping[int, State] | None = None,
    *,
    devices: int | Sequence[int] = DEVICES,
    iterations: int = ITERATIONS,
    jacobians: int = JACOBIANS,
) -> Estimate:
    """Estimate the constants from a world's starting models, and from later models of the same devices.

    `devices` is how many to draw, or which; `iterations` and `jacobians` are `measure_model`'s.

    >>> import kfl
    >>> from kfl.simulation import build_world
    >>> world = build_world(kfl.Experiment(devices=50, rounds=1, widths=(8,)))
    >>> estimate = estimate_constants(world, devices=1, iterations=1, jacobians=1)
    >>> estimate.points, estimate.later_loss, estimate.constants.local_steps, 2 < estimate.initial_loss < 3
    (1, None, 5, True)
    """
    from reproduction.theory.curvature import PointMeasures, measure_model

    algorithm, seed = world.experiment.algorithm, world.experiment.seed
    weight = knowledge_weight(algorithm)
    chosen = pick_devices(world, devices)
    first: list[PointMeasures] = []
    last: list[PointMeasures] = []
    for device in chosen:
        inputs, labels = training_data(world, device)
        measure = partial(
            measure_model, inputs=inputs, labels=labels, iterations=iterations, jacobians=jacobians, seed=seed
        )
        first.append(measure(device_module(world, device)))
        # A device without a later model is still where it started.
        state = (later or {}).get(device)
        last.append(first[-1] if state is None else measure(device_module(world, device, state)))
    points = len({id(point) for point in (*first, *last)})
    top = reduce(PointMeasures.max, [*first, *last])
    product = np.sqrt(top.body_smoothness * top.head_smoothness)
    initial_loss = _mean_loss(world, chosen, first)
    return Estimate(
        constants=Constants(
            body_smoothness=top.body_smoothness,
            head_smoothness=top.head_smoothness,
            cross_sensitivity=float(top.cross_smoothness / product) if product > 0 else 0.0,
            body_gradient=top.body_gradient,
            head_gradient=top.head_gradient,
            feature_gradient=top.feature_gradient,
            feature_norm=top.feature_norm,
            body_rate=algorithm.learning_rate,
            head_rate=algorithm.head_learning_rate or algorithm.learning_rate,
            local_steps=algorithm.local_steps,
            knowledge_weight=weight,
            initial_gap=initial_loss,
        ),
        cross_smoothness=top.cross_smoothness,
        devices=tuple(chosen),
        points=points,
        initial_loss=initial_loss,
        later_loss=_mean_loss(world, chosen, last) if later else None,
        notes=_notes(algorithm, chosen, points, world.devices),
    )


def knowledge_weight(algorithm: Algorithm) -> float:
    """λ of the algorithm; Theorem 1 is about KFL, and about local-only training with λ = 0."""
    if isinstance(algorithm, Kfl):
        return algorithm.knowledge_weight
    if isinstance(algorithm, Local):
        return 0.0
    raise ConfigError("algorithm", algorithm.name, "kfl or local: Theorem 1 is about no other")


def pick_devices(world: World, devices: int | Sequence[int]) -> list[int]:
    """The devices to look at, drawn by name where only their number is given."""
    if isinstance(devices, int):
        if devices < 1:
            raise ConfigError("devices", devices, "1 or more")
        drawn = stream(world.experiment.seed, "constants of the bound").permutation(world.devices)[:devices]
        return sorted(int(device) for device in drawn)
    wrong = [device for device in devices if not 0 <= device < world.devices]
    if wrong or not devices:
        raise ConfigError("devices", list(devices), f"one or more numbers from 0 to {world.devices - 1}")
    return list(devices)


def training_data(world: World, device: int) -> tuple[Tensor, Tensor]:
    """A device's training inputs and labels."""
    mine = world.partition.train[device]
    return world.dataset.inputs("train", mine), world.dataset.labels("train", mine)


def device_module(world: World, device: int, state: State | None = None) -> nn.Module:
    """A device's network with these weights, or with those it starts from."""
    import torch

    if state is None:
        algorithm = world.experiment.algorithm
        state = algorithm.predictor({}, algorithm.device_init(world.engine, device, world.experiment.seed))
    with torch.random.fork_rng(devices=[]):
        module = world.models.builders[int(world.models.architecture[device])]()
    try:
        module.load_state_dict(state)
    except RuntimeError as problem:
        raise ModelError(f"The weights of device {device} do not fit its model {type(module).__name__}.") from problem
    return module


def _mean_loss(world: World, devices: Sequence[int], found: Sequence[PointMeasures]) -> float:
    """F of equation (2) over these devices alone: each weighs as many samples as it holds."""
    samples = world.table.samples[list(devices)]
    return float(np.average([point.loss for point in found], weights=samples))


def _notes(algorithm: Algorithm, chosen: Sequence[int], points: int, fleet: int) -> tuple[str, ...]:
    said = [
        f"The constants are estimates from {points} models of {len(chosen)} of {fleet} devices: lower bounds of the "
        "true ones (χ, a quotient, can be off either way); F* is taken as 0.",
    ]
    if algorithm.momentum > 0:
        said.append(f"The theorem is about plain gradient descent; this training has momentum {algorithm.momentum:g}.")
    if algorithm.batch_size is not None:
        said.append(f"The theorem is about full-batch steps; this training takes batches of {algorithm.batch_size}.")
    return tuple(said)
