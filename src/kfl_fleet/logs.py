"""What the processes of a fleet say: sentences for people, or one JSON object per line for programs.

Everything goes through `note`: an event's code, its sentence, and what it is about as fields. As text (the default)
only the sentence is seen; as JSON each line is

    {"time": "2026-11-18T00:47:02.123Z", "level": "info", "event": "round_done", "text": "…", "round": 3, …}

The server takes the format from `[fleet] log_format`, a device from the environment variable KFL_LOG_FORMAT. Fields are
numbers and scrubbed texts: nothing that is a secret is ever handed to `note`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Literal, get_args

from kfl.core.errors import ConfigError
from kfl.core.names import for_terminal
from kfl.core.text import scrub

LogFormat = Literal["text", "json"]
FORMATS: tuple[str, ...] = get_args(LogFormat)
VARIABLE = "KFL_LOG_FORMAT"
"""Where a device's process finds its format."""
LONGEST_TEXT = 2000
LARGEST_FILE = 10_000_000
CHATTY = ("httpx", "httpcore", "urllib3")
"""Libraries that report every request; a fleet makes one each time it looks for answers."""
SERVER_LOG = "server.log"
"""What the server said, in its run folder."""
OWN = ("time", "level", "event", "text")
"""Keys of every line, which no field may take."""

EVENTS = {
    "claim_cut": "A device claims more than is believed; it counts with less. Once per device and field.",
    "weight_capped": "An upload weighs less in an average than its samples say. Once per device.",
    "run_submitted": "`kfl deploy run` handed the run to the SuperLink",
    "run_begins": "Enough devices are online for the first round: `devices`",
    "run_continues": "A server that was restarted takes up the run: `round`",
    "run_finished": "The last round is done",
    "round_done": "A round ended: `round`, `rounds`, `status`, `chosen`, `used`, `accuracy`, `energy_j`, `seconds`",
    "round_seen": "`kfl deploy run` found this round in the history: `round`, `rounds`",
    "round_waits": "Too few devices are online for the next round: `round`, `devices`",
    "device_joined": "A device said what it has: `device`, `node`, `samples`",
    "device_gone": "A device that was there is not online any more: `device`",
    "device_back": "It is online again: `device`",
    "device_incident": "Something went wrong with a device in a round: `round`, `device`, `code`",
    "node_refused": "A node with a valid key cannot join: `node`, `code`",
    "device_ended": "A device's process on this machine has ended and is started again: `device`",
    "not_started": "A program of a fleet on this machine could not be started again; it is tried once more",
    "superlink_unreachable": "The server app or `kfl deploy run` cannot reach the SuperLink, and retries",
    "metrics_unavailable": "The port for Prometheus cannot be opened: `port`",
    "privacy_unknown": "Uploads have noise, but the package that accounts for it is missing",
    "key_exposed": "A private key or secret of this process can be read by other users of the machine: `device`",
    "online": "A device is connected: `device`, `node`",
    "knocking": "The server does not admit a device yet: `device`",
    "answered": "A device answered a message: `device`, `seconds`",
    "ended": "A device was stopped",
    "server_away": "A device cannot reach the server, and retries: `device`",
    "clock_off": "A device's clock is wrong, so it signs with the server's time: `device`",
    "message_dropped": "No device waits for the answer to a message any more: `device`",
    "worker_died": "A device's worker died while idle, and a fresh one was started: `device`",
    "worker_failed": "A device's worker could not answer a message: `device`, `code`",
    "app_failed": "A device cannot use the app that the server sent: `device`",
    "device_failed": "The device function or the training raised: `error`, `trace`",
    "log": "A line of Flower or of another library: `logger`",
}
"""Every event that a fleet's processes log, and the fields it has besides time, level, event and text."""

log = logging.getLogger("kfl")


def note(
    event: str, sentence: str, *, level: int = logging.INFO, error: BaseException | None = None, **fields: Any
) -> None:
    """Log one event. `fields` say what it is about: round (from 1), device, node, seconds …; `error` adds its trace."""
    log.log(level, "%s", sentence, exc_info=error, extra={"kfl_event": event, "kfl_fields": fields})


def warn(event: str, sentence: str, **fields: Any) -> None:
    """Log something that an operator may have to look at."""
    note(event, sentence, level=logging.WARNING, **fields)


class TextLines(logging.Formatter):
    """The sentence as one line, and a trace's lines below it; names in them are only shown."""

    def format(self, record: logging.LogRecord) -> str:
        """The lines, without the last one's end."""
        record.message = for_terminal(record.getMessage(), LONGEST_TEXT)
        record.asctime = self.formatTime(record, self.datefmt)
        trace = "".join(traceback.format_exception(record.exc_info[1])) if record.exc_info else ""
        return "\n".join([self.formatMessage(record), *map(for_terminal, trace.splitlines())])


class JsonLines(logging.Formatter):
    """One JSON object per record, whatever is in it; records of other libraries have the event "log"."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        values: dict[str, Any] = {
            "time": iso(record.created),
            "level": record.levelname.lower(),
            "event": getattr(record, "kfl_event", "log"),
            "text": scrub(record.getMessage(), LONGEST_TEXT, hide_paths=False),
        }
        fields: Mapping[str, Any] = getattr(record, "kfl_fields", None) or {"logger": record.name}
        values |= {name: value for name, value in fields.items() if name not in OWN and value is not None}
        if record.exc_info and record.exc_info[1] is not None:
            values["error"] = type(record.exc_info[1]).__name__
            values["trace"] = "".join(traceback.format_exception(record.exc_info[1]))
        return json.dumps({name: _plain(value) for name, value in values.items()}, default=str)


def _plain(value: Any) -> Any:
    """What JSON can hold: no NaN, no infinity. Written here because a device's small process has no NumPy."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def start_logging(
    log_format: str, prefix: str = "kfl: ", stream: IO[str] | None = None, level: int = logging.INFO
) -> None:
    """Send all that this process logs to `stream` (standard error) in one format.

    Flower's own lines keep their own look next to the text; as JSON they come as lines of the same kind.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines(f"{prefix}%(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    if log_format == "json":
        flower = logging.getLogger("flwr")
        flower.handlers.clear()
        flower.propagate = True


@contextmanager
def logging_as(log_format: str, prefix: str = "", stream: IO[str] | None = None) -> Iterator[None]:
    """`start_logging` for the length of a block, for a command that is a part of a larger program."""
    root, flower = logging.getLogger(), logging.getLogger("flwr")
    before = list(root.handlers), root.level, list(flower.handlers), flower.propagate
    start_logging(log_format, prefix, stream)
    try:
        yield
    finally:
        root.handlers[:], level, flower.handlers[:], flower.propagate = before
        root.setLevel(level)


@contextmanager
def logging_into(path: Path, log_format: str) -> Iterator[None]:
    """While the block runs, what kfl logs is also appended to a file, which is rotated before it fills the disk.

    Flower throws away what a server app prints (`flwr log` has a copy), so the server keeps its own log in its run
    folder, and `kfl deploy run` passes it on to the journal or the container's log.
    """
    from logging.handlers import RotatingFileHandler

    handler = RotatingFileHandler(path, maxBytes=LARGEST_FILE, backupCount=2, encoding="utf-8", delay=True)
    text = TextLines("%(asctime)sZ %(message)s", "%Y-%m-%dT%H:%M:%S")
    text.converter = time.gmtime
    handler.setFormatter(JsonLines() if log_format == "json" else text)
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        handler.close()


@contextmanager
def following(path: Path, stream: IO[str], look_s: float = 0.5) -> Iterator[None]:
    """While the block runs, and once more at its end, lines that are added to a file are passed on to a stream."""
    done = threading.Event()
    source = _Tail(path)

    def pass_on() -> None:
        while not done.wait(look_s):
            source.copy(stream)

    thread = threading.Thread(target=pass_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        source.copy(stream)


class _Tail:
    """A file that another process adds whole lines to, and now and then replaces by a new one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file, self.read = self._look()

    def copy(self, stream: IO[str]) -> None:
        """Write what is new."""
        file, size = self._look()
        if file != self.file or size < self.read:
            self.file, self.read = file, 0
        if size > self.read:
            with contextlib.suppress(OSError), self.path.open("rb") as source:
                source.seek(self.read)
                new = source.read(size - self.read)
                whole = new[: new.rfind(b"\n") + 1]
                self.read += len(whole)
                stream.write(whole.decode(errors="replace"))
                stream.flush()

    def _look(self) -> tuple[int, int]:
        try:
            found = self.path.stat()
        except OSError:
            return 0, 0
        return found.st_ino, found.st_size


def format_from_environment(environment: Mapping[str, str] = os.environ) -> str:
    """The format that KFL_LOG_FORMAT asks for.

    >>> format_from_environment({}), format_from_environment({"KFL_LOG_FORMAT": "json"})
    ('text', 'json')
    """
    found = environment.get(VARIABLE) or FORMATS[0]
    if found not in FORMATS:
        raise ConfigError(VARIABLE, found, f"one of {', '.join(FORMATS)}", choices=FORMATS)
    return found


def iso(seconds: float) -> str:
    """A time as UTC in ISO 8601, to the millisecond.

    >>> iso(0.0)
    '1970-01-01T00:00:00.000Z'
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


__all__ = [
    "EVENTS",
    "FORMATS",
    "SERVER_LOG",
    "VARIABLE",
    "LogFormat",
    "following",
    "format_from_environment",
    "iso",
    "logging_as",
    "logging_into",
    "note",
    "start_logging",
    "warn",
]
