"""kfl demo as a user runs it, and what it says of every outcome."""

import io
import os
import shlex
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from kfl.cli.demo import DemoArgs, activation, columns, lines_of, page
from kfl.cli.main import main as kfl
from kfl.cli.options import parse
from kfl.comparison.demo_account import account, conclusion, findings, not_shown, seeds_of
from kfl.comparison.presets import DEMO as METHODS
from kfl.comparison.records import read_records
from kfl.comparison.rows import summarise_rows

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results" / "demo"
TINY = ["--devices", "6", "--rounds", "2", "--workers", "1"]


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


def test_a_first_run_from_start_to_the_commands_it_recommends(capsys, monkeypatch):
    """A battery that pays for small uploads, and for no whole network."""
    demo = ["demo", *TINY, "--battery-j", "0.0475", "--out", "first"]
    assert kfl(demo) == 0
    shown = capsys.readouterr().out
    told = shown.partition("[7/7]")[2]
    assert "a battery of 47.5 mJ for each device, 250 kHz of band for all, 2 rounds" in " ".join(shown.split())
    assert all(name in told and name in shown.partition("[1/7]")[0] for name in METHODS)
    assert "not feasible" in told
    assert "fedavg could not run: " in " ".join(told.split())
    assert all(f"\n{word}" in told for word in ("Findings: ", "Not shown: ", "Conclusion: ", "Next:"))
    assert "J spent by all devices" in told
    results = told.partition("Next:")[0]
    assert max(map(len, shown.partition("[1/7]")[0].splitlines())) <= 80

    stamps = {path: path.stat().st_mtime_ns for path in Path("first").glob("*/summary.json")}
    assert len(stamps) == len(METHODS)
    assert kfl(demo) == 0  # nothing is played twice
    again = capsys.readouterr().out
    assert "[1/" not in again
    assert again.endswith(results.partition("\n")[2] + told[len(results) :])
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())

    commands = [line.strip() for line in told.replace("\\\n", "").splitlines() if line.strip().startswith("kfl ")]
    report, compare, schedule = (shlex.split(command)[1:] for command in commands[-3:])
    assert kfl([word for word in report if word != "--open"]) == 0
    assert kfl([*compare, "--seeds", "0", "--workers", "1", "--out", "compared"]) == 0
    assert "fedproto" in capsys.readouterr().out
    assert kfl(schedule[: schedule.index("|")]) == 0
    example = io.BytesIO(capsys.readouterr().out.encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(example))
    assert kfl(schedule[schedule.index("|") + 2 :]) == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--radio", "smoke"], "radio is 'smoke', but must be one of sensors, "),
        (["--battery-j", "-1"], "battery_j is -1.0, but must be a positive number of joules"),
        (["--seeds", "all"], "seeds is 'all'"),
        (["--rounds", "0"], "rounds is 0"),
        (["--from", "runs/demo"], "kfl demo --from is now kfl compare --from runs/demo."),
    ],
)
def test_what_cannot_work_is_answered_in_a_sentence(arguments, sentence, capsys):
    assert kfl(["demo", *arguments]) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert not captured.out
    assert not list(Path().iterdir())


def record(name, seed, accuracy, rounds=8.0, uploaded=0.0):
    """A run of twenty devices over sixteen rounds that ended with this accuracy."""
    took_part = rounds * 20 / 16
    return {
        "algorithm": name,
        "seed": seed,
        "accuracy": accuracy,
        "worst_tenth": accuracy / 2,
        "devices": 20,
        "rounds": 16,
        "settings": {"local_steps": 5},
        "energy_j": 4.0 if took_part else 0.0,
        "time_s": 20.0,
        "bits_up": 8 * uploaded * rounds * 20,
        "devices_per_round": took_part,
        "rounds_with_nobody": 0 if took_part else 16,
        "devices_over_budget": 0,
        "devices_never_chosen": 0 if took_part else 20,
        "why_nobody": None if took_part else {"code": "nobody_affords"},
        "curve": {"rounds": [8.0, 16.0], "joules": [2.0, 4.0], "accuracy": [accuracy / 2, accuracy]},
    }


def runs(stem, twin=(0.70,), knowledge=(0.64,), fedavg_rounds=3.0):
    """Runs of the five methods with one seed for each accuracy of the stem."""
    found = []
    for seed, accuracy in enumerate(stem):
        found += [
            record("shared-stem", seed, accuracy, uploaded=1300),
            record("kfl", seed, knowledge[seed % len(knowledge)], uploaded=2560),
            record("fixed-knowledge", seed, twin[seed % len(twin)]),
            record("local", seed, 0.40),
            record("fedavg", seed, 0.14, fedavg_rounds, uploaded=54_000),
        ]
    return found


def said(records):
    rows = summarise_rows(records, "local")
    return findings(rows, records), not_shown(rows, records)


def test_an_upload_above_its_twin_was_worth_its_energy():
    found, missing = said(runs([0.79]))
    assert found.startswith(
        "shared-stem ends 9.0 points above fixed-knowledge, the best that uploads nothing, and 39.0 points above "
        "training alone, for 4 J against 4 J: here its upload is worth the energy."
    )
    assert found.endswith("fedavg uploads 432 kbit at a time and got into 3.0 rounds per device, shared-stem into 8.0.")
    assert missing.startswith("that kfl's knowledge helps: fixed-knowledge, the same pull without an upload, ends 6.0 ")


def test_an_upload_below_its_twin_was_not():
    found, _ = said(runs([0.60], knowledge=(0.65,)))
    assert found.startswith("fixed-knowledge, which uploads nothing, ends 5.0 points above kfl, the best that uploads")
    assert "better spent on training" in found


def test_a_few_points_of_one_seed_are_a_tie():
    found, missing = said(runs([0.73], knowledge=(0.67,)))
    assert "shared-stem, the best that uploads, and fixed-knowledge, which uploads nothing, are level" in found
    assert "is level with it" in missing


def test_seeds_decide_by_their_interval_and_not_by_the_size():
    wide = runs([0.90, 0.60, 0.90], twin=(0.70, 0.75, 0.70))  # five points above on average, and below in one seed
    assert "are level" in said(wide)[0]
    narrow = runs([0.715, 0.713, 0.714], twin=(0.70,))
    assert "shared-stem ends 1.4 points [1.2, 1.6] above fixed-knowledge" in said(narrow)[0]
    under = runs([0.60, 0.61, 0.60], twin=(0.70, 0.71, 0.70), knowledge=(0.69, 0.701, 0.69))
    assert "fixed-knowledge, which uploads nothing, ends 1.0 points [" in said(under)[0]


def test_knowledge_above_its_twin_is_not_called_unproven():
    assert said(runs([0.79], knowledge=(0.75,)))[1] == "how it is in another cell, with other data or other networks."


def test_a_method_that_could_not_run_is_named_with_the_reason_and_left_out_of_the_plot():
    records = runs([0.79], fedavg_rounds=0.0)
    found, _ = said(records)
    assert found.endswith("fedavg could not run: No device can pay for this round out of its allowance.")
    assert columns(records)["minus local"][-1] == "not feasible"
    lines, across, _ = lines_of(records)
    assert [line.name.split()[0] for line in lines] == ["shared-stem", "kfl", "fixed-knowledge", "local"]
    assert across == "J spent by all devices"
    assert "no method could run" in findings(*_no_participants())


def _no_participants():
    records = [record(name, 0, 0.1, 0.0) for name in METHODS]
    return summarise_rows(records, "local"), records


def test_how_many_seeds_there_are_is_always_said():
    assert seeds_of(runs([0.79])).startswith("One seed (0)")
    assert seeds_of(runs([0.79, 0.78, 0.8])).startswith("Seeds 0–2: mean ± standard deviation")
    assert account(runs([0.79]))[-1].startswith("Conclusion: in this cell ")
    assert "One seed (0)" in account(runs([0.79]))[-1]


@pytest.mark.parametrize(
    ("records", "words"),
    [
        (runs([0.79]), "83.2 kbit uploaded per device gain 9.0 points over the best method without uploads."),
        (runs([0.73], knowledge=(0.67,)), "uploads gain no measurable accuracy over training with fixed-knowledge"),
        (runs([0.60], knowledge=(0.65,)), "uploads gain nothing over training with fixed-knowledge"),
        ([record(name, 0, 0.1, 0.0) for name in METHODS], ""),
    ],
)
def test_the_last_sentence_says_what_to_take_away(records, words):
    found = conclusion(summarise_rows(records, "local"), records)
    assert words in found and bool(words) == bool(found)


def test_the_command_that_activates_an_environment_is_one_that_works(tmp_path, monkeypatch):
    venv.create(tmp_path / "my env", with_pip=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "my env" / "bin" / "python"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "my env"))
    monkeypatch.setenv("PATH", os.defpath)
    (command,) = activation()
    assert command == "source 'my env/bin/activate'"
    shown = subprocess.run(
        ["bash", "-c", f"{command} && command -v python"], capture_output=True, text=True, check=True
    ).stdout
    assert shown.strip() == str(tmp_path / "my env" / "bin" / "python")
    monkeypatch.setenv("PATH", str(tmp_path / "my env" / "bin"))
    (tmp_path / "my env" / "bin" / "kfl").touch(mode=0o755)
    assert activation() == []


PAGES = sorted(RESULTS.rglob("demo.md"))


@pytest.mark.parametrize("file", PAGES, ids=[file.parent.name for file in PAGES])
def test_a_published_page_is_that_of_the_committed_results(file):
    """The page next to the results of five seeds is what the command makes of them today."""
    text = file.read_text(encoding="utf-8")
    command, _, *words = shlex.split(text.rstrip("`\n").rpartition("```\n")[2])
    assert command == "kfl"
    options = parse(DemoArgs, words, "kfl demo", "")
    records = read_records(file.parent / "results.jsonl")
    assert page(records, options) == text
    assert "Seeds 0–4" in text


def test_the_settings_of_the_demo_are_those_that_the_search_found():
    rows = [line.strip("| ").split(" | ") for line in (RESULTS / "search.md").read_text().splitlines()[2:]]
    best = {row[0]: row for row in rows if row[0] in METHODS}
    assert set(best) == {name for name, method in METHODS.items() if method.trains}  # the others have no such settings
    for name, (_, _, steps, rate, pull, _) in best.items():
        chosen = METHODS[name]
        weight = getattr(chosen, "knowledge_weight", None)
        assert (str(chosen.local_steps), f"{chosen.learning_rate:g}") == (steps, rate)
        assert ("–" if weight is None else f"{weight:.3g}") == pull
