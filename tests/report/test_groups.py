"""Runs in groups: by label or by what differs, seeds together with their interval, ties said as ties."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import kfl
from kfl.algorithms import ALGORITHMS
from kfl.experiment import common_settings
from kfl.report import build_report
from kfl.report.charts_accuracy import accuracy_chart
from kfl.report.charts_difference import difference_chart
from kfl.report.companions import companions
from kfl.report.groups import group_runs, named, read_comparison
from kfl.report.markup import swatch_html
from kfl.report.overview import cards, title
from kfl.report.side_by_side import overview, sentence
from kfl.report.side_by_side import title as comparison_title
from kfl.runfolder import read_run
from tests.reference.runs import SMALL, data

SEEDS = (5, 6, 7)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A comparison as `kfl compare` leaves it: three algorithms, three seeds, names with hashes."""
    base = tmp_path_factory.mktemp("comparison")
    for name in ("kfl", "local", "fixed-knowledge"):
        algorithm = common_settings(SMALL.algorithm, ALGORITHMS[name])
        for seed in SEEDS:
            run = replace(SMALL, rounds=6, algorithm=algorithm, seed=seed)
            kfl.run(run, base / f"{name}-seed{seed}-{run.digest()}", dataset=data(), keep_models=False)
    return base


def folders(base, name):
    return {str(seed): next(base.glob(f"{name}-seed{seed}-*")).name for seed in SEEDS}


def labelled(base, target, entries, reference):
    shutil.copytree(base, target)
    (target / "comparison.json").write_text(json.dumps({"reference": reference, "entries": entries}))
    return target


def test_runs_that_differ_in_the_seed_alone_are_one_group_with_a_readable_name(folder):
    found = read_comparison([folder])
    assert [group.name for group in found.groups] == ["kfl", "fixed-knowledge", "local"]
    assert [len(group.runs) for group in found.groups] == [3, 3, 3]
    assert found.reference.name == "local"
    assert comparison_title(found) == "kfl, fixed-knowledge and local on mnist-5k: 8 devices, 6 rounds, 3 seeds"


def test_a_line_is_the_mean_and_its_band_the_interval_of_the_t_test(folder):
    groups = read_comparison([folder]).groups
    chart = accuracy_chart(groups)
    low, high, mean = (trace for trace in chart.views["Rounds"]["data"] if trace["meta"]["group"] == 0)
    values = np.stack([run.rounds.accuracy for run in groups[0].runs])
    np.testing.assert_allclose(mean["y"], values.mean(axis=0), rtol=1e-4)
    for index, column in enumerate(values.T):
        if column.std() == 0:
            continue
        ends = stats.t.interval(0.95, 2, column.mean(), stats.sem(column))
        expected = np.clip(ends, 0, 1)
        np.testing.assert_allclose([low["y"][index], high["y"][index]], expected, rtol=1e-3, atol=1e-4)
    assert "3 seeds" in chart.summary and "interval" in chart.summary


def test_differences_are_paired_by_seed_and_a_tie_is_said_as_one(folder):
    found = read_comparison([folder])
    ours, reference = found.groups[0], found.reference
    gaps = [
        100 * (a.rounds.accuracy[-1] - b.rounds.accuracy[-1]) for a, b in zip(ours.runs, reference.runs, strict=True)
    ]
    chart = difference_chart(found.groups, reference)
    mean = [trace for trace in chart.views["Over rounds"]["data"] if trace["meta"]["group"] == 0][-1]
    assert mean["y"][-1] == pytest.approx(np.mean(gaps), abs=1e-3)
    clear = stats.ttest_1samp(gaps, 0).pvalue < 0.05
    row = next(row for row in overview(found).rows if row[0] == "kfl")
    assert f"{np.mean(gaps):+.2f}".replace("-", "\N{MINUS SIGN}") in row[2]
    assert row[2].endswith("a tie") == (not clear)
    assert ("tie at the top" in sentence(found)) == (
        "a tie" in "".join(cell for row in overview(found).rows for cell in row)
    )


def test_one_seed_is_called_one_seed(folder):
    found = group_runs([read_run(path) for name in ("kfl", "local") for path in folder.glob(f"{name}-seed5-*")])
    row = next(row for row in overview(found).rows if row[0] == "kfl")
    assert row[2].endswith("one seed")


def test_labels_of_a_comparison_name_its_groups_and_choose_its_runs(folder, tmp_path):
    entries = {
        "mine, V = 1": {"runs": folders(folder, "kfl")},
        "baseline": {"runs": folders(folder, "local")},
        "again": {"runs": folders(folder, "local")},
        "not begun": {"runs": {"5": "nowhere-seed5-00000000"}},
    }
    found = read_comparison([labelled(folder, tmp_path / "labelled", entries, "baseline")])
    assert [group.name for group in found.groups] == ["mine, V = 1", "baseline", "again"]
    assert found.reference.name == "baseline" and len(found.runs) == 6
    page = build_report([tmp_path / "labelled"], tmp_path / "page.html").read_text()
    assert "mine, V = 1" in page and "fixed-knowledge-seed5" not in page


@pytest.mark.parametrize(
    "wrong", ["[]", "{", '{"entries": {"a": {"runs": {"0": "../elsewhere"}}}}', '{"entries": {"a": 3}}']
)
def test_a_map_that_is_damaged_or_leads_elsewhere_is_not_followed(folder, tmp_path, wrong):
    shutil.copytree(folder, tmp_path / "runs")
    shutil.copytree(next(folder.glob("kfl-seed5-*")), tmp_path / "elsewhere")
    (tmp_path / "runs" / "comparison.json").write_text(wrong)
    assert [group.name for group in read_comparison([tmp_path / "runs"]).groups] == ["kfl", "fixed-knowledge", "local"]


def test_groups_are_named_by_what_differs():
    base = {"algorithm": {"name": "kfl", "pull": 0.1}, "scheduler": {"name": "lyapunov", "v": 1.0}, "seed": 3}
    other = {**base, "scheduler": {"name": "lyapunov", "v": 0.01}}
    assert named([base, other]) == ["v 1", "v 0.01"]
    assert named([base, {**base, "scheduler": {"name": "dual"}}]) == ["lyapunov", "dual"]
    local = {**base, "algorithm": {"name": "local"}, "hard_budget": True}
    assert named([{**base, "hard_budget": False}, local]) == ["kfl · no hard budget", "local · hard budget"]
    many = {**base, "devices": 3, "rounds": 4, "batch": 5, "model": "cnn"}
    assert named([{**many, "model": "mlp", "devices": 1, "rounds": 2, "batch": 3}, many]) == ["mlp", "cnn"]


def test_the_same_run_twice_is_not_taken_for_two_seeds(folder, tmp_path):
    one = next(folder.glob("kfl-seed5-*"))
    for name in ("first", "second"):
        shutil.copytree(one, tmp_path / name)
    found = read_comparison([tmp_path / "first", tmp_path / "second"])
    assert [group.name for group in found.groups] == ["kfl (first)", "kfl (second)"]


def test_the_tile_holds_a_run_against_training_alone_and_against_its_twin_without_uploads(folder, tmp_path):
    path = next(folder.glob("kfl-seed6-*"))
    run = read_run(path)
    beside = companions(run)
    assert beside.alone.algorithm == "local" and beside.pulled.algorithm == "fixed-knowledge"
    assert {other.config["seed"] for other in (beside.alone, beside.pulled)} == {6}
    label, value, told = next(card for card in cards(run, beside) if card[0].startswith("Against"))
    runs = (run, beside.alone, beside.pulled)
    trained = np.logical_and.reduce([one.rounds.per_device(run.devices) > 0 for one in runs])
    both = trained & np.logical_and.reduce([np.isfinite(one.accuracy) for one in runs])
    ours, alone, pulled = (100 * one.accuracy[both].mean() for one in runs)
    assert label == "Against training alone"
    assert value == f"{ours - alone:+.2f} points".replace("-", "\N{MINUS SIGN}")
    minus = f"{ours - pulled:+.2f}".replace("-", "\N{MINUS SIGN}")
    assert f"{minus} against fixed-knowledge" in told
    assert told.endswith("one seed")
    shutil.copytree(path, tmp_path / "run")
    assert companions(read_run(tmp_path / "run")).pulled is None


def test_a_title_says_what_was_run(folder):
    assert title(read_run(next(folder.glob("kfl-seed5-*")))) == "KFL on mnist-5k: 8 devices, 6 rounds"


def test_thirty_two_groups_have_swatches_that_differ_in_colour_or_dashes():
    assert len({swatch_html(index) for index in range(32)}) == 32
