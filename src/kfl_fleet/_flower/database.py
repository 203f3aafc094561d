"""Keeps the database of Flower's SuperLink from growing with every message of a run.

For the objects of every message and answer, Flower 1.41 notes a session of three minutes, and deletes the note once all
of them have come. kfl sends only objects that are read (`mailbox`), so the notes stay until the run ends:
11 kB per round of five devices. A session that is over accepts no object any more, so that no device needs its note;
Flower has no option that deletes it. It also keeps every line that the server app prints, for `flwr log`; of these the
newest stay. Room in the file that becomes free is used again.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

DATABASE = "superlink.db"
"""Its name, in the folder of a fleet."""
EVERY_S = 60.0
SPARE = timedelta(minutes=1)
"""A session is kept for so long after it is over: nothing is urgent, and a clock may be set by seconds."""
BUSY_S = 1.0
"""How long to wait while the SuperLink writes; then another time will do."""
LOG_LINES = 10_000
"""So many lines of the server app are kept, about a megabyte: at least a line a round."""
SESSIONS, LOGS = "object_push_sessions", "task_logs"
COLUMNS = {
    SESSIONS: {"session_id", "run_id", "expires_at", "pending_count"},
    "object_push_session_pending": {"session_id", "object_id"},
    "object_push_session_roots": {"session_id", "root_object_id"},
    LOGS: {"timestamp", "task_id", "log"},
}
"""The tables as this module knows them. In a database where one is different nothing is touched."""


class Janitor:
    """Looks after one database, now and then."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path, self._clock = path, clock
        self._last_s = clock()

    def tend(self) -> None:
        """Prune the database if the last time is a while ago."""
        if self._clock() - self._last_s >= EVERY_S:
            self._last_s = self._clock()
            prune(self.path, datetime.now(UTC))


def prune(path: Path, now: datetime) -> int:
    """Delete the sessions of a database that have long been over, and old log lines; how many sessions.

    What cannot be written stays as it is.
    """
    before = (now - SPARE).isoformat(" ")
    if not path.is_file():
        return 0
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)) as database:
            if any(_columns(database, table) != columns for table, columns in COLUMNS.items()):
                return 0
            over = f"SELECT session_id FROM {SESSIONS} WHERE expires_at < ?"
            database.execute("BEGIN IMMEDIATE")
            database.execute(f"DELETE FROM {LOGS} WHERE rowid <= (SELECT max(rowid) FROM {LOGS}) - ?", (LOG_LINES,))
            for table in reversed([table for table in COLUMNS if table != LOGS]):
                deleted = database.execute(f"DELETE FROM {table} WHERE session_id IN ({over})", (before,))
            database.execute("COMMIT")
            return deleted.rowcount
    except (sqlite3.Error, OSError):  # busy, full, read-only or not a database: the next time, or never
        return 0


def _columns(database: sqlite3.Connection, table: str) -> set[str]:
    return {str(row[1]) for row in database.execute(f"PRAGMA table_info({table})")}
