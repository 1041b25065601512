"""Our own statements that could run code of users, found by reading them (docs/statements.md).

``spy()`` belongs to a user without rights. If it runs as another role, or can become another role,
it advances a sequence, which no rollback undoes, and raises an error.
"""

from __future__ import annotations

import contextlib
import re
import threading
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

import headrace
from headrace.errors import TransientError
from headrace.population import publish
from headrace.postgres import connect as door
from headrace.postgres import publication
from headrace.runtime import ownership
from headrace.sink import table
from headrace.sink.table import ResultTable
from headrace.sink.writer import SINK_SETTINGS, SinkWriter
from headrace.sql import install
from headrace.types import Field, diff_batch
from tests.security.roles import connect, role
from tests.security.spies import ask, caught, spying
from tests.waiting import PATIENCE_S, wait_until

SPY = """
CREATE SEQUENCE caught;
GRANT ALL ON SEQUENCE caught TO PUBLIC;
CREATE FUNCTION tell() RETURNS void LANGUAGE plpgsql AS $f$
BEGIN
    IF current_user <> '{low}' AND current_user NOT LIKE 'headrace_eval%' THEN
        IF current_setting('transaction_read_only') = 'off' THEN
            PERFORM nextval('{low}.caught');
        END IF;
        RAISE EXCEPTION 'caught as %', current_user;
    END IF;
END $f$;
CREATE FUNCTION spy() RETURNS boolean LANGUAGE plpgsql AS $f$
BEGIN
    PERFORM {low}.tell();
    BEGIN
        PERFORM pg_catalog.set_config('role', 'none', false);
    EXCEPTION WHEN insufficient_privilege OR invalid_parameter_value THEN
        RETURN true;
    END;
    PERFORM {low}.tell();
    RETURN true;
END $f$;
CREATE TABLE t (id int PRIMARY KEY, n int);
INSERT INTO t SELECT g, g FROM generate_series(1, 9) g;
"""
TRAPS = """
CREATE FUNCTION {trap}({left}, {right}) RETURNS boolean LANGUAGE plpgsql
    AS 'BEGIN PERFORM {low}.spy(); RETURN true; END';
CREATE OPERATOR {name} (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = {trap});
"""
TRAPPED = (
    ("=", "oid", "regclass"),
    ("=", "oid", "oid"),
    ("=", "name", "name"),
    ("=", "text", "text"),
    ("=", '"char"', '"char"'),
    ("<>", "oid", "int"),
    (">", "int2", "int"),
    (">=", "oid", "int"),
)


@pytest.fixture
def low(server):
    with spying(server, SPY) as conn:
        yield conn


def test_names_on_the_callers_path(shared_engine, server, low):
    """The caller has operators and types with the names that our statements use."""
    name = low.info.user
    for number, (operator, left, right) in enumerate(TRAPPED):
        trap = f"trap{number}"
        low.execute(TRAPS.format(trap=trap, name=operator, left=left, right=right, low=name))
    for kind in ("oid", "text", "regclass", "name"):
        low.execute(f"CREATE DOMAIN {name}.{kind} AS pg_catalog.{kind} CHECK ({name}.spy())")
    query = f"SELECT id, '{{1}}'::int[] AS a FROM {name}.t"
    for dsn in (shared_engine.dsn, shared_engine.source):
        for path in (name, f"{name}, pg_catalog"):
            with connect(dsn, name) as conn:
                conn.execute(f"SET search_path = {path}")
                for call, *values in (
                    ("CALL headrace.check_view(%s)", query),
                    ("CALL headrace.create_view('v', %s)", query),
                    ("CALL headrace.alter_view('v', %s)", query),
                    ("CALL headrace.create_index('v', '(id)')",),
                    ("CALL headrace.resync_view('v')",),
                    ("CALL headrace.wait_for('v')",),
                    ("CALL headrace.verify('v')",),
                    ("CALL headrace.rename_view('v', 'w')",),
                    ("CALL headrace.drop_view('w')",),
                ):
                    said = ask(conn, call, *values)
                    assert not caught(server, low), (dsn, path, call, said)
                    assert said == "", (dsn, path, call)


def test_what_analyses_is_altered_by_what_it_analyses(shared_engine, server, low):
    """The functions that analyse a query belong to the caller, whose code may alter them."""
    name = low.info.user
    low.execute(
        f"""
CREATE FUNCTION swap() RETURNS boolean LANGUAGE plpgsql AS $f$
DECLARE made text;
BEGIN
    FOR made IN SELECT pg_get_functiondef(oid) FROM pg_proc
                 WHERE pronamespace = pg_my_temp_schema() AND proowner = '{name}'::regrole
    LOOP
        made := replace(made, ' SECURITY DEFINER', '');
        EXECUTE replace(made, 'BEGIN', 'BEGIN PERFORM {name}.spy();');
    END LOOP;
    RETURN true;
END $f$;
CREATE DOMAIN swapping AS int CHECK ({name}.swap());
CREATE TYPE holder AS (n swapping);
"""
    )
    for dsn in (shared_engine.dsn, shared_engine.source):
        with connect(dsn, name) as conn:
            said = ask(
                conn,
                "CALL headrace.check_view(%s)",
                f"SELECT id, n + 1 - 1 AS y FROM {name}.t WHERE id > 0.5::int"
                f" AND NULLIF('(1)'::{name}.holder, NULL) IS NOT NULL",
            )
            assert not caught(server, low), said
            # On a busy machine the transaction with the altered functions may have ended, after a
            # pause of 0.1 s: then the query is refused for its own sake.
            assert said in ("42501", "0A000")


def test_what_planning_computes(shared_engine, server, low):
    """Planning a query computes constants in the expressions of indexes and statistics."""
    name = low.info.user
    low.execute(
        f"""
CREATE FUNCTION sly(int) RETURNS int IMMUTABLE LANGUAGE plpgsql
    AS 'BEGIN PERFORM {name}.spy(); RETURN $1; END';
CREATE INDEX ON t (id) WHERE n > {name}.sly(0);
CREATE INDEX ON t ((n + {name}.sly(1)));
CREATE STATISTICS st ON (n + {name}.sly(2)), id FROM t;
ALTER TABLE t ADD CHECK (n > {name}.sly(-1));
ANALYZE t;
"""
    )
    # The spy can be caught, so these tests can fail: here a superuser plans such a query.
    with pytest.raises(psycopg.errors.RaiseException):
        server.execute(f"SELECT FROM {name}.t")
    low.execute("SELECT setval('caught', 1, false)")
    query = "SELECT id, n FROM t WHERE n > 5"
    assert ask(low, "CALL headrace.create_view('v', %s)", query) == ""
    assert not caught(server, low)
    low.execute("UPDATE t SET n = 10 - n")
    assert ask(low, "CALL headrace.resync_view('v')") == ""
    assert ask(low, "CALL headrace.wait_for('v')") == ""
    assert ask(low, "CALL headrace.verify('v')") == ""
    rows = low.execute("SELECT id, n FROM v ORDER BY 1").fetchall()
    assert rows == low.execute(f"{query} ORDER BY 1").fetchall() != []
    assert not caught(server, low)


def test_a_schema_named_like_the_engines_role(shared_engine, server, low):
    """The schema is on that role's search path, but its objects are never used."""
    name, ours = low.info.user, server.info.user
    server.execute(f"GRANT CREATE ON DATABASE {server.info.dbname} TO {name}")
    low.execute("CALL headrace.create_view('v', 'SELECT id, n FROM t')")
    with connect(shared_engine.source, name) as other:
        other.execute(f'CREATE SCHEMA "{ours}"')
        other.execute(f'GRANT USAGE ON SCHEMA "{ours}" TO PUBLIC')
        other.execute(f'SET search_path = "{ours}"')
        for operator, left, right in (
            ("->>", "jsonb", "jsonb"),
            ("||", "text", "oid"),
            ("||", "text", "name"),
            ("=", "name", "text"),
        ):
            made = TRAPS.format(trap="trap", name=operator, left=left, right=right, low=name)
            if operator in ("->>", "||"):
                made = made.replace("RETURNS boolean", "RETURNS text")
                made = made.replace("RETURN true", "RETURN ''running''")
            other.execute(made)
    # Stops the view; the engine finds it and populates it again.
    low.execute("ALTER TABLE t ALTER n TYPE bigint")
    low.execute("UPDATE t SET n = n + 1")
    wait_until(
        lambda: (
            server.execute(
                "SELECT FROM pg_attribute WHERE attrelid = to_regclass(%s)"
                " AND attname = 'n' AND atttypid = 'bigint'::regtype",
                (f"{name}.v",),
            ).fetchone()
            is not None
        ),
        "the view is filled anew",
    )
    assert not caught(server, low)


def test_locks_that_anybody_may_take(shared_engine, server, low):
    """Advisory locks have no owner: a role that holds one must not block other roles."""
    name = low.info.user
    server.execute(f"GRANT CREATE ON DATABASE {server.info.dbname} TO {name}")
    taken = (install._INSTALL_LOCK, publication._LOCK, publish._SCHEMA_LOCK)
    with connect(shared_engine.source, name) as keeper:
        for number in taken:
            keeper.execute("SELECT pg_advisory_lock(%s)", (number,))
        low.execute("CALL headrace.create_view('fresh.v', 'SELECT id, n FROM t')")
        assert low.execute("SELECT count(*) FROM fresh.v").fetchone() == (9,)
        install.install(server)
    low.execute("CALL headrace.drop_view('fresh.v')")


def test_no_statement_waits_for_an_advisory_lock():
    """A wait would last as long as any role likes; ``postgres.statements.alone`` does not wait."""
    waiting = re.compile(r"pg_advisory(_xact)?_lock(_shared)?\b")
    root = Path(headrace.__file__).parent
    for path in [*root.rglob("*.py"), *root.rglob("*.sql")]:
        assert not waiting.search(path.read_text()), path


def test_an_engine_starts_while_another_role_holds_its_lock(database, start_engine):
    with psycopg.connect(database, autocommit=True) as conn, role(conn, "keeper") as name:
        conn.execute("CREATE TABLE kept (id int PRIMARY KEY)")
        with connect(database, name) as keeper:
            keeper.execute("SELECT pg_advisory_lock(%s)", (ownership._LOCK,))
            engine = start_engine(database)
            with psycopg.connect(engine.dsn, autocommit=True) as caller:
                caller.execute("CALL headrace.create_view('v', 'SELECT id FROM kept')")
                conn.execute("INSERT INTO kept VALUES (1)")
                caller.execute("CALL headrace.wait_for('v')")
                assert caller.execute("SELECT id FROM v").fetchall() == [(1,)]


def test_an_index_definition_is_one_statement(shared_engine, server, low):
    """A character may be blank or a quote for a tokenizer, but part of a name for Postgres."""
    column = "a\u00a0$b$"
    low.execute(f'CREATE TABLE odd (id int PRIMARY KEY, "{column}" int)')
    low.execute("CALL headrace.create_view('v', 'SELECT * FROM odd')")
    more = f"({column});ALTER ROLE {low.info.user} SUPERUSER;COMMIT;--$b$)"
    assert ask(low, "CALL headrace.create_index('v', %s)", more) == "42601"
    is_super = "SELECT rolsuper FROM pg_roles WHERE rolname = current_user"
    assert low.execute(is_super).fetchone() == (False,)


def test_a_view_in_the_place_of_a_table_that_is_verified(shared_engine, server, low):
    name = low.info.user
    low.execute("CALL headrace.create_view('v', 'SELECT id, n FROM t')")
    low.execute("CALL headrace.wait_for('v')")
    said: list[str] = []

    def verify() -> None:
        with connect(shared_engine.source, name) as conn:
            said.append(ask(conn, "CALL headrace.verify('v')"))

    thread = threading.Thread(target=verify)
    with connect(shared_engine.source, name) as writer:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO t VALUES (100, 100)")
        thread.start()
        # The table to verify was looked up already; the snapshot waits for this transaction.
        wait_until(
            lambda: (
                server.execute(
                    "SELECT FROM pg_stat_activity WHERE application_name ="
                    " 'headrace snapshot' AND wait_event_type = 'Lock'"
                ).fetchone()
                is not None
            ),
            "the snapshot waits",
        )
        low.execute("DROP TABLE v")
        low.execute(f"CREATE VIEW v AS SELECT id, n FROM t WHERE {name}.spy()")
        writer.execute("ROLLBACK")
    thread.join(PATIENCE_S)
    # The table is gone, or this was noticed before and the view has stopped.
    assert said in (["42P01"], ["55000"])
    assert not caught(server, low)
    low.execute("DROP VIEW v")


def test_a_type_under_the_name_of_another(shared_engine, server, low):
    """The sink names no type: the name may now belong to a domain with a user's check."""
    name = low.info.user
    low.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    oid = server.execute(f"SELECT '{name}.mood'::regtype::oid").fetchone()[0]
    fields = (Field("id", 23), Field("m", oid))
    dsn = shared_engine.source
    with door.connect(dsn, name="test", settings=SINK_SETTINGS) as conn:
        shape = table.shape(conn, fields)
        made = table.create(conn, name, "r", shape, columns=("id", "m"), fields=fields)
        target = ResultTable(1, name, "r", int(made), fields)
        writer = SinkWriter(conn)
        for weight in (1, -1):
            for value in (1, 2):
                columns = [pa.array([value], pa.int32()), pa.array(["ok"])]
                rows = diff_batch(fields, columns, pa.array([weight], pa.int64()))
                with conn.transaction():
                    writer.write(target, rows)
            if weight == 1:
                low.execute("ALTER TYPE mood RENAME TO feeling")
                low.execute(f"CREATE DOMAIN mood AS text CHECK ({name}.spy())")
        assert not caught(server, low)
        assert conn.execute(f"SELECT count(*) FROM {name}.r").fetchone() == (0,)
        with contextlib.suppress(psycopg.errors.RaiseException), pytest.raises(TransientError):
            table.create(conn, name, "s", _domain(name), fields=fields)
        conn.execute(f"DROP TABLE {name}.r, {name}.s")
    assert not caught(server, low)


def _domain(name: str) -> str:
    return f"SELECT NULL::int AS id, NULL::{name}.mood AS m"
