"""kfl deploy new and kfl deploy keys: every file that is written is valid, and keys do what keys should."""

import configparser
import importlib.util
import logging
import os
import re
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import tarfile
import threading
import time
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest

from kfl.cli.main import main
from kfl.core.errors import ConfigError, KflError
from kfl.runfolder import RunReader
from kfl_fleet._flower.app_folder import program
from kfl_fleet._flower.control import UnreachableError
from kfl_fleet.cli.up import rehearsal
from kfl_fleet.local.supervisor import LOST_S, Supervisor, keep_running
from kfl_fleet.project import Project, write_project
from kfl_fleet.project.project import make_missing, renew_server, replace_device_key
from kfl_fleet.retry import Clock

NGINX = shutil.which("nginx", path=f"/usr/sbin:/sbin:{os.environ['PATH']}")


def ran(*words, **options):
    return subprocess.run(words, check=False, capture_output=True, text=True, timeout=60, **options)


def load_device(project):
    path = project.app / "my_fleet" / "device.py"
    spec = importlib.util.spec_from_file_location("starter_device", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ── kfl deploy new ───────────────────────────────────────────────────────────


def test_every_file_is_there_filled_in_and_parses(project):
    files = [path for path in project.folder.rglob("*") if path.is_file() and "venv" not in path.parts]
    names = {str(path.relative_to(project.folder)) for path in files}
    assert {"README.md", "server.toml", "device.toml", "app/my_fleet/device.py", "proxy/nginx.conf"} <= names
    assert {f"systemd/my-fleet-{unit}.service" for unit in ("superlink", "superexec", "run", "device@")} <= names
    for path in files:
        assert "@@" not in path.read_text(), path
        assert path.suffix != ".in"
        if path.suffix == ".toml":
            tomllib.loads(path.read_text())
        if path.suffix == ".py":
            compile(path.read_text(), path, "exec")
        if path.suffix == ".sh":
            subprocess.run(["bash", "-n", path], check=True)
            assert path.stat().st_mode & stat.S_IXUSR
    config = project.config
    config.validate()
    assert config.experiment.devices == 2
    assert project.device == "my_fleet.device:device"
    assert project.address == "127.0.0.1:8000"


def test_the_device_function_practises_and_takes_your_samples(project, tmp_path):
    module = load_device(project)
    for partition in (0, 7):
        setup = module.device(partition, project.device_config)
        setup.validate()
        data = setup.dataset()
        assert len(data.train_y) + len(data.test_y) == 100
        assert set(np.unique(data.train_y)) == {2 * partition % 10, (2 * partition + 1) % 10}
        assert data.classes == 10
    x, y = np.zeros((30, 1, 8, 8), dtype=np.uint8), np.arange(30) % 3
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    setup = module.device(0, {"data": str(tmp_path / "mine.npz"), "width": 16, "budget_j": 5.0})
    assert setup.dataset().input_shape == (1, 8, 8)
    assert setup.budget_j == 5.0
    assert setup.model().head.in_features == 64


def test_flower_packs_the_app_and_no_secret(project, tmp_path):
    make_missing(project)
    environment = {**os.environ, "FLWR_HOME": str(tmp_path / "flower"), "FLWR_DISABLE_UPDATE_CHECK": "1"}
    command = [program("flwr"), "build", "--app", str(project.app)]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=120)
    (bundle,) = tmp_path.glob("*.fab")
    names = zipfile.ZipFile(bundle).namelist()
    assert "my_fleet/device.py" in names
    assert not [name for name in names if "key" in name or "server.toml" in name or name.endswith((".crt", ".pub"))]


@pytest.mark.parametrize(
    "name", ["My-Fleet", "2fleet", "fleet-", "my fleet", "my--fleet", "torch", "kfl", "a" * 41, "class"]
)
def test_a_name_that_cannot_be_a_package_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="name is"):
        write_project(tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"devices": 0}, "devices"),
        ({"host": "a b"}, "host"),
        ({"host": "x;rm"}, "host"),
        ({"host": ""}, "host"),
        ({"home": "opt/x"}, "home"),
        ({"home": "/opt/my fleet"}, "home"),
    ],
)
def test_what_would_break_a_file_is_refused(tmp_path, changes, field):
    with pytest.raises(ConfigError, match=f"{field} is"):
        write_project(tmp_path / "my-fleet", **changes)


def test_a_folder_with_something_in_it_is_left_alone(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my-fleet").mkdir()
    Path("my-fleet/mine.txt").write_text("mine")
    assert main(["deploy", "new", "my-fleet"]) == 2
    said = capsys.readouterr().err
    assert "not empty" in said
    assert said.count("\n") == 1
    assert [path.name for path in Path("my-fleet").iterdir()] == ["mine.txt"]
    Path("a-file").write_text("")
    assert main(["deploy", "new", "a-file"]) == 2
    Path("empty").mkdir()
    assert main(["deploy", "new", "empty", "--devices", "4", "--host", "10.0.0.5"]) == 0
    assert "kfl deploy up" in capsys.readouterr().out
    assert Project.need(Path("empty")).config.experiment.devices == 4
    assert "SERVER=10.0.0.5:8443" in Path("empty/device.env").read_text()


def test_commands_outside_a_project_say_so(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in ("keys", "run"):
        assert main(["deploy", command]) == 2
        assert "is not a fleet's project" in capsys.readouterr().err
    assert Project.find(tmp_path) is None


# ── What the operating system reads ──────────────────────────────────────────


def test_units_name_what_exists_and_start_again(project):
    for path in sorted((project.folder / "systemd").iterdir()):
        unit = configparser.ConfigParser(strict=False, interpolation=None)
        unit.optionxform = str
        unit.read(path)
        assert Path(unit["Service"]["ExecStart"].split()[0]).exists(), path
        assert unit["Service"]["Restart"] == ("on-failure" if "-run" in path.name else "always")
        assert unit["Unit"]["StartLimitIntervalSec"] == "0"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_units(project):
    for path in sorted((project.folder / "systemd").iterdir()):
        done = ran("systemd-analyze", "verify", path)
        # It also looks at the machine's own units; only what it says about ours counts.
        assert "my-fleet" not in done.stderr, done.stderr


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed: the proxy was not tried")
def test_nginx_accepts_the_proxy(project, tmp_path):
    make_missing(project)
    whole = tmp_path / "nginx.conf"
    temporary = "".join(
        f"{kind}_temp_path {tmp_path}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    whole.write_text(
        f"pid {tmp_path}/pid; error_log {tmp_path}/error.log; events {{}}\n"
        f"http {{ access_log off; {temporary} include {project.folder}/proxy/nginx.conf; }}\n"
    )
    done = ran(NGINX, "-t", "-c", whole)
    assert done.returncode == 0, done.stderr


def test_a_variable_that_is_set_wins_over_the_file(project):
    line = '. scripts/environment.sh device.env; echo "$SERVER $METER $POLL_S"; command -v python'
    environment = {**os.environ, "METER": "rapl"}
    done = ran("bash", "-euc", line, cwd=project.folder, env=environment)
    assert done.stdout.splitlines() == ["fleet.test:8443 rapl 0.5", f"{project.folder}/venv/bin/python"]


@pytest.mark.parametrize("script", ["device.sh", "pack-device.sh"])
def test_scripts_ask_for_the_number_of_the_device(project, script):
    done = ran(project.folder / "scripts" / script)
    assert done.returncode != 0
    assert "give the number of the device" in done.stderr


def test_a_program_is_started_again_and_ends_with_its_keeper(project, tmp_path):
    note = tmp_path / "starts"
    words = ["bash", "-c", f"echo $$ >> {note}; exec sleep 100"]
    with subprocess.Popen([project.folder / "scripts" / "forever.sh", *words], stderr=subprocess.DEVNULL) as keeper:
        first = int(wait_for_line(note, 0))
        os.kill(first, signal.SIGKILL)
        second = int(wait_for_line(note, 1))
        keeper.terminate()
        assert keeper.wait(30) == 0
    assert first != second
    with pytest.raises(ProcessLookupError):
        os.kill(second, 0)


def wait_for_line(path, number):
    until = time.monotonic() + 60
    while time.monotonic() < until:
        lines = path.read_text().splitlines() if path.exists() else []
        if len(lines) > number:
            return lines[number]
        time.sleep(0.05)
    raise AssertionError("it was not started")


# ── Keys ─────────────────────────────────────────────────────────────────────


def test_keys_are_made_once_and_kept_private(project, capsys):
    assert main(["deploy", "keys", str(project.folder)]) == 0
    assert "Keep ca.key somewhere else" in capsys.readouterr().out
    before = {path: path.read_bytes() for path in project.keys.iterdir()}
    assert {path.name for path in before} == {
        *("ca.crt", "ca.key", "server.crt", "server.key", "superexec.secret", "control.secret"),
        *("device-0", "device-0.pub", "device-1", "device-1.pub"),
    }
    assert stat.S_IMODE(project.keys.stat().st_mode) == 0o700
    for path in before:
        expected = 0o644 if path.suffix in (".crt", ".pub") else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == expected, path
    assert main(["deploy", "keys", str(project.folder)]) == 0
    assert "Nothing is missing" in capsys.readouterr().out
    project.server_file.write_text(project.server_file.read_text().replace("devices = 2", "devices = 3"))
    assert [path.name for path in make_missing(project)] == ["device-2.pub", "device-2"]
    assert all(path.read_bytes() == data for path, data in before.items())


def handshake(project, name, keys=None):
    """The names a client that trusts ca.crt finds when it calls the server by `name`."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(project.keys / "server.crt", project.keys / "server.key")
    client = ssl.create_default_context(cafile=str((keys or project.keys) / "ca.crt"))
    with socket.create_server(("127.0.0.1", 0)) as door:

        def answer():
            line, _ = door.accept()
            with line:
                try:
                    server.wrap_socket(line, server_side=True).close()
                except (ssl.SSLError, OSError):
                    return

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            with (
                socket.create_connection(door.getsockname(), 10) as plain,
                client.wrap_socket(plain, server_hostname=name) as line,
            ):
                return sorted(value for _, value in line.getpeercert()["subjectAltName"])
        finally:
            thread.join(10)


def test_devices_reach_the_server_by_its_names_and_by_no_other(project, tmp_path):
    make_missing(project)
    assert handshake(project, "fleet.test") == ["127.0.0.1", "fleet.test", "localhost"]
    assert handshake(project, "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        handshake(project, "other.test")
    other = write_project(tmp_path / "other", devices=1)
    make_missing(other)
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        handshake(project, "fleet.test", keys=other.keys)


def test_the_server_gets_a_new_certificate_and_devices_notice_nothing(project, capsys):
    make_missing(project)
    old = (project.keys / "server.crt").read_bytes()
    words = ["deploy", "keys", str(project.folder), "--renew-server", "--hosts", "new.test", "10.1.2.3"]
    assert main(words) == 0
    assert (project.keys / "server.crt").read_bytes() != old
    assert handshake(project, "new.test") == ["10.1.2.3", "127.0.0.1", "localhost", "new.test"]
    assert stat.S_IMODE((project.keys / "server.key").stat().st_mode) == 0o600
    assert not [path for path in project.keys.iterdir() if path.is_dir()]
    (project.keys / "ca.key").unlink()
    with pytest.raises(KflError, match=r"ca\.key is not there"):
        renew_server(project)


def test_a_replaced_key_is_another_and_the_old_one_is_kept(project):
    make_missing(project)
    old = (project.keys / "device-1.pub").read_text()
    replace_device_key(project, 1)
    assert (project.keys / "device-1.pub").read_text() != old
    (kept,) = project.keys.glob("old-*-device-1.pub")
    assert kept.read_text() == old
    with pytest.raises(ConfigError, match="replace is 2"):
        replace_device_key(project, 2)


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_openssh_reads_the_device_keys(project):
    make_missing(project)
    words = ["ssh-keygen", "-y", "-P", "", "-f", project.keys / "device-0"]
    public = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert public.split()[:2] == (project.keys / "device-0.pub").read_text().split()[:2]
    assert public.startswith("ecdsa-sha2-nistp256 ")


def test_a_pack_holds_one_device_and_no_secret_of_others(project):
    script = project.folder / "scripts" / "pack-device.sh"
    early = ran(script, "1")
    assert (early.returncode, early.stdout) == (2, "") and "kfl deploy keys first" in early.stderr
    make_missing(project)
    assert "No wheel in wheels/" in ran(script, "1").stderr
    (project.folder / "wheels" / "kfl-1-py3-none-any.whl").touch()
    done = ran(script, "1")
    assert (done.returncode, done.stderr) == (0, "")
    pack = project.folder / "device-1.tar.gz"
    assert stat.S_IMODE(pack.stat().st_mode) == 0o600
    with tarfile.open(pack) as file:
        names = set(file.getnames())
    assert {name for name in names if name.startswith("keys/")} == {"keys/ca.crt", "keys/device-1"}
    assert {"device.toml", "device.env", "scripts/device.sh", "systemd/my-fleet-device@.service"} <= names
    assert "wheels/kfl-1-py3-none-any.whl" in names


@pytest.fixture
def deserted(project):
    """A project whose SuperLink does not run, and the port where it would."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    text = (project.folder / "server.env").read_text()
    (project.folder / "server.env").write_text(re.sub(r"SUPERLINK_PORT=\d+", f"SUPERLINK_PORT={port}", text))
    make_missing(project)
    return project, port


def test_without_a_superlink_nothing_is_changed_and_one_sentence_says_so(deserted, capsys):
    project, port = deserted
    before = {path: path.read_bytes() for path in project.keys.iterdir()}
    for words in (["--replace", "1"], ["--register"], ["--revoke", "0"]):
        assert main(["deploy", "keys", str(project.folder), *words]) == 2
        said = capsys.readouterr().err
        assert f"127.0.0.1:{port}" in said
        assert said.count("\n") == 1
    assert {path: path.read_bytes() for path in project.keys.iterdir()} == before
    assert main(["deploy", "keys", str(project.folder), "--replace", "1", "--revoke", "0"]) == 2


# ── kfl deploy run ───────────────────────────────────────────────────────────


def test_a_superlink_that_is_away_is_waited_for(deserted):
    project, port = deserted

    class EnoughError(Exception):
        pass

    def enough(record):
        raise EnoughError(record.getMessage())

    log = logging.getLogger("kfl")
    log.addFilter(enough)
    try:
        with pytest.raises(EnoughError, match=rf"127\.0\.0\.1:{port} .* Trying again"):
            next(keep_running(project))
    finally:
        log.removeFilter(enough)
    assert not project.run_folder.exists()


def test_supervisor_submits_until_a_superlink_that_answers_500_takes_the_run(deserted, loop, serve_fleet):
    project, _ = deserted
    grid, config = loop()
    finished, attempts, now_s = serve_fleet(grid, config), [], [0.0]

    def submit():
        attempts.append(now_s[0])
        if len(attempts) < 4:
            raise UnreachableError("The request to the SuperLink failed: status 500.")
        shutil.copytree(finished, project.run_folder)

    def sleep(seconds):
        now_s[0] += seconds
        assert now_s[0] < 3600.0

    clock = Clock(lambda: now_s[0], sleep)
    keeper = Supervisor(RunReader(project.run_folder), project.control(), submit, list, LOST_S + 1, clock=clock)
    assert [entry.round for entry in keeper.rounds()] == [0, 1, 2]
    assert len(attempts) == 4


def test_a_finished_run_is_shown_and_not_started_again(deserted, loop, serve_fleet, capsys):
    project, _ = deserted
    grid, config = loop()
    shutil.copytree(serve_fleet(grid, config), project.run_folder)
    assert main(["deploy", "run", str(project.folder)]) == 0
    shown = capsys.readouterr().out
    assert [line.split(":")[0] for line in shown.splitlines()[:3]] == [f"round {n} of 20" for n in (1, 2, 3)]
    assert "The run is finished" in shown


def test_run_without_keys_names_the_file_and_the_command_that_makes_it(project, capsys):
    assert main(["deploy", "run", str(project.folder)]) == 2
    said = capsys.readouterr().err
    assert f"{project.keys / 'ca.crt'} is missing: kfl deploy keys makes it" in said and said.count("\n") == 1


def test_up_keeps_the_run_before_and_status_names_commands_that_work(deserted, loop, serve_fleet, capsys):
    project, _ = deserted
    grid, config = loop()
    local = project.folder / "local"
    shutil.copytree(serve_fleet(grid, config), local / "run")
    (local / "run" / "summary.json").unlink()
    (local / "superlink.db").touch()
    assert main(["deploy", "status", str(project.folder)]) == 0
    assert "kfl deploy up begins a new run; kfl deploy up --out local continues this one" in " ".join(
        capsys.readouterr().out.split()
    )
    for number in (1, 2):
        assert rehearsal(project) == local and not local.exists()
        assert f"of 3 rounds, is kept in {project.folder}/local-{number}." in capsys.readouterr().out
        shutil.copytree(project.folder / "local-1", local)
    (local / "run" / "rounds.jsonl").write_text("")
    assert rehearsal(project) == local and not (project.folder / "local-3").exists(), "nothing to keep"
    shutil.copytree(project.folder / "local-1" / "run", project.run_folder)
    assert main(["deploy", "status", str(project.folder)]) == 0
    assert "kfl deploy run (or the unit" in capsys.readouterr().out


def test_a_bad_configuration_is_a_sentence_before_anything_starts(deserted, capsys):
    project, _ = deserted
    project.server_file.write_text(project.server_file.read_text().replace("quorum = 0.5", "quorum = 5.0"))
    assert main(["deploy", "run", str(project.folder)]) == 2
    assert "fleet.quorum is 5.0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("server.env", []),
        ("device.env", ["--renew-server"]),
        ("keys/ca.crt", ["--renew-server"]),
        ("keys/ca.key", ["--renew-server"]),
        ("keys/control.secret", []),
    ],
)
@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"", b"no key"])
def test_keys_names_a_damaged_file_of_the_project_in_one_sentence(project, capsys, name, words, content):
    make_missing(project)
    (project.folder / name).write_bytes(content)
    status = main(["deploy", "keys", str(project.folder), *words])
    said = capsys.readouterr().err
    if name.endswith(".env") and b"\xff" not in content:  # no line has the variable: its default holds
        assert status == 0
        return
    assert status == 2
    assert name.rpartition("/")[2] in said and said.count("\n") == 1
