"""Planning a query runs only code of the caller, and only with the caller's rights.

``spy()`` belongs to a user without rights and stands wherever analysis might call it. Called as any
other role (but the role without any right) it advances a sequence, which no rollback undoes; if it
finds the engine's rights, it writes a file.
"""

from __future__ import annotations

import contextlib

import psycopg
import pytest

from tests.security.roles import connect, role
from tests.security.spies import ask, caught, spying

SPY = """
CREATE SEQUENCE caught;
GRANT ALL ON SEQUENCE caught TO PUBLIC;
CREATE FUNCTION spy() RETURNS boolean LANGUAGE plpgsql AS $f$
BEGIN
    IF current_user <> '{low}' AND current_user NOT LIKE 'headrace_eval%' THEN
        PERFORM nextval('{low}.caught');
    END IF;
    BEGIN
        PERFORM set_config('role', 'none', false);
        IF current_user <> '{low}' AND current_user NOT LIKE 'headrace_eval%' THEN
            PERFORM nextval('{low}.caught');
        END IF;
    EXCEPTION WHEN OTHERS THEN NULL;
    END;
    RETURN true;
END $f$;
CREATE DOMAIN checked AS int CHECK ({low}.spy());
CREATE TYPE nested AS (n checked);
CREATE TYPE deeper AS (a int, b nested[]);
CREATE DOMAIN outer_one AS nested CHECK ({low}.spy());
CREATE TYPE spread AS RANGE (subtype = checked);
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TYPE plain AS (n int);
CREATE TABLE rows_of (id int PRIMARY KEY, c checked);
CREATE TABLE t (id int PRIMARY KEY, n int, x nested, m mood[], p plain, r spread, d deeper);
GRANT SELECT ON ALL TABLES IN SCHEMA {low} TO PUBLIC;
CREATE FUNCTION takes(nested) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION takes_many(checked[]) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 1';
"""
HARMFUL = {
    "composite": "SELECT '(1)'::{low}.nested AS x",
    "typed": "SELECT {low}.nested '(1)' AS x",
    "called": "SELECT {low}.outer_one('(1)') AS x",
    "cast": "SELECT CAST('(1)' AS {low}.nested) AS x",
    "array": "SELECT '{{1}}'::{low}.checked[] AS x",
    "typed array": "SELECT CAST('{{1}}' AS {low}.checked[]) AS x",
    "bounds": "SELECT '[1:1]={{1}}'::{low}.checked[] AS x",
    "range": "SELECT '[1,2]'::{low}.spread AS x",
    "open range": "SELECT '(1,2)'::{low}.spread AS x",
    "deep": 'SELECT $${{"(1,\\"{{(1)}}\\")"}}$$::{low}.deeper[] AS x',
    "domain over it": "SELECT '(1)'::{low}.outer_one AS x",
    "row of a table": "SELECT '(1,2)'::{low}.rows_of AS x",
    "blanks": "SELECT E' \\t\\n (1)'::{low}.nested AS x",
    "escape": "SELECT E'\\x281)'::{low}.nested AS x",
    "octal": "SELECT E'\\0501)'::{low}.nested AS x",
    "unicode escape": "SELECT E'\\u00281)'::{low}.nested AS x",
    "unicode": "SELECT U&'\\00281)'::{low}.nested AS x",
    "uescape": "SELECT U&'!00281)' UESCAPE '!'::{low}.nested AS x",
    "dollar": "SELECT $a$(1)$a$::{low}.nested AS x",
    "continued": "SELECT ''\n  '(1)'::{low}.nested AS x",
    "continued after a remark": "SELECT '' -- it's\n  '(1)'::{low}.nested AS x",
    "column": "SELECT id FROM {low}.t WHERE x = '(1)'",
    "distinct": "SELECT id FROM {low}.t WHERE x IS DISTINCT FROM '(1)'",
    "distinct turned": "SELECT id FROM {low}.t WHERE '(1)' IS NOT DISTINCT FROM x",
    "in": "SELECT id FROM {low}.t WHERE x IN ('(1)', '(2)')",
    "any": "SELECT id FROM {low}.t WHERE n = ANY ('{{1}}'::{low}.checked[])",
    "range column": "SELECT id FROM {low}.t WHERE r = '[1,2]'",
    "contains": "SELECT id FROM {low}.t WHERE r && '[1,2]'",
    "case": "SELECT CASE WHEN id = 1 THEN x ELSE '(1)' END AS x FROM {low}.t",
    "coalesce": "SELECT coalesce(x, '(1)') AS x FROM {low}.t",
    "union": "SELECT x FROM {low}.t UNION ALL SELECT '(1)'",
    "values": "SELECT * FROM (VALUES (NULL::{low}.nested), ('(1)')) v (x)",
    "array of": "SELECT ARRAY[x, '(1)'] AS x FROM {low}.t",
    "function": "SELECT {low}.takes('(1)') AS x",
    "function of arrays": "SELECT {low}.takes_many('{{1}}') AS x",
    "beside others": "SELECT id FROM {low}.t WHERE x = '(1)' AND 'a' ~ '(a|b)'"
    " AND '{{\"a\": 1}}'::jsonb ? 'a' AND 1 = ANY ('{{1,2}}'::int[])",
    "subquery": "SELECT id FROM {low}.t WHERE EXISTS (SELECT '(1)'::{low}.nested)",
    "unused": "WITH w AS (SELECT '(1)'::{low}.nested) SELECT id FROM {low}.t",
    "limit": "SELECT id FROM {low}.t ORDER BY id = ('(1)'::{low}.nested).n LIMIT 1",
    "remark": "SELECT /* ' /* '' */ */ '(1)'::{low}.nested AS x -- '",
    "names": "SELECT \"it's\".x FROM (SELECT '(1)'::{low}.nested AS x) \"it's\"",
    "backslash": "SELECT '\\' AS a, '(1)'::{low}.nested AS \"'\"",
}
HARMLESS = {
    "texts": "SELECT id, 'a' ~ '(a|b)' AS x, concat('(', id, ')') AS y, '[b]' AS z,"
    " E'\\x28' AS e, U&'\\0028' AS u, $$(x)$$ AS d FROM t",
    "json": "SELECT id, '{\"a\": [1]}'::jsonb -> 'a' AS x, json '[1]' AS y,"
    " jsonb_path_exists('{\"a\": 1}', '$.a ? (@ > 0)') AS z FROM t",
    "arrays": "SELECT id FROM t WHERE n = ANY ('{1,2}') AND '{a,b}'::text[] @> '{a}'",
    "ranges": "SELECT id, int4range '[1,5)' @> n AS x, '(1,2]'::numrange AS y,"
    " '{[1,2]}'::int4multirange AS z FROM t",
    "shapes": "SELECT id, point '(1,2)' AS a, '((0,0),(1,1))'::box AS b,"
    " '[(0,0),(1,1)]'::lseg AS c, circle '<(0,0),1>' AS d, '((0,0),(1,1))'::polygon AS e,"
    " '[(0,0),(1,1)]'::path AS f FROM t",
    "uuid": "SELECT id, '{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}'::uuid AS x FROM t",
    "enums": "SELECT id FROM t WHERE m = '{ok}' OR m @> '{sad}'",
    "bits": "SELECT id, B'101' AS x, N'(x)' AS y FROM t",
    "continued": "SELECT id, 'a'\n'(b)' AS x FROM t",
}
CALLS = (
    "CALL headrace.check_view(%s)",
    "CALL headrace.create_view('public.harm', %s)",
    "SELECT * FROM headrace.explain_view(%s)",
    "CALL headrace.alter_view('public.known', %s)",
)


@pytest.fixture
def low(server):
    with spying(server, SPY) as conn:
        yield conn


def test_the_spy_can_be_caught(server, low):
    """The spy can be caught, so these tests can fail: here a superuser runs such a query."""
    with contextlib.suppress(psycopg.Error):
        server.execute(f"SELECT '(1)'::{low.info.user}.nested")
    assert caught(server, low)


def test_a_superuser_plans_what_others_have_set(shared_engine, server, low):
    name = low.info.user
    server.execute("CREATE TABLE public.mine (id int PRIMARY KEY)")
    server.execute("CALL headrace.create_view('known', 'SELECT id FROM public.mine')")
    with psycopg.connect(shared_engine.dsn, autocommit=True) as relayed:
        for what, query in HARMFUL.items():
            text = query.format(low=name)
            for conn in (server, relayed):
                for call in CALLS if what == "composite" else CALLS[:1]:
                    if call.startswith("SELECT") and conn is server:
                        continue  # answered on the port only
                    code = ask(conn, call, text)
                    assert not caught(server, low), (what, call, code)
                    assert code == "0A000", (what, call, code)


def test_strings_that_end_otherwise_hide_nothing(shared_engine, server, low):
    """With standard_conforming_strings off, a backslash escapes the quote after it."""
    name = low.info.user
    for setting, query in (
        ("off", "SELECT '\\x281)'::{low}.nested AS x"),
        ("off", "SELECT 'a\\'b' AS a, '(1)'::{low}.nested AS x"),
        ("on", "SELECT 'a\\' AS a, '(1)'::{low}.nested AS x"),
        ("off", "SELECT 'a\\'' '(1)'::{low}.nested AS x"),
    ):
        with psycopg.connect(shared_engine.dsn, autocommit=True) as relayed:
            relayed.execute(f"SET standard_conforming_strings = {setting}")
            relayed.execute("SET backslash_quote = on")
            text = query.format(low=name)
            statement = f"CALL headrace.check_view($do${text}$do$)"
            with pytest.raises(psycopg.Error):
                relayed.execute(statement)
            assert not caught(server, low), query


def test_another_user_without_rights_is_safe_as_well(server, low):
    with role(server, "other") as other, connect(server.info.dsn, other) as conn:
        server.execute(f"GRANT TEMPORARY ON DATABASE {server.info.dbname} TO {other}")
        for what in ("composite", "array", "column", "function", "range"):
            code = ask(conn, CALLS[0], HARMFUL[what].format(low=low.info.user))
            assert (code, caught(server, low)) == ("0A000", False), what


def test_the_owner_himself_gets_no_rights_by_it(shared_engine, server, low):
    with connect(shared_engine.dsn, low.info.user) as relayed:
        for query in HARMFUL.values():
            ask(relayed, CALLS[0], query.format(low=low.info.user))
    assert not caught(server, low)


def test_harmless_literals_are_read_as_ever(server, low):
    """Literals with brackets keep their values for a role that owns nothing in the query."""
    with role(server, "other") as other, connect(server.info.dsn, other) as conn:
        conn.execute(f"SET search_path = {other}, {low.info.user}")
        low.execute("INSERT INTO t VALUES (1, 1, NULL, '{ok}', NULL, NULL, NULL)")
        for number, (what, query) in enumerate(HARMLESS.items()):
            conn.execute("CALL headrace.create_view(%s, %s)", (f"v{number}", query))
            have = conn.execute(f"SELECT v::text FROM v{number} v").fetchall()
            want = conn.execute(f"SELECT q::text FROM ({query}) q").fetchall()
            assert have == want, what
    assert not caught(server, low)


def test_errors_stand_where_they_stand(server, low):
    """The check before the analysis changes neither messages nor error positions."""
    for query in (
        "SELECT '(a)' AS a, nothing FROM {low}.t",
        "SELECT '(a)' AS a, '(1)'::int AS b",
        "SELECT '{{1}}'::int[] AS a, 'x'::int AS b",
        "SELECT '{{x}}'::int[] AS a",
        "SELECT id FROM {low}.t WHERE '(a)'",
        "SELECT '[a' ~ 1 AS x",
    ):
        text = query.format(low=low.info.user)
        with pytest.raises(psycopg.Error) as by_us:
            low.execute("CALL headrace.check_view(%s)", (text,))
        with pytest.raises(psycopg.Error) as by_postgres:
            low.execute(f"CREATE TEMPORARY VIEW x AS {text}")
        ours, theirs = by_us.value, by_postgres.value
        assert (ours.sqlstate, ours.diag.message_primary) == (
            theirs.sqlstate,
            theirs.diag.message_primary,
        )


SWAP = """
CREATE VIEW {low}.door AS SELECT id FROM {low}.t;
DROP TYPE {low}.kind;
CREATE DOMAIN {low}.kind AS text CHECK ({low}.spy());
"""


def test_a_name_that_means_something_else_by_now(database, start_engine):
    """A type of a stored query is dropped, and a trap is created under its name."""
    engine = start_engine(database, HEADRACE_CATALOG_POLL_MS="3600000")
    with (
        psycopg.connect(engine.source, autocommit=True) as server,
        psycopg.connect(engine.dsn, autocommit=True) as relayed,
        role(server, "low") as name,
        connect(engine.source, name) as low,
    ):
        low.execute(SPY.format(low=name))
        low.execute("CREATE TYPE kind AS ENUM ('a', 'b')")
        low.execute("INSERT INTO t (id) VALUES (1)")
        query = "SELECT id, ('{a}'::kind[])::text AS k, 'a'::kind::text AS l FROM t"
        low.execute("CALL headrace.create_view('stored', %s)", (query,))
        low.execute(SWAP.format(low=name))
        for statement in (
            "SELECT * FROM headrace.verify_view('{low}.stored')",
            "CALL headrace.check_view('SELECT * FROM {low}.stored')",
            "CALL headrace.create_view('public.reader', 'SELECT * FROM {low}.stored')",
            "CALL headrace.resync_view('{low}.stored')",
        ):
            with contextlib.suppress(psycopg.Error):
                relayed.execute(statement.format(low=name))
            assert not caught(server, low), statement
        relayed.execute(f"CALL headrace.drop_view('{name}.stored')")


def test_an_index_evaluates_nothing_of_others(server, low):
    name = low.info.user
    low.execute(
        "CREATE FUNCTION pure(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 1 WHERE spy()'"
    )
    low.execute("CALL headrace.create_view('v', 'SELECT id, n FROM t')")
    for definition in (
        f"((n + {name}.pure(1)))",
        f"((n + {name}.pure(1))) WHERE {name}.pure(2) = 1",
        f"(n) WHERE ('(1)'::{name}.nested).n = 1",
        f"(n) WHERE n = ANY ('{{1}}'::{name}.checked[])",
        f'(n) WHERE n = ANY (CAST(\'{{1}}\' AS "{name}"."checked"[]))',
        "((pure(1)))",
    ):
        for conn in (server, low):
            code = ask(conn, f"CALL headrace.create_index('{name}.v', %s)", definition)
            assert code, definition
            assert not caught(server, low), definition


def test_views_over_views_whose_literals_are_looked_at(shared_engine, low):
    """Each query is checked separately, also while the query of the reading view is analysed."""
    name = low.info.user
    query = f"SELECT id, '{{}}'::json AS j, '[1]'::jsonb AS b, '{{1}}'::int[] AS a FROM {name}.t"
    over = f"SELECT id, j, '{{2}}'::int[] || a AS a FROM {name}.v WHERE b @> '1'::jsonb"
    with connect(shared_engine.dsn, name) as conn:
        conn.execute(f"SET search_path = {name}")
        low.execute("INSERT INTO t VALUES (1)")
        conn.execute("CALL headrace.create_view('v', %s)", (query,))
        conn.execute("CALL headrace.create_view('w', %s)", (over,))
        conn.execute("INSERT INTO t VALUES (2)")
        conn.execute("CALL headrace.wait_for('w')")
        shown = "SELECT id, j::text, a FROM {} ORDER BY id"
        assert (
            conn.execute(shown.format("w")).fetchall()
            == conn.execute(shown.format(f"({over}) x")).fetchall()
            == [(1, "{}", [2, 1]), (2, "{}", [2, 1])]
        )
        conn.execute("CALL headrace.drop_view('w')")
