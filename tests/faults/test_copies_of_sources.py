"""A source that was restored: no view misses what the restored server has at passed positions."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.embedded.binaries import account
from headrace.embedded.engine import EmbeddedEngine
from headrace.embedded.postgres import EmbeddedPostgres
from tests.faults import copies
from tests.faults.test_copies import CHANGES
from tests.waiting import time_passes, wait_until

DATABASE = "away"
REPLIES_S = 2.5
"""Seconds in which a replicator tells its source several times what it has."""
QUERIES = {
    "sums": "SELECT n % 7 AS g, count(*) AS n, sum(n) AS total FROM {}t GROUP BY n % 7",
    "largest": "SELECT max(x) AS most, count(*) AS n FROM {}u",
}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the server's user can enter, for data directories."""
    made = Path(tempfile.mkdtemp(prefix="headrace-sources-"))
    account().take(made)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def away() -> Iterator[EmbeddedPostgres]:
    """The server of the source."""
    with EmbeddedPostgres(None, 18, durable=False) as made:
        with copies.connect(copies.new_database(made, DATABASE)) as conn:
            conn.execute(copies.TABLES)
        yield made


def position(dsn: str) -> str:
    with copies.connect(dsn) as conn:
        return conn.execute("SELECT position FROM headrace.origins").fetchone()[0]


def state(dsn: str) -> tuple[str, str | None]:
    with copies.connect(dsn) as conn:
        return conn.execute("SELECT state, problem FROM headrace.origins").fetchone()


def differences(here: str, there: str) -> list[object]:
    """Return what the views show and the source's tables do not give, or the other way round."""
    with copies.connect(here) as one, copies.connect(there) as two:
        return [
            (name, shown, wanted)
            for name, query in QUERIES.items()
            if (shown := sorted(one.execute(f"TABLE {name}").fetchall()))
            != (wanted := sorted(two.execute(query.format("")).fetchall()))
        ]


def moved(engine: EmbeddedEngine, there: str) -> None:
    """Write what nobody reads, and make the replicator pass it."""
    with copies.connect(there) as conn:
        conn.execute("INSERT INTO unread SELECT repeat('x', 1000) FROM generate_series(1, 1000)")
    with copies.connect(engine.dsn) as commander:
        commander.execute("CALL headrace.wait_for('sums')")


@pytest.mark.parametrize(
    "change",
    [*(c for c in CHANGES if c != "written"), pytest.param("written", marks=pytest.mark.slow)],
)
def test_the_source_becomes_a_snapshot_of_itself(database, start_engine, away, folder, change):
    there = away.dsn(DATABASE)
    engine = start_engine(database)
    with copies.connect(engine.dsn) as commander:
        commander.execute("CALL headrace.add_source('eu', %s, 't, u')", (there,))
        for name, query in QUERIES.items():
            commander.execute("CALL headrace.create_view(%s, %s)", (name, query.format("eu.")))
    with copies.connect(there) as conn:
        conn.execute("UPDATE t SET n = n + 1 WHERE id < 10")
    wait_until(lambda: differences(database, there) == [], "the views are there")
    clone = copies.copy_files(away, folder / "clone")
    moved(engine, there)
    with copies.connect(there) as conn:
        conn.execute(CHANGES[change])
    moved(engine, there)
    wait_until(lambda: differences(database, there) == [], "the views follow")
    engine.stop()
    away.stop()
    before = position(database)
    with clone:
        restored = clone.dsn(DATABASE)
        with copies.connect(database) as conn:
            conn.execute("UPDATE headrace.origins SET dsn = %s", (restored,))
        # It says nothing wrong to a server that has not written as much as the original had.
        engine.start()
        wait_until(lambda: state(database)[0] != "starting", "it is connected")
        time_passes(REPLIES_S)
        engine.stop()
        with copies.connect(restored) as conn:
            conn.execute("INSERT INTO t (n) SELECT 9 FROM generate_series(1, 10)")
            end = conn.execute("SELECT pg_current_wal_insert_lsn()").fetchone()[0]
            assert conn.execute("SELECT %s::pg_lsn < %s", (end, before)).fetchone()[0]
            conn.execute(
                "INSERT INTO unread SELECT repeat('x', 1000) FROM generate_series(1, 5000)"
            )
        for _ in range(2):
            engine.start()
            if change == "idle":
                with copies.connect(restored) as conn:
                    conn.execute("INSERT INTO t (n) VALUES (77)")
                wait_until(lambda: differences(database, restored) == [], "they follow the copy")
                assert state(database) == ("running", None)
            else:
                wait_until(lambda: state(database)[0] == "lost", lambda: state(database))
                assert "it was restored" in state(database)[1]
            engine.stop()
