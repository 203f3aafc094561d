"""A device's own program: its worker is warm, and may die, hang or run out of memory; the node lives on."""

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import zipfile
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import pytest

from kfl.algorithms import Kfl
from kfl.cli.main import main
from kfl.core.errors import ConfigError, KflError
from kfl.simulation import Experiment
from kfl_fleet._flower import bundle as _bundle
from kfl_fleet._flower.fleet_api import FleetApi
from kfl_fleet.device.node import NodeOptions
from kfl_fleet.device.pipe import ClosedError, Pipe
from kfl_fleet.device.worker import make_worker
from kfl_fleet.device.worker_link import WorkerError, WorkerLink
from kfl_fleet.messages.frames import pack, to_tensors, unpack
from kfl_fleet.project.certificates import make_authority, make_device_key, make_server_certificate

RUN = "0123456789abcdef"
DEVICE = """
import os, signal, time
import numpy as np
from kfl_fleet import DeviceSetup
from kfl.models import mlp

def prepare(advice):
    if advice.round == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    if advice.round == 2:
        np.ones(2**45)
    if advice.round == 3:
        raise RuntimeError("no camera at /dev/video0")
    if advice.round == 4:  # after the others: a round that was begun is not begun again, nor an earlier one
        time.sleep(600)

def device(partition, config):
    with open(config["calls"], "a") as calls:
        print(os.getpid(), file=calls)
    y = np.arange(30) % 3
    x = (np.random.default_rng(0).normal(size=(30, 6)) + y[:, None]).astype(np.float32)
    return DeviceSetup(lambda: mlp((6,), 3, 8), x, y, classes=3, prepare=prepare)
"""


def question(round_index):
    import torch

    values = {
        "protocol": 2,
        "kind": "round",
        "run": RUN,
        "round": round_index,
        "seed": 7,
        "algorithm": json.dumps(Experiment(algorithm=Kfl(local_steps=2)).to_table()["algorithm"]),
        **dict.fromkeys(
            ("deadline_s", "share", "power_w", "upload_time_s", "compute_energy_j", "upload_energy_j"), 0.5
        ),
    }
    return pack(values, {"knowledge": torch.zeros(3, 64), "known": torch.zeros(3, dtype=torch.bool)})


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """An app with a device function, and what a worker receives about it."""
    folder = tmp_path_factory.mktemp("device")
    (folder / "app").mkdir()
    (folder / "app" / "fragile_device.py").write_text(DEVICE)
    (folder / "device.toml").write_text(f'calls = "{folder / "calls"}"\n')
    node = {"partition-id": 4, "state": str(folder / "state"), "config": str(folder / "device.toml")}
    return folder, {"app": str(folder / "app"), "config": {"device": "fragile_device:device"}, "node": node, "run": 1}


def ask(link, setup, round_index, seconds=120.0):
    return link.answer(setup, question(round_index), time.monotonic() + seconds, lambda: None)


@pytest.fixture(scope="module")
def link(place):
    """A worker that has done round 0: once a later one has begun, it would be refused."""
    worker = WorkerLink()
    ask(worker, place[1], 0)
    yield worker
    worker.stop()


def calls(folder):
    return (folder / "calls").read_text().split()


def test_a_warm_worker_says_what_one_in_this_process_says_and_is_set_up_once(place, link, monkeypatch, tmp_path):
    folder, setup = place
    first = unpack(ask(link, setup, 0))
    pid = link.pid
    again = unpack(ask(link, setup, 0))
    assert again == first
    assert link.pid == pid
    assert calls(folder) == [str(pid)]
    monkeypatch.syspath_prepend(str(folder / "app"))
    beside = make_worker({**setup["node"], "state": str(tmp_path)}, setup["config"])
    values, arrays = unpack(beside.open(question(0)))
    assert {**values, "work_s": 0} == {**first[0], "work_s": 0}
    assert {name: array.data for name, array in arrays.items()} == {name: a.data for name, a in first[1].items()}
    assert to_tensors(first[1])["means"].shape == (3, 64)


@pytest.mark.parametrize(
    ("round_index", "code", "said"),
    [(1, "worker_died", "SIGSEGV"), (2, "worker_memory", "allocate"), (3, "failed", "RuntimeError: no camera at …")],
)
def test_what_a_round_breaks_is_told_with_a_code_and_the_next_question_is_answered(
    place, link, round_index, code, said
):
    folder, setup = place
    with pytest.raises(WorkerError, match=said) as caught:
        ask(link, setup, round_index)
    assert caught.value.code == code
    before = len(calls(folder))
    assert unpack(ask(link, setup, 0))[0]["status"] == "ok", "from its disk: it had done this round"
    assert len(calls(folder)) == before + (code != "failed"), "an error costs no worker"


def test_a_worker_that_hangs_is_ended_at_its_time_and_the_node_is_not_idle_meanwhile(place, link):
    _, setup = place
    ask(link, setup, 0)
    pid, breaths = link.pid, []
    with pytest.raises(WorkerError) as caught:
        link.answer(setup, question(4), time.monotonic() + 5.0, lambda: breaths.append(1))
    assert caught.value.code == "worker_hung"
    assert breaths
    assert not Path(f"/proc/{pid}").exists()
    assert link.pid != pid, "the next one is on its way"


def test_a_worker_that_is_not_ready_in_time_goes_on_getting_ready(place, link):
    """On a slow machine every message would else begin anew with importing PyTorch, and none be answered."""
    _, setup = place
    link.stop()
    with pytest.raises(WorkerError, match="still getting ready") as caught:
        ask(link, setup, 0, seconds=0.01)
    assert caught.value.code == "failed"
    pid = link.pid
    with pytest.raises(WorkerError, match="still getting ready"):
        ask(link, setup, 0, seconds=0.01)
    assert unpack(ask(link, setup, 0))[0]["status"] == "ok"
    assert link.pid == pid


def test_a_worker_for_another_run_or_configuration_is_a_fresh_one(place, link):
    folder, setup = place
    ask(link, setup, 0)
    before = link.pid
    assert unpack(ask(link, {**setup, "run": 2}, 0))[0]["status"] == "ok"
    assert link.pid != before
    assert calls(folder)[-1] == str(link.pid)


def test_a_worker_that_dies_while_it_rests_is_replaced(link):
    link.tend()
    os.kill(link.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while (how := link.tend()) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "SIGKILL" in how


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for a process in /proc")
def test_no_worker_outlives_its_node():
    code = "from kfl_fleet.device.worker_link import WorkerLink; l = WorkerLink(); l.start(); "
    code += "print(l.pid, flush=True); input()"
    node = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    worker = int(node.stdout.readline())
    node.kill()
    node.communicate()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{worker}").exists()


@pytest.mark.parametrize(
    "rubbish",
    [b"\xff\xff\xff\xff", b"\x02\0\0\0{}", b'\x0e\0\0\0{"sizes":[-1]}', b'\x16\0\0\0{"sizes":[99999999999]}', b""],
)
def test_rubbish_in_the_pipe_ends_it(rubbish):
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(rubbish)
    with pytest.raises(ClosedError):
        Pipe(ours).receive(time.monotonic() + 5)
    ours.close()


def test_blocks_of_any_size_come_through_the_pipe():
    ours, theirs = map(Pipe, socket.socketpair())
    ours.send("x", [b"", b"abc" * 1000], why="test")
    header, blocks = theirs.receive()
    assert (header["kind"], header["why"], blocks) == ("x", "test", (b"", b"abc" * 1000))
    with pytest.raises(TimeoutError):
        theirs.receive(time.monotonic() + 0.01)
    ours.close()
    theirs.close()


def bundle(**files):
    content = BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return content.getvalue()


APP = '[tool.flwr.app.config]\ndevice = "a:b"\nfolder = "x"\n'


def test_an_app_is_unpacked_under_its_hash_and_replaces_the_one_before(tmp_path):
    for text in (APP, APP + "more = 1\n"):
        data = bundle(**{"pyproject.toml": text, "a.py": "b = 1"})
        name = sha256(data).hexdigest()
        assert _bundle.installed(tmp_path, name) is None
        place = _bundle.install(tmp_path, name, data)
        assert _bundle.installed(tmp_path, name) == place
    assert [each.name for each in tmp_path.iterdir()] == [name]
    assert _bundle.configuration(place, {"folder": "y"}) == {"device": "a:b", "folder": "y", "more": 1}


@pytest.mark.parametrize("data", [bundle(**{"../a.py": ""}), bundle(**{"/a.py": ""}), b"no archive"])
def test_an_app_that_would_lie_elsewhere_is_refused(tmp_path, data):
    with pytest.raises(KflError, match="cannot be unpacked"):
        _bundle.install(tmp_path / "apps", sha256(data).hexdigest(), data)
    assert [each.name for each in tmp_path.iterdir()] == ["apps"]
    assert list((tmp_path / "apps").iterdir()) == []


def test_an_app_that_is_another_than_its_run_names_is_refused(tmp_path):
    with pytest.raises(KflError, match="not the one its run names"):
        _bundle.install(tmp_path, "0" * 64, bundle(a="b"))


def words(tmp_path, **changes):
    key, authority = make_device_key(tmp_path, 0).private, make_authority(tmp_path).public
    found = {"superlink": "127.0.0.1:1", "root-certificates": authority, "key": key, "number": 0, **changes}
    return [word for name, value in found.items() for word in (f"--{name}", str(value))]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"number": -1}, "number is -1"),
        ({"poll-s": 0}, "poll-s is 0.0"),
        ({"config": "no/such.toml"}, "config is 'no/such.toml'"),
    ],
)
def test_options_that_cannot_work_are_a_sentence(tmp_path, capsys, changes, said):
    assert main(["deploy", "device", *words(tmp_path, **changes)]) == 2
    assert said in capsys.readouterr().err


def test_addresses_certificates_and_keys_that_cannot_work_are_a_sentence(tmp_path):
    key, authority = make_device_key(tmp_path, 0).private, make_authority(tmp_path).public
    for superlink in ("nowhere", "host:", "host:99999", ":80"):
        with pytest.raises(ConfigError, match="name and port"):
            FleetApi(superlink, authority, key)
    with pytest.raises(ConfigError, match="root-certificates"):
        FleetApi("host:80", key, key)
    with pytest.raises(ConfigError, match="private key"):
        FleetApi("host:80", authority, authority)


def test_a_certificate_for_other_names_says_which_command_makes_one(tmp_path):
    authority, key = make_authority(tmp_path), make_device_key(tmp_path, 0).private
    pair = make_server_certificate(tmp_path, authority, ["fleet.test"])
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pair.public, pair.private)

    def shake_hands(door):
        with contextlib.suppress(OSError):
            tls.wrap_socket(door.accept()[0], server_side=True).close()

    with socket.create_server(("127.0.0.1", 0)) as door:
        server = threading.Thread(target=shake_hands, args=(door,))
        server.start()
        with pytest.raises(KflError, match=r"for other names.*kfl deploy keys --renew-server --hosts 127\.0\.0\.1"):
            FleetApi(f"127.0.0.1:{door.getsockname()[1]}", authority.public, key).activate()
        server.join()


def test_a_worker_needs_no_flower():
    code = "import sys; from kfl_fleet.device.worker_process import _warm_up; _warm_up(); print('flwr' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_node_imports_neither_flower_nor_numpy_nor_pytorch():
    code = "import sys, kfl_fleet.device.node; "
    code += "print(sorted({'flwr', 'numpy', 'torch', 'httpx', 'google'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert NodeOptions("a:1", "b", "c", 0, "d").table()["partition-id"] == 0
