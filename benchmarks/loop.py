"""The baseline of `benchmarks.rounds`: federated learning as a careful PyTorch loop, without kfl's engine.

What an experienced researcher writes, and not slower than it has to be: samples on the processor once and for all, one
module per device, the samples of a round gathered at once and cut into its mini-batches, a fused or foreach optimizer,
class means and tests in one batch under inference mode, PyTorch's own threads, and on a GPU no synchronization before a
round's last number is read. Mini-batches are drawn by kfl's names, so that both sides train on the same ones.

    prototypes    devices train their own models with the pull toward class means, which are averaged
    fedavg        devices train one common model, which is averaged
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

from kfl.data import LocalData
from kfl.engine import RoundKey, Sgd
from kfl.engine.descent import batches
from kfl.engine.precision import Arithmetic
from kfl.models import FleetModels, parts

Optimizer = Literal["foreach", "fused"]


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
        common: bool = False,
        device: str = "cpu",
        precision: str = "float32",
        optimizer: Optimizer = "foreach",
        seed: int = 0,
    ) -> None:
        """`common`: federated averaging of one model; otherwise prototypes of models of their own."""
        self.sgd, self.knowledge_weight, self.seed, self.optimizer = sgd, knowledge_weight, seed, optimizer
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
            module.load_state_dict(models.initial(device_number, seed, common=common))
            self.models.append(module.to(self.where, number))
        self.server = self.models[0] if common else None
        self.knowledge = torch.zeros(self.classes, models.features, device=self.where, dtype=number)
        self.known = torch.zeros(self.classes, device=self.where, dtype=number)

    def play(self, chosen: list[int]) -> int:
        """One round; returns the right predictions of the devices that trained, or of all that share one model."""
        with self.arithmetic.autocast():
            right = self._prototypes(chosen) if self.server is None else self._average(self.server, chosen)
        self.round += 1
        return right

    def state(self, device: int) -> dict[str, Tensor]:
        """A device's model."""
        return (self.models[device] if self.server is None else self.server).state_dict()

    def _prototypes(self, chosen: list[int]) -> int:
        """Train with the pull, read class means, average them, test who trained."""
        pull = (self.knowledge_weight, self.knowledge, self.known)
        with self.watch.part("train"):
            for k in chosen:
                key = RoundKey(self.seed, self.round)
                descend(self.models[k], *self.train[k], pull, self.sgd, key, k, self.optimizer)
        with self.watch.part("means"), torch.inference_mode():
            self._share(chosen)
        with self.watch.part("test"), torch.inference_mode():
            return int(torch.stack([count_right(self.models[k], *self.test[k]) for k in chosen]).sum())

    def _average(self, server: nn.Module, chosen: list[int]) -> int:
        """Train copies of the server's model, average them, test on every device."""
        total = {name: torch.zeros_like(value) for name, value in server.state_dict().items()}
        weight = sum(len(self.train[k][1]) for k in chosen)
        with self.watch.part("train"):
            for k in chosen:
                model = copy.deepcopy(server)
                descend(model, *self.train[k], None, self.sgd, RoundKey(self.seed, self.round), k, self.optimizer)
                for name, value in model.state_dict().items():
                    total[name].add_(value, alpha=len(self.train[k][1]) / weight)
        server.load_state_dict(total)
        with self.watch.part("test"), torch.inference_mode():
            return int(torch.stack([count_right(server, *one) for one in self.test]).sum())

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
    pull: tuple[float, Tensor, Tensor] | None,
    sgd: Sgd,
    key: RoundKey,
    device: int,
    optimizer: Optimizer = "foreach",
) -> None:
    """A device's steps of one round; `pull` is the weight of KFL's term, the classes' knowledge and which have any."""
    body, head = parts(model.train())
    descent = torch.optim.SGD(model.parameters(), sgd.body_rate, sgd.momentum, **{optimizer: True})
    for inputs, labels in _mini_batches(x, y, sgd, key, device):
        feature = body(inputs)
        loss = cross_entropy(head(feature), labels)
        if pull is not None:
            weight, knowledge, known = pull
            distance = 0.5 * (feature - knowledge[labels]).square().sum(1)
            loss = loss + weight * (distance * known[labels]).mean()
        descent.zero_grad(set_to_none=True)
        loss.backward()
        descent.step()


def add_features(total: Tensor, model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Add the feature of every sample to the sum of its class."""
    body, _ = parts(model.eval())
    total.index_add_(0, y, body(x).to(total.dtype))


def count_right(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Right predictions."""
    body, head = parts(model.eval())
    logits: Tensor = head(body(x))
    return (logits.argmax(1) == y).sum()


def _mini_batches(x: Tensor, y: Tensor, sgd: Sgd, key: RoundKey, device: int) -> Iterator[tuple[Tensor, Tensor]]:
    """A round's mini-batches, gathered at once; full batches are not copied."""
    drawn = list(batches(len(y), sgd, key, device))
    if all(batch is None for batch in drawn):
        return iter([(x, y)] * len(drawn))
    everything = torch.arange(len(y))
    whole = [everything if batch is None else batch for batch in drawn]
    order, sizes = torch.cat(whole).to(x.device, non_blocking=True), [len(batch) for batch in whole]
    return zip(x[order].split(sizes), y[order].split(sizes), strict=True)
