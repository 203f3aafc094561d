"""kfl compare, its search, and kfl export as a user runs them."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from kfl.cli.main import main
from kfl.cli.options import whole_numbers
from kfl.core.errors import ConfigError

QUICK = ["--dataset", "digitlike:data", "--devices", "6", "--rounds", "3", "--scheduler.count", "2"]
SMALL = [*QUICK, "--widths", "8", "12", "--workers", "1"]


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "digitlike", raising=False)
    Path("digitlike.py").write_text(
        "import numpy as np, kfl\n"
        "def data():\n"
        "    y = np.arange(240) % 4\n"
        "    x = np.random.default_rng(0).normal(size=(240, 1, 5, 5)).astype('float32') + y[:, None, None, None]\n"
        "    return kfl.Dataset.from_arrays(x, y, name='digitlike', note='Drawn, not real.')\n"
    )


def lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_one_table_one_plot_and_raw_results(capsys):
    assert main(["compare", *SMALL, "--seeds", "0..2", "--out", "c"]) == 0
    shown = capsys.readouterr().out
    for words in ("seeds 0–2", "kfl", "local", "self-knowledge", "fixed-knowledge", "minus local", "worst", "energy"):
        assert words in shown
    for words in ("over 3 seeds", "95 %", "Drawn, not real.", "accuracy-by-rounds.png", "--from c --x joules"):
        assert words in shown
    assert Path("c/accuracy-by-rounds.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in Path("c/accuracy-by-rounds.svg").read_text()
    found = lines("c/results.jsonl")
    assert len(found) == 12
    assert [(line["algorithm"], line["seed"]) for line in found[:4]] == [
        ("kfl", 0),
        ("kfl", 1),
        ("kfl", 2),
        ("local", 0),
    ]
    assert all(len(line["curve"]["accuracy"]) == 3 for line in found)
    assert all(len(json.dumps(line)) < 2500 for line in found)
    table = Path("c/table.md").read_text()
    assert table.count("\n|") == 6
    assert "kfl compare --dataset digitlike:data" in table


def test_a_comparison_goes_on_where_it_stopped_and_grows(capsys):
    assert main(["compare", *SMALL, "--algorithms", "kfl,local", "--seeds", "0", "--out", "c"]) == 0
    stamps = {path: path.stat().st_mtime_ns for path in Path("c").glob("*/summary.json")}
    shown = capsys.readouterr().out
    assert "One seed" in shown
    assert main(["compare", *SMALL, "--algorithms", "kfl,local", "--seeds", "0,1", "--out", "c"]) == 0
    assert len(stamps) == 2
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    assert len(lines("c/results.jsonl")) == 4
    assert "[2/2] local, seed 1" in capsys.readouterr().out  # only what is new was played


def test_results_are_shown_again_without_running(capsys):
    assert main(["compare", *SMALL, "--algorithms", "kfl,local,fedproto", "--seeds", "0,1", "--out", "c"]) == 0
    first = capsys.readouterr().out
    for path in Path("c").glob("*/rounds.jsonl"):
        path.unlink()
    assert main(["compare", "--from", "c", "--x", "bits"]) == 0
    again = capsys.readouterr().out
    assert [row for row in first.splitlines() if " ± " in row] == [row for row in again.splitlines() if " ± " in row]
    assert Path("c/accuracy-by-bits.svg").exists()
    assert (
        main(["compare", "--from", "c/results.jsonl", "--algorithms", "fedproto,kfl", "--seeds", "1", "--out", "d"])
        == 0
    )
    shown = capsys.readouterr().out
    assert "minus fedproto" in " ".join(shown.split())
    assert "local" not in shown
    assert Path("d/accuracy-by-rounds.png").exists()


def test_an_infeasible_method_is_said_to_be_so(capsys):
    words = [*QUICK, "--equal-models", "16", "--workers", "1", "--hard-budget", "--radio.bandwidth-hz", "50"]
    words += ["--algorithms", "local,fedavg", "--seeds", "0", "--x", "joules", "--out", "c"]
    assert main(["compare", *words]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for expected in ("rounds with", "3 of 3", "0 of 3", "not feasible", "fedavg is not feasible here", "No device can"):
        assert expected in shown
    line = lines("c/results.jsonl")[1]
    assert (line["rounds_with_nobody"], line["devices_per_round"], line["energy_j"]) == (3, 0, 0)


def test_flags_for_all_and_a_file_for_each():
    Path("own.toml").write_text("[kfl]\nlearning_rate = 0.2\nknowledge_weight = 0.5\n[local]\nmomentum = 0.1\n")
    words = [*SMALL, "--algorithms", "kfl,local", "--seeds", "3", "--settings", "own.toml", "--out", "c"]
    assert main(["compare", *words, "--algorithm.local-steps", "2", "--algorithm.momentum=0.9"]) == 0
    ours, alone = (line["settings"] for line in lines("c/results.jsonl"))
    assert (ours["learning_rate"], ours["knowledge_weight"], ours["local_steps"]) == (0.2, 0.5, 2)
    assert (alone["learning_rate"], alone["momentum"], alone["local_steps"]) == (0.05, 0.9, 2)


def test_the_config_of_a_run_is_a_setting_to_compare_in(capsys):
    run = ["run", *QUICK, "--widths", "8", "--no-models", "--out", "r", "--algorithm.momentum", "0.3"]
    assert main([*run, "--algorithm.knowledge-weight", "0.7"]) == 0
    words = ["--config", "r/config.toml", "--algorithms", "kfl,fedavg", "--seeds", "0", "--workers", "1", "--out", "c"]
    assert main(["compare", *words]) == 0
    ours, theirs = lines("c/results.jsonl")
    assert (ours["settings"]["knowledge_weight"], ours["settings"]["momentum"]) == (0.7, 0.3)
    assert theirs["settings"]["momentum"] == 0.3
    assert ours["accuracy"] == json.loads(Path("r/summary.json").read_text())["accuracy"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["compare", "--algorithms", "kfl,fedsgd"], ["algorithms is 'fedsgd'", "fedavg"]),
        (["compare", "--algorithms", ","], ["algorithms is ','"]),
        (["compare", "--seeds", "4..0"], ["seeds is '4..0'", "0..4"]),
        (["compare", "--seeds", "few"], ["seeds is 'few'"]),
        (["compare", "--seed", "3"], ["seed is '3'", "--seeds 3"]),
        (["compare", "--algorithm", "kfl", "--algorithms", "local"], ["algorithm is 'kfl'", "left out with"]),
        (["compare", "--algorithms", "kfl,fedavg"], ["fedavg averages weights", "--equal-models 256"]),
        (
            ["compare", "--algorithm", "fedavg", "--vary", "algorithm.momentum=0.5,0.8"],
            ["fedavg averages weights", "one width with --equal-models 256."],
        ),
        (["compare", "--reference", "apfl"], ["reference is 'apfl'"]),
        (["compare", "--settings", "missing.toml"], ["missing.toml"]),
        (["compare", "--from", "nowhere"], ["nowhere", "no results"]),
        (["compare", "--workers", "0"], ["workers is 0"]),
        (["compare", "--equal-models", "0"], ["widths is (0,)"]),
        (["compare", "--devices", "0"], ["devices is 0"]),
        (["compare", "--dataset", "mnist", "--data-dir", "nowhere"], ["train-images-idx3-ubyte"]),
        (["compare", "--algorithm.learning-rate", "-1"], ["learning_rate is -1"]),
        (["compare", "--search", "--search-seeds", "3,100"], ["seeds is '3'", "--allow-report-seeds"]),
        (["compare", "--search-only", "--rates", "0.1,fast"], ["learning_rates is '0.1,fast'"]),
        (["compare", "--search-only", "--algorithms", "fedrep"], ["fedrep averages weights"]),
        (["export", "nowhere"], ["nowhere is not a run folder"]),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_runs(words, expected, capsys):
    assert main(words) == 2
    printed = capsys.readouterr()
    assert all(word in printed.err for word in expected), printed.err
    assert printed.err.startswith("kfl: ")
    assert len(printed.err.splitlines()) == 1
    assert not Path("runs").exists()


def test_one_failing_algorithm_is_reported_after_the_table_of_the_others(capsys):
    Path("own.toml").write_text("[fedkd]\nproxy_per_class = 10000\n")
    words = [*SMALL, "--algorithms", "kfl,fedkd", "--settings", "own.toml", "--seeds", "0,1", "--out", "c"]
    assert main(["compare", *words]) == 2
    printed = capsys.readouterr()
    assert "over 2 seeds" in printed.out
    assert "2 of 4 runs failed" in printed.err
    assert "proxy_per_class" in printed.err
    assert len(printed.err.splitlines()) == 1


@pytest.mark.parametrize("text", ["", "1,", "-1", "0..", "..3", "1.5", "0..999999999", "1;2", "4..0"])
def test_lists_of_numbers_that_make_no_sense(text):
    with pytest.raises(ConfigError, match="seeds"):
        whole_numbers(text, "seeds")


def test_help_of_the_new_commands_needs_no_pytorch():
    for name in ("compare", "export"):
        program = (
            f"import sys\nfrom kfl.cli.main import main\ntry: main(['{name}', '--help-all'])\nexcept SystemExit: pass\n"
            "assert 'torch' not in sys.modules"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        for option in {"compare": ["--seeds", "--x", "--from", "--rates"], "export": ["--devices"]}[name]:
            assert option in done.stdout


def test_interrupting_a_comparison_says_how_to_go_on():
    words = ["compare", *QUICK[:-4], "--rounds", "100000", "--widths", "8", "--workers", "2", "--seeds", "0"]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    arguments = [sys.executable, "-m", "kfl.cli.main", *words, "--out", "c"]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, env=environment) as process:
        until = time.monotonic() + 90
        while time.monotonic() < until and process.poll() is None and not list(Path("c").glob("*/rounds.jsonl")):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, shown = process.communicate(timeout=60)
    assert process.returncode == 130, shown
    assert "To continue: kfl compare" in shown
    assert "Traceback" not in shown


def test_tuning_is_equal_recorded_and_usable(capsys):
    words = [*QUICK, "--rounds", "2", "--equal-models", "8", "--workers", "1", "--algorithms", "kfl,local,fedrep"]
    tune = ["compare", "--search-only", *words, "--rates", "0.05,0.1", "--out", "t"]
    assert main(tune) == 0
    assert "development seeds 100, 101" in capsys.readouterr().out
    trials = lines("t/trials.jsonl")
    assert len(trials) >= 18
    tuned = tomllib.loads(Path("t/tuned.toml").read_text())
    assert set(tuned) == {"kfl", "local", "fedrep"}
    for name in tuned:
        mine = [trial for trial in trials if trial["algorithm"] == name]
        assert 6 <= len(mine) <= 12  # widened at most three times, at one edge or two
        top = max(mine, key=lambda trial: trial["mean"])
        assert tuned[name] == top["searched"]
        assert top["mean"] == pytest.approx(sum(top["accuracy"]) / 2)
    before = {name: Path("t", name).read_bytes() for name in ("trials.jsonl", "results.jsonl")}
    assert len(lines("t/results.jsonl")) == 2 * len(trials)
    capsys.readouterr()
    assert main(tune) == 0
    assert "[1/" not in capsys.readouterr().out  # nothing is played again
    assert {name: Path("t", name).read_bytes() for name in before} == before
    assert main(["compare", *words, "--seeds", "0", "--settings", "t/tuned.toml", "--out", "c"]) == 0
    for line in lines("c/results.jsonl"):
        assert line["settings"] == {**line["settings"], **tuned[line["algorithm"]]}


def test_export_writes_chosen_devices_and_says_how_to_load_them(capsys):
    assert main(["run", *QUICK, "--widths", "8", "12", "--out", "r"]) == 0
    capsys.readouterr()
    assert main(["export", "r", "--devices", "0,3..4", "--out", "e"]) == 0
    shown = capsys.readouterr().out
    assert "3 models of kfl" in shown
    assert "from load import load" in shown
    names = {path.name for path in Path("e").iterdir()}
    assert names == {f"device-0000{k}.{kind}" for k in (0, 3, 4) for kind in ("safetensors", "json")} | {"load.py"}
    assert main(["export", "r", "--out", "all"]) == 0
    assert len(list(Path("all").glob("*.safetensors"))) == 6
    assert main(["export", "r", "--devices", "5,6", "--out", "f"]) == 2
    assert "devices is 6, but must be from 0 to 5" in capsys.readouterr().err
    assert not Path("f").exists()
    assert main(["run", *QUICK, "--widths", "8", "--no-models", "--out", "light"]) == 0
    assert main(["export", "light"]) == 2
    assert "did not keep its models" in capsys.readouterr().err


def test_a_trial_that_diverges_has_lost_and_no_more(capsys):
    words = ["compare", "--search-only", *QUICK, "--rounds", "6", "--equal-models", "8", "--workers", "1"]
    words += ["--algorithms", "local", "--search-seeds", "100"]
    assert main([*words, "--rates", "0.05,1e12", "--out", "t"]) == 0
    assert "devices diverged" in lines("t/diverged.jsonl")[0]["problem"]
    assert tomllib.loads(Path("t/tuned.toml").read_text()) == {"local": {"learning_rate": 0.05}}
    assert lines("t/trials.jsonl")[1]["accuracy"] == [None]
    assert main([*words, "--rates", "1e12", "--out", "u"]) == 2
    assert "diverged in round 5" in capsys.readouterr().err


def test_it_is_said_everywhere_that_only_some_devices_were_tested(capsys):
    some = [*QUICK, "--widths", "8", "12", "--split", "overlap", "--samples-per-device", "20", "--tested-devices", "3"]
    assert main(["compare", *some, "--workers", "1", "--seeds", "0", "--out", "c"]) == 0
    assert "6 devices (3 tested)" in capsys.readouterr().out
    assert "6 devices (3 tested)" in Path("c/table.md").read_text()
    assert "accuracy over tested devices" in Path("c/accuracy-by-rounds.svg").read_text()
    assert main(["run", *some, "--radio", "none", "--out", "r"]) == 0
    shown = capsys.readouterr().out
    assert "accuracy, 3 tested devices" in shown
    devices = json.loads(Path("r/devices.json").read_text())
    took = sum(device["rounds"] > 0 for device in devices if device["accuracy"] is not None)
    assert f"{took} of the 3 tested devices ever took part." in shown
    assert main(["report", "r"]) == 0
    assert "3 of 6 devices" in Path("r/report.html").read_text(encoding="utf-8")
    assert main(["run", *QUICK, "--widths", "8", "--out", "whole"]) == 0
    assert "accuracy, all devices" in capsys.readouterr().out
