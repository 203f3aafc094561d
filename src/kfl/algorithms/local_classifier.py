"""Classifiers that a device makes alone of an encoder's numbers, in closed form: what sharing is measured against.

Nothing is sent. A twin of `common-knowledge` has the same encoder, the same samples and as much care:

    kernel    ridge regression on a Gaussian kernel; width and ridge as in `kfl.algorithms.kernel_expert`
    ridge     ridge regression on the numbers, standardized by the device's own mean and spread
    lda       Gaussian classes with one covariance, shrunk toward its diagonal

What is chosen (the ridge, the shrinkage) is chosen by samples left out, without looking at tests. As devices classify
among the classes they hold, and tests are of these, nothing is known here that the shared methods do not know.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from kfl.algorithms.base import Algorithm, require
from kfl.algorithms.uploads import Upload

if TYPE_CHECKING:
    from torch import Tensor

    from kfl.algorithms.base import Message
    from kfl.engine import DeviceProfile, Engine, RoundKey
    from kfl.models import FleetModels, State

Kind = Literal["kernel", "ridge", "lda"]
SHRINKAGES = (0.01, 0.03, 0.1, 0.3, 0.6, 0.9)
RIDGES = tuple(10.0 ** (k / 2) for k in range(-4, 9))


@dataclass(frozen=True)
class LocalClassifier(Algorithm):
    """A classifier in closed form on the encoder's numbers, without any upload.

    >>> import kfl
    >>> history = kfl.run(kfl.Experiment(devices=10, rounds=1, algorithm="local-classifier", encoder="raw"))
    >>> history.summary["bits_up"]
    0.0
    """

    name: ClassVar[str] = "local-classifier"
    trains: ClassVar[bool] = False
    needs_encoder: ClassVar[bool] = True

    kind: Kind = "kernel"
    """Which classifier: a kernel regression, a linear one, or Gaussian classes."""

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        require(self.kind in get_args(Kind), "kind", self.kind, f"one of {', '.join(get_args(Kind))}")

    def device_models(self, models: FleetModels) -> FleetModels:
        """A linear layer on the encoder's numbers: nothing is trained."""
        from kfl.models import fleet_from_name

        shape, classes = models.input_shape, models.profiles[0].classes
        return fleet_from_name("linear", (1,), len(models.architecture), shape, classes, 0)

    def device_init(self, engine: Engine, device: int, seed: int) -> State:
        """A classifier that knows no class."""
        import torch

        return {"head.weight": torch.zeros(engine.classes, engine.inputs), "head.bias": torch.zeros(engine.classes)}

    def local_update(
        self, message: Message, devices: Sequence[int], states: Sequence[State], engine: Engine, key: RoundKey
    ) -> tuple[list[State], list[Upload]]:
        """Fit a classifier; in place of a kernel one, which is no network, the linear one stands in the state."""
        found = []
        for device in devices:
            x, y = (value.cpu() for value in engine.samples(device, "train"))
            held, place = y.unique(return_inverse=True)
            weight, bias = fit_linear("ridge" if self.kind == "kernel" else self.kind, x.flatten(1), place, len(held))
            found.append(over_all_classes(weight, bias, held, engine.classes))
        return found, []

    def correct(self, server: State, devices: Sequence[int], states: Sequence[State], engine: Engine) -> list[int]:
        """Test each device's classifier. A kernel one is made of the samples again."""
        from kfl.algorithms.kernel_expert import fit_kernel

        if self.kind != "kernel":
            return super().correct(server, devices, states, engine)
        found = []
        for device, state in zip(devices, states, strict=True):
            x, y = (value.cpu() for value in engine.samples(device, "test"))
            train, labels = (value.cpu() for value in engine.samples(device, "train"))
            classes, place = labels.unique(return_inverse=True)
            fitted = bool(state["head.weight"].any())  # it has taken part
            expert = fit_kernel(train.flatten(1), place, len(classes)) if fitted else None
            said = classes[expert.scores(x.flatten(1)).argmax(1)] if expert else classes[:1]
            found.append(int((said == y).sum()))
        return found

    def why_not_exported(self) -> str | None:
        """A kernel classifier is made of the device's samples each time, which a run folder does not hold."""
        return "devices with kind = 'kernel' classify with their own samples" if self.kind == "kernel" else None

    def printed_flops(self, profile: DeviceProfile) -> float:
        """What is computed, little as it is; the encoder is charged apart."""
        return self.real_flops(profile)

    def real_flops(self, profile: DeviceProfile) -> float:
        """Of a kernel regression, of Gaussian classes, or of the decomposition that all ridges share."""
        from kfl.algorithms.kernel_expert import kernel_flops

        n, d = profile.samples, math.prod(profile.model.input_shape)
        classes = profile.held_classes or profile.model.classes
        if self.kind == "kernel":
            return kernel_flops(n, d, classes)
        if self.kind == "lda":  # the covariance; for each shrinkage an inverse, and distances to all class means
            return n * d**2 + len(SHRINKAGES) * (float(d) ** 3 + (classes + 1) * n * d**2)
        smaller, larger = sorted((n, d))
        # A thin decomposition takes 14 a b² + 8 b³ operations, two for each multiply-add (Golub and Van Loan, 5.4).
        return 7.0 * larger * smaller**2 + 4.0 * smaller**3


def fit_linear(kind: Literal["ridge", "lda"], x: Tensor, place: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Fit a linear classifier to samples x (n, d) of classes `place`: weight (classes, d) and bias (classes,)."""
    import torch

    center, spread = x.double().mean(0), x.double().std(0, unbiased=False).clamp(min=1e-9)
    z, targets = (x - center) / spread, torch.nn.functional.one_hot(place, classes).double()
    weight, bias = _ridge(z, targets) if kind == "ridge" else _lda(z, targets, place)
    return weight / spread, bias - weight @ (center / spread)


def over_all_classes(weight: Tensor, bias: Tensor, held: Tensor, classes: int) -> State:
    """Return a head over all classes that never says one which the device does not hold."""
    import torch

    head = {"head.weight": torch.zeros(classes, weight.shape[1]), "head.bias": torch.full((classes,), -1e30)}
    head["head.weight"][held], head["head.bias"][held] = weight.float(), bias.float()
    return head


def _ridge(z: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Linear ridge regression with a constant; the ridge by samples left out."""
    import torch

    left, singular, right = torch.linalg.svd(torch.nn.functional.pad(z, (0, 1), value=1.0), full_matrices=False)
    turned = left.T @ targets
    best: tuple[float, Tensor] | None = None
    for ridge in RIDGES:
        kept = singular**2 / (singular**2 + ridge)
        hat = (left.square() * kept).sum(1)
        missed = (targets - left @ (kept[:, None] * turned)) / (1 - hat).clamp(min=1e-6)[:, None]
        loss = float(missed.square().mean())
        if best is None or loss < best[0]:
            best = loss, right.T @ ((kept / singular.clamp(min=1e-12))[:, None] * turned)
    assert best is not None
    return best[1][:-1].T, best[1][-1]


def _lda(z: Tensor, targets: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
    """Gaussian classes with a common covariance, shrunk toward its diagonal; how far by samples left out."""
    import torch

    counts = targets.sum(0)
    means = targets.T @ z / counts[:, None]
    away = z - means[place]
    freedom = max(len(z) - len(counts), 1)
    covariance = away.T @ away / freedom
    diagonal = torch.diag(covariance.diagonal().clamp(min=1e-6))
    n = counts[place]
    best: tuple[float, Tensor] | None = None
    for shrinkage in SHRINKAGES:
        precision = torch.linalg.inv((1 - shrinkage) * covariance + shrinkage * diagonal)
        turned = away @ precision
        own = (turned * away).sum(1)
        # Without a sample its mean moves away from it by n/(n − 1), and the covariance loses its outer product.
        lost = (1 - shrinkage) * n / ((n - 1).clamp(min=1) * freedom)
        remainder = (1 - lost * own).clamp(min=1e-3)
        distances = torch.stack([((z - m) @ precision * (z - m)).sum(1) for m in means], 1)
        along = torch.stack([(turned * (z - m)).sum(1) for m in means], 1)
        left = distances + (lost / remainder)[:, None] * along.square()
        grown = (n / (n - 1).clamp(min=1)).square()
        left = left.scatter(1, place[:, None], (grown * own / remainder)[:, None])
        loss = float(torch.nn.functional.cross_entropy(-left / 2, place))
        if best is None or loss < best[0]:
            best = loss, precision
    assert best is not None
    weight = means @ best[1]
    return weight, -0.5 * (weight * means).sum(1)
