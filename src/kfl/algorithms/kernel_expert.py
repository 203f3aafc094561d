"""A device's own classifier without any other device: ridge regression on a Gaussian kernel of all encoder numbers.

With K_ij = exp(−‖s_i − s_j‖²/(2 w²)), w² the mean squared distance of its samples, targets Y of ones and zeros and a
ridge λ, predictions are K(x, ·) A with A = (K + λ I)⁻¹ Y. What each sample would be given if it were left out follows
without solving again: y_i − (A)_i / ((K + λ I)⁻¹)_ii. λ is the one under which these are nearest to Y.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kfl.algorithms.gaussian import Common, personal

RIDGES = tuple(10.0**k for k in (-4, -3.5, -3, -2.5, -2, -1.5, -1, -0.5, 0))
LEAST_PROBABILITY = 0.001


@dataclass(frozen=True, eq=False)
class KernelExpert:
    """The fitted classifier."""

    points: Tensor
    """The training samples, (n, numbers)."""
    weights: Tensor
    """A, (n, m)."""
    width2: float
    """w²."""
    left_out: Tensor
    """Logarithms of what each training sample is given by a classifier without it, (n, m)."""

    def scores(self, x: Tensor) -> Tensor:
        """Logarithms of the probability of each class, (n, m)."""
        return as_log_probabilities(_kernel(x.float(), self.points, self.width2).double() @ self.weights)


def fit_kernel(x: Tensor, place: Tensor, classes: int) -> KernelExpert:
    """Fit a device's samples (n, numbers); `place` says which class each has, from 0 to classes − 1."""
    points = x.float()
    squared = torch.cdist(points, points).square()
    width2 = float(squared.mean()) or 1.0
    kernel = torch.exp(-squared / (2 * width2)).double()
    targets = torch.nn.functional.one_hot(place, classes).double()
    values, vectors = torch.linalg.eigh(kernel)
    turned = vectors.T @ targets
    best: tuple[float, Tensor, Tensor] | None = None
    for ridge in RIDGES:
        inverse = 1 / (values.clamp(min=0) + ridge)
        weights = vectors @ (inverse[:, None] * turned)
        left = targets - weights / (vectors.square() @ inverse)[:, None]
        loss = float((left - targets).square().mean())
        if best is None or loss < best[0]:
            best = loss, weights, left
    assert best is not None
    return KernelExpert(points, best[1], width2, as_log_probabilities(best[2]))


def kernel_flops(samples: int, numbers: int, classes: int) -> float:
    """Multiply-adds of `fit_kernel`: all distances, a decomposition of n × n (4.5 n³), and the products of each ridge.

    >>> kernel_flops(50, 256, 5)
    1350000.0
    """
    return samples**2 * (numbers + 4.5 * samples + len(RIDGES) + (len(RIDGES) + 1) * classes)


def as_log_probabilities(values: Tensor) -> Tensor:
    """Make outputs of a regression on ones and zeros probabilities that are never quite zero, and take logarithms."""
    kept = values.clamp(LEAST_PROBABILITY, 1)
    return (kept / kept.sum(-1, keepdim=True)).log()


def _kernel(x: Tensor, points: Tensor, width2: float) -> Tensor:
    return torch.exp(-torch.cdist(x, points).square() / (2 * width2))


SHARES = (0.0, 0.2, 0.4, 0.7, 1.0)
FACTORS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0)
SHARE_PULL, FACTOR_PULL = 2.0, 0.5
"""How strongly a is held at 1 and b at 0, per sample: with much data a device may keep its own classifier alone."""


def weigh_experts(common: Tensor, own: Tensor, place: Tensor) -> tuple[float, float]:
    """Weigh two classifiers, a · common + b · own, by what they say of samples left out; a = 1 and b = 0 without cause.

    Args:
        common: Logarithms of the common classifier, (n, m).
        own: Logarithms of the device's own, (n, m).
        place: The class of each sample.
    """
    found = {}
    for a in SHARES:
        for b in FACTORS:
            if a or b:
                loss = float(torch.nn.functional.cross_entropy(a * common + b * own, place))
                found[a, b] = loss + (FACTOR_PULL * b * b + SHARE_PULL * (1 - a) ** 2) / len(place)
    return min(found, key=lambda key: found[key])


def classify(
    common: Common, x: Tensor, y: Tensor, tests: Tensor, *, own: bool, kernel: bool, network: bool = False
) -> Tensor:
    """Return the class of each test sample, among those that a device holds.

    Args:
        common: What the server knows.
        x: The device's samples, (n, d).
        y: Their classes.
        tests: Samples to classify, (tests, d).
        own: Whether the device's own samples have a say; else the common classifier alone.
        kernel: Whether the kernel regression has one.
        network: Whether a network on what is left unexplained has one.
    """
    classes, place = y.unique(return_inverse=True)
    if not own:
        known = classes[common.counts[classes] > 0]
        nearest: Tensor = known[common.distances(tests)[:, known].argmin(1)] if len(known) else classes[:1]
        return nearest
    head = personal(common, x, y)
    scores = head.scores(tests)
    if kernel:
        expert = fit_kernel(x, place, len(classes))
        a, b = weigh_experts(head.left_out, expert.left_out, place)
        scores = a * scores + (b * expert.scores(tests) if b else 0.0)
    if network:
        from kfl.algorithms.residual_network import fit_residual

        scores = fit_residual(x, place, head.left_out)(tests, scores)
    found: Tensor = classes[scores.argmax(1)]
    return found
