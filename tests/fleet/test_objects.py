"""A device's own reading and writing of Flower's messages, held against Flower's own classes."""

import json
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from kfl_fleet._flower import protobuf as pb
from kfl_fleet._flower.mailbox import Mailbox
from kfl_fleet._flower.names import ConfigRecord, Error, Message, RecordDict
from kfl_fleet._flower.objects import error_reply, read_entries, read_message, reply
from kfl_fleet._flower.records import from_record, to_record
from kfl_fleet.messages.protocol import from_entries

# After kfl_fleet._flower.names, which keeps the warnings of Flower's parts away.
from flwr.app.metadata import Metadata  # isort: skip
from flwr.app.message.message import make_message  # isort: skip
from flwr.common.serde import message_to_proto  # isort: skip
from flwr.proto import fleet_pb2, message_pb2, node_pb2, recorddict_pb2, runtime_pb2  # isort: skip
from flwr.supercore.inflatable.inflatable_object import get_object_tree  # isort: skip

uint64 = st.integers(0, 2**64 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
seconds = st.floats(0, 2e9, allow_nan=False)


@given(uint64, texts, st.floats(allow_nan=False), st.integers(-(2**63), 2**63 - 1), st.binary(max_size=300))
@settings(max_examples=200)
def test_numbers_texts_and_bytes_are_written_as_google_writes_them(number, text, real, signed, data):
    ours = pb.uint(1, number) + pb.text(2, text) + pb.double(7, real)
    theirs = message_pb2.Metadata(run_id=number, message_id=text, ttl=real)
    if real != 0:  # Google sends a negative zero, which kfl does not
        assert ours == theirs.SerializeToString(deterministic=True)
    assert pb.sint(2, signed) == recorddict_pb2.ConfigRecordValue(sint64=signed).SerializeToString()
    assert pb.message(6, data) == recorddict_pb2.ConfigRecordValue(bytes=data).SerializeToString()
    fields = pb.read(theirs.SerializeToString())
    assert (pb.whole(fields, 1), pb.words(fields, 2), pb.real(fields, 7)) == (number, text, real)
    assert pb.signed(pb.whole(pb.read(pb.sint(2, signed)), 2)) == signed


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_any_bytes_are_fields_or_a_value_error(data):
    try:
        found = pb.read(data)
    except ValueError:
        return
    assert all(number >= 0 for number in found)


def asked(record, **changes):
    """A question as Flower's server announces it."""
    facts = {
        "run_id": 7,
        "message_id": "",
        "src_node_id": 1,
        "dst_node_id": 2**64 - 1,
        "reply_to_message_id": "",
        "group_id": "12",
        "created_at": 1.8e9,
        "ttl": 30.5,
        "message_type": "train",
        "src_task_id": 9,
        "dst_task_id": None,
        **changes,
    }
    message = make_message(metadata=Metadata(**facts), content=record)
    message.metadata.__dict__["_message_id"] = message.object_id
    return message


def announced(message):
    """Its two parts in the answer to a look for messages."""
    answer = fleet_pb2.PullMessagesResponse(
        messages_list=[message_to_proto(message)], message_object_trees=[get_object_tree(message)]
    )
    fields = pb.read(answer.SerializeToString())
    return pb.blobs(fields, 2)[0], pb.blobs(fields, 3)[0]


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=2, unique=True), uint64, texts, seconds)
@settings(max_examples=100)
def test_a_question_is_read_as_flower_wrote_it(parts, run, group, ttl):
    message = asked(to_record(tuple(parts)), run_id=run, group_id=group, ttl=ttl)
    found = read_message(*announced(message))
    assert (found.run, found.id, found.group) == (run, message.object_id, group)
    assert (found.source, found.node, found.kind, found.source_task) == (1, 2**64 - 1, "train", 9)
    assert (found.created_at, found.ttl_s) == (1.8e9, ttl)
    assert set(found.records) == {record.object_id for record in message.content.values()}
    entries = {}
    for record in message.content.values():
        entries |= read_entries(record.object_id, record.deflate())
    assert from_entries(entries) == tuple(parts)


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=2, unique=True), st.floats(0, 10))
@settings(max_examples=100)
def test_a_reply_has_the_names_that_flower_gives_it(parts, after_s):
    question = asked(RecordDict())
    ours = reply(read_message(*announced(question)), tuple(parts), after_s)
    envelope = message_pb2.Message.FromString(ours.envelope)
    tree = message_pb2.ObjectTree.FromString(ours.tree)
    theirs = Message(to_record(tuple(parts)), reply_to=question)
    assert envelope.HasField("content") and not envelope.HasField("error")
    assert (envelope.metadata.created_at, envelope.metadata.ttl) == (1.8e9 + after_s, 30.5 - after_s)
    theirs.metadata.__dict__["_created_at"] = 1.8e9 + after_s
    theirs.metadata.ttl = 30.5 - after_s
    assert tree == get_object_tree(theirs)
    assert envelope.metadata.message_id == theirs.object_id == tree.object_id
    assert envelope.metadata.reply_to_message_id == question.object_id
    assert ours.records == {record.object_id: record.deflate() for record in theirs.content.values()}
    inflated = RecordDict({str(n): ConfigRecord.inflate(c) for n, c in enumerate(ours.records.values())})
    assert from_record(RecordDict(dict(zip(("kfl", "arrays"), inflated.values(), strict=False)))) == tuple(parts)


@given(st.integers(1, 8), texts)
@settings(max_examples=50)
def test_an_error_has_the_name_that_flower_gives_it(code, reason):
    question = asked(RecordDict())
    ours = error_reply(read_message(*announced(question)), code, reason, 1.0)
    envelope = message_pb2.Message.FromString(ours.envelope)
    theirs = Message(Error(code, reason), reply_to=question)
    theirs.metadata.__dict__["_created_at"], theirs.metadata.ttl = 1.8e9 + 1.0, 29.5
    assert envelope.error.code == code and envelope.error.reason == reason
    assert envelope.metadata.message_id == theirs.object_id
    assert message_pb2.ObjectTree.FromString(ours.tree) == get_object_tree(theirs)
    assert ours.records == {}


def test_an_object_that_is_not_what_its_name_says_is_not_read():
    record = ConfigRecord({"protocol": 2, "frame": b"x"})
    content = record.deflate()
    assert json.dumps(sorted(read_entries(record.object_id, content))) == '["frame", "protocol"]'
    try:
        read_entries(record.object_id, content + b" ")
    except ValueError as problem:
        assert "not what its name says" in str(problem)
    else:
        raise AssertionError("it was read")


class Store:
    """Flower's Runtime API as far as answers need it: what is announced, what has come, what was deleted."""

    def __init__(self, *answers):
        self.announced = [
            (message_pb2.Message.FromString(a.envelope), message_pb2.ObjectTree.FromString(a.tree)) for a in answers
        ]
        self.objects, self.deleted = {}, []

    def PullMessages(self, request):  # noqa: N802  # Flower's name
        found, self.announced = self.announced, []
        return runtime_pb2.PullAppMessagesResponse(
            messages_list=[envelope for envelope, _ in found], message_object_trees=[tree for _, tree in found]
        )

    def PullObject(self, request):  # noqa: N802
        content = self.objects.get(request.object_id, b"")
        return message_pb2.PullObjectResponse(object_found=True, object_available=bool(content), object_content=content)

    def ConfirmMessageReceived(self, request):  # noqa: N802
        self.deleted.append(request.message_object_id)
        return message_pb2.ConfirmMessageReceivedResponse()


def test_one_answer_that_is_late_or_false_does_not_keep_the_others():
    questions = [asked(RecordDict(), group_id=str(number)) for number in range(4)]
    letters = [reply(read_message(*announced(q)), (b"frame %d" % n,), 1.0) for n, q in enumerate(questions[:3])]
    store = Store(*letters, error_reply(read_message(*announced(questions[3])), 8, "worker_died: of old age", 1.0))
    (honest,), (false,), (late,) = (each.records for each in letters)
    store.objects = {honest: letters[0].records[honest], false: b"something else"}
    grid = SimpleNamespace(_runtime_client=store, node=node_pb2.Node(node_id=1), run=SimpleNamespace(run_id=7))
    mailbox = Mailbox(grid)
    ids = [question.object_id for question in questions]
    found = {letter.to: letter for letter in mailbox.take(ids)}
    assert from_entries(found[ids[0]].entries) == (b"frame 0",)
    assert found[ids[1]].entries == {} and found[ids[1]].error is None
    assert found[ids[3]].error == (8, "worker_died: of old age")
    assert ids[2] not in found
    store.objects[late] = letters[2].records[late]
    (last,) = mailbox.take(ids)
    assert from_entries(last.entries) == (b"frame 2",)
    mailbox.tidy([ids[1]])
    assert set(ids) <= set(store.deleted)


def test_mailbox_pulls_nothing_of_an_answer_with_more_records_than_a_reply_has():
    question = asked(RecordDict(), group_id="0")
    letter = reply(read_message(*announced(question)), (b"frame",), 1.0)
    store, pulled = Store(letter), []
    pull = store.PullObject
    store.PullObject = lambda request: (pulled.append(request.object_id), pull(request))[1]
    store.objects = dict(letter.records)
    records = store.announced[0][1].children[0].children
    for number in range(1000):
        records.add(object_id=f"{number:064x}")
    mailbox = Mailbox(
        SimpleNamespace(_runtime_client=store, node=node_pb2.Node(node_id=1), run=SimpleNamespace(run_id=7))
    )
    (found,) = mailbox.take([question.object_id])
    assert found.to == question.object_id and found.entries == {} and not pulled


def test_mailbox_pulls_no_second_record_once_time_is_up():
    question = asked(RecordDict(), group_id="0")
    letter = reply(read_message(*announced(question)), (b"table", b"arrays"), 1.0)
    store, pulled = Store(letter), []
    pull = store.PullObject
    store.PullObject = lambda request: (pulled.append(request.object_id), pull(request))[1]
    store.objects = dict(letter.records)
    mailbox = Mailbox(
        SimpleNamespace(_runtime_client=store, node=node_pb2.Node(node_id=1), run=SimpleNamespace(run_id=7))
    )
    assert mailbox.take([question.object_id], lambda: not pulled) == [] and len(pulled) == 1
    assert [letter.to for letter in mailbox.take([question.object_id])] == [question.object_id]
