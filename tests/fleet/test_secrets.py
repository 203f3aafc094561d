"""Keys, secrets and models are their owner's: on disk, in packs, in process arguments, on loopback."""

import base64
import http.client
import json
import os
import shutil
import ssl
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
from contextlib import closing
from pathlib import Path

import pytest
import torch

from kfl.cli.main import main
from kfl_fleet._flower.app_folder import flower_environment, program
from kfl_fleet._flower.control_auth import start_with_token
from kfl_fleet.device.memory import Memory, StoredState
from kfl_fleet.local.processes import ProcessGroup, free_ports, listening
from kfl_fleet.project.project import make_missing, renew_server, replace_device_key
from tests.fleet.conftest import installed_project

NOBODY = 65534


def mode(path):
    return stat.S_IMODE(Path(path).stat().st_mode)


@pytest.fixture(params=[0o022, 0o000])
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


# ── On disk ──────────────────────────────────────────────────────────────────


def test_under_any_umask_keys_and_what_flower_keeps_are_the_owners(umask, project):
    make_missing(project)
    replace_device_key(project, 1)
    renew_server(project)
    assert {path.name for path in project.private_files()} > {"ca.key", "server.key", "control.secret", "device-1"}
    assert len(project.private_files()) == 7  # with the replaced one
    assert {mode(path) for path in project.private_files()} == {0o600}
    assert mode(project.keys) == mode(project.flower_home) == 0o700
    assert mode(project.flower_home / "credentials.yaml") == 0o600


def test_what_was_open_to_others_is_said_and_narrowed_but_files_of_the_user_are_left_alone(project, capsys):
    make_missing(project)
    mine = project.keys / "grafana.password"
    mine.write_text("x")
    for path in (mine, project.keys / "ca.key", project.flower_home / "credentials.yaml"):
        path.chmod(0o644)
    project.keys.chmod(0o755)
    capsys.readouterr()
    assert main(["deploy", "keys", str(project.folder)]) == 0
    key = project.keys / "ca.key"
    expected = f"kfl: Other users of this machine can read {key} (-rw-r--r--): chmod 600 {key}\n"
    assert capsys.readouterr().err == expected
    assert [mode(p) for p in (project.keys, key, mine)] == [0o700, 0o600, 0o644]
    assert mode(project.flower_home / "credentials.yaml") == 0o600
    assert main(["deploy", "keys", str(project.folder)]) == 0
    assert capsys.readouterr().err == ""


def test_a_pack_is_private_inside_and_outside_also_where_an_open_one_lay(umask, project, tmp_path):
    make_missing(project)
    (project.keys / "device-0").chmod(0o644)
    pack = project.folder / "device-0.tar.gz"
    pack.touch(0o666)
    pack.chmod(0o666)
    subprocess.run([project.folder / "scripts" / "pack-device.sh", "0"], check=True, capture_output=True)
    assert mode(pack) == 0o600
    with tarfile.open(pack) as tar:
        modes = {member.name: member.mode & 0o777 for member in tar}
    assert (modes["keys"], modes["keys/device-0"]) == (0o700, 0o600)
    assert not {"keys/device-1", "keys/ca.key", "keys/control.secret"} & modes.keys()
    (tmp_path / "there").mkdir()
    subprocess.run(["tar", "xzf", pack, "-C", tmp_path / "there"], check=True)
    assert (mode(tmp_path / "there" / "keys"), mode(tmp_path / "there" / "keys" / "device-0")) == (0o700, 0o600)


def test_a_devices_model_is_its_own(umask, tmp_path):
    memory = Memory(tmp_path / "state", "0123456789abcdef", 0)
    memory.save(StoredState(0, {"w": torch.ones(2)}, {}, {}))
    memory.path.chmod(0o644)
    memory.save(StoredState(1, {"w": torch.ones(2)}, {}, {}))
    memory.mark_summed(1)
    assert mode(memory.path) == mode(memory.path.with_suffix(".summed")) == 0o600
    assert mode(memory.path.parent) == 0o700


def test_a_device_says_that_its_key_is_open_to_others(project):
    make_missing(project)
    key = project.keys / "device-0"
    key.chmod(0o640)
    options = {"superlink": "nowhere", "root_certificates": str(project.keys / "ca.crt"), "key": str(key)}
    words = json.dumps({**options, "number": 0, "state": str(project.folder / "state")})
    done = subprocess.run(
        [sys.executable, "-m", "kfl_fleet.device.node", words], capture_output=True, text=True, check=False
    )
    assert f"can read {key} (-rw-r-----): chmod 600 {key}" in done.stdout + done.stderr


# ── Processes ────────────────────────────────────────────────────────────────

TELL = """
import json, os, resource, sys
told = {"arguments": sys.argv[1:], "core": resource.getrlimit(resource.RLIMIT_CORE), "umask": os.umask(0)}
os.umask(told["umask"])
if "--token-file" in sys.argv:
    path = sys.argv[sys.argv.index("--token-file") + 1]
    told |= {"file": os.path.isfile(path), "token": open(path).read(), "names": os.stat(path).st_nlink}
json.dump(told, open(sys.argv[1], "w"))
"""


def test_a_token_is_in_no_argument_and_in_no_file_with_a_name(tmp_path):
    command = [sys.executable, "-c", TELL, str(tmp_path / "told"), "--token", "abc123", "--insecure"]
    assert start_with_token(command).wait(60) == 0
    told = json.loads((tmp_path / "told").read_text())
    assert "abc123" not in told["arguments"]
    assert told["arguments"][-1] == "--insecure"
    assert (told["file"], told["token"], told["names"]) == (True, "abc123", 0)


def test_processes_of_a_fleet_write_private_files_and_no_memory(tmp_path):
    group = ProcessGroup(tmp_path / "logs", {})
    try:
        assert group.start("one", [sys.executable, "-c", TELL, str(tmp_path / "told")]).wait(60) == 0
    finally:
        group.end()
    told = json.loads((tmp_path / "told").read_text())
    assert (told["core"], told["umask"]) == ([1, 1], 0o077)
    assert mode(tmp_path / "logs") == 0o700
    assert mode(tmp_path / "told") == 0o600


# ── The SuperLink ────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def superlink():
    """A project open to every device, on a database that an earlier version left open; its SuperLink runs."""
    before = os.umask(0o022)
    place = Path(tempfile.mkdtemp(prefix="kfl-gate-"))
    place.chmod(0o755)
    made = installed_project(place / "my-fleet", devices=1)
    (port,) = free_ports(1)
    env = made.folder / "server.env"
    env.write_text(env.read_text().replace("SUPERLINK_PORT=8000", f"SUPERLINK_PORT={port}"))
    make_missing(made)
    (made.folder / "superlink.db").touch(0o644)
    with (made.folder / "log").open("w") as log:
        process = subprocess.Popen([made.folder / "scripts" / "superlink.sh"], stdout=log, stderr=log)
    try:
        until = time.monotonic() + 120
        while not listening(port):
            assert process.poll() is None, (made.folder / "log").read_text()
            assert time.monotonic() < until
            time.sleep(0.1)
        yield made
    finally:
        os.umask(before)
        process.terminate()
        process.wait(30)
        shutil.rmtree(place)


def ask(port, path, **headers):
    """The status of an empty request by a client that does not care whose certificate it sees."""
    context = ssl._create_unverified_context()
    with closing(http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=context)) as link:
        link.request("POST", path, b"", {"content-type": "application/protobuf", **headers})
        return link.getresponse().status


ORDERS = ("list-runs", "list-nodes", "register-node", "unregister-node", "start-run", "stop-run", "stream-logs")


def test_only_who_can_read_the_secret_gives_orders(superlink):
    secret = superlink.control_secret.read_text()
    for order in ORDERS:
        path = f"/v1/control/{order}"
        assert ask(superlink.port, path) == 401
        assert ask(superlink.port, path, authorization=f"Bearer {secret[:-1]}0x") == 401
        assert ask(superlink.port, path, authorization=f"Bearer {secret}") != 401
    assert ask(superlink.port, "/v1/control/list-runs", authorization=f"Bearer {secret}") == 200
    for path in ("refresh-auth-tokens", "get-auth-tokens"):  # the two endpoints without authentication in Flower
        assert ask(superlink.port, f"/v1/control/{path}") >= 400


def test_flowers_own_command_line_is_admitted_with_the_projects_home_and_without_it_is_not(superlink, tmp_path):
    words = [program("flwr"), "list", "fleet", "--format", "json"]
    done = subprocess.run(words, env=flower_environment(superlink.flower_home), capture_output=True, check=False)
    assert json.loads(done.stdout)["runs"] == []
    shutil.copy(superlink.flower_home / "config.toml", tmp_path / "config.toml")
    done = subprocess.run(words, env=flower_environment(tmp_path), capture_output=True, check=False)
    assert b'"success": false' in done.stdout or done.returncode != 0


def test_the_database_is_private_and_the_log_has_no_secret(superlink):
    files = list(superlink.folder.glob("superlink.db*"))
    assert files
    assert {mode(path) for path in files} == {0o600}
    said = (superlink.folder / "log").read_text()
    for path in superlink.private_files():
        for line in path.read_text().splitlines():
            assert line not in said or line.startswith("-----")


def test_the_superlink_says_in_a_sentence_what_it_misses(tmp_path):
    (tmp_path / "short").touch(0o600)
    for words, reason in (
        ([], "is no program of Flower's server"),
        (["superlink"], "needs --control-secret FILE"),
        (["superlink", "--control-secret", str(tmp_path / "none")], "kfl deploy keys makes it"),
        (["superlink", "--control-secret", str(tmp_path / "short")], "is too short"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "kfl_fleet._flower.control_auth", *words],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert reason in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user")
def test_another_user_reads_nothing_and_is_refused(superlink):
    """In a fork that runs as an unprivileged user; what it found comes back as its exit status."""
    child = os.fork()
    if child == 0:
        found = 99
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            found = sum(_readable(path) for path in [*superlink.folder.glob("superlink.db*"), superlink.control_secret])
            found += 10 * (ask(superlink.port, "/v1/control/list-nodes") != 401)
            found += 20 * (not _readable(superlink.server_file))  # the test is worth something: it could come here
        finally:
            os._exit(found)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _readable(path):
    try:
        path.open("rb").close()
    except OSError:
        return False
    return True


def test_the_credentials_are_the_secret_in_flowers_own_form(project):
    make_missing(project)
    found = json.loads((project.flower_home / "credentials.yaml").read_text())
    token = found[f"flower.account-auth.{project.address}.oidc-access-token"]
    assert base64.b64decode(token).decode() == project.control_secret.read_text()
