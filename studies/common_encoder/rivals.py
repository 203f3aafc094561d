"""Published classifiers of a frozen encoder's numbers, each from what its devices send in one round.

Every device sends counts and class means, some also second moments; the server solves for one linear classifier, and
two methods let a device change it. "As released" follows the code where it differs from the paper. All were read in
the papers' repositories; nothing is copied.

    FedNCM    Legate et al., NeurIPS 2023: class means, normalized, are the weights
    Fed3R     Fanì et al., ICML 2024 (and AFL, He et al., CVPR 2025): ridge regression from summed Gram matrices
    FedCOF    Goswami et al., NeurIPS 2025: the same, with the Gram matrix guessed from how means scatter
    FedCGS    Guan et al., AAAI 2025: Gaussian classes with the pooled covariance
    GH-LDA    GH-OFL, ICLR 2026: Gaussian classes with the covariance within classes
    APFL      analytic personalization, arXiv 2508.10732: Fed3R, and a ridge regression of each device on what it misses
    pFedFDA   McLaughlin and Su, NeurIPS 2024: Gaussian classes, blended with a device's own by two-fold validation
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

VALUE_BITS = 32
COUNT_BITS = 16
RIDGE = 0.01
"""λ of Fed3R, the authors' value."""
SHRINKAGE = 1.0
"""γ of FedCOF, the authors' value."""
LDA_RIDGE = 0.1
"""Of GH-LDA, relative to the mean variance: fixed on seeds 100 and 101."""
OWN_RIDGES = (0.1, 1.0, 10.0, 100.0, 1000.0)
BLENDS = tuple(k / 10 for k in range(11))


@dataclass(frozen=True, eq=False)
class Moments:
    """What a device, or all together, know: numbers, sums and second moments."""

    counts: Tensor
    """(classes,)."""
    sums: Tensor
    """(classes, d)."""
    gram: Tensor
    """Σ x xᵀ, (d, d)."""
    spread: Tensor
    """Σ_k n_kc μ_kc μ_kcᵀ over the devices that were added, (classes, d, d) or nothing."""
    devices: Tensor
    """How many devices hold each class."""

    @staticmethod
    def of(x: Tensor, y: Tensor, classes: int) -> Moments:
        """The moments of one device's samples (n, d)."""
        one_hot = torch.nn.functional.one_hot(y, classes).double()
        counts, sums = one_hot.sum(0), one_hot.T @ x
        return Moments(counts, sums, x.T @ x, torch.zeros(0), (counts > 0).double())

    @property
    def means(self) -> Tensor:
        """Class means; zero where there are no samples."""
        return self.sums / self.counts.clamp(min=1)[:, None]

    @property
    def within(self) -> Tensor:
        """The covariance within classes."""
        freedom = (self.counts.sum() - (self.counts > 0).sum()).clamp(min=1)
        return (self.gram - (self.means * self.counts[:, None]).T @ self.means) / freedom


def added(devices: Sequence[Moments]) -> Moments:
    """What a server knows when all devices have sent."""
    means = torch.stack([one.means for one in devices])  # (devices, classes, d)
    counts = torch.stack([one.counts for one in devices])
    return Moments(
        counts.sum(0),
        torch.stack([one.sums for one in devices]).sum(0),
        torch.stack([one.gram for one in devices]).sum(0),
        torch.einsum("kc,kci,kcj->cij", counts, means, means),
        (counts > 0).double().sum(0),
    )


@dataclass(frozen=True, eq=False)
class Linear:
    """A linear classifier over all classes."""

    weight: Tensor
    """(classes, d)."""
    bias: Tensor

    def scores(self, x: Tensor) -> Tensor:
        """One number per class, (n, classes)."""
        return x @ self.weight.T + self.bias


Head = Callable[[Moments], Linear]
Personal = Callable[[Moments, Linear, Tensor, Tensor], Linear]


@dataclass(frozen=True)
class Rival:
    """One method."""

    head: Head
    """What the server makes."""
    moments: bool = False
    """Whether devices send second moments."""
    personal: Personal | None = None
    """What a device makes of it with its own samples."""

    def bits(self, d: int, held: int) -> int:
        """Size of the upload of a device that holds so many classes."""
        values = held * d + (d * (d + 1) // 2 if self.moments else 0)
        return VALUE_BITS * values + COUNT_BITS * held

    def most_numbers(self, bits: int, d: int, held: int) -> int:
        """How many of d numbers of a sample fit into so many bits; 0 for none."""
        return max((k for k in range(d + 1) if k == 0 or self.bits(k, held) <= bits), default=0)


def fed_ncm(known: Moments) -> Linear:
    """The class means, normalized."""
    weight = torch.nn.functional.normalize(known.means)
    return Linear(weight, torch.zeros(len(weight)).double())


def nearest_mean(known: Moments) -> Linear:
    """The nearest class mean."""
    return Linear(known.means, -0.5 * known.means.square().sum(1))


def fed3r(known: Moments) -> Linear:
    """Ridge regression on ones and zeros, normalized as the authors do."""
    weight = _solve(known.gram + RIDGE * torch.eye(len(known.gram)), known.sums)
    return Linear(torch.nn.functional.normalize(weight), torch.zeros(len(weight)).double())


def afl(known: Moments) -> Linear:
    """The same, neither normalized nor regularized in the end."""
    weight = _solve(known.gram + 1e-6 * _scale(known.gram), known.sums)
    return Linear(weight, torch.zeros(len(weight)).double())


def fed_cof(known: Moments) -> Linear:
    """Ridge regression with a Gram matrix from the scatter of means, in each class by itself."""
    d, eye = known.sums.shape[1], torch.eye(known.sums.shape[1]).double()
    total = torch.zeros(d, d).double()
    for count, mean, spread, devices in zip(known.counts, known.means, known.spread, known.devices, strict=True):
        if count > 0:
            scatter = spread - count * torch.outer(mean, mean)
            total += (count - 1) * (scatter / max(float(devices) - 1, 1.0) + SHRINKAGE * eye)
    center = known.sums.sum(0) / known.counts.sum()
    weight = _solve(total + known.counts.sum() * torch.outer(center, center), known.sums)
    return Linear(torch.nn.functional.normalize(weight), torch.zeros(len(weight)).double())


def fed_cgs(known: Moments) -> Linear:
    """Gaussian classes with the covariance of all samples, whatever their class, as released."""
    number = known.counts.sum()
    center = known.sums.sum(0) / number
    return _gaussian(known.means, (known.gram - number * torch.outer(center, center)) / (number - 1), known.counts)


def gh_lda(known: Moments) -> Linear:
    """Gaussian classes with the covariance within classes."""
    return _gaussian(known.means, known.within + LDA_RIDGE * _scale(known.within), known.counts)


def residual(known: Moments, head: Linear, x: Tensor, y: Tensor) -> Linear:
    """A ridge regression on what the common one misses; its ridge by samples left out."""
    held = known.counts > 0
    missed = torch.nn.functional.one_hot(y, len(head.bias)).double() - head.scores(x)
    left, singular, right = torch.linalg.svd(x, full_matrices=False)
    turned, best = left.T @ missed, None
    for ridge in OWN_RIDGES:
        kept = singular.square() / (singular.square() + ridge)
        wrong = (missed - left @ (kept[:, None] * turned)) / (1 - left.square() @ kept).clamp(min=1e-6)[:, None]
        loss = float(wrong[:, held].square().mean())
        if best is None or loss < best[0]:
            best = loss, right.T @ ((kept / singular.clamp(min=1e-12))[:, None] * turned)
    assert best is not None
    return Linear(head.weight + best[1].T, head.bias)


def blended(ridge: Callable[[Tensor], Tensor]) -> Personal:
    """A device's own Gaussians and the common ones in one proportion, by two-fold validation."""

    def personal(known: Moments, head: Linear, x: Tensor, y: Tensor) -> Linear:
        classes, theirs = len(known.counts), known
        mine = Moments.of(x, y, classes)
        counts, common = mine.counts, ridge(theirs.within)
        fold = torch.empty(len(y), dtype=torch.bool)
        for c in y.unique():  # every other sample of each class
            fold[y == c] = torch.arange(int((y == c).sum())) % 2 == 0
        losses = dict.fromkeys(BLENDS, 0.0)
        for train, test in ((fold, ~fold), (~fold, fold)):
            if not train.any() or not test.any():
                return _gaussian(theirs.means, common, counts)
            part = Moments.of(x[train], y[train], classes)
            for blend in BLENDS:
                made = _gaussian(*_blend(part, theirs, common, ridge, blend), counts)
                losses[blend] += float(torch.nn.functional.cross_entropy(made.scores(x[test]), y[test]))
        blend = min(losses, key=lambda one: losses[one])
        return _gaussian(*_blend(mine, theirs, common, ridge, blend), counts)

    return personal


def _blend(
    own: Moments, theirs: Moments, common: Tensor, ridge: Callable[[Tensor], Tensor], share: float
) -> tuple[Tensor, Tensor]:
    means = torch.where(own.counts[:, None] > 0, own.means, theirs.means)
    return share * means + (1 - share) * theirs.means, share * ridge(own.within) + (1 - share) * common


def _gaussian(means: Tensor, covariance: Tensor, counts: Tensor) -> Linear:
    """Linear discriminants with the frequencies of classes; a class without samples is never said."""
    weight = _solve(covariance, means)
    prior = torch.where(counts > 0, (counts.clamp(min=1) / counts.sum()).log(), -1e30)
    return Linear(weight, prior - 0.5 * (weight * means).sum(1))


def _solve(matrix: Tensor, rows: Tensor) -> Tensor:
    """Rows times the inverse; the pseudo-inverse where there is none."""
    found, failed = torch.linalg.solve_ex(matrix, rows.T)
    if failed or not torch.isfinite(found).all():
        found = torch.linalg.pinv(matrix, hermitian=True) @ rows.T
    result: Tensor = found.T
    return result


def _scale(matrix: Tensor) -> Tensor:
    """The identity times the mean of the diagonal."""
    return torch.eye(len(matrix)).double() * matrix.diagonal().mean()


RIVALS: Mapping[str, Rival] = {
    "FedNCM": Rival(fed_ncm),
    "nearest mean": Rival(nearest_mean),
    "Fed3R": Rival(fed3r, moments=True),
    "AFL": Rival(afl, moments=True),
    "FedCOF": Rival(fed_cof),
    "FedCGS": Rival(fed_cgs, moments=True),
    "GH-LDA": Rival(gh_lda, moments=True),
    "APFL residual": Rival(afl, moments=True, personal=residual),
    "pFedFDA": Rival(gh_lda, moments=True, personal=blended(lambda s: s + 1e-4 * torch.eye(len(s)).double())),
    "pFedFDA, as released": Rival(
        gh_lda, moments=True, personal=blended(lambda s: s + 1e-4 + torch.eye(len(s)).double())
    ),
}
"""By the name in tables."""
