"""The yardstick of `benchmarks.own_networks`: rounds of KFL with any networks as a careful PyTorch loop.

What a good researcher writes who has never heard of kfl's engine: samples on the processor once and for all, one module
per device, the samples of a round gathered at once and cut into its mini-batches, a fused or foreach optimiser, class
means and tests in one batch under inference mode, PyTorch's own threads, and on a GPU no wait for it before a round's
last number is read. Mini-batches are drawn by kfl's names, so that both sides train on the same ones.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from kfl._kernels.arithmetic import Arithmetic
from kfl.data import LocalData
from kfl.engine import RoundKey, Sgd
from kfl.engine.sequential import batches
from kfl.models import FleetModels, parts

Optimiser = Literal["foreach", "fused"]


class Stopwatch:
    """Seconds by the name of a part; while it is off, it neither measures nor waits."""

    def __init__(self, device: str) -> None:
        self.on, self.device = False, device
        self.seconds: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Times what is done inside, until the processor has finished with it."""
        if not self.on:
            yield
            return
        finish(self.device)
        started = time.perf_counter()
        yield
        finish(self.device)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started


def finish(device: str) -> None:
    """Wait for a GPU."""
    if device == "cuda":
        torch.cuda.synchronize()


class LoopRun:
    """A loop that can be played round by round."""

    def __init__(
        self,
        data: LocalData,
        models: FleetModels,
        sgd: Sgd,
        knowledge_weight: float,
        *,
        device: str = "cpu",
        precision: str = "float32",
        optimiser: Optimiser = "foreach",
        seed: int = 0,
    ) -> None:
        self.sgd, self.knowledge_weight, self.seed, self.optimiser = sgd, knowledge_weight, seed, optimiser
        self.arithmetic = Arithmetic(precision, device)
        self.where, number = torch.device(device), self.arithmetic.dtype
        self.watch = Stopwatch(device)
        self.classes, self.round = data.dataset.classes, 0
        self.train, self.test = (
            [
                (x.to(self.where, number), y.to(self.where))
                for x, y in (data.read(k, which) for k in range(data.partition.devices))
            ]
            for which in ("train", "test")
        )
        self.counts = [torch.bincount(y, minlength=self.classes) for _, y in self.train]
        self.models: list[nn.Module] = []
        for device_number, architecture in enumerate(models.architecture.tolist()):
            module = copy.deepcopy(models.builders[architecture]())
            module.load_state_dict(models.initial(device_number, seed))
            self.models.append(module.to(self.where, number))
        self.knowledge = torch.zeros(self.classes, models.features, device=self.where, dtype=number)
        self.known = torch.zeros(self.classes, device=self.where, dtype=number)

    def play(self, chosen: list[int]) -> int:
        """One round; returns the right predictions of the devices that trained."""
        with self.arithmetic.autocast():
            with self.watch.part("train"):
                for k in chosen:
                    key = RoundKey(self.seed, self.round)
                    pull = (self.knowledge_weight, self.knowledge, self.known)
                    descend(self.models[k], *self.train[k], pull, self.sgd, key, k, self.optimiser)
            with self.watch.part("means"), torch.inference_mode():
                self._share(chosen)
            with self.watch.part("test"), torch.inference_mode():
                right = int(torch.stack([count_right(self.models[k], *self.test[k]) for k in chosen]).sum())
        self.round += 1
        return right

    def state(self, device: int) -> dict[str, Tensor]:
        """A device's model."""
        return self.models[device].state_dict()

    def _share(self, chosen: list[int]) -> None:
        """Mean features of the classes over all samples of the round's devices; an unseen class keeps its last."""
        total, counts = torch.zeros_like(self.knowledge), torch.zeros_like(self.known)
        for k in chosen:
            add_features(total, self.models[k], *self.train[k])
            counts += self.counts[k]
        reported = counts > 0
        # Copies, because autograd may not keep what was made in inference mode. Messages are float32.
        means = (total / counts.clamp(min=1)[:, None]).float()
        self.knowledge.copy_(torch.where(reported[:, None], means, self.knowledge))
        self.known.copy_(torch.where(reported, 1.0, self.known))


def descend(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    pull: tuple[float, Tensor, Tensor],
    sgd: Sgd,
    key: RoundKey,
    device: int,
    optimiser: Optimiser = "foreach",
) -> None:
    """A device's steps of one round on KFL's loss; `pull` is its weight, the classes' knowledge and which have any."""
    weight, knowledge, known = pull
    body, head = parts(model.train())
    optimizer = torch.optim.SGD(model.parameters(), sgd.body_rate, sgd.momentum, **{optimiser: True})
    for inputs, labels in _minibatches(x, y, sgd, key, device):
        feature = body(inputs)
        distance = 0.5 * (feature - knowledge[labels]).square().sum(1)
        loss = cross_entropy(head(feature), labels) + weight * (distance * known[labels]).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


def add_features(total: Tensor, model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Add the feature of every sample to the sum of its class."""
    body, _ = parts(model.eval())
    total.index_add_(0, y, body(x).to(total.dtype))


def count_right(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Right predictions."""
    body, head = parts(model.eval())
    logits: Tensor = head(body(x))
    return (logits.argmax(1) == y).sum()


def _minibatches(x: Tensor, y: Tensor, sgd: Sgd, key: RoundKey, device: int) -> Iterator[tuple[Tensor, Tensor]]:
    """A round's mini-batches, gathered at once."""
    everything = torch.arange(len(y))
    drawn = [everything if batch is None else batch for batch in batches(len(y), sgd, key, device)]
    order, sizes = torch.cat(drawn).to(x.device, non_blocking=True), [len(batch) for batch in drawn]
    return zip(x[order].split(sizes), y[order].split(sizes), strict=True)
