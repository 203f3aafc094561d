"""A device's node against servers that are faulty, or not Flower's: it waits and goes on, and never grows or hangs."""

import itertools
import re
import signal
import socket
import ssl
import subprocess
import threading
import time
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from kfl.core.errors import KflError
from kfl_fleet._flower import protobuf as pb
from kfl_fleet._flower.fleet_api import AwayError, FleetApi, StatusError
from kfl_fleet.device import node as node_module
from kfl_fleet.device.node import Node, NodeOptions, command
from kfl_fleet.project.certificates import make_authority, make_device_key, make_server_certificate

ONLINE = pb.uint(1, 7)


def answer(content=b"", status="200 OK", *heads):
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(content)}", *heads]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    authority = make_authority(folder)
    pair = make_server_certificate(folder, authority, ["127.0.0.1"])
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pair.public, pair.private)
    return authority.public, make_device_key(folder, 0).private, tls


@contextmanager
def serving(keys, behave, heads=None):
    """A TLS server; `behave` yields what it sends to each request, whole or in pieces, given the request's name."""
    heads = [] if heads is None else heads
    with socket.create_server(("127.0.0.1", 0)) as door:

        def talk(plain):
            with suppress(OSError, ssl.SSLError), keys[2].wrap_socket(plain, server_side=True) as line:
                waiting = b""
                while more := line.recv(1 << 16):
                    waiting += more
                    while b"\r\n\r\n" in waiting:
                        head, _, rest = waiting.partition(b"\r\n\r\n")
                        heads.append(head)
                        length = int(re.search(rb"Content-Length: (\d+)", head)[1])
                        if len(rest) < length:
                            break
                        waiting = rest[length:]
                        pieces = behave(re.match(rb"POST /v1/fleet/([a-z-]+)", head)[1].decode())
                        for piece in [pieces] if isinstance(pieces, bytes) else pieces:
                            line.sendall(piece)

        def listen():
            with suppress(OSError):
                while True:
                    threading.Thread(target=talk, args=(door.accept()[0],), daemon=True).start()

        threading.Thread(target=listen, daemon=True).start()
        yield f"127.0.0.1:{door.getsockname()[1]}"


@contextmanager
def api(keys, behave):
    with serving(keys, behave) as address:
        found = FleetApi(address, keys[0], keys[1])
        yield found
        found.close()


def slowly(data):
    for number in itertools.count():
        yield data[number : number + 1] or b"x"
        time.sleep(0.05)


def endless():
    yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    for _ in range(100):
        yield b"10000\r\n" + bytes(1 << 16) + b"\r\n"


ELSEWHERE = {
    "a proxy's page": answer(b"<html>404 Not Found</html>", "404 Not Found"),
    "forbidden by a proxy": answer(b"<html>", "403 Forbidden"),
    "too large for a proxy": answer(b"<html>", "413 Request Entity Too Large"),
    "too many": answer(b'{"detail": "too many requests"}', "429 Too Many Requests"),
    "moved": answer(b"", "302 Found", "Location: https://127.0.0.1:1/"),
    "broken": answer(b'{"detail": "oops"}', "500 Internal Server Error"),
    "no Flower's": answer(b"<html>hello</html>"),
    "no text": answer(pb.message(2, pb.message(1, pb.message(2, b"\xff"))) + pb.message(3, b"")),
    "no tree": answer(pb.message(2, b"\xff\xff") + pb.message(3, b"\xff")),
    "from no time": answer(pb.message(2, pb.message(1, pb.double(7, float("nan")))) + pb.message(3, b"")),
    "of 4 GiB": b"HTTP/1.1 200 OK\r\nContent-Length: 4294967296\r\n\r\n",
    "without end": endless,
    "no head": b"HTTP/9.9 what\r\n\r\n",
}


@pytest.mark.parametrize("kind", ELSEWHERE)
def test_pull_takes_an_answer_that_is_not_flowers_for_an_absence(keys, kind):
    given = ELSEWHERE[kind]
    with api(keys, lambda _: given() if callable(given) else given) as node, pytest.raises(AwayError):
        node.pull()


def test_refusals_of_the_superlink_are_told_from_a_proxys(keys):
    refusal = answer(b'{"detail": "no run of yours"}', "404 Not Found")
    with api(keys, lambda _: refusal) as node, pytest.raises(StatusError, match="no run of yours"):
        node.app(1)


def test_activate_refuses_an_answer_without_a_node(keys):
    with api(keys, lambda _: answer()) as node, pytest.raises(AwayError, match="it names no node"):
        node.activate()


def test_request_ends_though_bytes_keep_coming(keys):
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"
    with api(keys, lambda _: slowly(head)) as node, pytest.raises(AwayError, match=r"too long|timed out"):
        node.deactivate()  # the request with the shortest patience


def test_node_stays_through_faults_and_drops_messages_with_a_pause(keys, tmp_path):
    """One process through every fault; each is followed by an answer that is right."""
    faults, asked, over = iter(ELSEWHERE.values()), [], threading.Event()
    strange = pb.message(2, pb.message(1, pb.double(7, 60.0) + pb.uint(1, 5))) + pb.message(3, pb.text(1, "a" * 64))

    def behave(name):
        asked.append(name)
        if name == "activate-node":
            return answer(ONLINE if asked.count(name) > 1 else b"")
        if name == "get-run":
            return answer(b'{"detail": "no such run"}', "404 Not Found")
        if name != "pull-messages" or asked.count(name) % 2:
            return answer()
        fault = next(faults, None)
        if fault is None:
            over.set()
            return answer(strange)
        return fault() if callable(fault) else fault

    with serving(keys, behave) as address:
        options = NodeOptions(address, str(keys[0]), str(keys[1]), 0, str(tmp_path), poll_s=0.05, idle_poll_s=0.05)
        with (tmp_path / "log").open("w") as log:
            node = subprocess.Popen(command(options), stdout=log, stderr=log)
        try:
            assert over.wait(60), (tmp_path / "log").read_text()
            node.send_signal(signal.SIGTERM)
            assert node.wait(timeout=30) == 0
        finally:
            node.kill()
    said = (tmp_path / "log").read_text()
    assert "Online as node 7" in said and "Traceback" not in said
    assert said.count("Trying on") >= len(ELSEWHERE) - 3, "a connection that breaks is opened again at once"


def test_superlink_with_a_new_authority_is_one_sentence(keys, tmp_path):
    other = make_authority(tmp_path)
    with (
        serving(keys, lambda _: answer(ONLINE)) as address,
        pytest.raises(KflError, match=r"keys/ca\.crt on"),
    ):
        FleetApi(address, other.public, keys[1]).activate()


@pytest.mark.parametrize("ahead_s", [3600, -3600, 0])
def test_device_signs_with_the_servers_time_where_its_own_clock_is_wrong(keys, ahead_s):
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=ahead_s), usegmt=True)
    heads = []
    with serving(keys, lambda _: answer(b"", "200 OK", f"Date: {date}"), heads) as address:
        node = FleetApi(address, keys[0], keys[1])
        for _ in range(2):
            assert node.pull() is None
        node.close()
    stated = [re.search(rb"flwr-timestamp: (\S+)", head)[1].decode() for head in heads]
    signed = [datetime.strptime(moment, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC) for moment in stated]
    assert abs((signed[1] - signed[0]).total_seconds() - ahead_s) < 60
    assert node.clock_is_off == bool(ahead_s) and abs(node.now_s() - signed[1].timestamp()) < 60


def test_device_is_not_ended_by_a_clock_that_is_set_while_it_is_online(keys):
    """The server refuses what was signed an hour ago, or in an hour, and says what time it is."""
    ahead_s, heads = [0.0], []

    def behave(_):
        moment = datetime.now(UTC) + timedelta(seconds=ahead_s[0])
        signed = re.search(rb"flwr-timestamp: (\S+)", heads[-1])[1].decode()
        off_s = (datetime.strptime(signed, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC) - moment).total_seconds()
        date = f"Date: {format_datetime(moment, usegmt=True)}"
        if abs(off_s) > 60:
            return answer(b'{"detail": "Invalid SuperNode authentication"}', "401 Unauthorized", date)
        return answer(b"", "200 OK", date)

    with serving(keys, behave, heads) as address:
        node = FleetApi(address, keys[0], keys[1])
        for ahead_s[0] in (0.0, 3600.0, -3600.0, 0.0):
            assert node.pull() is None
        node.close()
    assert len(heads) == 7
    unknown = answer(b'{"detail": "Invalid SuperNode authentication"}', "401 Unauthorized")
    with api(keys, lambda _: unknown) as node, pytest.raises(StatusError, match="401"):
        node.pull()


def test_second_node_with_the_same_key_knocks_and_gives_up_in_a_sentence(keys, tmp_path, monkeypatch):
    monkeypatch.setattr(node_module, "ENTER_S", 0.2)
    monkeypatch.setattr(node_module, "KNOCK_S", 0.05)
    there = answer(b'{"detail": "Failed to activate SuperNode."}', "412 Precondition Failed")
    asked = []
    with serving(keys, lambda name: asked.append(name) or there) as address:
        second = Node(NodeOptions(address, str(keys[0]), str(keys[1]), 0, str(tmp_path)))
        with pytest.raises(KflError, match="does not admit this device"):
            second.run()
    assert asked.count("activate-node") > 1
