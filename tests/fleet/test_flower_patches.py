"""What kfl changes in Flower, each patch against Flower's own code; `kfl_fleet/_flower/README.md` says why."""

import asyncio
import importlib
import os
import sys
from base64 import b64encode

import pytest

import kfl_fleet._flower.names  # noqa: F401  # imports Flower without the warnings of its parts
from kfl.core.errors import ConfigError, KflError
from kfl_fleet._flower import accounts, control_auth, limits
from kfl_fleet._flower import protobuf as pb
from kfl_fleet._flower.accounts import KEY, MOMENT, SIGNATURE
from kfl_fleet._flower.fleet_api import FleetApi
from kfl_fleet._flower.limits import Limits
from kfl_fleet.project.certificates import make_authority, make_device_key
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


class Owner:
    """A client that has a key, and signs with it as a device does."""

    def __init__(self, folder, number):
        authority = make_authority(folder).public
        self.api = FleetApi("127.0.0.1:1", authority, make_device_key(folder, number).private)
        self.pem = self.api.public_key

    def heads(self, **other):
        moment, signature = self.api._signature()
        found = {KEY: b64encode(self.pem), MOMENT: moment.encode(), SIGNATURE: signature.encode(), **other}
        return list(found.items())


@pytest.fixture(scope="module")
def owners(tmp_path_factory):
    return [Owner(tmp_path_factory.mktemp("keys"), number) for number in range(3)]


class Door:
    """An app behind the limits: authentication stands there, and answers as configured."""

    def __init__(self, *registered, **options):
        self.read, self.says, self.now_s = [], 401, 0.0
        known = {owner.pem for owner in registered}

        async def registered(_, key):
            return key in known

        self.limits = Limits(self.app, Clock(lambda: self.now_s), registered=registered, **options)

    async def app(self, scope, receive, send):
        more = True
        while more:
            message = await receive()
            self.read.append(message["body"])
            more = message["more_body"]
        await send({"type": "http.response.start", "status": self.says, "headers": []})

    async def asked(self, path, length=None, body=b"", heads=(), receive=None):
        """The heads of an answer to a request."""
        parts, sent = [body[: len(body) // 2], body[len(body) // 2 :]], []

        async def whole():
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

        async def send(message):
            sent.append(message)

        stated = str(len(body) if length is None else length).encode()
        scope = {"type": "http", "path": path, "headers": [(b"content-length", stated), *heads]}
        await self.limits(scope, receive or whole, send)
        return sent[0]["status"], dict(sent[0]["headers"])

    def ask(self, path, length=None, body=b"", by=None, heads=(), receive=None):
        """The status of a request, what the app read of it, and the heads of the answer."""
        self.read.clear()
        status, found = asyncio.run(self.asked(path, length, body, by.heads() if by else heads, receive))
        return status, b"".join(self.read), found


async def silence():
    await asyncio.Event().wait()


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


def test_limits_count_what_a_key_asks_and_no_other_pays_for_it(owners):
    one, two, stranger = owners
    door, path = Door(one, two), "/v1/fleet/pull-messages"
    door.says = 200
    answers = [door.ask(path, by=one)[0] for _ in range(int(accounts.REQUESTS) + 5)]
    assert answers.count(429) == 5 and answers[-1] == 429
    assert door.ask(path, by=two)[0] == door.ask(path, by=stranger)[0] == 200
    door.now_s += 1.0
    assert [door.ask(path, by=one)[0] for _ in range(int(accounts.REQUESTS_PER_S) + 1)][-2:] == [200, 429]


def test_limits_let_no_stranger_use_up_what_a_device_may_ask(owners):
    """A flood in a device's name, with another's signature or none, and one of unknown keys: the device is heard."""
    one, _, stranger = owners
    door, path = Door(one), "/v1/fleet/pull-messages"
    door.says = 200
    forged = (
        [(KEY, b64encode(one.pem)), *stranger.heads()],
        [(KEY, b64encode(one.pem))],
        stranger.heads(),
        [(KEY, b"=")],
        [],
    )
    statuses = [door.ask(path, heads=forged[number % len(forged)])[0] for number in range(int(accounts.REQUESTS) + 50)]
    assert statuses.count(200) == accounts.REQUESTS and statuses[-1] == 429
    assert door.ask(path, by=one)[0] == 200, "also when it is heard for the first time"
    assert {door.ask(path, heads=forged[0])[0] for _ in range(int(accounts.REQUESTS))} == {429}
    assert door.ask(path, by=one)[0] == 200
    # Another way to write the same key, and a header that comes twice, of which Flower reads the first, are the key's.
    other = [(KEY, b64encode(one.pem) + b"="), *one.heads(), (KEY, b64encode(stranger.pem))][1:]
    assert door.ask(path, heads=other)[0] == 200
    assert len(door.limits._accounts) == 1


def test_limits_count_bytes_of_a_key_and_take_uploads_of_registered_keys_alone(owners):
    one, stranger = owners[:2]
    door, path = Door(one, most_upload=1 << 20), "/v1/fleet/push-object"
    assert door.ask(path, body=bytes(60_000), by=stranger)[0] == 401
    assert door.ask(path, body=bytes(1 << 17), by=stranger)[0] == 429, "it is not registered"
    door.says = 200
    sent = [door.ask(path, body=bytes(1 << 20), by=one)[0] for _ in range(int(accounts.UPLOADS) + 1)]
    assert sent == [200] * int(accounts.UPLOADS) + [429]
    door.now_s += 60.0
    assert door.ask(path, body=bytes(1 << 20), by=one)[0] == 200


def test_limits_count_requests_that_fail_as_several(owners):
    door, path = Door(owners[0]), "/v1/fleet/get-run"
    door.says = 403
    statuses = [door.ask(path, by=owners[0])[0] for _ in range(100)]
    assert statuses.count(403) == accounts.REQUESTS // (1 + accounts.FAILED) + 1 and statuses[-1] == 429
    heard = 0
    for _ in range(200):
        door.now_s += 0.5
        heard += sum(door.ask(path, by=owners[0])[0] == 403 for _ in range(3))
    assert heard <= 100 * accounts.REQUESTS_PER_S / (1 + accounts.FAILED)


def test_limits_hold_one_large_upload_of_a_key_at_a_time(owners):
    """What has not come whole is in memory: eight uploads that are half sent would be eight times the largest."""
    door, path = Door(owners[0], most_upload=1 << 20), "/v1/fleet/push-object"
    door.says = 200

    async def play():
        half = asyncio.create_task(door.asked(path, 1 << 20, heads=owners[0].heads(), receive=silence))
        await asyncio.sleep(0)
        found = [
            (await door.asked(path, length, bytes(length), owners[0].heads()))[0] for length in (1 << 20, 1 << 10, 0)
        ]
        half.cancel()
        return found

    assert asyncio.run(play()) == [429, 429, 200]


def test_limits_take_no_larger_upload_than_the_server_app_asked_for(owners):
    door, path = Door(owners[0]), "/v1/fleet/push-object"
    door.says = 200
    large = bytes(1 << 20)
    assert door.ask(path, body=large, by=owners[0])[0] == 200, "no server app has said anything"

    def question(text):
        return door.ask(limits.QUESTIONS, heads=[(limits.LARGEST.encode(), text)])[0]

    assert question(b"77=2640") == 200 and door.ask(path, body=large, by=owners[0])[0] == 413
    assert door.ask(path, body=bytes(2640 + limits.MOST_BYTES), by=owners[0])[0] == 200
    assert question(b"88=1048576") == 200 and door.ask(path, body=large, by=owners[0])[0] == 200, "another run"
    assert question(b"88=5") == question(b"99=" + b"9" * 30) == question(b"\xff=x") == 200
    door.says = 401
    assert question(b"99=1048576") == 401, "only server apps set a bound"
    door.says = 200
    assert door.ask(path, body=large, by=owners[0])[0] == 413
    for run in range(100, 200):
        question(b"%d=5" % run)
    assert len(door.limits._largest) == limits.MOST_RUNS


def test_limits_answer_first_whoever_asked_least(owners):
    """All turns are taken; a flood waits, and a device that comes last is answered first."""
    order, gate = [], asyncio.Event()

    async def app(scope, receive, send):
        await gate.wait()
        order.append(scope["who"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["who"] == "slow reader":
            await asyncio.Event().wait()  # an answer that is not read keeps no turn

    async def nothing(_):
        pass

    async def known(_, __):
        return True

    async def play():
        door = Limits(app, Clock(lambda: 0.0), registered=known)

        def request(owner, who):
            heads = [(b"content-length", b"0"), *owner.heads()]
            scope = {"type": "http", "path": "/v1/fleet/pull-messages", "headers": heads, "who": who}
            return asyncio.create_task(door(scope, empty, nothing))

        first = [request(owners[1], "slow reader") for _ in range(accounts.TURNS)]
        await asyncio.sleep(0.01)
        flood = [request(owners[0], f"flood {number}") for number in range(5)]
        flood += [request(owners[1], f"flood {number}") for number in range(5, 8 - accounts.TURNS + 5)]
        await asyncio.sleep(0.01)
        honest = request(owners[2], "honest")
        await asyncio.sleep(0.01)
        gate.set()
        await asyncio.gather(*flood, honest)
        for task in first:
            task.cancel()

    async def empty():
        return {"type": "http.request", "body": b"", "more_body": False}

    asyncio.run(play())
    assert order[: accounts.TURNS] == ["slow reader"] * accounts.TURNS
    # The first one of the flood had asked as little.
    assert order[accounts.TURNS :][:2] == ["flood 0", "honest"] and len(order) == accounts.TURNS + 10


@pytest.mark.parametrize("comes", ["a message", "time", "nobody", "an error", "an old device"])
def test_look_that_can_wait_is_answered_when_there_is_a_message(owners, comes):
    empty, full, sent, asked = pb.message(1, b""), pb.message(2, b"a message"), [], []

    async def app(scope, receive, send):
        await receive()
        if scope["path"] == limits.RECORDS:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            return
        asked.append(scope["state"].setdefault("first", len(asked)))
        status = 500 if comes == "an error" else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": full if comes == "a message" and len(asked) > 1 else empty})

    async def known(_, __):
        return True

    async def play():
        gone, now_s = asyncio.Event(), 0.0
        door = Limits(app, Clock(lambda: now_s), registered=known)

        async def receive():
            if not sent and not asked:
                return {"type": "http.request", "body": b"", "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        async def nothing(_):
            pass

        wait = [] if comes == "an old device" else [(limits.WAIT.encode(), b"9")]
        heads = [(b"content-length", b"0"), *owners[0].heads(), *wait]
        scope = {"type": "http", "path": "/v1/fleet/pull-messages", "headers": heads}
        look = asyncio.create_task(door(scope, receive, send))
        while not asked:
            await asyncio.sleep(0)
        if comes not in ("an error", "an old device"):
            assert not sent, "it waits"
        if comes == "nobody":
            gone.set()
        elif comes in ("time", "a message"):
            now_s += 20.0 if comes == "time" else 1.0
            await door({"type": "http", "path": limits.RECORDS, "headers": []}, instead, nothing)
        await asyncio.wait_for(look, 5.0)

    async def instead():
        return {"type": "http.request", "body": b"", "more_body": False}

    asyncio.run(play())
    assert asked == list(range(len(asked))), "each look of Flower's has a state of its own"
    assert b"".join(part.get("body", b"") for part in sent) == {"a message": full, "nobody": b""}.get(comes, empty)
    assert len(asked) == (2 if comes in ("a message", "time") else 1)


def test_turns_pass_over_whoever_does_not_wait_any_more():
    async def play():
        turns = accounts.Turns(1)
        await turns.take(0.0)
        waiting = [asyncio.create_task(turns.take(float(number))) for number in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        turns.give()
        waiting[1].cancel()  # just as it has its turn
        await asyncio.wait_for(waiting[2], 5.0)
        turns.give()
        await asyncio.wait_for(turns.take(0.0), 5.0)

    asyncio.run(play())


def test_limits_refuse_a_working_time_that_is_none():
    for said in (float("nan"), float("inf"), -1.0, 1e300):
        assert limits.check_message(push(tree(1)) + pb.message(4, pb.DOUBLE.pack(said)))[0] == 400, said
    assert limits.check_message(push(tree(1)) + pb.message(4, 2 * pb.DOUBLE.pack(1.0)))[0] == 400
    assert limits.check_message(push(tree(1)) + pb.message(4, b"1"))[0] == 400
    assert limits.check_message(push(tree(1)) + pb.message(4, pb.DOUBLE.pack(1.0)))[0] == 0


def test_limits_end_a_request_that_takes_too_long_to_arrive(monkeypatch):
    monkeypatch.setattr(limits, "PATIENCE_S", 0.01)
    assert Door().ask("/v1/fleet/pull-messages", 5, receive=silence)[0] == 408


def test_limits_wait_no_longer_for_an_upload_than_flower_does():
    constant = importlib.import_module("flwr.supercore.constant")
    assert limits.LONGEST_S == constant.OBJECT_PUSH_SESSION_TTL_SECONDS


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
