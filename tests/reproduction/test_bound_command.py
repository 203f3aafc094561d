"""`python -m reproduction bound` as a user runs it."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from kfl.cli.main import main as kfl_main
from reproduction.__main__ import main
from reproduction.theory.gaps import GAPS

ROOT = Path(__file__).parents[2]
CONSTANTS = """
body_smoothness = 2.0
head_smoothness = 1.0
cross_sensitivity = 0.5
body_gradient = 1.0
head_gradient = 1.0
feature_gradient = 2.0
feature_norm = 2.0
body_rate = 0.01
head_rate = 0.02
local_steps = 5
knowledge_weight = 0.03125
initial_gap = 2.3
"""


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    Path("constants.toml").write_text(CONSTANTS)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "mine"
    quick = ["--devices", "10", "--rounds", "3", "--widths", "8", "--scheduler", "lyapunov", "--radio", "paper-mnist"]
    assert kfl_main(["run", *quick, "--out", str(folder)]) == 0
    return folder


def test_help_needs_no_pytorch():
    program = (
        "import sys\nfrom reproduction.__main__ import main\ntry: main(['bound', '--help'])\nexcept SystemExit: pass\n"
        "assert 'torch' not in sys.modules"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    for option in ("--constants", "--schedule", "--rates", "--look-at", "--json"):
        assert option in run.stdout


def test_given_constants_show_the_three_patterns_the_conditions_and_the_gaps(capsys):
    assert main(["bound", "--constants", "constants.toml"]) == 0
    shown = capsys.readouterr().out
    for words in ("as printed", "uniform", "ascend", "descend", "heterogeneity", "within the theorem's conditions"):
        assert words in shown
    for words in ("favors late rounds", "Polyak", "Gaps of Theorem 1", "docs/paper.md"):
        assert words in shown


def test_json_for_programs(capsys):
    assert main(["bound", "--constants", "constants.toml", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    total = {name: bound["total"] for name, bound in found["theorem1"].items()}
    assert total["ascend"] < total["uniform"] < total["descend"]
    assert found["gaps"] == [asdict(gap) for gap in GAPS]
    assert main(["bound", "--constants", "constants.toml", "--rates", "largest", "--schedule", "ascend", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["theorem1"]) == ["ascend"]
    assert found["theorem1"]["ascend"]["contraction"] == pytest.approx(1)


def test_a_finished_run_and_its_constants_again(run_folder, capsys):
    assert main(["bound", str(run_folder), "--look-at", "0,3", "--iterations", "2", "--save", "mine.toml"]) == 0
    shown = capsys.readouterr().out
    for words in ("estimated", "at the best rates", "Proposition 2, energy", "Proposition 2, data", "upper bound"):
        assert words in shown
    for words in ("outside its assumptions", "lower bounds", "momentum 0.9", "Measured on these devices"):
        assert words in shown
    for words in ("Equation (5)", "Gaps of Proposition 2", "minimized exactly"):
        assert words in shown
    assert main(["bound", "--constants", "mine.toml", "--rates", "best"]) == 0
    capsys.readouterr()
    assert main(["bound", str(run_folder), "--look-at", "0,3", "--iterations", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["theorem1"]["constants_are"] == "estimates"
    assert found["theorem1"]["estimated_from"]["devices"] == [0, 3]
    assert len(found["theorem1"]["equation5"]["distance"]) == len(found["theorem1"]["equation5"]["classes"]) == 10
    assert found["proposition2"]["energy"]["holds"] is True


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "RUN or --constants is 'neither'"),
        (["here", "--constants", "constants.toml"], "RUN or --constants is 'both'"),
        (["nowhere"], "not a run folder"),
        (["--constants", "nowhere.toml"], "No such file"),
        (["--constants", "constants.toml", "--count", "60"], "count is 60"),
        (["--constants", "constants.toml", "--iterations", "3"], "--iterations is '3'"),
        (["here", "--classes-per-device", "3"], "--classes-per-device is '3'"),
        (["here", "--look-at", "few"], "look_at is 'few'"),
    ],
)
def test_bad_input_is_one_sentence(words, said, capsys):
    assert main(["bound", *words]) == 2
    problem = capsys.readouterr().err
    assert said in problem
    assert problem.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("initial_gap = 2.3", ""), "also gives initial_gap"),
        (("head_rate = 0.02", "head_rate = -1"), "head_rate is -1"),
        (("head_rate", "haed_rate = 1\nhead_rate"), "did you mean head_rate"),
        (("local_steps = 5", "local_steps = 2.5"), "local_steps is 2.5"),
        (("head_rate = 0.02", "head_rate = "), "a readable TOML file"),
    ],
)
def test_a_wrong_file_of_constants_is_one_sentence(change, said, capsys):
    Path("constants.toml").write_text(CONSTANTS.replace(*change))
    assert main(["bound", "--constants", "constants.toml"]) == 2
    problem = capsys.readouterr().err
    assert said in problem
    assert problem.count("\n") == 1
