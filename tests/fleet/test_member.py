"""What one admitted member sends to a real SuperLink before anything is judged; an honest device answers next to it."""

import gc
import logging
import threading

import pytest

from kfl_fleet._flower import protobuf as pb
from kfl_fleet._flower.fleet_api import FleetApi, StatusError
from kfl_fleet._flower.objects import reply
from kfl_fleet.messages.frames import pack
from kfl_fleet.server.messaging import Answer
from studies.fleet.attacks import all_attempts, honest_answer_s, honest_device
from studies.fleet.exhaustion import newcomer
from studies.fleet.member import SMALL, Member
from studies.fleet.superlink import superlink

pytestmark = pytest.mark.filterwarnings("ignore")  # of the SuperLink's own libraries
SLOW = {
    *("the record of the server's next question", "3000 looks at once", "20 requests byte by byte"),
    *("the largest upload to each of 8 questions", "5 members flood for 20 s", "20 members flood for 20 s"),
    *("five largest uploads in the honest one's round", "8 largest uploads, half of each sent"),
    *("300 requests that fail", "outsiders flood while a device comes online"),
}


@pytest.fixture(scope="module")
def link(tmp_path_factory):
    logging.disable(logging.CRITICAL)
    with superlink(tmp_path_factory.mktemp("superlink"), members=5) as found:
        yield found
    gc.collect()  # connections that members left open complain here, where such warnings are ignored
    logging.disable(logging.NOTSET)


def test_superlink_takes_nothing_that_a_member_may_not_send_and_an_honest_device_answers(link):
    member = Member(link.address, link.authority, link.keys[0])
    member.activate()
    stored = link.state.num_message_ins()
    with honest_device(link):
        outcomes = {name: attempt() for name, attempt in all_attempts(link, member).items() if name not in SLOW}
        assert {outcome.split(",")[0] for outcome in outcomes.values()} == {"refused", "without effect"}, outcomes
        assert not [name for name, outcome in outcomes.items() if "50" in outcome], "an error inside the SuperLink"
        assert link.state.num_message_ins() <= stored + 2, "questions that the server did not ask"
        assert honest_answer_s(link) is not None
    member.close()


def test_server_can_send_a_record_again_though_a_member_announced_objects_below_it(link):
    member = Member(link.address, link.authority, link.keys[2])
    node = member.activate()

    def ask(values, deadline_s):
        found = {}
        content = {0: (node, pack({"kind": values}, {}))}

        def wait():
            found.update(link.courier().ask(content, "query", values, deadline_s, 1 << 20))

        thread = threading.Thread(target=wait)
        thread.start()
        return thread, found, member.waiting()

    thread, _, first = ask("same", 0.5)
    thread.join()
    holding, _, holder = ask("holder", 3.0)
    answer = reply(holder, SMALL, 0.1)
    record = pb.message(2, pb.text(1, first.records[0]) + pb.message(2, pb.text(1, "e" * 64)))
    member.push_raw(answer.envelope, pb.text(1, pb.words(pb.read(answer.tree), 1)) + record)
    thread, found, again = ask("same", 3.0)
    member.push(again.run, reply(again, SMALL, 0.1), 0.0)
    thread.join()
    holding.join()
    assert isinstance(found[0], Answer)
    member.close()


def test_device_that_waits_has_its_message_with_one_look(link):
    device, found, looks = FleetApi(link.address, link.authority, link.keys[1]), {}, []
    node, call = device.activate(), device._call
    device._call = lambda name, *rest, **more: (looks.append(name), call(name, *rest, **more))[1]
    content = {1: (node, pack({"kind": "round"}, {}))}

    def ask():
        link.grid.get_nodes()  # the look is on its way
        found.update(link.courier().ask(content, "train", "0", 8.0, 1 << 20))

    thread = threading.Timer(0.3, ask)
    thread.start()
    question = device.pull(10)
    assert looks == ["pull-messages"] and question.kind == "train"
    assert device.pull_object(question.run, question.records[0]) is not None, "its records are there"
    device.push(question.run, reply(question, SMALL, 0.1), 0.0)
    thread.join()
    assert isinstance(found[1], Answer)
    device.deactivate()
    device.close()


def test_server_waits_for_an_upload_that_takes_longer_than_a_look(link):
    """A slow radio: the answer is announced, and its records come half a second later."""
    device = FleetApi(link.address, link.authority, link.keys[1])
    node, found = device.activate(), {}
    content = {1: (node, pack({"kind": "round"}, {}))}
    thread = threading.Thread(target=lambda: found.update(link.courier().ask(content, "train", "0", 5.0, 1 << 20)))
    thread.start()
    while (question := device.pull()) is None:
        pass
    whole, waited = reply(question, SMALL, 0.1), threading.Event()
    call = device._call

    def slow(name, body, *rest):
        if name == "push-object":
            waited.wait(0.5)
        return call(name, body, *rest)

    device._call = slow
    device.push(question.run, whole, 0.0)
    thread.join()
    assert isinstance(found[1], Answer), found
    device.close()


def test_registered_device_comes_online_though_strangers_flood(link):
    assert newcomer(link, 3).startswith("online")


def test_superlink_takes_no_larger_upload_than_the_round_asked_for(link):
    """The server app says with its question how much an answer can hold; the SuperLink believes it at once."""
    member = Member(link.address, link.authority, link.keys[4])
    member.activate()
    found, content = {}, {4: (link.nodes[4], pack({"kind": "round"}, {}))}
    thread = threading.Thread(target=lambda: found.update(link.courier().ask(content, "train", "0", 3.0, 1 << 10)))
    thread.start()
    question = member.waiting()
    with pytest.raises(StatusError, match="at most"):
        member.push(question.run, reply(question, (bytes(1 << 18),), 0.1), 0.1)
    thread.join()
    member.deactivate()
    member.close()
