"""The base of algorithms whose devices send one vector per class, the mean of their features or logits.

The server holds *knowledge*: the vectors of all classes and which classes have one. Models never leave their device
and may all be different. A server may train on the vectors that arrive, each a sample with a label
(`TrainingServer`).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from kfl.algorithms.aggregation import combine
from kfl.algorithms.base import LARGEST, Algorithm, QuantizedUploads, feature_flops, require, training_flops
from kfl.algorithms.quantize import FULL_PRECISION_BITS, quantize_rows
from kfl.algorithms.uploads import MOST_SAMPLES, ArrayFormat, Rejection, Upload, UploadFormat, usable

if TYPE_CHECKING:
    from torch import Tensor

    from kfl.algorithms.base import Message
    from kfl.engine import Engine, Objective, RoundKey
    from kfl.engine.base import ClassStatistics, DeviceProfile
    from kfl.models import State

    Loss = Callable[[Mapping[str, Tensor], Tensor, Tensor], Tensor]
    """(parameters, vectors, labels) → mean loss of a batch."""


@dataclass(frozen=True)
class PrototypeMethod(Algorithm):
    """An algorithm whose devices upload the mean vector of each of their classes."""

    of: ClassVar[Literal["inputs", "features", "logits"]] = "features"
    """What the vectors are means of."""
    scatter: ClassVar[bool] = False
    """Whether `protect` is given the scatter within the classes, too."""
    held_rows: ClassVar[bool] = True
    """Whether only the vectors of classes that a device holds go over the air."""
    most: ClassVar[float] = 1
    """The largest weight of a device in the mean of a class: 1, so that all weigh the same. Devices tell no more."""

    def pull_weight(self, engine: Engine) -> float:
        """λ, how strongly the feature of each sample is pulled to the vector of its class: 0 unless that is done."""
        return 0.0

    def objective(self, message: Message, engine: Engine) -> Objective:
        """What chosen devices minimize: F + λL, equations (7) and (8), and F alone without a pull."""
        from kfl.engine import FeatureTargets, Supervised

        weight = self.pull_weight(engine)
        return Supervised(FeatureTargets(weight, message["knowledge"], message["known"]) if weight else None)

    def start(self, message: Message, state: State) -> State:
        """The model that a chosen device starts from: its own, unless the server's message changes it."""
        return state

    def protect(self, device: int, own: ClassStatistics, key: RoundKey) -> Upload:
        """What leaves a device of its class means: with `most` 1, only whether it holds a class, not how many."""
        counts = own.counts.clamp(max=1) if self.most == 1 else own.counts
        return Upload(device, {"means": self.quantized(device, own.means, counts > 0, key), "counts": counts})

    def quantized(self, device: int, vectors: Tensor, held: Tensor, key: RoundKey) -> Tensor:
        """What arrives of the vectors that a device holds after its few bits, rounded at random."""
        import torch

        if self.upload_bits == FULL_PRECISION_BITS:
            return vectors
        draw = torch.Generator().manual_seed(key.torch_seed("quantization", device))
        return quantize_rows(vectors, held, self.upload_bits, draw)

    @property
    def grid_bits(self) -> int | None:
        """Bits of a vector's values, where these stand on a grid."""
        return None if self.upload_bits == FULL_PRECISION_BITS else self.upload_bits

    def server_init(self, engine: Engine, seed: int) -> State:
        """Knowledge of no class."""
        sizes = {"features": engine.features, "logits": engine.classes}
        size = math.prod(engine.profile(0).model.input_shape) if self.of == "inputs" else sizes[self.of]
        return empty_knowledge(engine.classes, size)

    def broadcast(self, server: State) -> Message:
        """The vector of each class, and which classes have one."""
        return {"knowledge": server["knowledge"], "known": server["known"]}

    def local_update(
        self, message: Message, devices: Sequence[int], states: Sequence[State], engine: Engine, key: RoundKey
    ) -> tuple[list[State], list[Upload]]:
        """τ steps on the objective, then the mean vector of each class."""
        started = [self.start(message, state) for state in states]
        trained = engine.train(devices, started, self.objective(message, engine), self.sgd(), key)
        # To the server's CPU, all at once: every copy from a GPU waits for all the work queued before it.
        clip_norm = getattr(self, "clip_norm", None)
        found = engine.class_statistics(devices, trained, self.of, scatter=self.scatter, clip_norm=clip_norm).cpu()
        return trained, [self.protect(device, own, key) for device, own in zip(devices, found, strict=True)]

    def upload_format(self, server: State) -> UploadFormat:
        """The vector of each class, and how many samples stand behind it."""
        return knowledge_format(server, bits=self.grid_bits, held_rows=self.held_rows, most=self.most)

    def center(self, server: State) -> Mapping[str, Tensor]:
        """The last knowledge."""
        return known_rows(server)

    def updated(self, server: State, mean: Mapping[str, Tensor], weight: Mapping[str, Tensor]) -> State:
        """New vectors of the classes that were reported."""
        return renewed(server, mean["means"], weight["counts"] > 0, memory=getattr(self, "memory", True))

    def class_vectors(self, server: State) -> tuple[Tensor, Tensor] | None:
        """The vectors, where they are means of features."""
        return (server["knowledge"], server["known"]) if self.of == "features" else None

    def real_flops(self, profile: DeviceProfile) -> float:
        """The local steps, and the pass that reads features or logits; inputs are there already."""
        read = {"inputs": 0.0, "features": feature_flops(profile), "logits": profile.samples * profile.model.flops}
        return training_flops(self.local_steps, profile) + read[self.of]


def empty_knowledge(classes: int, features: int) -> State:
    """Return knowledge of no class at all: what the server starts with."""
    import torch

    return {
        "knowledge": torch.zeros(classes, features),
        "known": torch.zeros(classes, dtype=torch.bool),
    }


def knowledge_format(
    server: State,
    count_noise: float = 0.0,
    *,
    bits: int | None = None,
    held_rows: bool = False,
    most: float = MOST_SAMPLES,
) -> UploadFormat:
    """Declare an upload of class means with their counts.

    Args:
        server: The server's state with its knowledge.
        count_noise: Standard deviation of noise that is added to counts on purpose.
        bits: Bits of one value of a mean on the air, where that is not 32.
        held_rows: Whether only the means of classes that a device holds are sent.
        most: The largest count that weighs.
    """
    knowledge = server["knowledge"]
    means = ArrayFormat.like(knowledge, weight="counts")
    counts = (len(knowledge),), "float64" if count_noise else "int64", "counts"
    return {
        "means": ArrayFormat(means.shape, means.dtype, bits=bits, weight="counts", held_rows=held_rows),
        "counts": ArrayFormat(counts[0], counts[1], "counts", count_noise, most=most),
    }


def known_rows(server: State) -> Mapping[str, Tensor]:
    """Return what the rule `clip` measures class means from: the knowledge, without the classes that have none."""
    return {"means": server["knowledge"].where(server["known"][:, None], float("nan"))}


def renewed(server: State, mean: Tensor, reported: Tensor, *, memory: bool) -> State:
    """Return the server's state with new vectors of reported classes; others are kept, or forgotten without memory."""
    import torch

    before, reported = server["knowledge"], reported.to(server["knowledge"].device)
    keep = server["known"] & memory
    mean = mean.to(before.dtype).to(before.device)
    knowledge = torch.where(reported[:, None], mean, torch.where(keep[:, None], before, 0.0))
    return {**server, "knowledge": knowledge, "known": reported | keep}


class TrainingServer(QuantizedUploads, PrototypeMethod):
    """A prototype method whose server takes every class mean that a device holds as one sample of that class."""

    server_epochs: int
    server_learning_rate: float
    server_batch_size: int

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        epochs, rate, size = self.server_epochs, self.server_learning_rate, self.server_batch_size
        require(epochs >= 1, "server_epochs", epochs, "1 or more")
        require(0 < rate <= LARGEST, "server_learning_rate", rate, "a number above 0")
        require(size >= 1, "server_batch_size", size, "1 or more")
        super().check()

    @abstractmethod
    def learned(
        self, server: State, samples: tuple[Tensor, Tensor], mean: Tensor, reported: Tensor, key: RoundKey
    ) -> State:
        """Return the server's new state from vectors with labels, their mean by class and which classes have one."""

    def aggregate(
        self, server: State, uploads: Sequence[Upload], *, engine: Engine, key: RoundKey
    ) -> tuple[State, list[Rejection]]:
        """Train on the class means that arrived, in an order that does not depend on which arrived first."""
        import torch

        formats = self.upload_format(server)
        good, rejected = usable(sorted(uploads, key=lambda upload: upload.device), formats)
        held = [(upload.arrays["counts"] > 0).nonzero()[:, 0].cpu() for upload in good]
        if not sum(map(len, held)):
            return server, rejected
        vectors = [upload.arrays["means"].cpu()[own].double() for upload, own in zip(good, held, strict=True)]
        found = combine(formats, [upload.arrays for upload in good], *self.rule(), {})
        assert found is not None, "a class mean is held"
        samples = torch.cat(vectors), torch.cat(held)
        return self.learned(server, samples, found[0]["means"], found[1]["counts"] > 0, key), rejected

    def descend(
        self, parameters: Mapping[str, Tensor], loss: Loss, samples: tuple[Tensor, Tensor], key: RoundKey
    ) -> State:
        """Return the parameters after the server's passes, in float64 on the CPU: w ← w − η ∇, without momentum.

        The order of the samples in each pass is drawn by name, and follows from how many there are.
        """
        import torch

        vectors, labels = samples
        now = {name: value.detach().double().cpu().clone().requires_grad_() for name, value in parameters.items()}
        for epoch in range(self.server_epochs):
            draw = torch.Generator().manual_seed(key.torch_seed("server batches", 0, epoch))
            for batch in torch.randperm(len(labels), generator=draw).split(self.server_batch_size):
                with torch.enable_grad():
                    value = loss(now, vectors[batch], labels[batch])
                gradients = torch.autograd.grad(value, list(now.values()))
                with torch.no_grad():
                    for own, gradient in zip(now.values(), gradients, strict=True):
                        own.sub_(gradient, alpha=self.server_learning_rate)
        return {name: value.detach() for name, value in now.items()}
