"""Large transactions, which the server streams while open: visible at commit, or never."""

from __future__ import annotations

import os
import signal

import psycopg
import pytest
from psycopg.rows import dict_row

from tests.compared import differs
from tests.faults.helpers import WORKER
from tests.waiting import wait_until

TABLES = """
CREATE TABLE items (id int PRIMARY KEY, g int NOT NULL, x numeric NOT NULL);
INSERT INTO items SELECT i, i % 5, i FROM generate_series(1, 50) i;
"""
QUERY = "SELECT g, count(*) AS n, sum(x) AS total, max(id) AS last FROM items GROUP BY g"
ROWS = "INSERT INTO items SELECT %s + i, i %% 7, i * 0.5 FROM generate_series(1, %s) i"
MANY = 6_000
"""Number of rows that take a megabyte on the server."""


@pytest.fixture
def source(database):
    """Fill the database, and keep its server from holding open transactions in memory."""
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(f"ALTER DATABASE {conn.info.dbname} SET logical_decoding_work_mem = '64kB'")
        conn.execute(TABLES)
        yield conn


@pytest.fixture
def commander(start_engine, database, source):
    engine = start_engine(database, HEADRACE_SPOOL_BYTES_MIN="100000")
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        conn.engine = engine
        conn.execute("CALL headrace.create_view('v', %s)", (QUERY,))
        yield conn


def kept(conn) -> tuple[int, int]:
    """Return the bytes of open transactions in memory, and of changes on disk."""
    with conn.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute("SELECT * FROM headrace.memory()").fetchall()
    found = {row["part"]: row["bytes"] for row in rows}
    return found["changes not committed"], found["changes on disk"]


def check(commander, source) -> None:
    commander.execute("CALL headrace.wait_for('v', timeout => '90 s')")
    assert differs(source, "v", QUERY) == []


def test_they_are_seen_when_they_end(commander, source, database):
    with psycopg.connect(database) as large, psycopg.connect(database) as other:
        large.execute(ROWS, (1000, MANY))
        wait_until(lambda: kept(commander)[1] > 100_000, "it comes while it is open")
        other.execute(ROWS, (500_000, MANY))
        # Other transactions are not delayed, and do not show its rows.
        source.execute("UPDATE items SET x = x + 1 WHERE id <= 10")
        check(commander, source)
        large.execute("SAVEPOINT s")
        large.execute("DELETE FROM items WHERE id > 2000")
        large.execute("ROLLBACK TO s")
        large.execute("UPDATE items SET g = 9 WHERE id BETWEEN 1000 AND 3000")
        other.execute("SAVEPOINT s")
        other.execute(ROWS, (700_000, MANY))
        other.execute("RELEASE s")
        other.execute("INSERT INTO items VALUES (0, 5, 5)")
        large.commit()
        check(commander, source)
        wait_until(lambda: sum(kept(commander)) > 100_000, "the other is still open")
        other.rollback()
    check(commander, source)
    wait_until(lambda: kept(commander) == (0, 0), "nothing is kept of it")
    assert source.execute("SELECT count(*) FROM items").fetchone() == (50 + MANY,)


def test_a_worker_that_dies_meanwhile_hears_them_again(commander, source, database):
    with psycopg.connect(database) as large:
        large.execute(ROWS, (1000, MANY))
        wait_until(lambda: kept(commander)[1] > 100_000, "it comes while it is open")
        for _ in range(2):
            pid = commander.engine.child(WORKER)
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: commander.engine.child(WORKER) not in (None, pid), "another")  # noqa: B023
            source.execute("UPDATE items SET x = x + 1 WHERE id <= 10")
            check(commander, source)
        large.execute("DELETE FROM items WHERE id BETWEEN 5000 AND 6000")
        large.commit()
    check(commander, source)


@pytest.mark.slow
def test_a_table_is_altered_beside_and_within(commander, source, database):
    """Each such transaction describes its tables again, also if a part is rolled back."""
    with psycopg.connect(database) as large:
        large.execute("SAVEPOINT s")
        large.execute("CREATE TABLE noise (a int)")
        large.execute(ROWS, (1000, MANY))
        large.execute("ROLLBACK TO s")
        large.execute(ROWS, (1000, MANY))
        large.commit()
    check(commander, source)
    source.execute("ALTER TABLE items ADD COLUMN more text DEFAULT 'x'")
    with psycopg.connect(database) as large:
        large.execute(ROWS, (100_000, MANY))
        large.commit()
    with psycopg.connect(database) as large:
        large.execute("TRUNCATE items")
        large.execute(ROWS, (0, MANY))
        large.execute("ALTER TABLE items DROP COLUMN more")
        large.execute(ROWS, (200_000, MANY))
        large.commit()
    check(commander, source)
