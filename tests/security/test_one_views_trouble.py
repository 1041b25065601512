"""Trouble without a telling SQLSTATE, or at a late point: it stays with its view."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from headrace.embedded.engine import EmbeddedEngine
from headrace.runtime.leaving import TRIES_MAX
from tests.compared import differs, status_of
from tests.databases import Databases
from tests.faults.helpers import WORKER
from tests.integration.test_metrics import page, value
from tests.security import servers
from tests.security.servers import ALIVE, TABLE, create, follows, innocent, poison
from tests.waiting import wait_until

SCHEMA = f"""{TABLE}
CREATE FUNCTION suicide(have text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
    IF have = 'poison' THEN
        PERFORM pg_terminate_backend(pg_backend_pid());
    END IF;
    RETURN have;
END $$;
CREATE FUNCTION shout(have text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
    IF have ~ '^[0-9]+$' THEN
        RAISE EXCEPTION USING MESSAGE = repeat('loud ', have::int), DETAIL = repeat('x', have::int);
    END IF;
    RETURN have;
END $$;
CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.v = 'poison' THEN
        RAISE EXCEPTION 'too late' USING ERRCODE = '40001';
    END IF;
    RETURN NULL;
END $$;
"""


@pytest.fixture(scope="module")
def running(
    databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedEngine]:
    with servers.running(
        databases, tmp_path_factory, SCHEMA, HEADRACE_HTTP="127.0.0.1:0"
    ) as engine:
        yield engine


@pytest.fixture
def conn(running: EmbeddedEngine, request) -> Iterator[psycopg.Connection]:
    with innocent(running, request) as conn:
        yield conn
        conn.execute("DROP PUBLICATION IF EXISTS everything")


def waits(conn: psycopg.Connection, name: str) -> tuple[str, str | None, str | None] | None:
    """Return status, SQLSTATE and message of a waiting view; None if it does not wait."""
    found = status_of(conn, name)
    return found if found[0] == "sink_error" else None


def errors(running: EmbeddedEngine, name: str) -> float:
    """Return how many errors have stopped the view, for good or temporarily."""
    return value(page(running), "view_errors_total", view=f"public.{name}")


def stops(conn: psycopg.Connection, name: str) -> tuple[str, str]:
    """Wait until the view has stopped and the other follows; return its SQLSTATE and message."""
    wait_until(lambda: status_of(conn, name)[0] == "error", f"{name} stops")
    follows(conn)
    _, code, message = status_of(conn, name)
    assert code is not None and message is not None
    return code, message


def test_an_index_that_ends_the_connection_that_writes(conn, running):
    before = running.child(WORKER)
    create(conn, "v", "SELECT id, v FROM t")
    conn.execute("CREATE INDEX ON v (suicide(v))")
    poison(conn)
    code, message = stops(conn, "v")
    assert code == "08006"
    assert "the connection was lost" in message
    assert running.child(WORKER) == before


@pytest.mark.parametrize("size", [200_000, pytest.param(14_000_000, marks=pytest.mark.slow)])
def test_a_message_that_is_larger_than_any_control_message(conn, running, size):
    before = running.child(WORKER)
    # Raising such a long message takes time, and this test is not about the time limit.
    create(
        conn, "v", "SELECT id, shout(v) AS v FROM t", commit_group="slow", view_time_ms_max=10_000
    )
    conn.execute("INSERT INTO t VALUES (2, %s)", (str(size),))
    code, message = stops(conn, "v")
    assert code == "P0001"
    assert message.startswith("loud loud") and len(message) < 100_000
    with pytest.raises(psycopg.Error) as caught:
        conn.execute("CALL headrace.resync_view('v')")
    assert caught.value.sqlstate == "P0001"
    assert running.child(WORKER) == before


def test_what_fails_at_the_commit_only(conn, running):
    before = running.child(WORKER)
    for name in ("v", "w"):
        create(conn, name, "SELECT id, v FROM t")
    conn.execute(
        "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON v DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION late()"
    )
    poison(conn)
    stops(conn, "v")
    assert not differs(conn, "w", ALIVE)
    assert running.child(WORKER) == before


def test_a_row_that_is_too_large_for_an_index(conn, running):
    before = running.child(WORKER)
    create(conn, "v", "SELECT id, v FROM t")
    conn.execute("CALL headrace.create_index('v', '(v)')")
    conn.execute(
        "INSERT INTO t SELECT 2, string_agg(md5(i::text), '') FROM generate_series(1, 900) i"
    )
    code, message = stops(conn, "v")
    assert code == "54000"
    assert "index row requires" in message
    assert running.child(WORKER) == before
    conn.execute("DELETE FROM t WHERE id = 2")
    conn.execute("CALL headrace.resync_view('v')")
    assert not differs(conn, "v", ALIVE)


def test_a_publication_for_all_tables(conn, running):
    """Deletes may fail while it exists; other views go on, and a resync repairs the view later."""
    before = running.child(WORKER)
    create(conn, "v", "SELECT v, count(*) AS n FROM t GROUP BY v")
    conn.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    conn.execute("INSERT INTO t VALUES (3, 'one'), (4, 'four')")
    query = "SELECT v, count(*) AS n FROM t GROUP BY v"

    def decided() -> bool:
        return status_of(conn, "v")[0] == "error" or not differs(conn, "v", query)

    wait_until(decided, "the view stops, or is right")
    status, code, message = status_of(conn, "v")
    if status == "error":
        assert code == "55000"
        assert message is not None and "replica identity" in message
    wait_until(lambda: not differs(conn, "alive", ALIVE), "the other view follows")
    conn.execute("DROP PUBLICATION everything")
    if status == "error":
        conn.execute("CALL headrace.resync_view('v')")
    conn.execute("INSERT INTO t VALUES (5, 'four')")
    wait_until(lambda: not differs(conn, "v", query), "it is right again")
    assert running.child(WORKER) == before


def test_no_connection_is_left_to_evaluate_with(conn, running):
    """The views that need a connection wait, for any time; the other view goes on."""
    before = running.child(WORKER)
    query = "SELECT suicide(v) AS v, count(*) AS n FROM t GROUP BY 1"
    create(conn, "v", query)
    create(conn, "w", query)  # their common subplan is retained once
    (database,) = conn.execute("SELECT quote_ident(current_database())").fetchone()
    conn.execute(f"ALTER DATABASE {database} CONNECTION LIMIT 0")
    try:
        conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'headrace eval'"
        )
        conn.execute("INSERT INTO t VALUES (7, 'seven')")
        for name in ("v", "w"):
            wait_until(lambda name=name: status_of(conn, name)[0] == "sink_error", f"{name} waits")
        for name in ("v", "w"):
            wait_until(
                lambda name=name: errors(running, name) > 2 * TRIES_MAX, f"{name} is retried"
            )
        wait_until(lambda: not differs(conn, "alive", ALIVE), "the other follows")
        # Each retry sets the view to running for a moment.
        _, _, told = wait_until(lambda: waits(conn, "v"), "it waits still")
        assert "too many connections" in told
    finally:
        conn.execute(f"ALTER DATABASE {database} CONNECTION LIMIT -1")
    conn.execute("INSERT INTO t VALUES (8, 'seven')")
    for name in ("v", "w"):
        wait_until(lambda name=name: not differs(conn, name, query), f"{name} goes on")
        assert status_of(conn, name)[0] == "running"
    assert running.child(WORKER) == before


def test_a_function_that_ends_its_own_connection(conn, running):
    """The view's owner may not run code for a while, so this test comes last."""
    before = running.child(WORKER)
    create(conn, "v", "SELECT id, suicide(v) AS v FROM t")
    poison(conn)
    code, message = stops(conn, "v")
    assert code == "54H01"
    assert "terminates sessions at row (id)=(2)" in message
    assert running.child(WORKER) == before
