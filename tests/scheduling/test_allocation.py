"""The allocator: optimality, invariances, edges, and bad input. See also test_against_cvxpy."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from kfl.core.errors import ConfigError
from kfl.scheduling import Uplink, allocate
from kfl.scheduling.allocation import AllocationProblem, solve_shares
from kfl.scheduling.as_printed import printed_rule
from kfl.scheduling.curve import UploadCurve
from kfl.scheduling.status import Status
from tests.reference.convex_solver import instances
from tests.reference.paper_algorithm2 import printed_algorithm2
from tests.reference.uplinks import SharingProblem


def problem(**changes: object) -> SharingProblem:
    """Three devices on 1 MHz, the last one far away."""
    base = SharingProblem(
        bandwidth_hz=1e6,
        noise_w_per_hz=4e-21,
        gain=np.array([1e-9, 1e-11, 1e-12]),
        payload_bits=np.array([1e6, 5e5, 1e6]),
        upload_time_s=np.array([1.0, 0.5, 0.8]),
        max_power_w=np.ones(3),
        weight=np.array([1.0, 0.1, 3.0]),
    )
    return replace(base, **changes)


def curves_of(stated: SharingProblem) -> SimpleNamespace:
    """a, b, weight and least share of every device."""
    uplink, weight, floor = stated.uplink(), stated.weight, stated.floor()
    assert isinstance(uplink.curve, UploadCurve)
    return SimpleNamespace(scale_j=uplink.curve.scale_j, exponent=uplink.curve.exponent, weight=weight, floor=floor)


def parts(stated: SharingProblem) -> tuple[Uplink, np.ndarray, np.ndarray]:
    return stated.uplink(), stated.weight, stated.floor()


def total_cost(curves: SimpleNamespace, share: np.ndarray) -> float:
    return float(np.sum(curves.weight * curves.scale_j * share * np.expm1(curves.exponent / share)))


# ── Optimality ───────────────────────────────────────────────────────────────


def test_two_devices_against_a_grid() -> None:
    two = problem(
        gain=np.array([1e-9, 1e-12]),
        payload_bits=np.array([2e6, 1e6]),
        upload_time_s=np.ones(2),
        max_power_w=np.ones(2),
        weight=np.ones(2),
    )
    curves = curves_of(two)
    low, high = curves.floor[0], 1 - curves.floor[1]
    grid = np.linspace(low, high, 200_001)
    costs = sum(
        curves.scale_j[k] * part * np.expm1(curves.exponent[k] / part) for k, part in enumerate((grid, 1 - grid))
    )
    best = two.solve()
    assert best.objective <= costs.min() * (1 + 1e-12)
    assert best.share[0] == pytest.approx(grid[costs.argmin()], abs=2 * (high - low) / 200_000)


def test_three_devices_against_scipy() -> None:
    curves = curves_of(problem())
    best = problem().solve()
    scale = float(best.objective)
    found = minimize(
        lambda t: total_cost(curves, t) / scale,
        x0=curves.floor + (1 - curves.floor.sum()) / 3,
        bounds=[(f, 1) for f in curves.floor],
        constraints={"type": "ineq", "fun": lambda t: 1 - t.sum()},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert found.fun == pytest.approx(1.0, rel=1e-7)
    np.testing.assert_allclose(best.share, found.x, rtol=1e-3)


def test_moving_band_between_any_two_devices_costs_energy() -> None:
    """Finite differences: at the optimum the marginal costs of all free devices agree, in every direction."""
    curves, best = curves_of(problem()), problem().solve()
    assert (best.share > curves.floor).all()
    step = 1e-6
    slopes = []
    for k in range(3):
        move = np.zeros(3)
        move[k] = step * best.share[k]
        up, down = total_cost(curves, best.share + move), total_cost(curves, best.share - move)
        slopes.append(-(up - down) / (2 * move[k]))
    np.testing.assert_allclose(slopes, float(best.multiplier), rtol=1e-6)
    for i, j in [(0, 1), (1, 2), (2, 0)]:
        move = np.zeros(3)
        move[i], move[j] = 1e-4, -1e-4
        assert total_cost(curves, best.share + move) > best.objective


def test_random_instances_satisfy_the_optimality_conditions() -> None:
    checked = 0
    for one in instances(150, seed=3):
        best, curves = one.solve(), curves_of(one)
        if not best.feasible:
            assert np.isinf(best.objective) and not best.status.ok
            continue
        checked += 1
        assert best.residual < 1e-9
        assert best.share.sum() <= 1 + 1e-12
        assert (best.share >= curves.floor * (1 - 1e-12)).all()
        assert (best.power_w <= np.asarray(one.max_power_w) * (1 + 1e-9)).all()
        np.testing.assert_allclose(best.energy_j, best.power_w * np.asarray(one.upload_time_s), rtol=1e-12)
    assert checked > 100


def test_a_minimum_that_binds_sends_at_full_power() -> None:
    # The weak device's joules are nearly free, so its share is as small as the power limit allows.
    tight = problem(payload_bits=np.full(3, 3e6), gain=np.array([1e-9, 1e-11, 1e-11]), weight=np.array([1, 1, 1e-9]))
    best, curves = tight.solve(), curves_of(tight)
    assert best.share[2] == pytest.approx(curves.floor[2], rel=1e-12)
    assert best.power_w[2] == pytest.approx(1.0, rel=1e-9)
    assert best.residual < 1e-9 and best.share.sum() == pytest.approx(1.0, abs=1e-12)


# ── Invariances ──────────────────────────────────────────────────────────────

seeds = st.integers(0, 10_000)


def random_problem(seed: int, devices: int = 6) -> SharingProblem:
    rng = np.random.default_rng(seed)
    return SharingProblem(
        bandwidth_hz=1e6,
        noise_w_per_hz=4e-21,
        gain=10.0 ** rng.uniform(-12, -8, devices),
        payload_bits=10.0 ** rng.uniform(4, 5.5, devices),
        upload_time_s=rng.uniform(0.2, 1, devices),
        max_power_w=rng.uniform(0.1, 1, devices),
        weight=10.0 ** rng.uniform(-3, 3, devices),
    )


@given(seeds, st.floats(-6, 6))
@settings(max_examples=40)
def test_scaling_all_weights_changes_only_the_price(seed: int, log_factor: float) -> None:
    one, factor = random_problem(seed), 10.0**log_factor
    first, second = one.solve(), replace(one, weight=np.asarray(one.weight) * factor).solve()
    np.testing.assert_allclose(second.share, first.share, rtol=1e-11)
    np.testing.assert_allclose(second.multiplier, first.multiplier * factor, rtol=1e-10)


@given(seeds, st.floats(-2, 2))
@settings(max_examples=40)
def test_scaling_band_and_payload_together_changes_only_the_energy(seed: int, log_factor: float) -> None:
    """B → cB, payload → c payload, p_max → c p_max: the same exponents and signal-to-noise ratios."""
    one, c = random_problem(seed), 10.0**log_factor
    scaled = replace(
        one,
        bandwidth_hz=1e6 * c,
        payload_bits=np.asarray(one.payload_bits) * c,
        max_power_w=np.asarray(one.max_power_w) * c,
    )
    first, second = one.solve(), scaled.solve()
    np.testing.assert_allclose(second.share, first.share, rtol=1e-11)
    np.testing.assert_allclose(second.energy_j, first.energy_j * c, rtol=1e-10)


@given(seeds)
@settings(max_examples=40)
def test_scaling_gain_and_noise_together_changes_nothing(seed: int) -> None:
    one = random_problem(seed)
    scaled = replace(one, noise_w_per_hz=4e-18, gain=np.asarray(one.gain) * 1e3)
    np.testing.assert_allclose(scaled.solve().share, one.solve().share, rtol=1e-11)


@given(seeds)
@settings(max_examples=40)
def test_the_order_of_devices_does_not_matter(seed: int) -> None:
    one = random_problem(seed)
    order = np.random.default_rng(seed).permutation(6)
    names = ("gain", "payload_bits", "upload_time_s", "max_power_w", "weight")
    mixed = replace(one, **{name: np.asarray(getattr(one, name))[order] for name in names})
    np.testing.assert_allclose(mixed.solve().share, one.solve().share[order], rtol=1e-11)


@given(seeds)
@settings(max_examples=40)
def test_one_more_device_makes_the_band_dearer_and_nobody_richer(seed: int) -> None:
    one = random_problem(seed)
    more, fewer = one.solve(), replace(one, **{n: np.asarray(getattr(one, n))[:5] for n in _PER_DEVICE}).solve()
    assert more.multiplier > fewer.multiplier
    assert (more.share[:5] <= fewer.share[:5] * (1 + 1e-12)).all()


# ── Edges ────────────────────────────────────────────────────────────────────


def test_one_device_takes_the_whole_band() -> None:
    alone = problem(**{n: np.asarray(getattr(problem(), n))[:1] for n in _PER_DEVICE})
    best = alone.solve()
    assert best.share == pytest.approx([1.0], abs=1e-15) and best.residual < 1e-12


def test_weight_zero_beside_others_gets_the_least_share_and_all_zero_minimises_energy() -> None:
    curves = curves_of(problem())
    mixed = problem(weight=np.array([1.0, 0.0, 1.0])).solve()
    assert mixed.share[1] == pytest.approx(curves.floor[1], rel=1e-12)
    assert np.isfinite(mixed.objective) and mixed.residual < 1e-12
    free, ones = problem(weight=np.zeros(3)).solve(), problem(weight=np.ones(3)).solve()
    np.testing.assert_array_equal(free.share, ones.share)
    assert free.objective == 0 and free.multiplier == ones.multiplier
    # The price of joules that no device spends is no price.
    silent = {"payload_bits": np.array([0.0, 5e5, 1e6])}
    unused = problem(**silent, weight=np.array([1.0, 0.0, 0.0])).solve()
    np.testing.assert_array_equal(unused.share, problem(**silent, weight=np.ones(3)).solve().share)


def test_nothing_to_send_takes_nothing() -> None:
    best = problem(payload_bits=np.array([1e6, 0.0, 1e6])).solve()
    assert best.share[1] == best.power_w[1] == best.energy_j[1] == 0
    assert best.share.sum() == pytest.approx(1.0)
    silent = problem(payload_bits=np.zeros(3)).solve()
    assert silent.feasible and silent.objective == 0 and silent.residual == 0 and (silent.share == 0).all()


def test_a_device_with_nothing_to_send_needs_no_channel() -> None:
    best = problem(payload_bits=np.array([1e6, 0.0, 1e6]), gain=np.array([1e-9, 0.0, 1e-12])).solve()
    assert best.feasible and best.share[1] == 0


def test_share_floors_hold() -> None:
    best = problem(share_floor=np.array([0.5, 0.0, 0.0])).solve()
    assert best.share[0] == 0.5 and best.residual < 1e-12
    full = problem(share_floor=np.array([0.5, 0.25, 0.25])).solve()
    np.testing.assert_array_equal(full.share, [0.5, 0.25, 0.25])


def test_a_whole_model_from_150_devices() -> None:
    """FedAvg's payload at a size where the printed estimate overflows: plainly infeasible on 5 MHz, and
    solved without a warning where the band allows it."""
    n = 150
    rng = np.random.default_rng(0)
    heavy = SharingProblem(
        bandwidth_hz=5e6,
        noise_w_per_hz=4e-21,
        gain=1e-3 * rng.exponential(size=n) / rng.uniform(50, 500, n) ** 2,
        payload_bits=np.full(n, 17.6e6),
        upload_time_s=rng.uniform(0.3, 0.6, n),
        max_power_w=np.ones(n),
        weight=rng.exponential(size=n),
    )
    assert not heavy.solve().feasible
    wide = replace(heavy, bandwidth_hz=1e9).solve()
    assert wide.feasible and wide.residual < 1e-9


# ── Infeasible sets are explained, not raised ────────────────────────────────


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"upload_time_s": np.array([1.0, 0.5, -0.25])}, ["Device 2", "past the deadline", "-0.25 s"]),
        ({"upload_time_s": np.array([0.0, 0.5, 1.0])}, ["Device 0", "past the deadline", "0 s"]),
        ({"gain": np.array([1e-9, 0.0, 1e-12])}, ["Device 1", "even with the whole band at full power", "reaches 0"]),
        ({"payload_bits": np.array([1e6, 5e5, 2e7])}, ["Device 2", "needs 25 bit/s per Hz", "reaches 7."]),
        ({"payload_bits": np.full(3, 5e6)}, ["No split of the band", "3 devices", "add up to 1.", "of device"]),
        ({"share_floor": np.array([0.0, 1.5, 0.0])}, ["Device 1", "share floor of 1.5"]),
        ({"share_floor": np.full(3, 0.4)}, ["No split", "add up to 1.2", "0.4 of device 0"]),
    ],
)
def test_infeasible_sets_say_why(changes: dict[str, object], words: list[str]) -> None:
    result = problem(**changes).solve()
    assert not result.feasible and np.isinf(result.objective) and (result.share == 0).all()
    assert isinstance(result.status, Status)
    for word in words:
        assert word in str(result.status), result.status


# ── Bad input ────────────────────────────────────────────────────────────────

_PER_DEVICE = ("gain", "payload_bits", "upload_time_s", "max_power_w", "weight")


@pytest.mark.parametrize("name", [*_PER_DEVICE, "share_floor"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_a_bad_entry_is_named_with_its_device(name: str, value: float) -> None:
    bad = np.array(np.broadcast_to(getattr(problem(), name), 3))
    bad[1] = value
    if name == "upload_time_s" and value == -1.0:
        assert not problem(upload_time_s=bad).solve().feasible  # too slow is infeasible, not wrong
        return
    said = "time_s" if name == "upload_time_s" else name
    with pytest.raises(ConfigError, match=f"^{said} of device 1 is {value}"):
        problem(**{name: bad}).solve()


@pytest.mark.parametrize("name", ["bandwidth_hz", "noise_w_per_hz"])
@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_a_bad_band_is_named(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"^{name} is {value}, but must be a finite number greater than 0"):
        problem(**{name: value}).solve()


def test_allocate_refuses_an_empty_list_of_devices_and_unequal_lengths() -> None:
    for size in ((0,), (2, 0), (2, 3), ()):
        with pytest.raises(ConfigError, match="at least one device"):
            problem(**{name: np.zeros(size) for name in _PER_DEVICE}).solve()
    with pytest.raises(ConfigError, match=r"is \(3,\), but must be .* one entry for each of 2 devices"):
        problem(gain=np.array([1e-9, 1e-9])).solve()
    with pytest.raises(ConfigError, match=r"bandwidth_hz is \[1000000.0, 1000000.0\], but must be a finite number"):
        problem(bandwidth_hz=np.array([1e6, 1e6])).solve()


def test_allocate_takes_the_problem_of_the_last_release_with_a_warning() -> None:
    names = ("bandwidth_hz", "noise_w_per_hz", *_PER_DEVICE)
    for more in ({}, WHOLE, {"share_floor": np.array([0.5, 0.0, 0.0])}):
        old = AllocationProblem(**{name: getattr(problem(), name) for name in names}, **more)
        with pytest.warns(DeprecationWarning, match="use allocate"):
            found = allocate(old)
        np.testing.assert_array_equal(found.share, problem(**more).solve().share)


# ── Whole devices ────────────────────────────────────────────────────────────

WHOLE = {
    "fastest_s": 0.2,
    "slowest_s": 2.0,
    "work_j_s2": 0.01,
    "static_power_w": 0.02,
    "circuit_power_w": 0.1,
    "amplifier_efficiency": 0.4,
    "min_power_w": 1e-4,
}


def test_no_other_split_of_band_and_time_is_cheaper_for_whole_devices() -> None:
    """Against random shares and durations, each with the cheapest clock that still ends in time."""
    stated, draw = problem(**WHOLE), np.random.default_rng(0)
    best = stated.solve()
    assert best.feasible and best.residual < 1e-7 and best.share.sum() == pytest.approx(1.0)
    whole_s = np.asarray(stated.upload_time_s) + 0.2
    assert (best.compute_time_s + best.upload_time_s <= whole_s * (1 + 1e-12)).all()
    slow_s = np.minimum(np.minimum(2.0, (2 * 0.01 / 0.02) ** (1 / 3)), whole_s)
    base_j = 0.01 / slow_s**2 + 0.02 * slow_s
    share = np.concatenate([best.share[None], draw.dirichlet(np.ones(3), 500)])[:, :, None]
    send_s = np.append(np.geomspace(1e-3, 1.0, 200), 1.0) * np.asarray(stated.upload_time_s)[:, None]
    work_s = np.minimum(slow_s[:, None], whole_s[:, None] - send_s)
    with np.errstate(over="ignore"):
        exponent = np.asarray(stated.payload_bits)[:, None] * np.log(2) / (share * 1e6 * send_s)
        power_w = share * 1e6 * 4e-21 / np.asarray(stated.gain)[:, None] * np.expm1(exponent)
        energy_j = (power_w / 0.4 + 0.1) * send_s + 0.01 / work_s**2 + 0.02 * work_s - base_j[:, None]
    allowed = (power_w <= 1.0) & (power_w >= 1e-4)
    cost = (np.asarray(stated.weight) * np.where(allowed, energy_j, np.inf).min(axis=-1)).sum(axis=-1)
    assert best.objective <= cost.min() * (1 + 1e-9) and cost[0] <= best.objective * 1.01


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("amplifier_efficiency", 0.0, "above 0 and at most 1"),
        ("amplifier_efficiency", 1.5, "above 0 and at most 1"),
        ("slowest_s", -0.1, "0 or more"),
        ("circuit_power_w", -0.1, "0 or more"),
        ("static_power_w", np.nan, "0 or more"),
        ("work_j_s2", -1.0, "0 or more"),
        ("min_power_w", 2.0, "at most max_power_w"),
    ],
)
def test_a_device_that_cannot_be_is_named(name: str, value: float, right: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} of device 0 is {value}, but must be .*{right}"):
        problem(**{**WHOLE, name: value}).solve()


# ── The print ────────────────────────────────────────────────────────────────


def test_algorithm_2_as_printed_agrees_where_no_minimum_binds() -> None:
    printed, ours = printed_algorithm2(problem(), precision=1e-12), problem().solve()
    np.testing.assert_allclose(printed.share, ours.share, rtol=1e-6)


def test_algorithm_2_as_printed_uses_more_than_the_band_where_a_minimum_binds() -> None:
    tight = problem(payload_bits=np.full(3, 3e6), gain=np.array([1e-9, 1e-11, 1e-11]), weight=np.array([1, 1, 1e-9]))
    printed, ours = printed_algorithm2(tight, precision=1e-12), tight.solve()
    assert printed.share.sum() > 1.05 and not printed.feasible
    assert "more than the whole band" in str(printed.status)
    assert ours.feasible and ours.share.sum() <= 1 + 1e-12


def test_the_printed_tolerance_is_meaningless_at_small_multipliers() -> None:
    """At the paper's settings μ is about 1e-7: an absolute precision of 1e-6 stops before the search starts."""
    easy = problem(payload_bits=np.full(3, 20480.0), gain=np.array([1e-9, 1e-8, 1e-7]))
    printed, ours = printed_algorithm2(easy, precision=1e-6), easy.solve()
    assert ours.multiplier < 1e-6
    assert abs(printed.share.sum() - 1) > 0.1


def test_the_printed_rule_for_empty_queues_sends_at_full_power() -> None:
    printed, ours = printed_rule(*parts(problem(weight=np.zeros(3)))), problem(weight=np.zeros(3)).solve()
    np.testing.assert_allclose(printed.power_w, 1.0, rtol=1e-9)
    assert printed.energy_j.sum() > 10 * ours.energy_j.sum()
    np.testing.assert_array_equal(printed_rule(*parts(problem())).share, problem().solve().share)


# ── What the answer says ─────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "printed", "value"),
    [
        ("slowest_s", None, 2.0),
        ("static_power_w", 0.0, 0.02),
        ("circuit_power_w", 0.0, 0.1),
        ("amplifier_efficiency", 1.0, 0.5),
        ("min_power_w", 0.0, 1e-4),
    ],
)
def test_one_word_on_the_device_asks_for_the_whole_device(name: str, printed: float | None, value: float) -> None:
    fixed = problem(fastest_s=0.2, work_j_s2=0.01)
    assert fixed.uplink().device.is_paper_model and fixed.solve().compute_time_s is None
    of_one_device = np.array([0.2 if printed is None else printed] * 2 + [value])
    for word in (value, of_one_device):
        stated = replace(fixed, **{name: word})
        clock_s = stated.solve().compute_time_s
        assert not stated.uplink().device.is_paper_model and clock_s is not None
        slowed = np.broadcast_to(word, 3) > 0.2 if name == "slowest_s" else np.zeros(3, bool)
        np.testing.assert_array_equal(clock_s > 0.2, slowed)
        np.testing.assert_allclose(clock_s[~slowed], 0.2, rtol=1e-12)


def test_half_the_amplifier_costs_twice_the_joules_for_the_same_shares() -> None:
    ours, poor = problem().solve(), problem(fastest_s=0.2, amplifier_efficiency=0.5).solve()
    np.testing.assert_allclose(poor.share, ours.share, rtol=1e-6)
    np.testing.assert_allclose(poor.energy_j, 2 * ours.energy_j, rtol=1e-6)
    np.testing.assert_allclose(poor.upload_time_s, problem().upload_time_s, rtol=1e-6)


def test_an_answer_adds_up() -> None:
    stated = problem(weight=np.array([2.0, 0.0, 3.0]))
    best = stated.solve()
    assert best.objective == pytest.approx(2 * best.energy_j[0] + 3 * best.energy_j[2], rel=1e-14)
    np.testing.assert_allclose(best.power_w * best.upload_time_s, best.energy_j, rtol=1e-14)
    np.testing.assert_array_equal(best.upload_time_s, stated.upload_time_s)
    assert best.multiplier > 0 and best.compute_time_s is None


def test_what_does_not_fit_has_no_numbers_and_a_free_band_no_price() -> None:
    stuck = problem(gain=np.array([1e-9, 0.0, 1e-12])).solve()
    assert np.isnan(stuck.multiplier) and np.isnan(stuck.residual) and stuck.objective == np.inf
    for values in (stuck.share, stuck.power_w, stuck.energy_j, stuck.upload_time_s):
        assert values.tolist() == [0, 0, 0]
    assert problem(payload_bits=np.zeros(3)).solve().multiplier == 0


def test_a_channel_so_good_that_joules_vanish_leaves_the_least_shares() -> None:
    """a = B N₀ T / h is 0 in floating point: no device's share saves anything, and the band has no price."""
    superb = {"gain": np.full(3, 1e165), "noise_w_per_hz": 1e-165, "max_power_w": np.full(3, 1e-30)}
    best = problem(**superb, share_floor=np.array([0.5, 0.1, 0.0])).solve()
    assert best.feasible and best.multiplier == best.residual == best.objective == 0
    assert best.share[0] == 0.5 and best.share[1] == 0.1 and 0 < best.share[2] < 0.1


@pytest.mark.parametrize(
    ("last", "feasible"), [(0.25, True), (0.25 + 0.9e-12, True), (0.25 + 1.5e-12, False), (0.26, False)]
)
def test_least_shares_may_exceed_the_band_by_rounding_alone(last: float, feasible: bool) -> None:
    best = problem(share_floor=np.array([0.5, 0.25, last])).solve()
    assert bool(best.feasible) == feasible
    if feasible:
        np.testing.assert_allclose(best.share, [0.5, 0.25, 0.25], rtol=1e-11)


@pytest.mark.parametrize(
    ("floors", "code", "device"),
    [
        ([1.0, 0.5, 0.0], "crowded", 0),
        ([0.5, 1.0 + 1e-12, 0.0], "crowded", 1),
        ([0.3, 1.0 + 3e-12, 0.0], "floor_above_band", 1),
        ([0.3, 2.0, 3.0], "floor_above_band", 1),
        ([0.4, 0.5, 0.3], "crowded", 1),
    ],
)
def test_the_first_device_to_blame_is_named(floors: list[float], code: str, device: int) -> None:
    status = problem(payload_bits=np.full(3, 1e4), share_floor=np.array(floors)).solve().status
    assert isinstance(status, Status) and (status.code, dict(status.devices)) == (code, {"crowded": (device,)})
    if code == "crowded":
        assert status.facts == pytest.approx({"devices": 3, "total": sum(floors), "largest": max(floors)}, rel=1e-3)
    else:
        assert status.facts == {"share_floor": floors[device]}


def test_of_several_late_or_deaf_devices_the_first_is_named() -> None:
    late = problem(upload_time_s=np.array([1.0, -1.0, -2.0])).solve().status
    assert late == Status("past_deadline", {"past_deadline": (1,)}, {"upload_time_s": -1.0})
    assert problem(gain=np.array([1e-9, 0.0, 0.0])).solve().status.devices == {"out_of_reach": (1,)}


def test_least_shares_that_somebody_else_worked_out_do_not_make_a_late_device_able() -> None:
    uplink, weight, _ = parts(problem(upload_time_s=np.array([1.0, 0.0, 0.8])))
    late = solve_shares(uplink, weight, np.full(3, 0.1))
    assert not late.feasible and late.status.code == "past_deadline" and late.share.sum() == 0


def test_a_least_share_of_the_whole_band_may_exceed_it_by_rounding() -> None:
    alone = {name: np.asarray(getattr(problem(), name))[:1] for name in _PER_DEVICE}
    assert problem(**alone, share_floor=1.0 + 1e-12).solve().feasible


def test_all_devices_are_counted() -> None:
    uplink, weight, floor = parts(problem(share_floor=np.full(3, 0.4)))
    assert solve_shares(uplink, weight, floor).status.facts["devices"] == 3


# ── More of the input ────────────────────────────────────────────────────────


def test_limits_of_a_whole_device_may_be_met_exactly() -> None:
    assert problem(**{**WHOLE, "slowest_s": 0.2, "amplifier_efficiency": 1.0, "min_power_w": 0.0}).solve().feasible
    assert problem(**{**WHOLE, "min_power_w": 1.0, "max_power_w": np.ones(3)}).solve().residual < np.inf


def test_plain_numbers_are_not_a_list_of_devices() -> None:
    with pytest.raises(ConfigError, match=r"^gain is \(\), but must be an array with one entry for each"):
        problem(**dict.fromkeys(_PER_DEVICE, 1.0)).solve()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gain": np.array([1.0, -2.0, -3.0])}, r"^gain of device 1 is -2\.0"),
        ({**WHOLE, "min_power_w": np.array([0.0, 0.0, 1.01])}, r"^min_power_w of device 2 is 1\.01"),
        ({**WHOLE, "fastest_s": -1.0}, r"^fastest_s of device 0 is -1\.0"),
        ({**WHOLE, "static_power_w": np.inf}, r"^static_power_w of device 0 is inf"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        problem(**changes).solve()
