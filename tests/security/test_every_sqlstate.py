"""User code may raise any SQLSTATE anywhere: one view stops, with the message that was raised.

"Transient" codes describe trouble of the server. If user code raises one, its view is retried a few
times, then stops like any other. Worker, builder and commander survive; other views go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import psycopg
import pytest

from headrace.embedded.engine import EmbeddedEngine
from tests.compared import status_of
from tests.conftest import ENGINES
from tests.databases import Databases
from tests.faults.helpers import WORKER
from tests.security import servers
from tests.waiting import wait_until

BUILDER = "headrace.views.builder"

EVERY = sorted(
    {
        kind.sqlstate
        for kind in vars(psycopg.errors).values()
        if isinstance(kind, type)
        and issubclass(kind, psycopg.Error)
        and getattr(kind, "sqlstate", None)
    }
)
SAMPLE = ["40001", "54000", "57P01", "XX000"]
GROUP = 16
"""Number of views at once: each has a connection for evaluation."""

SCHEMA = """
CREATE TABLE t (id int PRIMARY KEY, code text NOT NULL);
INSERT INTO t VALUES (0, 'none');
CREATE FUNCTION boom(have text, mine text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
    IF have = mine THEN
        RAISE EXCEPTION USING ERRCODE = mine, MESSAGE = 'boom ' || mine;
    END IF;
    RETURN have;
END $$;
"""

each = pytest.mark.parametrize(
    "states",
    [
        pytest.param(SAMPLE, id="sample"),
        *(
            pytest.param(EVERY[i : i + GROUP], id=EVERY[i], marks=pytest.mark.slow)
            for i in range(0, len(EVERY), GROUP)
        ),
    ],
)


@pytest.fixture(scope="module")
def running(
    databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedEngine]:
    with servers.running(databases, tmp_path_factory, SCHEMA) as engine:
        yield engine


@pytest.fixture
def conn(running: EmbeddedEngine, request: pytest.FixtureRequest) -> Iterator[psycopg.Connection]:
    """A connection; at the end the engine must have the same processes as at the beginning."""
    request.node.stash.setdefault(ENGINES, []).append(running)
    with psycopg.connect(running.dsn, autocommit=True) as conn:
        conn.execute("CALL headrace.create_view('alive', 'SELECT id, code FROM t')")
        before = pids(running)
        yield conn
        follow(conn)
        assert pids(running) == before
        servers.drop_views(conn)
        conn.execute("DELETE FROM t WHERE id > 0")


def pids(engine: EmbeddedEngine) -> list[int | None]:
    return [engine.child(module) for module in (WORKER, BUILDER)]


def follow(conn: psycopg.Connection) -> None:
    """Wait until the unrelated view shows a new row."""
    row = conn.execute("INSERT INTO t SELECT max(id) + 1, 'x' FROM t RETURNING id")
    number = row.fetchone()[0]
    wait_until(
        lambda: conn.execute("SELECT 1 FROM alive WHERE id = %s", (number,)).fetchone(),
        "the other view follows",
    )


def name_of(state: str) -> str:
    return f"v_{state.lower()}"


def make_views(conn: psycopg.Connection, states: Sequence[str], query: str) -> None:
    for state in states:
        text = query.format(state=state).replace("'", "''")
        conn.execute(f"CALL headrace.create_view('{name_of(state)}', '{text}')")


def throw(conn: psycopg.Connection, states: Sequence[str]) -> None:
    for state in states:
        conn.execute("INSERT INTO t SELECT max(id) + 1, %s FROM t", (state,))


def stopped(conn: psycopg.Connection, states: Sequence[str]) -> None:
    """Wait until each view stops, with the SQLSTATE and the message that were raised in it."""
    for state in states:

        def told(name: str = name_of(state)) -> bool:
            return status_of(conn, name)[0] == "error"

        wait_until(told, f"the view in which {state} is raised stops")
        _, code, message = status_of(conn, name_of(state))
        assert code == state
        assert message is not None and f"boom {state}" in message


@each
def test_in_an_expression(conn: psycopg.Connection, states: list[str]) -> None:
    make_views(conn, states, "SELECT id, boom(code, '{state}') AS code FROM t")
    throw(conn, states)
    stopped(conn, states)
    for state in states:
        # A resync by the user meets the same row, and the view stays as it was.
        with pytest.raises(psycopg.Error) as caught:
            conn.execute(f"CALL headrace.resync_view('{name_of(state)}')")
        assert caught.value.sqlstate == state
    stopped(conn, states)


@each
def test_in_the_write(conn: psycopg.Connection, states: list[str]) -> None:
    """An index on a function, created by a role with the right to do so."""
    make_views(conn, states, "SELECT id, code FROM t")
    for state in states:
        conn.execute(f"CREATE INDEX ON {name_of(state)} (boom(code, '{state}'))")
    throw(conn, states)
    stopped(conn, states)


@each
def test_in_a_population(conn: psycopg.Connection, states: list[str]) -> None:
    throw(conn, states)
    for state in states:
        with pytest.raises(psycopg.Error, match=f"boom {state}") as caught:
            make_views(conn, [state], "SELECT id, boom(code, '{state}') AS code FROM t")
        assert caught.value.sqlstate == state
    names = conn.execute("SELECT view_name FROM headrace.views").fetchall()
    assert names == [("alive",)]


@each
def test_at_the_commander(conn: psycopg.Connection, states: list[str]) -> None:
    """The error is raised in a statement that the commander relays, and during an analysis."""
    backend = conn.info.backend_pid
    for state in states:
        with pytest.raises(psycopg.Error, match=f"boom {state}") as caught:
            conn.execute(f"SELECT boom('{state}', '{state}')")
        assert caught.value.sqlstate == state
        with pytest.raises(psycopg.Error) as caught:
            conn.execute(
                "CALL headrace.create_view('w', $q$SELECT id,"
                f" boom('{state}', '{state}') AS code FROM t$q$)"
            )
        assert caught.value.sqlstate == state
    assert conn.info.backend_pid == backend
