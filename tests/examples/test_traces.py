"""The converters of public measurements, on files made here in their format, and the example traces."""

import importlib.util
import json
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from kfl.core.units import dbm_to_watt
from kfl.experiment import Experiment
from kfl.experiment.availability import AVAILABLE, open_traces
from kfl.wireless import Cell, CellConfig, GainTrace, HarvestTrace
from kfl.wireless.costs import uplink_rate
from kfl.wireless.trace import open_trace

FOLDER = Path(__file__).parents[2] / "examples" / "traces"


def program(name):
    """The main function of a converter."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module.main


@pytest.fixture(scope="module")
def fedscale():
    return program("fedscale")


@pytest.fixture(scope="module")
def ucc_5g():
    return program("ucc_5g")


# ── FedScale ─────────────────────────────────────────────────────────────────

BEHAVIOUR = {
    7: {"active": [1, 3, 6, 9], "inactive": [1, 4, 7, 10], "finish_time": 10, "duration": 3, "model": "a phone"},
    9: {"active": [0, 20], "inactive": [5, 60], "finish_time": 33, "duration": 5, "model": "another"},
    12: {"active": [], "inactive": [], "finish_time": 5, "duration": 0, "model": "off"},
}


def is_active(client, time_s: float) -> bool:
    """FedScale's rule: within a span of the time modulo finish_time."""
    now = time_s % client["finish_time"]
    return any(a <= now < b for a, b in zip(client["active"], client["inactive"], strict=True))


@pytest.mark.parametrize("dump", [pickle.dumps, lambda found: json.dumps(found).encode()], ids=["pickle", "json"])
def test_availability_of_fedscale(tmp_path, fedscale, capsys, dump) -> None:
    source, out = tmp_path / "client_behave_trace", tmp_path / "present.csv"
    source.write_bytes(dump(BEHAVIOUR))
    assert fedscale(["availability", str(source), "--seconds", "100", "--out", str(out)]) == 0
    assert "of 3 devices" in capsys.readouterr().out
    trace = open_trace(out, [AVAILABLE], 3, 1.0)
    for tenth in range(0, 1000, 5):
        expected = [is_active(client, tenth / 10) for client in BEHAVIOUR.values()]
        assert (trace.at(tenth / 10) > 0).tolist() == expected, tenth


def test_capacity_of_fedscale(tmp_path, fedscale) -> None:
    source, out, config = tmp_path / "client_device_capacity", tmp_path / "gains.csv", tmp_path / "clocks.toml"
    clients = {0: {"computation": 150.0, "communication": 8000.0}, 1: {"computation": 40.0, "communication": 60_000.0}}
    source.write_bytes(pickle.dumps(clients))
    words = ["capacity", str(source), "--out", str(out), "--flops-per-sample", "6e8", "--clocks", str(config)]
    assert fedscale(words) == 0
    experiment = Experiment.load(config)
    assert experiment.cell_config.cpu_frequencies_hz == pytest.approx((6e8 / 4 / 0.15, 6e8 / 4 / 0.04))
    cell = Cell.build(CellConfig(fading=GainTrace(path=str(out))), 2, seed=0)
    rate = uplink_rate(1.0, dbm_to_watt(23.0), cell.gains(0).true_gain, 20e6, dbm_to_watt(-174.0))
    np.testing.assert_allclose(rate, [8e6, 60e6], rtol=1e-9)


def test_a_pickle_that_would_run_something_is_refused(tmp_path, fedscale) -> None:
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "trapped"),)

    source = tmp_path / "client_behave_trace"
    source.write_bytes(pickle.dumps({0: Trap()}))
    with pytest.raises(SystemExit, match=r"cannot be read: it needs \w+.mkdir, and only plain dictionaries"):
        fedscale(["availability", str(source), "--seconds", "10", "--out", str(tmp_path / "out.csv")])
    assert [path.name for path in tmp_path.iterdir()] == ["client_behave_trace"]


@pytest.mark.parametrize(
    ("content", "words", "sentence"),
    [
        (b"not a pickle", [], "cannot be read"),
        (b"", [], "cannot be read"),
        (b"[]", [], "must hold one entry for each client"),
        (b'{"0": 3}', [], "must hold one entry for each client"),
        (json.dumps(BEHAVIOUR).encode(), ["--devices", "9"], "--devices is 9, but must be between 1 and 3"),
        (
            b'{"0": {"active": [1], "inactive": [2]}}',
            [],
            "finish_time of client 0 is None, but must be",
        ),
        (b'{"0": {"active": [1], "inactive": [], "finish_time": 5}}', [], "must be lists of the same length"),
        (b'{"0": {"active": ["a"], "inactive": [2], "finish_time": 5}}', [], "must hold seconds, 0 or more"),
    ],
)
def test_a_file_that_is_not_fedscales(tmp_path, fedscale, content, words, sentence) -> None:
    source = tmp_path / "client_behave_trace"
    source.write_bytes(content)
    with pytest.raises(SystemExit, match=sentence):
        fedscale(["availability", str(source), "--seconds", "10", "--out", str(tmp_path / "out.csv"), *words])
    assert not (tmp_path / "out.csv").exists()


def test_a_rate_that_no_channel_carries(tmp_path, fedscale) -> None:
    source = tmp_path / "client_device_capacity"
    source.write_bytes(pickle.dumps({0: {"computation": 1.0, "communication": 1e7}}))
    with pytest.raises(SystemExit, match=r"Client 0 sends 1e[+]10 bit/s, for which no channel is good enough"):
        fedscale(["capacity", str(source), "--out", str(tmp_path / "out.csv")])


# ── UCC 5G ───────────────────────────────────────────────────────────────────

HEADER = (
    "Timestamp,Longitude,Latitude,Speed,Operatorname,CellID,NetworkMode,RSRP,RSRQ,SNR,CQI,RSSI,DL_bitrate,UL_bitrate,"
    "State,PINGAVG,PINGMIN,PINGMAX,PINGSTDEV,PINGLOSS,CELLHEX,NODEHEX,LACHEX,RAWCELLID,NRxRSRP,NRxRSRQ\n"
)


def log_line(second: int, rsrp: str, mode: str = "5G") -> str:
    """A row so many seconds after one minute to midnight."""
    stamp = f"2019.11.28_23.59.{second:02d}" if second < 60 else f"2019.11.29_00.00.{second - 60:02d}"
    return f"{stamp},-8.38,51.93,0,B,12,{mode},{rsrp},-10,8.0,12,-,5000,60,D,-,-,-,-,-,C,A,B,1,-101,-11\n"


def test_sessions_of_the_5g_dataset(tmp_path, ucc_5g, capsys) -> None:
    one, two, out = tmp_path / "one.csv", tmp_path / "two.csv", tmp_path / "gains.csv"
    # The second row has no value; midnight passes; two rows in one second.
    one.write_text(HEADER + log_line(50, "-95") + log_line(51, "-") + log_line(52, "-97", "LTE") + log_line(62, "-99"))
    two.write_text(HEADER + log_line(1, "-") + log_line(3, "-80") + log_line(3, "-81") + log_line(4, "2147483647"))
    assert ucc_5g([str(one), str(two), "--out", str(out)]) == 0
    assert "5 rows of 2 devices" in capsys.readouterr().out
    assert (
        out.read_text() == "time_s,device,rsrp_dbm\n0.0,0,-95.0\n0.0,1,-80.0\n0.0,1,-81.0\n2.0,0,-97.0\n12.0,0,-99.0\n"
    )
    cell = Cell.build(CellConfig(fading=GainTrace(path=str(out), reference_power_dbm=12.0)), 2, seed=0)
    np.testing.assert_allclose(10 * np.log10(cell.gains(5).true_gain), [-109, -93])
    assert ucc_5g([str(one), "--mode", "LTE", "--out", str(out)]) == 0
    assert out.read_text().splitlines()[1:] == ["0.0,0,-97.0"]
    assert ucc_5g([str(two), "--column", "NRxRSRP", "--out", str(out)]) == 0
    assert out.read_text().splitlines()[1] == "0.0,0,-101.0"


@pytest.mark.parametrize(
    ("text", "words", "sentence"),
    [
        ("a,b\n1,2\n", [], "has no column RSRP, Timestamp: it must be a file of the UCC 5G dataset"),
        (HEADER, [], "has no value of RSRP"),
        (HEADER + log_line(1, "-90"), ["--mode", "LTE"], "has no value of RSRP in LTE mode"),
        (HEADER + log_line(5, "-90") + log_line(4, "-90"), [], "Line 3 of .* is earlier than the line before it"),
        (HEADER + log_line(5, "-90").replace("2019.11.28_23.59.05", "noon"), [], "Timestamp in line 2 of .* is 'noon'"),
        (HEADER + log_line(5, "-90") + log_line(50, "-90"), ["--max-gap", "30"], "no value between 0 s and 45 s"),
    ],
)
def test_a_file_that_is_not_of_the_5g_dataset(tmp_path, ucc_5g, text, words, sentence) -> None:
    source = tmp_path / "session.csv"
    source.write_text(text)
    with pytest.raises(SystemExit, match=sentence):
        ucc_5g([str(source), "--out", str(tmp_path / "out.csv"), *words])
    assert [path.name for path in tmp_path.iterdir()] == ["session.csv"]


# ── Examples ─────────────────────────────────────────────────────────────────


def test_the_example_traces_are_traces() -> None:
    radio = CellConfig(
        fading=GainTrace(path=str(FOLDER / "gains.csv")),
        harvest=HarvestTrace(path=str(FOLDER / "harvest.csv"), repeat_s=86400.0),
        battery_capacity_j=1000.0,
        round_period_s=60.0,
    )
    experiment = Experiment(
        devices=3, radio=radio, availability_trace=str(FOLDER / "availability.csv"), availability_repeat_s=86400.0
    )
    experiment.validate()
    traces = open_traces(experiment)
    assert traces["gain"].at(130.0).tolist() == [-93.5, -101.5, -104.0]
    assert traces["availability"].at(30_000.0).tolist() == [1.0, 0.0, 0.0]
    assert traces["harvest"].integral(0.0, 86400.0)[0] == pytest.approx(0.02 * 10800 + 0.09 * 21600 + 0.03 * 12600)
