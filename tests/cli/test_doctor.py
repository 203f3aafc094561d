"""`kfl doctor`: what it says is so, and it works where others cannot."""

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import numpy
import pytest

from kfl.cli.doctor import EXTRAS, REQUIRED
from kfl.cli.main import main
from kfl.data import load_dataset

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KFL_DATA_DIR", raising=False)


def findings(capsys, status=0):
    assert main(["doctor", "--json"]) == status
    told = json.loads(capsys.readouterr().out)
    assert told["can_run"] == (status == 0)
    return {(one["group"], one["name"]): one for one in told["findings"]}


def test_the_extras_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {
        extra: {re.match(r"[\w.-]+", line)[0] for line in lines}
        for extra, lines in project["optional-dependencies"].items()
    }
    del names["dev"]
    assert names.pop("flower") == {"kfl"}  # an earlier name of fleet
    assert {name: set(extra.packages) for name, extra in EXTRAS.items()} == names
    assert {re.match(r"[\w.-]+", line)[0] for line in project["dependencies"]} == set(REQUIRED)


def test_it_says_what_is_there(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("KFL_DATA_DIR", str(tmp_path / "data"))
    load_dataset("mnist-5k")
    found = findings(capsys)
    assert found["Installed", "torch"]["text"] == version("torch")
    assert str(tmp_path / "data") in found["Data", "folder"]["text"]
    digits = found["Data", "mnist-5k"]
    assert "4,000 + 1,000 samples" in digits["text"]
    assert load_dataset("mnist-5k").fingerprint() in digits["text"]
    assert found["Data", "cifar10"]["advice"] == "kfl data download cifar10"
    assert found["Extras", "data"]["state"] == "ok"


def test_files_that_are_not_decoded_yet_are_left_alone(capsys, tmp_path, monkeypatch):
    from kfl.data.named import MNIST

    monkeypatch.setenv("KFL_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("KFL_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "mnist").mkdir()
    for file in MNIST.members.values():
        (tmp_path / "mnist" / file.name).write_bytes(b"x" * 500)
    found = findings(capsys)["Data", "mnist"]
    assert found["state"] == "ok"
    assert "2 kB" in found["text"]
    assert "not decoded yet" in found["text"]
    assert not (tmp_path / "cache").exists()


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/proc").exists(), reason="needs a folder no user can write")
def test_a_folder_that_cannot_be_written_is_named_with_what_to_do(capsys, monkeypatch):
    monkeypatch.setenv("KFL_CACHE_DIR", "/proc/version/cache")
    found = findings(capsys)["Folders", "cache"]
    assert found["state"] == "absent"
    assert "KFL_CACHE_DIR" in found["advice"]


def test_for_people(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "kfl can run" in shown
    assert all(name in shown for name in EXTRAS)


def test_with_numpy_alone_it_still_works_and_says_what_to_install(tmp_path):
    for path in Path(numpy.__file__).parents[1].glob("numpy*"):
        (tmp_path / path.name).symlink_to(path)
    words = [sys.executable, "-S", "-m", "kfl.cli.main", "doctor"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": f"{ROOT / 'src'}:{tmp_path}"}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr == ""
    for name in REQUIRED[1:]:
        assert f"pip install '{name}" in done.stdout
    assert "pip install 'kfl[fleet]'" in done.stdout
    assert "kfl cannot run yet" in done.stdout


def test_it_imports_nothing_heavy_but_pytorch():
    program = (
        "import sys\nfrom kfl.cli.main import main\nmain(['doctor'])\n"
        "heavy = {'ray', 'wandb', 'mlflow', 'flwr', 'matplotlib', 'codecarbon', 'tensorboard', 'selenium'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
