"""Own classes, schedulers, varied fields and labeled flags side by side, as a user asks for them."""

import json
import sys
import tomllib
from pathlib import Path

import pytest

from kfl.cli.main import main

SMALL = ["--dataset", "digitlike:data", "--devices", "6", "--rounds", "2", "--widths", "8", "--workers", "1"]
SMALL += ["--radio", "paper-mnist"]
OWN = """
from dataclasses import dataclass
from typing import ClassVar
from kfl.algorithms import Kfl
from kfl.scheduling import Uniform

@dataclass(frozen=True)
class Mine(Kfl):
    main_parameter: ClassVar = ("knowledge_weight", (0.1, 1.0))
    knowledge_weight: float = 0.5

@dataclass(frozen=True)
class Few(Uniform):
    count: int = 1
"""


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("digitlike", "my_algo"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    Path("my_algo.py").write_text(OWN)
    Path("digitlike.py").write_text(
        "import numpy as np, kfl\n"
        "def data():\n"
        "    y = np.arange(240) % 4\n"
        "    x = np.random.default_rng(0).normal(size=(240, 1, 5, 5)).astype('float32') + y[:, None, None, None]\n"
        "    return kfl.Dataset.from_arrays(x, y, name='digitlike')\n"
    )


def compare(*words, seeds="0,1"):
    return main(["compare", *SMALL, "--seeds", seeds, *words])


def lines(folder):
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def only_folder():
    (folder,) = Path("runs").iterdir()
    return folder


def stamps(folder):
    return {path: path.stat().st_mtime_ns for path in folder.glob("*/summary.json")}


def test_an_own_class_is_tuned_then_compared_with_what_was_found(capsys):
    tune = ["compare", "--search-only", *SMALL, "--algorithms", "local,my_algo:Mine"]
    tune += ["--search-seeds", "100", "--rates", "0.05,0.1"]
    assert main([*tune, "--out", "t"]) == 0
    tuned = tomllib.loads(Path("t/tuned.toml").read_text())
    assert set(tuned) == {"local", "my_algo:Mine"}
    assert set(tuned["my_algo:Mine"]) == {"learning_rate", "knowledge_weight"}
    words = ["--algorithms", "kfl,local,my_algo:Mine", "--settings", "t/tuned.toml"]
    assert compare(*words, "--out", "c") == 0
    shown = capsys.readouterr().out
    assert "my_algo:Mine" in shown
    assert "minus local" in " ".join(shown.split())
    found = lines(Path("c"))
    assert [(line["label"], line["seed"]) for line in found[-2:]] == [("my_algo:Mine", 0), ("my_algo:Mine", 1)]
    assert found[-1]["settings"]["knowledge_weight"] == tuned["my_algo:Mine"]["knowledge_weight"]
    study = json.loads(Path("c/study.json").read_text())
    assert study["reference"] == "local"
    for entry in study["entries"]:
        assert set(entry["runs"]) == {"0", "1"}
        for digest in entry["runs"].values():
            (run,) = Path("c").glob(f"*-{digest}")
            assert tomllib.loads((run / "config.toml").read_text())["algorithm"]["name"] == entry["label"]


def test_schedulers_stand_side_by_side_each_with_its_own_fields(capsys):
    words = ["--schedulers", "lyapunov,uniform,my_algo:Few", "--scheduler.count", "2", "--scheduler.v", "0.5"]
    assert compare(*words, "--out", "c") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "minus uniform" in shown
    assert "6 devices, 2 rounds, kfl, seeds 0, 1" in shown
    by_label = {line["label"]: line for line in lines(Path("c"))}
    assert by_label["lyapunov"]["scheduler_settings"]["v"] == 0.5
    assert by_label["uniform"]["devices_per_round"] == 2
    assert by_label["my_algo:Few"]["scheduler"] == "my_algo:Few"
    assert {line["algorithm"] for line in by_label.values()} == {"kfl"}


def test_two_settings_of_one_thing_are_two_rows(capsys):
    assert compare("--scheduler", "lyapunov", "--vary", "scheduler.v=0.01,0.1", "--out", "c") == 0
    assert [line["label"] for line in lines(Path("c"))] == ["v=0.01", "v=0.01", "v=0.1", "v=0.1"]
    assert [line["scheduler_settings"]["v"] for line in lines(Path("c"))] == [0.01, 0.01, 0.1, 0.1]
    capsys.readouterr()
    crossed = ["--algorithms", "kfl,local", "--vary", "algorithm.knowledge-weight=0.1,1"]
    assert compare(*crossed, "--out", "d", seeds="0") == 0
    assert [line["label"] for line in lines(Path("d"))] == [
        "kfl knowledge-weight=0.1",
        "kfl knowledge-weight=1",
        "local",
    ]
    assert [line["settings"].get("knowledge_weight") for line in lines(Path("d"))] == [0.1, 1.0, None]


def test_labelled_flags_and_a_file_of_them_join_the_algorithms(capsys):
    Path("rows.toml").write_text('["by the file"]\nscheduler = { name = "lyapunov", v = 0.2 }\nhard_budget = true\n')
    entry = ["--entry", "hot: --algorithm my_algo:Mine --algorithm.knowledge-weight 3 --scheduler.count 1"]
    words = ["--algorithms", "kfl,local", *entry, "--entries", "rows.toml", "--scheduler.count", "3", "--out", "c"]
    assert compare(*words, "--reference", "hot", seeds="0") == 0
    assert "minus hot" in " ".join(capsys.readouterr().out.split())
    ours, alone, hot, filed = lines(Path("c"))
    assert [line["label"] for line in (ours, alone, hot, filed)] == ["kfl", "local", "hot", "by the file"]
    assert (ours["devices_per_round"], alone["devices_per_round"], hot["devices_per_round"]) == (3, 3, 1)
    assert (hot["algorithm"], hot["settings"]["knowledge_weight"]) == ("my_algo:Mine", 3.0)
    assert (filed["scheduler_settings"]["v"], filed["hard_budget"], ours["hard_budget"]) == (0.2, True, False)
    assert main(["compare", "--from", "c", "--algorithms", "hot,local"]) == 0
    shown = capsys.readouterr().out
    assert "by the file" not in shown
    assert "hot" in shown


def test_without_out_the_same_question_finds_its_answers_and_runs_only_what_is_new(capsys):
    assert compare("--algorithms", "kfl,local", seeds="0") == 0
    first = stamps(only_folder())
    assert compare("--algorithms", "my_algo:Mine,kfl,local") == 0
    folder = only_folder()
    assert "Continuing in" in capsys.readouterr().out
    after = stamps(folder)
    assert len(first) == 2
    assert len(after) == 6
    assert first.items() <= after.items()
    assert compare("--algorithms", "kfl,local", "--scheduler.count", "1", seeds="0") == 0
    assert len(list(Path("runs").iterdir())) == 2


def test_an_edited_module_is_not_taken_for_the_one_that_ran(caplog):
    words = ["--algorithms", "local,my_algo:Mine"]
    assert compare(*words, seeds="0") == 0
    folder = only_folder()
    before = stamps(folder)
    Path("my_algo.py").write_text(OWN + "\n# another idea\n")
    assert compare(*words, seeds="0") == 0
    assert "my_algo:Mine has changed since: 1 run is repeated" in caplog.text
    assert len(list((folder / "outdated").iterdir())) == 1
    after = stamps(folder)
    assert {path.parent.name.partition("-")[0] for path in before if before[path] == after[path]} == {"local"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["compare", "--algorithms", "kfl,my_algo:Mnie"],
            ["algorithms is 'my_algo:Mnie'", "did you mean my_algo:Mine?"],
        ),
        (["compare", "--algorithms", "kfl,my_alg:Mine"], ["No module named 'my_alg'", "did you mean my_algo:Mine?"]),
        (["compare", "--algorithms", "kfl,my_algo:Few"], ["derives from Algorithm"]),
        (["compare", "--algorithms", "fedvag"], ["did you mean fedavg?"]),
        (["compare", "--schedulers", "lyapunv,dual"], ["schedulers is 'lyapunv'", "did you mean lyapunov?"]),
        (["compare", "--scheduler", "dual", "--schedulers", "dual,uniform"], ["scheduler is 'dual'", "--schedulers"]),
        (["compare", "--vary", "scheduler.v"], ["vary is 'scheduler.v'", "FIELD=VALUE"]),
        (["compare", "--entry", "thrifty"], ["entry is 'thrifty'", "LABEL: FLAGS"]),
        (["compare", "--entry", "a: --out x"], ["entry is '--out'"]),
        (["compare", "--entry", "a:", "--entry", "a: --rounds 3"], ["entry is 'a'", "a label of its own"]),
        (["compare", "--search-only", "--algorithms", "my_algo:Mnie"], ["did you mean my_algo:Mine?"]),
        (["compare", "--twins", "--algorithms", "local,my_algo:Mnie"], ["did you mean my_algo:Mine?"]),
        (["compare", "--algorithms", "broken:Mine"], ["NameError in broken.py, line 1"]),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(words, expected, capsys):
    Path("broken.py").write_text("nowhere_defined\n")
    assert main(words) == 2
    said = capsys.readouterr().err
    assert all(word in said for word in expected), said
    assert len(said.splitlines()) == 1
    assert not Path("runs").exists()


def test_one_algorithm_is_varied_as_one_scheduler_is(capsys):
    words = ["compare", *SMALL, "--seeds", "0", "--out", "v"]
    assert main([*words, "--algorithm", "fixed-knowledge", "--vary", "algorithm.scale=2,3"]) == 0
    assert "scale=2" in (shown := capsys.readouterr().out) and "fixed-knowledge" in shown
    assert main(["compare", *SMALL, "--algorithm", "kfl", "--algorithms", "local"]) == 2
    assert "left out with --algorithms, or one of those" in capsys.readouterr().err
