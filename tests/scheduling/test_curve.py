"""The upload curve against 60-digit arithmetic, and its limits."""

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfl.scheduling import _upload_formulas as curve

EPS = np.finfo(float).eps


def mp_log_saving(x: mpmath.mpf) -> mpmath.mpf:
    return mpmath.log((x - 1) * mpmath.exp(x) + 1)


def relative_error(found: float, exact: mpmath.mpf) -> float:
    return float(abs(mpmath.mpf(float(found)) / exact - 1))


# From the paper's own regime (y ~ 1e-6) to far beyond any, with the seam at y = 1 (ln y = 0) hit closely.
LOG_Y = np.concatenate(
    [np.linspace(-690, 100, 80), np.linspace(-3, 3, 121), [-1e-9, -1e-15, 0.0, 1e-15, 1e-9], np.geomspace(1, 1e5, 40)]
)


def test_inverse_of_the_marginal_saving_is_accurate_to_rounding() -> None:
    found = curve.inverse_marginal_saving(LOG_Y)
    with mpmath.workdps(700):
        for log_y, x in zip(LOG_Y, found, strict=True):
            exact = mpmath.mpf(float(x))
            for _ in range(4):  # Newton from the found value: independent of how it was found
                excess = mp_log_saving(exact) - mpmath.mpf(float(log_y))
                exact -= excess * ((exact - 1) * mpmath.exp(exact) + 1) / (exact * mpmath.exp(exact))
            assert relative_error(x, exact) < 4 * EPS, log_y


def test_it_agrees_with_the_papers_lambert_form_where_that_works() -> None:
    y = np.geomspace(1e-3, 1e6, 50)
    with mpmath.workdps(40):
        lambert = [float(1 + mpmath.lambertw((mpmath.mpf(v) - 1) / mpmath.e).real) for v in y.tolist()]
    np.testing.assert_allclose(curve.inverse_marginal_saving(np.log(y)), lambert, rtol=1e-13)


@pytest.mark.parametrize("x", [1e-150, 1e-8, 1e-3, 0.5, 0.999999, 1.0, 1.000001, 1.5, 1.99, 3.0, 50.0, 700.0])
def test_marginal_saving_and_its_logarithm(x: float) -> None:
    with mpmath.workdps(400):
        exact = (mpmath.mpf(x) - 1) * mpmath.exp(mpmath.mpf(x)) + 1
        log = float(curve.log_marginal_saving(x))
        assert abs(log - float(mpmath.log(exact))) <= 4 * EPS * max(abs(log), 1.0)


def test_the_saving_is_the_slope_of_the_energy() -> None:
    a, b = 2e-7, 0.3
    share = np.array([0.01, 0.05, 0.3, 1.0])
    step = 1e-5 * share
    slope = (curve.upload_energy(a, b, share + step) - curve.upload_energy(a, b, share - step)) / (2 * step)
    np.testing.assert_allclose(-slope, a * np.exp(curve.log_marginal_saving(b / share)), rtol=1e-6)


@given(st.floats(-600, 600), st.floats(-600, 600))
@settings(max_examples=100)
def test_the_inverse_is_monotone_and_closes_the_circle(first: float, second: float) -> None:
    low, high = sorted((first, second))
    x = curve.inverse_marginal_saving(np.array([low, high]))
    assert x[0] <= x[1] * (1 + 4 * EPS)
    back = curve.log_marginal_saving(x)
    np.testing.assert_allclose(back, [low, high], rtol=1e-13, atol=1e-13)


def test_ends_of_the_inverse() -> None:
    np.testing.assert_array_equal(curve.inverse_marginal_saving([-np.inf, np.inf]), [0.0, np.inf])
    assert curve.inverse_marginal_saving(np.zeros((0, 3))).shape == (0, 3)


def test_elasticity_is_the_derivative_of_the_inverse() -> None:
    log_y = np.linspace(-40, 40, 41)
    h = 1e-5
    up, down = curve.inverse_marginal_saving(log_y + h), curve.inverse_marginal_saving(log_y - h)
    slope = (np.log(up) - np.log(down)) / (2 * h)
    np.testing.assert_allclose(curve.saving_elasticity(curve.inverse_marginal_saving(log_y)), slope, rtol=1e-7)


# ── The least share ──────────────────────────────────────────────────────────


@pytest.mark.parametrize("theta", [1e-9, 1e-4, 0.03, 0.5, 1.0])
@pytest.mark.parametrize("snr", [1e-6, 1e-2, 1.0, 1e4, 1e12])
def test_min_share_solves_its_equation(theta: float, snr: float) -> None:
    """θ ln(1 + s/θ) = b is ill-conditioned in θ where s ≪ θ, so the exponent it gives back is compared."""
    with mpmath.workdps(60):
        b = float(mpmath.mpf(theta) * mpmath.log1p(mpmath.mpf(snr) / mpmath.mpf(theta)))
    if not 0 < b <= np.log1p(snr):
        b = float(np.log1p(snr))  # θ = 1, where rounding may have asked for a little too much
    found = float(curve.min_share(snr, b))
    with mpmath.workdps(60):
        back = mpmath.mpf(found) * mpmath.log1p(mpmath.mpf(snr) / mpmath.mpf(found))
        assert relative_error(b, back) < 20 * EPS
    if snr > 1e3 * theta:
        assert found == pytest.approx(theta, rel=1e-13)


@pytest.mark.parametrize("x", [1e-12, 1e-6, 1e-3, 0.3, 0.9, 0.9999, 1.0, 1.001, 1.3, 1.6, 1.95, 2.5, 7.0, 60.0, 700.0])
@pytest.mark.parametrize("b", [0.37, 11.0])
def test_the_inverse_of_the_growth_is_accurate_to_rounding(x: float, b: float) -> None:
    """(eˣ − 1)/x = s/b. Where x is small it is 2 (s − b)/b, of which s and b keep only a part."""
    with mpmath.workdps(60):
        s = float(b * mpmath.expm1(x) / x)
        ratio = mpmath.mpf(s) / mpmath.mpf(b)
        exact = mpmath.findroot(lambda u: mpmath.log(mpmath.expm1(u) / u) - mpmath.log(ratio), x)
        assert relative_error(float(curve.inverse_growth(np.array([s]), np.array([b]))[0]), exact) < 8 * EPS


def test_min_share_has_the_closed_form_on_the_other_lambert_branch() -> None:
    s, b = 40.0, 0.7
    with mpmath.workdps(40):
        c = mpmath.mpf(b) / s
        x = -mpmath.lambertw(-c * mpmath.exp(-c), -1).real - c
        assert relative_error(float(curve.min_share(s, b)), mpmath.mpf(b) / x) < 8 * EPS


def test_min_share_exists_exactly_when_the_whole_band_is_enough() -> None:
    s = np.array([0.5, 3.0, 1e6])
    edge = np.log1p(s)
    np.testing.assert_array_equal(np.isinf(curve.min_share(s, edge * (1 + 1e-12))), [True] * 3)
    np.testing.assert_allclose(curve.min_share(s, edge * (1 - 1e-12)), 1.0, rtol=1e-9)
    np.testing.assert_array_equal(curve.min_share([0.0, 5.0, 0.0], [1.0, 0.0, 0.0]), [np.inf, 0.0, 0.0])
    assert curve.min_share(np.inf, np.inf) == np.inf
    s = np.geomspace(1e-12, 1e6, 300)
    assert (curve.min_share(s, np.log1p(s)) <= 1).all(), "no more than the whole band, by no rounding error"


@given(st.floats(-12, 2), st.floats(-6, 1), st.floats(0.001, 30))
@settings(max_examples=100)
def test_share_for_energy_spends_exactly_the_energy(log_a: float, log_b: float, factor: float) -> None:
    a, b = 10.0**log_a, 10.0**log_b
    energy = a * b * (1 + factor)
    share = float(curve.share_for_energy(a, b, energy))
    if float(curve.upload_energy(a, b, 1.0)) > energy:
        assert share == np.inf
    else:
        assert share <= 1
        assert float(curve.upload_energy(a, b, share)) == pytest.approx(energy, rel=1e-12)


def test_energy_at_or_below_the_limit_is_never_enough() -> None:
    a, b = 1e-3, 0.2
    np.testing.assert_array_equal(curve.share_for_energy(a, b, [a * b, 0.0, -1.0]), [np.inf] * 3)
    assert curve.share_for_energy(np.inf, b, np.inf) == np.inf
    assert curve.share_for_energy(a, b, np.inf) == 0.0


# ── Energy, exponent, scale ──────────────────────────────────────────────────


def test_energy_has_the_papers_value_and_limits() -> None:
    band, noise, time, gain, bits, share = 5e6, 4e-21, 0.4, 1e-10, 20480.0, 0.02
    b = curve.required_exponent(bits, band, time)
    a = curve.energy_scale(band, noise, time, gain)
    printed = share * band * time * noise / gain * (2 ** (bits / (share * band * time)) - 1)  # equation (13)
    assert float(curve.upload_energy(a, b, share)) == pytest.approx(printed, rel=1e-12)
    assert float(curve.upload_energy(a, b, 1e12)) == pytest.approx(float(a * b), rel=1e-9)
    np.testing.assert_array_equal(curve.upload_energy(a, [0.0, b], 0.0), [0.0, np.inf])


def test_a_whole_model_through_one_share_of_145_overflows_only_without_logarithms() -> None:
    """FedAvg's 17.6 Mbit at θ = 1/K in the paper's cell: the printed estimate is infinite from K ≈ 145."""
    b = curve.required_exponent(17.6e6, 5e6, 0.5)
    assert np.isinf(curve.upload_energy(1e-6, b, 1 / 150))
    log = float(curve.log_upload_energy(1e-6, b, 1 / 150))
    assert log == pytest.approx(np.log(1e-6 / 150) + float(b) * 150, rel=1e-12)
    shares = np.array([0.02, 0.3, 1.0])
    np.testing.assert_allclose(
        curve.log_upload_energy(1e-6, 0.1, shares), np.log(curve.upload_energy(1e-6, 0.1, shares)), rtol=1e-13
    )
    assert curve.log_upload_energy(1.0, 0.0, 0.5) == -np.inf


def test_no_time_left_needs_an_infinite_exponent() -> None:
    np.testing.assert_array_equal(
        curve.required_exponent([1e4, 1e4, 0.0], 1e6, [0.0, -1.0, -1.0]), [np.inf, np.inf, np.inf]
    )
    assert curve.energy_scale(1e6, 4e-21, 1.0, 0.0) == np.inf
