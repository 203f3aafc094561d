"""Whole fleets of real processes on 127.0.0.1: TLS, authenticated devices, a database, process isolation.

Each test starts a dozen processes, so there are few of them and all are in this file. What takes longer (devices killed
in mid-round, the SuperLink killed, keys revoked and replaced, disks, clocks) is in studies/fleet/every_fault.py.
"""

import json
import os
import signal
import sqlite3
import stat
import subprocess
import tempfile
import time
import urllib.request
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kfl.algorithms import FedAvg, Kfl, Rejection, SharedStem
from kfl.core.files import LockedError, only_one
from kfl.core.refusals import describe, stored_refusal
from kfl.runfolder import RunReader
from kfl.scheduling import SCHEDULERS
from kfl.simulation import Experiment, load_run, run
from kfl_fleet import FleetSettings, ServerConfig
from kfl_fleet._flower.app_folder import program
from kfl_fleet.device.memory import Memory
from kfl_fleet.device.node import NodeOptions, command
from kfl_fleet.local.fleet import LocalFleet
from kfl_fleet.local.processes import free_ports
from kfl_fleet.project import Project
from kfl_fleet.project.certificates import make_authority, make_device_key
from kfl_fleet.server.status import read_status

pytestmark = pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")


@pytest.fixture(autouse=True)
def alone():
    """One fleet at a time, whichever of several test processes it belongs to."""
    while True:
        try:
            with only_one(Path(tempfile.gettempdir()) / "kfl-fleet-tests.lock"):
                yield
                return
        except LockedError:
            time.sleep(0.5)


def compare(fleet, folder):
    """Whether a fleet knows, to the last bit, what the simulator knows, and devices hold the models it holds."""
    experiment = fleet.config.experiment
    twin = run(experiment, folder)
    _, history = load_run(fleet.run_folder)
    with np.load(fleet.run_folder / "server.npz") as ours, np.load(folder / "server.npz") as theirs:
        assert set(ours.files) == set(theirs.files)
        for name in theirs.files:
            np.testing.assert_array_equal(ours[name], theirs[name])
    for ours, theirs in zip(history.rounds, twin.rounds, strict=True):
        assert (ours.devices, ours.share) == (theirs.devices, theirs.share)
        assert (ours.compute_energy_j, ours.upload_energy_j) == (theirs.compute_energy_j, theirs.upload_energy_j)
        assert ours.accuracy == theirs.accuracy or not experiment.algorithm.predicts_alone
    name = json.loads((fleet.run_folder / "fleet.json").read_text())["run"]
    for device in range(experiment.devices):
        kept = Memory(fleet.device_folder(device) / "state", name, device).load()
        model = RunReader(folder).model(device) or {}  # of an algorithm whose devices keep none
        for key in model.keys() & kept.state.keys():
            np.testing.assert_array_equal(kept.state[key].numpy(), model[key].numpy())
    return history


def secrets_of(fleet):
    """Every line of a key or secret, and every token that Flower gave a server app."""
    keys = [line for path in Project(fleet.folder).private_files() for line in path.read_text().splitlines()]
    with closing(sqlite3.connect(fleet.folder / "superlink.db")) as database:
        tokens = [token for (token,) in database.execute("select token from task where token is not null")]
    return [line.encode() for line in [*keys, *tokens] if len(line) > 30 and "PRIVATE KEY" not in line]


def places_of(fleet, secrets):
    """Files in which a secret stands that has no business there."""
    allowed = (fleet.folder / "keys", fleet.folder / "flower" / "credentials.yaml")
    files = [path for path in fleet.folder.rglob("*") if path.is_file() and not path.name.startswith("superlink.db")]
    files = [path for path in files if not any(path.is_relative_to(place) for place in allowed)]
    assert len(files) > 20
    return [path for path in files if any(secret in path.read_bytes() for secret in secrets)]


def test_a_warm_fleet_knows_what_the_simulator_knows_with_any_algorithm_and_a_killed_server(small, tmp_path):
    config = ServerConfig(small(), FleetSettings(metrics_port=0, quorum=0.0, largest_weight=1.0))
    with LocalFleet(tmp_path / "fleet", config) as fleet:
        text = ""
        for log in fleet.rounds(patience_s=240):
            if log.round == 0:
                facts = json.loads((fleet.run_folder / "fleet.json").read_text())
                url = f"http://127.0.0.1:{facts['metrics_port']}/metrics"
                text = urllib.request.urlopen(url, timeout=30).read().decode()
                secrets = secrets_of(fleet)
                assert len(secrets) > 20
                said = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in fleet.processes.members()]
                assert any(b"--token-file" in words for words in said)
                assert not [s for s in secrets for words in (*said, text.encode()) if s in words]
                environment = json.loads((fleet.run_folder / "environment.json").read_text())
                os.kill(environment["process"], signal.SIGKILL)
                fleet.submit()
        assert fleet.runs == 2
        assert "kfl_devices_seen 4.0" in text
        history = compare(fleet, tmp_path / "kfl")
        assert [log.round for log in history.rounds] == [0, 1, 2]
        assert len(set(history.rounds[0].share)) == 4
        assert any(len(log.devices) < 4 for log in history.rounds)
        # The same processes play other algorithms: a new run, a fresh worker each.
        others = {FedAvg(local_steps=2): ("mlp", (32,)), SharedStem(local_steps=2): ("cnn", (8, 16))}
        for algorithm, (model, widths) in others.items():
            fleet.config = replace(config, experiment=small(algorithm=algorithm, model=model, widths=widths, rounds=2))
            fleet.run_folder = fleet.folder / f"run-{algorithm.name}"
            fleet.prepare()
            fleet.submit()
            assert len(list(fleet.rounds(patience_s=240))) == 2
            compare(fleet, tmp_path / algorithm.name)
    assert fleet.processes.members() == []
    assert places_of(fleet, [*secrets, *secrets_of(fleet)]) == []
    opened = [path for path in fleet.folder.rglob("*") if path.stat().st_mode & 0o077]
    assert stat.S_IMODE(fleet.folder.stat().st_mode) == 0o700
    assert not [path for path in opened if path.suffix == ".db" or path.name in ("keys", "flower", "run", "logs")]


MISCHIEF = {
    (1, 0): "raise",
    (2, 0): "counts",
    (3, 0): "energy",
    (1, 1): "nan",
    (2, 1): "replay",
    (3, 1): "shape",
    (1, 2): "hang",
    (2, 2): "die",
    (3, 2): "memory",
}

TWISTED = """
import os, signal, time
import numpy as np, torch
from kfl_fleet.device.simulated import device
from kfl_fleet.device.worker import Worker

MISCHIEF, honest, said = {mischief!r}, Worker.answer, {{}}

def answer(worker, values, arrays):
    what = MISCHIEF.get((worker.device, values.get("round")))
    if what == "raise":
        raise RuntimeError("no camera at /dev/video0\\n\\x1b[31mred")
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "hang":
        time.sleep(600)
    if what == "memory":
        torch.ones(2**45)
    reply, upload = honest(worker, values, arrays)
    if values["kind"] == "round":
        said.setdefault("first", (reply, upload))
    if what == "replay":
        return said["first"]
    if what == "nan":
        upload = {{**upload, "means": torch.full((10, 64), torch.nan)}}
    if what == "shape":
        upload = {{**upload, "means": torch.ones(64, 10)}}
    if what == "counts":
        upload = {{**upload, "counts": torch.full((10,), 10**12)}}
    if what == "energy":
        reply = {{**reply, "compute_energy_j": 1e12}}
    return reply, upload

Worker.answer = answer
"""


class TwistedFleet(LocalFleet):
    """A fleet whose devices misbehave on schedule, and with unauthorized clients."""

    def prepare(self):
        super().prepare()
        (self.folder / "app" / "local_fleet" / "twisted.py").write_text(TWISTED.format(mischief=MISCHIEF))

    def start_strangers(self):
        stranger, other = self.folder / "stranger", self.folder / "other"
        unknown = str(make_device_key(stranger, 9).private)
        known, right = str(self.folder / "keys" / "device-0"), str(self.authority)
        wrong = str(make_authority(other).public)
        strangers = {
            "unknown-key": (right, unknown),
            "wrong-authority": (wrong, unknown),
            "key-in-use": (right, known),
        }
        for name, (authority, key) in strangers.items():
            options = NodeOptions(self.address, authority, key, 0, str(self.folder / name))
            self.processes.start(name, command(options))
        words = [program("flower-supernode"), "--superlink", self.address, "--max-retries", "2"]
        for (name, more), port in zip(
            {"no-key": ["--root-certificates", right], "plain-text": ["--insecure"]}.items(), free_ports(2), strict=True
        ):
            node = ["--host", "127.0.0.1", "--port", str(port), "--node-config", "partition-id=0"]
            self.processes.start(name, [*words, *more, *node], FLWR_HOME=str(self.folder / name))


def test_devices_that_misbehave_cost_only_themselves_and_strangers_stay_outside(small, tmp_path):
    experiment = small(rounds=4, widths=(16,), algorithm=Kfl(local_steps=1), scheduler=SCHEDULERS["all"]())
    config = ServerConfig(experiment, FleetSettings(deadline_s=15.0, quorum=0.25, largest_weight=1.0))
    with TwistedFleet(tmp_path / "fleet", config, "local_fleet.twisted:device") as fleet:
        fleet.start_strangers()
        logs = list(fleet.rounds(patience_s=240))
        listed = fleet.control.nodes()
    assert fleet.processes.members() == []
    assert [log.round for log in logs] == [0, 1, 2, 3]
    assert all(log.devices == (0, 1, 2, 3) for log in logs)

    fault = {(f["device"], log.round): f for log in logs for f in log.faults}
    refused = {(r["device"], log.round): Rejection.from_dict(r).describe() for log in logs for r in log.rejected}
    assert fault[1, 0]["fault"] == "error"
    assert "no camera at … red" in describe(*stored_refusal(fault[1, 0]))
    assert "more than the" in refused[2, 0]
    assert fault[3, 0]["fault"] == "energy"
    assert logs[0].compute_energy_j[3] < 1, "energy no device can have spent is charged as planned"
    assert "not a number" in refused[1, 1]
    assert "it answers for round 0" in refused[2, 1]
    assert "shape (64, 10), not (10, 64)" in refused[3, 1]
    found = {device: (fault[device, 2]["fault"], fault[device, 2]["code"]) for device in (1, 2, 3)}
    assert found == {1: ("error", "worker_hung"), 2: ("error", "worker_died"), 3: ("error", "worker_memory")}
    assert "killed by SIGKILL" in describe(*stored_refusal(fault[2, 2]))
    assert logs[3].faults == logs[3].rejected == ()
    assert all(0 not in log.lost and 0 not in {r["device"] for r in log.rejected} for log in logs)
    said = "\n".join(read_status(fleet.run_folder).problems)
    assert "its worker did not answer in time" in said

    with np.load(fleet.run_folder / "server.npz") as found:
        assert np.isfinite(found["knowledge"]).all()
    nodes = json.loads((fleet.run_folder / "fleet.json").read_text())
    assert sorted(nodes["devices"]) == ["0", "1", "2", "3"]
    assert len({d["node"] for d in nodes["devices"].values()}) == 4
    assert [nodes["devices"][str(device)]["name"] for device in range(4)] == [f"device-{device}" for device in range(4)]
    assert len(listed) == 4
    logs = {name: (fleet.folder / "logs" / f"{name}.log").read_text() for name in STRANGERS}
    assert not any("Receiving:" in text or "Online" in text for text in logs.values())
    assert "the fleet's authority did not sign" in logs["wrong-authority"]
    assert "Knocking" in logs["unknown-key"]


STRANGERS = ("unknown-key", "no-key", "wrong-authority", "plain-text", "key-in-use")


def test_up_streams_rounds_and_ends_cleanly_also_on_an_interrupt(tmp_path):
    command = [program("kfl"), "deploy", "up", "--devices", "2", "--rounds", "1", "--out"]
    first = subprocess.Popen(
        [*command, "first"], stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=tmp_path
    )
    lines = []
    for line in first.stdout:
        lines.append(line)
        if line.startswith("All processes are running"):
            first.send_signal(signal.SIGINT)
    first.stdout.close()
    assert first.wait() == 130
    assert "All processes stopped.\n" in lines
    # Another folder: in the same one devices may be refused for a minute, while the server thinks they are still there.
    again = subprocess.run([*command, "fleet"], capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith(
        f"There is no fleet's project in {tmp_path}, so this is a rehearsal: 2 devices on this"
    )
    assert "round 1 of 1: 2 chosen, 2 used" in again.stdout
    assert "All processes stopped" in again.stdout
    _, history = load_run(tmp_path / "fleet" / "run")
    assert [log.round for log in history.rounds] == [0]


MORTAL = """
import os, signal
from kfl_fleet.device.simulated import device as demo
from kfl_fleet.device.secure_upload import MaskedUpload

def device(partition, config):
    answer = MaskedUpload.answer

    def die(self, values, arrays):
        if (self.round, values.get("step")) == (1, "mask") and partition in (1, 4):
            if partition == 4:
                os.kill(os.getppid(), signal.SIGKILL)  # the node, too
            os.kill(os.getpid(), signal.SIGKILL)
        return answer(self, values, arrays)

    MaskedUpload.answer = die
    return demo(partition, config)
"""


def test_secure_sums_survive_devices_killed_in_mid_round(tmp_path, loop, serve_fleet):
    """Two of six die when all others hold masks in common with them; the rest add up to what plain uploads give."""
    experiment = Experiment(
        devices=6, rounds=2, widths=(32,), algorithm=Kfl(local_steps=2), scheduler=SCHEDULERS["all"](), radio=None
    )
    config = ServerConfig(experiment, FleetSettings(secure_sums=True, secure_deadline_s=8.0, deadline_s=60.0))
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "mortal.py").write_text(MORTAL)
    paths = [tmp_path / "modules", *map(Path, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    with LocalFleet(tmp_path / "secure", config, device="mortal:device", python_path=paths) as fleet:
        logs = list(fleet.rounds(patience_s=120, restart=False))
    assert fleet.processes.members() == []
    assert [log.status.ok for log in logs] == [True, True]
    assert not logs[0].faults and not logs[0].rejected
    # The node of device 1 says that its worker died, or, asked twice, the new worker that it has no part in the sum.
    why = {entry["device"]: describe(*stored_refusal(entry)) for entry in (*logs[1].faults, *logs[1].rejected)}
    assert set(why) == {1, 4}
    assert all(text.startswith("in the step mask of the secure sum, ") for text in why.values())

    grid, plain = loop(experiment, quorum=0.0)
    grid.twist = lambda device, asked, reply: None if asked.metadata.group_id == "1" and device in (1, 4) else reply
    twin = serve_fleet(grid, plain)
    with np.load(fleet.run_folder / "server.npz") as ours, np.load(twin / "server.npz") as theirs:
        np.testing.assert_array_equal(ours["known"], theirs["known"])
        np.testing.assert_allclose(ours["knowledge"], theirs["knowledge"], atol=1e-4)
