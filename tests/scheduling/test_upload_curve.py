"""The paper's cost curve as an object, and what any cost curve has from its base class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import lambertw

from kfl.scheduling import _upload_formulas as curve
from kfl.scheduling.curve import CostCurve, UploadCurve

pytestmark = pytest.mark.filterwarnings("error")

SCALE_J, EXPONENT = np.array([2.0, 0.5, 1e-7]), np.array([0.3, 1.5, 0.02])
CURVE = UploadCurve.of(SCALE_J, EXPONENT)
ZERO = np.zeros(3)


@dataclass(frozen=True, eq=False)
class Hyperbola(CostCurve):
    """E(θ) = c²/θ: the least that a model must say."""

    c: np.ndarray

    @property
    def need(self) -> np.ndarray:
        return self.c

    def priced(self, log_weight: np.ndarray) -> np.ndarray:
        return (self.c > 0) & (log_weight > -np.inf)

    def energy_j(self, share):
        return self.c**2 / share

    def log_energy_j(self, share):
        return np.log(self.energy_j(share))

    def log_saving(self, share, log_weight):
        return log_weight + 2 * np.log(self.c / share)

    def elasticity(self, share):
        return np.broadcast_to(0.5, np.broadcast_shapes(np.shape(share), self.c.shape))

    def share_at_price(self, log_price, log_weight):
        return self.c * np.exp(0.5 * (log_weight - log_price))

    def share_for_energy(self, energy_j):
        return self.c**2 / energy_j

    def break_even(self, log_value, log_weight):
        raise AssertionError("no test asks for it")

    def take(self, index):
        return Hyperbola(self.c[index])

    def only(self, members):
        return Hyperbola(np.where(members, self.c, 0.0))


def test_a_model_that_says_only_what_it_must_has_the_rest_from_the_base() -> None:
    model, weight = Hyperbola(np.array([1.0, 2.0, 0.0])), np.log([4.0, 9.0, 1.0])
    assert model.sends.tolist() == [True, True, False]
    share, elasticity = model.demand(np.log(16.0), weight)
    np.testing.assert_allclose(share, [0.5, 1.5, 0.0])
    np.testing.assert_allclose(elasticity, 0.5)
    sending = model.take(slice(2))
    share, energy = sending.purchase(np.log(16.0), weight[:2])
    np.testing.assert_allclose([share, energy], [[0.5, 1.5], [2.0, 8 / 3]])
    np.testing.assert_allclose(sending.mismatch(share, np.log(16.0), weight[:2]), [0.0, 0.0], atol=1e-14)
    np.testing.assert_allclose(sending.mismatch(share, [np.log(8.0), np.log(32.0)], weight[:2]), np.log([2.0, 0.5]))


def test_upload_curve_wants_no_band_when_joules_are_free_or_nothing_is_sent() -> None:
    three = UploadCurve.of(np.ones(3), np.array([0.1, 0.1, 0.0]))
    share = three.share_at_price(np.log(1e-3), np.array([-np.inf, np.log(1e-5), np.log(1e-5)]))
    assert share[0] == 0 and share[1] > 0 and share[2] == 0


# ── The paper's ──────────────────────────────────────────────────────────────


def test_who_pays_for_the_band() -> None:
    """Who sends something, and whose joules have a price and a scale."""
    mixed = UploadCurve.of(np.array([1.0, 1.0, 0.0, 1.0, np.inf]), np.array([0.1, 0.0, 0.1, 0.1, 0.1]))
    log_weight = np.array([0.0, 0.0, 0.0, -np.inf, -np.inf])
    assert mixed.priced(log_weight).tolist() == [True, False, False, False, False]
    assert mixed.sends.tolist() == [True, False, True, True, True]
    np.testing.assert_array_equal(mixed.need, mixed.exponent)
    np.testing.assert_array_equal(mixed.log_scale, [0.0, 0.0, -np.inf, 0.0, np.inf])


def test_silent_devices_need_and_spend_nothing() -> None:
    silent = UploadCurve.silent(4)
    share = np.array([0.0, 0.1, 0.5, 1.0])
    assert silent.need.shape == silent.scale_j.shape == (4,) and not silent.sends.any()
    np.testing.assert_array_equal(silent.energy_j(share), np.zeros(4))
    np.testing.assert_array_equal(silent.log_energy_j(share), np.full(4, -np.inf))
    np.testing.assert_array_equal(silent.share_at_price(0.0, np.zeros(4)), np.zeros(4))
    np.testing.assert_array_equal(silent.share_for_energy(0.0), np.zeros(4))
    np.testing.assert_array_equal(silent.purchase(0.0, np.zeros(4)), np.zeros((2, 4)))
    np.testing.assert_array_equal(silent.demand(0.0, np.zeros(4))[0], np.zeros(4))


def test_the_share_at_a_price_is_the_papers_lambert_form() -> None:
    weight, price = np.array([1.0, 3.0, 2e6]), 0.7
    y = price / (SCALE_J * weight)
    share = EXPONENT / (1 + lambertw((y - 1) / np.e).real)
    np.testing.assert_allclose(CURVE.share_at_price(np.log(price), np.log(weight)), share, rtol=1e-9)
    bought, energy = CURVE.purchase(np.log(price), np.log(weight))
    np.testing.assert_allclose(bought, share, rtol=1e-9)
    np.testing.assert_allclose(energy, SCALE_J * share * np.expm1(EXPONENT / share), rtol=1e-8)
    wanted, elasticity = CURVE.demand(np.log(price), np.log(weight))
    above, below = (CURVE.share_at_price(np.log(price) + step, np.log(weight)) for step in (1e-4, -1e-4))
    np.testing.assert_allclose(wanted, share, rtol=1e-9)
    np.testing.assert_allclose(elasticity, np.log(below / above) / 2e-4, rtol=1e-6)
    np.testing.assert_allclose(CURVE.elasticity(share), elasticity, rtol=1e-8)
    np.testing.assert_allclose(CURVE.log_saving(share, np.log(weight)), np.full(3, np.log(price)), rtol=1e-8)
    np.testing.assert_allclose(CURVE.mismatch(share, 0.0, np.log(weight)), np.full(3, np.log(price)), rtol=1e-8)


@pytest.mark.parametrize("k", range(3))
def test_the_break_even_is_where_the_tangent_meets_the_value(k: int) -> None:
    a, b, weight = SCALE_J[k], EXPONENT[k], 3.0

    def axis(share: float) -> float:
        """Where the tangent of w E at a share meets the vertical axis, by finite differences."""
        energy = [weight * a * s * np.expm1(b / s) for s in (share * (1 - 1e-5), share, share * (1 + 1e-5))]
        return energy[1] - (energy[2] - energy[0]) / 2e-5

    for value in np.array([1.05, 2.0, 40.0]) * weight * a * b:
        share = brentq(lambda s, value=value: axis(s) - value, b / 30, 50 * b)
        found, log_price = CURVE.take([k]).break_even(np.log([value]), np.log([weight]))
        assert found[0] == pytest.approx(share, rel=1e-6)
        cost = weight * a * found[0] * np.expm1(b / found[0]) + np.exp(log_price[0]) * found[0]
        assert cost == pytest.approx(value, rel=1e-12)


def test_a_value_below_every_upload_breaks_even_nowhere() -> None:
    """a w b is the least that an upload can cost, with any share."""
    limit = np.log(SCALE_J * EXPONENT)
    for value in (limit - 3.0, np.full(3, -np.inf), limit - 1e-9):
        share, log_price = CURVE.break_even(value, ZERO)
        np.testing.assert_array_equal(share, [np.inf] * 3)
        np.testing.assert_array_equal(log_price, [-np.inf] * 3)
    just, _ = CURVE.break_even(limit + 1e-6, ZERO)
    np.testing.assert_allclose(just, EXPONENT / 1e-6, rtol=1e-6)
    free, _ = CURVE.break_even(ZERO, np.full(3, -np.inf))
    np.testing.assert_array_equal(free, ZERO)
    UploadCurve.silent(3).break_even(ZERO, ZERO)  # not requested, and no warning


def test_parts_and_batches() -> None:
    part = CURVE.take([2, 0])
    for name in ("scale_j", "exponent", "log_scale"):
        np.testing.assert_array_equal(getattr(part, name), getattr(CURVE, name)[[2, 0]])
    members = np.array([[True, False, True], [False, True, True]])
    batch = CURVE.only(members)
    assert batch.scale_j.shape == batch.log_scale.shape == (2, 3)
    np.testing.assert_array_equal(batch.exponent, np.where(members, EXPONENT, 0.0))
    weights = np.array([[0.0, 1.0, 2.0]])
    np.testing.assert_allclose(
        batch.share_at_price(-1.0, weights), np.where(members, CURVE.share_at_price(-1.0, weights), 0.0), rtol=1e-15
    )


# ── Numbers of every size ────────────────────────────────────────────────────

SIZES = np.array([0.0, 5e-324, 1e-310, 1e-200, 1e-9, 0.05, 0.999, 1.0, 1.7, 30.0, 720.0, 800.0, 1e5, 1e200, np.inf])


def test_no_number_makes_the_formulas_fail() -> None:
    """Even a caller that lets NumPy raise on an underflow sees nothing but numbers."""
    levels = np.array([-np.inf, -1e5, -1500.0, -800.0, -1.0, 0.0, 1.0, 800.0, 1e5, 1e200, np.inf])
    with np.errstate(all="raise"):
        logs = curve.log_marginal_saving(SIZES[:-1])
        elasticity, x = curve.saving_elasticity(SIZES[:-1]), curve.inverse_marginal_saving(levels)
        shares = UploadCurve.of(np.ones(len(SIZES) - 2), SIZES[:-2])
        share = shares.share_at_price(levels[3:, None], np.zeros(len(SIZES) - 2))
        energies = [curve.upload_energy(a, SIZES[:, None], SIZES[:-1]) for a in (0.0, 1e-300, 1.0, 1e300)]
        log_energies = [curve.log_upload_energy(a, SIZES[:, None], SIZES[:-1]) for a in (1e-300, 1.0, 1e300)]
        narrow = curve.min_share([1e308, 1e308, 1e150], [0.6, 1e-5, 1e-5])
    with np.errstate(all="raise", under="ignore"):
        above = 3 * SIZES[:, None]
        least = curve.min_share(above, SIZES), curve.share_for_energy(1.0, SIZES, above)
        curve.share_for_energy(np.array([0.0, 1e-300, np.inf]), 0.1, np.array([[0.0], [1e300], [np.inf]]))
    assert logs[0] == -np.inf and (np.diff(logs[1:]) > 0).all()
    assert (np.diff(elasticity) <= 0).all()
    assert (np.diff(x[:-1]) >= 0).all() and x[0] == 0 and x[-1] == np.inf
    assert not np.isnan(share).any() and (share >= 0).all() and not share[:, 0].any()
    for energy in energies:
        assert (energy[0] == 0).all() and (energy[1:, 0] == np.inf).all()
    for log_energy in log_energies:
        assert (log_energy[0] == -np.inf).all() and (log_energy[1:, 0] == np.inf).all()
        assert not np.isnan(log_energy).any()
    assert 0.0008 < narrow[0] < 0.0009 and narrow[1] == 0 and narrow[2] == pytest.approx(2.8e-8, rel=0.02)
    for one in least:
        assert ((one >= 0) & ((one <= 1) | (one == np.inf))).all()


def test_no_cell_makes_the_constants_fail() -> None:
    with np.errstate(all="raise", under="ignore"):
        found = curve.required_exponent([0.0, 1e300, 1.0, 1.0], [1e6, 1e-300, 0.0, 1e6], [1.0, 1.0, 1.0, np.inf])
        np.testing.assert_array_equal(found, [0.0, np.inf, np.inf, 0.0])
        assert curve.required_exponent(0.0, 1e6, 0.0) == np.inf, "without time nothing can be sent"
        assert np.isnan(curve.required_exponent(0.0, 0.0, 1.0))
        scale = curve.energy_scale([1.0, 1e300, 1.0, 0.0], [1.0, 1e300, 1.0, 1.0], 2.0, [4.0, 1.0, 0.0, 1.0])
        np.testing.assert_array_equal(scale, [0.5, np.inf, np.inf, 0.0])
        assert np.isnan(curve.energy_scale(0.0, 1.0, 1.0, 0.0))


def test_no_share_and_no_price_makes_the_curve_fail() -> None:
    shares = np.array([[0.0], [1e-300], [1e-3], [1.0], [1e300]])
    silent = UploadCurve.of(np.array([1.0, 1.0]), np.array([0.0, 0.1]))
    with np.errstate(all="raise", under="ignore"):
        silent.log_saving(shares, np.zeros(2)), silent.elasticity(shares)
        UploadCurve.of(np.array([np.inf]), np.ones(1)).priced(np.array([-np.inf]))
    with np.errstate(all="raise"):
        for log_price in (-np.inf, -2000.0, 0.0, 2000.0, np.inf):
            CURVE.demand(log_price, ZERO), CURVE.purchase(log_price, ZERO)
        UploadCurve.of(np.array([1e-300]), np.array([1e-10])).purchase(-700.0, np.zeros(1))
        UploadCurve.of(np.array([1.0]), np.array([1e-300])).demand(1e200, np.zeros(1))
        assert (CURVE.share_at_price(-np.inf, ZERO) == np.inf).all(), "a band that is free"
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(UploadCurve.silent(3).demand(-np.inf, ZERO)[0], ZERO)


@pytest.mark.parametrize("x", [0.0, 1e-9, 1e-3, 0.0499, 0.05, 0.0501, 0.075, 0.0999, 0.2, 1.0, 5.0, 200.0])
def test_the_elasticity_is_good_to_nine_digits(x: float) -> None:
    """(x − 1 + e⁻ˣ)/x² = Σ (−x)ᵐ/(m + 2)!."""
    terms = np.cumprod(np.concatenate([[0.5], -x / np.arange(3.0, 40.0)]))
    exact = terms.sum() if x <= 1 else (x - 1 + np.exp(-x)) / x**2
    assert float(curve.saving_elasticity(x)) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("x", [1e-12, 0.3, 0.999, 1.0, 1.2, 1.9, 2.1, 30.0])
def test_the_logarithm_of_an_energy(x: float) -> None:
    a, share = 3e-7, 0.2
    assert float(curve.log_upload_energy(a, share * x, share)) == pytest.approx(
        np.log(a * share * np.expm1(x)), rel=1e-14
    )


def test_mixed_arrays_are_what_their_elements_are() -> None:
    """Elements on both sides of a seam, in any shape, and one at a time."""
    x = np.array([[0.01, 0.9, 1.0], [1.1, 0.06, 40.0]])
    for function in (
        curve.log_marginal_saving,
        curve.saving_elasticity,
        curve.inverse_marginal_saving,
        lambda x: curve.inverse_marginal_saving(-x),
    ):
        together = function(x)
        assert together.shape == x.shape
        np.testing.assert_array_equal(together, [[function(one) for one in row] for row in x])
