"""Checkpoints of states made directly: what is written, what is read back, what is kept, and what is refused."""

import hashlib
import json
import logging
import math
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from kfl.core.errors import RunFolderError
from kfl.runfolder import Checkpoints
from kfl.scheduling import SchedulerState
from kfl.scheduling.accounts import Accounts, Batteries
from kfl.simulation import RunState
from kfl.wireless import Fading


def row(value: float, numbers: int = 1000) -> dict[str, torch.Tensor]:
    return {"weight": torch.full((numbers,), value)}


def state(number: int, devices: dict[int, dict[str, torch.Tensor]]) -> RunState:
    """A state in which no two numbers are equal, so that none can take another's place unseen."""
    return RunState(
        accounts=Accounts(
            round=number,
            scheduler=SchedulerState(50, np.array([0.1, 0.2]), np.array([0.3, 0.4]), {"price": np.array(0.5)}),
            compute_j=np.array([1.0, 2.0]),
            upload_j=np.array([3.0, 4.0]),
            participation_count=np.array([5, 6]),
            batteries=Batteries(
                12.0, np.array([1.5, 2.5]), np.array([3.5, 4.5]), np.array([5.5, 6.5]), np.array([2, 3])
            ),
        ),
        server={"knowledge": torch.arange(6.0).reshape(2, 3), "known": torch.tensor([True, False])},
        devices=devices,
        correct=np.array([7, 8]),
        untested=frozenset({1}),
        fading=Fading(9, np.array([1 + 2j, 3 + 4j]), {"place": np.array([10.0, 11.0])}),
    )


def names(folder: Path, kind: str) -> list[str]:
    return sorted(path.name for path in folder.glob(f"{kind}-*"))


def test_a_state_is_read_back_as_it_was(tmp_path):
    written = state(3, {0: row(1.0), 1: row(2.0)})
    Checkpoints(tmp_path / "made" / "on demand").write(written)
    back = Checkpoints(tmp_path / "made" / "on demand").read(lines=3)
    assert (back.round, back.untested) == (3, frozenset({1}))
    assert np.array_equal(back.correct, written.correct)
    for name in ("compute_j", "upload_j", "participation_count"):
        assert np.array_equal(getattr(back.accounts, name), getattr(written.accounts, name)), name
    assert back.accounts.participation_count.dtype == back.correct.dtype == np.int64
    assert {name: value.tolist() for name, value in back.server.items()} == {
        "knowledge": [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]],
        "known": [True, False],
    }
    assert {device: one["weight"].unique().tolist() for device, one in back.devices.items()} == {0: [1.0], 1: [2.0]}
    assert back.accounts.scheduler.horizon == 50
    assert back.accounts.scheduler.allowance_j.tolist() == [0.1, 0.2]
    assert back.accounts.scheduler.queue_j.tolist() == [0.3, 0.4]
    assert {name: value.tolist() for name, value in back.accounts.scheduler.memory.items()} == {"price": 0.5}
    assert back.fading.round == 9
    assert back.fading.coefficient.tolist() == [1 + 2j, 3 + 4j]
    assert {name: value.tolist() for name, value in back.fading.memory.items()} == {"place": [10.0, 11.0]}
    assert back.accounts.batteries.capacity_j == 12.0 and isinstance(back.accounts.batteries.capacity_j, float)
    for name in ("charge_j", "harvested_j", "wasted_j", "empty_rounds"):
        assert np.array_equal(getattr(back.accounts.batteries, name), getattr(written.accounts.batteries, name)), name


def test_a_run_without_radio_and_batteries_has_none_after_it_is_read(tmp_path):
    bare = state(1, {})
    Checkpoints(tmp_path).write(replace(bare, fading=None, accounts=replace(bare.accounts, batteries=None)))
    back = Checkpoints(tmp_path).read(lines=1)
    assert (back.fading, back.accounts.batteries, back.devices) == (None, None, {})


def test_no_folder_is_no_checkpoint(tmp_path):
    assert Checkpoints(tmp_path / "nothing").read(lines=9) is None


def test_two_checkpoints_are_kept_with_the_files_they_need(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    still, devices = row(0.0), {}
    for number in range(1, 6):
        devices = {0: still, number: row(float(number))}
        checkpoints.write(state(number, {**devices, **{d: devices.get(d, still) for d in range(1, number)}}))
    assert names(tmp_path, "point") == ["point-000004.json", "point-000005.json"]
    assert names(tmp_path, "rest") == ["rest-000004.npz", "rest-000005.npz"]
    for point in names(tmp_path, "point"):
        needed = json.loads(json.loads((tmp_path / point).read_text())["point"])["sums"]
        assert all((tmp_path / name).exists() for name in needed)


def test_only_rows_that_changed_are_written(tmp_path):
    checkpoints, one, other = Checkpoints(tmp_path), row(1.0), row(2.0)
    checkpoints.write(state(1, {0: one, 1: other}))
    checkpoints.write(state(2, {0: one, 1: row(3.0)}))
    sizes = [(tmp_path / f"rows-{number:06d}.safetensors").stat().st_size for number in (1, 2)]
    assert sizes[0] > 8000 > sizes[1] > 4000
    assert Checkpoints(tmp_path).read(lines=2).devices[0]["weight"][0] == 1.0


def test_a_checkpoint_in_which_nothing_changed_writes_no_rows(tmp_path):
    checkpoints, devices = Checkpoints(tmp_path), {0: row(1.0), 1: row(2.0)}
    checkpoints.write(state(1, devices))
    checkpoints.write(state(2, dict(devices)))
    assert names(tmp_path, "rows") == ["rows-000001.safetensors"]
    assert Checkpoints(tmp_path).read(lines=2).devices[1]["weight"][0] == 2.0


def test_rows_are_written_afresh_when_three_times_what_is_needed_would_be_stored(tmp_path):
    """Each round changes one device less of ten, so that every file is kept for the sake of one row of it.

    Of 10, 9 and 8 rows and the next 7 no more than 30 may be stored: all ten are written instead, and once more while
    the checkpoint before still needs the old files.
    """
    checkpoints, devices, written = Checkpoints(tmp_path), {device: row(0.0) for device in range(10)}, []
    for number in range(1, 7):
        devices = {device: row(float(number)) if device >= number - 1 else old for device, old in devices.items()}
        checkpoints.write(state(number, devices))
        written.append((tmp_path / f"rows-{number:06d}.safetensors").stat().st_size // 4000)
        back = Checkpoints(tmp_path).read(lines=number)
        assert [float(back.devices[d]["weight"][0]) for d in range(10)] == [
            float(devices[d]["weight"][0]) for d in devices
        ]
    assert written == [10, 9, 8, 10, 10, 5]
    assert names(tmp_path, "rows") == [f"rows-{number:06d}.safetensors" for number in (5, 6)]


def test_a_resumed_run_goes_on_writing_only_what_changes(tmp_path):
    Checkpoints(tmp_path).write(state(1, {device: row(0.0) for device in range(10)}))
    resumed = Checkpoints(tmp_path)
    back = resumed.read(lines=1)
    for number in range(2, 30):
        back = replace(back.at_round(number), devices={**back.devices, 0: row(float(number))})
        resumed.write(back)
        assert sum(path.stat().st_size for path in tmp_path.glob("rows-*")) < 32 * 4100
        if number == 2:
            assert (tmp_path / "rows-000002.safetensors").stat().st_size < 2 * 4100
    again = Checkpoints(tmp_path).read(lines=29)
    assert [float(again.devices[device]["weight"][0]) for device in (0, 1, 9)] == [29.0, 0.0, 0.0]


def test_a_checkpoint_is_used_only_with_the_history_it_was_written_with(tmp_path, caplog):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(state(1, {0: row(1.0)}), history="a")
    checkpoints.write(state(2, {0: row(2.0)}), history="b")
    sums = {1: "a", 2: "b"}
    assert Checkpoints(tmp_path).read(2, sums.get).round == 2
    assert Checkpoints(tmp_path).read(9, sums.get).round == 2
    assert "damaged" not in caplog.text
    with caplog.at_level(logging.WARNING, logger="kfl"):
        assert Checkpoints(tmp_path).read(1, sums.get).round == 1
        assert Checkpoints(tmp_path).read(2, {1: "a", 2: "c"}.get).round == 1
        assert Checkpoints(tmp_path).read(0, sums.get) is None
    assert "the history holds 1 rounds, the checkpoint 2" in caplog.text
    assert "the history is not the one it was written with" in caplog.text


def test_the_lines_of_the_last_round_come_back_whole_or_not_at_all(tmp_path, caplog):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(state(1, {0: row(1.0)}), last={"rounds.jsonl": "{}\n"})
    again = Checkpoints(tmp_path)
    assert again.read(lines=0).round == 1
    assert again.last == {"rounds.jsonl": "{}\n"}
    checkpoints.write(state(2, {0: row(2.0)}), last={"rounds.jsonl": "{}\n", "devices.csv": "1,2"})
    with caplog.at_level(logging.WARNING, logger="kfl"):
        assert Checkpoints(tmp_path).read(lines=2).round == 1
    assert "the lines of its last round cannot be read" in caplog.text


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    Checkpoints(tmp_path, identity="mine").write(state(1, {}))
    assert Checkpoints(tmp_path, identity="mine").read(1).round == 1
    with pytest.raises(RunFolderError, match="belongs to another configuration, plan or dataset"):
        Checkpoints(tmp_path, identity="yours").read(1)


@pytest.mark.parametrize("damaged", ["rows-000002.safetensors", "rest-000002.npz", "point-000002.json"])
def test_a_flipped_bit_is_noticed_wherever_it_is(tmp_path, caplog, damaged):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(state(1, {0: row(1.0, 3)}))
    checkpoints.write(state(2, {0: row(2.0, 3)}))
    content = bytearray((tmp_path / damaged).read_bytes())
    for place in range(0, len(content), max(1, len(content) // 15)):
        content[place] ^= 1
        (tmp_path / damaged).write_bytes(content)
        content[place] ^= 1
        assert Checkpoints(tmp_path).read(lines=2).round == 1, place
        assert "The checkpoint point-000002.json is damaged" in caplog.text


def test_checkpoints_come_at_the_interval_that_was_asked_for(tmp_path):
    now = [100.0]
    for interval_s, waits in (
        (0.0, [True, True, True]),
        (10.0, [False, True, True]),
        (math.inf, [False, False, False]),
    ):
        now[0] = 100.0
        checkpoints = Checkpoints(tmp_path / str(interval_s), clock=lambda: now[0], interval_s=interval_s)
        found = []
        for now[0] in (100.0, 110.0, 500.0):
            found.append(checkpoints.due(state(1, {})))
        assert found == waits, interval_s


def test_the_cost_of_a_checkpoint_is_measured_and_sets_the_time_to_the_next(tmp_path):
    """One that takes 0.1 s for two rows: the next two rows are due after 5 s of work, four after 10."""
    ticks = iter([0.0, 20.0, 20.1])  # made, a write begins, and ends
    now = [0.0]
    checkpoints = Checkpoints(tmp_path, clock=lambda: next(ticks, now[0]))
    devices = {device: row(0.0) for device in range(4)}
    checkpoints.write(state(1, {0: devices[0], 1: devices[1]}))
    two = {0: devices[0], 1: row(1.0), 2: devices[2]}
    for changed, seconds in ((two, 5.0), ({**two, 0: row(1.0), 3: devices[3]}, 10.0), ({0: devices[0]}, 5.0)):
        now[0] = 20.1 + seconds - 0.01
        assert not checkpoints.due(state(2, changed))
        now[0] = 20.1 + seconds + 0.01
        assert checkpoints.due(state(2, changed))


def forge(folder: Path, number: int, arrays: dict[str, np.ndarray] | None = None, **changes: object) -> None:
    """Change a checkpoint and make its checksums right: they are no secret."""
    path = folder / f"point-{number:06d}.json"
    point = json.loads(json.loads(path.read_text())["point"]) | changes
    if arrays is not None:
        np.savez(folder / point["rest"], **arrays)
        data = (folder / point["rest"]).read_bytes()
        point["sums"] |= {point["rest"]: hashlib.blake2b(data, digest_size=16).hexdigest()}
    body = json.dumps(point)
    path.write_text(json.dumps({"sum": hashlib.blake2b(body.encode(), digest_size=16).hexdigest(), "point": body}))


@pytest.fixture
def two(tmp_path):
    """A folder with two checkpoints, after round 1 and after round 2."""
    checkpoints = Checkpoints(tmp_path / "state")
    checkpoints.write(state(1, {0: row(1.0, 3)}))
    checkpoints.write(state(2, {0: row(2.0, 3), 1: row(3.0, 3)}))
    return tmp_path / "state"


def test_the_format_is_version_1_and_no_other_is_read(two):
    assert json.loads(json.loads((two / "point-000002.json").read_text())["point"])["format_version"] == 1
    forge(two, 2)
    assert Checkpoints(two).read(lines=2).round == 2
    for version in (0, 2, None):
        forge(two, 2, format_version=version)
        with pytest.raises(RunFolderError, match=f"has format version {version}, but this kfl reads version 1"):
            Checkpoints(two).read(lines=2)


GARBAGE = {"rows-9": "crc32 " + f"{zlib.crc32(b'garbage'):08x}"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rows": {"0": "rows-9"}, "sums": GARBAGE}, "rows cannot be read"),
        ({"rows": {"7": "rows-000002.safetensors"}}, "7"),
        ({"rows": {"x": "rows-000002.safetensors"}}, "invalid literal"),
        ({"rows": {"0": "rows-9"}}, "rows-9"),
        ({"rows": {"0": ["rows-9"]}}, "unhashable"),
        ({"rest": "rest-000009.npz"}, "rest-000009.npz"),
        ({"round": "two"}, "a field of it is missing"),
        ({"history": None}, "a field of it is missing"),
        ({"sums": ["rest-000002.npz"]}, "a field of it is missing"),
        ({"rest": "rows-000002.safetensors"}, ""),
        ({"sums": {"../secret": GARBAGE["rows-9"]}}, "the name '../secret' leads out of the folder"),
        ({"sums": {"rows-8": ""}}, "rows-8 cannot be read, No such file or directory"),
        ({"sums": {"rows-9": "crc32 00000000"}}, "the checksum of rows-9 is wrong"),
        ({"last": ["rounds.jsonl"]}, "the lines of its last round cannot be read"),
        ({"last": {"rounds.jsonl": 5}}, "the lines of its last round cannot be read"),
        ({"last": {"rounds.jsonl": "{}"}}, "the lines of its last round cannot be read"),
        ({"last": {"rounds.jsonl": ""}}, "the lines of its last round cannot be read"),
    ],
)
def test_what_a_checkpoint_says_is_not_believed_even_with_a_right_checksum(two, caplog, changes, said):
    for name in ("rows-9", "../secret"):
        (two / name).write_bytes(b"garbage")
    forge(two, 2, **changes)
    with caplog.at_level(logging.WARNING, logger="kfl"):
        assert Checkpoints(two).read(lines=2).round == 1
    (line,) = caplog.messages
    assert line.startswith("The checkpoint point-000002.json is damaged (")
    assert said in line


def test_a_checkpoint_without_an_array_is_damaged_and_one_of_before_tests_everybody(two):
    with np.load(two / "rest-000002.npz") as found:
        arrays = dict(found)
    del arrays["untested"]
    forge(two, 2, arrays=arrays)
    assert Checkpoints(two).read(lines=2).untested == {0, 1}
    del arrays["taken"]
    forge(two, 2, arrays=arrays)
    assert Checkpoints(two).read(lines=2).round == 1


def test_the_same_state_is_the_same_bytes_whatever_the_order_of_its_sets_and_tables(tmp_path):
    """Devices 0 and 8 meet in a set's table of eight places, so that a set of both keeps the order they came in."""
    for name, order in (("a", (0, 8, 12)), ("b", (12, 8, 0))):
        averaged = replace(state(1, {device: {} for device in order}), untested=frozenset(order))
        Checkpoints(tmp_path / name).write(averaged)
    for path in sorted((tmp_path / "a").iterdir()):
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name
    assert Checkpoints(tmp_path / "b").read(lines=1).devices == {0: {}, 8: {}, 12: {}}


def test_a_checkpoint_that_is_no_table_is_damaged(two):
    body = "[1]"
    whole = {"sum": hashlib.blake2b(body.encode(), digest_size=16).hexdigest(), "point": body}
    (two / "point-000002.json").write_text(json.dumps(whole))
    assert Checkpoints(two).read(lines=2).round == 1


def test_devices_that_wait_for_a_test_are_whole_numbers_even_if_there_are_none(tmp_path):
    Checkpoints(tmp_path).write(replace(state(1, {}), untested=frozenset()))
    with np.load(tmp_path / "rest-000001.npz") as found:
        assert (found["untested"].dtype, found["untested"].shape) == (np.int64, (0,))


def test_a_damaged_predecessor_costs_the_newest_none_of_its_files(two):
    resumed = Checkpoints(two)
    back = resumed.read(lines=2)
    (two / "point-000002.json").write_text("damaged")
    resumed.write(replace(back.at_round(3), devices={**back.devices, 0: row(4.0, 3)}))
    again = Checkpoints(two).read(lines=3)
    assert again.round == 3
    assert [float(again.devices[device]["weight"][0]) for device in (0, 1)] == [4.0, 3.0]


class Shared(type(Path())):
    """A folder in which someone else has just removed the oldest files that a listing still shows."""

    def glob(self, pattern):
        return [self / pattern.replace("*", "000000"), *Path(self).glob(pattern)]


def test_files_that_somebody_else_removes_first_are_no_error(tmp_path):
    checkpoints = Checkpoints(Shared(tmp_path))
    for number in range(1, 4):
        checkpoints.write(state(number, {0: row(float(number), 3)}))
    assert names(tmp_path, "rest") == ["rest-000002.npz", "rest-000003.npz"]


def test_the_newest_of_many_is_read_in_whatever_order_a_disk_lists_them(tmp_path):
    for number in (7, 12, 3, 100, 41, 8, 60, 23, 5, 77):
        Checkpoints(tmp_path / str(number)).write(state(number, {}))
        for path in (tmp_path / str(number)).iterdir():
            path.rename(tmp_path / path.name)
    assert Checkpoints(tmp_path).read(lines=100).round == 100


def test_rows_are_written_afresh_only_beyond_three_times_what_is_needed(tmp_path):
    """Ten rows of 80 bytes, and a header as long as 15: with five that change, 30 are stored; with six, 31."""
    for changed, most in ((5, 1200), (6, 2000)):
        folder = tmp_path / str(changed)
        checkpoints = Checkpoints(folder)
        devices = {device: {"a": torch.zeros(8), "b": torch.zeros(12)} for device in range(10)}
        checkpoints.write(state(1, devices))
        assert (folder / "rows-000001.safetensors").stat().st_size == 25 * 80
        fresh = {device: {"a": torch.ones(8), "b": torch.ones(12)} for device in range(changed)}
        checkpoints.write(state(2, devices | fresh))
        rows = Checkpoints(folder).read(lines=2).devices
        assert [float(rows[device]["b"].sum()) for device in range(10)] == [12.0] * changed + [0.0] * (10 - changed)
        assert most - 400 < (folder / "rows-000002.safetensors").stat().st_size <= most


def test_the_first_checkpoint_is_due_at_once(tmp_path):
    now = [5.0]
    checkpoints = Checkpoints(tmp_path, clock=lambda: now[0])
    assert checkpoints.due(state(1, {0: row(0.0)}))


@pytest.mark.parametrize(
    ("took_s", "written", "changed", "wait_s"),
    [
        (0.125, 1, 1, 6.25),
        (0.125, 1, 2, 12.5),
        (0.125, 0, 1, 6.25),  # nothing was written: one row is expected to take as long
        (0.125, 2, 1, 6.25),
        (0.125, 2, 5, 15.625),
        (0.5, 1, 1, 25.0),
        (1.0, 1, 1, 30.0),
        (100.0, 1, 3, 30.0),  # no crash costs more than half a minute
    ],
)
def test_a_checkpoint_is_due_after_fifty_times_its_cost_and_no_later_than_half_a_minute(
    tmp_path, took_s, written, changed, wait_s
):
    ticks, now = iter([0.0, 16.0, 16.0 + took_s]), [0.0]  # made, a write begins, and ends
    checkpoints = Checkpoints(tmp_path, clock=lambda: next(ticks, now[0]))
    devices = {device: row(0.0, 1) for device in range(8)}
    checkpoints.write(state(1, {device: devices[device] for device in range(written)}))
    kept = {device: devices[device] for device in range(written)}
    following = state(2, kept | {100 + device: row(1.0, 1) for device in range(changed)})
    for now[0], due in ((16 + took_s + wait_s - 0.001, False), (16 + took_s + wait_s, True)):
        assert checkpoints.due(following) == due
