"""What kfl changes in Flower, each patch against Flower's own code; `kfl_fleet/_flower/README.md` says why."""

import asyncio
import importlib
import os
import sys

import pytest

import kfl_fleet._flower.names  # noqa: F401  # imports Flower without the warnings of its parts
from kfl.core.errors import ConfigError, KflError
from kfl_fleet._flower import control_auth, limits
from kfl_fleet._flower import protobuf as pb
from kfl_fleet._flower.limits import Limits
from kfl_fleet.retry import Clock

SECRET = "5" * 64


@pytest.fixture
def superlink(monkeypatch, tmp_path):
    """Flower's modules after our SuperLink was set up, but not started."""
    program = importlib.import_module("flwr.superlink.cli.flower_superlink")
    extensions = importlib.import_module("flwr.superlink.extensions")
    monkeypatch.setattr(program, "load_control_authn_plugin", program.load_control_authn_plugin)
    monkeypatch.setattr(extensions, "get_middleware", extensions.get_middleware)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    (tmp_path / "secret").write_text(SECRET)
    start = control_auth.superlink(["--control-secret", str(tmp_path / "secret"), "--port", "1"])
    assert start is program.flower_superlink and sys.argv == ["flower-superlink", "--port", "1"]
    return program


def test_control_plug_is_the_one_that_the_superlink_loads(superlink):
    plug = superlink.load_control_authn_plugin()
    assert not plug.validate_tokens_in_metadata([])[0]
    assert not plug.validate_tokens_in_metadata([("access-token", SECRET[:-1] + "6")])[0]
    key = importlib.import_module("flwr.common.constant").ACCESS_TOKEN_KEY
    assert plug.validate_tokens_in_metadata([(key, SECRET)])[0]


def test_limits_come_first_in_the_superlinks_app(superlink, monkeypatch):
    main, extensions = (importlib.import_module(f"flwr.superlink.{name}") for name in ("main", "extensions"))
    assert main._get_middleware()[0].cls is Limits
    monkeypatch.setattr(main, "_get_middleware", list)
    with pytest.raises(KflError, match="does not take kfl's limits"):
        limits.install(extensions, main)


NODE, QUESTION = 7, "d" * 64


def tree(records, name="a" * 64):
    """An object with so many records in its dictionary, as Flower writes it."""
    leaves = b"".join(pb.message(2, pb.text(1, f"{number:064x}")) for number in range(records))
    return pb.text(1, name) + pb.message(2, pb.text(1, "b" * 64) + leaves)


def push(below, source=NODE, replies_to=QUESTION, times=1):
    """A push of a reply with this tree."""
    metadata = pb.text(2, "a" * 64) + pb.uint(3, source) + pb.text(5, replies_to)
    return pb.message(1, pb.uint(1, NODE)) + times * (pb.message(2, pb.message(1, metadata)) + pb.message(3, below))


class Door:
    """An app behind the limits: authentication stands there, and answers as configured."""

    def __init__(self, **options):
        self.read, self.says, self.now_s = [], 401, 0.0
        self.limits = Limits(self.app, Clock(lambda: self.now_s), **options)

    async def app(self, scope, receive, send):
        more = True
        while more:
            message = await receive()
            self.read.append(message["body"])
            more = message["more_body"]
        await send({"type": "http.response.start", "status": self.says, "headers": []})

    def ask(self, path, length=None, body=b"", key=b"", silent=False):
        """The status of a request, what the app read of it, and the heads of the answer."""
        parts, sent = [body[: len(body) // 2], body[len(body) // 2 :]], []
        self.read.clear()

        async def receive():
            if silent:
                await asyncio.Event().wait()
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

        async def send(message):
            sent.append(message)

        stated = str(len(body) if length is None else length).encode()
        scope = {"type": "http", "path": path, "headers": [(b"content-length", stated), (limits.KEY, key)]}
        asyncio.run(self.limits(scope, receive, send))
        return sent[0]["status"], b"".join(self.read), dict(sent[0]["headers"])


def test_limits_refuse_what_is_too_large_and_pass_the_rest_on_to_authentication():
    most, door = limits.largest_upload(), Door()
    cases = [
        ("push-messages", None, push(tree(1)), 401),
        ("push-messages", None, push(tree(2)), 401),
        ("push-messages", None, push(pb.text(1, "a" * 64)), 401),
        ("push-object", None, bytes(1000), 401),
        ("push-messages", None, b"", 400),
        ("push-messages", None, push(tree(3)), 400),
        ("push-messages", None, push(tree(200)), 400),
        ("push-messages", None, push(tree(1, "e" * 64)), 400),
        ("push-messages", None, push(tree(1) + pb.message(2, pb.text(1, "f" * 64))), 400),
        ("push-messages", None, push(tree(1), times=2), 400),
        ("push-messages", None, push(tree(1), source=1), 400),
        ("push-messages", None, push(tree(1), replies_to=""), 400),
        ("push-messages", None, push(tree(1)) + pb.message(1, pb.uint(1, 8)), 400),
        ("push-messages", None, b"\xff" * 20, 400),
        ("push-messages", None, push(tree(20_000)), 413),
        ("pull-messages", 1 << 17, b"", 413),
        ("push-object", most + 1, b"", 413),
        ("push-object", 10**30, b"", 413),
        ("push-object", most, b"", 429),
        ("pull-messages", "+5", b"", 411),
        ("pull-messages", "", b"", 411),
    ]
    for path, length, body, status in cases:
        found, read, headers = door.ask(f"/v1/fleet/{path}", length, body)
        assert found == status, (path, length)
        assert (read, headers) == (body, {}) if status == 401 else headers[b"connection"] == b"close"
    assert door.ask("/v1/control/start-run", 10**12, b"an app")[:2] == (401, b"an app"), "other interfaces pass"


def test_limits_count_what_a_key_asks_and_no_other_pays_for_it():
    door, path = Door(), "/v1/fleet/pull-messages"
    door.says = 200
    assert [door.ask(path, key=key)[0] for key in (b"one", b"two")] == [200, 200]
    answers = [door.ask(path, key=b"one")[0] for _ in range(int(limits.REQUESTS) + 5)]
    assert answers.count(429) == 5 and answers[-1] == 429
    assert door.ask(path, key=b"two")[0] == door.ask(path, key=b"a stranger")[0] == 200
    door.now_s += 1.0
    assert [door.ask(path, key=b"one")[0] for _ in range(int(limits.REQUESTS_PER_S) + 1)][-2:] == [200, 429]


def test_limits_count_bytes_of_a_key_and_take_uploads_of_admitted_keys_alone():
    door, path = Door(most_upload=1 << 20), "/v1/fleet/push-object"
    assert door.ask(path, body=bytes(60_000), key=b"one")[0] == 401
    assert door.ask(path, body=bytes(1 << 17), key=b"one")[0] == 429, "it is not admitted"
    door.says = 200
    assert door.ask("/v1/fleet/activate-node", key=b"one")[0] == 200
    sent = [door.ask(path, body=bytes(1 << 20), key=b"one")[0] for _ in range(int(limits.UPLOADS) + 1)]
    assert sent == [200] * int(limits.UPLOADS) + [429]
    door.now_s += 60.0
    assert door.ask(path, body=bytes(1 << 20), key=b"one")[0] == 200


def test_limits_end_a_request_that_takes_too_long_to_arrive(monkeypatch):
    monkeypatch.setattr(limits, "PATIENCE_S", 0.01)
    assert Door().ask("/v1/fleet/pull-messages", 5, silent=True)[0] == 408


@pytest.mark.parametrize("given", ["0", "many", "-1", "1025"])
def test_superlink_refuses_a_bound_of_uploads_that_is_none(monkeypatch, given):
    monkeypatch.setenv(limits.UPLOAD_MB, given)
    with pytest.raises(ConfigError, match="an integer from 1 to 1024"):
        limits.largest_upload()


def test_token_of_a_server_app_leaves_the_command_line(monkeypatch, tmp_path):
    executor = importlib.import_module("flwr.supercore.superexec.executor.subprocess_executor")
    monkeypatch.setattr(executor, "subprocess", executor.subprocess)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    control_auth.superexec([])
    program = "import sys; print(sys.argv[1:]); print(open(sys.argv[2]).read())"
    out = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    with executor.subprocess.Popen([sys.executable, "-c", program, "--token", "hidden"], stdout=out) as started:
        assert started.wait(timeout=60) == 0
    os.close(out)
    shown, read = (tmp_path / "out").read_text().splitlines()
    assert "--token-file" in shown and "hidden" not in shown and read == "hidden"
