"""Theorem 1 of the paper, as printed: a bound on how far the loss is from its optimum after T rounds, term by term.

    F(W_T) − F* ≤ A_3^T (F(W_0) − F*)                                                     what is left of the start
                 + (1 − A_3^T)/(1 − A_3) (A_1 + A_2)                                      local drift and knowledge
                 + A_2 CK/D Σ_t A_3^{T−2−t} Σ_k Σ_c D_{k,c}²/(D_c² D_k) Σ_j D_{j,c}²      heterogeneity
                 − A_2/(D K (T−1) max_k D_k) (Σ_t A_3^{T−2−t} Σ_k α_{k,t} D_k)²           scheduling

with t from 0 to T − 2 in both sums, so that the last round's schedule does not enter. The printed form is
kept; `reproduction.theory.GAPS` lists what its proof leaves open and where it is false.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import ConfigError
from kfl.scheduling import Ascend, Descend, Uniform

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

LARGEST = 1e30
"""No constant may be larger, so that no power of one overflows."""
RATE_TOLERANCE = 1e-9
"""Rates that exceed their limit by less than this part of it count as equal to it."""


@dataclass(frozen=True)
class Constants:
    """What Theorem 1 assumes about losses, models and training. The symbols are the paper's.

    >>> c = Constants(
    ...     body_smoothness=2.0, head_smoothness=1.0, cross_sensitivity=0.5, body_gradient=1.0, head_gradient=1.0,
    ...     feature_gradient=1.0, feature_norm=1.0, body_rate=0.01, head_rate=0.02, local_steps=5,
    ...     knowledge_weight=1 / 32, initial_gap=2.3,
    ... )
    >>> round(c.contraction, 4), c.violations()
    (0.89, ())
    >>> round(c.at_best_rates().contraction, 4)
    0.875
    """

    body_smoothness: float
    """L_u: Lipschitz constant of ∇_u F_k in the body's weights u, for all devices."""
    head_smoothness: float
    """L_v: the same of ∇_v F_k in the head's weights v."""
    cross_sensitivity: float
    """χ = max(L_uv, L_vu)/√(L_u L_v)."""
    body_gradient: float
    """G_1: bound on ‖∇_u F_k‖."""
    head_gradient: float
    """G_2: bound on ‖∇_v F_k‖."""
    feature_gradient: float
    """ϑ: bound on ‖∇h_k‖, the Jacobian of a feature vector in the body's weights."""
    feature_norm: float
    """ς: bound on ‖h_k(x)‖."""
    body_rate: float
    """η_u: learning rate of the body."""
    head_rate: float
    """η_v: learning rate of the head."""
    local_steps: int
    """τ: gradient steps of a round."""
    knowledge_weight: float
    """λ: weight of the knowledge loss."""
    initial_gap: float
    """F(W_0) − F(W*)."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 1 if field.name == "local_steps" else 0
            if not least <= value <= LARGEST:
                raise ConfigError(field.name, value, f"a number from {least} to {LARGEST:g}")

    @property
    def largest_body_rate(self) -> float:
        """1/(4 τ (1 + χ) L_u), the theorem's condition on η_u."""
        return _inverse(4 * self.local_steps * (1 + self.cross_sensitivity) * self.body_smoothness)

    @property
    def largest_head_rate(self) -> float:
        """1/(2 τ (1 + χ) L_v), the theorem's condition on η_v."""
        return _inverse(2 * self.local_steps * (1 + self.cross_sensitivity) * self.head_smoothness)

    @property
    def drift(self) -> float:
        """A_1 of Lemma 2: what τ steps away from the round's start can cost.

        τ(τ+1)(2τ+1) (η_u³ G_1² L_u² + ⅓ η_v³ G_2² L_v² + (⅔ η_u G_1² + ½ η_v G_2²) η_u η_v χ² L_u L_v)
        """
        eta_u, eta_v, L_u, L_v = self.body_rate, self.head_rate, self.body_smoothness, self.head_smoothness
        G_1, G_2, chi, tau = self.body_gradient, self.head_gradient, self.cross_sensitivity, self.local_steps
        own = eta_u**3 * G_1**2 * L_u**2 + eta_v**3 * G_2**2 * L_v**2 / 3
        cross = (2 * eta_u * G_1**2 / 3 + eta_v * G_2**2 / 2) * eta_u * eta_v * chi**2 * L_u * L_v
        return tau * (tau + 1) * (2 * tau + 1) * (own + cross)

    @property
    def knowledge(self) -> float:
        """A_2: what the knowledge loss can pull the wrong way.

        10 η_u λ² τ ϑ² ς² + 8 η_u² λ² ϑ² ς² (3 η_u L_u² + 2 η_v χ² L_u L_v) τ (τ + 1)
        """
        eta_u, eta_v, tau = self.body_rate, self.head_rate, self.local_steps
        pull = (self.knowledge_weight * self.feature_gradient * self.feature_norm) ** 2
        L_u, L_v, chi = self.body_smoothness, self.head_smoothness, self.cross_sensitivity
        bend = 3 * eta_u * L_u**2 + 2 * eta_v * chi**2 * L_u * L_v
        return pull * (10 * eta_u * tau + 8 * eta_u**2 * bend * tau * (tau + 1))

    @property
    def progress(self) -> float:
        """1 − A_3: the part of the gap that one round takes away; negative where the bound grows.

        With x = η_u L_u τ and y = η_v L_v τ it is x + y − (4x² + 2y²)(1 + χ): at most 3/(16 (1 + χ)), for x =
        1/(8 (1 + χ)) and y = 1/(4 (1 + χ)), which is half of the largest rates; and 0 at the largest rates.
        """
        x = self.body_rate * self.body_smoothness * self.local_steps
        y = self.head_rate * self.head_smoothness * self.local_steps
        curve = 1 + self.cross_sensitivity
        return x * (1 - 4 * x * curve) + y * (1 - 2 * y * curve)

    @property
    def contraction(self) -> float:
        """A_3 = 1 + (4 L_u² η_u² + 2 L_v² η_v²)(1 + χ) τ² − (η_u L_u + η_v L_v) τ."""
        return 1 - self.progress

    def violations(self) -> tuple[str, ...]:
        """One sentence for each learning rate that is larger than the theorem allows."""
        said = []
        for name, symbol, rate, limit in (
            ("body_rate", "η_u", self.body_rate, self.largest_body_rate),
            ("head_rate", "η_v", self.head_rate, self.largest_head_rate),
        ):
            if rate > limit * (1 + RATE_TOLERANCE):
                times = f"{rate / limit:.3g} times" if limit > 0 else "above"
                said.append(f"The {name} {symbol} = {rate:.4g} is {times} the largest the theorem allows, {limit:.4g}.")
        return tuple(said)

    def at_best_rates(self) -> Constants:
        """The same with the rates at which A_3 is smallest, half of the largest allowed: 1 − 3/(16 (1 + χ))."""
        return self._at_rates(0.5)

    def at_largest_rates(self) -> Constants:
        """The same with the largest rates that the theorem allows, at which A_3 = 1."""
        return self._at_rates(1.0)

    def _at_rates(self, part: float) -> Constants:
        """Rates that are a part of the largest allowed; without curvature any rate is allowed, and it stays."""
        body, head = part * self.largest_body_rate, part * self.largest_head_rate
        return replace(
            self,
            body_rate=body if math.isfinite(body) else self.body_rate,
            head_rate=head if math.isfinite(head) else self.head_rate,
        )


def _inverse(value: float) -> float:
    return 1 / value if value > 0 else math.inf


@dataclass(frozen=True)
class Bound:
    """The right side of Theorem 1, as printed, each term apart."""

    label: ClassVar[str] = "as printed"

    rounds: int
    drift: float
    """A_1."""
    knowledge: float
    """A_2."""
    contraction: float
    """A_3."""
    initial_gap: float
    """F(W_0) − F*, which the total should be compared with."""
    start_term: float
    """A_3^T (F(W_0) − F*)."""
    constant_term: float
    """(1 − A_3^T)/(1 − A_3) (A_1 + A_2)."""
    heterogeneity_term: float
    scheduling_term: float
    """Zero or negative: what the scheduled data takes off."""
    violations: tuple[str, ...]
    """Conditions of the theorem that do not hold, in words; empty where all do."""

    @property
    def total(self) -> float:
        """The right side; NaN where outside the assumptions it is ∞ − ∞."""
        return self.start_term + self.constant_term + self.heterogeneity_term + self.scheduling_term

    @property
    def within_assumptions(self) -> bool:
        """Whether the learning rates are as small as the theorem asks for."""
        return not self.violations

    @property
    def vacuous(self) -> bool:
        """Whether it promises no progress: the total is no smaller than the gap at the start."""
        return not self.total < self.initial_gap

    @property
    def verdict(self) -> str:
        """In words: whether the bound applies, and whether it says anything."""
        if not self.within_assumptions:
            return "outside its assumptions"
        return "vacuous" if self.vacuous else "below the gap at the start"


def theorem1(constants: Constants, counts: NDArray[np.generic], schedule: NDArray[np.generic]) -> Bound:
    """Evaluate Theorem 1's right side, equation (19), as printed.

    `counts` is D_{k,c}, samples of each class on each device, (K, C). `schedule` is α_{k,t}, who takes part in which
    round, (T, K). Learning rates that are too large are said in `violations`; the terms are computed all the same.

    >>> one = Constants(1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.05, 0.1, 1, 0.1, 2.3)
    >>> half = np.full((20, 10), 30)
    >>> nobody, everybody = np.zeros((50, 20), bool), np.ones((50, 20), bool)
    >>> theorem1(one, half, everybody).total < theorem1(one, half, nobody).total
    True
    """
    samples = _checked_counts(counts)
    chosen = np.asarray(schedule, dtype=bool)
    if chosen.ndim != 2 or chosen.shape[1] != len(samples) or len(chosen) < 1:
        raise ConfigError("schedule", f"of shape {chosen.shape}", f"(T, {len(samples)}), a row for each round")
    rounds, A_2 = len(chosen), constants.knowledge
    with np.errstate(over="ignore"):
        weights = round_weights(constants.contraction, rounds)
        power = float(np.exp(rounds * np.log1p(-constants.progress)))
        data = chosen @ samples.sum(axis=1)
        busy = data > 0  # a weight beyond all numbers times no data is no data
        scheduled = float(weights[busy] @ data[busy])
        return Bound(
            rounds=rounds,
            drift=constants.drift,
            knowledge=A_2,
            contraction=constants.contraction,
            initial_gap=constants.initial_gap,
            start_term=_times(constants.initial_gap, power),
            constant_term=_times(constants.drift + A_2, geometric_sum(constants.progress, rounds)),
            heterogeneity_term=_times(A_2, spread(samples) * float(weights.sum())),
            scheduling_term=_scheduling_term(A_2, samples, scheduled, rounds),
            violations=constants.violations(),
        )


def _scheduling_term(A_2: float, samples: FloatArray, scheduled: float, rounds: int) -> float:
    """−A_2/(D K (T−1) max D_k) (Σ_t A_3^{T−2−t} Σ_k α_{k,t} D_k)²; without a round before the last it is 0."""
    if rounds < 2 or A_2 == 0 or scheduled == 0:
        return 0.0
    per_device = samples.sum(axis=1)
    scale = float(per_device.sum()) * len(samples) * (rounds - 1) * float(per_device.max())
    return -A_2 * float(np.square(scheduled)) / scale


def spread(counts: NDArray[np.generic]) -> float:
    """CK/D Σ_k Σ_c D_{k,c}²/(D_c² D_k) Σ_j D_{j,c}²: one round's part of the heterogeneity term, over A_2."""
    samples = np.asarray(counts, dtype=np.float64)
    held = samples[:, samples.sum(axis=0) > 0]  # a class that no device holds has no term
    per_class, per_device = held.sum(axis=0), samples.sum(axis=1)
    squares = np.square(held)
    inner = (squares / per_device[:, None]).sum(axis=0) / np.square(per_class) * squares.sum(axis=0)
    return float(samples.shape[1] * len(samples) / per_device.sum() * inner.sum())


def geometric_sum(progress: float, rounds: int) -> float:
    """(1 − A^T)/(1 − A) for A = 1 − progress; its limit T at A = 1, where the printed quotient is 0/0.

    >>> geometric_sum(0.0, 7), round(geometric_sum(0.5, 2), 12)
    (7.0, 1.5)
    """
    if progress == 0:
        return float(rounds)
    return float(-np.expm1(rounds * np.log1p(-progress)) / progress)


def round_weights(contraction: float, rounds: int) -> FloatArray:
    """The weight A_3^{T−2−t} of the data scheduled in round t, for t from 0 to T − 1; the last round has none.

    As printed the weight grows with t where A_3 < 1: the bound favors late rounds, the reverse of Remark 1.

    >>> round_weights(0.5, 5)
    array([0.125, 0.25 , 0.5  , 1.   , 0.   ])
    """
    if rounds < 1:
        raise ConfigError("rounds", rounds, "1 or more")
    if not 0 < contraction < math.inf:
        raise ConfigError("contraction", contraction, "a finite number above 0")
    with np.errstate(over="ignore"):
        weights = np.exp(np.arange(rounds - 2, -2, -1, dtype=np.float64) * math.log(contraction))
    weights[-1] = 0.0
    return np.asarray(weights)


def _times(factor: float, large: float) -> float:
    """A product in which zero times infinity is zero: a term that is absent stays absent."""
    return 0.0 if factor == 0 or large == 0 else factor * large


def _checked_counts(counts: NDArray[np.generic]) -> FloatArray:
    samples = np.asarray(counts, dtype=np.float64)
    if samples.ndim != 2 or not samples.size:
        raise ConfigError("counts", f"of shape {samples.shape}", "(K, C), samples of each class on each device")
    if not (np.isfinite(samples).all() and (samples >= 0).all() and (samples.sum(axis=1) > 0).all()):
        raise ConfigError("counts", "negative, not finite or zero", "0 or more, with a sample on every device")
    return samples


PATTERNS = {pattern.name: pattern for pattern in (Uniform, Ascend, Descend)}
"""The temporal patterns of the paper's section V, all with the same total."""


def pattern_schedule(name: str, rounds: int, devices: int, count: int = 10) -> NDArray[np.bool_]:
    """Who takes part in which round, (T, K), when the number of devices follows a pattern and they take turns.

    >>> pattern_schedule("ascend", rounds=5, devices=20, count=10).sum(axis=1)
    array([ 1,  6, 10, 14, 19])
    """
    if name not in PATTERNS:
        raise ConfigError("schedule", name, f"one of {', '.join(PATTERNS)}", choices=PATTERNS)
    for field, value in (("rounds", rounds), ("devices", devices)):
        if value < 1:
            raise ConfigError(field, value, "1 or more")
    pattern = PATTERNS[name](count=count)
    sizes = [pattern.size(t, rounds) for t in range(rounds)]
    if max(sizes) > devices:
        raise ConfigError("count", count, f"smaller: the schedule {name} asks for {max(sizes)} of {devices} devices")
    firsts = np.cumsum([0, *sizes[:-1]])
    return schedule_of(
        [(first + np.arange(size)) % devices for first, size in zip(firsts, sizes, strict=True)], devices
    )


def schedule_of(rounds: Sequence[Sequence[int] | NDArray[np.int64]], devices: int) -> NDArray[np.bool_]:
    """α_{k,t}, (T, K), from the devices of each round.

    >>> schedule_of([[0, 2], []], devices=3).astype(int)
    array([[1, 0, 1],
           [0, 0, 0]])
    """
    schedule = np.zeros((len(rounds), devices), dtype=bool)
    for row, chosen in enumerate(rounds):
        schedule[row, list(chosen)] = True
    return schedule


def equal_counts(devices: int, classes: int, classes_per_device: int, samples: int) -> NDArray[np.int64]:
    """Samples of each class on each device, (K, C), where each holds `classes_per_device` classes in equal parts.

    >>> equal_counts(devices=3, classes=4, classes_per_device=2, samples=10)
    array([[5, 5, 0, 0],
           [0, 0, 5, 5],
           [5, 5, 0, 0]])
    """
    for field, value in (("devices", devices), ("classes", classes), ("samples", samples)):
        if value < 1:
            raise ConfigError(field, value, "1 or more")
    if not 1 <= classes_per_device <= classes:
        raise ConfigError("classes_per_device", classes_per_device, f"from 1 to {classes}, the number of classes")
    if samples % classes_per_device:
        raise ConfigError("samples", samples, f"a multiple of {classes_per_device}, the classes on a device")
    counts = np.zeros((devices, classes), dtype=np.int64)
    held = (np.arange(devices)[:, None] * classes_per_device + np.arange(classes_per_device)) % classes
    np.put_along_axis(counts, held, samples // classes_per_device, axis=1)
    return counts
