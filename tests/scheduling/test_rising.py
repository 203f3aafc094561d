"""Many equations at once: every root is found, from good and bad starts, and the functions they are made of."""

from __future__ import annotations

from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from scipy.optimize import brentq

from kfl.scheduling import _monotone_solvers as _rising

FloatArray = np.ndarray
pytestmark = pytest.mark.filterwarnings("error")


def saving_of(x: mpmath.mpf) -> mpmath.mpf:
    return (x - 1) * mpmath.exp(x) + 1


# ── The solver ───────────────────────────────────────────────────────────────

ROOTS = np.geomspace(1e-6, 1e6, 41)
Curve = Callable[[FloatArray], tuple[FloatArray, FloatArray]]
"""Value and slope over the distance u = ln(x / root), by u."""
SHAPES: dict[str, Curve] = {
    "straight": lambda u: (u, np.ones_like(u)),
    "convex": lambda u: (np.expm1(np.minimum(u, 300.0)), np.exp(np.minimum(u, 300.0))),
    "flat at the root": lambda u: (u**3 + 0.1 * u, 3 * u**2 + 0.1),
    "flat far away": lambda u: (np.arctan(30 * u), 30 / (1 + 900 * u * u)),
    "kinked": lambda u: (np.where(u < 0, 0.01 * u, 50 * u), np.where(u < 0, 0.01, 50.0)),
}


class Rising:
    """One of the shapes with a root for each entry, which counts how often each entry is asked for."""

    def __init__(self, shape: str, roots: FloatArray) -> None:
        self.shape, self.roots = SHAPES[shape], roots
        self.calls, self.asked = 0, np.zeros(len(roots), int)

    def __call__(self, x: FloatArray, index: object = slice(None)) -> tuple[FloatArray, FloatArray]:
        assert (x > 0).all() and np.isfinite(x).all(), "the functions are defined for positive numbers only"
        self.calls += 1
        self.asked[index] += 1
        value, slope = self.shape(np.log(x / self.roots[index]))
        return value, slope / x


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("factor", [1.0, 1.3, 40.0, 1e-5])
def test_every_root_is_found_from_good_and_bad_starts(shape: str, factor: float) -> None:
    rising = Rising(shape, ROOTS)
    found = _rising.solve(factor * ROOTS, rising)
    np.testing.assert_allclose(found, ROOTS, rtol=2e-15 if shape == "straight" else 1e-12)
    assert rising.calls <= 150


@pytest.mark.parametrize("shape", SHAPES)
def test_a_root_at_or_behind_an_end_of_the_bracket_is_that_end(shape: str) -> None:
    low, high = 0.5 * np.ones(5), np.array([2.0, 2.0, 2.0, 1.0, 3.0])
    roots = np.array([0.5, 1.0, 2.0, 7.0, 1e-3])
    found = _rising.solve(np.array([1.0, 1.9, 0.6, 0.7, 2.9]), Rising(shape, roots), low, high)
    np.testing.assert_allclose(found, np.clip(roots, low, high), rtol=1e-12)


@pytest.mark.parametrize(("low", "high"), [(0.0, np.full(3, 4.0)), (np.full(3, 0.25), np.inf)])
def test_one_end_may_be_a_number_and_the_other_an_array(low: float, high: float) -> None:
    roots = np.array([0.3, 1.0, 3.9])
    for shape in SHAPES:
        found = _rising.solve(np.array([3.0, 0.26, 1.0]), Rising(shape, roots), low, high)
        np.testing.assert_allclose(found, roots, rtol=1e-12, err_msg=shape)
        beyond = np.array([7.0, 1.0, 0.01])
        found = _rising.solve(np.array([3.0, 0.9, 1.0]), Rising(shape, beyond), low, high)
        np.testing.assert_allclose(found, np.clip(beyond, low, high), rtol=1e-12, err_msg=shape)


def test_those_who_have_arrived_are_not_asked_again() -> None:
    """One in ten starts far away: after a few steps of everybody only these go on."""
    start = np.where(np.arange(41) % 10 == 5, 1e-4 * ROOTS, ROOTS)
    rising = Rising("flat far away", ROOTS)
    np.testing.assert_allclose(_rising.solve(start, rising), ROOTS, rtol=1e-12)
    far = start < ROOTS
    assert (rising.asked[~far] <= 3).all() and (rising.asked[far] > 3).all()
    quick = Rising("straight", ROOTS)
    _rising.solve(ROOTS.copy(), quick)
    assert quick.calls == 1, "who starts at the root needs one look"


def test_a_function_that_only_jumps_is_bisected() -> None:
    """Slopes of 0 and of infinity say nothing; the sign is enough."""
    for slope in (0.0, 1e-300, np.inf):

        def jumps(x: FloatArray, index: object = slice(None), slope: float = slope) -> tuple[FloatArray, FloatArray]:
            return np.where(x < ROOTS[index], -1.0, 1.0), np.full(len(x), slope)

        with np.errstate(all="ignore"):
            ends = 1e-7 * np.ones(41), 1e7 * np.ones(41)
            np.testing.assert_allclose(_rising.solve(np.ones(41), jumps, *ends), ROOTS, rtol=1e-14)
            if slope == np.inf:
                np.testing.assert_allclose(_rising.solve(np.ones(41), jumps), ROOTS, rtol=1e-14)


def test_an_infinite_value_is_a_value_too_large() -> None:
    def walls(x: FloatArray, index: object = slice(None)) -> tuple[FloatArray, FloatArray]:
        u = np.log(x / ROOTS[index])
        return np.where(u > 0.1, np.inf, u), np.where(u > 0.1, 1.0, 1.0 / x)

    with np.errstate(all="ignore"):
        found = _rising.solve(3.0 * ROOTS, walls, 0.0, 9.0 * ROOTS)
    np.testing.assert_allclose(found, ROOTS, rtol=1e-14)


def test_entries_of_an_array_or_a_number() -> None:
    values = np.array([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(_rising.entries(values, np.array([2, 0])), [3.0, 1.0])
    np.testing.assert_array_equal(_rising.entries(values, values > 1), [2.0, 3.0])
    for number in (5, 5.0, np.asarray(5.0)):
        found = _rising.entries(number, np.array([2, 0]))
        assert found.ndim == 0 and found.dtype == float and found == 5.0


# ── Functions of x ───────────────────────────────────────────────────────────

POINTS = np.concatenate([np.geomspace(1e-12, 600, 60), [0.0299, 0.0299999, 0.03, 0.031, 0.055, 0.0599, 1.0]])


def test_the_saving_and_its_logarithm() -> None:
    inner, rate = _rising.saving(POINTS)
    logs, same = _rising.log_saving(POINTS)
    np.testing.assert_array_equal(same, rate)
    with mpmath.workdps(60):
        for x, one, slope, log in zip(POINTS, inner, rate, logs, strict=True):
            exact = saving_of(mpmath.mpf(float(x)))
            assert one == pytest.approx(float(exact * mpmath.exp(-float(x))), rel=5e-14), x
            assert slope == pytest.approx(float(float(x) * mpmath.exp(float(x)) / exact), rel=5e-14), x
            assert log == pytest.approx(float(mpmath.log(exact)), rel=1e-13, abs=1e-13), x


def test_large_and_small_arrays_give_the_same() -> None:
    together = _rising.saving(POINTS)
    for k, x in enumerate(POINTS):
        alone = _rising.saving(np.array([x]))
        assert alone[0][0] == together[0][k] and alone[1][0] == together[1][k]


def test_an_upload_at_a_fixed_power() -> None:
    """t, dt/dx, −dt/dθ and its slope, from θ = s/(eˣ − 1) and t = c/(θ x) in 60 digits."""
    c, s = 0.7, 5.0
    points = np.geomspace(1e-3, 300, 30)
    time, stretch = _rising.limit_time(points, np.asarray(c), np.asarray(s))
    slope, slope_slope = _rising.log_limit_slope(points), _rising.limit_slope_slope(points)
    with mpmath.workdps(60):

        def share(x: mpmath.mpf) -> mpmath.mpf:
            return s / mpmath.expm1(x)

        def seconds(x: mpmath.mpf) -> mpmath.mpf:
            return c / (share(x) * x)

        def log_slope(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.log(-mpmath.diff(seconds, x) / mpmath.diff(share, x) * mpmath.mpf(s) ** 2 / c)

        for k, x in enumerate(map(mpmath.mpf, points.tolist())):
            assert time[k] == pytest.approx(float(seconds(x)), rel=1e-12)
            assert stretch[k] == pytest.approx(float(mpmath.diff(seconds, x)), rel=1e-12)
            assert slope[k] == pytest.approx(float(log_slope(x)), rel=1e-12, abs=1e-12)
            assert slope_slope[k] == pytest.approx(float(mpmath.diff(log_slope, x)), rel=1e-9)


def test_the_ends_of_these_functions_are_numbers_without_a_warning() -> None:
    ends, one = np.array([1e-150, 800.0]), np.asarray(1.0)
    with np.errstate(all="warn", under="ignore"):
        assert not np.isnan(_rising.log_limit_slope(ends)).any()
        assert not np.isnan(_rising.limit_slope_slope(ends)).any()
        np.testing.assert_allclose(_rising.limit_time(ends, one, one), [[1.0, np.inf], [0.5, np.inf]])
        for function in (_rising.log_limit_slope, _rising.limit_slope_slope):
            function(np.array([0.0, np.inf]))
        _rising.limit_time(np.array([0.0, np.inf]), one, np.asarray([0.0, 0.0]))


@pytest.mark.parametrize("log_y", [-300.0, -40.0, -5.0, 0.0, 3.0, 5.9, 6.1, 9.9, 10.1, 13.0, 40.0, 400.0])
def test_the_first_guesses_are_near(log_y: float) -> None:
    def root(function: Callable[[mpmath.mpf], mpmath.mpf]) -> float:
        with mpmath.workdps(300):
            return float(np.exp(brentq(lambda u: float(mpmath.log(function(mpmath.exp(u)))) - log_y, -170, 8)))

    at = np.array([log_y])
    assert _rising.guess_saving(at)[0] == pytest.approx(root(saving_of), rel=0.05)
    assert _rising.guess_squared(at)[0] == pytest.approx(root(lambda x: saving_of(x) ** 2 / x), rel=0.04)
