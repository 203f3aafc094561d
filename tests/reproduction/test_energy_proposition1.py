"""When using all the time left is best, and the published table of what a participation costs."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfl.wireless import CellConfig
from reproduction.energy.proposition1 import curve_of, fastest_s, longest_gain, measure, table


@settings(max_examples=60)
@given(
    share=st.floats(1e-3, 1.0),
    bits=st.floats(1e3, 1e7),
    log_circuits=st.floats(-3, 0.5),
    efficiency=st.floats(0.1, 1.0),
    distance_db=st.one_of(st.floats(-15.0, -0.1), st.floats(0.1, 15.0)),
)
def test_all_the_time_left_is_best_below_this_gain_and_only_there(share, bits, log_circuits, efficiency, distance_db):
    """By the slope of the energy over the upload time, from a complex step."""
    config = CellConfig(
        circuit_power_w=10.0**log_circuits, amplifier_efficiency=efficiency, max_power_dbm=300.0, deadline_s=2.0
    )
    clock_hz = np.array([1.2e9])
    left_s = float(config.deadline_s - fastest_s(config, clock_hz)[0])
    band = share * config.bandwidth_hz
    if bits * np.log(2) / (band * left_s) > 300:
        return  # no radio sends so much
    gain = float(longest_gain(config, np.array([share]), bits, left_s)[0]) * 10.0 ** (distance_db / 10)

    def slope_w(time_s: float) -> float:
        """dE/dt, with the terms of E in watts of the circuits."""
        t = time_s * (1 + 1e-30j)
        watts = band * config.noise_w_per_hz / gain * np.expm1(bits * np.log(2) / (band * t))
        joules = t * (watts / efficiency + config.circuit_power_w)
        return float(joules.imag / (1e-30 * time_s)) / config.circuit_power_w

    upload_s = curve_of(config, clock_hz, np.array([gain]), bits, free_clock=False).operation(np.array([share]))[1][0]
    if distance_db < 0:
        assert slope_w(left_s) < 0 and upload_s == pytest.approx(left_s, rel=1e-12)
    else:
        assert slope_w(left_s) > 0 and upload_s < left_s and abs(slope_w(upload_s)) < 1e-6


def test_the_published_table_is_what_the_presets_give():
    assert Path("docs/results/presets.md").read_text() == table(measure())
