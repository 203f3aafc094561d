"""The Python and the commands of the guides: files saved under their names, rounds cut to two."""

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import kfl

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


PAGES = ("index", "run", "own", "schedule", "sharing", "reliability")
ROOT = DOCS.parent
NOT_RUN = (  # and where each is tested instead
    *("--play", "--open", "kfl deploy"),  # tests/cli/test_live_pages.py, tests/fleet
    *(
        "--track",
        "my_encoder",
        "onnx_encoders",
        "people/",
        "my-images",
        "train.parquet",
        "runs/compare-mnist",
    ),  # trackers; files of users
    "kfl report runs/a ",
)


def commands(page):
    """The `kfl` commands in the fences of a page, without comments."""
    language, found = None, []
    for line in re.sub(r" *\\\n *", " ", (ROOT / page).read_text(encoding="utf-8")).splitlines():
        fence = re.match(r" *```+ *(\w*)", line)
        if fence:
            language = fence[1] or "text" if language is None else None
        elif language in ("text", "bash") and re.match(r" *kfl (run|compare|report|export|schedule) ", line):
            found.append(line.strip().partition("  #")[0])
    return [command for command in found if not any(part in command for part in NOT_RUN)]


def cheap(words):
    """The command with fewer rounds, devices, seeds and weights; all else as it is printed."""
    if words[0] in ("run", "compare") and "--from" not in words:
        small = {"--rounds": "1", "--workers": "1", "--quiet": "", "--devices": "6"}
        if {"--scheduler.count", "--tested-devices", "--faults.schedule"} & set(words):
            small |= {"--devices": "24"} | ({"--tested-devices": "4"} if "--tested-devices" in words else {})
        if "--gain-trace" in words:
            small["--devices"] = "3"  # those of the example
        if "--hard-budget" in words:
            small["--rounds"] = "5"  # which the budget of all rounds is for
        if "--split" in words and words[words.index("--split") + 1] == "natural":
            del small["--devices"]
        if words[0] == "compare":
            small |= {"--seeds": "0"}
            small |= {"--rates": "0.05", "--search-seeds": "100"} if "--search" in " ".join(words) else {}
            small |= {"--equal-models": "8"} if "--equal-models" in words else {}
        else:
            del small["--workers"]
        if not {"--model", "--equal-models"} & set(words):
            small["--widths"] = "8"
        kept, dropping = [], False
        for word in words:
            dropping = word in small if word.startswith("--") else dropping
            kept += [] if dropping else [word]
        words = [*kept, *(part for pair in small.items() for part in pair if part)]
    limits = {"mnist": "mnist-5k", "cifar10": "mnist-5k"}
    return [limits.get(word, word) for word in words]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with the files that pages speak of."""
    place = tmp_path_factory.mktemp("pages")
    for page in ("index.md", "own.md"):
        for code in blocks(page):
            if name := re.match(r"# (my_\w+\.py)\n", code):
                (place / name[1]).write_text(f"import kfl\nfrom torch import nn\n{code}", encoding="utf-8")
    for module in ("my_algo", "my_module"):
        (place / f"{module}.py").write_text("from my_algorithm import Smooth as Mine\n", encoding="utf-8")
    scheduler = (ROOT / "examples" / "own_scheduler.py").read_text(encoding="utf-8")
    (place / "my_scheduler.py").write_text(f"{scheduler}\n\nMine = BestChannel\n", encoding="utf-8")
    draw = np.random.default_rng(0)
    x, y = draw.random((400, 9, 32), dtype=np.float32), np.arange(400) % 4
    np.savez(place / "readings.npz", x=x, y=y, device=np.arange(400) % 5)
    for number in range(20):
        picture = place / "photos" / ("cat", "dog")[number % 2] / f"{number}.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(256, size=(28, 28, 3), dtype=np.uint8)).save(picture)
    for trace in (ROOT / "examples" / "traces").glob("*.csv"):
        shutil.copy(trace, place)
    shutil.copytree(ROOT / "examples", place / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    small = kfl.Experiment(devices=8, rounds=2, widths=8, samples_per_device=20, scheduler="all", radio="none")
    for name in ("first", "mine"):
        kfl.run(small, place / "runs" / name)
    kfl.compare({"kfl": small}, seeds=[0], folder=place / "runs" / "three")
    return place


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{name}.md" for name in PAGES)])
def test_every_command_of_a_page_runs_as_printed(page, workplace, monkeypatch, capsys):
    """With fewer rounds, devices and seeds, and the embedded digits in place of larger sets."""
    from kfl.cli.main import main

    monkeypatch.chdir(workplace)
    found = commands(page)
    assert found
    for command in found:
        if folder := re.search(r"^kfl run .*--out (\S+)", command):
            shutil.rmtree(folder[1], ignore_errors=True)  # a page may use a name that another one has used
        assert main(cheap(shlex.split(command)[1:])) == 0, (command, capsys.readouterr().err)


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
