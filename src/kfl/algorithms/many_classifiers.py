"""The classifiers of many devices at once: what `gaussian.personal` and `kernel_expert` make of one device alone.

A device with n samples changes Σ by a matrix of rank n, and devices differ along the r directions of B. In coordinates
in which Σ is the identity and B = diag(β) in the first r of d (`Lens`), with A the samples less their class means and
p the share of the device's own covariance, everything that `gaussian` inverts is therefore small:

    Σ_k  = q I + c AᵀA,   q = 1 − p,  c = p/freedom,   A Aᵀ = Q diag(s) Qᵀ,  φ(v) = Qᵀ A v
    P    = Σ_k⁻¹:          uᵀ P v = (u·v − φ(u)ᵀ diag(w) φ(v)) / q,   w = c / (q + c s)
    β½ P_rr β½ = Y diag(λ) Yᵀ,  F = β½ Y,  τ(v) = Fᵀ (P v)_r
    G v  = F diag(n/(1 + n λ)) τ(v) in the first r coordinates       for any number of samples n
    Σ̂⁻¹:                   uᵀ Σ̂⁻¹ v = uᵀ P v − τ(u)ᵀ diag(ω) τ(v),    1/ω = 1/h + λ,  h = mean_c 1/(1 + n_c λ)

So a device takes one Gram matrix of its own samples, its tests and the class means, one eigendecomposition of n × n
(`_Forms`), and for each share one of r × r, or where its classes have equal numbers of samples inverses (`_Share`): no
d × d matrix. Devices with the same numbers of samples and classes are computed as one batch. The numbers are those of
`gaussian.personal` but for rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kfl.algorithms.gaussian import OWN_SHARES, SHARE_PULL, TEMPERATURES, Common
from kfl.algorithms.kernel_expert import (
    FACTOR_PULL,
    FACTORS,
    RIDGES,
    SHARES,
    as_log_probabilities,
    classify,
)
from kfl.algorithms.kernel_expert import SHARE_PULL as WEIGHT_PULL

if TYPE_CHECKING:
    from kfl.data import SharedSamples

NUMBERS_AT_ONCE = 2**20
"""Of the arrays of devices that are computed as one batch: few enough for a processor's cache."""
NO_DIRECTION = 1e-12
"""Eigenvalues of B below this part of the largest are rounding."""


@dataclass(frozen=True, eq=False)
class Lens:
    """Coordinates in which Σ is the identity and B is diagonal, the directions in which devices differ first."""

    common: Common
    turn: Tensor
    """(d, d): from numbers over the scale to these coordinates."""
    between: Tensor
    """β, (r,), the eigenvalues of B that are not zero; empty where devices do not differ."""
    means: Tensor
    """M_c, (classes, d)."""

    @staticmethod
    def of(common: Common) -> Lens:
        """Diagonalize what the server knows."""
        factor = torch.linalg.cholesky(common.within)
        inverse = torch.linalg.solve_triangular(factor, torch.eye(len(factor), dtype=factor.dtype), upper=False)
        turn, between = inverse.T, torch.zeros(0, dtype=factor.dtype)
        if bool(common.between.any()):
            values, vectors = torch.linalg.eigh(inverse @ common.between @ inverse.T)
            values, turn = values.flip(0), turn @ vectors.flip(1)
            between = values[values > NO_DIRECTION * values[0]]
        return Lens(common, turn, between, common.means / common.scale @ turn)

    def seen(self, x: Tensor) -> Tensor:
        """Samples (n, d) in these coordinates."""
        return x.double() / self.common.scale @ self.turn


@dataclass(frozen=True, eq=False)
class Fleet:
    """The samples of some devices, stored once, and what each device has of them."""

    lens: Lens
    train: SharedSamples
    test: SharedSamples
    kernel: bool
    """Whether a device's kernel regression has a say."""

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Training samples of each class, (devices, classes)."""
        classes = len(self.lens.common.counts)
        place = np.repeat(np.arange(len(self.train)), self.train.sizes) * classes
        place += self.train.labels.numpy()[self.train.rows]
        return np.bincount(place, minlength=len(self.train) * classes).reshape(-1, classes)

    @cached_property
    def seen_train(self) -> Tensor:
        """Training samples in the coordinates of the lens."""
        return self.lens.seen(self.train.inputs)

    @cached_property
    def seen_test(self) -> Tensor:
        """Test samples in the coordinates of the lens."""
        return self.lens.seen(self.test.inputs)

    def batches(self, devices: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Cut devices into batches of equal numbers of samples and of classes."""
        sizes, held = self.train.sizes[devices], (self.counts[devices] > 0).sum(1)
        kind = sizes * (self.counts.shape[1] + 1) + held
        order = np.argsort(kind, kind="stable")
        for group in np.split(order, np.flatnonzero(np.diff(kind[order])) + 1):
            n, m = int(sizes[group[0]]), int(held[group[0]])
            rows = 2 * n + int(self.test.sizes[devices[group]].max()) + m
            numbers = rows * (rows + 2 * len(self.lens.turn) + len(self.lens.between)) + 4 * len(self.lens.between) ** 2
            at_once = max(1, NUMBERS_AT_ONCE // numbers)
            yield from (devices[group[start : start + at_once]] for start in range(0, len(group), at_once))

    def common_right(self, devices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Right predictions of devices that take the common classifier over the classes that they hold."""
        rows, whose = self.test.of(devices)
        held = self.counts[devices] > 0
        known = held & (self.lens.common.counts > 0).numpy()
        first = held.argmax(1)[whose]  # where the server knows nothing
        said = first
        if known.any():
            distance = self.lens.common.distances(self.test.inputs).numpy()[rows]
            nearest = np.where(known[whose], distance, np.inf).argmin(1)
            said = np.where(known.any(1)[whose], nearest, first)
        right = said == self.test.labels.numpy()[rows]
        return np.bincount(whose, weights=right, minlength=len(devices)).astype(np.int64)

    def own_right(self, devices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Right predictions of devices of one batch, each with its own classifier."""
        if self.train.sizes[devices[0]] > len(self.lens.turn):  # then n × n matrices are the larger ones
            return np.array([self._alone_right(int(device)) for device in devices])
        count, n = len(devices), int(self.train.sizes[devices[0]])
        classes = np.nonzero(self.counts[devices])[1].reshape(count, -1)
        rows = self.train.of(devices)[0].reshape(count, n)
        labels = self.train.labels.numpy()[rows]
        place = torch.from_numpy((labels[:, :, None] > classes[:, None]).sum(2))
        tests, there = self.test.padded(devices)
        own = _Own.of(self.lens, self.seen_train[rows], place, torch.from_numpy(classes))
        left_out, scores = _closed_form(own, self.lens, self.seen_test[tests])
        if self.kernel:
            expert_left, expert_scores = _kernel(
                self.train.inputs[rows].float(), place, classes.shape[1], self.test.inputs[tests].float()
            )
            a, b = _weigh(left_out, expert_left, place)
            scores = a[:, None, None] * scores + b[:, None, None] * expert_scores
        said = np.take_along_axis(classes, scores.argmax(2).numpy(), axis=1)
        right: NDArray[np.int64] = ((said == self.test.labels.numpy()[tests]) & there).sum(1)
        return right

    def _alone_right(self, device: int) -> int:
        """Right predictions of one device with many samples."""
        rows, tests = self.train[device], self.test[device]
        x, y = self.train.inputs[rows], self.train.labels[rows]
        said = classify(self.lens.common, x, y, self.test.inputs[tests], own=True, kernel=self.kernel)
        return int((said == self.test.labels[tests]).sum())


@dataclass(frozen=True, eq=False)
class _Rows:
    """Vectors as the forms need them: φ(v) in n numbers and the first r coordinates, (devices, rows, …)."""

    phi: Tensor
    first: Tensor

    def __sub__(self, other: _Rows) -> _Rows:
        return _Rows(self.phi - other.phi, self.first - other.first)

    def __add__(self, other: _Rows) -> _Rows:
        return _Rows(self.phi + other.phi, self.first + other.first)

    def times(self, factor: Tensor) -> _Rows:
        """Each row by its factor."""
        return _Rows(self.phi * factor[..., None], self.first * factor[..., None])

    def beside(self, other: _Rows) -> _Rows:
        """Both, one after the other."""
        return _Rows(torch.cat([self.phi, other.phi], 1), torch.cat([self.first, other.first], 1))

    def of_classes(self, place: Tensor) -> _Rows:
        """For each sample, the row of its class."""
        return _Rows(_picked(self.phi, place), _picked(self.first, place))


@dataclass(frozen=True, eq=False)
class _Own:
    """The samples of a batch of devices, in the coordinates of a lens."""

    x: Tensor
    """(devices, n, d)"""
    place: Tensor
    """Which of the device's classes each sample has, (devices, n)."""
    counts: Tensor
    """(devices, m)"""
    centering: Tensor
    """Takes the class mean off each sample, (devices, n, n)."""
    common: Tensor
    """M of these classes; the device's own mean where the server knows none, (devices, m, d)."""
    known: Tensor
    """Samples that M is made of, (devices, m)."""
    averaging: Tensor
    """Class means are this times the samples, (devices, m, n)."""
    freedom: float

    @staticmethod
    def of(lens: Lens, x: Tensor, place: Tensor, classes: Tensor) -> _Own:
        one_hot = torch.nn.functional.one_hot(place, classes.shape[1]).double()
        counts = one_hot.sum(1)
        averaging = (one_hot / counts[:, None]).transpose(1, 2)
        known = lens.common.counts[classes]
        common = torch.where(known[..., None] > 0, lens.means[classes], averaging @ x)
        centering = torch.eye(x.shape[1], dtype=torch.float64) - one_hot @ averaging
        freedom = float(x.shape[1] - classes.shape[1])
        return _Own(x, place, counts, centering, common, torch.maximum(known, counts), averaging, freedom)


def _closed_form(own: _Own, lens: Lens, tests: Tensor) -> tuple[Tensor, Tensor]:
    """What `gaussian.personal` says of samples left out, (devices, n, m), and of tests, (devices, t, m)."""
    least = own.freedom / (own.freedom + lens.common.weight)
    more = OWN_SHARES if len(lens.between) and own.freedom > 0 else ()
    shares = [least, *(p for p in more if p > least)]
    forms = _Forms.of(own, tests, len(lens.between))
    left, said, losses = [], [], []
    for p in shares:
        distances, test_distances = _with_share(own, forms, lens.between, p)
        left_out, temperature = _calibrated(distances, own.place)
        left.append(left_out)
        said.append(torch.log_softmax(-test_distances / (2 * temperature[:, None, None]), dim=2))
        losses.append(_nll(left_out, own.place) + SHARE_PULL * (p - least) ** 2 / own.place.shape[1])
    best = _first_least(losses)
    return _chosen(left, best), _chosen(said, best)


@dataclass(frozen=True, eq=False)
class _Forms:
    """Inner products of all vectors that classifiers look at, which no share changes."""

    x: _Rows
    """The device's samples, n rows."""
    tests: _Rows
    common: _Rows
    """M_c, m rows."""
    own: _Rows
    """μ_c, m rows."""
    away: _Rows
    """Samples less their class means."""
    spread: Tensor
    """s, (devices, n)."""
    away_first: Tensor
    """Qᵀ A in the first r coordinates, (devices, n, r)."""
    squares: Tensor
    """Of samples and tests, (devices, n + t)."""
    with_common: Tensor
    """Products of samples and tests with M_c, (devices, n + t, m)."""
    common_squares: Tensor
    """(devices, m)"""
    away_squares: Tensor
    """(devices, n)"""
    x_away: Tensor
    """Of each sample with its own difference, (devices, n)."""
    common_away: Tensor
    """Of all M_c with each difference, (devices, n, m)."""

    @staticmethod
    def of(own: _Own, tests: Tensor, r: int) -> _Forms:
        n, t = own.x.shape[1], tests.shape[1]
        base = torch.cat([own.x, tests, own.common], 1)
        gram = base @ base.transpose(1, 2)
        products = gram[:, :, :n] @ own.centering  # of all rows with the differences
        scatter = own.centering @ products[:, :n]
        spread, vectors = torch.linalg.eigh((scatter + scatter.transpose(1, 2)) / 2)
        spread = spread.clamp(min=0)
        phi, first = products @ vectors, base[..., :r]
        ends = ((0, n), (n, n + t), (n + t, base.shape[1]))
        x, of_tests, common = (_Rows(phi[:, start:end], first[:, start:end]) for start, end in ends)
        means = _Rows(own.averaging @ x.phi, own.averaging @ x.first)
        away_first = own.centering @ x.first
        squares = gram.diagonal(dim1=1, dim2=2)
        return _Forms(
            x=x,
            tests=of_tests,
            common=common,
            own=means,
            away=_Rows(vectors * spread[:, None], away_first),
            spread=spread,
            away_first=vectors.transpose(1, 2) @ away_first,
            squares=squares[:, : n + t],
            with_common=gram[:, : n + t, n + t :],
            common_squares=squares[:, n + t :],
            away_squares=scatter.diagonal(dim1=1, dim2=2),
            x_away=products[:, :n].diagonal(dim1=1, dim2=2),
            common_away=products[:, n + t :].transpose(1, 2),
        )


@dataclass(frozen=True, eq=False)
class _Share:
    """Σ̂⁻¹ with one share of the own covariance, as the form of the module's text."""

    forms: _Forms
    q: float
    w: Tensor
    """(devices, 1, n)"""
    symmetric: Tensor
    """β½ P_rr β½, (devices, r, r)."""
    root: Tensor
    """β½, (r,)."""
    decomposed: tuple[Tensor, Tensor] | None
    """λ and F; None where all classes have as many samples, and an inverse for each number is quicker."""
    metric: Tensor
    """F diag(ω) Fᵀ, (devices, r, r)."""

    @staticmethod
    def of(own: _Own, forms: _Forms, between: Tensor, p: float) -> _Share:
        q, c = 1 - p, p / max(own.freedom, 1.0)
        w = c / (q + c * forms.spread)[:, None]
        inverse = torch.eye(len(between), dtype=torch.float64)
        inverse = inverse - forms.away_first.transpose(1, 2) * w @ forms.away_first
        root = between.sqrt()
        symmetric = root[:, None] * inverse * root / q
        if bool((own.counts == own.counts[0, 0]).all()):  # then 1/h + λ = 1 + (n + 1) λ
            return _Share(forms, q, w, symmetric, root, None, _resolvent(symmetric, root, float(own.counts[0, 0]) + 1))
        eigen, turned = torch.linalg.eigh(symmetric)
        eigen, f = eigen.clamp(min=0), root[:, None] * turned
        h = (1 / (1 + own.counts[..., None] * eigen[:, None])).mean(1)
        metric = f * (h / (1 + h * eigen))[:, None] @ f.transpose(1, 2)
        return _Share(forms, q, w, symmetric, root, (eigen, f), metric)

    def first(self, rows: _Rows) -> Tensor:
        """(P v)_r of each row."""
        found: Tensor = (rows.first - rows.phi * self.w @ self.forms.away_first) / self.q
        return found

    def gained(self, rows: _Rows, number: Tensor) -> _Rows:
        """G v of each row, with a number of samples behind it."""
        if self.decomposed is None:
            one = float(number.flatten()[0])
            first = self.first(rows) @ _resolvent(self.symmetric, self.root, one) * one
        else:
            eigen, f = self.decomposed
            gain = number[..., None] / (1 + number[..., None] * eigen[:, None])
            first = self.first(rows) @ f * gain @ f.transpose(1, 2)
        return _Rows(first @ self.forms.away_first.transpose(1, 2), first)

    def sides(self, rows: _Rows) -> tuple[Tensor, Tensor]:
        """Each row as it stands on the left and on the right of what Σ̂⁻¹ takes off I/q, (devices, rows, n + r)."""
        first = self.first(rows)
        left = torch.cat([rows.phi * (self.w / self.q), first @ self.metric], 2)
        return left, torch.cat([rows.phi, first], 2)

    def each(self, products: Tensor, one: Tensor, other: Tensor) -> Tensor:
        """uᵀ Σ̂⁻¹ v row by row, (devices, rows); `products` are u·v."""
        return products / self.q - torch.einsum("bij,bij->bi", one, other)

    def all(self, products: Tensor, one: Tensor, other: Tensor) -> Tensor:
        """uᵀ Σ̂⁻¹ v of all rows with all rows; `products` are u·v."""
        return products / self.q - one @ other.transpose(1, 2)


def _resolvent(symmetric: Tensor, root: Tensor, number: float) -> Tensor:
    """F diag(1/(1 + n λ)) Fᵀ without a decomposition: β½ (I + n β½ P_rr β½)⁻¹ β½."""
    eye = torch.eye(len(root), dtype=torch.float64)
    found: Tensor = root[:, None] * torch.cholesky_inverse(torch.linalg.cholesky(eye + number * symmetric)) * root
    return found


def _with_share(own: _Own, forms: _Forms, between: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Distances to class means of samples, each left out, and of tests, with a share p of the own covariance."""
    share, n = _Share.of(own, forms, between, p), own.place.shape[1]
    moved = share.gained(forms.own - forms.common, own.counts)  # m̂_c = M_c + G_c (μ_c − M_c)
    means = forms.common + moved
    mean_squares = forms.common_squares + ((forms.common.first + means.first) * moved.first).sum(2)
    looked_at = forms.x.beside(forms.tests)
    with_means = forms.with_common + looked_at.first @ moved.first.transpose(1, 2)
    seen, of_means, away = share.sides(looked_at), share.sides(means), share.sides(forms.away)
    distances = share.each(forms.squares, *seen)[..., None] - 2 * share.all(with_means, seen[0], of_means[1])
    distances = distances + share.each(mean_squares, *of_means)[:, None]
    mean_away = forms.common_away + forms.away.first @ moved.first.transpose(1, 2)
    along = share.each(forms.x_away, seen[0][:, :n], away[1])[..., None] - share.all(mean_away, away[0], of_means[1])
    left = _left_out(own, forms, share, p, away, distances[:, :n], along)
    return left, distances[:, n:]


def _left_out(
    own: _Own,
    forms: _Forms,
    share: _Share,
    p: float,
    away: tuple[Tensor, Tensor],
    distances: Tensor,
    along: Tensor,
) -> Tensor:
    """Distances without sample i of class c: it leaves M_c and μ_c, and the covariance loses one outer product."""
    place = own.place
    number, size = _picked(own.counts, place), _picked(own.known, place)
    rest, fewer = (number > 1).double(), 1 / (size - 1).clamp(min=1)
    lost = p * rest * number / (number - 1).clamp(min=1) / max(own.freedom, 1.0)
    lost = lost / (1 - lost * share.each(forms.away_squares, *away)).clamp(min=1e-3)
    left = distances + lost[..., None] * along.square()
    # What the sample differs from the mean of its own class without it: κ (x − M_c) − G (μ_c − M_c, both without it).
    delta, grown = forms.x - forms.common.of_classes(place), 1 + fewer
    off = (forms.own - forms.common).of_classes(place) - forms.away.times(1 / (number - 1).clamp(min=1))
    back = share.gained(off + delta.times(fewer), (number - 1).clamp(min=1)).times(rest)
    mine = delta.times(grown) - back
    squares = forms.squares[:, : place.shape[1]] + _picked(forms.common_squares, place)
    squares = squares - 2 * _own_class(forms.with_common[:, : place.shape[1]], place)
    squares = grown.square() * squares - ((grown[..., None] * delta.first + mine.first) * back.first).sum(2)
    products = grown * (forms.x_away - _own_class(forms.common_away, place)) - (back.first * forms.away.first).sum(2)
    sides = share.sides(mine)
    found = share.each(squares, *sides) + lost * share.each(products, sides[0], away[1]).square()
    return left.scatter(2, place[..., None], found[..., None])


def _kernel(points: Tensor, place: Tensor, classes: int, tests: Tensor) -> tuple[Tensor, Tensor]:
    """What `kernel_expert.fit_kernel` says of samples left out, (devices, n, m), and of tests, (devices, t, m)."""
    squared = torch.cdist(points, points).square()
    width2 = squared.mean((1, 2))
    width2 = torch.where(width2 > 0, width2, 1.0)[:, None, None]
    values, vectors = torch.linalg.eigh(torch.exp(-squared / (2 * width2)).double())
    targets = torch.nn.functional.one_hot(place, classes).double()
    turned = vectors.transpose(1, 2) @ targets
    weights, left, losses = [], [], []
    for ridge in RIDGES:
        inverse = 1 / (values.clamp(min=0) + ridge)
        weights.append(vectors @ (inverse[..., None] * turned))
        left.append(targets - weights[-1] / (vectors.square() @ inverse[..., None]))
        losses.append((left[-1] - targets).square().mean((1, 2)))
    best = _first_least(losses)
    scores = torch.exp(-torch.cdist(tests, points).square() / (2 * width2)).double() @ _chosen(weights, best)
    return as_log_probabilities(_chosen(left, best)), as_log_probabilities(scores)


def _weigh(common: Tensor, own: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
    """What `kernel_expert.weigh_experts` finds for each device: a and b."""
    pairs = [(a, b) for a in SHARES for b in FACTORS if a or b]
    losses = [
        _nll(torch.log_softmax(a * common + b * own, 2), place)
        + (FACTOR_PULL * b * b + WEIGHT_PULL * (1 - a) ** 2) / place.shape[1]
        for a, b in pairs
    ]
    found = torch.tensor(pairs, dtype=torch.float64)[_first_least(losses)]
    return found[:, 0], found[:, 1]


def _calibrated(distances: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
    """Logarithms of probabilities under the temperature that makes samples left out likeliest, and that."""
    losses = [_nll(torch.log_softmax(-distances / (2 * t), 2), place) for t in TEMPERATURES]
    temperature = torch.tensor(TEMPERATURES, dtype=torch.float64)[_first_least(losses)]
    return torch.log_softmax(-distances / (2 * temperature[:, None, None]), 2), temperature


def _nll(said: Tensor, place: Tensor) -> Tensor:
    """Mean over samples of minus the logarithm of the right class: (devices,)."""
    return -_own_class(said, place).mean(1)


def _own_class(values: Tensor, place: Tensor) -> Tensor:
    """Of each sample's row (devices, n, m), the number of its own class."""
    return values.gather(2, place[..., None])[..., 0]


def _picked(rows: Tensor, place: Tensor) -> Tensor:
    """For each sample, the row of its class, from (devices, m, …)."""
    if rows.dim() == 2:
        return rows.gather(1, place)
    return rows.gather(1, place[..., None].expand(*place.shape, rows.shape[2]))


def _first_least(losses: list[Tensor]) -> Tensor:
    """For each device, the first of the choices with the least loss."""
    return torch.from_numpy(torch.stack(losses).numpy().argmin(0))


def _chosen(choices: list[Tensor], best: Tensor) -> Tensor:
    """For each device, its own choice."""
    return torch.stack(choices)[best, torch.arange(len(best))]
