"""The allocator: optimality, invariances, edges, and bad input. See also test_against_cvxpy."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from kfl.core.errors import ConfigError
from kfl.scheduling.allocation import AllocationProblem, _residual, _shares, allocate, share_band
from kfl.scheduling.as_printed import printed_algorithm2, printed_rule
from kfl.scheduling.curve import UploadCurve
from kfl.scheduling.status import Status
from tests.reference.convex_solver import instances


def problem(**changes: object) -> AllocationProblem:
    """Three devices on 1 MHz, the last one far away."""
    base = AllocationProblem(
        bandwidth_hz=1e6,
        noise_w_per_hz=4e-21,
        gain=np.array([1e-9, 1e-11, 1e-12]),
        payload_bits=np.array([1e6, 5e5, 1e6]),
        upload_time_s=np.array([1.0, 0.5, 0.8]),
        max_power_w=np.ones(3),
        weight=np.array([1.0, 0.1, 3.0]),
    )
    return replace(base, **changes)


def curves_of(stated: AllocationProblem) -> SimpleNamespace:
    """a, b, weight and least share of every device."""
    uplink, weight, floor, _ = stated.checked()
    assert isinstance(uplink.curve, UploadCurve)
    return SimpleNamespace(scale_j=uplink.curve.scale_j, exponent=uplink.curve.exponent, weight=weight, floor=floor)


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
    best = allocate(two)
    assert best.objective <= costs.min() * (1 + 1e-12)
    assert best.share[0] == pytest.approx(grid[costs.argmin()], abs=2 * (high - low) / 200_000)


def test_three_devices_against_scipy() -> None:
    curves = curves_of(problem())
    best = allocate(problem())
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
    curves, best = curves_of(problem()), allocate(problem())
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
        best, curves = allocate(one), curves_of(one)
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
    best, curves = allocate(tight), curves_of(tight)
    assert best.share[2] == pytest.approx(curves.floor[2], rel=1e-12)
    assert best.power_w[2] == pytest.approx(1.0, rel=1e-9)
    assert best.residual < 1e-9 and best.share.sum() == pytest.approx(1.0, abs=1e-12)


# ── Invariances ──────────────────────────────────────────────────────────────

seeds = st.integers(0, 10_000)


def random_problem(seed: int, devices: int = 6) -> AllocationProblem:
    rng = np.random.default_rng(seed)
    return AllocationProblem(
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
    first, second = allocate(one), allocate(replace(one, weight=np.asarray(one.weight) * factor))
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
    first, second = allocate(one), allocate(scaled)
    np.testing.assert_allclose(second.share, first.share, rtol=1e-11)
    np.testing.assert_allclose(second.energy_j, first.energy_j * c, rtol=1e-10)


@given(seeds)
@settings(max_examples=40)
def test_scaling_gain_and_noise_together_changes_nothing(seed: int) -> None:
    one = random_problem(seed)
    scaled = replace(one, noise_w_per_hz=4e-18, gain=np.asarray(one.gain) * 1e3)
    np.testing.assert_allclose(allocate(scaled).share, allocate(one).share, rtol=1e-11)


@given(seeds)
@settings(max_examples=40)
def test_the_order_of_devices_does_not_matter(seed: int) -> None:
    one = random_problem(seed)
    order = np.random.default_rng(seed).permutation(6)
    names = ("gain", "payload_bits", "upload_time_s", "max_power_w", "weight")
    mixed = replace(one, **{name: np.asarray(getattr(one, name))[order] for name in names})
    np.testing.assert_allclose(allocate(mixed).share, allocate(one).share[order], rtol=1e-11)


@given(seeds)
@settings(max_examples=40)
def test_one_more_device_makes_the_band_dearer_and_nobody_richer(seed: int) -> None:
    one = random_problem(seed)
    fewer = allocate(replace(one, included=np.arange(6) < 5))
    more = allocate(one)
    assert more.multiplier > fewer.multiplier
    assert (more.share[:5] <= fewer.share[:5] * (1 + 1e-12)).all()
    assert fewer.share[5] == 0 and fewer.energy_j[5] == 0


def test_a_batch_is_its_problems_one_by_one() -> None:
    ones = [random_problem(seed) for seed in range(12)]
    names = ("gain", "payload_bits", "upload_time_s", "max_power_w", "weight")
    stacked = {name: np.array([getattr(one, name) for one in ones]).reshape(3, 4, 6) for name in names}
    included = np.random.default_rng(0).random((3, 4, 6)) < 0.7
    stacked["upload_time_s"][0, 1, 2] = -1.0
    included[0, 1, 2] = True
    stacked["gain"][~included] = np.nan  # what is not included is not looked at
    batch = allocate(AllocationProblem(bandwidth_hz=1e6, noise_w_per_hz=4e-21, included=included, **stacked))
    assert isinstance(batch.status, tuple) and batch.share.shape == (3, 4, 6)
    for index, one in enumerate(ones):
        at = np.unravel_index(index, (3, 4))
        mask = included[at]
        parts = {name: stacked[name][at][mask] for name in names}
        alone = allocate(replace(one, **parts))
        assert bool(alone.feasible) == bool(batch.feasible[at]) == (index != 1)
        np.testing.assert_allclose(batch.share[at][mask], alone.share, rtol=1e-12, atol=0)
        np.testing.assert_allclose(batch.objective[at], alone.objective, rtol=1e-12)
        assert (batch.share[at][~mask] == 0).all()
        assert batch.status[index].ok == (index != 1)


def test_bandwidth_may_differ_within_a_batch() -> None:
    one = random_problem(1)
    fields = {n: np.tile(getattr(one, n), (2, 1)) for n in ("gain", "payload_bits", "upload_time_s", "max_power_w")}
    batch = allocate(AllocationProblem(np.array([1e6, 2e6]), 4e-21, **fields, weight=np.tile(one.weight, (2, 1))))
    np.testing.assert_allclose(batch.share[1], allocate(replace(one, bandwidth_hz=2e6)).share, rtol=1e-12)


# ── Edges ────────────────────────────────────────────────────────────────────


def test_one_device_takes_the_whole_band() -> None:
    alone = problem(**{n: np.asarray(getattr(problem(), n))[:1] for n in _PER_DEVICE})
    best = allocate(alone)
    assert best.share == pytest.approx([1.0], abs=1e-15) and best.residual < 1e-12


def test_weight_zero_beside_others_gets_the_least_share_and_all_zero_minimises_energy() -> None:
    curves = curves_of(problem())
    mixed = allocate(problem(weight=np.array([1.0, 0.0, 1.0])))
    assert mixed.share[1] == pytest.approx(curves.floor[1], rel=1e-12)
    assert np.isfinite(mixed.objective) and mixed.residual < 1e-12
    free, ones = allocate(problem(weight=np.zeros(3))), allocate(problem(weight=np.ones(3)))
    np.testing.assert_array_equal(free.share, ones.share)
    assert free.objective == 0 and free.multiplier == ones.multiplier
    # The price of joules that nobody spends is no price.
    silent = {"payload_bits": np.array([0.0, 5e5, 1e6])}
    unused = allocate(problem(**silent, weight=np.array([1.0, 0.0, 0.0])))
    np.testing.assert_array_equal(unused.share, allocate(problem(**silent, weight=np.ones(3))).share)


def test_nothing_to_send_takes_nothing() -> None:
    best = allocate(problem(payload_bits=np.array([1e6, 0.0, 1e6])))
    assert best.share[1] == best.power_w[1] == best.energy_j[1] == 0
    assert best.share.sum() == pytest.approx(1.0)
    silent = allocate(problem(payload_bits=np.zeros(3)))
    assert silent.feasible and silent.objective == 0 and silent.residual == 0 and (silent.share == 0).all()
    nobody = allocate(problem(included=np.zeros(3, bool)))
    assert nobody.feasible and (nobody.share == 0).all()


def test_a_device_with_nothing_to_send_needs_no_channel() -> None:
    best = allocate(problem(payload_bits=np.array([1e6, 0.0, 1e6]), gain=np.array([1e-9, 0.0, 1e-12])))
    assert best.feasible and best.share[1] == 0


def test_share_floors_hold() -> None:
    best = allocate(problem(share_floor=np.array([0.5, 0.0, 0.0])))
    assert best.share[0] == 0.5 and best.residual < 1e-12
    full = allocate(problem(share_floor=np.array([0.5, 0.25, 0.25])))
    np.testing.assert_array_equal(full.share, [0.5, 0.25, 0.25])


def test_a_whole_model_from_150_devices() -> None:
    """FedAvg's payload at a size where the printed estimate overflows: plainly infeasible on 5 MHz, and
    solved without a warning where the band allows it."""
    n = 150
    rng = np.random.default_rng(0)
    heavy = AllocationProblem(
        bandwidth_hz=5e6,
        noise_w_per_hz=4e-21,
        gain=1e-3 * rng.exponential(size=n) / rng.uniform(50, 500, n) ** 2,
        payload_bits=np.full(n, 17.6e6),
        upload_time_s=rng.uniform(0.3, 0.6, n),
        max_power_w=np.ones(n),
        weight=rng.exponential(size=n),
    )
    assert not allocate(heavy).feasible
    wide = allocate(replace(heavy, bandwidth_hz=1e9))
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
    result = allocate(problem(**changes))
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
        assert not allocate(problem(upload_time_s=bad)).feasible  # too slow is infeasible, not wrong
        return
    with pytest.raises(ConfigError, match=f"^{name} of device 1 is {value}"):
        allocate(problem(**{name: bad}))


@pytest.mark.parametrize("name", ["bandwidth_hz", "noise_w_per_hz"])
@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_a_bad_band_is_named(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"^{name} is {value}, but must be a finite number greater than 0"):
        allocate(problem(**{name: value}))


def test_an_empty_list_of_devices_and_unequal_lengths_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one device"):
        allocate(problem(**{name: np.zeros(0) for name in _PER_DEVICE}))
    with pytest.raises(ConfigError, match="at least one device"):
        allocate(problem(**{name: np.zeros((2, 0)) for name in _PER_DEVICE}))
    with pytest.raises(ConfigError, match=r"gain \(2,\).*one common shape"):
        allocate(problem(gain=np.array([1e-9, 1e-9])))
    with pytest.raises(ConfigError, match=r"gain of device 2 in problem 1 is -1\.0"):
        gain = np.tile(np.asarray(problem().gain), (2, 1))
        gain[1, 2] = -1.0
        allocate(problem(gain=gain))
    with pytest.raises(ConfigError, match="bandwidth_hz"):
        allocate(problem(bandwidth_hz=np.array([1e6, 1e6])))


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
    best = allocate(stated)
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


def test_a_batch_of_whole_devices_is_its_problems_one_by_one() -> None:
    mask = np.array([[True] * 3, [True, False, True]])
    both, alone = allocate(problem(**WHOLE, included=mask)), allocate(problem(**WHOLE))
    np.testing.assert_allclose(both.share[0], alone.share, rtol=1e-9)
    np.testing.assert_allclose(both.compute_time_s[0], alone.compute_time_s, rtol=1e-9)
    assert both.feasible.all() and both.share[1, 1] == 0 and both.upload_time_s[1, 1] == 0


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("amplifier_efficiency", 0.0, "above 0 and at most 1"),
        ("amplifier_efficiency", 1.5, "above 0 and at most 1"),
        ("slowest_s", 0.1, "at least fastest_s"),
        ("circuit_power_w", -0.1, "0 or more"),
        ("static_power_w", np.nan, "0 or more"),
        ("work_j_s2", -1.0, "0 or more"),
        ("min_power_w", 2.0, "at most max_power_w"),
    ],
)
def test_a_device_that_cannot_be_is_named(name: str, value: float, right: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} of device 0 is {value}, but must be .*{right}"):
        allocate(problem(**{**WHOLE, name: value}))


# ── The print ────────────────────────────────────────────────────────────────


def test_algorithm_2_as_printed_agrees_where_no_minimum_binds() -> None:
    printed, ours = printed_algorithm2(problem(), precision=1e-12), allocate(problem())
    np.testing.assert_allclose(printed.share, ours.share, rtol=1e-6)


def test_algorithm_2_as_printed_uses_more_than_the_band_where_a_minimum_binds() -> None:
    tight = problem(payload_bits=np.full(3, 3e6), gain=np.array([1e-9, 1e-11, 1e-11]), weight=np.array([1, 1, 1e-9]))
    printed, ours = printed_algorithm2(tight, precision=1e-12), allocate(tight)
    assert printed.share.sum() > 1.05 and not printed.feasible
    assert "more than the whole band" in str(printed.status)
    assert ours.feasible and ours.share.sum() <= 1 + 1e-12


def test_the_printed_tolerance_is_meaningless_at_small_multipliers() -> None:
    """At the paper's settings μ is about 1e-7: an absolute precision of 1e-6 stops before the search starts."""
    easy = problem(payload_bits=np.full(3, 20480.0), gain=np.array([1e-9, 1e-8, 1e-7]))
    printed, ours = printed_algorithm2(easy, precision=1e-6), allocate(easy)
    assert ours.multiplier < 1e-6
    assert abs(printed.share.sum() - 1) > 0.1


def test_the_printed_rule_for_empty_queues_sends_at_full_power() -> None:
    printed, ours = printed_rule(*problem(weight=np.zeros(3)).checked()[:3]), allocate(problem(weight=np.zeros(3)))
    np.testing.assert_allclose(printed.power_w, 1.0, rtol=1e-9)
    assert printed.energy_j.sum() > 10 * ours.energy_j.sum()
    np.testing.assert_array_equal(printed_rule(*problem().checked()[:3]).share, allocate(problem()).share)


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
    assert fixed.printed_model and allocate(fixed).compute_time_s is None
    of_one_device = np.array([0.2 if printed is None else printed] * 2 + [value])
    for word in (value, of_one_device):
        stated = replace(fixed, **{name: word})
        clock_s = allocate(stated).compute_time_s
        assert not stated.printed_model and clock_s is not None
        slowed = np.broadcast_to(word, 3) > 0.2 if name == "slowest_s" else np.zeros(3, bool)
        np.testing.assert_array_equal(clock_s > 0.2, slowed)
        np.testing.assert_allclose(clock_s[~slowed], 0.2, rtol=1e-12)


def test_half_the_amplifier_costs_twice_the_joules_for_the_same_shares() -> None:
    ours, poor = allocate(problem()), allocate(problem(fastest_s=0.2, amplifier_efficiency=0.5))
    np.testing.assert_allclose(poor.share, ours.share, rtol=1e-6)
    np.testing.assert_allclose(poor.energy_j, 2 * ours.energy_j, rtol=1e-6)
    np.testing.assert_allclose(poor.upload_time_s, problem().upload_time_s, rtol=1e-6)


def test_an_answer_adds_up() -> None:
    stated = problem(weight=np.array([2.0, 0.0, 3.0]))
    best = allocate(stated)
    assert best.objective == pytest.approx(2 * best.energy_j[0] + 3 * best.energy_j[2], rel=1e-14)
    np.testing.assert_allclose(best.power_w * best.upload_time_s, best.energy_j, rtol=1e-14)
    np.testing.assert_array_equal(best.upload_time_s, stated.upload_time_s)
    assert best.multiplier > 0 and best.compute_time_s is None


def test_what_does_not_fit_has_no_numbers_and_a_free_band_no_price() -> None:
    stuck = allocate(problem(gain=np.array([1e-9, 0.0, 1e-12])))
    assert np.isnan(stuck.multiplier) and np.isnan(stuck.residual) and stuck.objective == np.inf
    for values in (stuck.share, stuck.power_w, stuck.energy_j, stuck.upload_time_s):
        assert values.tolist() == [0, 0, 0]
    assert allocate(problem(payload_bits=np.zeros(3))).multiplier == 0


def test_a_channel_so_good_that_joules_vanish_leaves_the_least_shares() -> None:
    """a = B N₀ T / h is 0 in floating point: nobody's share saves anything, and the band has no price."""
    superb = {"gain": np.full(3, 1e165), "noise_w_per_hz": 1e-165, "max_power_w": np.full(3, 1e-30)}
    best = allocate(problem(**superb, share_floor=np.array([0.5, 0.1, 0.0])))
    assert best.feasible and best.multiplier == best.residual == best.objective == 0
    assert best.share[0] == 0.5 and best.share[1] == 0.1 and 0 < best.share[2] < 0.1


@pytest.mark.parametrize(
    ("last", "feasible"), [(0.25, True), (0.25 + 0.9e-12, True), (0.25 + 1.5e-12, False), (0.26, False)]
)
def test_least_shares_may_exceed_the_band_by_rounding_alone(last: float, feasible: bool) -> None:
    best = allocate(problem(share_floor=np.array([0.5, 0.25, last])))
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
    status = allocate(problem(payload_bits=np.full(3, 1e4), share_floor=np.array(floors))).status
    assert isinstance(status, Status) and (status.code, dict(status.devices)) == (code, {"crowded": (device,)})
    if code == "crowded":
        assert status.facts == pytest.approx({"devices": 3, "total": sum(floors), "largest": max(floors)}, rel=1e-3)
    else:
        assert status.facts == {"share_floor": floors[device]}


def test_of_several_late_or_deaf_devices_the_first_is_named() -> None:
    late = allocate(problem(upload_time_s=np.array([1.0, -1.0, -2.0]))).status
    assert late == Status("past_deadline", {"past_deadline": (1,)}, {"upload_time_s": -1.0})
    assert allocate(problem(gain=np.array([1e-9, 0.0, 0.0]))).status.devices == {"out_of_reach": (1,)}


def test_each_problem_of_a_batch_has_its_own_reason() -> None:
    rows = {name: np.tile(getattr(problem(), name), (4, 1)) for name in _PER_DEVICE}
    rows["payload_bits"][1] = [1e6, 5e5, 4e7]
    rows["upload_time_s"][2, 0] = -0.5
    mask = np.ones((4, 3), bool)
    mask[3, 0] = False
    floors = np.zeros((4, 3))
    floors[3] = [9.0, 0.4, 0.7]
    stated = AllocationProblem(np.array([1e6, 2e6, 3e6, 1e6]), 4e-21, **rows, included=mask, share_floor=floors)
    best = allocate(stated)
    assert best.feasible.tolist() == [True, False, False, False] and isinstance(best.status, tuple)
    assert best.status[0].ok and best.status[2].facts == {"upload_time_s": -0.5}
    reached = np.log2(1 + 1e-12 / (2e6 * 4e-21))
    assert best.status[1].code == "out_of_reach" and best.status[1].devices == {"out_of_reach": (2,)}
    assert best.status[1].facts == pytest.approx({"needed": 4e7 / 2e6 / 0.8, "reached": reached}, rel=1e-12)
    assert best.status[3].devices == {"crowded": (2,)}
    assert best.status[3].facts == pytest.approx({"devices": 2, "total": 1.1, "largest": 0.7})
    assert np.isnan(best.multiplier).tolist() == np.isnan(best.residual).tolist() == [False, True, True, True]


def test_least_shares_that_somebody_else_worked_out_do_not_make_a_late_device_able() -> None:
    uplink, weight, _, _ = problem(upload_time_s=np.array([1.0, 0.0, 0.8])).checked()
    late = share_band(uplink, weight, np.full(3, 0.1))
    assert not late.feasible and late.status.code == "past_deadline" and late.share.sum() == 0


def test_where_every_least_share_binds_nothing_is_spread() -> None:
    alone = {name: np.asarray(getattr(problem(), name))[:1] for name in _PER_DEVICE}
    assert allocate(problem(**alone, share_floor=1.0 + 1e-12)).feasible
    uplink, _, floor, _ = problem(share_floor=np.full(3, 0.3)).checked()
    share = _shares(np.array([60.0]), uplink.rows().curve, np.zeros((1, 3)), np.maximum(floor, 0.3)[None])
    assert share.tolist() == [[0.3, 0.3, 0.3]]


def test_without_a_mask_all_devices_are_counted() -> None:
    uplink, weight, floor, _ = problem(share_floor=np.full(3, 0.4)).checked()
    assert share_band(uplink, weight, floor).status.facts["devices"] == 3


# ── The residual ─────────────────────────────────────────────────────────────


def _residual_at(
    share: list[float], log_price: float, log_weight: float | list[float] = 0.0, floor: float = 0.1
) -> float:
    """Of devices with E = θ (e^{1/θ} − 1)."""
    one = np.ones((1, len(share)))
    curves = UploadCurve.of(one, one)
    return float(
        _residual(np.array([log_price]), np.array([share]), curves, np.asarray(log_weight) + 0 * one, floor * one)[0]
    )


def test_the_residual_is_the_largest_violation() -> None:
    at_half = float(np.log(np.exp(2) + 1))  # G(2) = e² + 1
    assert _residual_at([0.5, 0.5], at_half) == pytest.approx(0, abs=1e-12)
    # A price that is 1 % too low or too high, where shares are free.
    assert _residual_at([0.5, 0.5], at_half - np.log(1.01)) == pytest.approx(0.01)
    assert _residual_at([0.5, 0.5], at_half + np.log(1.01)) == pytest.approx(1 - 1 / 1.01)
    # At its floor a device may want less, but not more.
    assert _residual_at([0.5, 0.5], at_half + 1.0, floor=0.5) == 0
    assert _residual_at([0.5, 0.5], at_half - np.log(1.5), floor=0.5) == pytest.approx(0.5)
    assert _residual_at([0.5, 0.5], -800.0) == np.inf
    # The whole band is used, and no more.
    assert _residual_at([0.5, 0.25], at_half + 9, floor=0.6) == pytest.approx(0.25)
    assert _residual_at([0.5, 0.5, 0.5], at_half) == pytest.approx(0.5)
    assert _residual_at([0.5, 0.25], at_half, log_weight=[0.0, -np.inf], floor=0.25) == pytest.approx(0.25)
    # Where nobody's joules have a price, band may be left.
    assert _residual_at([0.5, 0.25], -np.inf, log_weight=-np.inf) == 0
    assert _residual_at([0.5, 0.75], -np.inf, log_weight=-np.inf) == pytest.approx(0.25)


# ── More of the input ────────────────────────────────────────────────────────


def test_limits_of_a_whole_device_may_be_met_exactly() -> None:
    assert allocate(problem(**{**WHOLE, "slowest_s": 0.2, "amplifier_efficiency": 1.0, "min_power_w": 0.0})).feasible
    exact = problem(**WHOLE).checked()[0]
    assert replace(problem(**WHOLE), min_power_w=1.0).checked()[0].device.min_power_w.tolist() == [1.0] * 3
    assert exact.device.once_j == 0


def test_devices_without_a_say_are_not_looked_at() -> None:
    """Whatever is written of a device that is not included, the others share the band as if it were not there."""
    mask = np.array([True, False, True])
    strange = {name: np.array([value, np.nan, value]) for name, value in WHOLE.items()}
    whole, alone = (
        allocate(problem(**strange, included=mask)),
        allocate(problem(**WHOLE, **{name: np.asarray(getattr(problem(), name))[mask] for name in _PER_DEVICE})),
    )
    assert whole.share[1] == whole.energy_j[1] == 0
    np.testing.assert_allclose(whole.share[mask], alone.share, rtol=1e-9)


def test_plain_numbers_are_not_a_list_of_devices() -> None:
    with pytest.raises(ConfigError, match=r"^gain is \[\], but must be an array with one entry for each"):
        allocate(problem(**dict.fromkeys(_PER_DEVICE, 1.0)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gain": np.array([1.0, -2.0, -3.0])}, r"^gain of device 1 is -2\.0"),
        ({"gain": np.tile(np.array([1.0, 1.0, -1.0]), (1, 2, 1))}, r"^gain of device 2 in problem 0, 0 is -1\.0"),
        ({"bandwidth_hz": np.array([1e6, -4.0, 0.0])}, r"^bandwidth_hz is -4\.0"),
        ({"noise_w_per_hz": np.ones(2)}, r"^noise_w_per_hz is \(2,\), but must be .* batch shape \(\)"),
        ({"weight": np.ones((2, 3)), "bandwidth_hz": np.ones(3)}, r"^bandwidth_hz is \(3,\).* batch shape \(2,\)"),
        ({"included": np.ones(2, bool)}, "one common shape"),
        ({**WHOLE, "slowest_s": np.array([2.0, 0.19, 2.0])}, r"^slowest_s of device 1 is 0\.19"),
        ({**WHOLE, "min_power_w": np.array([0.0, 0.0, 1.01])}, r"^min_power_w of device 2 is 1\.01"),
        ({**WHOLE, "fastest_s": -1.0}, r"^fastest_s of device 0 is -1\.0"),
        ({**WHOLE, "static_power_w": np.inf}, r"^static_power_w of device 0 is inf"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        allocate(problem(**changes))
