"""The paper's print against itself: Algorithm 2's iterates, worked out by hand, and the rule for empty queues."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import brentq

from kfl.scheduling.allocation import solve_shares
from kfl.scheduling.as_printed import printed_rule
from kfl.scheduling.status import Status
from tests.reference.paper_algorithm2 import printed_algorithm2
from tests.reference.uplinks import SharingProblem


def problem(**changes: object) -> SharingProblem:
    """Two alike on 1 MHz: b = ln 2 at half a second and half a megabit, a = 2e-6 J."""
    two = np.ones(2)
    base = SharingProblem(1e6, 4e-21, 1e-9 * two, 5e5 * two, 0.5 * two, two, two)
    return replace(base, **changes)


A, B = 1e6 * 4e-21 * 0.5 / 1e-9, np.log(2)
HIGH = A * ((2 * B - 1) * np.exp(2 * B) + 1)
"""Equation (29): the price of equal shares, here the right one."""


def _first_step(weight: float) -> float:
    return float(printed_algorithm2(problem(weight=np.full(2, weight)), precision=10.0).multiplier)


@pytest.mark.parametrize(("parts", "halvings"), [(10, 4), (8, 4), (7.9, 3), (1.5, 1), (1000, 10)])
def test_alike_devices_halve_the_way_to_the_price_of_equal_shares(parts: float, halvings: int) -> None:
    """Each step is too low, so the last one is H (1 − 2⁻ᵏ), k the first with H 2⁻ᵏ below the precision."""
    assert 2 * _first_step(1.0) == pytest.approx(HIGH, rel=1e-12, abs=0)
    # A weight at which H is 1 to the last digit, so that a precision can be met exactly.
    weight = next(w for step in range(-20, 21) if _first_step(w := (1 + step * 2.0**-53) / HIGH) == 0.5)
    printed = printed_algorithm2(problem(weight=np.full(2, weight)), precision=1 / parts)
    assert printed.multiplier == 1 - 2.0**-halvings
    assert printed.share[0] == printed.share[1] > 0.5
    assert not printed.feasible and printed.status == Status("band_exceeded", facts={"total": printed.share.sum()})
    assert printed.residual == pytest.approx(printed.share.sum() - 1)


def _share_at(mu: float, scale: float, exponent: float) -> float:
    """a w G(b/θ) = μ by bracketing."""
    x = brentq(lambda x: scale * ((x - 1) * np.exp(x) + 1) - mu, 1e-9, 200.0, xtol=1e-14)
    return exponent / x


@pytest.mark.parametrize("precision", [0.3, 0.05, 1e-3])
def test_the_first_price_at_which_shares_nearly_fill_the_band_is_taken(precision: float) -> None:
    """Bisection between 0 and equation (29), with prices so large that the absolute precision does not end it."""
    weight, gain = np.array([1e9, 4e10]), np.array([1e-9, 1e-10])
    scale = weight * 1e6 * 4e-21 * 0.5 / gain
    low, high = 0.0, float(np.max(scale * ((2 * B - 1) * np.exp(2 * B) + 1)))
    for _ in range(60):
        mu = 0.5 * (low + high)
        total = sum(_share_at(mu, one, B) for one in scale)
        if 1 - precision <= total <= 1:
            break
        low, high = (mu, high) if total > 1 else (low, mu)
    printed = printed_algorithm2(problem(weight=weight, gain=gain), precision=precision)
    assert printed.multiplier == pytest.approx(mu, rel=1e-9)
    np.testing.assert_allclose(printed.share, [_share_at(mu, one, B) for one in scale], rtol=1e-9)
    assert printed.feasible and printed.status.ok and printed.residual == pytest.approx(1 - total, rel=1e-6)
    energy = 1e6 * 4e-21 * 0.5 / gain * printed.share * np.expm1(B / printed.share)
    np.testing.assert_allclose(printed.energy_j, energy, rtol=1e-12)
    np.testing.assert_allclose(printed.power_w, energy / 0.5, rtol=1e-12)
    assert printed.upload_time_s.tolist() == [0.5, 0.5]
    assert printed.objective == pytest.approx(float(np.sum(weight * energy)), rel=1e-12)


def test_a_device_whose_joules_are_free_gets_its_least_share_and_costs_nothing() -> None:
    stated = problem(weight=np.array([1.0, 0.0]))
    printed, floor = printed_algorithm2(stated, precision=1e-12), stated.floor()
    assert printed.share[1] == floor[1]
    assert printed.objective == pytest.approx(printed.energy_j[0])
    assert printed.share[0] == pytest.approx(1.0, abs=1e-3)  # the search knows nothing of the other's floor
    assert not printed.feasible


def test_shares_are_lifted_to_the_least_ones_after_the_search() -> None:
    printed = printed_algorithm2(problem(share_floor=np.array([0.7, 0.0])), precision=1e-15)
    assert printed.share[0] == 0.7 and printed.share[1] == pytest.approx(0.5, rel=1e-6)
    assert printed.status.facts == {"total": pytest.approx(1.2, rel=1e-6)} and printed.residual == pytest.approx(
        0.2, rel=1e-5
    )


def test_the_rule_for_empty_queues_is_about_those_who_send_alone() -> None:
    uplink, floor = (stated := problem(weight=np.zeros(2), gain=np.array([1e-9, 3e-11]))).uplink(), stated.floor()
    printed = printed_rule(uplink, np.zeros(2), floor)
    assert printed.feasible and printed.multiplier == printed.residual == 0
    np.testing.assert_array_equal(printed.share, floor)
    np.testing.assert_allclose(printed.energy_j, 0.5, rtol=1e-9)  # full power for all the time left
    np.testing.assert_allclose(printed.power_w, 1.0, rtol=1e-9)
    assert printed.upload_time_s.tolist() == [0.5, 0.5]
    # One has a price: then the rest is optimal.
    mixed = printed_rule(uplink, np.array([0.0, 1.0]), floor)
    np.testing.assert_array_equal(mixed.share, solve_shares(uplink, np.array([0.0, 1.0]), floor).share)
    assert mixed.share[1] > 0.9
    # The price of joules that no device spends is none.
    silent, least = (stated := problem(payload_bits=np.array([5e5, 0.0]))).uplink(), stated.floor()
    np.testing.assert_array_equal(printed_rule(silent, np.array([0.0, 1.0]), least).share, least)
    late, never = (stated := problem(upload_time_s=np.array([0.5, -1.0]))).uplink(), stated.floor()
    stuck = printed_rule(late, np.zeros(2), never)
    assert not stuck.feasible and stuck.share.tolist() == [0, 0] and stuck.status.code == "past_deadline"


def test_shares_that_fill_the_band_up_to_rounding_fit() -> None:
    """Floors of 1 together, above what the search finds at a coarse precision."""
    stated = problem(weight=np.array([1e9, 4e10]), gain=np.array([1e-9, 1e-10]))
    found = printed_algorithm2(stated, precision=0.3).share
    assert found.sum() < 1 - 1e-3
    first = float(found[0]) + (1 - float(found.sum())) / 2
    for more, fits in ((0.0, True), (0.9e-12, True), (1.5e-12, False)):
        floors = np.array([first, 1 - first + more])
        lifted = printed_algorithm2(replace(stated, share_floor=floors), precision=0.3)
        np.testing.assert_array_equal(lifted.share, floors)
        assert bool(lifted.feasible) == fits and lifted.status.ok == fits


def test_a_price_beyond_floating_point_leaves_the_least_shares() -> None:
    """e^{2 b} overflows in equation (29): the search ends at once, without a warning."""
    heavy = problem(payload_bits=np.full(2, 2.9e8), max_power_w=np.full(2, 1e200))
    printed = printed_algorithm2(heavy)
    np.testing.assert_array_equal(printed.share, heavy.floor())
    assert printed.multiplier == np.inf and not printed.feasible


def test_where_all_joules_are_free_everybody_has_the_least_share() -> None:
    free = problem(weight=np.zeros(2))
    printed = printed_algorithm2(free)
    np.testing.assert_array_equal(printed.share, free.floor())
    assert printed.feasible and printed.objective == printed.multiplier == 0


def test_a_small_price_of_the_joule_scales_the_price_of_the_band() -> None:
    half = printed_algorithm2(problem(weight=np.array([0.5, 0.25])), precision=1e-15)
    whole = printed_algorithm2(problem(weight=np.array([2.0, 1.0])), precision=4e-15)
    np.testing.assert_allclose(half.share, whole.share, rtol=1e-6)
    assert half.multiplier == pytest.approx(whole.multiplier / 4, rel=1e-6)
