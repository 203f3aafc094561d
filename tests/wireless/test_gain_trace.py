"""Gains from a file: units, and every unit that cannot be right."""

import numpy as np
import pytest

from kfl.core.errors import ConfigError, TraceError
from kfl.wireless import Cell, CellConfig, GainTrace


def cell(folder, text: str, devices: int = 3, **changes) -> Cell:
    path = folder / "gains.csv"
    path.write_text(text)
    own = {name: changes.pop(name) for name in ("reference_power_dbm", "repeat_s", "max_gap_s") if name in changes}
    return Cell.build(CellConfig(fading=GainTrace(path=str(path), **own), **changes), devices, seed=0)


def test_three_ways_to_say_the_same(tmp_path) -> None:
    expected = [[1e-9, 1e-9, 1e-10], [1e-9, 1e-8, 1e-10]]
    ways = [
        ("time_s,device,gain_db\n0,*,-90\n0,2,-100\n2,1,-80\n", {"deadline_s": 2.0}),
        ("round,device,gain\n0,*,1e-9\n0,2,1e-10\n1,1,1e-8\n", {}),
        ("round,device,rsrp_dbm\n0,*,-75\n0,2,-85\n1,1,-65\n", {"reference_power_dbm": 15.0}),
    ]
    for text, changes in ways:
        made = cell(tmp_path, text, **changes)
        for t, gains in enumerate(expected):
            np.testing.assert_allclose(made.gains(t).true_gain, gains, rtol=1e-12)
            assert (made.gains(t).known_gain == made.gains(t).true_gain).all()
        assert made.link_state(1, 1e9, 2e4).uplink.gain == pytest.approx(expected[1])


def test_a_margin_lowers_what_the_server_plans_with(tmp_path) -> None:
    gains = cell(tmp_path, "round,device,gain\n0,*,1e-9\n", channel_margin_db=10.0).gains(0)
    assert gains.known_gain == pytest.approx(gains.true_gain / 10)


def test_the_broadcast_does_not_wait_for_a_device_that_is_not_heard(tmp_path) -> None:
    text = "round,device,gain\n0,*,1e-9\n0,1,0\n"
    link = cell(tmp_path, text, downlink_power_dbm=40.0, receive_power_w=1.0).link_state(
        0, 1e9, 2e4, broadcast_bits=2e4
    )
    other = "round,device,gain\n0,*,1e-9\n"
    heard = cell(tmp_path, other, downlink_power_dbm=40.0, receive_power_w=1.0).link_state(0, 1e9, 2e4, None, 2e4)
    assert 0 < link.reserved_s == heard.reserved_s and (link.uplink.upload_time_s == heard.uplink.upload_time_s).all()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("round,device,gain_db\n0,*,30\n", "gain_db is '30', but must be a gain in dB between -300 and 0"),
        ("round,device,gain_db\n0,*,0.5\n", "gain_db is '0.5', but must be a gain in dB between -300 and 0"),
        ("round,device,gain_db\n0,*,-300.5\n", "gain_db is '-300.5', but must be a gain in dB between -300 and 0"),
        ("round,device,gain\n0,*,-90\n", "gain is '-90', but must be a linear gain between 0 and 1; decibels belong"),
        ("round,device,gain\n0,*,1.5\n", "gain is '1.5', but must be a linear gain between 0 and 1"),
        ("round,device,rsrp_dbm\n0,*,5\n", "rsrp_dbm is '5', but must be a received power between -200 and 0 dBm"),
        ("round,device,rsrp_dbm\n0,*,-250\n", "rsrp_dbm is '-250', but must be a received power between -200 and"),
        ("round,device,snr\n0,*,5\n", "has no column gain_db or gain or rsrp_dbm; its columns are round, device, snr"),
    ],
)
def test_units_that_cannot_be_right(tmp_path, text: str, sentence: str) -> None:
    with pytest.raises(TraceError) as error:
        cell(tmp_path, text).gains(0)
    assert sentence in str(error.value) and "gains.csv" in str(error.value)


def test_a_reference_belongs_to_a_received_power_and_to_nothing_else(tmp_path) -> None:
    with pytest.raises(ConfigError, match="reference_power_dbm is None, but must be the base station's power per reso"):
        cell(tmp_path, "round,device,rsrp_dbm\n0,*,-90\n").gains(0)
    with pytest.raises(ConfigError, match=r"reference_power_dbm is 15.0, but must be left out"):
        cell(tmp_path, "round,device,gain_db\n0,*,-90\n", reference_power_dbm=15.0).gains(0)
    with pytest.raises(TraceError, match="rsrp_dbm is '-20', but must be a received power between -200 and -30 dBm"):
        cell(tmp_path, "round,device,rsrp_dbm\n0,*,-20\n", reference_power_dbm=-30.0).gains(0)


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("fading_correlation", {"fading_correlation": 0.5}),
        ("channel_error", {"channel_error": 0.1}),
        ("shadowing_db", {"shadowing_db": 3.0}),
        ("mobility", {"mobility": "waypoint"}),
    ],
)
def test_what_a_trace_cannot_be_combined_with(tmp_path, field: str, changes: dict) -> None:
    with pytest.raises(ConfigError) as error:
        cell(tmp_path, "round,device,gain\n0,*,1e-9\n", **changes)
    assert error.value.field == field


def test_a_trace_needs_a_file() -> None:
    with pytest.raises(ConfigError, match=r"fading.path is '', but must be the name of a CSV file"):
        CellConfig(fading="trace").validate()


def test_a_trace_repeats_and_refuses_gaps_as_it_is_told(tmp_path) -> None:
    text = "time_s,device,gain\n0,*,1e-9\n20,*,1e-8\n"
    made = cell(tmp_path, text, repeat_s=30.0, round_period_s=10.0)
    assert [made.gains(t).true_gain[0] for t in range(6)] == [1e-9, 1e-9, 1e-8] * 2
    assert cell(tmp_path, text, max_gap_s=20.0, round_period_s=10.0).gains(0).true_gain[0] == 1e-9
    with pytest.raises(TraceError, match="max_gap_s"):
        cell(tmp_path, text, max_gap_s=19.0, round_period_s=10.0).gains(0)


def test_a_trace_is_all_there_is(tmp_path) -> None:
    """No fading, nothing to remember, and devices stay where they were placed."""
    made = cell(tmp_path, "round,device,gain\n0,*,1e-9\n")
    gains = made.gains(2)
    assert gains.fading.coefficient.tolist() == [1, 1, 1] and gains.fading.coefficient.dtype == np.complex128
    assert gains.fading.round == 2 and not gains.fading.memory
    assert (gains.position_m == made.position_m).all()


@pytest.mark.parametrize(
    ("row", "gain"), [("gain_db\n0,*,0", 1.0), ("gain_db\n0,*,-300", 1e-30), ("gain\n0,*,1", 1.0), ("gain\n0,*,0", 0.0)]
)
def test_the_last_values_that_can_be_right(tmp_path, row: str, gain: float) -> None:
    assert cell(tmp_path, f"round,device,{row}\n").gains(0).true_gain == pytest.approx([gain] * 3, rel=1e-12)


def test_a_received_power_is_at_most_what_was_sent_and_at_most_0_dbm(tmp_path) -> None:
    for reference, highest in ((-30.0, -30.0), (15.0, 0.0)):
        text = "round,device,rsrp_dbm\n0,*,{}\n"
        gains = cell(tmp_path, text.format(highest), reference_power_dbm=reference).gains(0)
        assert gains.true_gain == pytest.approx([10 ** ((highest - reference) / 10)] * 3)
        with pytest.raises(TraceError, match=rf"between -200 and {highest:g} dBm"):
            cell(tmp_path, text.format(highest + 0.5), reference_power_dbm=reference).gains(0)
    assert cell(tmp_path, text.format(-200), reference_power_dbm=0.0).gains(0).true_gain == pytest.approx([1e-20] * 3)
    with pytest.raises(TraceError, match=r"between -200 and 0 dBm"):
        cell(tmp_path, text.format(0.5)).gains(0)
