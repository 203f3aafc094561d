"""`kfl sharing` as a user runs it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kfl.cli.main import main

SMALL = [
    *("--devices", "6", "--rounds", "2", "--samples-per-device", "12", "--scheduler.count", "3"),
    *("--widths", "8", "12", "--evaluate-every", "1", "--workers", "1"),
]


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A study that was run, with what it printed."""
    folder = tmp_path_factory.mktemp("sharing") / "out"
    methods = "kfl,shared-stem,lg-fedavg-head,local,simplex"
    words = ["sharing", *SMALL, "--methods", methods, "--seeds", "0,1", "--out", str(folder)]
    assert main(words) == 0
    return folder, words


def test_it_writes_results_and_a_table(digits, capsys):
    folder, words = digits
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    assert len(rows) == 5 * 2 and {row["seed"] for row in rows} == {0, 1}
    stem = next(row for row in rows if row["algorithm"] == "shared-stem")
    assert stem["bits_up"] == 2 * 3 * (2572 * 4 + 4 * 32)  # 156 + 2,416 values of four bits, and four scales
    text = (folder / "sharing.md").read_text()
    assert "| shared-stem |" in text and "kfl sharing" in text
    assert not list((folder / "runs").glob("*"))  # run folders go once their results are written
    before = (folder / "results.jsonl").read_bytes()
    assert main(words) == 0  # nothing is run twice
    assert (folder / "results.jsonl").read_bytes() == before
    assert "Does" not in capsys.readouterr().err


def test_results_are_shown_again_without_running(digits, capsys):
    folder, words = digits
    options = [word for word in words if word not in ("--out", str(folder))]
    assert main([*options, "--from", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "shared-stem" in shown and "twin" in shown
    assert main([*options, "--rounds", "3", "--from", str(folder)]) == 0  # results of another setting are not these
    assert "Nothing is finished yet" in capsys.readouterr().out


def test_methods_that_networks_do_not_allow_are_left_out_with_a_reason(tmp_path, capsys):
    out = str(tmp_path / "out")
    words = ["sharing", *SMALL, "--model", "mlp", "--methods", "shared-stem,kfl,local", "--seeds", "0", "--out", out]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "Left out: shared-stem. The algorithm shared-stem can share nothing" in shown
    assert "--algorithm.budget-bits" in shown


def test_settings_of_a_method_that_is_not_there_are_refused(tmp_path, capsys):
    (tmp_path / "mine.toml").write_text("[fedprox]\nlearning_rate = 0.1\n")
    assert main(["sharing", *SMALL, "--methods", "kfl,local", "--settings", str(tmp_path / "mine.toml")]) == 2
    assert "a table named after a method: kfl, local" in capsys.readouterr().err


def test_own_data_in_one_line(tmp_path, capsys):
    draw = np.random.default_rng(0)
    y = np.arange(240) % 3
    x = draw.normal(size=(240, 1, 16, 16)).astype(np.float32) + y[:, None, None, None]
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    words = ["sharing", "--dataset", str(tmp_path / "mine.npz"), "--model", "cnn", *SMALL, "--seeds", "0,1"]
    assert main([*words, "--methods", "fd,fedgh,fedmrl,local", "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "mine" in shown and "fedmrl" in shown and "Mean ± standard deviation over 2 seeds" in shown


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--methods", "kfl"], "a twin that uploads nothing"),
        (["--methods", "kfl,nobody,local"], "'nobody'"),
        (["--published"], "python -m reproduction twins"),
        (["--search", "--search-seeds", "0", "--methods", "kfl,local"], "above 4"),
        (["--from", "nowhere", "--methods", "kfl,local"], "a folder that kfl sharing wrote"),
        (["--seeds", "x", "--methods", "kfl,local"], "seeds"),
    ],
)
def test_bad_input_is_one_sentence(words, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["sharing", *SMALL, *words]) == 2
    said = capsys.readouterr().err.strip()
    assert sentence in said and "Traceback" not in said and said.startswith("kfl:")
    assert not list(tmp_path.iterdir())  # nothing is written for a command that cannot work


def test_the_same_search_for_everyone_runs_and_is_used(tmp_path, capsys):
    out = tmp_path / "out"
    words = [*SMALL, "--rounds", "1", "--methods", "kfl,local", "--seeds", "0", "--search", "--search-seeds", "100"]
    assert main(["sharing", *words, "--out", str(out)]) == 0
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    searched = [row for row in rows if row["run"].startswith("search")]
    assert len(searched) == 2 * 9 and len(rows) == 2 * 9 + 2
    best = max((row for row in searched if row["algorithm"] == "kfl"), key=lambda row: row["accuracy"])
    final = next(row for row in rows if row["run"] == "own, kfl, searched, seed 0")
    assert final["settings"]["learning_rate"] == best["settings"]["learning_rate"]
    # What was found can be used again, in another condition.
    again = [*SMALL, "--rounds", "1", "--methods", "kfl,local", "--seeds", "1", "--out", str(tmp_path / "again")]
    assert main(["sharing", *again, "--settings", str(out / "searched-own.toml")]) == 0
    rows = [json.loads(line) for line in (tmp_path / "again" / "results.jsonl").read_text().splitlines()]
    kfl = next(row for row in rows if row["algorithm"] == "kfl")
    assert kfl["settings"]["learning_rate"] == best["settings"]["learning_rate"]


def test_a_run_that_diverges_is_noted_and_not_tried_again(tmp_path, capsys):
    out = tmp_path / "out"
    words = [*SMALL, "--rounds", "6", "--methods", "kfl,local", "--seeds", "0", "--search", "--search-seeds", "100"]
    words += ["--learning-rates", "0.05,1e20", "--out", str(out)]
    assert main(["sharing", *words]) == 0
    noted = [json.loads(line) for line in (out / "diverged.jsonl").read_text().splitlines()]
    assert {line["run"].split(", ")[1] for line in noted} == {"kfl", "local"}
    assert all("e+" in line["run"] for line in noted)  # the huge rates, and no other
    assert "ran off to infinity" in noted[0]["problem"]
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert {row["settings"]["learning_rate"] for row in rows if row["seed"] == 0} <= {0.05, 0.025}
    capsys.readouterr()
    before = sorted(path.name for path in (out / "runs").glob("*"))
    stamps = {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*")}
    assert main(["sharing", *words]) == 0
    assert sorted(path.name for path in (out / "runs").glob("*")) == before
    assert {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*")} == stamps
