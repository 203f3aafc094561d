"""Charts say what the run says: numbers in figures, tables and sentences against the history."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import kfl
from kfl.report.chart import numbers, thinned
from kfl.report.charts_accuracy import accuracy_chart
from kfl.report.charts_battery import battery_chart
from kfl.report.charts_devices import distribution_chart, fairness_chart
from kfl.report.charts_energy import budget_chart, pace_chart, parts_chart
from kfl.report.charts_knowledge import flatten, knowledge_chart, motion_chart
from kfl.report.charts_radio import cell_chart, shares_chart
from kfl.report.charts_schedule import faults_chart, participants_chart, schedule_chart
from kfl.report.groups import Group
from kfl.report.measures import battery_curves, fairness
from kfl.runfolder import read_run
from tests.reference.runs import made_up_run


@pytest.fixture(scope="module")
def run(runs):
    return read_run(runs / "kfl")


@pytest.fixture(scope="module")
def history(runs):
    return kfl.load_run(runs / "kfl")[1]


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """So many devices that they are shown in groups."""
    return read_run(made_up_run(tmp_path_factory.mktemp("large") / "run", 3000, 40, 300))


def named(chart, view, name):
    return next(trace for trace in chart.views[view]["data"] if trace.get("name") == name)


def test_accuracy_against_everything_that_was_spent(run, history):
    chart = accuracy_chart([Group("kfl", (run,))])
    assert list(chart.views) == ["Rounds", "Joules", "Seconds", "Bits"]
    accuracy = [log.accuracy for log in history.rounds]
    sums = {
        "Rounds": np.arange(1, 16),
        "Joules": np.cumsum([log.energy_j for log in history.rounds]),
        "Seconds": np.cumsum([log.time_s for log in history.rounds]),
        "Bits": np.cumsum([log.bits_up for log in history.rounds]),
    }
    for view, x in sums.items():
        trace = named(chart, view, "kfl")
        np.testing.assert_allclose(trace["x"], x, rtol=1e-4)
        np.testing.assert_allclose(trace["y"], accuracy, rtol=1e-4)
    assert named(chart, "Rounds", "training alone")["y"]
    worst = named(chart, "Rounds", "worst tenth of devices")["y"][-1]
    assert worst == pytest.approx(history.worst_tenth, abs=1e-3)


def test_without_a_radio_there_are_no_joules(runs):
    plain = read_run(runs / "plain")
    assert list(accuracy_chart([Group("plain", (plain,))]).views) == ["Rounds", "Bits"]
    for missing in (budget_chart, pace_chart):
        assert missing([Group("plain", (plain,))]) is None
    for missing in (cell_chart, shares_chart, faults_chart):
        assert missing(plain, "") is None


def test_every_device_has_its_accuracy(run, history):
    chart = distribution_chart([Group("kfl", (run,))])
    expected = sorted(record["accuracy"] for record in history.devices)
    np.testing.assert_allclose(chart.views["Sorted"]["data"][0]["y"], expected, rtol=1e-3)
    assert sum(chart.views["Histogram"]["data"][0]["y"]) == len(expected)
    over_rounds = fairness_chart([Group("kfl", (run,))])
    assert over_rounds.views["Worst tenth"]["data"][0]["y"][-1] == pytest.approx(history.worst_tenth, rel=1e-3)
    assert over_rounds.views["Worst tenth"]["data"][0]["x"] == list(range(1, 16))


@given(arrays(np.float64, st.integers(1, 60), elements=st.floats(0, 1)))
def test_jains_index_is_between_one_over_n_and_one(accuracy):
    found = fairness(accuracy)
    assert 1 / len(accuracy) - 1e-9 <= found.jain <= 1 + 1e-9
    assert found.worst - 1e-12 <= found.worst_tenth <= found.mean + 1e-12 <= found.best + 1e-9


def test_who_took_part_is_in_the_heat_map(run, history):
    views = schedule_chart(run, "").views
    taken = np.array([record["rounds"] for record in history.devices])
    for figure in views.values():
        trace = figure["data"][0]
        devices = [int(name) for name in trace["y"]]
        rows = np.array([[int(digit) for digit in row] for row in trace["z"]["digits"]])
        np.testing.assert_array_equal((rows > 0).sum(axis=1), taken[devices])
        for log in history.rounds:
            chosen = {device for device, row in zip(devices, rows, strict=True) if row[log.round]}
            assert chosen == set(log.devices)
            refused = {device for device, row in zip(devices, rows, strict=True) if row[log.round] == 3}
            assert refused == {entry["device"] for entry in log.rejected}
    by_rounds = [taken[int(name)] for name in views["By rounds"]["data"][0]["y"]]
    assert by_rounds == sorted(by_rounds, reverse=True)
    distance = run.cell.distance_m[[int(name) for name in views["By distance"]["data"][0]["y"]]]
    assert (np.diff(distance) >= 0).all()
    chosen = participants_chart(run, "").views[""]["data"][0]["y"]
    assert chosen == [len(log.devices) for log in history.rounds]


def test_groups_of_a_large_fleet_hold_everybody(large):
    for figure in schedule_chart(large, "").views.values():
        share = np.array(figure["data"][0]["z"])
        assert share.shape == (200, 40)
        assert share.mean() == pytest.approx(0.1, rel=0.02)
    squares = cell_chart(large, "").views["Rounds"]["data"][0]
    assert squares["type"] == "heatmap"
    assert np.nanmean(np.array(squares["z"], dtype=float)) == pytest.approx(4.0, rel=0.05)
    assert len(budget_chart([Group("a", (large,))]).views["Of budget"]["data"][0]["y"]) <= 400


def test_energy_of_each_device_against_its_budget(run, history):
    views = budget_chart([Group("kfl", (run,))]).views
    computing, sending = views["Joules"]["data"]
    for device, joules in zip(computing["x"], np.add(computing["y"], sending["y"]), strict=True):
        record = history.devices[int(device)]
        assert joules == pytest.approx(record["compute_energy_j"] + record["upload_energy_j"], rel=1e-3)
    share = np.add(*(trace["y"] for trace in views["Of budget"]["data"]))
    assert share[0] == pytest.approx(history.summary["largest_use_of_budget"], rel=1e-3)
    pace = pace_chart([Group("kfl", (run,))]).views[""]["data"]
    mean = next(trace for trace in pace if trace.get("name") == "mean device")
    assert mean["y"][-1] == pytest.approx(history.summary["energy_j"] / run.devices, rel=1e-4)
    even = next(trace for trace in pace if trace.get("name") == "budget spent evenly")
    assert even["y"][-1] == pytest.approx(history.devices[0]["budget_j"], rel=1e-4)


def test_joules_by_part_are_those_of_the_summary(sunny):
    run, history = read_run(sunny), kfl.load_run(sunny)[1]
    told = {name: joules for name, joules in history.summary["energy_by_part_j"].items() if joules > 0}
    assert set(told) == {"computing", "static", "radiating", "circuits", "tail", "receiving"}
    views = parts_chart([Group("sunny", (run,))]).views
    for trace in views["So far"]["data"]:
        assert trace["y"][-1] == pytest.approx(told[trace["name"]], rel=1e-4)
    each = {trace["name"]: sum(trace["y"]) for trace in views["Each round"]["data"]}
    assert each == {name: pytest.approx(joules, rel=1e-3) for name, joules in told.items()}
    bars = budget_chart([Group("sunny", (run,))]).views["Joules"]["data"]
    assert {trace["name"]: pytest.approx(sum(trace["y"]), rel=1e-3) for trace in bars} == told
    side = parts_chart([Group("a", (run,)), Group("b", (run,))]).views
    assert [sum(trace["y"][0] for trace in side["Shares"]["data"])] == [pytest.approx(1.0, abs=1e-4)]
    joules = {trace["name"]: trace["y"][1] for trace in side["Joules"]["data"]}
    assert joules == {name: pytest.approx(value, rel=1e-4) for name, value in told.items()}


def test_batteries_are_followed_from_the_joules_of_every_round(sunny):
    run, history = read_run(sunny), kfl.load_run(sunny)[1]
    found, told = battery_curves(run), history.summary["batteries"]
    assert told["empty_rounds"] > 0 and told["harvested_j"] > told["wasted_j"] > 0
    assert found.mean_j[-1] * run.devices == pytest.approx(told["charge_j"], rel=1e-9)
    assert found.least_j[-1] == pytest.approx(min(record["charge_j"] for record in history.devices), abs=1e-12)
    assert found.harvested_j[-1] == pytest.approx(told["harvested_j"], rel=1e-9)
    assert found.wasted_j[-1] == pytest.approx(told["wasted_j"], rel=1e-9)
    assert found.empty.sum() == told["empty_rounds"]
    chart = battery_chart([Group("sunny", (run,))])
    assert list(chart.views) == ["Charge", "Joules", "Without charge"]
    assert sum(named(chart, "Without charge", "devices")["y"]) == told["empty_rounds"]


def test_the_printed_model_and_devices_without_batteries_have_no_such_charts(run):
    assert parts_chart([Group("a", (run,))]) is None and battery_chart([Group("a", (run,))]) is None
    assert [trace["name"] for trace in budget_chart([Group("a", (run,))]).views["Joules"]["data"]] == [
        "computing",
        "sending",
    ]


def test_shares_and_powers_of_every_upload(run, history):
    views = shares_chart(run, "").views
    expected = [share for log in history.rounds for share in log.share]
    np.testing.assert_allclose(views["Share"]["data"][0]["y"], expected, rtol=1e-3)
    assert views["Share"]["data"][0]["customdata"] == [d for log in history.rounds for d in log.devices]
    known = [gain for log in history.rounds for gain in log.gain]
    np.testing.assert_allclose(views["Gain"]["data"][0]["y"], known, rtol=1e-3)
    power = [np.nan if p == 0 else p for log in history.rounds for p in log.power_w]
    np.testing.assert_allclose(np.array(views["Power"]["data"][0]["y"], dtype=float), power, rtol=1e-3)


def test_the_cell_marks_who_took_part(run, history):
    chart = cell_chart(run, "")
    np.testing.assert_allclose(chart.views["Rounds"]["data"][0]["x"], run.cell.position_m[:, 0], rtol=1e-3)
    assert chart.frames["which"] == [list(log.devices) for log in history.rounds]
    assert chart.views["Rounds"]["data"][0]["marker"]["color"] == [record["rounds"] for record in history.devices]


def test_knowledge_is_seen_in_its_own_principal_directions(run):
    flat = flatten(run)
    rows = np.concatenate([seen.knowledge[seen.known] for seen in run.trail])
    eigenvalues = np.sort(np.linalg.eigvalsh(np.cov(rows.T, bias=True)))[::-1]
    assert flat.explained == pytest.approx(tuple(eigenvalues[:2] / eigenvalues.sum()))
    spread = flat.position[np.isfinite(flat.position[:, :, 0])]
    np.testing.assert_allclose(spread.var(axis=0), eigenvalues[:2], rtol=1e-6)
    last = run.trail[-1].knowledge
    assert flat.apart[-1] == pytest.approx(
        np.mean([np.linalg.norm(last[a] - last[b]) for a in range(4) for b in range(a)]), rel=1e-9
    )
    chart = knowledge_chart(run, "")
    assert len(chart.frames["labels"]) == len(run.trail)
    assert motion_chart(run, "").views[""]["data"][2]["y"][0] is None


def test_an_algorithm_without_knowledge_has_no_such_chart(runs):
    assert flatten(read_run(runs / "fedavg")) is None


def test_faults_are_counted_once(run, history):
    chart = faults_chart(run, "")
    counted = sum(sum(trace["y"]) for trace in chart.views[""]["data"])
    strange = {(log.round, e["device"]) for log in history.rounds for e in (*log.faults, *log.rejected)}
    strange |= {(log.round, device) for log in history.rounds for device in (*log.lost, *log.diverged)}
    assert counted == len(strange) > 0
    assert sum(int(row[2].replace(",", "")) for row in chart.table.rows) == counted


def test_every_chart_has_a_sentence_and_a_table(run, large, sunny):
    sunny = read_run(sunny)
    new = [parts_chart([Group("a", (sunny,))]), battery_chart([Group("a", (sunny,))])]
    for one in (run, large):
        charts = [make([Group("a", (one,))]) for make in (accuracy_chart, distribution_chart, fairness_chart)]
        charts += [*new, *(make([Group("a", (one,))]) for make in (budget_chart, pace_chart))]
        parts = (
            schedule_chart,
            participants_chart,
            shares_chart,
            cell_chart,
            knowledge_chart,
            motion_chart,
            faults_chart,
        )
        charts += [make(one, "") for make in parts]
        for chart in charts:
            assert chart.summary.endswith(".") and len(chart.summary) > 20, chart.name
            assert chart.table.rows and all(len(row) == len(chart.table.columns) for row in chart.table.rows), (
                chart.name
            )


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
