"""What a comparison says was equal and what was not: above its table, on its page, in its files."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import kfl
from kfl.cli.main import main
from kfl.comparison import Comparison, Entry
from kfl.report import build_report

BASE = kfl.Experiment(
    devices=8, rounds=3, widths=(8,), samples_per_device=20, scheduler=kfl.Uniform(count=3), radio="paper-mnist"
)


def lines(found, *words):
    """The lines about something."""
    return [line for line in found.unequal if all(word in line for word in words)]


def test_equal_rows_are_said_to_be_equal_and_nothing_else():
    found = kfl.compare({"a": BASE, "b": replace(BASE, algorithm=kfl.Local())}, [0, 1])
    (equal,) = found.equal
    for fact in ("mnist-5k", "devices (8)", "rounds (3)", "width 8", "100 mJ a round", "seeds (0, 1)", "search (none)"):
        assert fact in equal
    assert found.unequal == []
    assert str(found).index(equal) < str(found).index("accuracy, %")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"widths": (16,)}, "Networks: width 8 (a), width 16 (b)."),
        ({"scheduler": kfl.Uniform(count=6)}, "Scheduler: uniform 3 (a), uniform 6 (b)."),
        ({"devices": 10}, "Devices: 8 (a), 10 (b)."),
        ({"samples_per_device": 30}, "samples_per_device: 20 (a), 30 (b)."),
        ({"hard_budget": True}, "Cell and budget: 100 mJ a round (a), 100 mJ a round, hard (b)."),
        ({"radio": replace(kfl.CellConfig(), deadline_s=2.0)}, "radio.deadline_s: default (a), 2.0 (b)."),
        ({"encoder": "raw"}, "Inputs: samples as they are (a), encoder raw (b)."),
        ({"algorithm": kfl.FedProto(learning_rate=0.1)}, "learning_rate: 0.05 (a), 0.1 (b); no search"),
        ({"algorithm": kfl.Kfl(bits_per_value=4)}, "Bits of one value on the air: 32 (a), 4 (b)."),
        ({"algorithm": kfl.Kfl(charge="held")}, "Class means are charged of every class (a), of held classes (b)."),
    ],
)
def test_each_inequality_has_its_line(change, line):
    found = kfl.compare({"a": BASE, "b": replace(BASE, **change)}, [0])
    assert any(one.startswith(line) for one in found.unequal), found.unequal


def test_joules_and_participants_come_with_what_kept_devices_out():
    """In half a kilohertz whole networks leave room for few devices; knowledge leaves room for all."""
    cell = replace(kfl.CellConfig(), bandwidth_hz=3e6)
    base = replace(BASE, radio=cell, scheduler="lyapunov", rounds=2)
    found = kfl.compare({"small": base, "whole": replace(base, algorithm=kfl.FedAvg())}, [0])
    (participants,) = lines(found, "Devices in a round: small 8")
    assert "whole" in participants and "by the band" in participants
    assert lines(found, "Joules: ")
    poor = replace(base, radio=replace(cell, budget_j_per_round=0.001), rounds=8)
    found = kfl.compare({"rich": replace(base, rounds=8), "poor": poor}, [0])
    (participants,) = lines(found, "Devices in a round")
    assert "by energy" in participants
    assert any("In those rounds devices were kept out: 8 by energy." in note for note in found.sentences()), (
        found.sentences()
    )


def test_untuned_beside_tuned_is_said_and_a_file_without_a_table_for_anybody_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("methods.toml").write_text("[kfl]\nlearning_rate = 0.1\n")
    words = ["--devices", "6", "--rounds", "1", "--widths", "8", "--scheduler.count", "2", "--workers", "1"]
    words += ["--settings", "methods.toml", "--seeds", "0", "--out", "c"]
    assert main(["compare", *words, "--algorithms", "kfl,fedproto,local"]) == 0
    said = "Tuned: methods.toml (kfl). Not tuned, with the defaults: fedproto, local."
    shown = capsys.readouterr().out
    assert shown.index(said) < shown.index("accuracy, %")
    again = Comparison.load("c")
    assert said in again.unequal
    for file in ("c/table.md", "c/table.csv", build_report([Path("c")])):
        text = Path(file).read_text()
        assert said in text and "Equal in all rows" in text
        assert text.index(said) < text.index("fedproto", text.index(said) + len(said))
    assert main(["compare", *words[:-1], "d", "--algorithms", "fedavg,local"]) == 2
    assert "a file with a table for one of fedavg, local" in capsys.readouterr().err


def test_settings_of_another_conditions_search_are_said_to_be():
    short = {label: replace(BASE, rounds=1, algorithm=label) for label in ("kfl", "local")}
    entries = [
        Entry(label, one, condition, search_in="first", reported=True)
        for condition in ("first", "second")
        for label, one in short.items()
    ]
    found = kfl.compare(entries, [0], search=kfl.comparison.Search(seeds=[100], rates=[0.05]))
    assert "second: Tuned: the search in another condition, first." in found.unequal
    assert not lines(found, "first: Tuned")


def test_a_diverged_row_is_marked_and_has_no_verdict():
    y, device = np.arange(240) % 4, np.repeat(np.arange(6), 40)
    x = np.random.default_rng(0).normal(size=(240, 5)).astype("float32") + y[:, None]
    x[device == 0] *= 1e25
    data = kfl.Dataset.from_arrays(x, y, train_device=device)
    own = kfl.Experiment(devices=6, rounds=2, split="natural", widths=(8,), scheduler="all")
    entries = {"all": own, "some": replace(own, scheduler=kfl.Uniform(count=2)), "none": replace(own, faults=GONE)}
    found = kfl.compare(entries, [0, 1], dataset=data, reference="none")
    assert found.unequal[0].startswith("all has no verdict. Training diverged in 4 of 24 participations")
    assert found.table().cells["accuracy, %"][0].endswith("(diverged)")
    assert not any("all" in note for note in found.sentences() if "told apart" in note or "above none" in note)


GONE = kfl.Experiment().faults.__class__(schedule=("leave:0:0",))


def test_a_run_without_a_result_and_a_collapsed_seed_are_named(tmp_path):
    wild = replace(BASE, algorithm=kfl.Kfl(learning_rate=1e30))
    found = kfl.compare({"wild": wild, "calm": BASE}, [0, 1], tmp_path / "c")
    assert "wild has 0 of 2 seeds: seeds 0, 1 diverged." in found.unequal
    assert "wild has 0 of 2 seeds: seeds 0, 1 diverged." in Comparison.load(tmp_path / "c").unequal
    ends = [0.96, 0.95, 0.21, 0.97, 0.96]
    calm = found.records[0]
    seeds = tuple({**calm, "seed": seed, "accuracy": end} for seed, end in enumerate(ends))
    other = tuple({**calm, "seed": seed, "accuracy": 0.9, "label": "other"} for seed in range(5))
    again = Comparison((*seeds, *other))
    assert lines(again, "calm collapsed with seed 2, to 21.0 %; its other seeds end at 95.0 % and above.")
    assert again.table().cells["accuracy, %"][0].endswith("(1 collapsed)")


def test_a_page_of_single_runs_says_what_was_not_equal(tmp_path):
    kfl.run(BASE, tmp_path / "a")
    kfl.run(replace(BASE, algorithm=kfl.FedProto(learning_rate=0.1), rounds=2), tmp_path / "b")
    page = build_report([tmp_path / "a", tmp_path / "b"]).read_text()
    for line in ("Equal in all rows: data (mnist-5k)", "Rounds: 3 (kfl", "learning_rate: 0.05 (kfl"):
        assert line in page
