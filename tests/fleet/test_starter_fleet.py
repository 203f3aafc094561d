"""A project as it runs: rehearsed with kfl deploy up, and as on several machines with its own scripts, keys and proxy.

In the second, a real nginx stands in front and devices reach the server through it only. It takes a minute or two, most
of it Flower's processes starting.
"""

import http.client
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from kfl.cli.main import main
from kfl.models import mlp
from kfl_fleet.local.processes import MARK, free_ports, listening, marked
from kfl_fleet.project.project import make_missing
from kfl_fleet.server.status import find_run, read_status
from tests.fleet.conftest import installed_project

NGINX = shutil.which("nginx", path=f"/usr/sbin:/sbin:{os.environ['PATH']}")

pytestmark = pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")


def edit(path, **values):
    """Set fields of an .env or .toml file."""
    text = path.read_text()
    for name, value in values.items():
        text, count = re.subn(rf"(?m)^({name}\s*=\s*).*$", rf"\g<1>{value}", text)
        assert count == 1, name
    path.write_text(text)


@pytest.fixture
def behind_proxy(tmp_path):
    """A project with free ports and a short run, where the proxy is the only way in for devices."""
    superlink, proxy = free_ports(2)
    made = installed_project(tmp_path / "my-fleet", host="127.0.0.1")
    folder = made.folder
    edit(folder / "server.env", SUPERLINK_PORT=superlink)
    edit(folder / "device.env", SERVER=f"127.0.0.1:{proxy}")
    edit(folder / "server.toml", rounds=2, metrics_port=0, log_format='"json"')
    conf = folder / "proxy" / "nginx.conf"
    conf.write_text(conf.read_text().replace("8443", str(proxy)).replace("127.0.0.1:8000", f"127.0.0.1:{superlink}"))
    make_missing(made)
    return made, proxy


@pytest.fixture
def start(tmp_path):
    """Starts programs; at the end of the test all of them are gone, and so is everything they started."""
    mark = os.urandom(16).hex()
    programs = []

    def begin(name, *words, **options):
        with (tmp_path / f"{name}.log").open("ab") as log:
            environment = {**os.environ, MARK: mark, "OMP_NUM_THREADS": "1"}
            program = subprocess.Popen(
                words, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True, **options
            )
        programs.append(program)
        return program

    yield begin
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in [*marked(mark), *(p.pid for p in programs if p.poll() is None)]:  # nginx hides its mark
            with suppress(ProcessLookupError):
                os.kill(process, number)
        until = time.monotonic() + 15
        while time.monotonic() < until and (marked(mark) or any(p.poll() is None for p in programs)):
            time.sleep(0.1)
    assert marked(mark) == []
    assert all(program.poll() is not None for program in programs)


def nginx_around(project, folder):
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    whole = folder / "nginx.conf"
    whole.write_text(
        f"daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx-error.log; events {{}}\n"
        f"http {{ access_log {folder}/access.log; {temporary} include {project.folder}/proxy/nginx.conf; }}\n"
    )
    return whole


def wait_for(what, seconds=120):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if what():
            return
        time.sleep(0.2)
    raise AssertionError("it did not happen in time")


def status_of(port, path, authority):
    """What a request gets, its path sent exactly as it is written."""
    line = http.client.HTTPSConnection(
        "127.0.0.1", port, timeout=30, context=ssl.create_default_context(cafile=str(authority))
    )
    try:
        line.request("POST", path, body=b"{}", headers={"Content-Type": "application/json"})
        return line.getresponse().status
    finally:
        line.close()


def test_a_project_is_rehearsed_on_this_machine_with_its_own_files(behind_proxy, start, tmp_path):
    project, _ = behind_proxy
    source = project.app / "my_fleet" / "device.py"
    source.write_text(source.read_text().replace("choice(chosen, 100", "choice(chosen, 60"))
    edit(project.folder / "device.toml", width=24)
    words = ("deploy", "up", "--devices", "1", "--rounds", "1")
    up = start("up", sys.executable, "-m", "kfl.cli.main", *words, cwd=project.folder)
    assert up.wait(240) == 0
    said = (tmp_path / "up.log").read_text()
    assert "round 1 of 1: 1 chosen, 1 used" in said
    assert "All processes stopped" in said
    status = read_status(find_run(project.folder))
    assert status.folder == str(project.folder / "local" / "run")
    (device,) = status.devices
    assert (device.samples, device.model) == (48, "mlp-24")  # of 60, a fifth is the test set
    table = json.loads((project.folder / "local" / "run" / "fleet.json").read_text())
    expected = sum(parameter.numel() for parameter in mlp(width=24).parameters())
    assert table["devices"]["0"]["profile"]["parameters"] == expected
    assert not project.run_folder.exists()


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed: the fleet behind its proxy was NOT tried")
def test_a_fleet_behind_its_proxy(behind_proxy, start, tmp_path, capsys):
    project, proxy = behind_proxy
    folder, authority = project.folder, project.keys / "ca.crt"
    edit(folder / "device.env", KFL_LOG_FORMAT="json")
    with (folder / "device.env").open("a") as file:
        file.write(f"KFL_ONLINE_FILE={tmp_path / 'online'}\n")
    start("superlink", folder / "scripts" / "superlink.sh")
    start("nginx", NGINX, "-c", nginx_around(project, tmp_path))
    wait_for(lambda: listening(project.port) and listening(proxy))
    start("superexec", folder / "scripts" / "superexec.sh")
    assert main(["deploy", "keys", str(folder), "--register"]) == 0
    assert "2 devices admitted" in capsys.readouterr().out
    for device in range(2):
        start(f"device-{device}", folder / "scripts" / "forever.sh", folder / "scripts" / "device.sh", str(device))

    # The proxy shows devices their own part and hides the rest, however the path is dressed up.
    assert status_of(project.port, "/v1/control/list-nodes", authority) != 404  # it is there, on loopback
    assert status_of(proxy, "/v1/fleet/pull-messages", authority) not in (404, 502)
    for path in (
        "/v1/control/list-nodes",
        "/v1/control/start-run",
        "/v1/runtime/pull-messages",
        "/v1/fleet/../control/list-nodes",
        "/v1/fleet/%2e%2e/control/list-nodes",
        "/v1/fleet/..%2fcontrol/list-nodes",
        "/v1/fleet/..;/control/list-nodes",
        "//v1/control/list-nodes",
        "/v1/./control/list-nodes",
        "/docs",
        "/openapi.json",
        "/",
    ):
        assert status_of(proxy, path, authority) == 404, path

    run = start("run", sys.executable, "-m", "kfl.cli.main", "deploy", "run", cwd=folder)
    assert run.wait(240) == 0
    assert (tmp_path / "online").exists(), "devices tell a container's health check that the server hears of them"
    texts = {name: (tmp_path / f"{name}.log").read_text() for name in ("run", "device-0")}
    said = {name: [json.loads(line) for line in text.splitlines()] for name, text in texts.items()}
    told = [line for line in said["run"] if line["event"] == "round_done"]
    assert [(line["round"], line["used"]) for line in told] == [(1, 2), (2, 2)], "passed on from the server, once"
    assert [line["event"] for line in said["device-0"]].count("answered") == 3  # its profile, and two rounds
    assert {line["device"] for line in said["device-0"]} == {0}
    status = read_status(project.run_folder)
    assert (status.state, status.rounds_done, status.devices_seen) == ("finished", 2, 2)
    assert [one.used for one in status.devices] == [2, 2]
    assert (tmp_path / "access.log").read_text().count("/v1/fleet/push-messages") >= 4

    # A new key for device 1: the old one is shut out, the new one is let in under the same name.
    flower = project.control()
    before = flower.node_ids()
    assert set(before) == {0, 1}
    assert main(["deploy", "keys", str(folder), "--replace", "1"]) == 0
    assert "The old one is revoked" in capsys.readouterr().out
    after = flower.node_ids()
    assert after[0] == before[0]
    assert after[1] != before[1]
    listed = {str(node["node-id"]) for node in flower.nodes()}
    assert after[1] in listed
    assert before[1] not in listed
    assert main(["deploy", "keys", str(folder), "--revoke", "0"]) == 0
    assert before[0] not in {str(node["node-id"]) for node in flower.nodes()}
    assert json.loads((project.keys / "nodes.json").read_text()) == {"1": after[1]}
