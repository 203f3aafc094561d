"""The Tab key, in real shells."""

import shlex
import shutil
import subprocess

import pytest

from kfl.algorithms import ALGORITHMS
from kfl.cli.completion import script
from kfl.cli.main import COMMANDS, main
from kfl.data import DATASETS, downloadable
from kfl.wireless import PRESETS

SHELLS = ("bash", "zsh", "fish")


@pytest.fixture(scope="module")
def scripts():
    return {shell: script(shell) for shell in SHELLS}


@pytest.fixture
def place(tmp_path, monkeypatch, scripts):
    """A folder with the scripts, two runs and a folder that is none."""
    monkeypatch.chdir(tmp_path)
    for name in ("runs/alpha", "runs/al pha", "mine"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.toml").touch()
    (tmp_path / "other").mkdir()
    for shell, text in scripts.items():
        (tmp_path / f"script.{shell}").write_text(text)
    return tmp_path


def bash(*words):
    """What bash would offer for the last of these words."""
    typed = " ".join(shlex.quote(word) for word in ("kfl", *words))
    program = (
        f"source script.bash; COMP_WORDS=({typed}); COMP_CWORD={len(words)}; _kfl; "
        'for word in "${COMPREPLY[@]}"; do printf "%s\\n" "$word"; done'
    )
    run = subprocess.run(["bash", "--norc", "-c", program], capture_output=True, text=True, check=True)
    assert run.stderr == ""
    return run.stdout.splitlines()


def test_commands(place):
    assert set(COMMANDS) < set(bash(""))
    assert bash("comp") == ["compare", "completion"]
    assert bash("data", "") == ["show", "download"]
    assert bash("data", "download", "") == downloadable()
    assert bash("data", "download", "kmn") == ["kmnist"]
    assert bash("completion", "z") == ["zsh"]


def test_options_of_a_command(place):
    assert {"--algorithm.knowledge-weight", "--scheduler.count"} < set(bash("run", "--"))
    assert bash("run", "--rou") == ["--rounds"]
    assert "--scheduler.v" in bash("schedule", "--sched")
    assert bash("resume", "--tr") == ["--track"]
    assert bash("data", "show", "--sp") == ["--split"]
    assert bash("doctor", "--j") == ["--json"]


def test_names(place):
    assert bash("run", "--algorithm", "") == list(ALGORITHMS)
    assert bash("run", "--scheduler", "l") == ["lyapunov", "least-energy"]
    assert bash("run", "--rounds", "3", "--dataset", "") == list(DATASETS)
    (place / "readings.npz").write_text("")
    assert bash("data", "show", "--dataset", "read") == ["readings.npz"]
    assert bash("data", "show", "--dataset", "./r") == ["./readings.npz", "./runs"]
    assert set(PRESETS) < set(bash("run", "--radio", ""))
    offered = bash("demo", "--radio", "")
    assert set(PRESETS) < set(offered) and not {"auto", "none"} & set(offered)  # which the demo refuses
    assert bash("run", "--radio", "=", "nb") == ["nb-iot"]  # bash makes three words of --radio=nb
    assert bash("compare", "--algorithms", "kfl,fedr") == ["kfl,fedrep"]
    assert bash("run", "--track", "mlflow,") == ["mlflow,tensorboard", "mlflow,mlflow", "mlflow,wandb"]
    assert bash("run", "--split", "i") == ["iid"]
    assert bash("run", "--rounds", "") == []


def test_run_folders_and_files(place):
    assert sorted(bash("resume", "")) == ["mine", "runs/al pha", "runs/alpha"]
    assert bash("export", "runs/alp") == ["runs/alpha"]
    for command in ("resume", "export", "report"):
        assert bash(command, "alp") == ["runs/alpha"], command
    assert bash("resume", "oth") == ["other"]
    assert bash("run", "--out", "o") == ["other"]
    assert "script.bash" in bash("run", "--config", "")


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("kfl comp", {"compare", "completion"}),
        ("kfl run --algorithm fedp", {"fedproto"}),
        ("kfl data ", {"show", "download"}),
        ("kfl data download cifar1", {"cifar10", "cifar100"}),
        ("kfl data show --sp", {"--split"}),
        ("kfl run --dataset mnist-", {"mnist-5k"}),
        ("kfl run --dataset mi", {"mine/"}),
        ("kfl resume runs/alp", {"runs/alpha", "runs/alpha/"}),
    ],
)
def test_fish(place, typed, expected):
    program = f"source script.fish; complete -C {shlex.quote(typed)}"
    run = subprocess.run(["fish", "--no-config", "-c", program], capture_output=True, text=True, check=True)
    assert {line.partition("\t")[0] for line in run.stdout.splitlines()} == expected


ZSH = """
zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z 'PS1=READY; LISTMAX=1000; autoload -Uz compinit; compinit -D -u; source ./script.zsh; echo go-$((1+1))'
zpty -r -m z line '*go-2*READY*'
sleep 0.3
zpty -w -n z "$1"$'\\C-D'
for attempt in {1..50}; do
  while zpty -r -t z part; do shown+=$part; done
  [[ $shown == *$2* ]] && { print -r -- seen; break }
  sleep 0.1
done
zpty -d z
"""


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("kfl run --algorithm ", "fixed-knowledge"),
        ("kfl data ", "download"),
        ("kfl resume ", "runs/alpha"),
        ("kfl data show --sp", "How the data is split"),
        ("kfl run --dataset ", "tiny-imagenet"),
        ("kfl run --dataset ot", "other"),
    ],
)
def test_zsh(place, typed, expected):
    run = subprocess.run(
        ["zsh", "-f", "-c", ZSH, "zsh", typed, expected], capture_output=True, text=True, timeout=60, check=False
    )
    assert "seen" in run.stdout, run.stdout + run.stderr


def test_the_command_prints_the_scripts(capsys, scripts):
    for shell, text in scripts.items():
        assert main(["completion", shell]) == 0
        assert capsys.readouterr().out == text
    assert main(["completion", "powershell"]) == 2
    assert "'powershell' is not one of bash, zsh, fish" in capsys.readouterr().err
