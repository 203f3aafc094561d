"""The command line as people type it: other programs' flags, near misses, switches, help, and where files go."""

import contextlib
import importlib.util
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kfl.cli.command_table import commands
from kfl.cli.main import main

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


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("run --lr 0.1", "run --algorithm.learning-rate 0.1"),
        ("run -lr 0.1 -lbs 32", "run --algorithm.learning-rate 0.1 --algorithm.batch-size 32"),
        ("run --clients 20", "run --devices 20"),
        ("run --num_clients=20", "run --devices 20"),
        ("run -nc 20 -gr 5", "run --devices 20 --rounds 5"),
        ("run --num-server-rounds 5", "run --rounds 5"),
        ("run --epochs 3", "run --algorithm.local-steps 3"),
        ("run --local_epochs 3", "run --algorithm.local-steps 3"),
        ("run --gpu", "run --device cuda"),
        ("run --gpu 0", "run --device cuda"),
        ("run --device_id 1", "run --device cuda"),
        ("run --no-cuda", "run --device cpu"),
        ("run --lambda 0.1", "run --algorithm.knowledge-weight 0.1"),
        (
            "run --algorithm fedproto --lamda 0.1",
            "run --algorithm fedproto --algorithm.prototype-weight 0.1",
        ),
        ("run --output here", "run --out here"),
        ("run -o here", "run --out here"),
        ("run --algo fedavg", "run --algorithm fedavg"),
        ("compare --algo fedavg", "compare --algorithms fedavg"),
        ("run -data mnist", "run --dataset mnist"),
        ("run --alpha 0.1", "run --split dirichlet --dirichlet-alpha 0.1"),
        ("run --algorithm apfl --alpha 0.1", "run --algorithm apfl --algorithm.mixing 0.1"),
        ("run --iid", "run --split iid"),
        ("run --eval-gap 5", "run --evaluate-every 5"),
        # A fraction of the devices is a number of them here, whether theirs was said before, after, or not at all.
        ("run --join-ratio 0.1", "run --scheduler.count 5"),
        ("run --fraction-fit 0.25 --devices 20", "run --scheduler.count 5 --devices 20"),
        ("run -jr 0.1 -nc 200", "run --scheduler.count 20 --devices 200"),
        ("compare --times 3", "compare --seeds 0..2"),
        ("run --wandb", "run --track wandb"),
        ("run --silent", "run --quiet"),
        ("run --verbose --rounds 3", "run --rounds 3"),
        ("tune --clients 3", "tune --devices 3"),
        ("data show --clients 3", "data show --devices 3"),
        ("run --learning-rate 0.1", "run --algorithm.learning-rate 0.1"),
        ("run --knowlege-weight 0.1", "run --algorithm.knowledge-weight 0.1"),
        ("run --devcies 3", "run --devices 3"),
        ("run --lr 0.1 --model 'my models:net'", "run --algorithm.learning-rate 0.1 --model 'my models:net'"),
    ],
)
def test_another_programs_flags_are_answered_with_the_line_to_copy(typed, meant, answer):
    said = answer(typed)
    assert said.endswith(f" Try: kfl {meant}")


def test_every_unknown_flag_is_answered_at_once(answer):
    said = answer("run --lr 0.1 --clients 20 --xyzzy 3")
    assert said == (
        "kfl: kfl run does not know --lr (kfl calls it --algorithm.learning-rate), --clients (kfl calls it --devices) "
        "and --xyzzy. kfl run --help lists its options."
    )


@pytest.mark.parametrize(
    ("typed", "parts"),
    [
        (
            "run --scheduler lyapunov --scheduler.count 3",
            ["an option of round-robin, uniform", "--scheduler is lyapunov"],
        ),
        ("run --algorithm fedavg --lambda 1", ["--algorithm.knowledge-weight", "an option of kfl", "is fedavg"]),
        ("report --lr 1", ["--algorithm.learning-rate", "an option of kfl run"]),
        ("run --rounds ten", ["--rounds is 'ten', but must be a whole number."]),
        ("run --rounds 1.5", ["--rounds is '1.5', but must be a whole number."]),
        ("run --rounds", ["--rounds needs a value: a whole number."]),
        ("run --algorithm.learning-rate 0,1", ["must be a number (did you mean 0.1?)"]),
        ("run --tested-devices some", ["a whole number or none"]),
        ("run --split shard", ["did you mean shards?"]),
        ("run --split noniid", ["did you mean shards?"]),
        ("run --device gpu", ["did you mean cuda?"]),
        ("run --precision fp32", ["did you mean float32?"]),
        ("run --dataset FashionMNIST", ["did you mean fashion-mnist?"]),
        ("run --algorithm FedAvg", ["did you mean fedavg?"]),
        ("run --scheduler lyapunv", ["did you mean lyapunov?"]),
        ("run --scheduler random", ["did you mean uniform?"]),
        ("run --radio NBIoT", ["did you mean nb-iot?"]),
        ("run --radio.fading raylegh", ["did you mean rayleigh?"]),
        ("run --radio.harvest solar_constant", ["one of none, constant, sun"]),
        ("run --model mobilnet", ["did you mean mobilenet?"]),
        ("run --track tensorbord", ["did you mean tensorboard?"]),
        ("run mnist", ["did you mean --dataset mnist?"]),
        ("run --rounds 3 4", ["does not know what '4' after --rounds is for"]),
        ("run --hard-budget maybe", ["takes yes, no or nothing"]),
        ("sharing --methods fedprotto", ["did you mean fedproto?"]),
        ("data fetch", ["did you mean 'kfl data download'?"]),
        ("data download FEMINST", ["DATASET is 'FEMINST'", "did you mean femnist?"]),
        ("deploy upp", ["did you mean 'kfl deploy up'?"]),
        ("deploy device --number 1", ["needs --superlink, --root-certificates and --key"]),
        ("paper clams", ["did you mean claims?"]),
        ("train", ["did you mean 'kfl run'?"]),
        ("resume", ["needs RUN_FOLDER: the run folder to continue."]),
        ("watch --port abc x", ["--port is 'abc', but must be a whole number."]),
    ],
)
def test_a_near_miss_is_one_sentence_with_what_was_meant(typed, parts, answer):
    said = answer(typed)
    assert all(part in said for part in parts), said


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


@pytest.mark.parametrize(
    ("words", "hard", "memory"),
    [
        ("", False, True),
        ("--hard-budget --algorithm.no-memory", True, False),
        ("--hard-budget true --algorithm.memory no", True, False),
        ("--hard_budget=YES --algorithm.memory=off", True, False),
        ("--hard-budget no --algorithm.memory", False, True),
        ("--hard-budget false --algorithm.no-memory false", False, True),
    ],
)
def test_switches_with_and_without_a_value(words, hard, memory, capsys):
    line = f"run {words} --devices 6 --rounds 1e0 --widths 8,12 --tested_devices none --no-baseline -q --out it"
    assert main([*line.split(), "--radio", "wifi", "--radio.budget-j-per-round", "9"]) == 0
    config = tomllib.loads(Path("it/config.toml").read_text())
    assert (config["hard_budget"], config["algorithm"]["memory"]) == (hard, memory)
    assert (config["widths"], config["rounds"], config["tested_devices"]) == ([8, 12], 1, "none")


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
    for line in quiet.out.splitlines()[1:-3]:  # but for the time it took and the names of the folders, the same
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


@pytest.fixture(scope="module")
def helps():
    """The help of every command, by its words."""
    found = {}
    for command in commands():
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
            main([*command.path, "--help"])
        found[" ".join(command.path)] = shown.getvalue()
    return found


def test_help_shows_no_python(helps):
    for name, text in helps.items():
        assert text.startswith(f"usage: kfl {name}"), name
        assert not re.search(r"\{None\}|\bNone\b|\bINT\b|\bFLOAT\b|\bSTR\b|default: (True|False)|[╭│]|`", text), name
        assert max(map(len, text.splitlines())) <= 120, name


def test_help_begins_with_what_people_change(helps):
    for name in ("run", "compare", "tune", "sharing"):
        text = helps[name]
        places = [
            text.index(f"\n  {word} ") for word in ("--dataset", "--devices", "--rounds", "--radio", "--out FOLDER")
        ]
        rest = [text.index(f"\n  {word} ") for word in ("--split", "--widths", "--config", "--algorithm.momentum")]
        assert places == sorted(places) and max(places) < min(rest), name
    assert "--algorithm.memory yes|no" in helps["run"] and "(default: 5e6)" in helps["run"]
    assert "--seed N" not in helps["compare"]  # it has --seeds


def test_help_of_a_command_in_two_ways(capsys):
    shown = []
    for words in (["help", "export"], ["export", "--help"]):
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert stop.value.code == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] and shown[0].startswith("usage: kfl export RUN [OPTIONS]")


# ── Where files go ───────────────────────────────────────────────────────────


def test_nothing_is_written_into_the_current_folder(capsys):
    for line in (
        f"run {QUICK} --no-baseline -q --out runs/one",
        f"run {QUICK} --no-baseline -q --out runs/two --seed 1",
        "report runs/one runs/two",
        "export runs/one --devices 0",
        "paper claims --only abstract",
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
