"""Runs in groups: by label or by what differs, seeds together with their interval, ties said as ties."""

import json
import shutil

import numpy as np
import pytest
from scipy import stats

from kfl.report import build_report, read_run
from kfl.report.charts.learning import accuracy_chart, difference_chart
from kfl.report.groups import group_runs, named, read_groups
from kfl.report.page import compose, html_of
from kfl.report.text import overview, sentence_of_all, title_of_all


def folders(base, name):
    return {str(seed): next(base.glob(f"{name}-seed{seed}-*")).name for seed in (5, 6, 7)}


def labeled(base, target, entries, reference):
    shutil.copytree(base, target)
    (target / "comparison.json").write_text(json.dumps({"reference": reference, "entries": entries}))
    return target


def test_runs_that_differ_in_the_seed_alone_are_one_group_with_a_readable_name(compared):
    found = read_groups([compared])
    assert [group.name for group in found.groups] == ["kfl", "fixed-knowledge", "local"]
    assert [len(group.runs) for group in found.groups] == [3, 3, 3]
    assert found.reference.name == "local"
    assert title_of_all(found) == "kfl, fixed-knowledge and local on mnist-5k: 8 devices, 12 rounds, 3 seeds"


def test_a_line_is_the_mean_and_its_band_the_interval_of_the_t_test(compared):
    groups = read_groups([compared]).groups
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


def test_differences_are_paired_by_seed_and_a_tie_is_said_as_one(compared):
    found = read_groups([compared])
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
    assert ("tie at the top" in sentence_of_all(found)) == (
        "a tie" in "".join(cell for row in overview(found).rows for cell in row)
    )


def test_one_seed_is_called_one_seed(compared):
    found = group_runs([read_run(path) for name in ("kfl", "local") for path in compared.glob(f"{name}-seed5-*")])
    row = next(row for row in overview(found).rows if row[0] == "kfl")
    assert row[2].endswith("one seed")


def test_labels_of_a_comparison_name_its_groups_and_choose_its_runs(compared, tmp_path):
    entries = {
        "mine, V = 1": {"runs": folders(compared, "kfl")},
        "baseline": {"runs": folders(compared, "local")},
        "again": {"runs": folders(compared, "local")},
        "not begun": {"runs": {"5": "nowhere-seed5-00000000"}},
    }
    found = read_groups([labeled(compared, tmp_path / "labeled", entries, "baseline")])
    assert [group.name for group in found.groups] == ["mine, V = 1", "baseline", "again"]
    assert found.reference.name == "baseline" and len(found.runs) == 6
    page = build_report([tmp_path / "labeled"], tmp_path / "page.html").read_text()
    assert "mine, V = 1" in page and "fixed-knowledge-seed5" not in page


@pytest.mark.parametrize(
    "wrong", ["[]", "{", '{"entries": {"a": {"runs": {"0": "../elsewhere"}}}}', '{"entries": {"a": 3}}']
)
def test_a_map_that_is_damaged_or_leads_elsewhere_is_not_followed(compared, tmp_path, wrong):
    shutil.copytree(compared, tmp_path / "runs")
    shutil.copytree(next(compared.glob("kfl-seed5-*")), tmp_path / "elsewhere")
    (tmp_path / "runs" / "comparison.json").write_text(wrong)
    assert [group.name for group in read_groups([tmp_path / "runs"]).groups] == ["kfl", "fixed-knowledge", "local"]


def test_groups_are_named_by_what_differs():
    base = {"algorithm": {"name": "kfl", "pull": 0.1}, "scheduler": {"name": "lyapunov", "v": 1.0}, "seed": 3}
    other = {**base, "scheduler": {"name": "lyapunov", "v": 0.01}}
    assert named([base, other]) == ["v 1", "v 0.01"]
    assert named([base, {**base, "scheduler": {"name": "dual"}}]) == ["lyapunov", "dual"]
    local = {**base, "algorithm": {"name": "local"}, "hard_budget": True}
    assert named([{**base, "hard_budget": False}, local]) == ["kfl · no hard budget", "local · hard budget"]
    many = {**base, "devices": 3, "rounds": 4, "batch": 5, "model": "cnn"}
    assert named([{**many, "model": "mlp", "devices": 1, "rounds": 2, "batch": 3}, many]) == ["mlp", "cnn"]


def test_the_same_run_twice_is_not_taken_for_two_seeds(compared, tmp_path):
    one = next(compared.glob("kfl-seed5-*"))
    for name in ("first", "second"):
        shutil.copytree(one, tmp_path / name)
    found = read_groups([tmp_path / "first", tmp_path / "second"])
    assert [group.name for group in found.groups] == ["kfl (first)", "kfl (second)"]


def test_training_alone_in_a_folder_of_an_earlier_version_is_a_second_run(runs):
    found = read_groups([runs / "kfl"])
    assert [group.name for group in found.groups] == ["kfl", "local"]
    assert found.reference.name == "local" and found.detailed.path == runs / "kfl"
    page = compose(found)
    assert page.heading == "KFL on mnist-5k: 8 devices, 15 rounds" and {"difference", "schedule"} <= set(page.figures)
    assert [row[0] for row in page.overview.rows] == ["kfl", "local"]


def test_thirty_two_groups_have_swatches_that_differ_in_color_or_dashes(compared):
    run = read_run(next(compared.glob("kfl-seed5-*")))
    found = group_runs([run] * 32)
    html = html_of(compose(found))
    table = html.partition("</table>")[0]
    swatches = [part.partition("</svg>")[0] for part in table.split("<svg")[1:]]
    assert len(swatches) == len(set(swatches)) == 32
