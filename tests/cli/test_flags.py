"""The command line as people type it: other programs' flags, near misses, switches, help, and where files go."""

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kfl.cli.completion import flags_of_command
from kfl.cli.main import COMMANDS, main

ROOT = Path(__file__).parents[2]
QUICK = "--devices 6 --rounds 2 --widths 8 --scheduler.count 3 --radio none"


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture
def answer(capsys):
    """The one sentence that a wrong command is answered with."""

    def ask(line):
        assert main(shlex.split(line)) == 2, line
        printed = capsys.readouterr()
        assert printed.out == "" and len(printed.err.splitlines()) == 1, printed
        assert not list(Path().iterdir())
        return printed.err.strip()

    return ask


MEANT = {
    "run --lr 0.1 --clients 20": [
        "--lr (did you mean --algorithm.learning-rate?)",
        "--clients (did you mean --devices?)",
    ],
    "run -jr 0.1 -gr 5": ["-jr (did you mean --scheduler.count?)", "-gr (did you mean --rounds?)"],
    "run --algorithm.mu 0.1": ["did you mean --algorithm.knowledge-weight?"],
    "run --algorithm fedproto --prototype-wieght 1": ["did you mean --algorithm.prototype-weight?"],
    "run --devcies 3 --xyzzy": ["--devcies (did you mean --devices?)", "--xyzzy;"],
    "run --scheduler dual --scheduler.count 3": ["--scheduler.count (an option of --scheduler round-robin, uniform"],
    "compare --times 3": ["--times (did you mean --seeds?)"],
    "data show --clients 3": ["did you mean --devices?"],
    "run mnist": ["'mnist'", "kfl run --help"],
    "run --rounds 3 4": ["'4'"],
    "run --dataset FashionMNIST": ["did you mean fashion-mnist?"],
    "run --algorithm FedAvg": ["did you mean fedavg?"],
    "run --scheduler lyapunv": ["did you mean lyapunov?"],
    "run --scheduler random": ["did you mean uniform?"],
    "run --radio NBIoT": ["did you mean nb-iot?"],
    "run --radio.fading raylegh": ["did you mean rayleigh?"],
    "run --radio.harvest solar_constant": ["one of none, constant, sun"],
    "run --model mobilnet": ["did you mean mobilenet?"],
    "run --track tensorbord": ["did you mean tensorboard?"],
    "compare --twins --algorithms fedprotto": ["did you mean fedproto?"],
    "data fetch": ["did you mean 'kfl data download'?"],
    "deploy upp": ["did you mean 'kfl deploy up'?"],
    "train": ["did you mean 'kfl run'?"],
    "bound one": ["python -m reproduction bound"],
    "paper fig2a": ["python -m reproduction figures"],
}
"""What is typed, and what the one sentence about it has."""


def test_words_that_are_not_known_are_one_sentence_with_what_was_meant(answer):
    for typed, parts in MEANT.items():
        said = answer(typed)
        assert all(part in said for part in parts), said


VALUES = {
    "run --rounds ten": ["--rounds", "'ten' is not a number"],
    "run --rounds 1.5": ["--rounds", "'1.5' is not an integer"],
    "run --rounds": ["--rounds", "Missing value"],
    "run --algorithm.learning-rate 0,1": ["did you mean", "0.1?"],
    "run --tested-devices some": ["'some' is not a number", "N|none"],
    "run --split noniid": ["did you mean shards?"],
    "run --device gpu": ["did you mean cuda?"],
    "run --precision fp32": ["did you mean float32?"],
    "run --widths 8,x": ["'x' is not a number"],
    "data download FEMINST": ["did you mean femnist?"],
    "deploy device --number 1": ["--superlink", "--root-certificates", "--key"],
    "resume": ["RUN_FOLDER", "The run folder to continue"],
}
"""Values that cannot be read, and what tyro's explanation says of them."""


def test_values_that_cannot_be_read_are_explained(capsys):
    for typed, parts in VALUES.items():
        assert main(typed.split()) == 2, typed
        printed = capsys.readouterr()
        assert printed.out == "" and "Traceback" not in printed.err
        assert all(part in printed.err for part in parts), printed.err
        assert not list(Path().iterdir())


@pytest.mark.parametrize(
    ("name", "text", "line", "meant"),
    [
        ("cell.csv", "device,gain_db\na,-90\n", "schedule cell.csv", "did you mean id?"),
        ("cell.csv", "id,gian_db\na,-90\n", "schedule cell.csv", "did you mean gain_db?"),
        ("cell.csv", "id,Gain_dB\na,-90\n", "schedule cell.csv", "did you mean gain_db?"),
        ("gains.csv", "time,device,gain_db\n0,*,-90\n", "run --gain-trace gains.csv", "is time meant to be time_s?"),
        ("gains.csv", "round,ue,gain\n0,*,1\n", "run --gain-trace gains.csv", "is ue meant to be device?"),
        ("it.toml", "[radio]\nfading = 'raylegh'\n", "run --config it.toml", "did you mean rayleigh?"),
        ("it.toml", "split = 'dirichlett'\n", "run --config it.toml", "did you mean dirichlet?"),
    ],
)
def test_headers_and_files_too(name, text, line, meant, capsys):
    Path(name).write_text(text)
    assert main(line.split()) == 2
    assert meant in capsys.readouterr().err


def test_values_as_people_type_them(capsys):
    for words, hard, memory in (
        ("", False, True),
        ("--hard-budget --algorithm.no-memory", True, False),
        ("--hard_budget --no-hard-budget", False, True),
    ):
        folder = f"{hard}{memory}{len(words)}"
        line = f"run {words} --devices 6 --rounds 1e0 --widths 8,12 --tested_devices none --no-baseline -q"
        line += f" --out {folder} --radio wifi --radio.budget-j-per-round 9 --radio.noise-dbm-per-hz -170"
        assert main(line.split()) == 0
        config = tomllib.loads((Path(folder) / "config.toml").read_text())
        assert (config["hard_budget"], config["algorithm"]["memory"]) == (hard, memory)
        assert (config["widths"], config["rounds"], config["tested_devices"]) == ([8, 12], 1, "none")
        assert config["radio"]["noise_dbm_per_hz"] == -170


def test_a_budget_on_the_command_line_overrides_the_file(capsys):
    assert main(["schedule", "--example"]) == 0
    problem = json.loads(capsys.readouterr().out)
    for said, word in ((True, "no"), (False, "yes")):
        Path("p.json").write_text(json.dumps({**problem, "hard_budget": said}))
        assert main(["schedule", "p.json", "--hard-budget", word, "--next", "n.json"]) == 0
        assert json.loads(Path("n.json").read_text()).get("hard_budget", False) is (word == "yes")


def test_quiet_prints_the_result_alone(capsys):
    assert main(["run", *QUICK.split(), "--quiet", "--out", "one"]) == 0
    quiet = capsys.readouterr()
    assert main(["run", *QUICK.split(), "--out", "two"]) == 0
    loud = capsys.readouterr()
    assert "round 1/2" in loud.out and "round 1/2" not in quiet.out + quiet.err
    assert quiet.out.strip().startswith("kfl on mnist-5k") and quiet.err == ""
    for line in quiet.out.splitlines()[1:-4]:  # but for the time it took and the names of the folders, the same
        assert line in loud.out
    words = f"compare {QUICK} --algorithms local --seeds 0 --workers 1 -q --out three"
    assert main(words.split()) == 0
    assert "[1/1]" not in capsys.readouterr().out


def test_a_finished_run_says_so(capsys):
    line = ["run", *QUICK.split(), "--no-baseline", "--out", "it"]
    assert main(line) == 0
    assert "finished already" not in capsys.readouterr().out
    for again in (["resume", "it"], line):
        assert main(again) == 0
        shown = capsys.readouterr().out
        assert "it is finished already: nothing was run again." in shown and "accuracy, all devices" in shown


def test_what_goes_over_the_air_is_in_bits(capsys):
    assert main(["run", *QUICK.split(), "--no-baseline", "-q", "--out", "it"]) == 0
    shown = capsys.readouterr().out
    # Two rounds of three devices, ten classes of 64 features, 32 bits each.
    assert f"{2 * 3 * 10 * 64 * 32 / 1000:.0f} kbit" in shown and "FedAvg would have uploaded" in shown
    assert not re.search(r"\d [kMG]?B\b", shown)


def test_all_missing_trackers_are_named_at_once(answer, monkeypatch):
    found = importlib.util.find_spec
    gone = ("mlflow", "wandb")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name in gone else found(name, *more))
    said = answer("run --track tensorboard,mlflow,wandb --rounds 1 --out it")
    assert "The trackers mlflow and wandb need" in said and said.endswith("pip install 'kfl[mlflow,wandb]'.")


# ── Help ─────────────────────────────────────────────────────────────────────


def test_help_of_every_command_names_its_options_and_their_defaults(capsys):
    for command in COMMANDS:
        assert main([command, "--help"]) == 0
        text = capsys.readouterr().out
        assert text.startswith(f"usage: kfl {command}"), command
    assert main(["run", "--help-all"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for words in (
        "--hard-budget ",
        "(default: 5e6)",
        "--widths N …|none",
        "lyapunov, dual",
        "nb-iot",
        "--algorithm.no-memory)",
    ):
        assert words in text, words


@pytest.mark.parametrize("command", ["run", "compare", "schedule"])
def test_help_shows_ten_options_and_help_all_every_one(command, capsys):
    offered = {flag.name for flag in flags_of_command(COMMANDS[command][0]) if not flag.positional}
    shown = {}
    for asked in ("--help", "--help-all"):
        assert main([command, asked]) == 0
        text = capsys.readouterr().out
        shown[asked] = re.findall(r"^  (?:-q, )?(--\S+)", text, re.MULTILINE)
        assert max(map(len, text.partition("Examples:")[0].splitlines())) <= 120
        assert text.partition("Examples:")[2].count(f"  kfl {command}") >= 5
    few, many = shown["--help"], shown["--help-all"]
    assert len(few) == 10 and many[:10] == few  # those that are used most come first
    assert len(many) == len(offered) and set(many) == offered


def test_help_of_a_command_in_two_ways(capsys):
    assert main(["help", "export"]) == 0
    shown = capsys.readouterr().out
    assert main(["export", "--help"]) == 0
    assert capsys.readouterr().out == shown and "usage: kfl export" in shown


# ── Where files go ───────────────────────────────────────────────────────────


def test_nothing_is_written_into_the_current_folder(capsys):
    for line in (
        f"run {QUICK} --no-baseline -q --out runs/one",
        f"run {QUICK} --no-baseline -q --out runs/two --seed 1",
        "report runs/one runs/two",
        "export runs/one --devices 0",
        "data show --devices 5",
    ):
        assert main(line.split()) == 0, capsys.readouterr().err
        assert [path.name for path in Path().iterdir()] == ["runs"], line
    assert Path("runs/report.html").exists() and Path("runs/one/exported/load.py").exists()


def test_what_a_user_puts_into_the_clone_is_not_judged():
    pytest.importorskip("ruff")
    shutil.copy(ROOT / "pyproject.toml", "pyproject.toml")
    for name in ("my_data.py", "mine/model.py", "src/kfl/ours.py"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("import os\nx=1\n")
    for words in (["check", "--output-format", "concise"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *words, "."]
        done = subprocess.run(ruff, capture_output=True, text=True, check=False)
        assert done.returncode == 1 and "ours.py" in done.stdout, done
        assert "my_data" not in done.stdout and "model.py" not in done.stdout
