"""Charts show the numbers of `RunData`, which test_run_data holds against histories."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfl.report import read_run
from kfl.report.charts.cell import (
    cell_chart,
    faults_chart,
    gap_chart,
    participants_chart,
    schedule_chart,
    shares_chart,
)
from kfl.report.charts.energy import battery_chart, budget_chart, pace_chart, parts_chart
from kfl.report.charts.knowledge import flatten, knowledge_chart
from kfl.report.charts.learning import accuracy_chart, distribution_chart, fairness_chart
from kfl.report.figures import axis, band, figure, line, numbers, table_of, thinned
from kfl.report.groups import Group
from kfl.report.run_data import fairness
from tests.reference.runs import made_up_run

OF_GROUPS = (
    accuracy_chart, distribution_chart, fairness_chart, budget_chart, pace_chart, parts_chart, battery_chart,
)  # fmt: skip
OF_ONE = (schedule_chart, participants_chart, gap_chart, shares_chart, cell_chart, knowledge_chart, faults_chart)


@pytest.fixture(scope="module")
def run(runs):
    return read_run(runs / "kfl")


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """So many devices that they are shown in groups."""
    return read_run(made_up_run(tmp_path_factory.mktemp("large") / "run", 3000, 40, 300))


def alone(run):
    return [Group("a", (run,))]


def traces(chart, view):
    return {trace.get("name"): trace for trace in chart.views[view]["data"]}


def test_accuracy_against_everything_that_was_spent(run):
    chart = accuracy_chart(alone(run))
    assert list(chart.views) == ["Rounds", "Joules", "Seconds", "Bits"]
    for unit, view in zip(run.spent, chart.views, strict=True):
        found = traces(chart, view)
        np.testing.assert_allclose(found["a"]["x"], run.spent[unit], rtol=1e-4)
        np.testing.assert_allclose(found["a"]["y"], run.rounds.accuracy, rtol=1e-4)
        assert found["worst tenth of devices"]["y"][-1] == pytest.approx(fairness(run.accuracy).worst_tenth, abs=1e-3)
    rows = {row[0]: row for row in chart.numbers.rows}
    shown = dict(zip(chart.numbers.columns, rows["15"], strict=True))
    assert float(shown["a"].split()[0]) == pytest.approx(100 * run.last_accuracy, abs=0.01)
    assert {"energy of all devices", "time in the cell", "uploaded by all devices"} <= set(shown)


def test_a_chart_is_left_out_where_a_run_has_nothing_to_show(runs, run):
    plain, fedavg = read_run(runs / "plain"), read_run(runs / "fedavg")
    assert list(accuracy_chart(alone(plain)).views) == ["Rounds", "Bits"]
    assert [make(alone(plain)) for make in (budget_chart, pace_chart, parts_chart, battery_chart)] == [None] * 4
    assert [make(plain) for make in (cell_chart, shares_chart, faults_chart, gap_chart)] == [None] * 4
    assert flatten(fedavg) is None and knowledge_chart(fedavg) is None
    assert parts_chart(alone(run)) is None and battery_chart(alone(run)) is None  # the printed energy model


def test_every_device_has_its_accuracy(run):
    chart = distribution_chart(alone(run))
    np.testing.assert_allclose(traces(chart, "Sorted")["a"]["y"], np.sort(run.accuracy), rtol=1e-3)
    assert sum(traces(chart, "Histogram")["devices"]["y"]) == run.devices
    over_rounds = traces(fairness_chart(alone(run)), "Worst tenth")["a"]
    assert over_rounds["y"][-1] == pytest.approx(fairness(run.accuracy).worst_tenth, rel=1e-3)
    assert over_rounds["x"] == list(range(1, 16))


def test_what_became_of_each_device_is_in_the_heat_map(run):
    views = schedule_chart(run).views
    refused = {(one.device, one.round) for one in run.rounds.incidents if one.kind == "refused"}
    assert refused
    for view in views.values():
        trace = view["data"][0]
        devices = [int(name) for name in trace["y"]]
        rows = np.array([[int(digit) for digit in row] for row in trace["z"]["digits"]])
        np.testing.assert_array_equal((rows > 0).sum(axis=1), run.participation[devices])
        assert {(devices[row], column) for row, column in np.argwhere(rows == 3)} == refused
        for device, number in zip(run.rounds.device, run.rounds.round, strict=True):
            assert rows[devices.index(device), number]
    by_rounds = [run.participation[int(name)] for name in views["By rounds"]["data"][0]["y"]]
    assert by_rounds == sorted(by_rounds, reverse=True)
    distance = run.cell.distance_m[[int(name) for name in views["By distance"]["data"][0]["y"]]]
    assert (np.diff(distance) >= 0).all()
    assert traces(participants_chart(run), "")["scheduled"]["y"] == run.rounds.per_round().tolist()


def test_groups_of_a_large_fleet_hold_every_device(large):
    for view in schedule_chart(large).views.values():
        share = np.array(view["data"][0]["z"])
        assert share.shape == (200, 40)
        assert share.mean() == pytest.approx(0.1, rel=0.02)
    squares = cell_chart(large).views["Rounds"]["data"][0]
    assert squares["type"] == "heatmap"
    assert np.nanmean(np.array(squares["z"], dtype=float)) == pytest.approx(4.0, rel=0.05)
    assert len(budget_chart(alone(large)).views["Of budget"]["data"][0]["y"]) <= 400


def test_energy_of_each_device_against_its_budget(run):
    chart = budget_chart(alone(run))
    computing, sending = chart.views["Joules"]["data"]
    joules = dict(zip(computing["x"], np.add(computing["y"], sending["y"]), strict=True))
    assert [joules[str(device)] for device in range(run.devices)] == pytest.approx(run.device_energy_j, rel=1e-3)
    share = np.add(*(trace["y"] for trace in chart.views["Of budget"]["data"]))
    assert share[0] == pytest.approx(run.device_energy_j.max() / run.budget_j, rel=1e-3)
    queues = traces(pace_chart(alone(run)), "Queues")
    told = [record["queue_j"] for record in json.loads((run.path / "devices.json").read_text())]
    assert queues["largest"]["y"][-1] == pytest.approx(max(told), rel=1e-4)
    assert queues["mean"]["y"][-1] == pytest.approx(np.mean(told), rel=1e-4)
    pace = traces(pace_chart(alone(run)), "Energy")
    assert pace["mean device"]["y"][-1] == pytest.approx(run.energy_j / run.devices, rel=1e-4)
    assert pace["budget spent evenly"]["y"][-1] == pytest.approx(run.budget_j, rel=1e-4)


def test_energy_by_part_over_the_rounds_and_side_by_side(sunny):
    run = read_run(sunny)
    told = {name: pytest.approx(joules.sum(), rel=1e-3) for name, joules in run.parts_j.items()}
    chart = parts_chart(alone(run))
    assert {name: trace["y"][-1] for name, trace in traces(chart, "So far").items()} == told
    assert {name: sum(trace["y"]) for name, trace in traces(chart, "Each round").items()} == told
    assert {trace["name"]: sum(trace["y"]) for trace in budget_chart(alone(run)).views["Joules"]["data"]} == told
    side = parts_chart([Group("a", (run,)), Group("b", (run,), 1)])
    assert {name: trace["y"][1] for name, trace in traces(side, "Joules").items()} == told
    assert sum(trace["y"][0] for trace in side.views["Shares"]["data"]) == pytest.approx(1.0, abs=1e-4)


def test_batteries_over_the_rounds(sunny):
    run = read_run(sunny)
    chart, found = battery_chart(alone(run)), run.batteries
    assert list(chart.views) == ["Charge", "Joules", "Empty"]
    assert traces(chart, "Charge")["mean device"]["y"][-1] == pytest.approx(found.mean_j[-1], rel=1e-4)
    assert traces(chart, "Joules")["harvested"]["y"][-1] == pytest.approx(found.harvested_j[-1], rel=1e-4)
    assert sum(traces(chart, "Empty")["devices"]["y"]) == found.empty.sum()


def test_every_upload_is_a_dot(run):
    views, rounds = shares_chart(run).views, run.rounds
    for label, values in (("Share", rounds.share), ("Gain", rounds.gain), ("Power", rounds.power_w)):
        shown = np.array(views[label]["data"][0]["y"], dtype=float)
        np.testing.assert_allclose(shown, np.where(values == 0, np.nan, values), rtol=1e-3)
    assert views["Share"]["data"][0]["customdata"] == rounds.device.tolist()
    columns, rows = shares_chart(run).numbers.columns, shares_chart(run).numbers.rows
    assert columns == ("round", "device", "share of the band", "transmit power", "energy of an upload", "channel gain")
    assert rows[0][:2] == ("1", str(rounds.device[0])) and rows[-1][0] == "15"


def test_the_cell_marks_the_devices_of_a_round(run):
    chart = cell_chart(run)
    np.testing.assert_allclose(chart.views["Rounds"]["data"][0]["x"], run.cell.position_m[:, 0], rtol=1e-3)
    assert chart.views["Rounds"]["data"][0]["marker"]["color"] == run.participation.tolist()
    marked = [run.rounds.device[run.rounds.round == number].tolist() for number in range(run.played)]
    assert chart.frames["which"] == marked


def test_knowledge_is_seen_in_its_own_principal_directions(run):
    flat = flatten(run)
    rows = np.concatenate([seen.knowledge[seen.known] for seen in run.trail])
    eigenvalues = np.sort(np.linalg.eigvalsh(np.cov(rows.T, bias=True)))[::-1]
    assert flat.explained == pytest.approx(tuple(eigenvalues[:2] / eigenvalues.sum()))
    spread = flat.position[np.isfinite(flat.position[:, :, 0])]
    np.testing.assert_allclose(spread.var(axis=0), eigenvalues[:2], rtol=1e-6)
    assert len(knowledge_chart(run).frames["labels"]) == len(run.trail)


def test_faults_are_counted_once(run):
    chart = faults_chart(run)
    counted = sum(sum(trace["y"]) for trace in chart.views[""]["data"])
    assert counted == len(run.rounds.incidents) == len({(one.round, one.device) for one in run.rounds.incidents}) > 0
    assert sum(int(row[2].replace(",", "")) for row in chart.table.rows) == counted


def test_every_chart_has_a_sentence_and_a_table(run, large, sunny):
    seen = set()
    for one in (run, large, read_run(sunny)):
        charts = [*(make(alone(one)) for make in OF_GROUPS), *(make(one) for make in OF_ONE)]
        for chart in filter(None, charts):
            seen.add(chart.name)
            assert chart.summary.endswith(".") and len(chart.summary) > 20, chart.name
            shown = chart.numbers
            assert shown.rows and all(len(row) == len(shown.columns) for row in shown.rows), chart.name
            assert 2 <= len(shown.columns) <= 13 and len(shown.rows) <= 40, chart.name
    assert len(seen) == len(OF_GROUPS) + len(OF_ONE) - 1  # no scheduler of these has a lower bound


def test_a_table_holds_bands_and_further_views_of_a_chart():
    low_high = band("around", [1, 2], [0.1, 0.2], [0.3, 0.4], "@c1")
    first = figure([*low_high, line("a", [1, 2], [0.2, 0.3], "@c1")], axis("round"), axis("share", tickformat=".0%"))
    other = figure([line("b", [1, 2], [5, None], "@c1")], axis("round"), axis("energy", si="J"))
    shown = table_of({"Share": first, "Energy": other})
    assert shown.columns == ("round", "around", "a", "energy")
    assert shown.rows == (("1", "10.00 % to 30.00 %", "20.00 %", "5 J"), ("2", "20.00 % to 40.00 %", "30.00 %", "–"))


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=20))
def test_numbers_are_json_and_near(values):
    for value, short in zip(values, numbers(values), strict=True):
        if abs(value) < 1e300:
            assert short == pytest.approx(value, rel=1e-4)
        else:
            assert short is None


@given(st.integers(1, 10_000), st.integers(2, 500))
def test_thinning_keeps_both_ends(count, most):
    kept = thinned(count, most)
    assert kept[0] == 0 and kept[-1] == count - 1
    assert len(kept) == min(count, most) and (np.diff(kept) > 0).all()
