"""The live page's server: this machine only, read-only, and never at a loss whatever happens to the run."""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from kfl.cli.main import main
from kfl.core.errors import ConfigError
from kfl.report import loopback, watch_server
from kfl.report.live import LiveRun


@pytest.fixture
def server(copy):
    with watch_server(copy, 0) as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def ask(server, method="GET", path="/", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=20)
    connection.request(method, f"/{server.key}{path}", headers=headers)
    reply = connection.getresponse()
    body = reply.read()
    connection.close()
    return reply, body


def test_the_page_and_its_data(server):
    reply, body = ask(server)
    assert reply.status == 200 and b"data-live=" in body and b"connect-src 'self'" in body
    for name, value in {
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Cache-Control": "no-store",
    }.items():
        assert reply.headers[name] == value
    assert "Access-Control-Allow-Origin" not in reply.headers
    version = re.search(rb'data-live="([^"]+)"', body)[1].decode()
    answer = json.loads(ask(server, path=f"/data.json?have={version}")[1])
    assert answer == {"version": version, "news": "Finished.", "wait_s": answer["wait_s"]}
    answer = json.loads(ask(server, path="/data.json")[1])
    assert {"accuracy", "knowledge"} <= set(answer["figures"]) and "finished, 15 rounds" in answer["html"]


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "LOCALHOST", "[::1]"])
def test_loopback_names_are_answered(server, name):
    assert ask(server, Host=name)[0].status == 200
    assert ask(server, Host=f"{name}:{server.server_address[1]}")[0].status == 200


@pytest.mark.parametrize(
    "name", ["evil.example", "evil.example:8378", "127.0.0.1.evil.example", "127.0.0.1:1", "", "localhost@x"]
)
def test_any_other_name_is_refused(server, name):
    for path in ("/", "/data.json"):
        reply, body = ask(server, path=path, Host=name)
        assert reply.status == 403 and b"kfl" not in body


def test_two_names_are_refused(server):
    with socket.create_connection(server.server_address) as raw:
        raw.sendall(b"GET /" + server.key.encode() + b"/ HTTP/1.0\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert b" 403 " in raw.recv(200).split(b"\n")[0]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(server, method):
    assert ask(server, method)[0].status in (405, 501)


@pytest.mark.parametrize("path", ["/config.toml", "/../config.toml", "/%2e%2e/config.toml", "/data.json/x"])
def test_nothing_else_is_there(server, path):
    assert ask(server, path=path)[0].status == 404


@pytest.mark.parametrize("path", ["/", "/data.json", "/wrong/", "/wrong/data.json", "//", ""])
def test_another_user_of_this_machine_has_no_key(server, path):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=20)
    connection.request("GET", path)
    reply = connection.getresponse()
    assert reply.status == 403 and b"has a key" in reply.read()
    assert server.url.endswith(f"/{server.key}/") and len(server.key) >= 20


@pytest.mark.parametrize("origin", ["http://evil.example", "https://127.0.0.1", "null", "http://127.0.0.1:1", ""])
def test_a_page_from_elsewhere_gets_nothing(server, origin):
    assert ask(server, Origin=origin)[0].status == 403


def test_the_pages_own_requests_are_answered(server):
    own = f"http://127.0.0.1:{server.server_address[1]}"
    fetch = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}
    assert ask(server, path="/data.json", Origin=own, **fetch)[0].status == 200
    typed = {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    image = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    assert [ask(server, **headers)[0].status for headers in (typed, link, image)] == [200, 200, 403]


@pytest.mark.parametrize("said", [b"", b"GET /", b"GET / HTTP/1.1\r\nHost: local"], ids=["silent", "line", "header"])
def test_slow_clients_block_nobody(server, monkeypatch, said):
    """More of them than there are connections, and than may wait: they never take the place of one with the key."""
    monkeypatch.setattr(loopback, "MOST_WAITING", 40)
    with contextlib.ExitStack() as stack:
        for _ in range(3 * loopback.MOST_CONNECTIONS):
            raw = stack.enter_context(socket.create_connection(server.server_address))
            raw.sendall(said)
        assert ask(server)[0].status == 200
        assert sum(thread.name.startswith("Thread") for thread in threading.enumerate()) <= 100


def test_flood_of_connections_does_not_keep_a_page_from_its_reader(server):
    """All of them new, so that none has had its time."""
    with contextlib.ExitStack() as stack:
        for said in (b"", b"GET /wrong", b"GET /wrong/ HTTP/1.1\r\n\r\n") * 2:
            for _ in range(2 * loopback.MOST_CONNECTIONS):
                raw = stack.enter_context(socket.create_connection(server.server_address))
                raw.sendall(said)
            assert ask(server)[0].status == 200


def test_a_connection_ends_after_a_while(server, monkeypatch):
    monkeypatch.setattr(loopback, "LONGEST_S", 0.2)
    with socket.create_connection(server.server_address, timeout=20) as raw:
        raw.sendall(b"GET /" + server.key.encode() + b"/ HTTP/1.1\r\n")
        assert raw.recv(10) == b""  # closed by the server, though we say something now and then


def test_only_loopback_listens(server):
    assert server.server_address[0] == "127.0.0.1"


def test_a_port_that_is_taken(server, copy):
    port = server.server_address[1]
    with pytest.raises(ConfigError, match="a free port"):
        watch_server(copy, port)
    with pytest.raises(ConfigError, match="from 0 to 65535"):
        watch_server(copy, 70_000)


def news(live, have=""):
    return json.loads(live.news(have))


def test_a_run_is_followed_from_before_it_begins_through_kill_and_resume_to_its_end(runs, tmp_path):
    whole, folder = runs / "kfl", tmp_path / "run"
    lines = (whole / "rounds.jsonl").read_text().splitlines(keepends=True)
    live = LiveRun(folder)
    first = news(live)
    assert first["news"] == "Waiting for the run to begin." and "Nothing has been written" in first["html"]
    folder.mkdir()
    shutil.copy(whole / "config.toml", folder)
    assert "no round is finished yet" in news(live, first["version"])["html"]
    (folder / "rounds.jsonl").write_text("".join(lines[:5]) + lines[5][:30])
    shutil.copy(whole / "trail.jsonl", folder)
    five = news(live)
    assert (
        five["news"] == "Live: round 5 of 15."
        and len(five["figures"]["accuracy"]["views"]["Rounds"]["data"][-1]["x"]) == 5
    )
    assert "html" not in news(live, five["version"]), "nothing has changed"
    os.utime(folder / "rounds.jsonl", (time.time() - 400, time.time() - 400))
    assert news(live)["news"].startswith("No news for 6") and "kfl resume" in news(live)["news"]
    (folder / "rounds.jsonl").write_text("".join(lines[:3]))  # a resumed run goes back to its last checkpoint
    assert news(live)["news"] == "Live: round 3 of 15."
    (folder / "rounds.jsonl").write_text("".join(lines[:4]) + "rubbish\n")
    damaged = news(live)
    assert "damaged" in damaged["news"] and "accuracy" in damaged["figures"], "what was seen stays"
    (folder / "rounds.jsonl").write_text("".join(lines))
    for name in ("devices.json", "summary.json", "environment.json"):
        shutil.copy(whole / name, folder)
    assert news(live)["news"] == "Finished."


def test_a_folder_of_runs_is_compared_live(runs):
    answer = news(LiveRun(runs))
    assert (
        answer["news"] == "Finished."
        and "kfl · lyapunov, kfl · uniform and fedavg · lyapunov on mnist-5k" in answer["html"]
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_prints_its_address_and_ends_cleanly(copy, number):
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    # A job in the background of a shell script ignores Ctrl-C, and so would its children.
    program = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    program += "from kfl.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "report", str(copy), "--live", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        said = child.stdout.readline()
        port, key = re.search(r"http://127\.0\.0\.1:(\d+)/([\w-]+)/", said).groups()
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=20)
        connection.request("GET", f"/{key}/data.json")
        assert connection.getresponse().status == 200
        child.send_signal(number)
        out, err = child.communicate(timeout=20)
    assert (child.returncode, err) == (0, "")
    assert "No longer watching." in out
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before


def test_the_command_refuses_a_port_that_is_none(copy, capsys):
    assert main(["report", str(copy), "--live", "--port", "99999"]) == 2
    assert "port is 99999" in capsys.readouterr().err


def test_the_command_refuses_a_file(copy, capsys):
    assert main(["report", str(copy / "config.toml"), "--live"]) == 2
    assert "must be a folder" in capsys.readouterr().err
