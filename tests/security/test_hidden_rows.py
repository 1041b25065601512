"""Rows that a view's owner may not see are in no message, and are passed to no code of a user."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg
import pytest

from tests.security.roles import connect, role
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.shared_engine,
    pytest.mark.engine_with(HEADRACE_CATALOG_POLL_MS="300", HEADRACE_SINK_RETRY_MS="50"),
]

TABLES = """
CREATE TABLE {b}.o (id bigint PRIMARY KEY, tenant text, note text, k int);
INSERT INTO {b}.o VALUES (1, 'a', '10', 1), (2, 'b', '20', 2);
CREATE VIEW {b}.part AS SELECT id, tenant, id / k AS ratio, note::int AS n FROM {b}.o;
CREATE FUNCTION {b}.loud(t text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS
  $$ BEGIN
       IF t LIKE 'secret%' THEN RAISE EXCEPTION 'no %', t USING ERRCODE = 'AB123'; END IF;
       RETURN t;
     END $$;
CREATE VIEW {b}.checked AS SELECT id, {b}.loud(note) AS n FROM {b}.o;
ALTER TABLE {b}.o OWNER TO {b};
ALTER FUNCTION {b}.loud OWNER TO {b};
ALTER VIEW {b}.part OWNER TO {b};
ALTER VIEW {b}.checked OWNER TO {b};
GRANT SELECT ON {b}.o, {b}.part, {b}.checked TO {r};
ALTER TABLE {b}.o ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON {b}.o TO {r} USING (tenant = 'a');
"""
HIDDEN = "secret77"
NUMBER = 7700770077
"""Key of the hidden row: not a part of a role's random name, nor of a number in an event."""
SHOWN = "SELECT message, detail, hint, culprit FROM headrace.views"
FAILING = {
    "cast": "SELECT id, tenant, note::int AS n FROM {b}.o",
    "division": "SELECT id, tenant, id / k AS n FROM {b}.o",
    "filter": "SELECT id, tenant FROM {b}.o WHERE note::int > 5",
    "sum": "SELECT tenant, sum(note::int) AS n FROM {b}.o GROUP BY tenant",
    "join": "SELECT o.id, o.tenant, p.id AS other FROM {b}.o JOIN {b}.o p"
    " ON p.tenant = o.tenant AND p.note::int = o.id",
    "through": "SELECT id, n FROM {b}.part",
    "columns": "SELECT id, ratio FROM {b}.part",
    "raised": "SELECT id, n FROM {b}.checked",
}
CODE = """
CREATE FUNCTION spy(t text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS
  $$ BEGIN PERFORM pg_try_advisory_lock(hashtext(t)); RETURN t; END $$;
CREATE FUNCTION spy(a text, t text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS
  $$ BEGIN RETURN spy(t); END $$;
CREATE FUNCTION spies(t text) RETURNS SETOF text IMMUTABLE LANGUAGE plpgsql AS
  $$ BEGIN RETURN NEXT spy(t); END $$;
CREATE AGGREGATE agg (text) (sfunc = spy, stype = text);
CREATE OPERATOR ## (function = spy, leftarg = text, rightarg = text);
CREATE DOMAIN checked AS text CHECK (spy(value) IS NOT NULL);
CREATE TYPE pair AS (x text, y checked);
"""
CALLING = (
    "SELECT id, tenant, spy(note) AS n FROM {b}.o",
    "SELECT id, tenant FROM {b}.o WHERE spy(note) > 'x'",
    "SELECT id, tenant, note ## 'x' AS n FROM {b}.o",
    "SELECT tenant, agg(note ORDER BY id) AS n FROM {b}.o GROUP BY tenant",
    "SELECT id, tenant, agg(note) OVER (PARTITION BY tenant ORDER BY id) AS n FROM {b}.o",
    "SELECT id, tenant, n FROM {b}.o, spies(note) n",
    "SELECT id, tenant, (note::checked)::text AS n FROM {b}.o",
    "SELECT id, tenant, (ROW(note, note)::pair)::text AS n FROM {b}.o",
    "SELECT id, tenant, (ARRAY[note]::checked[])::text AS n FROM {b}.o",
)


@contextlib.contextmanager
def cast(engine, server) -> Iterator[tuple[dict[str, str], psycopg.Connection]]:
    """Create the tables of {b}, and yield the names of roles and a session of {r}."""
    with contextlib.ExitStack() as stack:
        names = {
            key: stack.enter_context(role(server, name))
            for key, name in (("b", "boss"), ("r", "x"))
        }
        server.execute(TABLES.format(**names))
        session = stack.enter_context(connect(engine.source, names["r"]))
        stack.callback(drop_views, server)
        yield names, session


def drop_views(server: psycopg.Connection) -> None:
    for (view,) in server.execute(
        "SELECT format('%I.%I', schema_name, view_name) FROM headrace.views ORDER BY id DESC"
    ).fetchall():
        server.execute("CALL headrace.drop_view(%s)", (view,))


def stopped(session: psycopg.Connection, code: str | None) -> bool:
    """Return whether a view of the session's role has stopped with that SQLSTATE."""
    states = "SELECT FROM headrace.views WHERE status = 'error' AND sqlstate = %s"
    return session.execute(states, (code,)).rowcount > 0


def events(session: psycopg.Connection) -> str:
    """Return the events that the session's role sees, without times and numbers of processes."""
    return repr(
        session.execute("SELECT event, fields - 'timestamp' FROM headrace.events").fetchall()
    )


def refused(session: psycopg.Connection, call: str, *values: str) -> tuple[str | None, str]:
    """Return the SQLSTATE of a call that fails, and all texts of its error."""
    with pytest.raises(psycopg.Error) as error:
        session.execute(call, values)
    found = error.value.diag
    texts = (found.message_primary, found.message_detail, found.message_hint, found.context)
    return error.value.sqlstate, repr(texts)


@pytest.mark.parametrize("name", FAILING)
def test_an_error_does_not_quote_the_row(engine, server, name):
    with cast(engine, server) as (names, session):
        query = FAILING[name].format(**names)
        session.execute("CALL headrace.create_view('v', %s)", (query,))
        server.execute(
            "INSERT INTO {b}.o VALUES (%s, 'b', %s, 0)".format(**names), (NUMBER, HIDDEN)
        )
        code, _ = refused(server, query)
        wait_until(lambda: stopped(session, code), "the view goes on")
        seen = repr(session.execute(SHOWN).fetchall())
        seen += repr(session.execute("SELECT message FROM headrace.list_views()").fetchall())
        wait_until(lambda: "view stopped" in events(session), "its events are copied")
        for call in (
            ("CALL headrace.resync_view('v')",),
            ("CALL headrace.create_view('w', %s)", query),
            ("CALL headrace.alter_view('v', %s)", f"SELECT v.*, 1 AS one FROM ({query}) v"),
        ):
            again, texts = refused(session, *call)
            assert again == code, call
            seen += texts
        seen += events(session)
        assert HIDDEN not in seen
        assert str(NUMBER) not in seen
        server.execute("DELETE FROM {b}.o WHERE note = %s".format(**names), (HIDDEN,))
        session.execute("CALL headrace.resync_view('v')")


def test_a_key_that_is_not_unique_does_not_quote_the_row(engine, server):
    with cast(engine, server) as (names, session):
        call = "CALL headrace.create_view('v', %s, %s)"
        query = "SELECT tenant, note FROM {b}.o".format(**names)
        session.execute(call, (query, '{"key": ["note"]}'))
        rows = "INSERT INTO {b}.o SELECT n, 'b', %s FROM generate_series(3, 4) n".format(**names)
        server.execute(rows, (HIDDEN,))
        wait_until(lambda: stopped(session, "23505"), "the view goes on")
        told = session.execute(SHOWN).fetchall()
        code, texts = refused(session, call.replace("'v'", "'w'"), query, '{"key": ["note"]}')
        assert code == "23505"
        assert HIDDEN not in repr(told) + texts


def test_the_owner_of_all_rows_sees_the_row(engine, server):
    with cast(engine, server) as (names, _), connect(engine.source, names["b"]) as owner:
        server.execute(
            "INSERT INTO {b}.o VALUES (%s, 'b', %s, 0)".format(**names), (NUMBER, HIDDEN)
        )
        for name in ("cast", "through"):
            query = FAILING[name].format(**names)
            _, texts = refused(owner, "CALL headrace.create_view('v', %s)", query)
            assert HIDDEN in texts


def test_functions_of_users_are_not_called_for_hidden_rows(engine, server):
    with cast(engine, server) as (names, session):
        session.execute(CODE)
        for query in CALLING:
            call = "CALL headrace.create_view('v', %s)"
            code, texts = refused(session, call, query.format(**names))
            assert code == "0A000", query
            assert "row security of table" in texts, query
        # A superuser vouches for the function.
        signature = f"{names['r']}.spy(text)"
        server.execute(f"ALTER FUNCTION {signature} LEAKPROOF")
        query = CALLING[0].format(**names)
        session.execute("CALL headrace.create_view('v', %s)", (query,))
        assert session.execute("TABLE v").fetchall() == session.execute(query).fetchall() != []
        server.execute(f"ALTER FUNCTION {signature} NOT LEAKPROOF")
        wait_until(lambda: stopped(session, "55H01"), "the view goes on")
        # No policy applies to the owner of the table.
        with connect(engine.source, names["b"]) as owner:
            server.execute("GRANT USAGE ON SCHEMA {r} TO {b}".format(**names))
            owner.execute(
                "CALL headrace.create_view('v', %s)", (query.replace("spy", signature[:-6]),)
            )
