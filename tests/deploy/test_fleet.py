"""Whole fleets of real processes on 127.0.0.1: TLS, authenticated devices, a database, process isolation.

Each test starts a dozen processes, so there are few of them and all are in this file. What takes longer (devices killed
in mid-round, the SuperLink killed, keys revoked and replaced, memory, bytes on the wire) is in studies/fleet_faults.py.
"""

import json
import os
import signal
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from kfl.algorithms import Kfl, Rejection
from kfl.core.files import LockedError, only_one
from kfl.core.refusals import describe, stored_refusal
from kfl.deploy import FleetSettings, ServerConfig
from kfl.deploy.certificates import make_authority, make_device_key
from kfl.deploy.local_fleet import LocalFleet, program
from kfl.deploy.memory import Memory
from kfl.deploy.processes import free_ports
from kfl.runfolder import RunReader
from kfl.scheduling import SCHEDULERS
from kfl.simulation import Experiment, load_run, run

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


def test_a_fleet_with_a_killed_server_knows_what_the_simulator_knows(small, tmp_path):
    experiment = small()
    config = ServerConfig(experiment, FleetSettings(metrics_port=0))
    with LocalFleet(tmp_path / "fleet", config) as fleet:
        text = ""
        for log in fleet.rounds(patience_s=240):
            if log.round == 0:
                facts = json.loads((fleet.run_folder / "fleet.json").read_text())
                url = f"http://127.0.0.1:{facts['metrics_port']}/metrics"
                text = urllib.request.urlopen(url, timeout=30).read().decode()
                time.sleep(2.0)  # round 1 is on its way, perhaps on some devices already
                environment = json.loads((fleet.run_folder / "environment.json").read_text())
                os.kill(environment["process"], signal.SIGKILL)
                fleet.submit()
    assert fleet.processes.members() == []
    assert fleet.runs == 2
    assert "kfl_devices_seen 4.0" in text

    twin = run(experiment, tmp_path / "simulated")
    _, history = load_run(fleet.run_folder)
    assert [log.round for log in history.rounds] == [0, 1, 2]
    assert len(set(history.rounds[0].share)) == 4
    assert any(len(log.devices) < 4 for log in history.rounds)
    with np.load(fleet.run_folder / "server.npz") as ours, np.load(tmp_path / "simulated/server.npz") as theirs:
        np.testing.assert_array_equal(ours["known"], theirs["known"])
        np.testing.assert_allclose(ours["knowledge"], theirs["knowledge"], atol=1e-5)
    for ours, theirs in zip(history.rounds, twin.rounds, strict=True):
        assert (ours.devices, ours.share, ours.accuracy) == (theirs.devices, theirs.share, theirs.accuracy)
        assert (ours.compute_energy_j, ours.upload_energy_j) == (theirs.compute_energy_j, theirs.upload_energy_j)
    for device in range(4):
        name = json.loads((fleet.run_folder / "fleet.json").read_text())["run"]
        kept = Memory(fleet.device_folder(device) / "state", name, device).load()
        model = RunReader(tmp_path / "simulated").model(device)
        assert max(float((kept.state[key] - model[key]).abs().max()) for key in model) < 1e-5


MISCHIEF = {
    (1, 0): "raise",
    (2, 0): "counts",
    (3, 0): "energy",
    (1, 1): "nan",
    (2, 1): "shape",
    (3, 1): "protocol",
    (1, 2): "slow",
    (2, 2): "die",
}

TWISTED = """
import io, os, signal, time
import numpy as np
from kfl.deploy import client
from kfl.deploy.flower import Array, ClientApp, ConfigRecord

app = ClientApp()
MISCHIEF = {mischief!r}

def put(reply, name, array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    reply.content["arrays"][name] = Array(str(array.dtype), array.shape, "numpy.ndarray", buffer.getvalue())

def answer(message, context):
    table = message.content.config_records["kfl"]
    what = MISCHIEF.get((context.node_config["partition-id"], table.get("round")))
    if what == "raise":
        raise RuntimeError("no camera at /dev/video0\\n\\x1b[31mred")
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "slow":
        time.sleep({slow})
    reply = client.answer(message, context)
    if what == "nan":
        put(reply, "means", np.full((10, 64), np.nan, np.float32))
    if what == "shape":
        put(reply, "means", np.ones((64, 10), np.float32))
    if what == "counts":
        put(reply, "counts", np.full(10, 10**12))
    if what == "protocol":
        reply.content["kfl"] = ConfigRecord({{**dict(reply.content["kfl"]), "protocol": 2}})
    if what == "energy":
        reply.content["kfl"] = ConfigRecord({{**dict(reply.content["kfl"]), "compute_energy_j": 1e12}})
    return reply

@app.query()
def query(message, context):
    return answer(message, context)

@app.train()
def train(message, context):
    return answer(message, context)
"""


class TwistedFleet(LocalFleet):
    """A fleet whose devices misbehave on schedule, and with strangers at its door."""

    def prepare(self):
        super().prepare()
        text = TWISTED.format(mischief=MISCHIEF, slow=self.config.fleet.deadline_s + 5)
        (self.folder / "app" / "local_fleet" / "client_app.py").write_text(text)

    def start_strangers(self):
        stranger, other = self.folder / "stranger", self.folder / "other"
        key = str(make_device_key(stranger, 9).private)
        wrong = str(make_authority(other).public)
        known = str(self.folder / "keys" / "device-0")
        right = ["--root-certificates", str(self.authority)]
        for (name, words), port in zip(
            {
                "unknown-key": [*right, "--auth-supernode-private-key", key],
                "no-key": right,
                "wrong-authority": ["--root-certificates", wrong, "--auth-supernode-private-key", key],
                "plain-text": ["--insecure"],
                "key-in-use": [*right, "--auth-supernode-private-key", known],
            }.items(),
            free_ports(5),
            strict=True,
        ):
            command = [program("flower-supernode"), "--superlink", self.address, "--max-retries", "2", *words]
            more = ["--host", "127.0.0.1", "--port", str(port), "--node-config", "partition-id=0"]
            self.processes.start(name, [*command, *more], FLWR_HOME=str(self.folder / name))


def test_devices_that_misbehave_cost_only_themselves_and_strangers_stay_outside(small, tmp_path):
    experiment = small(rounds=3, widths=(16,), algorithm=Kfl(local_steps=1), scheduler=SCHEDULERS["all"]())
    config = ServerConfig(experiment, FleetSettings(deadline_s=40.0, quorum=0.25))
    with TwistedFleet(tmp_path / "fleet", config) as fleet:
        fleet.start_strangers()
        logs = list(fleet.rounds(patience_s=240))
        listed = fleet.flwr("supernode", "list", "fleet", "--format", "json")
    assert fleet.processes.members() == []
    assert [log.round for log in logs] == [0, 1, 2]
    assert all(log.devices == (0, 1, 2, 3) for log in logs)

    fault = {(f["device"], log.round): f for log in logs for f in log.faults}
    refused = {(r["device"], log.round): Rejection.from_dict(r).describe() for log in logs for r in log.rejected}
    assert fault[1, 0]["fault"] == "error"
    assert "no camera at … red" in describe(*stored_refusal(fault[1, 0]))
    assert "more than the" in refused[2, 0]
    assert fault[3, 0]["fault"] == "energy"
    assert logs[0].compute_energy_j[3] < 1, "energy nobody can have spent is charged as planned"
    assert "not a number" in refused[1, 1]
    assert "shape (64, 10), not (10, 64)" in refused[2, 1]
    assert "version 2" in refused[3, 1]
    assert fault[1, 2]["fault"] == "late"
    assert fault[2, 2]["fault"] in ("late", "gone", "error")
    assert all(0 not in log.lost and 0 not in {r["device"] for r in log.rejected} for log in logs)

    with np.load(fleet.run_folder / "server.npz") as found:
        assert np.isfinite(found["knowledge"]).all()
    nodes = json.loads((fleet.run_folder / "fleet.json").read_text())
    assert sorted(nodes["devices"]) == ["0", "1", "2", "3"]
    assert len({d["node"] for d in nodes["devices"].values()}) == 4
    assert [nodes["devices"][str(device)]["name"] for device in range(4)] == [f"device-{device}" for device in range(4)]
    assert len(json.loads(listed)["nodes"]) == 4
    for name in ("unknown-key", "no-key", "wrong-authority", "plain-text", "key-in-use"):
        text = (fleet.folder / "logs" / f"{name}.log").read_text()
        assert "Receiving:" not in text, f"{name} got a message"


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
    assert "Ended: no process is left.\n" in lines
    # Another folder: in the same one devices may be refused for a minute, while the server thinks they are still there.
    again = subprocess.run([*command, "fleet"], capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "round 1 of 1: 2 chosen, 2 used" in again.stdout
    assert "no process is left" in again.stdout
    _, history = load_run(tmp_path / "fleet" / "run")
    assert [log.round for log in history.rounds] == [0]


MORTAL = """
import os, signal
from kfl.deploy.demo import device as demo
from kfl.deploy.masked_upload import MaskedUpload

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
        np.testing.assert_allclose(ours["knowledge"], theirs["knowledge"], atol=1e-3)
