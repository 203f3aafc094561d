"""Comparisons: who runs with what, what the rows say, and what the curves show."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import kfl
from kfl.algorithms import ALGORITHMS, FedAvg, FedRep, Kfl, Local
from kfl.comparison.entries import (
    Entry,
    algorithm_named,
    as_entries,
    pick_reference,
    read_settings,
    refuse_mixed_models,
    vary,
    with_fields,
    with_seeds,
    with_settings,
)
from kfl.comparison.records import MOST_POINTS, curve, read_records, record, write_records
from kfl.comparison.rows import summarise_rows
from kfl.core.errors import ConfigError, ModelError, RunFolderError
from kfl.plots.curves import curves_of, plot_curves, y_range
from kfl.plots.style import spread_out
from kfl.scheduling import Status
from kfl.simulation import History, RoundLog


def log(number, accuracy, devices=(0, 1), energy=0.5, status=None):
    status = Status() if status is None else status
    each = (energy / max(len(devices), 1),) * len(devices)
    nothing = (0.0,) * len(devices)
    bits = 100.0 * len(devices)
    return RoundLog(number, accuracy, devices, nothing, nothing, each, nothing, 2.0, bits, bits, None, None, status)


def line(algorithm, seed, accuracy, **more):
    """A line of results.jsonl as a comparison would write it."""
    points = [1.0, 2.0, 3.0]
    return {
        "digest": f"{algorithm}{seed}",
        "algorithm": algorithm,
        "seed": seed,
        "rounds": 3,
        "accuracy": accuracy,
        "worst_tenth": accuracy / 2,
        "bits_up": 8.0 * seed,
        "energy_j": 1.0 + seed,
        "time_s": 5.0,
        "devices_per_round": 2.0,
        "rounds_with_nobody": 0,
        "devices_over_budget": 0,
        "devices_never_chosen": 0,
        "why_nobody": None,
        "curve": {
            "rounds": points,
            "joules": [(1 + seed) * p for p in points],
            "seconds": points,
            "bits": points,
            "accuracy": [accuracy / 3 * p for p in points],
        },
        **more,
    }


LINES = [line("kfl", 0, 0.9), line("kfl", 1, 0.8), line("local", 0, 0.8), line("local", 1, 0.6)]


def line_up(base, algorithms, seeds):
    entries = as_entries({label: replace(base, algorithm=algorithm) for label, algorithm in algorithms.items()})
    refuse_mixed_models(entries)
    return [run.experiment for run in with_seeds(entries, seeds)]


def test_every_algorithm_meets_every_seed_in_one_setting():
    base = kfl.Experiment(devices=12, rounds=3, widths=(16,))
    runs = line_up(base, {name: cls() for name, cls in ALGORITHMS.items()}, [0, 7])
    assert [(run.algorithm.name, run.seed) for run in runs] == [(name, seed) for name in ALGORITHMS for seed in (0, 7)]
    for run in runs:
        assert replace(run, algorithm=base.algorithm, seed=0) == base


def test_algorithms_that_average_weights_refuse_mixed_widths_in_one_sentence():
    base = kfl.Experiment(widths=(8, 16, 32))
    with pytest.raises(ModelError) as problem:
        line_up(base, {"kfl": Kfl(), "fedavg": FedAvg(), "fedrep": FedRep()}, [0])
    said = str(problem.value)
    for words in ("fedavg and fedrep average weights", "8, 16, 32", "--equal-models 16", "leave fedavg and fedrep out"):
        assert words in said
    assert line_up(replace(base, widths=(16, 16)), {"fedavg": FedAvg()}, [0])
    assert line_up(base, {"kfl": Kfl(), "local": Local()}, [0])


def configured(names, start, settings=None, common=None):
    """The algorithm of each entry: common settings, then the file's, then flags."""
    base = kfl.Experiment(algorithm=start)
    found = {}
    for name in names:
        entry = with_settings(Entry(name, with_fields(base, {"algorithm": name})), settings or {})
        flags = {f"algorithm.{field}": value for field, value in (common or {}).items()}
        found[name] = with_fields(entry.experiment, flags).algorithm
    return found


def test_settings_go_from_common_to_own_and_flags_win():
    start = Kfl(learning_rate=0.07, momentum=0.5, knowledge_weight=0.2)
    settings = {"kfl": {"learning_rate": 0.3}, "local": {"learning_rate": 0.4, "local_steps": 2}}
    found = configured(["kfl", "local", "fedavg"], start, settings, {"local_steps": 9})
    assert found["kfl"] == Kfl(learning_rate=0.3, momentum=0.5, knowledge_weight=0.2, local_steps=9)
    assert found["local"] == Local(learning_rate=0.4, momentum=0.5, local_steps=9)
    assert found["fedavg"] == FedAvg(learning_rate=0.07, momentum=0.5, local_steps=9)


def test_a_label_of_a_method_selects_its_variant_with_the_common_settings():
    head = algorithm_named("lg-fedavg-head", Kfl(learning_rate=0.3))
    assert (head.name, head.share, head.learning_rate) == ("lg-fedavg", "head", 0.3)
    with pytest.raises(ConfigError, match="a class that derives from"):
        algorithm_named("math:pi", Kfl())


def test_fields_of_any_part_can_be_put_on_an_experiment():
    base = kfl.Experiment(radio="nb-iot", faults=kfl.Faults(drop_before=0.25))
    found = with_fields(
        base,
        {
            "scheduler": "lyapunov",
            "scheduler.v": 0.1,
            "radio.deadline-s": 9,
            "radio.fading": "rician",
            "faults.late": 0.5,
            "widths": 8,
            "rounds": 3,
        },
    )
    assert (found.scheduler.v, found.widths, found.rounds) == (0.1, (8,), 3)
    assert (found.cell_config.deadline_s, found.cell_config.fading.name) == (9.0, "rician")
    assert found.cell_config.bandwidth_hz == base.cell_config.bandwidth_hz
    assert (found.faults.drop_before, found.faults.late) == (0.25, 0.5)
    with pytest.raises(ConfigError, match=r"radio\.deadlin .*did you mean deadline_s"):
        with_fields(base, {"radio.deadlin": 1})


def test_varied_fields_make_every_combination_and_only_where_they_exist():
    found = vary(
        kfl.Experiment(), {"algorithm": ["kfl", "local"], "scheduler": ["lyapunov", "all"], "scheduler.v": [1, 2]}
    )
    assert list(found) == [
        f"{algorithm} {rest}" for algorithm in ("kfl", "local") for rest in ("lyapunov v=1", "lyapunov v=2", "all")
    ]
    assert found["local lyapunov v=2"].scheduler.v == 2.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[kfl]\nlearning_rat = 0.1", ["kfl.learning_rat", "did you mean learning_rate"]),
        ("[kfk]\nlearning_rate = 0.1", ["kfk", "named after an algorithm"]),
        ("kfl = 3", ["kfl", "a table"]),
        ("[kfl", ["TOML"]),
        ("[kfl]\nlearning_rate = -1.0", ["learning_rate is -1.0"]),
        (None, ["missing.toml", "TOML"]),
    ],
)
def test_bad_settings_are_one_sentence(tmp_path, text, words):
    path = tmp_path / "missing.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError) as problem:
        configured(["kfl"], Kfl(), read_settings(path))
    assert all(word in str(problem.value) for word in words), problem.value
    assert "\n" not in str(problem.value)


def test_unknown_algorithms_and_references_are_refused():
    with pytest.raises(ConfigError, match="algorithms is 'fedsgd'"):
        configured(["kfl", "fedsgd"], Kfl())
    with pytest.raises(ConfigError, match="reference is 'apfl'"):
        pick_reference(["kfl", "local"], "apfl")
    assert pick_reference(["kfl", "local"]) == "local"
    assert pick_reference(["fedavg", "kfl"]) == "fedavg"
    assert pick_reference(["fedavg", "kfl"], "kfl") == "kfl"


def test_rows_are_means_over_seeds_and_differences_are_paired():
    ours, reference = summarise_rows(LINES, "local")
    assert reference.difference is None
    assert ours.accuracy.mean == pytest.approx(0.85)
    assert ours.accuracy.deviation == pytest.approx(np.std([0.9, 0.8], ddof=1))
    assert ours.difference.mean == pytest.approx(0.15)
    assert ours.difference.high - ours.difference.low == pytest.approx(
        2 * 12.7062047 * np.std([0.1, 0.2], ddof=1) / 2**0.5
    )
    assert (ours.bits_up, ours.energy_j, ours.worst_tenth.mean) == pytest.approx((4.0, 1.5, 0.425))
    assert ours.feasible


def test_a_record_adds_up_what_happened(tmp_path):
    rounds = (
        log(0, 0.25),
        log(1, None, devices=(), energy=0.0, status=Status.note("Too far.")),
        log(2, 0.75, devices=(1,)),
    )
    devices = [{"accuracy": a, "rounds": r} for a, r in ((0.5, 1), (1.0, 2), (None, 0))]
    summary = {
        "energy_j": 1.0,
        "upload_energy_j": 0.0,
        "time_s": 6.0,
        "bits_up": 300.0,
        "bits_down": 300.0,
        "wall_s": 1.0,
    }
    found = record(kfl.Experiment(seed=4, rounds=3), History(rounds, summary, tuple(devices)), "a note")
    assert (found["accuracy"], found["worst_tenth"], found["seed"]) == (0.75, 0.5, 4)
    assert (found["rounds_with_nobody"], found["devices_per_round"], found["why_nobody"]) == (
        1,
        1.0,
        Status.note("Too far.").to_dict(),
    )
    assert found["devices_never_chosen"] == 1
    assert found["curve"] == {
        "rounds": [1.0, 3.0],
        "joules": [0.5, 1.0],
        "seconds": [2.0, 6.0],
        "bits": [200.0, 300.0],
        "accuracy": [0.25, 0.75],
    }
    write_records(tmp_path / "results.jsonl", [found])
    assert read_records(tmp_path) == [found]


def test_long_runs_keep_a_short_curve_with_its_end():
    found = curve([log(number, number / 5000) for number in range(1999)])
    assert len(found["accuracy"]) <= MOST_POINTS
    assert found["rounds"][-1] == 1999
    assert found["accuracy"][-1] == pytest.approx(1998 / 5000)


@pytest.mark.parametrize("text", [None, "", "not json", '{"a": 1}', "[1]"])
def test_what_is_no_result_file_is_refused(tmp_path, text):
    if text is not None:
        (tmp_path / "results.jsonl").write_text(text)
    with pytest.raises(RunFolderError, match="holds no results of kfl compare"):
        read_records(tmp_path)


def test_curves_of_seeds_that_spend_differently_are_means_round_by_round_and_end_at_the_mean_end():
    ours, _ = curves_of(LINES, "joules")
    # Seed 0 goes from 1 J to 3 J, seed 1 from 2 J to 6 J.
    assert ours.x.tolist() == [1.5, 3.0, 4.5]
    assert ours.mean[-1] == pytest.approx(85)
    assert ours.deviation[-1] == pytest.approx(100 * np.std([0.9, 0.8], ddof=1))
    by_round, _ = curves_of(LINES, "rounds")
    assert by_round.x.tolist() == [1, 2, 3]
    assert by_round.mean[-1] == pytest.approx(85)


def test_curves_of_seeds_tested_in_different_rounds_are_read_off_at_common_points():
    other = line("kfl", 1, 0.8)
    other["curve"]["rounds"] = [1, 2, 4]
    (ours,) = curves_of([line("kfl", 0, 0.9), other], "joules")
    # Seed 0 goes from 1 J to 3 J, seed 1 from 2 J to 6 J: both are known from 2 J to 3 J.
    assert (ours.x[0], ours.x[-1]) == (2.0, 3.0)
    assert ours.mean[-1] == pytest.approx(100 * (0.9 + 0.8 * 3 / 6) / 2)


def test_rounds_that_cost_nothing_do_not_bend_the_curve_back():
    stuck = line("local", 0, 0.9)
    stuck["curve"]["bits"] = [0.0, 0.0, 0.0]
    (found,) = curves_of([stuck], "bits")
    assert found.flat
    assert found.mean.tolist() == [pytest.approx(90)]


def test_the_picture_shows_ends_and_lets_only_the_first_rise_go():
    steep = line("kfl", 0, 0.9)
    steep["curve"] |= {"rounds": list(range(1, 101)), "accuracy": [0.1] * 5 + [0.85] * 50 + [0.9] * 45}
    low, high = y_range(curves_of([steep], "rounds"))
    assert 80 < low < 85
    assert 90 < high <= 100.5
    unfit = line("fedavg", 0, 0.1, devices_per_round=0.0)
    unfit["curve"] |= {"rounds": steep["curve"]["rounds"], "accuracy": [0.1] * 100}
    assert y_range(curves_of([steep, unfit], "rounds")) == (low, high)


def test_labels_never_overlap_and_keep_their_order():
    wanted = dict(zip("abcdefg", np.random.default_rng(0).random(7) * 0.3, strict=True))
    places = spread_out(wanted, 0.06)
    order = sorted(wanted, key=wanted.get)
    heights = [places[name] for name in order]
    assert np.diff(heights).min() >= 0.06 - 1e-12
    assert spread_out({"a": 0.1, "b": 0.9}, 0.06) == {"a": 0.1, "b": 0.9}


@pytest.mark.parametrize("x", ["rounds", "joules", "seconds", "bits"])
def test_pictures_are_written_for_every_axis(tmp_path, x):
    nothing = line("self-knowledge", 0, 0.5)
    nothing["curve"] |= {"bits": [0.0] * 3, "joules": [0.0] * 3}
    wide = line("fedavg", 0, 0.3, devices_per_round=0.0)
    big = line("mine", 0, 0.4)
    big["curve"]["bits"] = [1e6, 2e6, 3e6]
    files = [tmp_path / "a.png", tmp_path / "a.svg"]
    plot_curves([*LINES, nothing, wide, big], x, files, "a title")
    assert files[0].read_bytes().startswith(b"\x89PNG")
    drawn = files[1].read_text()
    assert "<svg" in drawn
    plot_curves([*LINES, nothing, wide, big], x, files, "a title")
    assert files[1].read_text() == drawn
    assert sorted(path.name for path in Path(tmp_path).iterdir()) == ["a.png", "a.svg"]
