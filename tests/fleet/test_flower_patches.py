"""What kfl changes in Flower, each patch against Flower's own code; `kfl_fleet/_flower/README.md` says why."""

import asyncio
import importlib
import os
import sys

import pytest

import kfl_fleet._flower.names  # noqa: F401  # imports Flower without the warnings of its parts
from kfl.core.errors import KflError
from kfl_fleet._flower import control_auth, limits
from kfl_fleet._flower import protobuf as pb
from kfl_fleet._flower.limits import Limits, check_trees

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


def tree(children):
    """An object with so many records in its dictionary, as Flower writes it."""
    leaves = b"".join(pb.message(2, pb.text(1, f"{number:064x}")) for number in range(children))
    return pb.text(1, "a" * 64) + pb.message(2, pb.text(1, "b" * 64) + leaves)


def ask(path, length, body):
    """The status of a request, and what an app behind the limits reads: authentication stands there, and says 401."""
    parts, sent, read = [body[: len(body) // 2], body[len(body) // 2 :]], [], []

    async def receive():
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message):
        sent.append(message)

    async def authentication(scope, receive, send):
        more = True
        while more:
            message = await receive()
            read.append(message["body"])
            more = message["more_body"]
        await send({"type": "http.response.start", "status": 401, "headers": []})

    headers = [(b"content-length", str(len(body) if length is None else length).encode())]
    scope = {"type": "http", "path": path, "headers": headers}
    asyncio.run(Limits(authentication)(scope, receive, send))
    return sent[0]["status"], b"".join(read), dict(sent[0]["headers"])


def test_limits_refuse_what_is_too_large_and_pass_the_rest_on_to_authentication():
    one, two = pb.message(3, tree(1)), pb.message(3, tree(2))
    cases = [
        ("push-messages", None, one, 401),
        ("push-messages", None, two, 401),
        ("push-messages", None, b"", 401),
        ("push-object", None, bytes(1000), 401),
        ("push-messages", None, pb.message(3, tree(200)), 400),
        ("push-messages", None, one * 5, 400),
        ("push-messages", None, b"\xff" * 20, 400),
        ("push-messages", None, pb.message(3, tree(20_000)), 413),
        ("pull-messages", 1 << 17, b"", 413),
        ("push-object", (1 << 30) + 1, b"", 413),
        ("push-object", 10**30, b"", 413),
        ("pull-messages", "+5", b"", 411),
        ("pull-messages", "", b"", 411),
    ]
    for path, length, body, status in cases:
        found, read, headers = ask(f"/v1/fleet/{path}", length, body)
        assert found == status, (path, length)
        assert (read, headers) == (body, {}) if status == 401 else headers[b"connection"] == b"close"
    assert ask("/v1/control/start-run", 10**12, b"an app")[:2] == (401, b"an app"), "other interfaces are not devices'"


def test_limits_count_every_tree_and_depth():
    deep = b""
    for _ in range(limits.MOST_OBJECTS):
        deep = pb.text(1, "c" * 64) + (pb.message(2, deep) if deep else b"")
    assert check_trees(pb.message(3, deep)) == (0, "")
    assert check_trees(pb.message(3, pb.message(2, deep)))[0] == 400
    assert check_trees(pb.message(3, tree(2)) * 2) == (0, "")
    assert check_trees(b"") == (0, "")


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
