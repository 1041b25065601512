"""A view whose missing changes take longer than a population is computed anew.

A function waits for values that only the missing changes have, until the test lets it go on: so
these take longer than the table's rows, on any machine.  The rows are so long that each change is a
coalesced batch of its own.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import psycopg
import pytest

from headrace.process import faults
from tests.faults.helpers import arm
from tests.waiting import time_passes, wait_until

CHANGES = 40
TABLES = """
CREATE TABLE t (id int PRIMARY KEY, v int, pad text) WITH (autovacuum_enabled = false);
ALTER TABLE t ALTER pad SET STORAGE PLAIN;
INSERT INTO t SELECT i, 1000 * i, (SELECT string_agg(md5(format('%s %s', i, j)), '') FROM generate_series(1, 230) j)
  FROM generate_series(1, 600) i;
CREATE TABLE other (id int PRIMARY KEY);
CREATE FUNCTION slow(v int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
    IF v % 2 = 1 THEN PERFORM pg_advisory_xact_lock_shared(7, v % 1000); END IF;
    RETURN v % 7;
END $$;
"""
LATE = "late"
VIEWS = {
    LATE: "SELECT slow(v) AS s, count(*) AS n, sum(v) AS v FROM t GROUP BY 1",
    "probe": "SELECT id FROM other",
}


def rows(conn: psycopg.Connection, query: str) -> list:
    return sorted(conn.execute(query).fetchall())


def said(conn: psycopg.Connection) -> str:
    (found,) = conn.execute(
        "SELECT coalesce(message, '') FROM headrace.list_views() WHERE name = 'public.late'"
    ).fetchone()
    return str(found)


def check(source: psycopg.Connection, commander: psycopg.Connection) -> None:
    for name, query in VIEWS.items():
        commander.execute("CALL headrace.wait_for(%s)", (name,))
        assert rows(source, query) == rows(source, f"SELECT * FROM {name}"), name


@pytest.fixture
def traps(tmp_path):
    folder = tmp_path / "traps"
    folder.mkdir()
    return folder


@pytest.fixture(params=[()])
def engine(database, start_engine, traps, request):
    """An engine whose views, but one, are paused, and lack many changes."""
    env = {faults.ENV_DIR: str(traps), "HEADRACE_VIEW_TIME_MS_MAX": "0"} | dict(request.param)
    with psycopg.connect(database, autocommit=True) as source:
        source.execute(TABLES)
        made = start_engine(database, **env)
        with psycopg.connect(made.dsn, autocommit=True) as commander:
            for name, query in VIEWS.items():
                commander.execute("CALL headrace.create_view(%s, %s)", (name, query))
            commander.execute("CALL headrace.pause_view(%s)", (LATE,))
        for _ in range(CHANGES):
            source.execute("UPDATE t SET v = v + 1")
            # Otherwise a batch could have two changes, and no row with the value between them.
            source.execute("CALL headrace.wait_for('probe')")
        # Otherwise Postgres estimates rows by the size of the file, most of which is dead.
        source.execute("ANALYZE t")
    return made


@pytest.fixture
def source(engine):
    with psycopg.connect(engine.source, autocommit=True) as conn:
        yield conn


@pytest.fixture
def commander(engine):
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        yield conn


@pytest.fixture
def gate(database):
    """A session that holds all changes back."""
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("SELECT pg_advisory_lock(7, n) FROM generate_series(1, 999, 2) n")
        yield conn


def go_on_slowly(gate: psycopg.Connection, source: psycopg.Connection, traps: Path) -> None:
    """Let a change after the other pass, until the rows of the tables are read to compute anew.

    They are not read while a change waits.
    """
    keys = itertools.count()
    is_read = traps / f"{faults.POPULATION_LOADED}{faults.SPRUNG}"
    for number in range(1, CHANGES, 2):
        gate.execute("SELECT pg_advisory_unlock(7, %s)", (number,))
        time_passes(1.5)
        # No other view notices.
        source.execute("INSERT INTO other VALUES (%s)", (next(keys),))
        source.execute("CALL headrace.wait_for('probe')")
        if is_read.exists():
            gate.execute("SELECT pg_advisory_unlock_all()")
            return
    raise AssertionError("it has caught up")


def test_a_view_is_computed_anew_and_no_other_view_notices(source, commander, gate, traps):
    arm(traps, faults.POPULATION_LOADED, "pass:1")
    commander.execute("CALL headrace.resume_view(%s)", (LATE,))
    go_on_slowly(gate, source, traps)
    wait_until(lambda: "because it would have taken about" in said(source), lambda: said(source))
    source.execute("UPDATE t SET v = v + 2 WHERE id = 1")
    check(source, commander)


def test_a_view_goes_on_if_that_fails(engine, source, commander, traps, gate):
    """The builder dies after the worker has left the backlog alone."""
    arm(traps, faults.POPULATION_LOADED, "kill:1")
    commander.execute("CALL headrace.resume_view(%s)", (LATE,))
    go_on_slowly(gate, source, traps)
    wait_until(lambda: "view goes on catching up" in engine.log, "it fails")
    check(source, commander)
    wait_until(lambda: "is computed anew" not in said(source), "the note is removed")


@pytest.mark.slow
@pytest.mark.parametrize("engine", [(("HEADRACE_RECOMPUTE_BACKLOGS", "false"),)], indirect=True)
def test_it_can_be_switched_off(source, commander, gate, traps):
    arm(traps, faults.POPULATION_LOADED, "pass:1")
    commander.execute("CALL headrace.resume_view(%s)", (LATE,))
    with pytest.raises(AssertionError, match="it has caught up"):
        go_on_slowly(gate, source, traps)
    check(source, commander)
    assert said(source) == ""
