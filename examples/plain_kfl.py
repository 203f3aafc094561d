"""Knowledge-aided federated learning as one plain loop.

Straight from Algorithm 1 and equations (1) to (9) of "Knowledge-aided Federated Learning for Energy-limited
Wireless Networks": one device after another, one line per equation, no cleverness. This file is the reference;
the package's fast code is tested against it. Run it:

    python examples/plain_kfl.py

The split, the starting models and the schedule come from kfl, so that the same seed means the same experiment.
Everything that learns is in this file.
"""

from __future__ import annotations

import copy
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import kfl
from kfl.simulation import World, build_world

KNOWLEDGE_WEIGHT = 1 / 32  # λ
LOCAL_STEPS = 5  # τ
LEARNING_RATE = 0.05  # η_u = η_v
MOMENTUM = 0.9


def plain_kfl(
    models: list[nn.Module],
    train: list[tuple[Tensor, Tensor]],
    schedule: list[list[int]],
    classes: int,
    features: int,
) -> tuple[list[nn.Module], Tensor]:
    """Algorithm 1. `schedule[t]` lists the devices of round t. Returns the trained models and the knowledge."""
    models = [copy.deepcopy(model) for model in models]
    knowledge = torch.zeros(classes, features)  # Ω
    known = torch.zeros(classes, dtype=torch.bool)  # classes a device has reported; no knowledge loss before that

    for chosen in schedule:  # for t = 0 … T − 1: select devices, broadcast Ω
        reports = []
        for k in chosen:
            x, y = train[k]
            local_update(models[k], x, y, knowledge, known)
            reports.append(class_means(models[k], x, y, classes, features))
        knowledge, known = aggregate(reports, knowledge, known)
    return models, knowledge


def local_update(model: nn.Module, x: Tensor, y: Tensor, knowledge: Tensor, known: Tensor) -> None:
    """τ full-batch steps: equations (7) for the body u and (8) for the head v."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    model.train()
    for _ in range(LOCAL_STEPS):
        feature = model.body(x)  # type: ignore[operator]  # h_k(x; u), and PyTorch types attributes as Tensor | Module
        empirical = cross_entropy(model.head(feature), y)  # type: ignore[operator]  # F_k, equation (1)
        distance = 0.5 * (feature - knowledge[y]).square().sum(dim=1)  # l_k = ½ ‖h_k(x) − Ω_y‖²
        knowledge_loss = (distance * known[y]).mean()  # L_k, equation (6)
        loss = empirical + KNOWLEDGE_WEIGHT * knowledge_loss  # the head does not see L_k: it comes after h_k
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def class_means(model: nn.Module, x: Tensor, y: Tensor, classes: int, features: int) -> tuple[Tensor, Tensor]:
    """Equation (4): Ω_{k,c}, the mean feature of the device's samples of each class, and their number D_{k,c}."""
    model.eval()
    feature = model.body(x)  # type: ignore[operator]  # as above
    means, counts = torch.zeros(classes, features), torch.zeros(classes)
    for c in y.unique().tolist():
        means[c] = feature[y == c].mean(dim=0)
        counts[c] = (y == c).sum()
    return means, counts


def aggregate(reports: list[tuple[Tensor, Tensor]], knowledge: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """Equation (9): Ω_c = Σ_k D_{k,c} Ω_{k,c} / Σ_k D_{k,c}. A class no device reports keeps its knowledge."""
    knowledge, known = knowledge.clone(), known.clone()
    for c in range(len(knowledge)):
        weight = sum(float(counts[c]) for _, counts in reports)
        if weight > 0:
            knowledge[c] = sum(counts[c] * means[c] for means, counts in reports) / weight
            known[c] = True
    return knowledge, known


@torch.no_grad()
def accuracy(models: list[nn.Module], test: list[tuple[Tensor, Tensor]]) -> float:
    """Right predictions of every device on its own test samples, over all test samples."""
    right = 0
    for model, (x, y) in zip(models, test, strict=True):
        model.eval()
        right += int((model.head(model.body(x)).argmax(dim=1) == y).sum())  # type: ignore[operator]  # as above
    return right / sum(len(y) for _, y in test)


def starting_models(world: World) -> list[nn.Module]:
    """Each device's own network with its own starting weights."""
    models = []
    for k in range(world.devices):
        model = copy.deepcopy(world.models.builders[world.models.architecture[k]]())
        model.load_state_dict(world.models.initial(k, world.experiment.seed))
        models.append(model)
    return models


def local_samples(world: World, split: Literal["train", "test"]) -> list[tuple[Tensor, Tensor]]:
    """Each device's own samples."""
    parts = world.partition.train if split == "train" else world.partition.test
    data = world.dataset
    return [(data.inputs(split, indices), data.labels(split, indices)) for indices in parts]


if __name__ == "__main__":
    experiment = kfl.Experiment(dataset="mnist-5k", devices=20, rounds=10)
    world = build_world(experiment)
    history = kfl.run(experiment)  # the package's own run of the same experiment
    schedule = [list(log.devices) for log in history.rounds]  # … which tells who was chosen in each round
    trained, _ = plain_kfl(starting_models(world), local_samples(world, "train"), schedule, 10, 64)
    print(f"plain loop {accuracy(trained, local_samples(world, 'test')):.4f}, package {history.accuracy:.4f}")
