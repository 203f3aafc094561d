"""What every cost curve promises, tried on the paper's model and on one with circuit power.

The second model lives here only: it shows that another energy model is one more `CostCurve` and `Uplink`, and that
allocation, Algorithm 3, the dual scheduler and a horizon need nothing else. A modem that draws `circuit_w` while it
sends ends early where time costs more than power: with a = B N₀ / h and c = payload ln 2 / B, the best duration t
solves G(c/(θt)) = circuit_w/(aθ), if that is before the deadline.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
import pytest

from kfl.core.randomness import stream
from kfl.scheduling import AllDevices, CostCurve, Dual, Lyapunov, Observation, SchedulerState, Uplink, UploadCurve
from kfl.scheduling.allocation import share_band
from kfl.scheduling.curve import inverse_marginal_saving, log_marginal_saving
from kfl.scheduling.objective import drift_objective
from kfl.scheduling.serve import share_floor


def _bisect(falling: Callable[[np.ndarray], np.ndarray], target: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """θ between 1e-9 and 1e6 with falling(θ) = target."""
    low, high = np.full(shape, np.log(1e-9)), np.full(shape, np.log(1e6))
    for _ in range(60):
        middle = 0.5 * (low + high)
        above = falling(np.exp(middle)) > target
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.exp(0.5 * (low + high))


@dataclass(frozen=True, eq=False)
class CircuitCurve(CostCurve):
    """min over t ≤ T of p t + a θ t (e^{c/(θt)} − 1)."""

    a: np.ndarray
    c: np.ndarray
    time_s: np.ndarray
    circuit_w: np.ndarray

    @property
    def need(self) -> np.ndarray:
        return self.c / self.time_s

    def exponent(self, share):
        """x = c/(θt) at the best duration."""
        with np.errstate(divide="ignore", invalid="ignore"):
            best = inverse_marginal_saving(np.log(self.circuit_w) - np.log(self.a * share))
            return np.where(self.c > 0, np.maximum(best, self.c / (share * self.time_s)), 1.0)

    def duration(self, share):
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.c > 0, self.c / (share * self.exponent(share)), 0.0)

    def priced(self, log_weight):
        return (self.c > 0) & (log_weight > -np.inf)

    def energy_j(self, share):
        x, t = self.exponent(share), self.duration(share)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            energy = self.circuit_w * t + self.a * self.c * np.expm1(x) / x
        return np.where(self.c > 0, np.where(np.asarray(share) > 0, energy, np.inf), 0.0)

    def log_energy_j(self, share):
        with np.errstate(divide="ignore"):
            return np.log(self.energy_j(share))

    def log_saving(self, share, log_weight):
        x = self.exponent(share)
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = np.log(self.a) + np.log(self.c) + log_marginal_saving(x) - np.log(x) - np.log(share)
            return log_weight + slope

    def elasticity(self, share):
        none = np.zeros_like(self.c)
        step = 1e-6
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            ratio = self.log_saving(share * (1 - step), none) - self.log_saving(share * (1 + step), none)
            return 2 * step / ratio

    def share_at_price(self, log_price, log_weight):
        shape = np.broadcast_shapes(np.shape(log_price), self.c.shape)
        with np.errstate(invalid="ignore"):
            share = _bisect(lambda theta: self.log_saving(theta, log_weight), np.asarray(log_price), shape)
        return np.where(self.priced(log_weight), share, 0.0)

    def share_for_energy(self, energy_j):
        share = _bisect(self.energy_j, np.asarray(energy_j), self.c.shape)
        return np.where(self.c > 0, np.where(share <= 1, share, np.inf), 0.0)

    def break_even(self, log_value, log_weight):
        def intercept(theta):
            return self.energy_j(theta) + theta * np.exp(self.log_saving(theta, np.zeros_like(self.c)))

        with np.errstate(invalid="ignore", over="ignore"):
            share = _bisect(intercept, np.exp(log_value - log_weight), self.c.shape)
        return share, self.log_saving(share, log_weight)

    def copies(self, count):
        return replace(self, c=count * self.c, circuit_w=count * self.circuit_w)

    def take(self, index):
        return CircuitCurve(*(getattr(self, field.name)[index] for field in fields(self)))

    def only(self, members):
        wide = [np.broadcast_to(getattr(self, field.name), members.shape) for field in fields(self)]
        return replace(CircuitCurve(*wide), c=np.where(members, self.c, 0.0))


@dataclass(frozen=True, eq=False)
class CircuitUplink(Uplink):
    """An uplink whose modems draw power while they send."""

    circuit_w: np.ndarray

    @cached_property
    def curve(self) -> CircuitCurve:
        return CircuitCurve(
            self.bandwidth_hz * self.noise_w_per_hz / self.gain,
            self.payload_bits * np.log(2) / self.bandwidth_hz,
            self.upload_time_s,
            self.circuit_w,
        )

    def transmission(self, share, energy_j):
        used = share > 0
        time_s = np.where(used, self.curve.duration(np.where(used, share, 1.0)), 0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(used, energy_j / time_s - self.circuit_w, 0.0), time_s


def uplink(kind: str, devices: int, seed: int) -> Uplink:
    draw = stream(seed, "uplink")
    radio = {
        "bandwidth_hz": 2e5,
        "noise_w_per_hz": 4e-21,
        "gain": 10 ** draw.uniform(-14, -11, devices),
        "payload_bits": draw.uniform(2e4, 1e5, devices),
        "upload_time_s": draw.uniform(0.4, 1.0, devices),
        "max_power_w": np.full(devices, 2.0),
    }
    if kind == "printed":
        return Uplink(**radio)
    return CircuitUplink(**radio, circuit_w=10 ** draw.uniform(-4, -1, devices))


@pytest.fixture(params=["printed", "circuit"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


# ── The curve ────────────────────────────────────────────────────────────────


def test_the_curve_is_convex_and_falling_and_its_slope_is_the_saving(kind: str) -> None:
    curve = uplink(kind, 50, 0).curve
    none = np.zeros(50)
    for share in (0.05, 0.2, 0.7):
        low, here, high = (curve.energy_j(np.full(50, share * f)) for f in (0.99, 1.0, 1.01))
        assert (low > here).all() and (here > high).all() and (low + high >= 2 * here * (1 - 1e-12)).all()
        slope = (low - high) / (0.02 * share)
        np.testing.assert_allclose(np.exp(curve.log_saving(np.full(50, share), none)), slope, rtol=2e-2)
        np.testing.assert_allclose(np.exp(curve.log_energy_j(np.full(50, share))), here, rtol=1e-12)


def test_the_inverse_the_elasticity_and_the_break_even_agree_with_the_curve(kind: str) -> None:
    curve, weight = uplink(kind, 50, 1).curve, np.log(stream(1, "weight").uniform(0.1, 10, 50))
    share = np.full(50, 0.3)
    price = curve.log_saving(share, weight)
    np.testing.assert_allclose(curve.share_at_price(price, weight), share, rtol=1e-9)
    lower, upper = (curve.share_at_price(price + step, weight) for step in (-1e-5, 1e-5))
    np.testing.assert_allclose(curve.elasticity(share), np.log(lower / upper) / 2e-5, rtol=1e-3)
    value = np.log(np.exp(weight) * curve.energy_j(share) + share * np.exp(price))
    found, at = curve.break_even(value, weight)
    np.testing.assert_allclose(found, share, rtol=1e-7)
    np.testing.assert_allclose(at, price, rtol=1e-7)
    np.testing.assert_allclose(curve.share_for_energy(curve.energy_j(share)), share, rtol=1e-7)


def test_copies_batches_and_parts_are_the_same_devices(kind: str) -> None:
    curve, share = uplink(kind, 6, 2).curve, np.full(6, 0.1)
    np.testing.assert_allclose(curve.copies(4).energy_j(4 * share), 4 * curve.energy_j(share), rtol=1e-12)
    members = np.array([[True] * 6, [True, False] * 3])
    batch = curve.only(members)
    np.testing.assert_array_equal(batch.energy_j(share), np.where(members, curve.energy_j(share), 0.0))
    np.testing.assert_array_equal(batch.take(np.array([1])).sends, members[1:])
    np.testing.assert_array_equal(curve.take(slice(2, 4)).energy_j(0.1), curve.energy_j(share)[2:4])
    shares, elasticity = curve.demand(-9.0, np.zeros(6))
    np.testing.assert_allclose(elasticity, curve.elasticity(shares), rtol=1e-6)
    np.testing.assert_allclose(curve.purchase(-9.0, np.zeros(6))[1], curve.energy_j(shares), rtol=1e-9)


def test_without_circuit_power_the_two_models_are_one() -> None:
    printed, circuit = uplink("printed", 20, 3), uplink("circuit", 20, 3)
    free = replace(circuit, circuit_w=np.full(20, 1e-300))
    assert isinstance(printed.curve, UploadCurve)
    np.testing.assert_allclose(free.curve.energy_j(0.2), printed.curve.energy_j(0.2), rtol=1e-9)


# ── What uses it ─────────────────────────────────────────────────────────────


def test_the_allocation_is_optimal(kind: str) -> None:
    link, weight = uplink(kind, 8, 4), stream(4, "weight").uniform(0.1, 10, 8)
    best = share_band(link, weight, link.power_floor())
    assert best.feasible and best.residual < 1e-7 and best.share.sum() == pytest.approx(1.0, abs=1e-12)
    assert (best.upload_time_s <= link.upload_time_s * (1 + 1e-12)).all() and (best.power_w > 0).all()
    for i, j in itertools.permutations(range(8), 2):
        share = best.share.copy()
        share[i] += 1e-3 * best.share[j]
        share[j] -= 1e-3 * best.share[j]
        assert (weight * link.curve.energy_j(share)).sum() >= best.objective * (1 - 1e-12)


@pytest.mark.parametrize("seed", range(2))
def test_no_set_is_better_than_the_dual_bound_and_every_scheduler_decides(kind: str, seed: int) -> None:
    count = 5
    draw = stream(seed, "round")
    observation = Observation(
        round=0,
        seed=seed,
        samples=draw.uniform(1, 5, count) * (1e-3 if kind == "printed" else 1e-2),
        available=np.ones(count, bool),
        compute_time_s=np.zeros(count),
        base_energy_j=draw.uniform(0, 1e-4, count),
        battery_j=np.full(count, np.inf),
        hard_budget=False,
        uplink=uplink(kind, count, seed),
    )
    state = SchedulerState(10, np.ones(count), draw.uniform(0, 10, count))
    found, paper, everybody = (s.decide(state, observation) for s in (Dual(v=1.0), Lyapunov(v=1.0), AllDevices()))
    floor, values = share_floor(observation), [0.0]
    for members in itertools.product((False, True), repeat=count):
        index = np.flatnonzero(members)
        if len(index) and floor[index].sum() <= 1:
            split = share_band(observation.uplink.take(index), state.queue_j[index], floor[index])
            energy = observation.base_energy_j.copy()
            energy[index] += split.energy_j
            values.append(drift_objective(1.0, 1.0, observation.samples, state.queue_j, np.asarray(members), energy))
    best = min(values)
    assert found.lower_bound <= best + 1e-9 * abs(best)
    assert best - 1e-9 * abs(best) <= found.objective <= 0.95 * best <= 0
    assert best - 1e-6 * abs(best) <= paper.objective <= 0
    assert everybody.chosen.any() and everybody.share.sum() == pytest.approx(1.0)
