"""Flower's database, made by the Flower that is installed: what is over goes, all else stays."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from kfl_fleet._flower.database import COLUMNS, EVERY_S, LOG_LINES, LOGS, Janitor, prune
from kfl_fleet._flower.names import RecordDict

pytestmark = pytest.mark.filterwarnings("ignore:No path_separator:DeprecationWarning")  # of Flower's own migrations


@pytest.fixture
def database(tmp_path):
    """A SuperLink's database with a message of which not all objects have come."""
    from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
    from flwr.supercore.inflatable.inflatable_object import get_object_tree
    from flwr.supercore.object_store.sql_object_store import SqlObjectStore
    from flwr.superlink.federation import NoOpFederationManager

    path = tmp_path / "superlink.db"
    objects = SqlObjectStore(str(path))
    objects.initialize()
    state = SqlLinkState(str(path), NoOpFederationManager(), objects)
    state.initialize()
    session = state.start_session(7)
    state.preregister_object_tree(get_object_tree(RecordDict()), session)
    return path


def counts(path):
    with closing(sqlite3.connect(path)) as found:
        return [found.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in COLUMNS if table != LOGS]


def test_sessions_that_have_long_been_over_are_deleted_with_all_that_belongs_to_them(database):
    before, now = counts(database), datetime.now(UTC)
    assert min(before) > 0, "Flower keeps its notes elsewhere now"
    assert prune(database, now + timedelta(minutes=3)) == 0
    assert counts(database) == before
    assert prune(database, now + timedelta(minutes=5)) == 1
    assert counts(database) == [0, 0, 0]


def test_a_database_that_is_busy_or_unknown_or_missing_is_left_alone(database, tmp_path):
    later = datetime.now(UTC) + timedelta(days=1)
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert prune(database, later) == 0
        other.execute("ROLLBACK")
        other.execute("ALTER TABLE object_push_sessions ADD COLUMN more INTEGER")
    assert prune(database, later) == 0
    assert min(counts(database)) > 0
    assert prune(tmp_path / "none.db", later) == 0
    assert not (tmp_path / "none.db").exists()
    (tmp_path / "text.db").write_text("not a database")
    assert prune(tmp_path / "text.db", later) == 0


def test_the_newest_lines_of_the_server_app_are_kept(database):
    with closing(sqlite3.connect(database)) as found:
        lines = [(float(n), 1, f"round {n}\n") for n in range(LOG_LINES + 3)]
        found.executemany(f"INSERT INTO {LOGS} (timestamp, task_id, log) VALUES (?, ?, ?)", lines)
        found.commit()
    prune(database, datetime.now(UTC))
    with closing(sqlite3.connect(database)) as found:
        kept = found.execute(f"SELECT log FROM {LOGS} ORDER BY timestamp").fetchall()
    assert [kept[0], kept[-1], len(kept)] == [("round 3\n",), (f"round {LOG_LINES + 2}\n",), LOG_LINES]


def test_a_janitor_looks_now_and_then(database):
    now = [0.0]
    janitor = Janitor(database, clock=lambda: now[0])
    with closing(sqlite3.connect(database)) as found:
        found.execute("UPDATE object_push_sessions SET expires_at = '2020-01-01 00:00:00.000000+00:00'")
        found.commit()
    janitor.tend()
    assert counts(database)[0] == 1
    now[0] = EVERY_S
    janitor.tend()
    assert counts(database) == [0, 0, 0]
