"""What an address (seed, purpose, round) draws stays what it is: runs that were published can be repeated.

Distributions are tested elsewhere; here a few draws are kept as they were when results were published.
"""

import numpy as np
import pytest

from kfl.wireless import Cell, CellConfig, Rayleigh, Rician, SolarHarvest, Waypoint
from kfl.wireless.channel import circular_normal
from kfl.wireless.shadowing import Surroundings, surroundings


def test_a_complex_draw():
    drawn = circular_normal(7, "fading", 2, devices=2)
    expected = [-0.903732939524117 + 0.14486131580384776j, 0.8246825443276617 - 0.07856985156122195j]
    assert drawn == pytest.approx(np.array(expected), rel=1e-9)


@pytest.mark.parametrize(
    ("model", "true_gain", "known_gain"),
    [
        (
            Rayleigh(),
            [0.6356869767675339, 1.0806037891753533, 2.0802444672243054],
            [0.4337995084714008, 0.3452493709535752, 1.2057105286401477],
        ),
        (
            Rician(k_factor_db=3.0),
            [0.13171037674783606, 1.9221613369308808, 2.4998413720480657],
            [0.8478134671143558, 0.6633927389807204, 1.270118546612993],
        ),
    ],
)
def test_fading_and_what_the_server_knows_of_it(model, true_gain, known_gain):
    cell = CellConfig(fading=model, channel_error=0.2, reference_gain_db=0.0, fading_correlation=0.5)
    gains = cell.channel.gains(cell, seed=7, round_index=2, start_m=np.tile([1.0, 0.0], (3, 1)))
    assert gains.true_gain == pytest.approx(true_gain, rel=1e-9)
    assert gains.known_gain == pytest.approx(known_gain, rel=1e-9)


def test_walks_and_shadows():
    cell = CellConfig(
        fading="none",
        shadowing_db=6.0,
        mobility=Waypoint(max_speed_m_per_s=20.0),
        round_period_s=30.0,
        reference_gain_db=0.0,
    )
    gains = cell.channel.gains(cell, 7, 4, np.array([[100.0, 0.0], [0.0, 200.0], [30.0, 40.0]]))
    places = [
        [264.57553669755987, -68.59920999878548],
        [99.76159405259978, 184.00495524691488],
        [236.0545678001114, 62.792686111664864],
    ]
    assert gains.position_m == pytest.approx(np.array(places), rel=1e-9)
    expected_db = [-40.15595554990352, -45.750062214341476, -55.42094831807308]
    assert 10 * np.log10(gains.true_gain) == pytest.approx(expected_db, rel=1e-9)


def test_places_and_processors():
    cell = Cell.build(CellConfig(), 3, seed=7)
    places = [
        [98.02565510582562, -212.43035710787706],
        [-160.19597087805258, 270.15741855964626],
        [12.987830623588227, -341.713837665811],
    ]
    assert cell.position_m == pytest.approx(np.array(places), rel=1e-9)
    assert cell.hardware.cpu_hz.tolist() == [1.12e9, 1.12e9, 1.2e9]


def test_panels_and_clouds():
    sun = SolarHarvest(worst_panel=0.3, clouds=0.7)
    assert sun.panels(7, 3) == pytest.approx([0.6194091715187565, 0.6629284940324549, 0.45452975890732883])
    days = [sun.clearness(7, day) for day in (-1, 0, 1)]
    assert days == pytest.approx([0.41780305681735475, 0.8103692717320271, 0.8649868398508007])


def test_a_channel_carries_places_and_shadows_into_the_next_round():
    """As arrays that a checkpoint can keep; a step from them is the step of the round, from where they say."""
    cell = CellConfig(shadowing_db=6.0, mobility=Waypoint(), round_period_s=60.0)
    start_m = Cell.build(cell, 4, 1).position_m
    fading = cell.channel.gains(cell, 1, 3, start_m).fading
    kept, asked = Surroundings.read(3, fading.memory), surroundings(cell, 1, 3, start_m)
    assert (kept.shadow_db == asked.shadow_db).all()
    assert (kept.motion.position_m == asked.motion.position_m).all()
    assert kept.motion.round == 3
    assert kept.motion.memory.keys() == asked.motion.memory.keys() != set()
    moved = {**fading.memory, "shadowing_db": kept.shadow_db + 20.0}
    assert (surroundings(cell, 1, 3, start_m, Surroundings.read(3, moved)).shadow_db == kept.shadow_db + 20.0).all()
    other = surroundings(cell, 1, 4, start_m, Surroundings.read(3, moved))
    plain = surroundings(cell, 1, 4, start_m)
    walked_m = np.hypot(*(plain.motion.position_m - kept.motion.position_m).T)
    assert other.shadow_db - plain.shadow_db == pytest.approx(20.0 * np.exp(-walked_m / 50.0))
    for gone in ("motion.position_m", "shadowing_db"):
        left = {name: array for name, array in fading.memory.items() if name != gone}
        assert Surroundings.read(3, left) is None
