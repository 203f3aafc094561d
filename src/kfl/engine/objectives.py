"""What a device minimizes, as a pure function of its parameters.

Every objective works as plain autograd, on every engine. Parameters are a flat dictionary of names, so an algorithm can
train more than one model at once by giving each a prefix: `personal/body.1.weight`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from kfl.engine.base import Sgd
    from kfl.models import State


class Forward(Protocol):
    """One model as a pure function, which the loss of a custom objective calls.

    Example:
        >>> import torch
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True, eq=False)
        ... class Smoothed(Supervised):
        ...     "Cross-entropy with smoothed labels."
        ...     def loss(self, forward, state, inputs, targets, weights=None):
        ...         feature, logits = forward(state, inputs)
        ...         each = torch.nn.functional.cross_entropy(logits, targets, reduction="none", label_smoothing=0.1)
        ...         return each.mean() if weights is None else (weights * each).sum()
    """

    def __call__(self, state: State, inputs: Tensor, /) -> tuple[Tensor, Tensor]:
        """Return features and logits.

        Args:
            state: Parameters of one model by name.
            inputs: Samples, (n, ...).

        Returns:
            Feature vectors, (n, features), and logits, (n, classes).
        """
        ...


PERSONAL = "personal/"
"""Prefix of the parameters of a personal model next to the shared one."""
MIXING = "mixing"
"""Name of the mixing weight α of the personal and the shared model."""


@dataclass(frozen=True, eq=False)
class FeatureTargets:
    """Pulls the feature of each sample of class c toward `targets[c]`: λ ½‖h(x) − Ω_c‖², equation (6)."""

    weight: float
    """λ."""
    targets: Tensor
    """Ω, shape (classes, features); or one per device of the cohort, (devices, classes, features)."""
    known: Tensor
    """Bool, shape (classes,) or (devices, classes). Classes without a target have no such loss."""


@dataclass(frozen=True)
class Descent:
    """Gradient descent with momentum: the learning rate of each parameter that moves, and the momentum."""

    rates: Mapping[str, float]
    momentum: float


@dataclass(frozen=True, eq=False)
class Objective(ABC):
    """A loss over a batch of samples."""

    outputs_only: ClassVar[bool] = False
    """Whether the loss sees a model through its outputs alone. Then networks of different widths may share a batch:
    units of weight zero change nothing."""
    single_pass: ClassVar[bool] = False
    """Whether the loss calls `forward` with the very parameters and inputs that it is given, and looks at neither the
    inputs nor the parameters of the body itself. Then an engine may train a first dense layer in the space of the
    samples. A subclass with a loss of its own has to declare it again."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "loss" in vars(cls) and "single_pass" not in vars(cls):
            cls.single_pass = False

    @abstractmethod
    def loss(
        self, forward: Forward, state: State, inputs: Tensor, targets: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        """The mean loss of a batch: one number that autograd can follow back to `state`.

        `weights` has one number per sample and adds up to 1: the loss is then the weighted sum, so that an engine
        can fill devices with few samples up with samples of weight 0. An objective may leave this argument out;
        its devices are then only batched with others that have as many samples.
        """

    @property
    def gradient_limit(self) -> float | None:
        """Largest norm of a step's gradient over all that moves, to which a larger one is scaled; None for no limit."""
        return None

    def rate(self, name: str, sgd: Sgd) -> float:
        """The learning rate of a parameter: the body's, or the head's. Rate 0 keeps it exactly as it is."""
        return sgd.head_rate if name.rpartition("/")[2].startswith("head.") else sgd.body_rate

    def project(self, name: str, value: Tensor) -> Tensor:
        """A parameter after a step, brought back to where it may be; as it is unless overridden."""
        return value

    def for_device(self, index: int) -> Objective:
        """The objective of the device at this index of the cohort; the same for all unless overridden."""
        return self

    def descent(self, names: Iterable[str], sgd: Sgd) -> Descent:
        """The parameters among these names that move, with their rates."""
        rates = {name: self.rate(name, sgd) for name in names}
        return Descent({name: rate for name, rate in rates.items() if rate}, sgd.momentum)


@dataclass(frozen=True, eq=False)
class Supervised(Objective):
    """Cross-entropy on the device's labels, and a pull on its features where one is given.

    The knowledge-aided loss F + λL of the paper: the pull acts on the body alone because the head comes after
    the features.
    """

    outputs_only: ClassVar[bool] = True
    single_pass: ClassVar[bool] = True
    pull: FeatureTargets | None = None

    def loss(
        self, forward: Forward, state: State, inputs: Tensor, targets: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        """Equations (1) and (6): F + λL."""
        feature, logits = forward(state, inputs)
        loss = class_loss(logits, targets, weights)
        if self.pull is not None:
            loss = loss + self.pull.weight * feature_loss(feature, targets, self.pull, weights)
        return loss

    def for_device(self, index: int) -> Objective:
        """Pick this device's own targets where each device has its own."""
        if self.pull is None or self.pull.targets.dim() == 2:
            return self
        own = FeatureTargets(self.pull.weight, self.pull.targets[index], self.pull.known[index])
        return replace(self, pull=own)


def class_loss(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """F = mean over samples of the cross-entropy, equation (1)."""
    from torch.nn import functional

    if weights is None:
        return functional.cross_entropy(logits, labels)
    return (functional.cross_entropy(logits, labels, reduction="none") * weights).sum()


def feature_loss(feature: Tensor, labels: Tensor, pull: FeatureTargets, weights: Tensor | None = None) -> Tensor:
    """L = mean over samples of ½‖h(x) − Ω_y‖², equation (6); classes without knowledge count as zero."""
    distance = 0.5 * (feature - pull.targets[labels]).square().sum(1) * pull.known[labels]
    return distance.mean() if weights is None else (distance * weights).sum()


@dataclass(frozen=True, eq=False)
class Distillation(Objective):
    """Brings a model's softened predictions close to given logits, which take the place of labels.

    T² KL(softmax(z*/T) ‖ softmax(z/T)), mean over samples (Hinton, Vinyals, Dean 2015). The factor T² keeps the
    size of the gradient the same for every temperature; for large T it is that of a squared error on centered
    logits.
    """

    outputs_only: ClassVar[bool] = True
    single_pass: ClassVar[bool] = True
    temperature: float

    def loss(
        self, forward: Forward, state: State, inputs: Tensor, targets: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        """T² KL(softmax(z*/T) ‖ softmax(z/T))."""
        from torch.nn import functional

        _, logits = forward(state, inputs)
        log_probs = functional.log_softmax(logits / self.temperature, dim=1)
        target_log_probs = functional.log_softmax(targets / self.temperature, dim=1)
        if weights is None:
            divergence = functional.kl_div(log_probs, target_log_probs, reduction="batchmean", log_target=True)
        else:
            of_sample = functional.kl_div(log_probs, target_log_probs, reduction="none", log_target=True).sum(1)
            divergence = (of_sample * weights).sum()
        return self.temperature**2 * divergence


@dataclass(frozen=True, eq=False)
class LabelDistillation(Objective):
    """Cross-entropy on the device's labels, and on what is said elsewhere of samples with the same label.

    F + λ · mean over samples of H(softmax(z*_y), softmax(z)), where z*_y are the logits given for label y and H is
    the cross-entropy. The gradient of the second term at the logits is λ (softmax(z) − softmax(z*_y)).
    """

    outputs_only: ClassVar[bool] = True
    single_pass: ClassVar[bool] = True
    weight: float
    """λ."""
    targets: Tensor
    """z*, shape (classes, classes): a row of logits for each label."""
    known: Tensor
    """Bool, shape (classes,). Labels without logits have no such loss."""

    def loss(
        self, forward: Forward, state: State, inputs: Tensor, targets: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        """F + λ H(softmax(z*_y), softmax(z))."""
        from torch.nn import functional

        _, logits = forward(state, inputs)
        target_probs = functional.softmax(self.targets.to(logits.dtype), dim=1)[targets]
        distance = -(target_probs * functional.log_softmax(logits, dim=1)).sum(1) * self.known[targets]
        distilled = distance.mean() if weights is None else (distance * weights).sum()
        return class_loss(logits, targets, weights) + self.weight * distilled


@dataclass(frozen=True, eq=False)
class Mixture(Objective):
    """A shared model w and a personal model v, the latter judged in the mixture α v + (1 − α) w.

    The loss is F(w) + F(α v + (1 − α) ⌊w⌋), where ⌊·⌋ stops the gradient. With v̄ for the mixture, its gradients
    are ∇F(w) for w, α ∇F(v̄) for v and ⟨v − w, ∇F(v̄)⟩ for α: the updates of Deng et al. 2020.
    """

    outputs_only: ClassVar[bool] = True
    mixing_rate: float
    """Learning rate of α."""

    def loss(
        self, forward: Forward, state: State, inputs: Tensor, targets: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        """F(w) + F(α v + (1 − α) ⌊w⌋)."""
        shared = {name: value for name, value in state.items() if name != MIXING and not name.startswith(PERSONAL)}
        mixed = {}
        for name, value in shared.items():
            own = state[PERSONAL + name]
            # A buffer (running statistics) is no parameter: the personal model keeps its own, and the layer
            # updates it in place.
            mixes = own.requires_grad
            mixed[name] = state[MIXING] * own + (1 - state[MIXING]) * value.detach() if mixes else own
        _, logits = forward(shared, inputs)
        _, personal = forward(mixed, inputs)
        return class_loss(logits, targets, weights) + class_loss(personal, targets, weights)

    def rate(self, name: str, sgd: Sgd) -> float:
        """α has its own rate; both models have the body's and the head's."""
        if name == MIXING:
            return self.mixing_rate
        return sgd.head_rate if name.rpartition("/")[2].startswith("head.") else sgd.body_rate

    def project(self, name: str, value: Tensor) -> Tensor:
        """α stays between 0 and 1."""
        return value.clamp(0.0, 1.0) if name == MIXING else value


@dataclass(frozen=True, eq=False)
class Proximal(Objective):
    """Cross-entropy, a pull of the weights themselves to given ones, and a slope: F(w) + μ/2 ‖w − w*‖² + ⟨s, w⟩."""

    weight: float
    """μ."""
    names: tuple[str, ...]
    """The weights that w has, in this order."""
    center: Tensor
    """w* in one row, the same for all devices."""
    slopes: Tensor | None = None
    """s of each device of the cohort, (devices, numbers); or of one, (numbers,)."""

    def loss(
        self, forward: Forward, state: State, inputs: Tensor, targets: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        """F(w) + μ/2 ‖w − w*‖² + ⟨s, w⟩."""
        import torch

        _, logits = forward(state, inputs)
        row = torch.cat([state[name].reshape(-1) for name in self.names])
        loss = class_loss(logits, targets, weights)
        if self.weight:
            loss = loss + 0.5 * self.weight * (row - self.center).square().sum()
        return loss if self.slopes is None else loss + (self.slopes * row).sum()

    def for_device(self, index: int) -> Objective:
        """Pick this device's own slope."""
        return self if self.slopes is None or self.slopes.dim() == 1 else replace(self, slopes=self.slopes[index])


@dataclass(frozen=True, eq=False)
class Matryoshka(Objective):
    """One feature vector, judged twice: all of it by the head, its first numbers by the small head `head.small`.

    The networks are those of `kfl.algorithms.small_network`. How many numbers the small head sees is the width of its
    weight.
    """

    single_pass: ClassVar[bool] = True
    small_weight: float
    """Weight of the small head's cross-entropy; the other's is 1."""
    largest_gradient: float | None = None
    """Norm to which larger gradients are scaled; None for no limit."""

    @property
    def gradient_limit(self) -> float | None:
        """The given one."""
        return self.largest_gradient

    def loss(
        self, forward: Forward, state: State, inputs: Tensor, targets: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        """Cross-entropy of the head, and of the small head on the first numbers of the feature."""
        from torch.nn import functional

        feature, logits = forward(state, inputs)
        weight = state["head.small.weight"]
        small = functional.linear(feature[:, : weight.shape[1]], weight, state["head.small.bias"])
        return class_loss(logits, targets, weights) + self.small_weight * class_loss(small, targets, weights)
