"""SIGKILL, full disks and folders that cannot be used: nothing is lost, and what is said is one sentence."""

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import kfl
from kfl.cli.main import main
from kfl.core.errors import RunFolderError
from kfl.runfolder import RunFolder
from studies.kill_matrix import PHASES
from tests.reference.runs import SMALL, data, difference

ROOT = Path(__file__).parents[2]
RUN = ["--devices", "6", "--rounds", "12", "--widths", "8", "--scheduler.count", "3"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run of the command `kfl run`, undisturbed."""
    folder = tmp_path_factory.mktemp("command") / "whole"
    assert main(["run", *RUN, "--out", str(folder)]) == 0
    return folder


def one_sentence(text: str) -> str:
    """What a command that failed said, if it was one sentence and no traceback."""
    lines = [line for line in text.splitlines() if line.strip()]
    assert len(lines) == 1, text
    assert lines[0].startswith("kfl: ") and "Traceback" not in text
    return lines[0]


def test_killed_in_every_phase_every_resumed_run_is_the_undisturbed_one():
    done = subprocess.run(
        [sys.executable, "-m", "studies.kill_matrix", "--kills", "42", "--seed", "7"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["different"] == []
    assert result["kills"] == 42
    assert all(result["phases"][phase] >= 5 for phase in PHASES), result


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory):
    """A run folder as it was after each round, and at the end."""
    base = tmp_path_factory.mktemp("snapshots")

    def keep(log):
        shutil.copytree(base / "run", base / f"after-{log.round}")

    kfl.run(SMALL, base / "run", dataset=data(), checkpoint_s=0.0, on_round=keep)
    return base


@pytest.mark.parametrize("parts", ["rows", "rest", "point", "torn rows", "torn point", "torn history"])
def test_a_checkpoint_that_was_not_finished_does_not_exist(snapshots, tmp_path, parts):
    """The files of a checkpoint come in the order rows, rest, point; a kill may come between any two, or within one."""
    folder = tmp_path / "run"
    shutil.copytree(snapshots / "after-10", folder)
    later = snapshots / "after-11"
    shutil.copy(later / "rounds.jsonl", folder / "rounds.jsonl")
    rows, rest, point = (next((later / "state").glob(f"{kind}-000012*")) for kind in ("rows", "rest", "point"))
    if parts == "torn history":
        text = (later / "rounds.jsonl").read_text()
        (folder / "rounds.jsonl").write_text(text[: text.rindex('"round"') + 40])
    elif parts.startswith("torn"):
        torn = rows if "rows" in parts else point
        (folder / "state" / f".{torn.name}.0123456789ab.part").write_bytes(torn.read_bytes()[:100])
    else:
        for file in {"rows": [rows], "rest": [rows, rest], "point": [rows, rest, point]}[parts]:
            shutil.copy(file, folder / "state")
    kfl.resume(folder, dataset=data())
    assert difference(snapshots / "run", folder) is None


def test_a_kill_before_the_config_was_written_leaves_a_folder_that_can_be_used(snapshots, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".lock").touch()
    (folder / ".config.toml.0123456789ab.part").write_bytes(b"devi")
    kfl.run(SMALL, folder, dataset=data())
    assert difference(snapshots / "run", folder) is None


def test_a_kill_after_the_summary_was_written_leaves_a_finished_run(snapshots, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(snapshots / "run", folder)
    shutil.copytree(snapshots / "after-39" / "state", folder / "state")
    kfl.resume(folder, dataset=data())
    assert difference(snapshots / "run", folder) is None


def test_a_history_damaged_in_the_middle_is_played_again_from_the_start(snapshots, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(snapshots / "after-20", folder)
    lines = (folder / "rounds.jsonl").read_bytes().split(b"\n")
    lines[7] = b"\0" * len(lines[7])
    (folder / "rounds.jsonl").write_bytes(b"\n".join(lines))
    kfl.resume(folder, dataset=data())
    assert difference(snapshots / "run", folder) is None


def test_the_commands_run_kill_and_resume(whole, tmp_path):
    folder = tmp_path / "run"
    child = subprocess.Popen(
        [sys.executable, "-m", "kfl.cli.main", "run", *RUN, "--out", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not (folder / "rounds.jsonl").exists() or (folder / "rounds.jsonl").read_bytes().count(b"\n") < 3:
        assert child.poll() is None
        time.sleep(0.002)
    child.kill()
    assert child.wait() == -signal.SIGKILL
    assert not (folder / "summary.json").exists()
    done = subprocess.run(
        [sys.executable, "-m", "kfl.cli.main", "resume", str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert difference(whole, folder) is None


def test_a_folder_in_use_by_another_process_is_refused_and_untouched(whole, tmp_path, capfd):
    folder = tmp_path / "run"
    code = "import sys, time; from pathlib import Path; from kfl.runfolder import RunFolder\n"
    code += "with RunFolder(Path(sys.argv[1])).locked(): print('mine', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"mine\n"
        assert main(["run", *RUN, "--out", str(folder)]) == 2
        assert "in use by another process" in one_sentence(capfd.readouterr().err)
        assert [path.name for path in folder.iterdir()] == [".lock"]
        other.kill()
    assert main(["run", *RUN, "--out", str(folder)]) == 0, "a lock ends with its process"
    assert difference(whole, folder) is None


@contextlib.contextmanager
def files_up_to(size: int):
    """While the block runs no file can grow beyond `size`: the write fails as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [600, 2_000, 200_000])
def test_a_file_that_cannot_be_written_ends_in_one_sentence_and_the_run_can_go_on(whole, tmp_path, capfd, size):
    """600 bytes: not even the config; 2,000: the history; 200,000: the first checkpoint."""
    folder = tmp_path / "run"
    with files_up_to(size):
        assert main(["run", *RUN, "--out", str(folder)]) == 2
    assert "cannot be written (File too large)" in one_sentence(capfd.readouterr().err)
    assert not any(path.name.endswith(".part") for path in folder.rglob("*"))
    assert main(["run", *RUN, "--out", str(folder)]) == 0
    assert difference(whole, folder) is None


@pytest.fixture
def small_disk(tmp_path):
    """A file system of eight megabytes, where this process may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a file system can be mounted by root only")
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("free", [20_000, 400_000, 3_000_000])
def test_a_full_disk_ends_in_one_sentence_and_the_run_can_go_on(whole, small_disk, capfd, free):
    """Six models of 1.6 MB do not fit on it; how early it is full decides what fails."""
    ballast = small_disk / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 8 * 2**20 - free)
    assert main(["run", *RUN, "--out", str(small_disk / "run")]) == 2
    assert "No space left on device" in one_sentence(capfd.readouterr().err)
    target = small_disk.parent / "moved"
    shutil.copytree(small_disk / "run", target)
    assert main(["resume", str(target)]) == 0
    assert difference(whole, target) is None


@pytest.mark.parametrize("command", ["run", "resume"])
def test_a_folder_that_cannot_be_written_is_said_in_one_sentence(whole, tmp_path, capfd, command):
    (tmp_path / "file").write_bytes(b"x")
    where = str(tmp_path / "file" / "run")
    assert main(["run", *RUN, "--out", where] if command == "run" else ["resume", where]) == 2
    said = one_sentence(capfd.readouterr().err)
    assert where in said and ("cannot be written" in said or "not a run folder" in said)
    assert (tmp_path / "file").read_bytes() == b"x"


def test_a_run_of_another_config_is_refused_with_the_difference_shown(whole, capfd):
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    assert main(["run", *RUN, "--seed", "5", "--out", str(whole)]) == 2
    assert "seed: 0 → 5" in one_sentence(capfd.readouterr().err)
    assert {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()} == before


def test_too_little_memory_is_said_in_one_sentence(tmp_path, capfd):
    """A network of 800 gigabytes."""
    assert main(["run", "--widths", "400000000", "--devices", "5", "--out", str(tmp_path / "run")]) == 2
    assert "not enough memory" in one_sentence(capfd.readouterr().err)


def test_what_is_no_run_folder_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(RunFolderError, match="is not a run folder"), RunFolder(tmp_path).locked():
        raise AssertionError("unreachable")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
