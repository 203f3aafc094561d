"""Noise on uploaded class means, and what it guarantees: (ε, δ)-differential privacy.

**Mechanism.** A device scales the feature of each of its samples down to norm at most S (`clip_norm`), sums them
per class, and adds Gaussian noise of standard deviation 2 S z to every number of the sums, z being the noise
multiplier; it uploads the noisy sums divided by the counts. On a class mean that is noise of 2 S z / D_kc.

**Unit of privacy.** One sample of one device, *replaced* by another. Replacement, because the size of a device's
data is not a secret here (the cost model, the scheduler and the server's weights all use D_k); each device is
protected from the server on its own, so other devices and their number do not matter.

- Labels known (`noise_counts` off): the replacement has the same class. One class sum moves by at most 2 S, so a
  class mean moves by at most 2 S / D_kc, and z is noise over sensitivity. Counts are sent as they are: *they
  leak* which classes a device holds and how many of each, and the guarantee is silent about that.
- Labels secret too (`noise_counts` on): counts of *all* classes get noise 2 z, and sums of all classes noise
  2 S z. The replacement moves one sum by 2 S, or two sums by S and two counts by 1 each; in units of the noise
  both moves are at most 1/z, so z is again noise over sensitivity, labels included.

**Rounds.** T uploads of one device compose: Gaussian mechanisms of multiplier z are exactly one of z/√T, for
which the library `dp-accounting` gives the exact ε at a given δ. A scheduler that follows energy and channels
chooses devices by public things, not by a secret coin, so *there is no amplification by sampling*: a device
pays for each round that it takes part in.

**Updates of a shared stem** (`kfl.algorithms.stem`) are clipped as a whole: whatever a device's samples are, its
update lies in the ball of radius S, and two of them are at most 2 S apart. Noise of 2 S z then covers the replacement
of any number of its samples, their labels and the training included, with nothing left out.

**What is not covered with class means.** This treats the body that computes the features as given. It is trained on
the same samples, so replacing one sample changes, a little, the feature of every other. `PrivacyCost.epsilon` is the
guarantee for the averaging alone; `epsilon_with_training` allows the body to change in any way (every class mean
anywhere in the ball of radius S) and is what holds without conditions. It is usually too large to mean anything; a
useful unconditional guarantee would need local training that is itself private, which kfl does not have.
Quantization, aggregation and broadcasting come after the noise and cost nothing. In a simulation the noise comes from
the run's seed; a real device draws it from its system's own source, so that its server cannot subtract it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kfl.core.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from kfl.algorithms.base import Algorithm

VACUOUS_EPSILON = 100.0
"""An ε above this promises nothing: an observer's odds may change by e^100."""


@dataclass(frozen=True)
class PrivacyCost:
    """What the uploads of one device reveal about one of its samples."""

    epsilon: float
    """ε of the averaging, the body taken as given; infinite without noise."""
    delta: float
    sentence: str
    """The guarantee in words, with its conditions."""
    epsilon_with_training: float
    """ε that holds without conditions, the body's training included."""


def add_noise(
    means: Tensor,
    counts: Tensor,
    clip_norm: float,
    noise_multiplier: float,
    generator: torch.Generator,
    *,
    noise_counts: bool,
) -> tuple[Tensor, Tensor]:
    """Class means of clipped features and counts of one device, as they may be uploaded.

    With `noise_counts` every class is reported, held or not, unless its noisy count is below 1.
    """
    import torch

    def noise(shape: Sequence[int], scale: float) -> Tensor:
        return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)

    exact = counts.double().cpu()
    sums = means.double().cpu() * exact[:, None] + noise(means.shape, 2 * clip_norm * noise_multiplier)
    if noise_counts:
        noisy = exact + noise(counts.shape, 2 * noise_multiplier)
        weights = torch.where(noisy >= 1, noisy, 0.0)
    else:
        weights = exact
    held = weights > 0
    noisy_means = torch.where(held[:, None], sums / torch.where(held, weights, 1.0)[:, None], 0.0)
    return noisy_means.to(means), weights.to(counts.device) if noise_counts else counts


def privacy_cost(
    algorithm: Algorithm, rounds_taken: int, class_counts: Sequence[int], delta: float = 1e-5
) -> PrivacyCost:
    """The privacy cost for a device that uploaded `rounds_taken` times and holds so many samples per class.

    Args:
        algorithm: With its noise and its limit on the norm.
        rounds_taken: How often the device uploaded.
        class_counts: Its training samples of each class.
        delta: The δ of (ε, δ).
    """
    if not 0 < delta < 1:
        raise ConfigError("delta", delta, "above 0 and below 1")
    if rounds_taken < 0:
        raise ConfigError("rounds_taken", rounds_taken, "0 or more")
    multiplier = _multiplier(algorithm)
    if rounds_taken == 0:
        return PrivacyCost(0.0, delta, "The device uploaded nothing, so nothing was revealed.", 0.0)
    if multiplier == 0:
        sentence = f"Uploads of {algorithm.name} have no noise here: there is no differential-privacy guarantee."
        return PrivacyCost(math.inf, delta, sentence, math.inf)
    if getattr(algorithm, "noise_covers_training", False):
        epsilon = gaussian_epsilon(multiplier / math.sqrt(rounds_taken), delta)
        return PrivacyCost(epsilon, delta, _sentence_of_updates(epsilon, delta, rounds_taken), epsilon)
    labels = bool(getattr(algorithm, "noise_counts", False))
    epsilon = gaussian_epsilon(multiplier / math.sqrt(rounds_taken), delta)
    if algorithm.fixed_features:
        return PrivacyCost(epsilon, delta, _sentence(epsilon, delta, None, rounds_taken, labels), epsilon)
    worst = gaussian_epsilon(
        multiplier / math.sqrt(rounds_taken) / _sensitivity_with_training(class_counts, labels), delta
    )
    return PrivacyCost(epsilon, delta, _sentence(epsilon, delta, worst, rounds_taken, labels), worst)


def gaussian_epsilon(noise_over_sensitivity: float, delta: float) -> float:
    """The exact ε of the Gaussian mechanism for a δ (Balle, Wang 2018), from dp-accounting."""
    try:
        import dp_accounting
    except ImportError as problem:
        raise MissingExtraError("dp-accounting", "privacy", "Computing a privacy cost") from problem
    return float(dp_accounting.get_epsilon_gaussian(noise_over_sensitivity, delta))


def _multiplier(algorithm: Algorithm) -> float:
    """z of an algorithm that adds noise to what it uploads; 0 for all others."""
    return float(getattr(algorithm, "noise_multiplier", 0.0))


def _sensitivity_with_training(class_counts: Sequence[int], labels: bool) -> float:
    """How far an upload can move, in units of the noise times z, when the body may change in any way.

    Every feature stays in the ball of radius S, so the sum of class c moves by at most 2 S D_kc, D_kc in units of
    2 S. Where the label may change too, a class has one sample more or less: S (2 D_kc + 1), and two counts
    move by 1 each, ½ in units of 2 z.
    """
    if labels:
        return math.sqrt(sum((count + 0.5) ** 2 for count in class_counts) + 0.5)
    return math.sqrt(sum(count**2 for count in class_counts))


def _sentence(epsilon: float, delta: float, worst: float | None, rounds: int, labels: bool) -> str:
    """`worst` is what holds with the training of the body counted; None where the body is fixed."""
    unit = "one sample, its label included," if labels else "one sample among others of its class"
    leak = "" if labels else " The counts per class are sent as they are and are not protected."
    if worst is None:
        return (
            f"The {rounds} uploads of this device are ({epsilon:.3g}, {delta:g})-differentially private for the "
            f"replacement of {unit.rstrip(',')}; the encoder is fixed, so that nothing else is revealed.{leak}"
        )
    vacuous = ", which is vacuous" if worst > VACUOUS_EPSILON else ""
    return (
        f"The {rounds} uploads of this device are ({epsilon:.3g}, {delta:g})-differentially private for the "
        f"replacement of {unit} as far as the averaging of features goes; with the training of the body counted, "
        f"only ε = {worst:.3g} is guaranteed{vacuous}.{leak} "
        "Being scheduled by energy gives no amplification by sampling."
    )


def _sentence_of_updates(epsilon: float, delta: float, rounds: int) -> str:
    return (
        f"The {rounds} uploads of this device are ({epsilon:.3g}, {delta:g})-differentially private for the "
        "replacement of all its samples, the training included. Being scheduled by energy gives no amplification by "
        "sampling."
    )
