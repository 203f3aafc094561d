"""The Python and the commands of the guides: files saved under their names, rounds cut to two."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_the_data_and_the_question_of_the_start_page(tmp_path, monkeypatch, capsys):
    data, question = blocks("index.md")
    names = {}
    exec(compile(data, "my_data.py", "exec"), names)
    exec(compile(re.sub(r"rounds=\d+", "rounds=2", question), "index.md", "exec"), names)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["weight 0.000", "weight 0.031", "weight 0.300"]


def test_the_own_algorithm_is_compared_as_the_page_says(tmp_path, monkeypatch, capsys):
    """The ten-minute promise: the file of the page, saved under its name, next to KFL on three seeds."""
    from kfl.cli.main import main

    (code,) = (block for block in blocks("own.md") if block.startswith("# my_algorithm.py"))
    (tmp_path / "my_algorithm.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "own.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^kfl (compare --algorithms kfl,local,my_algorithm:Smooth .*)$", text, re.MULTILINE)
    words = re.sub(r"--rounds \d+", "--rounds 2", command).split()
    assert main([*words, "--devices", "6", "--workers", "1", "--out", "runs/own", "--quiet"]) == 0
    assert "my_algorithm:Smooth" in capsys.readouterr().out


CHOOSING = (
    *("--algorithm", "--scheduler", "--radio", "--radio.fading", "--radio.mobility", "--radio.harvest"),
    *("--gain-trace", "--harvest-trace"),
)


@pytest.mark.parametrize("page", ["index.md", "run.md", "own.md", "schedule.md"])
def test_the_options_of_a_page_exist(page, capsys):
    """Every option of a `kfl run` or `kfl compare` on the page is one that the command itself offers."""
    from kfl.cli.main import main

    text = (DOCS / page).read_text(encoding="utf-8").replace("\\\n", " ")
    commands = re.findall(r"^kfl ((?:run|compare) (?!.*\bmy_).*)$", text, re.MULTILINE)  # own modules are tested below
    assert commands
    for command in commands:
        words = shlex.split(command, comments=True)
        chosen = [w for flag in CHOOSING if flag in words for w in (flag, words[words.index(flag) + 1])]
        assert main([words[0], *chosen, "--help-all"]) == 0
        offered = capsys.readouterr().out
        for word in words:
            if word.startswith("--") and word not in CHOOSING[:3]:
                assert word in offered, (word, command)


def test_the_channel_of_ones_own_is_a_channel(tmp_path, monkeypatch):
    """As the page says: saved under its name and selected by it, with a mean power of 1."""
    from kfl.wireless import CellConfig, Channel

    (code,) = (block for block in blocks("own.md") if block.startswith("# my_channel.py"))
    (tmp_path / "my_channel.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    channel = Channel.from_plain({"name": "my_channel:Blocked", "probability": 0.3}, "radio.fading")
    cell = CellConfig(fading=channel)
    cell.validate()
    power = np.abs(channel.fading(cell, 0, 1, 50_000).coefficient) ** 2
    assert power.mean() == pytest.approx(1.0, abs=0.02) and (power < 0.001).mean() == pytest.approx(0.3, abs=0.02)


def test_the_settings_of_traces_on_the_page(tmp_path, monkeypatch):
    from kfl.experiment import Experiment
    from kfl.wireless import GainTrace, HarvestTrace

    text = (DOCS / "schedule.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^```toml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    experiment = Experiment.from_toml(table)
    assert experiment.cell_config.fading == GainTrace(path="gains.csv")
    assert experiment.cell_config.harvest == HarvestTrace(path="harvest.csv", repeat_s=86400.0)
    assert experiment.availability_trace == "availability.csv"
    (example,) = re.findall(r"^```\n(# Gains .*?)^```", text, re.DOTALL | re.MULTILINE)
    assert (DOCS.parent / "examples" / "traces" / "gains.csv").read_text().startswith(example)
