"""Messages to devices and their answers, through Flower's SuperLink with as few requests as there can be.

The SuperLink is one process that answers one request at a time, so requests decide how many devices a server can have.
Flower's own grid sends and asks for every object of a message, the envelope included that came with the announcement;
when one of them is still on its way it waits a second, and for a device that vanished meanwhile three minutes, whatever
the deadline. Here records travel alone, and an answer that is not complete is looked at again the next time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kfl_fleet._flower.limits import LARGEST
from kfl_fleet._flower.objects import MOST_RECORDS, read_entries

if TYPE_CHECKING:
    from kfl_fleet._flower.names import Grid, Message


@dataclass(frozen=True)
class Letter:
    """An answer as it came."""

    to: str
    """The message that it answers."""
    error: tuple[int, str] | None = None
    """Flower's code and the reason, where there is no answer."""
    entries: dict[str, Any] = field(default_factory=dict)
    """What its records hold."""


class Mailbox:
    """Answers to one set of messages.

    Args:
        grid: Flower's.
        most_bytes: what an answer can hold; the SuperLink is notified, so it takes no object that is larger.
    """

    def __init__(self, grid: Grid, most_bytes: int | None = None) -> None:
        self.grid = grid
        if most_bytes is not None and self._client() is not None:
            self._client()._client.headers[LARGEST] = f"{self._own()['run_id']}={most_bytes}"
        self._announced: list[tuple[Any, Any]] = []
        """Answers that have not come completely: their envelope and the tree of their objects."""
        self._done: list[str] = []
        """Messages and answers that no device needs any more."""
        self._unsent: dict[str, Any] = {}
        """Requests for objects that only a SuperNode of Flower's asks for, by the name of the object."""

    def send(self, messages: list[Message]) -> list[str]:
        """Send messages, their records first; the id of each, empty where one was refused."""
        if self._client() is None:
            return list(self.grid.push_messages(messages))
        from flwr.app.message.message import remove_content_from_message
        from flwr.common.serde import message_to_proto
        from flwr.proto.message_pb2 import PushObjectRequest
        from flwr.proto.runtime_pb2 import PushAppMessagesRequest
        from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

        trees, records = [], set()
        objects: dict[str, bytes] = {}
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            trees.append(get_object_tree(message))
            objects |= {name: each.deflate() for name, each in get_all_nested_objects(message).items()}
            records |= {record.object_id for record in message.content.values()}
        envelopes = [message_to_proto(remove_content_from_message(message)) for message in messages]
        found = self._client().PushMessages(PushAppMessagesRequest(messages_list=envelopes, message_object_trees=trees))
        for name in found.objects_to_push:
            content, session = objects[name], found.session_id
            request = PushObjectRequest(object_id=name, object_content=content, session_id=session, **self._own())
            self._unsent[name] = request
        for name in records & self._unsent.keys():
            self._client().PushObject(self._unsent.pop(name))
        return list(found.message_ids)

    def complete(self) -> None:
        """Send the rest of every message: for a SuperNode of Flower's, which asks for it, and for long deadlines, since
        the SuperLink forgets a message that is not complete after three minutes."""
        while self._unsent:
            _, request = self._unsent.popitem()
            self._client().PushObject(request)

    def take(self, messages: Iterable[str], in_time: Callable[[], bool] = lambda: True) -> list[Letter]:
        """The answers to these messages that are here by now, each once; no more of them are opened once time is up."""
        if self._client() is None:
            return [_letter(message) for message in self.grid.pull_messages(messages)]
        from flwr.proto.runtime_pb2 import PullAppMessagesRequest

        # The SuperLink forgets a message whose answer it has announced, and would say of it that it has expired.
        coming = {envelope.metadata.reply_to_message_id for envelope, _ in self._announced}
        if ids := [name for name in messages if name not in coming]:
            found = self._client().PullMessages(PullAppMessagesRequest(message_ids=ids))
            self._announced += zip(found.messages_list, found.message_object_trees, strict=True)
        letters, waiting = [], []
        for envelope, tree in self._announced:
            try:
                letter = self._open(envelope, tree, in_time) if in_time() else None
            except ValueError:  # not what its name says; whose answer it is, is known all the same
                letter = Letter(envelope.metadata.reply_to_message_id)
            except Exception:  # httpx, and what Flower makes of its errors: one answer must not keep the others
                letter = None
            if letter is None:
                waiting.append((envelope, tree))
            else:
                letters.append(letter)
        self._announced = waiting
        return letters

    def _open(self, envelope: Any, tree: Any, in_time: Callable[[], bool]) -> Letter | None:
        """A whole answer; None while a part of it is on its way, or where time is up."""
        from flwr.proto.message_pb2 import PullObjectRequest

        metadata = envelope.metadata
        entries: dict[str, Any] = {}
        if not envelope.HasField("error"):
            records = tree.children[0].children if tree.children else ()
            if len(records) > MOST_RECORDS:  # before anything is pulled; the SuperLink refuses it as well (`limits`)
                raise ValueError("it has more records than a reply may have")
            for record in records:
                if not in_time():  # the last record may have been a large one
                    return None
                found = self._client().PullObject(PullObjectRequest(object_id=record.object_id, **self._own()))
                if not found.object_available:
                    return None
                entries |= read_entries(record.object_id, found.object_content)
        self._done += metadata.message_id, metadata.reply_to_message_id
        if envelope.HasField("error"):
            return Letter(metadata.reply_to_message_id, (envelope.error.code, envelope.error.reason))
        return Letter(metadata.reply_to_message_id, None, entries)

    def tidy(self, messages: Iterable[str] = ()) -> None:
        """Have the SuperLink delete what is done, and these messages, which no device waits for any more.

        Devices leave that to the server: it is a request that need not go over the air, and no answer waits for it.
        """
        if self._client() is None:
            return
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest

        self._done += messages
        self._done += [envelope.metadata.message_id for envelope, _ in self._announced]  # they never came whole
        while self._done:
            name = self._done.pop()
            self._client().ConfirmMessageReceived(ConfirmMessageReceivedRequest(message_object_id=name, **self._own()))

    def _client(self) -> Any:
        """Flower's client of the SuperLink's Runtime API; None of a grid that has none."""
        return getattr(self.grid, "_runtime_client", None)

    def _own(self) -> dict[str, Any]:
        """What every request says about the server app: HttpGrid's node and run."""
        grid: Any = self.grid
        return {"node": grid.node, "run_id": grid.run.run_id}


def _letter(message: Message) -> Letter:
    """An answer that a grid has put together."""
    to = message.metadata.reply_to_message_id
    if message.has_error():
        return Letter(to, (message.error.code, message.error.reason or ""))
    entries: dict[str, Any] = {}
    for record in message.content.config_records.values():
        entries |= dict(record)
    return Letter(to, None, entries)
