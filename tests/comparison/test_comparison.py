"""kfl.compare from Python: labels, references, growth, files of earlier versions."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import kfl

y = np.arange(120) % 4
DATA = kfl.Dataset.from_arrays(np.random.default_rng(0).normal(size=(120, 6)) + y[:, None], y)
BASE = kfl.Experiment(devices=4, rounds=2, widths=(8,))
ENTRIES = {
    "V = 0.01": replace(BASE, scheduler=kfl.Lyapunov(v=0.01)),
    "random": replace(BASE, scheduler=kfl.Uniform(count=1)),
    "random again": replace(BASE, scheduler=kfl.Uniform(count=1)),
}


def test_entries_of_any_kind_in_one_table_one_plot_and_one_folder(tmp_path):
    names = []
    found = kfl.compare(
        ENTRIES, [0, 1], tmp_path / "c", dataset=DATA, on_progress=lambda progress: names.append(progress.name)
    )
    assert found.labels == list(ENTRIES)
    assert found.reference == "random"
    assert found["random again"].difference.mean == 0
    assert "The same as random in every run: random again" in str(found)
    assert "V = 0.01" in str(found)
    assert set(names) == {f"{label}, seed {seed}" for label in ("V = 0.01", "random") for seed in (0, 1)}
    assert len(list((tmp_path / "c").glob("*/summary.json"))) == 4  # the same experiment twice is run once
    assert found.plot(tmp_path / "p.svg", x="joules").axes
    assert "V = 0.01" in (tmp_path / "p.svg").read_text()
    digests = {line["label"]: line["digest"] for line in found.records if line["seed"] == found.seeds[0]}
    assert digests["random"] == digests["random again"]
    table = found.to_pandas()
    assert list(table["label"]) == [label for label in ENTRIES for _ in (0, 1)]
    assert set(table["scheduler.v"].dropna()) == {0.01}
    means = table.groupby("label")["accuracy"].mean()
    assert all(means[row.label] == pytest.approx(row.accuracy.mean) for row in found.rows)

    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "c").glob("*/summary.json")}
    two = {"alone": replace(BASE, algorithm=kfl.Local()), "random": ENTRIES["random"]}
    grown = kfl.compare(two, [0, 1], tmp_path / "c", dataset=DATA)
    assert grown.labels == ["alone", "random"]
    assert grown.reference == "alone"
    assert stamps.items() <= {p: p.stat().st_mtime_ns for p in (tmp_path / "c").glob("*/summary.json")}.items()
    assert kfl.Comparison.load(tmp_path / "c").labels == ["alone", "random"]
    one = grown.select(seeds=[1], reference="random")
    assert (one.seeds, one.reference) == ([1], "random")


def test_other_data_is_not_taken_for_the_data_that_ran(tmp_path):
    other = kfl.Dataset.from_arrays(np.random.default_rng(1).normal(size=(120, 6)), y)
    only = {"random": ENTRIES["random"], "all": BASE}
    kfl.compare(only, [0], tmp_path / "c", dataset=DATA)
    again = kfl.compare(only, [0], tmp_path / "c", dataset=other)
    fresh = kfl.compare(only, [0], dataset=other)
    assert again.folder == tmp_path / "c"
    assert fresh.folder is None
    assert [row.accuracy for row in again.rows] == [row.accuracy for row in fresh.rows]


def test_files_of_earlier_versions_are_read():
    path = Path(__file__).parents[2] / "docs" / "results" / "compare-mnist-5k.jsonl"
    found = kfl.Comparison.load(path)
    assert found.labels == ["kfl", "local", "self-knowledge", "fixed-knowledge"]
    assert found.reference == "local"
    assert found["kfl"].difference.mean == pytest.approx(-0.0006)
    assert next(iter(found.table().cells)) == "algorithm"
    assert "uniform" in found.title


@pytest.mark.parametrize(
    ("entries", "options", "words"),
    [
        ({}, {}, "entries is"),
        ({"a": kfl.Kfl()}, {}, r"entries\['a'\] is .* an Experiment"),
        ({"": BASE}, {}, "a text that is not empty"),
        ({"a": BASE}, {"seeds": []}, "seeds is"),
        ({"a": BASE}, {"seeds": [-1]}, "seeds is"),
        ({"a": BASE, "b": BASE}, {"reference": "c"}, "reference is 'c'"),
        ({"a": replace(BASE, widths=(8, 16), algorithm=kfl.FedAvg())}, {}, "a averages weights"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_runs(entries, options, words, tmp_path):
    with pytest.raises(kfl.KflError, match=words):
        kfl.compare(entries, folder=tmp_path / "c", dataset=DATA, **options)
    assert not (tmp_path / "c").exists()
