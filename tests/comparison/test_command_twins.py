"""`kfl compare --twins` as a user runs it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kfl.cli.main import main

SMALL = [
    *("--devices", "6", "--rounds", "2", "--samples-per-device", "12", "--scheduler.count", "3"),
    *("--widths", "8", "12", "--evaluate-every", "1", "--workers", "1", "--model", "cnn", "--distinct-classes"),
]


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A study that was run, with what it printed."""
    folder = tmp_path_factory.mktemp("sharing") / "out"
    methods = "kfl,shared-stem,lg-fedavg-head,local,simplex"
    words = ["compare", "--twins", *SMALL, "--algorithms", methods, "--seeds", "0,1", "--out", str(folder)]
    assert main(words) == 0
    return folder, words


def test_it_writes_results_and_a_table(digits, capsys):
    folder, words = digits
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    assert len(rows) == 5 * 2 and {row["seed"] for row in rows} == {0, 1}
    stem = next(row for row in rows if row["algorithm"] == "shared-stem")
    assert stem["bits_up"] == 2 * 3 * (2572 * 4 + 4 * 32)  # 156 + 2,416 values of four bits, and four scales
    text = (folder / "table.md").read_text()
    assert "| shared-stem |" in text and "kfl compare --twins" in text
    before = (folder / "results.jsonl").read_bytes()
    assert main(words) == 0  # nothing is run twice
    assert (folder / "results.jsonl").read_bytes() == before


def test_results_are_shown_again_without_running(digits, capsys):
    folder, _ = digits
    assert main(["compare", "--from", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "shared-stem" in shown and "twin" in shown and "best twin, which uploads nothing" in shown
    assert main(["compare", "--from", str(folder), "--algorithms", "kfl,local"]) == 0
    fewer = capsys.readouterr().out
    assert "shared-stem" not in fewer and "Holm's correction for 1 questions" in fewer


def test_an_earlier_name_of_the_command_is_rewritten_and_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [word for word in SMALL if word not in ("--model", "cnn", "--distinct-classes")]
    assert main(["sharing", *words, "--methods=kfl,local", "--seeds", "0", "--out", "out"]) == 0
    said = capsys.readouterr()
    assert said.err.startswith("kfl sharing is now: kfl compare --twins ") and "--algorithms=kfl,local" in said.err
    assert "--dataset mnist-5k" in said.err and "best twin" in said.out
    assert (
        main(["tune", *SMALL, "--algorithms", "local", "--seeds", "100", "--learning-rates", "0.1", "--out", "t"]) == 0
    )
    assert "kfl compare --search-only" in capsys.readouterr().err
    assert (tmp_path / "t" / "tuned.toml").read_text().endswith("[local]\nlearning_rate = 0.1\n")
    assert main(["sharing", "--published"]) == 2
    assert "python -m reproduction twins" in capsys.readouterr().err


def test_methods_that_networks_do_not_allow_are_left_out_with_a_reason(tmp_path, capsys):
    out = str(tmp_path / "out")
    words = [
        "compare",
        "--twins",
        *SMALL,
        "--model",
        "mlp",
        "--algorithms",
        "shared-stem,kfl,local",
        "--seeds",
        "0",
        "--out",
        out,
    ]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "Left out: shared-stem. The algorithm shared-stem can share nothing" in shown
    assert "--algorithm.budget-bits" in shown


def test_settings_of_a_method_that_is_not_there_are_refused(tmp_path, capsys):
    (tmp_path / "mine.toml").write_text("[fedprox]\nlearning_rate = 0.1\n")
    assert (
        main(["compare", "--twins", *SMALL, "--algorithms", "kfl,local", "--settings", str(tmp_path / "mine.toml")])
        == 2
    )
    assert "but must be a file with a table for one of kfl, local" in capsys.readouterr().err


def test_own_data_in_one_line(tmp_path, capsys):
    draw = np.random.default_rng(0)
    y = np.arange(240) % 3
    x = draw.normal(size=(240, 1, 16, 16)).astype(np.float32) + y[:, None, None, None]
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    words = ["compare", "--twins", "--dataset", str(tmp_path / "mine.npz"), "--model", "cnn", *SMALL, "--seeds", "0,1"]
    assert main([*words, "--algorithms", "fd,fedgh,fedmrl,local", "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "mine" in shown and "fedmrl" in shown and "Mean ± standard deviation over 2 seeds" in shown


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--algorithms", "kfl,nonesuch,local"], "'nonesuch'"),
        (["--search", "--search-seeds", "0", "--algorithms", "kfl,local"], "above 4"),
        (["--from", "nowhere"], "nowhere holds no results of kfl compare"),
        (["--entry", "odd: --rounds 9"], "entries that differ in nothing but the algorithm"),
        (["--seeds", "x", "--algorithms", "kfl,local"], "seeds"),
    ],
)
def test_bad_input_is_one_sentence(words, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "--twins", *SMALL, *words]) == 2
    said = capsys.readouterr().err.strip()
    assert sentence in said and "Traceback" not in said and said.startswith("kfl:")
    assert not list(tmp_path.iterdir())  # nothing is written for a command that cannot work


def test_the_same_search_for_everyone_runs_and_is_used(tmp_path, capsys):
    out = tmp_path / "out"
    words = [*SMALL, "--rounds", "1", "--algorithms", "kfl,local", "--seeds", "0", "--search", "--search-seeds", "100"]
    assert main(["compare", "--twins", *words, "--out", str(out)]) == 0
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    searched = [row for row in rows if row["seed"] == 100]
    assert len(searched) >= 2 * 9 and len(rows) == len(searched) + 2  # and what a widened grid adds
    best = max((row for row in searched if row["algorithm"] == "kfl"), key=lambda row: row["accuracy"])
    final = next(row for row in rows if (row["algorithm"], row["seed"]) == ("kfl", 0))
    assert final["settings"]["learning_rate"] == best["settings"]["learning_rate"]
    # What was found can be used again, in another condition.
    again = [*SMALL, "--rounds", "1", "--algorithms", "kfl,local", "--seeds", "1", "--out", str(tmp_path / "again")]
    assert main(["compare", "--twins", *again, "--settings", str(out / "tuned.toml")]) == 0
    rows = [json.loads(line) for line in (tmp_path / "again" / "results.jsonl").read_text().splitlines()]
    kfl = next(row for row in rows if row["algorithm"] == "kfl")
    assert kfl["settings"]["learning_rate"] == best["settings"]["learning_rate"]


def test_a_run_that_diverges_is_noted_and_not_tried_again(tmp_path, capsys):
    out = tmp_path / "out"
    words = [*SMALL, "--rounds", "6", "--algorithms", "kfl,local", "--seeds", "0", "--search", "--search-seeds", "100"]
    words += ["--rates", "0.05,1e20", "--out", str(out)]
    assert main(["compare", "--twins", *words]) == 0
    noted = [json.loads(line) for line in (out / "diverged.jsonl").read_text().splitlines()]
    assert {line["run"].split(", ")[0] for line in noted} == {"kfl", "local"}
    assert all("e+" in line["run"] for line in noted)  # the huge rates, and no other
    assert "devices diverged" in noted[0]["problem"]
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert {row["settings"]["learning_rate"] for row in rows if row["seed"] == 0} <= {0.05, 0.025}
    capsys.readouterr()
    before = {path: path.stat().st_mtime_ns for path in out.glob("*.jsonl") if path.name != "trials.jsonl"}
    assert not list(out.glob("kfl-*-seed100-*"))  # trials leave results, and no run folders
    assert main(["compare", "--twins", *words]) == 0
    assert before.items() <= {path: path.stat().st_mtime_ns for path in out.glob("*.jsonl")}.items()
