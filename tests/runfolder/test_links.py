"""A run folder from someone else: no link in it is followed, nothing outside is read, written or removed."""

import os
import shutil
from contextlib import suppress
from dataclasses import replace

import pytest

import kfl
from kfl.cli.main import main
from kfl.core.errors import KflError, RunFolderError, StoppedError
from kfl.runfolder import RunFolder, RunReader
from tests.reference.runs import SMALL, data

TINY = replace(SMALL, rounds=4, devices=4)
FILES = (
    *("config.toml", "environment.json", "rounds.jsonl", "trail.jsonl", "job.json", "asked.json", "fleet.json"),
    *("fleet.jsonl", "server.npz", "devices.json", "summary.json", ".lock", "server.log", "trackers.json"),
)
FOLDERS = ("state", "models", "tensorboard")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("links") / "run"
    answers = iter([False, True])
    with pytest.raises(StoppedError):
        kfl.run(TINY, folder, dataset=data(), checkpoint_s=0.0, should_stop=lambda: next(answers))
    return folder


def everything(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", [*FILES, *FOLDERS, "state/point-000002.json", "state/rest-000002.npz"])
def test_resume_refuses_a_folder_with_a_link_and_leaves_what_is_outside(stopped, tmp_path, name):
    run, outside = tmp_path / "run", tmp_path / "outside"
    shutil.copytree(stopped, run)
    place = run / name
    if place.is_dir():
        shutil.move(place, outside)
    else:
        outside.mkdir() if name in FOLDERS else outside.write_bytes(place.read_bytes() if place.exists() else b"{}\n")
    place.unlink(missing_ok=True)
    place.symlink_to(outside)
    before = everything(tmp_path)
    with pytest.raises(RunFolderError, match="it is a link"):
        kfl.resume(run, dataset=data())
    assert {path: text for path, text in everything(tmp_path).items() if path.name != ".lock"} == {
        path: text for path, text in before.items() if path.name != ".lock"
    }


def test_resume_writes_nothing_through_a_link_that_comes_while_it_runs(stopped, tmp_path):
    run, outside = tmp_path / "run", tmp_path / "outside"
    shutil.copytree(stopped, run)
    outside.mkdir()
    (outside / "point-000001.json").write_text("mine")

    def swap(_):
        if not (run / "state").is_symlink():
            shutil.rmtree(run / "state")
            (run / "state").symlink_to(outside)

    with pytest.raises(RunFolderError, match="link"):
        kfl.resume(run, dataset=data(), checkpoint_s=0.0, on_round=swap)
    assert [path.name for path in outside.iterdir()] == ["point-000001.json"]


def test_models_and_uploads_of_a_finished_run_are_not_read_through_links(tmp_path):
    kfl.run(TINY, tmp_path / "run", dataset=data())
    path = next((tmp_path / "run" / "models").iterdir())
    device = int(path.stem.split("-")[1])
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunFolderError, match="it is a link"):
        RunReader(tmp_path / "run").model(device)


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "models/../../outside", "a//b", "."])
def test_run_from_another_machine_writes_no_file_outside(tmp_path, name):
    with pytest.raises(RunFolderError, match="leads out"):
        RunFolder(tmp_path / "run").receive({"config.toml": b"", name: b"x"})
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("kind", ["pipe", "endless", "folder", "huge"])
@pytest.mark.parametrize("name", [name for name in FILES if name not in (".lock", "server.log")])
def test_file_that_is_none_is_one_sentence_at_once(stopped, tmp_path, name, kind, capsys):
    run = tmp_path / "run"
    shutil.copytree(stopped, run)
    (run / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(run / name)
    elif kind == "endless":
        (run / name).symlink_to("/dev/zero")
    elif kind == "folder":
        (run / name).mkdir()
    else:
        with (run / name).open("wb") as file:
            file.truncate(1 << 40)
    if name != "config.toml":
        with suppress(KflError):
            kfl.resume(run, dataset=data())
    for words in (["resume", str(run)], ["report", str(run)], ["export", str(run), "--out", str(tmp_path / "out")]):
        status = main(words)
        said = capsys.readouterr().err
        assert "Traceback" not in said
        if name == "config.toml":
            assert status == 2 and said.count("\n") == 1, said


@pytest.mark.parametrize("kind", ["pipe", "endless"])
@pytest.mark.parametrize(
    "words",
    [
        ("run", "--config", "it.toml"),
        ("compare", "--settings", "it.toml", "--algorithms", "kfl"),
        ("schedule", "it.json"),
        ("run", "--dataset", "./it.npz"),
        ("run", "--availability-trace", "it.csv"),
        ("deploy", "up", "--config", "it.toml"),
    ],
)
def test_file_that_a_person_names_and_is_none_is_one_sentence_at_once(tmp_path, monkeypatch, capsys, words, kind):
    monkeypatch.chdir(tmp_path)
    name = next(word for word in words if "it." in word)
    if kind == "pipe":
        os.mkfifo(name)
    else:
        (tmp_path / name).symlink_to("/dev/zero")
    assert main([*words, "--out", "out"] if words[0] == "run" else list(words)) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said and "kfl: " in said, said
