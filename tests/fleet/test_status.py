"""kfl deploy status: what it says must be what happened, while the server is at work and afterward."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from kfl.cli.main import main
from kfl.core.errors import RunFolderError
from kfl.runfolder import RunFolder, is_held
from kfl.scheduling import SCHEDULERS
from kfl.simulation import load_run, run
from kfl_fleet.server.app import FleetServer
from kfl_fleet.server.messaging import Courier
from kfl_fleet.server.status import find_run, read_status
from tests.fleet.messages import changed, round_of


def twist(device, asked, reply):
    """Device 1 is silent in round 0, and device 2 sends a word for the number of right predictions in round 1."""
    if (device, round_of(asked)) == (1, 0):
        return None
    if (device, round_of(asked)) == (2, 1):
        return changed(reply, correct="all")
    return reply


@pytest.fixture
def everybody(small):
    return small(scheduler=SCHEDULERS["all"]())


def test_it_adds_up_while_the_server_is_at_work_and_when_it_has_stopped(loop, everybody):
    grid, config = loop(everybody)
    grid.twist = twist
    target = RunFolder(grid.folder / "run")
    with target.locked():
        target.prepare(config.experiment)
        server = FleetServer(config, target, Courier(grid, config.fleet.poll_s, grid.clock))
        server.runner.start()
        server.runner.step()
        server.runner.step()
        assert is_held(target.path)
        status = read_status(target.path)
    assert (status.state, status.rounds_done, status.rounds) == ("running", 2, 3)
    assert (status.devices_seen, status.devices_expected) == (4, 4)
    counts = [(one.chosen, one.used, one.late, one.lost, one.rejected, one.last_round) for one in status.devices]
    assert counts == [(2, 2, 0, 0, 0, 2), (2, 1, 1, 0, 0, 2), (2, 1, 0, 0, 1, 1), (2, 2, 0, 0, 0, 2)]
    assert (status.late, status.lost, status.rejected) == (1, 0, 1)
    state = server.runner.state
    energy_j = state.accounts.compute_j + state.accounts.upload_j
    assert status.energy_j == pytest.approx(energy_j.sum())
    assert [one.energy_j for one in status.devices] == pytest.approx(list(energy_j))
    tests = [member.profile.test_samples for _, member in sorted(server.roster.members.items())]
    assert [one.accuracy for one in status.devices] == [
        right / count for right, count in zip(state.correct, tests, strict=True)
    ]
    assert status.accuracy == server.runner.logs[-1].accuracy
    assert [one.budget_j for one in status.devices] == pytest.approx(list(server.fleet.table.budget_j))
    assert status.problems[0].startswith("Round 2, device 2, rejected: its correct is not an integer")
    assert status.problems[1].startswith("Round 1, device 1, late: no answer in 0.3 s")
    assert not is_held(target.path)
    assert read_status(target.path).state == "stopped"


def test_a_finished_fleet_as_table_and_as_json(loop, everybody, serve_fleet, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    grid, config = loop(everybody)
    folder = serve_fleet(grid, config)
    assert main(["deploy", "status", str(folder)]) == 0
    shown = capsys.readouterr().out
    _, history = load_run(folder)
    for words in ("kfl, all: round 3 of 3, finished", "4 of 4 devices seen", f"{100 * history.accuracy:.2f} %"):
        assert words in shown
    assert main(["deploy", "status", "--json", str(grid.folder)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["folder"] == str(folder)
    assert [one["accuracy"] for one in found["devices"]] == [one["accuracy"] for one in history.devices]
    assert [one["budget_j"] for one in found["devices"]] == [one["budget_j"] for one in history.devices]
    assert found["energy_j"] == pytest.approx(history.summary["energy_j"])
    assert found["bits_up"] == history.summary["bits_up"]
    assert found["metrics_port"] is None


def test_a_device_that_never_came_is_not_seen(loop, everybody):
    grid, config = loop(everybody, min_devices=3)
    del grid.online[1003]
    target = RunFolder(grid.folder / "run")
    with target.locked():
        target.prepare(config.experiment)
        server = FleetServer(config, target, Courier(grid, config.fleet.poll_s, grid.clock))
        server.runner.start()
        server.runner.step()
    status = read_status(target.path)
    assert status.devices_seen == 3
    assert [one.seen for one in status.devices] == [True, True, True, False]
    assert (status.devices[3].chosen, status.devices[3].accuracy, status.devices[3].last_round) == (0, None, None)


def test_a_node_that_cannot_join_is_shown_with_the_reason_before_anybody_has_joined(loop, everybody, capsys):
    grid, config = loop(everybody)
    grid.online = {1003: grid.online[1003]}
    grid.node_config[3] = {"partition-id": 9}
    target = RunFolder(grid.folder / "run")
    with target.locked():
        target.prepare(config.experiment)
        server = FleetServer(config, target, Courier(grid, config.fleet.poll_s, grid.clock))
        server.fleet.look()
    assert list(read_status(target.path).refused) == ["1003"]
    assert main(["deploy", "status", str(target.path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "0 of 4 devices seen" in shown
    assert "Node 1003 cannot join: " in shown
    assert "partition-id is 9" in shown


def test_sentences_of_an_earlier_version_are_shown_as_they_are(loop, everybody, serve_fleet):
    folder = serve_fleet(*loop(everybody))
    fleet = json.loads((folder / "fleet.json").read_text())
    (folder / "fleet.json").write_text(json.dumps({**fleet, "refused": {"1007": "it did not say what it has"}}))
    *earlier, last = (folder / "rounds.jsonl").read_text().splitlines()
    faults = [
        {"device": 1, "fault": "late", "reason": "no answer in 9 s"},
        {"device": 2, "fault": "energy", "code": "energy_negative", "part": "upload", "found": -2.0},
        {"device": 3, "fault": "outage"},
    ]
    last = json.dumps({**json.loads(last), "faults": faults})
    (folder / "rounds.jsonl").write_text("\n".join([*earlier, last, ""]))
    status = read_status(folder)
    assert status.refused == {"1007": "it did not say what it has"}
    assert status.problems[:3] == (
        "Round 3, device 1, late: no answer in 9 s.",
        "Round 3, device 2, energy: its upload energy of -2 J is negative.",
        "Round 3, device 3, outage.",
    )


def test_it_finds_the_run_folder_and_refuses_what_is_none(loop, everybody, serve_fleet, small, tmp_path, capsys):
    grid, config = loop(everybody)
    folder = serve_fleet(grid, config)
    project = tmp_path / "project"
    shutil.copytree(folder, project / "local" / "run")
    assert find_run(project) == project / "local" / "run"
    shutil.copytree(folder, project / "run")
    assert find_run(project) == project / "run"
    with pytest.raises(RunFolderError, match="holds no run of a fleet"):
        read_status(tmp_path)
    run(small(rounds=1), tmp_path / "simulated")
    with pytest.raises(RunFolderError, match="a simulation, not of a fleet"):
        read_status(tmp_path / "simulated")
    (project / "run" / "fleet.json").write_text("{")
    assert main(["deploy", "status", str(project)]) == 2
    assert "fleet.json is damaged" in capsys.readouterr().err


def test_a_line_that_was_torn_is_passed_over(loop, everybody, serve_fleet):
    grid, config = loop(everybody)
    folder = Path(serve_fleet(grid, config))
    before = read_status(folder)
    with (folder / "fleet.jsonl").open("a") as file:
        file.write('not json\n{"round": 9')
    assert replace(read_status(folder), time=before.time) == before
