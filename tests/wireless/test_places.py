"""Rician fading, shadowing and random waypoint against what is known of their distributions."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from kfl.core.errors import ConfigError
from kfl.core.randomness import stream
from kfl.wireless import MOBILITIES, Cell, CellConfig, Rayleigh, Rician, Waypoint
from kfl.wireless.channel import path_gain
from kfl.wireless.mobility import Motion, NoMobility
from kfl.wireless.shadowing import surroundings

MANY = 20_000


# ── Rician fading ────────────────────────────────────────────────────────────


@pytest.mark.parametrize("k_factor_db", [-3.0, 6.0, 15.0])
@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_rician_amplitudes_are_rices(k_factor_db: float, rho: float) -> None:
    """SciPy's Rice distribution with b = ν/σ = √(2K), scaled to a mean power of 1."""
    cell = CellConfig(fading=Rician(k_factor_db=k_factor_db), fading_correlation=rho)
    amplitude = np.abs(cell.channel.fading(cell, 4, 12, MANY).coefficient)
    k = 10 ** (k_factor_db / 10)
    rice = stats.rice(np.sqrt(2 * k), scale=np.sqrt(1 / (2 * (k + 1))))
    assert rice.moment(2) == pytest.approx(1.0)
    assert stats.kstest(amplitude, rice.cdf).pvalue > 1e-3
    assert amplitude.mean() == pytest.approx(rice.mean(), rel=0.01)
    # The variance of a Rician power of mean 1 is (2K + 1) / (K + 1)².
    assert (amplitude**2).var() == pytest.approx((2 * k + 1) / (k + 1) ** 2, rel=0.06)


def test_without_a_line_of_sight_it_is_rayleigh_fading() -> None:
    rayleigh = CellConfig(fading=Rayleigh(), fading_correlation=0.5)
    rician = dataclasses.replace(rayleigh, fading=Rician(k_factor_db=-100.0))
    one, other = (cell.channel.fading(cell, 3, 6, 50).coefficient for cell in (rayleigh, rician))
    np.testing.assert_allclose(other, one, atol=1e-4)


def test_scattered_paths_remember_and_the_line_of_sight_stays() -> None:
    cell = CellConfig(fading=Rician(k_factor_db=3.0), fading_correlation=0.8)
    one, two = (cell.channel.fading(cell, 0, t, MANY).coefficient for t in (3, 5))
    share = 1 / (1 + 10**0.3)
    covariance = np.mean((two - two.mean()) * (one - one.mean()).conj())
    assert covariance.real == pytest.approx(share * 0.8**2, abs=0.02)
    assert one.mean() == pytest.approx(np.sqrt(1 - share), abs=0.02)


def test_the_servers_error_about_a_rician_channel() -> None:
    """The true gain has the mean that the server expects, and the variance of a Rician power around it."""
    error, k = 0.1, 4.0
    cell = CellConfig(fading=Rician(k_factor_db=10 * np.log10(k)), channel_error=error, reference_gain_db=0.0)
    start_m = np.tile([1.0, 0.0], (2 * MANY, 1))
    gains = cell.channel.gains(cell, 2, 0, start_m)
    assert gains.true_gain.mean() == pytest.approx(1.0, rel=0.02)
    assert gains.known_gain.mean() == pytest.approx(1.0, rel=0.02)
    slope, intercept = np.polyfit(gains.known_gain, gains.true_gain, 1)
    assert slope == pytest.approx(1.0, abs=0.03) and intercept == pytest.approx(0.0, abs=0.03)
    # Given the estimate, |ĝ + e|² has variance σ⁴ + 2 σ² |ĝ|²; |ĝ|² = known − σ².
    expected = np.mean(error**2 + 2 * error * (gains.known_gain - error))
    assert (gains.true_gain - gains.known_gain).var() == pytest.approx(expected, rel=0.04)


def test_a_server_that_knows_the_line_of_sight_alone() -> None:
    k = 4.0
    cell = CellConfig(fading=Rician(k_factor_db=10 * np.log10(k)), channel_error=1 / (k + 1) - 1e-12)
    known = cell.channel.known_power(cell, 0, 0, cell.channel.fading(cell, 0, 0, 5).coefficient)
    np.testing.assert_allclose(known, 1.0, atol=1e-4)
    half = CellConfig(fading=Rician(k_factor_db=0.0), channel_error=0.5)  # exactly all that is scattered
    known = half.channel.known_power(half, 0, 0, half.channel.fading(half, 0, 0, 5).coefficient)
    np.testing.assert_allclose(known, 1.0, rtol=1e-12)
    with pytest.raises(ConfigError, match=r"channel_error is 0.3, but must be at most 0.2, the variance of the scatt"):
        dataclasses.replace(cell, channel_error=0.3).validate()


# ── Shadowing ────────────────────────────────────────────────────────────────


def test_a_shadow_is_normal_in_decibels_and_stays_with_a_device_that_stays() -> None:
    cell = CellConfig(shadowing_db=8.0, fading="none")
    start_m = np.tile([100.0, 0.0], (MANY, 1))
    first, later = (cell.channel.gains(cell, 5, t, start_m) for t in (0, 7))
    assert (first.true_gain == later.true_gain).all() and (first.known_gain == first.true_gain).all()
    shadow_db = 10 * np.log10(first.true_gain / path_gain(cell, np.array([100.0])))
    assert stats.kstest(shadow_db / 8.0, "norm").pvalue > 1e-3
    assert not first.fading.memory, "nothing to remember"


def test_half_a_decibel_of_shadowing_is_shadowing() -> None:
    cell = CellConfig(shadowing_db=0.5, fading="none")
    start_m = np.tile([100.0, 0.0], (50, 1))
    gain_db = 10 * np.log10(cell.channel.gains(cell, 5, 0, start_m).true_gain)
    assert gain_db == pytest.approx(-70.0 + surroundings(cell, 5, 0, start_m).shadow_db)
    assert 0.3 < gain_db.std() < 0.7


@dataclasses.dataclass(frozen=True)
class _Straight(NoMobility):
    """Every device goes 10 m to the east in each round."""

    stays = False

    def move(self, cell, seed, round_index, start_m, previous=None):
        return Motion(round_index, start_m + np.array([10.0 * round_index, 0.0]))


@pytest.mark.parametrize("distance_m", [10.0, 50.0])
def test_shadowing_is_correlated_along_the_way_as_gudmundson_says(distance_m: float) -> None:
    cell = CellConfig(shadowing_db=6.0, shadowing_distance_m=distance_m, mobility=_Straight())
    start_m, state, seen = np.zeros((MANY, 2)), None, []
    for t in range(6):
        state = surroundings(cell, 1, t, start_m, state)
        seen.append(state.shadow_db)
    for t in range(6):
        assert seen[t].std() == pytest.approx(6.0, rel=0.02)
        correlation = np.corrcoef(seen[0], seen[t])[0, 1]
        assert correlation == pytest.approx(np.exp(-10.0 * t / distance_m), abs=0.025)


def test_whether_devices_move_or_stay_they_start_with_the_same_shadows() -> None:
    start_m = np.zeros((20, 2))
    moving = CellConfig(shadowing_db=1.0, mobility=_Straight())
    staying = dataclasses.replace(moving, mobility="none")
    first = surroundings(moving, 2, 0, start_m).shadow_db
    assert (first == surroundings(staying, 2, 0, start_m).shadow_db).all()
    assert (first == surroundings(staying, 2, 9, start_m).shadow_db).all()
    assert (first != surroundings(moving, 2, 1, start_m).shadow_db).all()


def test_devices_have_shadows_of_their_own() -> None:
    shadow_db = surroundings(CellConfig(shadowing_db=6.0), 3, 0, np.zeros((MANY, 2))).shadow_db
    assert abs(np.corrcoef(shadow_db[:-1], shadow_db[1:])[0, 1]) < 0.03


# ── Random waypoint ──────────────────────────────────────────────────────────


def walks(model: Waypoint, rounds: int, devices: int, **changes: float):
    """Places of every round, (rounds, devices, 2)."""
    cell = CellConfig(mobility=model, **changes)
    start_m, motion, found = Cell.build(cell, devices, seed=6).position_m, None, []
    for t in range(rounds):
        motion = model.move(cell, 6, t, start_m, motion)
        found.append(motion.position_m)
    return np.array(found)


def test_devices_walk_straight_at_their_speed() -> None:
    places = walks(Waypoint(min_speed_m_per_s=2.0, max_speed_m_per_s=5.0), 200, 100, radius_m=2000.0)
    steps = np.diff(places, axis=0)
    speed = np.hypot(steps[..., 0], steps[..., 1])
    assert speed.max() <= 5.0 + 1e-9, "no device is faster, corners only make steps shorter"
    straight = np.abs(speed[1:] - speed[:-1]) < 1e-9
    assert straight.mean() > 0.98
    assert speed[1:][straight].min() >= 2.0 - 1e-9


def walked_by_hand(seed: int, device: int, start_m, model: Waypoint, cell: CellConfig, time_s: float):
    """One device's walk as a plain loop over its legs."""
    here, clock, leg = np.array(start_m), 0.0, 0
    while True:
        u, v, w = stream(seed, "waypoint", leg).random((device + 1, 3))[device]
        inner, outer = cell.min_distance_m, cell.radius_m
        radius = np.sqrt(inner**2 + (outer**2 - inner**2) * u)
        target = radius * np.array([np.cos(2 * np.pi * v), np.sin(2 * np.pi * v)])
        speed = model.min_speed_m_per_s + (model.max_speed_m_per_s - model.min_speed_m_per_s) * w
        length = np.hypot(*(target - here))
        if clock + length / speed > time_s:
            return here + (target - here) / length * speed * (time_s - clock)
        clock += length / speed + model.pause_s
        if clock > time_s:
            return target
        here, leg = target, leg + 1


@pytest.mark.parametrize("pause_s", [0.0, 90.0])
def test_a_walk_is_the_one_a_plain_loop_walks(pause_s: float) -> None:
    model = Waypoint(min_speed_m_per_s=1.0, max_speed_m_per_s=9.0, pause_s=pause_s)
    places = walks(model, 60, 8, round_period_s=35.0, radius_m=300.0, min_distance_m=1.0)
    cell = CellConfig(mobility=model, radius_m=300.0, min_distance_m=1.0)
    for device in range(8):
        for t in range(60):
            expected = walked_by_hand(6, device, places[0, device], model, cell, 35.0 * t)
            if np.hypot(*expected) > 1.5:  # else it walks around the mast
                np.testing.assert_allclose(places[t, device], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("start", "place"),
    [
        ((0.0, 0.0), (2.0, 0.0)),  # at the mast itself there is no direction: any will do, and it is always this one
        ((0.3, 0.4), (1.2, 1.6)),
        ((0.0, -1.5e-12), (0.0, -2.0)),
        ((-2.0, 0.0), (-2.0, 0.0)),
        ((30.0, -40.0), (30.0, -40.0)),
    ],
)
def test_who_is_too_near_stands_beside_the_mast(start, place) -> None:
    cell = CellConfig(mobility=Waypoint(), min_distance_m=2.0)
    for others in ([], [[50.0, 0.0]], [[0.1, 0.0]]):
        found = cell.movement.move(cell, 0, 0, np.array([start, *others])).position_m
        np.testing.assert_allclose(found[0], place, rtol=1e-12, atol=1e-12)


def test_a_fleet_of_another_size_walks_from_the_start() -> None:
    """The legs of a fleet of four are no use for one of three."""
    cell = CellConfig(mobility=Waypoint(), round_period_s=100.0)
    start_m = Cell.build(cell, 4, 0).position_m
    four = cell.movement.move(cell, 0, 5, start_m)
    three = cell.movement.move(cell, 0, 9, start_m[:3], four).position_m
    assert (three == cell.movement.move(cell, 0, 9, start_m[:3]).position_m).all()


def test_a_walk_goes_on_from_the_leg_that_it_is_given() -> None:
    """One that lacks a part is walked from the start."""
    cell = CellConfig(mobility=Waypoint(min_speed_m_per_s=1.0, max_speed_m_per_s=1.0), round_period_s=1.0)
    start_m = Cell.build(cell, 2, 0).position_m
    motion = cell.movement.move(cell, 0, 3, start_m)
    legs = {**motion.memory, "from_m": np.zeros((2, 2)), "to_m": np.array([[100.0, 0.0], [0.0, 100.0]])}
    legs |= {"begin_s": np.zeros(2), "walk_s": np.full(2, 100.0), "end_s": np.full(2, 100.0)}
    for t in (3, 4, 50):
        found = cell.movement.move(cell, 0, t, start_m, Motion(3, motion.position_m, legs)).position_m
        assert found == pytest.approx(np.array([[t, 0.0], [0.0, t]]))
    for gone in legs:
        left = {name: array for name, array in legs.items() if name != gone}
        found = cell.movement.move(cell, 0, 4, start_m, Motion(3, motion.position_m, left)).position_m
        assert (found == cell.movement.move(cell, 0, 4, start_m).position_m).all()


def test_no_leg_is_shorter_than_a_nanosecond() -> None:
    """One of no length would last no time, for ever."""
    cell = CellConfig(mobility=Waypoint(), radius_m=1e-12, min_distance_m=1e-12, deadline_s=1e-12)
    cell.validate()
    legs = cell.movement.move(cell, 0, 1, np.full((5, 2), 1e-12)).memory
    assert legs["walk_s"].tolist() == legs["end_s"].tolist() == [1e-9] * 5


def test_the_defaults_are_a_walk_without_pauses() -> None:
    walk = Waypoint()
    assert (walk.min_speed_m_per_s, walk.max_speed_m_per_s, walk.pause_s) == (0.5, 1.5, 0.0)
    assert Rician().k_factor_db == 9.0
    assert [name for name, cls in MOBILITIES.items() if cls.stays] == ["none"]


def test_the_mean_leg_of_a_disc_and_where_walkers_are_in_the_long_run() -> None:
    """Two random points of a disc are 128 R / (45 π) apart on average.

    For the radius in the long run: Hyytiä, Lassila and Virtamo, "Spatial node distribution of the random waypoint
    mobility model with applications", IEEE Transactions on Mobile Computing 5(6), 2006.
    """
    model, radius_m = Waypoint(min_speed_m_per_s=1.0, max_speed_m_per_s=1.0), 100.0
    cell = CellConfig(mobility=model, radius_m=radius_m, min_distance_m=1e-6)
    start_m = Cell.build(cell, 10_000, seed=1).position_m
    at = 6000.0
    motion = model.move(dataclasses.replace(cell, round_period_s=at), 1, 1, start_m)
    legs = motion.memory["number"].mean()
    assert at / legs == pytest.approx(128 * radius_m / (45 * np.pi), rel=0.02)
    r = np.hypot(*motion.position_m.T) / radius_m
    known = stats.kstest(r, lambda r: 12 / 73 * (27 / 2 * r**2 - 35 / 4 * r**4 + 8 / 6 * r**6))
    assert known.pvalue > 1e-3


def test_all_together_is_the_product_of_its_parts() -> None:
    parts = {
        "fading": Rician(k_factor_db=5.0),
        "shadowing_db": 6.0,
        "mobility": Waypoint(max_speed_m_per_s=20.0),
        "round_period_s": 10.0,
    }
    cell = CellConfig(**parts)
    start_m = Cell.build(cell, 12, seed=3).position_m
    together = cell.channel.gains(cell, 3, 5, start_m)
    around = surroundings(cell, 3, 5, start_m)
    fading = cell.channel.fading(cell, 3, 5, 12).coefficient
    distance_m = np.hypot(*around.motion.position_m.T)
    expected = path_gain(cell, distance_m) * 10 ** (around.shadow_db / 10) * np.abs(fading) ** 2
    np.testing.assert_allclose(together.true_gain, expected, rtol=1e-12)
    assert (together.position_m == around.motion.position_m).all()
