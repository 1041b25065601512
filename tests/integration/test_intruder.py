"""Code of a user never runs with the engine's rights (E16).

The intruder owns types, functions and a schema, and may create views.  Each of the functions
tries to leave a file on the server, which only the engine's role can: it is a superuser here.
A view that a catalog check stops is populated again automatically, under the new casts and checks.
"""

from __future__ import annotations

import contextlib

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.waiting import bump, create_marker, wait_until

INTRUDER = "headrace_test_intruder"
SETUP = """
CREATE FUNCTION evil(what text) RETURNS boolean LANGUAGE plpgsql AS $f$
BEGIN
    BEGIN
        PERFORM set_config('role', 'none', true);
        EXECUTE format('COPY (SELECT session_user) TO %L', '{trace}' || what);
    EXCEPTION WHEN OTHERS THEN
        NULL;
    END;
    RETURN true;
END $f$;
CREATE FUNCTION trap() RETURNS trigger LANGUAGE plpgsql
    AS $f$ BEGIN PERFORM m.evil('trigger'); RETURN NEW; END $f$;
CREATE DOMAIN small AS int;
CREATE DOMAIN checked AS int CHECK (m.evil('check'));
CREATE TYPE mood AS ENUM ('sad', 'ok', 'glad');
CREATE TYPE pair AS (n int, t text);
CREATE TYPE nested AS (n checked);
CREATE TABLE t (id int PRIMARY KEY, e mood, es mood[], p pair, n int);
CREATE FUNCTION mood_text(mood) RETURNS text IMMUTABLE LANGUAGE sql
    AS $f$ SELECT CASE WHEN m.evil('mood_text') THEN 'same' END $f$;
CREATE FUNCTION moods_text(mood[]) RETURNS text IMMUTABLE LANGUAGE sql
    AS $f$ SELECT CASE WHEN m.evil('moods_text') THEN 'same' END $f$;
CREATE FUNCTION text_moods(text) RETURNS mood[] IMMUTABLE LANGUAGE sql
    AS $f$ SELECT CASE WHEN m.evil('text_moods') THEN '{{}}'::m.mood[] END $f$;
CREATE FUNCTION pair_json(pair) RETURNS json IMMUTABLE LANGUAGE sql
    AS $f$ SELECT CASE WHEN m.evil('pair_json') THEN 'null'::json END $f$;
INSERT INTO t SELECT i, 'ok', '{{ok}}', ROW(i, 'a')::pair, i FROM generate_series(1, 5) i;
"""
LATER = """
CREATE CAST (mood AS text) WITH FUNCTION mood_text(mood) AS ASSIGNMENT;
CREATE CAST (mood[] AS text) WITH FUNCTION moods_text(mood[]) AS ASSIGNMENT;
CREATE CAST (text AS mood[]) WITH FUNCTION text_moods(text) AS ASSIGNMENT;
CREATE CAST (pair AS json) WITH FUNCTION pair_json(pair);
ALTER DOMAIN small ADD CHECK (m.evil('later_check')) NOT VALID;
"""
VIEWS = {
    "columns": "SELECT id, e, es, n FROM m.t",
    "texts": "SELECT id, e::text || 'x' AS e, es::text AS es FROM m.t",
    "groups": "SELECT es, count(*) AS c, max(e::text) AS e FROM m.t GROUP BY es",
    "domains": "SELECT id, n::m.small + 1 AS n FROM m.t",
    "sums": "SELECT sum(n::m.checked) AS n FROM m.t",
    "rows": "SELECT id, to_json(p) AS p, row_number() OVER (ORDER BY e::text, id) FROM m.t",
    "arrays": "SELECT id FROM m.t WHERE es = '{ok}'",
}
REFUSED = {
    "pairs": "SELECT id, p FROM m.t",
    "whole": "SELECT t FROM m.t",
    "smalls": "SELECT id, ARRAY[n]::m.small[] AS n FROM m.t",
    "checks": "SELECT id, ARRAY[n]::m.checked[] AS n FROM m.t",
}


LITERALS = (
    # Postgres evaluates it when it analyses the query.
    "SELECT '(1)'::m.nested AS n",
    "SELECT id FROM m.t WHERE ARRAY[n]::m.checked[] = '{1}'",
    "SELECT id FROM m.t WHERE ROW(n)::m.nested IN ('(1)', '(2)')",
)
CALLS = (
    "CALL headrace.create_view('literal', %s)",
    "CALL headrace.check_view(%s)",
    "SELECT * FROM headrace.explain_view(%s)",
)


def refused(conn: psycopg.Connection, statement: str, *params: str) -> str:
    with pytest.raises(psycopg.errors.FeatureNotSupported) as caught:
        conn.execute(statement, params)
    return str(caught.value)


@pytest.fixture
def server(database):
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(f"DROP ROLE IF EXISTS {INTRUDER}")
        conn.execute(f"CREATE ROLE {INTRUDER} LOGIN")
        conn.execute(f"CREATE SCHEMA m AUTHORIZATION {INTRUDER}")
        conn.execute("GRANT USAGE ON SCHEMA m TO PUBLIC")
        yield conn
        conn.execute(f"DROP OWNED BY {INTRUDER} CASCADE")
        conn.execute(f"DROP ROLE {INTRUDER}")


@pytest.fixture
def traces(server):
    """Return a function that lists the files that were left with the engine's rights."""
    [(directory,)] = server.execute("SHOW data_directory").fetchall()
    prefix = f"trace_{server.info.dbname}_"

    def found() -> list[str]:
        files = "SELECT f FROM pg_ls_dir(%s) f WHERE starts_with(f, %s) ORDER BY f"
        return [row[0] for row in server.execute(files, (directory, prefix))]

    found.prefix = f"{directory}/{prefix}"
    return found


@pytest.fixture
def engine(database, server, start_engine):
    return start_engine(database, HEADRACE_CATALOG_POLL_MS="3600000")


@pytest.fixture
def login(database, engine):
    """Open the intruder's sessions: at the server, and through the engine."""
    with (
        psycopg.connect(
            make_conninfo(database, user=INTRUDER, options="-csearch_path=m"), autocommit=True
        ) as own,
        psycopg.connect(
            make_conninfo(engine.dsn, user=INTRUDER, options="-csearch_path=m"), autocommit=True
        ) as relayed,
    ):
        yield own, relayed


def covered(server: psycopg.Connection) -> None:
    """Wait until the marker's view covers a transaction that begins now."""
    number = bump(server)
    shown = "SELECT n FROM marker_view"
    wait_until(lambda: server.execute(shown).fetchone()[0] >= number, "covered")


def test_code_of_a_user_has_no_rights_of_ours(server, traces, engine, login):
    own, relayed = login
    with psycopg.connect(engine.dsn, autocommit=True) as commander:
        create_marker(server, commander)
    own.execute(SETUP.format(trace=traces.prefix))
    for name, query in VIEWS.items():
        relayed.execute("CALL headrace.create_view(%s, %s)", (name, query))
    for name, query in REFUSED.items():
        why = refused(relayed, "CALL headrace.create_view(%s, %s)", name, query)
        assert "with the rights of Headrace" in why
    for query in LITERALS:
        for call in CALLS:
            with contextlib.suppress(psycopg.errors.FeatureNotSupported):
                relayed.execute(call, (query,))
    assert traces() == []
    own.execute(LATER)
    for change in (
        "INSERT INTO t SELECT i, 'sad', '{sad}', ROW(i, 'b')::pair, i FROM generate_series(6, 8) i",
        "UPDATE t SET e = 'glad', es = '{glad,ok}', p = ROW(99, 'z')::pair WHERE id = 1",
        "DELETE FROM t WHERE id = 3",
    ):
        own.execute(change)
        covered(server)
    assert traces() == []
    want = "SELECT id, e, es, n FROM m.t ORDER BY id"
    have = "SELECT id, e, es, n FROM m.columns ORDER BY id"
    assert server.execute(have).fetchall() == server.execute(want).fetchall()
    halted = (
        "SELECT view_name, headrace.view_message(id) FROM headrace.views WHERE status <> 'running'"
    )
    wait_until(lambda: not server.execute(halted).fetchall(), "all are filled anew")
    assert traces() == []
    for name in ("domains", "sums"):
        refused(relayed, "SELECT * FROM headrace.verify_view(%s)", name)
    # The column of the result gets the new type, too.
    own.execute("ALTER TABLE t ALTER e TYPE text USING 'other'")
    own.execute("INSERT INTO t (id, e) VALUES (10, 'more')")

    def same() -> bool:
        with contextlib.suppress(psycopg.Error):  # a resync may already be under way
            relayed.execute("CALL headrace.resync_view('columns')")
        return server.execute(have).fetchall() == server.execute(want).fetchall()

    wait_until(same, "the view follows")
    own.execute("INSERT INTO t (id, e) VALUES (11, 'more')")
    covered(server)
    assert server.execute(have).fetchall() == server.execute(want).fetchall()
    assert traces() == []
    # The owner of the schema may drop a result table, and put a trap in its place.
    own.execute("DROP TABLE columns")
    own.execute("CREATE TABLE columns (id int, e text, es mood[], n int)")
    own.execute("CREATE TRIGGER trap BEFORE INSERT ON columns EXECUTE FUNCTION trap()")
    own.execute("GRANT ALL ON columns TO PUBLIC")
    own.execute("INSERT INTO t VALUES (9, 'ok', '{ok}', NULL, 9)")
    status = "SELECT headrace.view_message(id) FROM headrace.views WHERE view_name = 'columns'"

    def stopped() -> bool:
        why = server.execute(status).fetchone()[0] or ""
        return "was replaced by another table" in why

    wait_until(stopped, "the view has stopped")
    assert traces() == []


def test_a_new_cast_stops_what_it_could_change(database, server, traces, start_engine):
    engine = start_engine(database, HEADRACE_CATALOG_POLL_MS="50")
    server.execute("SET search_path = m")
    server.execute(SETUP.format(trace=traces.prefix))
    with psycopg.connect(engine.dsn, autocommit=True) as commander:
        commander.execute(
            "CALL headrace.create_view('m.v', %s, '{\"on_change\": \"stop\"}')",
            ("SELECT es::text FROM m.t",),
        )
    server.execute("CREATE CAST (mood[] AS text) WITH FUNCTION moods_text(mood[]) AS ASSIGNMENT")
    message = "SELECT headrace.view_message(id) FROM headrace.views"

    def stopped() -> bool:
        found = server.execute(message).fetchone()[0] or ""
        return "a cast of type m.mood[] was created or dropped" in found

    wait_until(stopped, "the view has stopped")


def test_the_powerless_role_is_asked_for_before_it_is_needed(server, engine, login):
    own, relayed = login
    server.execute("REVOKE USAGE ON SCHEMA m FROM PUBLIC")
    own.execute("CREATE TYPE mood AS ENUM ('sad', 'ok', 'glad')")
    own.execute("CREATE TABLE t (id int PRIMARY KEY, e mood)")
    own.execute("CREATE FUNCTION f(int) RETURNS int IMMUTABLE LANGUAGE sql RETURN $1 + 1")
    own.execute("REVOKE EXECUTE ON FUNCTION f FROM PUBLIC")
    for number, query in enumerate(
        (
            "SELECT e > 'sad' AS e FROM t",
            "SELECT max(e) AS e FROM t",
            "SELECT id FROM t ORDER BY e, id LIMIT 1",
            "SELECT id, row_number() OVER (ORDER BY e, id) AS n FROM t",
            "SELECT f(id) AS f FROM t",
        )
    ):
        call = "CALL headrace.create_view(%s, %s)"
        with pytest.raises(psycopg.errors.InsufficientPrivilege) as caught:
            relayed.execute(call, (f"v{number}", query))
        hint = caught.value.diag.message_hint or ""
        assert "GRANT USAGE ON SCHEMA m TO headrace_eval" in hint
        server.execute(hint.removeprefix("Run: "))
        relayed.execute(call, (f"v{number}", query))
        role = hint.rpartition(" ")[2]
        server.execute(f"REVOKE USAGE ON SCHEMA m FROM {role}")
    # An expression without evaluation needs no privilege.
    relayed.execute("CALL headrace.create_view('plain', $$SELECT id, e FROM t WHERE e = 'ok'$$)")
