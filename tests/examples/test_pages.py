"""The Python of the tutorial and of "coming from": files saved under their names, rounds cut to two."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_the_tutorials_data_and_question(tmp_path, monkeypatch, capsys):
    data, question = blocks("tutorial.md")
    (tmp_path / "my_data.py").write_text(data)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    exec(compile(re.sub(r"rounds=\d+", "rounds=2", question), "tutorial.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["weight 0.000", "weight 0.031", "weight 0.300"]


def test_flowers_quickstart_as_a_device():
    (code,) = blocks("coming-from.md")
    x, y = np.zeros((40, 3, 32, 32), np.float32), np.arange(40) % 10
    names = {"load_data": lambda partition: (x, y)}
    exec(compile(code, "coming-from.md", "exec"), names)
    setup = names["device"](0, {})
    setup.validate()
    data, model = setup.dataset(), setup.model()
    feature = model.body(data.inputs("train"))
    assert feature.shape == (32, 84)  # a fifth of the samples is set aside
    assert model.head(feature).shape == (32, 10)
    assert torch.isfinite(feature).all()


CHOOSING = (
    *("--algorithm", "--scheduler", "--radio", "--radio.fading", "--radio.mobility", "--radio.harvest"),
    *("--gain-trace", "--harvest-trace"),
)


@pytest.mark.parametrize("page", ["tutorial.md", "coming-from.md", "schedule.md"])
def test_the_options_of_a_page_exist(page, capsys):
    """Every option of a `kfl run` or `kfl compare` on the page is one that the command itself offers."""
    from kfl.cli.main import main

    text = (DOCS / page).read_text(encoding="utf-8").replace("\\\n", " ")
    commands = re.findall(r"^kfl ((?:run|compare) .*)$", text, re.MULTILINE)
    assert commands
    for command in commands:
        words = command.split("#")[0].split()
        chosen = [w for flag in CHOOSING if flag in words for w in (flag, words[words.index(flag) + 1])]
        with pytest.raises(SystemExit):
            main([words[0], *chosen, "--help"])
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
