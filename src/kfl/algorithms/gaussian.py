"""Classes as Gaussians in a common feature space: what a server estimates from many devices, what one makes of it.

A sample x of class c on device k is N(m_kc, Σ), and the class means of devices are N(M_c, B): the two-covariance model
of speaker recognition (Prince and Elder 2007). Where devices hold the same kind of data, B is zero and every device
classifies with the common means; where each has its own way (people, sensors), B says how far to trust one's own.

**The server** (`estimate`) sees sums over devices (`Sums`) only. In units of the pooled standard deviation within
classes, with d features, C the scatter of the devices' class means around M_c (noise of quantization subtracted), dof
its degrees of freedom and R the correlation within classes with weight w, halves R₁ and R₂ of it from different
sketches:

    Σ₀ = (d I + (w/2) R₁) / (d + w/2) = L Lᵀ          shrunk toward the identity, the prior of a whitened encoder
    L⁻¹ C L⁻ᵀ / dof = V diag(λ) Vᵀ                    directions in which devices differ: from one half of the sketches
    σ_j = v_jᵀ L⁻¹ R₂ L⁻ᵀ v_j                         size of Σ along them: from the other half
    B   = Σ_j (λ_j − σ_j) (dof/den) (L v_j)(L v_j)ᵀ   over λ_j/σ_j > (1 + √(d/dof))², the edge of noise
    Σ   = (d I + w R + C′) / (d + w + dof)            C′ is C with those λ_j put back to σ_j

Without the split in halves, noise in the sketches looks like a difference between devices. The scatter of means as an
estimate of Σ is FedCOF's (Goswami et al. 2025).

**A device** (`personal`) mixes its own covariance in and shrinks its own class means toward the common ones:

    Σ_k = (1 − p) Σ + p S_k,   G_c = B (B + Σ_k/n_c)⁻¹,   m̂_c = M_c + G_c (μ_kc − M_c),   Σ̂ = Σ_k + mean_c (I − G_c) B

and classifies by the least (x − m̂_c)ᵀ Σ̂⁻¹ (x − m̂_c). Everything is in closed form and in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

PRIOR = 1.0
"""Weight of the prior covariance, the identity, in samples per feature."""
OWN_SHARES = (0.25, 0.5, 0.75, 0.9)
"""Shares p of a device's own covariance that are tried where devices differ."""
SHARE_PULL = 8.0
"""How strongly p is held at its least value, per sample."""
LEAST_VARIANCE = 0.1
"""Of Σ along a direction in which devices differ, in units of the variance within classes."""
DIFFER = 0.1
"""Above this, tr(B)/d says that devices differ: 0 of 130 wrong where they did not, 0 of 80 missed where they did."""


@dataclass(frozen=True, eq=False)
class Sums:
    """What a server adds up over devices; k is a device, c a class that it holds, d the number of features."""

    counts: Tensor
    """Σ n_kc, (classes,)."""
    totals: Tensor
    """Σ n_kc μ_kc, (classes, d)."""
    outer: Tensor
    """Σ n_kc μ_kc μ_kcᵀ, (d, d)."""
    noise: Tensor
    """Σ n_kc times the variance that quantization added to μ_kc, (d,)."""
    squares: Tensor
    """Σ n_kc², (classes,)."""
    pairs: Tensor
    """Number of pairs of a device and a class."""
    within: Tensor
    """Σ (n_k − m_k) times the variance within classes, (d,)."""
    freedom: Tensor
    """Σ (n_k − m_k), m_k the classes of a device."""
    signs: Tensor
    """Σ sign sign' over sketches, first and second halves, (2, d, d); or the scatter within classes, twice."""
    sketches: Tensor
    """Number of sketches in each half, (2,)."""


@dataclass(frozen=True, eq=False)
class Common:
    """What the server knows. Class means are in the features' own units, Σ and B in those of `scale`."""

    means: Tensor
    """M_c, (classes, d); zero where no device has sent any."""
    counts: Tensor
    """N_c, (classes,)."""
    scale: Tensor
    """Pooled standard deviation within classes, (d,)."""
    within: Tensor
    """Σ, (d, d)."""
    between: Tensor
    """B, (d, d)."""
    weight: float
    """ν: how many samples Σ is worth."""

    @property
    def difference(self) -> float:
        """tr(B)/d: how much class means differ between devices, in units of the variance within classes."""
        return float(self.between.diagonal().mean())

    def distances(self, x: Tensor) -> Tensor:
        """Squared distances of samples to all class means, for devices with no data of their own: (n, classes)."""
        factor = torch.linalg.cholesky(self.within + self.between)
        ends = [
            torch.linalg.solve_triangular(factor, (one.double() / self.scale).T, upper=False) for one in (x, self.means)
        ]
        return torch.cdist(ends[0].T, ends[1].T).square()


def estimate(sums: Sums, *, full: bool = False) -> Common:
    """Estimate M, Σ and B.

    Args:
        sums: What devices sent; `signs` may be of no sketches at all.
        full: Whether `signs` holds the scatter within classes itself.
    """
    d = sums.totals.shape[1]
    known = sums.counts > 0
    means = torch.where(known[:, None], sums.totals / sums.counts.clamp(min=1)[:, None], 0.0)
    variance = sums.within / sums.freedom.clamp(min=1)
    scale = torch.where(variance > 0, variance, 1.0).sqrt()
    eye = torch.eye(d, dtype=torch.float64)
    # The scatter of class means around the common ones, with what quantization added taken out.
    dof = max(float(sums.pairs) - int(known.sum()), 0.0)
    scatter = sums.outer - (means * sums.counts[:, None]).T @ means
    share = dof / max(float(sums.pairs), 1.0)  # the means took their part of the noise with them
    scatter = (scatter - share * torch.diag(sums.noise)) / scale / scale[:, None]
    scatter = _nonnegative(scatter) if dof else torch.zeros_like(eye)
    first, second, both, weight = _correlations(sums, scale, full=full)
    if weight == 0 or dof == 0:  # means alone cannot tell Σ from B
        total = PRIOR * d + weight + dof
        return Common(means, sums.counts, scale, (PRIOR * d * eye + weight * both + scatter) / total, 0 * eye, total)
    half = weight if full else weight / 2
    factor = torch.linalg.cholesky((PRIOR * d * eye + half * first) / (PRIOR * d + half))
    values, vectors = torch.linalg.eigh(_between(factor, scatter / dof))
    noise = (vectors * (_between(factor, second) @ vectors)).sum(0).clamp(min=LEAST_VARIANCE)
    edge = (1 + math.sqrt(d / dof)) ** 2 * (1 + math.sqrt(d / weight) if full else 1.0)
    kept = values / noise > edge
    directions = factor @ vectors
    den = float((sums.counts - sums.squares / sums.counts.clamp(min=1)).sum())
    excess = torch.where(kept, (values - noise) * dof / max(den, 1e-300), 0.0)
    between = (directions * excess) @ directions.T
    if full and float(between.diagonal().mean()) <= DIFFER:  # one matrix for both halves: noise gets through the edge
        kept, between = torch.zeros_like(kept), torch.zeros_like(between)
    cleaned = (directions * torch.where(kept, noise, values)) @ directions.T * dof
    total = PRIOR * d + weight + dof
    return Common(means, sums.counts, scale, (PRIOR * d * eye + weight * both + cleaned) / total, between, total)


def _correlations(sums: Sums, scale: Tensor, *, full: bool) -> tuple[Tensor, Tensor, Tensor, float]:
    """R₁, R₂, R and the weight w of R in samples; zeros without sketches."""
    if full:
        found = sums.signs[0] / scale / scale[:, None] / sums.freedom.clamp(min=1)
        return found, found, found, float(sums.freedom)
    number = sums.sketches
    if float(number.min()) < 1:
        nothing = torch.zeros_like(sums.outer)
        return nothing, nothing, nothing, 0.0
    # The arcsine law: two Gaussians of correlation ρ have equal signs so often that E sign sign' = 2/π arcsin ρ.
    halves = [_nonnegative(torch.sin(math.pi / 2 * one / count)) for one, count in zip(sums.signs, number, strict=True)]
    both = _nonnegative(torch.sin(math.pi / 2 * sums.signs.sum(0) / number.sum()))
    return halves[0], halves[1], both, float(number.sum()) / 2


def _between(factor: Tensor, matrix: Tensor) -> Tensor:
    """L⁻¹ A L⁻ᵀ."""
    half = torch.linalg.solve_triangular(factor, matrix, upper=False)
    found = torch.linalg.solve_triangular(factor, half.T, upper=False)
    result: Tensor = (found + found.T) / 2
    return result


def _nonnegative(matrix: Tensor) -> Tensor:
    """The nearest matrix without negative eigenvalues."""
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    result: Tensor = (vectors * values.clamp(min=0)) @ vectors.T
    return result


@dataclass(frozen=True, eq=False)
class Personal:
    """A device's own classifier over the classes it holds."""

    classes: Tensor
    """The classes it tells apart, (m,)."""
    means: Tensor
    """m̂ over the scale, (m, d)."""
    scale: Tensor
    precision: Tensor
    """Σ̂⁻¹, (d, d)."""
    own_share: float
    """p."""
    left_out: Tensor
    """Logarithms of the probability of each class for each training sample, by a classifier without it: (n, m)."""
    temperature: float

    def scores(self, x: Tensor) -> Tensor:
        """Logarithms of the probability of each of `classes`, (n, m)."""
        return _log_softmax(_distances(x.double() / self.scale, self.means, self.precision), self.temperature)


def personal_flops(samples: int, numbers: int, classes: int) -> float:
    """Multiply-adds of `personal` with one share p: the device's covariance, an inverse, three turns of its samples.

    Where devices differ it tries a few more shares, which is known only when the first reports are there.

    >>> personal_flops(50, 256, 5)
    30340096.0
    """
    return numbers**2 * (numbers + 4.0 * samples + classes) + 2 * samples * classes * numbers


def personal(common: Common, x: Tensor, y: Tensor) -> Personal:
    """Make a device's classifier from what the server knows and its own samples, which are among those it knows.

    Args:
        common: What the server estimated.
        x: Features, (n, d).
        y: Classes, (n,). Those that the server knows nothing of are told apart by the device's own means.
    """
    samples = _Samples.of(common, x, y)
    least = samples.freedom / (samples.freedom + common.weight)
    differ = bool(common.between.any())
    shares = [least, *(p for p in OWN_SHARES if differ and p > least and samples.freedom > 0)]
    found = [_with_share(common, samples, p) for p in shares]
    target = torch.searchsorted(samples.classes, y)
    losses = [
        float(torch.nn.functional.nll_loss(one.left_out, target)) + SHARE_PULL * (one.own_share - least) ** 2 / len(y)
        for one in found
    ]
    return found[losses.index(min(losses))]


@dataclass(frozen=True, eq=False)
class _Samples:
    """A device's samples in units of the common scale, with their statistics."""

    x: Tensor
    classes: Tensor
    place: Tensor
    """Which of `classes` each sample has."""
    counts: Tensor
    means: Tensor
    common: Tensor
    """M of the same classes; the device's own mean where the server knows none."""
    known: Tensor
    """Samples that M is made of; those of the device itself where the server knows none."""
    covariance: Tensor
    freedom: float

    @staticmethod
    def of(common: Common, x: Tensor, y: Tensor) -> _Samples:
        z = x.double() / common.scale
        classes, place = y.unique(return_inverse=True)
        one_hot = torch.nn.functional.one_hot(place, len(classes)).double()
        counts = one_hot.sum(0)
        means = one_hot.T @ z / counts[:, None]
        away = z - means[place]
        freedom = float(len(z) - len(classes))
        known = common.counts[classes]
        theirs = torch.where(known[:, None] > 0, common.means[classes] / common.scale, means)
        return _Samples(
            z,
            classes,
            place,
            counts,
            means,
            theirs,
            torch.maximum(known, counts),
            away.T @ away / max(freedom, 1.0),
            freedom,
        )


def _with_share(common: Common, own: _Samples, p: float) -> Personal:
    """The classifier with a share p of the device's own covariance, and what it says of each sample left out."""
    sigma = (1 - p) * common.within + p * own.covariance
    differ = bool(common.between.any())
    eye = torch.eye(len(sigma), dtype=torch.float64)
    if differ:
        gains = torch.stack([_gain(common.between, sigma, float(n)) for n in own.counts])
        means = own.common + torch.einsum("cij,cj->ci", gains, own.means - own.common)
        sigma_hat = sigma + ((eye - gains) @ common.between).mean(0)
    else:
        means, sigma_hat = own.common, sigma
    precision = torch.linalg.inv((sigma_hat + sigma_hat.T) / 2)
    # Without sample i of class c: it leaves M_c and μ_c, and the covariance loses one outer product.
    n, number = own.counts[own.place], own.known[own.place]
    away = own.x - own.means[own.place]
    rest = (n > 1).double()
    common_without = own.common[own.place] - (own.x - own.common[own.place]) / (number - 1).clamp(min=1)[:, None]
    if differ:
        mean_without = own.means[own.place] - away / (n - 1).clamp(min=1)[:, None]
        fewer = torch.stack([_gain(common.between, sigma, float(max(n - 1, 1))) for n in own.counts])
        moved = torch.empty_like(own.x)
        for c in range(len(own.classes)):
            of = own.place == c
            moved[of] = (mean_without[of] - common_without[of]) @ fewer[c].T
        without = common_without + rest[:, None] * moved
    else:
        without = common_without
    lost = p * rest * n / (n - 1).clamp(min=1) / max(own.freedom, 1.0)
    turned = away @ precision
    remainder = (1 - lost * (turned * away).sum(1)).clamp(min=1e-3)
    distance = _distances(own.x, means, precision)
    along = (own.x[:, None] - means[None]) * turned[:, None]
    left = distance + (lost / remainder)[:, None] * along.sum(2).square()
    mine = own.x - without
    own_distance = ((mine @ precision) * mine).sum(1) + lost / remainder * (mine * turned).sum(1).square()
    left = left.scatter(1, own.place[:, None], own_distance[:, None])
    temperature = _temperature(left, own.place)
    return Personal(own.classes, means, common.scale, precision, p, _log_softmax(left, temperature), temperature)


def _gain(between: Tensor, sigma: Tensor, n: float) -> Tensor:
    """G = B (B + Σ/n)⁻¹: how much of a deviation of a device's mean from the common one is its own."""
    result: Tensor = torch.linalg.solve(between + sigma / n, between).T
    return result


def _distances(x: Tensor, means: Tensor, precision: Tensor) -> Tensor:
    """(x − m)ᵀ P (x − m) for all samples and means."""
    turned = means @ precision
    return ((x @ precision) * x).sum(1)[:, None] - 2 * x @ turned.T + (turned * means).sum(1)


def _log_softmax(distances: Tensor, temperature: float) -> Tensor:
    return torch.log_softmax(-distances / (2 * temperature), dim=1)


TEMPERATURES = tuple(2.0 ** (k / 2) for k in range(-2, 11))


def _temperature(distances: Tensor, place: Tensor) -> float:
    """The temperature under which samples that were left out are likeliest."""
    losses = [float(torch.nn.functional.nll_loss(_log_softmax(distances, t), place)) for t in TEMPERATURES]
    result: float = TEMPERATURES[losses.index(min(losses))]
    return result
