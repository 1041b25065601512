"""Functions that ask the engine, in any query: on the port and on direct connections."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg
import pytest

from headrace.server.commands import _COLUMNS
from headrace.sql.verbs import VERBS
from tests.security.roles import connect, role
from tests.waiting import wait_until

pytestmark = pytest.mark.shared_engine

TABLES = """
CREATE TABLE items (id int PRIMARY KEY, g int);
INSERT INTO items SELECT i, i % 5 FROM generate_series(1, 30) i;
"""
QUERY = "SELECT g, count(*) AS n FROM items GROUP BY g"
GIVEN = {"name": "'v'", "name_or_query": "'v'", "query": f"$${QUERY}$$", "key": """'{"g": 1}'"""}
ASKED = {
    verb.name: ", ".join(GIVEN[p.name] for p in verb.parameters if p.required or p.name == "query")
    for verb in VERBS.values()
    if verb.asked and verb.selected
}
"""The arguments of each function that asks."""


@pytest.fixture
def view(commander) -> Iterator[str]:
    commander.execute("CALL headrace.create_view('v', %s)", (QUERY,))
    yield "v"
    commander.execute("CALL headrace.drop_view('v')")


@pytest.fixture(params=["port", "direct"])
def conn(request, engine, view) -> Iterator[psycopg.Connection]:
    dsn = engine.dsn if request.param == "port" else engine.source
    with psycopg.connect(dsn, autocommit=True) as found:
        yield found


def columns(result: psycopg.Cursor) -> list[str]:
    assert result.description is not None
    return [column.name for column in result.description]


SHAPES = (
    'SELECT count(*) FROM {call} WHERE "{column}" IS NULL',
    'SELECT q."{column}" FROM {call} AS q ORDER BY 1 DESC LIMIT 1 OFFSET 0',
    "SELECT count(DISTINCT q) FROM {call} q JOIN headrace.list_views() l ON true",
    "SELECT EXISTS (SELECT FROM {call})",
    "WITH q AS (SELECT * FROM {call}) SELECT count(*) FROM q",
    "SELECT 1; SELECT * FROM {call}",
    "SELECT l.name, q.* FROM headrace.list_views() l LEFT JOIN LATERAL {call} q ON true",
)


def test_each_function_can_be_part_of_any_query(conn):
    for number, (name, given) in enumerate(ASKED.items()):
        call = f"headrace.{name}({given})"
        whole = columns(conn.execute(f"SELECT * FROM {call} LIMIT 0"))  # asks nothing
        assert whole == _COLUMNS.get(name, "plan").split()
        with conn.transaction():
            conn.execute(SHAPES[number % len(SHAPES)].format(call=call, column=whole[0]))
            # The locks of a question end with it, and not with the transaction.
            left = conn.execute(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
                " AND pid = pg_backend_pid()"
            ).fetchone()
            assert left == (0,)
        # The procedure answers the same rows.
        (answer,) = conn.execute(f"CALL headrace.{VERBS[name].called}({given})").fetchone()
        assert answer if whole == ["plan"] else all(set(row) == set(whole) for row in answer), name


def test_what_is_selected_is_what_the_procedure_answers(conn, source):
    workers = conn.execute(
        "SELECT worker, views FROM headrace.workers() WHERE state = 'running' ORDER BY worker"
    ).fetchall()
    assert workers == [("main", 1)]
    (answer,) = conn.execute("CALL headrace.show_settings()").fetchone()
    found = conn.execute("SELECT to_jsonb(s) FROM headrace.settings() s").fetchall()
    assert [row for (row,) in found] == answer
    wrong = "SELECT count(*), sum(surplus), sum(missing) FROM headrace.verify_view('v')"
    assert conn.execute(wrong).fetchone() == (0, None, None)
    source.execute("UPDATE v SET n = n + 1 WHERE g = 2")
    assert conn.execute(wrong).fetchone() == (2, 1, 1)
    source.execute("UPDATE v SET n = n - 1 WHERE g = 2")
    assert conn.execute(wrong).fetchone() == (0, None, None)
    stats = "SELECT sum(rows_out) FROM headrace.view_stats('v') WHERE collection = 'source'"
    [(before,)] = conn.execute(stats).fetchall()
    source.execute("INSERT INTO items VALUES (100, 1), (101, 1)")
    conn.execute("CALL headrace.wait_for('v')")
    assert conn.execute(stats).fetchall() == [(before + 2,)]


def refused(conn: psycopg.Connection, query: str) -> psycopg.errors.Diagnostic:
    with pytest.raises(psycopg.Error) as caught:
        conn.execute(query)
    return caught.value.diag


def test_what_a_transaction_cannot_see_or_would_wait_for_itself_is_refused(conn, source):
    for level in ("REPEATABLE READ", "SERIALIZABLE"):
        with contextlib.suppress(psycopg.Error), conn.transaction():
            conn.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
            found = refused(conn, "SELECT * FROM headrace.queues()")
        assert found.sqlstate == "0A000"
        assert level in found.message_primary
        assert "CALL headrace.show_queues" in found.message_hint
    with conn.transaction():
        conn.execute("SET TRANSACTION READ ONLY")
        assert conn.execute("SELECT count(*) FROM headrace.workers()").fetchone() == (1,)
        assert conn.execute("SELECT count(*) FROM headrace.verify_view('v')").fetchone() == (0,)
    with contextlib.suppress(psycopg.Error), conn.transaction():
        conn.execute("SET TRANSACTION READ ONLY")
        found = refused(conn, "SELECT * FROM headrace.rebalance(true)")
    assert found.sqlstate == "25006"
    with contextlib.suppress(psycopg.Error), conn.transaction():
        conn.execute("INSERT INTO items VALUES (200, 1)")
        assert conn.execute("SELECT count(*) FROM headrace.workers()").fetchone() == (1,)
        found = refused(conn, "SELECT * FROM headrace.verify_view('v')")
    assert found.sqlstate == "0A000"
    assert "has written" in found.message_primary
    for name, code in (("nothing", "42P01"), ("a.b.c", "42602"), ("a b", "42602")):
        assert refused(conn, f"SELECT * FROM headrace.view_stats('{name}')").sqlstate == code
    assert refused(conn, "SELECT * FROM headrace.verify_view(NULL)").sqlstate == "22004"
    assert conn.execute("SELECT * FROM headrace.rebalance(NULL)").fetchall() == []
    for path in ("other, public", "public"):
        conn.execute(f"SET search_path = {path}")
        assert conn.execute("SELECT count(*) > 0 FROM headrace.view_stats('V')").fetchone() == (
            True,
        )


def test_the_current_role_asks(engine, source, conn):
    with role(source, "plain") as plain, role(source, "another") as another:
        with connect(engine.source, plain) as own:
            assert own.execute("SELECT count(*) FROM headrace.workers()").fetchone() == (0,)
            assert refused(own, "SELECT * FROM headrace.settings()").sqlstate == "42501"
            assert refused(own, "SELECT * FROM headrace.view_stats('v')").sqlstate == "42501"
            source.execute(
                "CREATE FUNCTION asks() RETURNS bigint LANGUAGE sql SECURITY DEFINER"
                " AS 'SELECT count(*) FROM headrace.workers()'"
            )
            # The session may not become the function's owner: nothing proves that he asks.
            assert refused(own, "SELECT asks()").sqlstate == "42501"
            source.execute(f"ALTER FUNCTION asks() OWNER TO {another}")
            assert refused(own, "SELECT asks()").sqlstate == "42501"
            source.execute(f"GRANT {another} TO {plain}")
            assert own.execute("SELECT asks()").fetchone() == (0,)
            source.execute("DROP FUNCTION asks()")
        conn.execute(f"SET ROLE {plain}")
        assert conn.execute("SELECT count(*) FROM headrace.workers()").fetchone() == (0,)
        conn.execute("RESET ROLE")
        assert conn.execute("SELECT count(*) FROM headrace.workers()").fetchone() == (1,)


def test_locks_that_claim_another_role_are_carried_out_for_nobody(engine, source, view):
    """Any role can take the locks of a question; they say whom the session pretends to be."""
    with role(source, "pretends") as name, connect(engine.source, name) as own:
        own.execute(
            "SELECT pg_advisory_lock_shared(5000, 10), pg_advisory_lock_shared(5001, hashtext('workers')),"
            " pg_advisory_lock_shared(5002, 0), pg_advisory_lock_shared(1212437063, 5000)"
        )
        number = (1 << 62) + (own.info.backend_pid << 31) + 5000
        row = "SELECT status, error ->> 'C', result FROM headrace.commands WHERE id = %s"
        wait_until(lambda: source.execute(row, (number,)).fetchone() is not None, "it is judged")
        assert source.execute(row, (number,)).fetchone() == ("failed", "42501", None)


def test_a_question_whose_caller_goes_is_not_asked_on(engine, source, view):
    """The verification of a view that another transaction keeps from its snapshot."""
    with (
        psycopg.connect(engine.source) as writer,
        contextlib.closing(psycopg.connect(engine.source)) as caller,
    ):
        writer.execute("INSERT INTO items VALUES (300, 1)")
        caller.pgconn.send_query(b"SELECT * FROM headrace.verify_view('v')")
        state = "SELECT count(*) FROM headrace.commands WHERE procedure = 'verify_view' AND status = 'running'"
        wait_until(lambda: source.execute(state).fetchone() == (1,), "it is asked")
        source.execute("SELECT pg_cancel_backend(%s)", (caller.info.backend_pid,))
        wait_until(lambda: source.execute(state).fetchone() == (0,), "it is cancelled")
