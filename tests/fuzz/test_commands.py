"""Commands as a person types them, each with one thing wrong: exit status 2, one sentence, no traceback, no hang."""

import random
import subprocess
import sys

import pytest

import kfl
from kfl.cli.schedule import example

WRONG_WORDS = [
    ["rnu"],
    ["run", "--config", "nowhere.toml"],
    ["run", "--devices", "0"],
    ["run", "--rounds", "-3"],
    ["run", "--widths", "0"],
    ["run", "--algorithm", "fedavgg"],
    ["run", "--scheduler", "nobody"],
    ["run", "--radio", "loud"],
    ["run", "--radio", "none", "--radio.deadline-s", "3"],
    ["run", "--dataset", "imagenet"],
    ["run", "--faults.late", "1.5"],
    ["run", "--faults.schedule", "late:x:1"],
    ["run", "--algorithm.learning-rate", "nan"],
    ["run", "--algorithm.trim", "0.7"],
    ["run", "--scheduler.count", "0"],
    ["run", "--radio.bandwidth-hz", "-1"],
    ["resume", "nowhere"],
    ["schedule"],
    ["schedule", "nowhere.json"],
    ["schedule", "problem.json", "--next", "x.txt"],
]
"""The same mistakes as options of the command line."""
CONFIGS, PROBLEMS = 24, 12


def command(words, where):
    return subprocess.run(
        [sys.executable, "-m", "kfl.cli.main", *words],
        cwd=where,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def assert_clear(done, words):
    """One sentence on standard error and status 2; a bad flag is answered by the parser, in its own box."""
    assert done.returncode == 2, (words, done.returncode, done.stderr)
    assert "Traceback" not in done.stderr + done.stdout, (words, done.stderr)
    said = [line for line in done.stderr.splitlines() if line.strip()]
    assert said and (len(said) == 1 or "─" in done.stderr or "usage" in done.stderr.lower()), (words, done.stderr)


@pytest.mark.parametrize("words", WRONG_WORDS, ids=" ".join)
def test_wrong_words(words, tmp_path):
    (tmp_path / "problem.json").write_text(example("json"))
    assert_clear(command(words, tmp_path), words)
    assert [path.name for path in tmp_path.iterdir()] == ["problem.json"]


def test_configs_with_one_line_wrong(tmp_path):
    """Every line of a config in turn gets a value of the wrong kind."""
    lines = kfl.Experiment().to_toml().splitlines()
    fields = [place for place, line in enumerate(lines) if " = " in line]
    draw = random.Random(13)
    for number, place in enumerate(draw.sample(fields, CONFIGS)):
        name = lines[place].partition(" = ")[0]
        broken = [*lines[:place], f"{name} = [{{x = -1}}]", *lines[place + 1 :]]
        path = tmp_path / f"{number}.toml"
        path.write_text("\n".join(broken))
        done = command(["run", "--config", path.name], tmp_path)
        assert_clear(done, broken[place])
        assert name in done.stderr
        assert path.read_text() == "\n".join(broken)


def test_problems_with_one_mutation(tmp_path, mutated):
    draw = random.Random(14)
    for number in range(PROBLEMS):
        kind = draw.choice(("json", "csv"))
        path = tmp_path / f"{number}.{kind}"
        path.write_bytes(broken := mutated(example(kind).encode(), draw))
        done = command(["schedule", path.name], tmp_path)
        if done.returncode:
            assert_clear(done, broken)
        assert path.read_bytes() == broken
