"""Whole commands as a user runs them."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest

from kfl.cli.main import COMMANDS, main

QUICK = ["--devices", "10", "--rounds", "2", "--widths", "8", "12", "--scheduler.count", "3"]


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


def command(*words, **more):
    return subprocess.run(
        [sys.executable, "-m", "kfl.cli.main", *words], capture_output=True, text=True, timeout=120, check=False, **more
    )


def test_help_lists_every_command_and_needs_no_pytorch(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"kfl {name}" in shown for name in COMMANDS)
    for words in (["--help"], ["run", "--help-all"]):
        program = (
            f"import sys\nfrom kfl.cli.main import main\ntry: main({words})\nexcept SystemExit: pass\n"
            "assert 'torch' not in sys.modules"
        )
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
    for option in ("--dataset", "--classes-per-device", "--algorithm.knowledge-weight", "--scheduler.count"):
        assert option in run.stdout


def test_the_main_job_in_small(capsys):
    assert main(["run", *QUICK, "--out", "here"]) == 0
    shown = capsys.readouterr().out
    for words in (
        "accuracy",
        "FedAvg would have uploaded",
        "energy",
        "here",
        "kfl run --config",
        "kfl compare --twins --config",
    ):
        assert words in shown
    assert not (Path("here") / "local-only").exists()  # one run is one run
    assert len((Path("here") / "rounds.jsonl").read_text().splitlines()) == 2


def test_a_run_folder_repeats_itself_and_flags_go_on_top(capsys):
    assert main(["run", *QUICK, "--no-baseline", "--out", "one", "--algorithm.knowledge-weight", "0.25"]) == 0
    assert main(["run", "--config", "one/config.toml", "--no-baseline", "--out", "two"]) == 0
    for name in ("config.toml", "rounds.jsonl", "devices.json"):
        assert (Path("one") / name).read_bytes() == (Path("two") / name).read_bytes()
    assert main(["run", "--config", "one/config.toml", "--rounds", "1", "--no-baseline", "--out", "three"]) == 0
    config = tomllib.loads((Path("three") / "config.toml").read_text())
    assert config["rounds"] == 1
    assert config["algorithm"] == {**config["algorithm"], "name": "kfl", "knowledge_weight": 0.25}
    capsys.readouterr()
    assert main(["run", "--config", "one/config.toml", "--rounds", "3", "--out", "one"]) == 2
    assert "rounds: 2 → 3" in capsys.readouterr().err


def test_choosing_another_algorithm_scheduler_and_radio():
    words = ["run", "--devices", "10", "--rounds", "1", "--widths", "8", "--no-baseline", "--out", "x"]
    assert main([*words, "--algorithm", "local", "--scheduler", "all", "--radio", "none"]) == 0
    config = tomllib.loads(Path("x/config.toml").read_text())
    assert (config["algorithm"]["name"], config["scheduler"]["name"], config["radio"]) == ("local", "all", "none")
    log = json.loads(Path("x/rounds.jsonl").read_text())
    assert log["devices"] == list(range(10))


def test_own_data_and_own_model_by_name(capsys):
    Path("mine.py").write_text(
        "import numpy as np, kfl\n"
        "from torch import nn\n"
        "def data():\n"
        "    y = np.arange(200) % 2\n"
        "    x = np.random.default_rng(0).normal(size=(200, 3)).astype('float32') + 2 * y[:, None]\n"
        "    return kfl.Dataset.from_arrays(x, y)\n"
        "def model(input_shape, classes, width):\n"
        "    body = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 5))\n"
        "    return kfl.SplitModel(body, nn.Linear(5, classes))\n"
    )
    done = command("run", "--dataset", "mine:data", "--model", "mine:model", "--split", "iid", *QUICK, "--out", "r")
    assert done.returncode == 0, done.stderr
    environment = json.loads(Path("r/environment.json").read_text())
    assert environment["given_as_objects"] == []
    assert set(environment["sources"]) == {"mine:data", "mine:model"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["rnu"], ["did you mean 'kfl run'"]),
        (["run", "--dataset", "mnist", "--data-dir", "nowhere"], ["nowhere", "train-images-idx3-ubyte"]),
        (["run", "--dataset", "imagenet"], ["dataset", "imagenet", "mnist"]),
        (["run", "--devices", "0"], ["devices is 0", "1 or more"]),
        (["run", "--devices", "3000"], ["shards", "samples"]),
        (["run", "--rounds", "-1"], ["rounds is -1"]),
        (["run", "--algorithm.learning-rate", "nan"], ["learning_rate is nan"]),
        (["run", "--algorithm", "fedsgd"], ["algorithm is 'fedsgd'", "kfl"]),
        (["run", "--scheduler", "best"], ["scheduler is 'best'", "uniform"]),
        (["run", "--radio", "moon"], ["radio is 'moon'", "paper-mnist"]),
        (["run", "--radio", "none", "--radio.bandwidth-hz", "1"], ["radio is 'none'", "--radio.bandwidth-hz"]),
        (["run", "--radio.amplifier-efficiency", "0"], ["amplifier_efficiency is 0.0", "above 0 and at most 1"]),
        (["run", "--radio.amplifier-efficiency", "1.2"], ["amplifier_efficiency is 1.2", "above 0 and at most 1"]),
        (["run", "--radio.min-cpu-hz", "9e9"], ["min_cpu_hz is 9000000000.0", "8.5e+08"]),
        (["run", "--radio.circuit-power-w", "-1"], ["circuit_power_w is -1.0", "from 0 to"]),
        (["run", "--radio.static-power-w", "nan"], ["static_power_w is nan", "from 0 to"]),
        (["run", "--radio.min-power-dbm", "60"], ["min_power_dbm is 60.0", "below max_power_dbm"]),
        (["run", "--scheduler", "greedy-energy", "--scheduler.count", "0"], ["scheduler.count is 0", "at least 1"]),
        (["run", "--model", "resnet"], ["model is 'resnet'", "mlp"]),
        (["run", "--config", "missing.toml"], ["missing.toml", "TOML"]),
        (["run", "--out", "/proc/nope/run"], ["/proc/nope/run", "cannot be written"]),
        (["run", "--device", "cuda"], ["device is 'cuda'", "no GPU"]),
        (["data", "shw"], ["kfl data shw", "show"]),
        (["data", "show", "--devices", "0"], ["devices", "0"]),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(words, expected, capsys):
    if "cuda" in words:
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            pytest.skip("this machine has a GPU")
    assert main(words) == 2
    printed = capsys.readouterr()
    assert all(word in printed.err for word in expected), printed.err
    assert printed.err.startswith("kfl: ")
    assert len(printed.err.splitlines()) == 1
    assert "Traceback" not in printed.err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rounds = -", ["TOML"]),
        ("ronds = 3", ["ronds", "did you mean rounds"]),
        ("rounds = 'many'", ["rounds is 'many'", "integer"]),
        ("[algorithm]\nname = 'kfl'\nknowlege_weight = 1.0", ["knowlege_weight", "knowledge_weight"]),
        ("[radio]\nbandwidth_hz = 'wide'", ["radio.bandwidth_hz"]),
    ],
)
def test_a_bad_config_file_is_named_by_field(text, expected, capsys):
    Path("bad.toml").write_text(text)
    assert main(["run", "--config", "bad.toml"]) == 2
    shown = capsys.readouterr().err
    assert all(word in shown for word in expected), shown


def test_a_wrong_flag_suggests_the_right_one():
    done = command("run", "--devces", "5")
    assert done.returncode == 2
    assert "--devices" in done.stderr
    assert "Traceback" not in done.stderr


def test_damaged_data_files_end_in_a_sentence(tmp_path, capsys):
    folder = tmp_path / "mnist"
    folder.mkdir()
    for name in (
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    ):
        (folder / name).write_bytes(b"\x00\x00\x08\x03" + np.array([60000, 28, 28], ">i4").tobytes() + b"\x00" * 100)
    assert main(["run", "--dataset", "mnist", "--data-dir", str(tmp_path)]) == 2
    assert "train-images-idx3-ubyte" in capsys.readouterr().err


def test_the_split_is_shown_and_drawn(capsys):
    assert main(["data", "show", "--devices", "12", "--plot", "split.png"]) == 0
    assert "12 devices" in capsys.readouterr().out
    assert Path("split.png").read_bytes().startswith(b"\x89PNG")


def test_output_that_is_no_terminal_gets_plain_lines():
    done = command("run", *QUICK, "--no-baseline", "--out", "p", env={**os.environ, "TERM": "dumb"})
    assert done.returncode == 0, done.stderr
    assert "kfl: round 2/2" in done.stdout
    assert "\x1b" not in done.stdout


def test_interrupting_a_run_keeps_its_finished_rounds():
    words = ["run", "--devices", "10", "--rounds", "5000", "--widths", "8", "--no-baseline", "--out", "stopped"]
    with subprocess.Popen([sys.executable, "-m", "kfl.cli.main", *words], stderr=subprocess.PIPE, text=True) as process:
        log = Path("stopped/rounds.jsonl")
        until = time.monotonic() + 60
        while not (log.exists() and len(log.read_text().splitlines()) > 2) and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, shown = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Stopping after this round" in shown
    assert "kfl resume stopped" in shown
    assert "Traceback" not in shown
    lines = log.read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == list(range(len(lines)))
    assert not Path("stopped/summary.json").exists()
