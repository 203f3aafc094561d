"""A device's side of Flower's Fleet API: signed requests over one TLS connection that stays open.

Every request carries the device's public key and its signature of the time, as Flower 1.41 asks for, and nothing that
is not needed: four of them make a round, so headers are most of what a device sends.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING

from kfl.core.errors import ConfigError, KflError, MissingExtraError
from kfl.core.text import scrub
from kfl_fleet._flower import protobuf as pb
from kfl_fleet._flower.objects import Incoming, Outgoing, read_message

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

HEARTBEAT_S = 30.0
"""The server calls a device gone after twice this time without a heartbeat."""
TIMEOUT_S, SLOWEST_BYTES_PER_S = 30.0, 2000.0
"""An exchange may take so long, and as much longer as a slow radio needs for its bytes."""
MOST_BYTES, MOST_BYTES_OF = 1 << 20, {"pull-object": 1 << 28, "get-fab": 1 << 26}
"""Of an answer, by its path."""
CLOCK_S = 2.0
"""A clock that differs more than this from the server's is corrected in signatures."""
REFUSED = (400, 401, 403, 404, 409, 412, 413, 422)
"""With these the SuperLink refuses a request, if it is the SuperLink that answers: it says why in JSON. All else is a
server or a proxy that has a problem, and passes."""

UNKNOWN = 401
"""The SuperLink does not know the device, or not at this time."""
OTHER_NAME = (62, 64)
"""OpenSSL's codes for a certificate that is not for the host name, or not for the address."""


class AwayError(KflError):
    """The server cannot be reached now."""


class StatusError(KflError):
    """The server refused a request."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"The server says: {scrub(text)} (status {status}).")
        self.status = status


@dataclass(frozen=True)
class App:
    """What a run plays on devices."""

    hash: str
    overrides: dict[str, str]
    """What `flwr run` changed in its configuration, as far as it is text."""


class FleetApi:
    """Requests of one device. `activate` first."""

    def __init__(self, superlink: str, certificates: Path, key: Path) -> None:
        self.host, self.port = _address(superlink)
        self._tls = _tls(certificates)
        self._key = _private_key(key)
        self.public_key = _pem(self._key)
        self._identity = b64encode(self.public_key).decode()
        self._signed = ("", "")
        self._ahead_s = 0.0
        """How far the server's clock is ahead of this machine's."""
        self._socket: ssl.SSLSocket | None = None
        self._node = 0

    def activate(self) -> int:
        """Come online; the number of this node."""
        answer = self._call("activate-node", pb.message(1, self.public_key) + pb.double(2, HEARTBEAT_S))
        if not pb.whole(answer, 1):
            raise self._strange("it names no node")
        self._node = pb.whole(answer, 1)
        return self._node

    def deactivate(self) -> None:
        """Go offline, so that the server need not find out."""
        self._call("deactivate-node", pb.uint(1, self._node), timeout_s=3.0)

    def heartbeat(self) -> None:
        """Say that this device is there."""
        answer = self._call("send-node-heartbeat", self._own() + pb.double(2, HEARTBEAT_S))
        if not pb.whole(answer, 1):
            raise StatusError(401, "it does not know this device any more")

    def pull(self, wait_s: int = 0) -> Incoming | None:
        """The next question, if there is one, or if one comes in so many seconds; a server may wait less, or not."""
        answer = self._call(
            "pull-messages", self._own(), TIMEOUT_S + wait_s, f"kfl-wait-s: {wait_s}\r\n" if wait_s else ""
        )
        messages, trees = pb.blobs(answer, 2), pb.blobs(answer, 3)
        with self._reading():
            return read_message(messages[0], trees[0]) if messages and trees else None

    def pull_object(self, run: int, name: str) -> bytes | None:
        """The bytes of an object; None while they are on their way."""
        answer = self._call("pull-object", self._own() + pb.uint(2, run) + pb.text(3, name))
        if not pb.whole(answer, 1):
            raise StatusError(404, "it has no such object")
        return pb.blob(answer, 3) if pb.whole(answer, 2) else None

    def push(self, run: int, reply: Outgoing, worked_s: float) -> None:
        """Send a reply and its records. Other objects of it are in its envelope, and kfl's server asks for none."""
        body = self._own() + pb.message(2, reply.envelope) + pb.message(3, reply.tree)
        answer = self._call("push-messages", body + pb.message(4, pb.DOUBLE.pack(worked_s)))
        with self._reading():
            session, wanted = pb.words(answer, 4), {name.decode() for name in pb.blobs(answer, 3)}
        if not session:
            raise self._strange("it takes no objects")
        for name, content in reply.records.items():
            if name in wanted:
                part = self._own() + pb.uint(2, run) + pb.text(3, name) + pb.message(4, content)
                self._call("push-object", part + pb.text(5, session))

    def app(self, run: int) -> App:
        """What a run plays."""
        answer, overrides = self._call("get-run", self._own() + pb.uint(2, run)), {}
        with self._reading():
            found = pb.read(pb.blob(answer, 1))
            for entry in pb.blobs(found, 4):
                fields = pb.read(entry)
                value = pb.read(pb.blob(fields, 2))
                if 14 in value:
                    overrides[pb.words(fields, 1)] = pb.words(value, 14)
            return App(pb.words(found, 5), overrides)

    def bundle(self, run: int, name: str) -> bytes:
        """The app itself, as Flower packed it."""
        answer = self._call("get-fab", self._own() + pb.text(2, name) + pb.uint(3, run))
        with self._reading():
            return pb.blob(pb.read(pb.blob(answer, 1)), 2)

    def close(self) -> None:
        """End the connection; the next request opens another."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None

    def _own(self) -> bytes:
        return pb.message(1, pb.uint(1, self._node))

    def _call(self, name: str, body: bytes, timeout_s: float = TIMEOUT_S, more: str = "") -> pb.Fields:
        """One request. A connection that the server closed meanwhile is opened again, once.

        A request that was refused because it was signed with a wrong time is signed again, with the server's: the
        refusal tells it. One of the two clocks may just have been set.
        """
        fresh, ahead_s = self._socket is None, self._ahead_s
        try:
            return self._exchange(name, body, timeout_s, more)
        except StatusError as problem:
            if problem.status != UNKNOWN or abs(self._ahead_s - ahead_s) <= CLOCK_S:
                raise
        except AwayError:
            if fresh or self._socket is not None:
                raise
        return self._exchange(name, body, timeout_s, more)

    def _exchange(self, name: str, body: bytes, timeout_s: float, more: str) -> pb.Fields:
        try:
            connection = self._connected(timeout_s)
            stream = _Stream(connection, timeout_s)
            stream.send(self._head(name, len(body), more) + body)
            with http.client.HTTPResponse(stream, method="POST") as response:  # type: ignore[arg-type]  # it needs makefile alone
                response.begin()
                content = _content(response, MOST_BYTES_OF.get(name, MOST_BYTES))
                self._note_clock(response.headers.get("date"))
                if response.will_close:
                    self.close()
        except ssl.SSLCertVerificationError as problem:
            self.close()
            raise KflError(f"{self.host}:{self.port} shows a certificate {self._mistrust(problem)}") from problem
        except (OSError, ValueError, http.client.HTTPException) as problem:  # ValueError: a head that is none
            self.close()
            raise AwayError(f"{self.host}:{self.port} does not answer ({scrub(problem)}).") from problem
        if response.status == 200:
            with self._reading():
                return pb.read(content)
        complaint = _complaint(content)
        if response.status in REFUSED and complaint is not None:
            raise StatusError(response.status, complaint)
        raise AwayError(f"{self.host}:{self.port} is not ready (status {response.status}).")

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """What cannot be read is not Flower's: a proxy's page, or a server of another version."""
        try:
            yield
        except ValueError as problem:
            raise self._strange(problem) from problem

    def _strange(self, problem: object) -> AwayError:
        return AwayError(f"{self.host}:{self.port} sent something that is not Flower's ({scrub(problem)}).")

    def _mistrust(self, problem: ssl.SSLCertVerificationError) -> str:
        """What is wrong with the server's certificate, and what mends it."""
        if problem.verify_code in OTHER_NAME:
            command = f"kfl deploy keys --renew-server --hosts {self.host}"
            return f"for other names; on the server, with every name in use: {command} …"
        return (
            f"that the fleet's authority did not sign ({problem.verify_message}); "
            "compare --root-certificates with keys/ca.crt on the server."
        )

    def _connected(self, timeout_s: float) -> ssl.SSLSocket:
        if self._socket is None:
            plain = socket.create_connection((self.host, self.port), timeout=timeout_s)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = self._tls.wrap_socket(plain, server_hostname=self.host)
        self._socket.settimeout(timeout_s)
        return self._socket

    def _head(self, name: str, length: int, more: str = "") -> bytes:
        moment, signature = self._signature()
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (
            f"POST /v1/fleet/{name} HTTP/1.1\r\nHost: {host}:{self.port}\r\n"
            f"Content-Type: application/protobuf\r\nContent-Length: {length}\r\n"
            f"flwr-public-key: {self._identity}\r\nflwr-timestamp: {moment}\r\nflwr-signature: {signature}\r\n"
            f"{more}\r\n"
        ).encode()

    def _signature(self) -> tuple[str, str]:
        """The time by the server's clock, and this device's signature of it; one a second is enough."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        moment = f"{datetime.fromtimestamp(time.time() + self._ahead_s, UTC):%Y%m%dT%H%M%SZ}"
        if self._signed[0] != moment:
            signature = self._key.sign(moment.encode(), ec.ECDSA(hashes.SHA256()))
            self._signed = moment, b64encode(signature).decode()
        return self._signed

    def _note_clock(self, date: str | None) -> None:
        """Boards without a clock of their own sign with the server's: it has shown its certificate."""
        if date:
            with contextlib.suppress(ValueError, TypeError):
                ahead_s = parsedate_to_datetime(date).timestamp() - time.time()
                self._ahead_s = ahead_s if abs(ahead_s) > CLOCK_S else 0.0

    def now_s(self) -> float:
        """Seconds since 1970 by the server's clock, as far as this machine's is not right."""
        return time.time() + self._ahead_s

    @property
    def clock_is_off(self) -> bool:
        """Whether this machine's clock differs from the server's."""
        return self._ahead_s != 0.0


def _complaint(content: bytes) -> str | None:
    """What the SuperLink says about a request that it refused; None where it is not the SuperLink that answered."""
    try:
        found = json.loads(content[:4096])
    except ValueError:
        return None
    said = found.get("message") or found.get("detail") if isinstance(found, dict) else None
    return str(said) if said else None


class _Stream(io.RawIOBase):
    """A connection that must go on: bytes that come one by one end it, however regularly they come."""

    def __init__(self, connection: ssl.SSLSocket, timeout_s: float) -> None:
        self._connection, self._until_s = connection, time.monotonic() + timeout_s

    def send(self, data: bytes) -> None:
        """Send all of it."""
        view = memoryview(data)
        while view:
            view = view[self._moved(self._in_time().send(view[: 1 << 16])) :]

    def readable(self) -> bool:
        """As `io` asks."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read what is there."""
        return self._moved(self._in_time().recv_into(buffer))

    def makefile(self, _mode: str) -> io.BufferedReader:
        """For HTTPResponse, which asks a socket."""
        return io.BufferedReader(self)

    def _in_time(self) -> ssl.SSLSocket:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("it took too long")
        self._connection.settimeout(left_s)
        return self._connection

    def _moved(self, count: int) -> int:
        self._until_s += count / SLOWEST_BYTES_PER_S
        return count


def _content(response: http.client.HTTPResponse, most: int) -> bytes:
    """The content of an answer; OSError where there is more of it than its path may have."""
    if (response.length or 0) <= most and len(content := response.read(most + 1)) <= most:
        return content
    raise OSError(f"it has more than {most} bytes to say")


def _address(superlink: str) -> tuple[str, int]:
    host, _, port = superlink.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise ConfigError("superlink", superlink, "the server's name and port, such as fleet.example.org:8443")
    return host, int(port)


def _tls(certificates: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(certificates))
    except (OSError, ssl.SSLError) as problem:
        raise ConfigError(
            "root-certificates", str(certificates), f"a file with the authority's certificate ({problem})"
        ) from problem


def _private_key(path: Path) -> EllipticCurvePrivateKey:
    try:
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key
    except ImportError as problem:
        raise MissingExtraError("cryptography", "device", "A device of a fleet") from problem
    found: object = None
    try:
        data = path.read_bytes()
        found = (load_ssh_private_key if b"OPENSSH" in data else load_pem_private_key)(data, password=None)
    except Exception as problem:  # cryptography has a dozen reasons of its own
        raise ConfigError("key", str(path), f"a file with this device's private key ({problem})") from problem
    if not isinstance(found, EllipticCurvePrivateKey):
        raise ConfigError("key", str(path), "a file with an elliptic-curve key, as kfl deploy keys makes it")
    return found


def _pem(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
