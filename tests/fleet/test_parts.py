"""Settings, measured gains, meters, certificates, processes: the small parts of a fleet."""

import contextlib
import os
import signal
import ssl
import stat
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from kfl.algorithms import FedKd
from kfl.cli.main import main
from kfl.core.errors import ConfigError, KflError, MissingExtraError
from kfl.experiment.faults import Faults
from kfl.scheduling import Status
from kfl.simulation import Experiment, RoundLog
from kfl_fleet import FleetSettings, ServerConfig
from kfl_fleet._flower.app_folder import write_app, write_connection
from kfl_fleet.device.meters import make_meter
from kfl_fleet.local.processes import ProcessGroup, free_ports, marked
from kfl_fleet.messages.records import RoundFacts
from kfl_fleet.project.certificates import make_authority, make_device_key, make_server_certificate
from kfl_fleet.server.metrics import Metrics


def test_a_server_config_is_an_experiment_with_one_more_table(tmp_path):
    text = 'devices = 3\n[scheduler]\nname = "lyapunov"\nv = 0.5\n[fleet]\nquorum = 0.25\nmetrics_port = 9000\n'
    (tmp_path / "server.toml").write_text(text)
    config = ServerConfig.load(tmp_path / "server.toml")
    assert config.experiment.scheduler.v == 0.5
    assert config.fleet == FleetSettings(quorum=0.25, metrics_port=9000)
    assert ServerConfig.from_toml(config.to_toml()).fleet == config.fleet


@pytest.mark.parametrize(
    ("fleet", "experiment", "said"),
    [
        ({"deadline_s": 0.0}, {}, "fleet.deadline_s"),
        ({"quorum": -0.1}, {}, "fleet.quorum"),
        ({"min_devices": 9}, {"devices": 3}, "fleet.min_devices"),
        ({"channel": "measured"}, {}, "fleet.gains"),
        ({"gains": "x.csv"}, {}, "fleet.gains"),
        ({"metrics_port": 70000}, {}, "fleet.metrics_port"),
        ({"channel": "reported"}, {"radio": None}, "radio"),
        ({}, {"algorithm": FedKd()}, "algorithm.name"),
        ({}, {"faults": Faults(late=0.1)}, "faults"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(fleet, experiment, said):
    with pytest.raises(ConfigError, match=said):
        ServerConfig(Experiment(**experiment), FleetSettings(**fleet)).validate()


def test_a_typo_in_the_fleet_table_names_the_right_word():
    with pytest.raises(ConfigError, match="did you mean quorum"):
        ServerConfig.from_toml("[fleet]\nqorum = 0.5\n")


def test_meters_by_name():
    formula = make_meter("formula")
    formula.start()
    assert formula.stop(0.75) == 0.75
    assert make_meter("fake:2").stop(0.75) == 2.0
    with pytest.raises(ConfigError, match="meter"):
        make_meter("thermometer")
    with pytest.raises(ConfigError, match="joules"):
        make_meter("fake:much")


def test_meter_that_measures_names_its_extra_when_it_is_not_installed(monkeypatch):
    monkeypatch.setattr("kfl_fleet.device.meters.find_spec", lambda _: None)
    for name in ("codecarbon", "rapl"):
        with pytest.raises(MissingExtraError, match=rf"'{name}' needs .* pip install 'kfl\[meter\]'"):
            make_meter(name)


def test_codecarbon_measures_some_joules():
    pytest.importorskip("codecarbon")
    program = (
        "import time; from kfl_fleet.device.meters import make_meter; m = make_meter('codecarbon'); m.start();"
        "end = time.monotonic() + 1.5\nwhile time.monotonic() < end: sum(range(10000))\nprint(m.stop(0.0))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert 0 < float(done.stdout.split()[-1]) < 1000


def test_certificates_chain_to_their_authority_and_private_keys_are_private(tmp_path):
    authority = make_authority(tmp_path)
    server = make_server_certificate(tmp_path, authority, ["localhost", "127.0.0.1", "kfl.example.org"])
    context = ssl.create_default_context(cafile=str(authority.public))
    assert len(context.get_ca_certs()) == 1
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(server.public, server.private)
    inside, outside = ssl.MemoryBIO(), ssl.MemoryBIO()
    back, forth = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(inside, outside, server_hostname="kfl.example.org")
    host = serving.wrap_bio(back, forth, server_side=True)
    for _ in range(4):  # the handshake, step by step: the client checks chain and name
        for side, source, target in ((client, outside, back), (host, forth, inside)):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
            target.write(source.read())
    assert ("DNS", "kfl.example.org") in client.getpeercert()["subjectAltName"]
    device = make_device_key(tmp_path, 3)
    assert device.public.read_text().startswith("ecdsa-sha2-nistp256 ")
    for private in (authority.private, server.private, device.private):
        assert stat.S_IMODE(private.stat().st_mode) == 0o600
    with pytest.raises(KflError, match="already exists"):
        make_device_key(tmp_path, 3)


def test_the_app_and_the_connection_are_what_flower_reads(tmp_path):
    import tomllib

    write_app(tmp_path / "app", "my-fleet", "my_fleet.device:device", tmp_path / "server.toml", tmp_path / "run")
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    app = project["tool"]["flwr"]["app"]
    assert app["components"]["serverapp"] == "my_fleet.server_app:app"
    assert app["config"]["folder"] == str(tmp_path / "run")
    write_connection(tmp_path / "home", "fleet", "127.0.0.1:1", tmp_path / "ca.crt", tmp_path / "none")
    found = tomllib.loads((tmp_path / "home" / "config.toml").read_text())
    assert found["superlink"]["fleet"]["address"] == "127.0.0.1:1"


def test_metrics_are_served_on_loopback_with_the_rounds_numbers():
    config = ServerConfig(Experiment(devices=4), FleetSettings(metrics_port=0))
    metrics = Metrics(config)
    port = metrics.serve()
    metrics.fleet(seen=range(4), there=range(3), refused=1)
    faults = ({"device": 2, "fault": "error", "code": "worker_died", "text": "x"},)
    refused = ({"device": 1, "reason": "x"},)
    spent_j = (1.0, 2.0, 4.0), (0.5, 0.5, 0.5)
    entry = RoundLog(
        4, 0.75, (0, 1, 2), (), (), *spent_j, 3.0, 0, 0, None, None, Status("no_quorum"), (2,), refused, faults
    )
    metrics.round(entry, RoundFacts())
    whole = {"clock_hz": (1e9,) * 3, "static_j": (0.5,) * 3, "tail_j": (0.25,) * 3}
    metrics.round(replace(entry, **whole), RoundFacts())
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    for line in ("kfl_rounds_done 5.0", "kfl_devices_seen 4.0", "kfl_devices_available 3.0", "kfl_accuracy_ratio 0.75",
                 "kfl_uploads_total 2.0", 'kfl_rejected_total{code="note"} 2.0', "kfl_nodes_refused 1.0",
                 'kfl_incidents_total{code="worker_died"} 2.0', 'kfl_rounds_total{code="no_quorum"} 2.0',
                 'kfl_device_energy_joules_total{device="2"} 9.0', 'kfl_device_available{device="3"} 0.0',
                 'kfl_energy_by_part_joules_total{part="static"} 1.5',
                 'kfl_energy_by_part_joules_total{part="computing"} 5.5'):  # fmt: skip
        assert line in text, line
    taken = replace(config, fleet=replace(config.fleet, metrics_port=port))
    assert Metrics(taken).serve() is None, "a port that is taken is no reason to stop"


FORK = """
import os, sys, time
if os.fork() == 0:
    os.setsid()          # leaves its group, as a daemon would
    time.sleep(600)
time.sleep(600)
"""


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc")
def test_a_group_ends_to_the_last_process_even_those_that_left_it(tmp_path):
    group = ProcessGroup(tmp_path, {})
    group.start("forker", [sys.executable, "-c", FORK])
    while len(group.members()) < 2:
        time.sleep(0.05)
    group.end()
    assert group.members() == []
    assert marked(group.mark) == []


@pytest.mark.skipif(sys.platform != "linux", reason="Linux ends children with their parent")
def test_a_fleet_does_not_outlive_a_killed_parent(tmp_path):
    program = (
        "import sys, time; from pathlib import Path; from kfl_fleet.local.processes import ProcessGroup\n"
        f"g = ProcessGroup(Path({str(tmp_path)!r}), {{}})\n"
        "g.start('sleeper', ['sleep', '600']); print(g.mark, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    mark = parent.stdout.readline().strip()
    assert len(marked(mark)) == 1
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    end = time.monotonic() + 20
    while marked(mark) and time.monotonic() < end:
        time.sleep(0.05)
    assert marked(mark) == []


def test_help_answers_without_pytorch_and_a_wrong_word_names_the_right_ones(capsys):
    program = "import sys, kfl_fleet; from kfl.cli.main import main; main(['deploy']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "kfl deploy up" in done.stdout
    assert done.stdout.split()[-1] == "False"
    assert main(["deploy", "down"]) == 2
    assert "use up or" in capsys.readouterr().err


def test_free_ports_differ():
    ports = free_ports(20)
    assert len(set(ports)) == 20
