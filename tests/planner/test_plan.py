"""Accepted and refused queries, and error messages."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from headrace.collections.plan import ReduceSpec, TopKSpec, WindowSpec, from_json, to_json
from headrace.errors import (
    HeadraceError,
    PrerequisiteError,
    PrivilegeError,
    UnsupportedError,
    UserError,
)
from headrace.expressions import ir
from headrace.planner import PlanRequest, limits, plan
from headrace.planner.analyse.catalog import Catalog
from headrace.postgres.settings import FUNCTION_PATH
from tests.planner.test_words import JARGON


def refusal(conn, query, **request) -> HeadraceError:
    with pytest.raises(UserError) as caught:
        plan(conn, PlanRequest(query, **request))
    assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    return caught.value


UNSUPPORTED = [
    ("SELECT id FROM t LIMIT -1", "negative limit", "LIMIT"),
    ("SELECT id FROM t ORDER BY random() LIMIT 1", "volatile", "random"),
    (
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION SELECT count(*)::int FROM"
        " (SELECT * FROM r) x) SELECT n FROM r",
        "aggregate without group by over the recursive reference",
        None,
    ),
    (
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION (SELECT n + 1 FROM r WHERE n < 5"
        " UNION ALL SELECT id FROM t)) SELECT n FROM r",
        "union over the recursive reference",
        None,
    ),
    (
        "WITH RECURSIVE r(n) AS (SELECT id FROM t UNION ALL SELECT x.n FROM (SELECT n FROM r"
        " UNION ALL SELECT id FROM t) x) CYCLE n SET c USING p SELECT n FROM r",
        "union over the recursive reference beside cycle",
        None,
    ),
    (
        "WITH RECURSIVE r(n) AS (SELECT id FROM t UNION ALL SELECT k FROM r, t"
        " WHERE t.id = r.n) CYCLE n SET c USING p SELECT n FROM r WHERE p IS NULL",
        "path or order column",
        None,
    ),
    (
        "WITH RECURSIVE r(n) AS (SELECT n FROM t UNION ALL SELECT r.n FROM r)"
        " CYCLE n SET c USING p SELECT n FROM r",
        "cycle over type numeric",
        None,
    ),
    (
        "WITH RECURSIVE r(n) AS (SELECT id FROM t UNION ALL SELECT DISTINCT r.n FROM r)"
        " CYCLE n SET c USING p SELECT n FROM r",
        "distinct over the recursive reference beside cycle",
        None,
    ),
    ("SELECT t.id, r.d FROM t, jsonb_to_record(t.jb) AS r(d date[])", "clock", "jsonb_to_record"),
    ("SELECT x FROM ROWS FROM (random()) x", "volatile", "random"),
    ("SELECT x FROM pg_ls_dir('.') x", "volatile", "pg_ls_dir"),
    ("SELECT sum(id) OVER (PARTITION BY generate_series(1, 3)) FROM t", "window", None),
    (
        "SELECT CASE WHEN row_number() OVER (ORDER BY id) = 1"
        " THEN (SELECT max(s::int) FROM u) END AS v FROM t",
        "beside a window",
        None,
    ),
    ("SELECT t.id FROM t FULL JOIN u ON t.k < u.k", "full join is only", "FULL"),
    ("SELECT t.id FROM t FULL OUTER JOIN u ON t.k = 1 OR t.k = u.k", "full join is only", "FULL"),
    ("SELECT t.id FROM t FULL JOIN u ON t.k = (SELECT max(a) FROM w)", "full join is only", "FULL"),
    ("SELECT t.id FROM t FULL JOIN u ON u.k = (SELECT max(a) FROM w)", "full join is only", "FULL"),
    ("SELECT t.id FROM t FULL JOIN u ON EXISTS (SELECT FROM w)", "full join is only", "FULL"),
    (
        "SELECT t.id FROM t FULL JOIN u ON EXISTS (SELECT FROM w WHERE a = t.id)",
        "full join is only",
        "FULL",
    ),
    (
        "SELECT t.id FROM t FULL JOIN u ON t.k = u.k AND EXISTS (SELECT FROM w"
        " WHERE a = t.id AND b = u.id)",
        "reads both sides",
        None,
    ),
    (
        "SELECT t.id FROM t FULL JOIN u ON t.k = u.k AND u.k = (SELECT a FROM w WHERE b = t.id)",
        "may fail",
        None,
    ),
    ("SELECT 't'::regclass::text AS x FROM t", "regclass", None),
    ("SELECT 99999999::regclass::text AS x FROM t", "regclass", None),
    ("SELECT id::regclass::text AS x FROM t", "an oid", None),
    ("SELECT ctid FROM t", "ctid", "ctid"),
    ("SELECT id FROM t WHERE xmin::text = '1'", "xmin", "xmin"),
    ("SELECT id, s::timetz AS d FROM t", "current time", "::timetz"),
    ("SELECT id, tags::date[] AS d FROM t", "current time", None),
    ("SELECT id, pg_typeof(m) FROM t", "catalogs", "pg_typeof"),
    ("SELECT id, pg_typeof(ROW(1 / k)) FROM t", "catalogs", "pg_typeof"),
    ("SELECT id, format_type(id::oid, -1) FROM t", "catalogs", "format_type"),
    ("SELECT id, format_type(16999, -1) FROM t", "catalogs", "format_type"),
    ("SELECT id, current_schema FROM t", "depends on the role", "current_schema"),
    (
        "SELECT t.id, q.m FROM t, LATERAL (SELECT sum(u.k) OVER (ORDER BY u.id"
        " ROWS t.k PRECEDING) AS m FROM u) q",
        "frame offset",
        "t.k PRECEDING",
    ),
    ("SELECT id FROM t TABLESAMPLE SYSTEM (10)", "tablesample", "TABLESAMPLE"),
    ("SELECT id FROM t FOR UPDATE", "for update", "FOR UPDATE"),
    ("SELECT id, random() FROM t", "random", "random"),
    ("SELECT id, now() FROM t", "now", "now"),
    ("SELECT id, extract(second FROM now()) AS s FROM t", "now", "now"),
    ("SELECT id, extract(epoch FROM now()) AS s FROM t", "now", "now"),
    ("SELECT id, date_trunc('milliseconds', now()) AS s FROM t", "now", "now"),
    ("SELECT id, date_trunc('hour', now()::timestamp(0)) AS s FROM t", "localtimestamp", None),
    ("SELECT id, to_char(now(), 'HH24:MI:SS.US') AS s FROM t", "now", "now"),
    ("SELECT id, date_trunc('second', now() + interval '0.5 s') AS s FROM t", "now", "now"),
    ("SELECT id, date_bin('1 minute', now(), '2001-01-01 00:00:00.5') AS s FROM t", "now", "now"),
    ("SELECT id, date_bin('0.1 s', now(), '2001-01-01') AS s FROM t", "now", "now"),
    ("SELECT id, date_trunc(s, now()) AS x FROM t", "now", "now"),
    ("SELECT id, current_date - now()::time AS s FROM t", "now", None),
    ("SELECT id FROM t WHERE age(tz) < '1 day' AND d < current_date", "age", None),
    ("SELECT id, current_user FROM t", "current_user", "current_user"),
    ("SELECT id, localtimestamp - ts FROM t", "localtimestamp", "localtimestamp"),
    ("SELECT id FROM t WHERE tz > current_timestamp(3)", "current_timestamp", None),
    ("SELECT id FROM t WHERE s > now()::text", "comparison", "now"),
    ("SELECT id FROM t WHERE now() > now() - i", "comparison", "now"),
    ("SELECT id FROM t WHERE now() + i > tz", "comparison", "now"),
    ("SELECT id FROM t WHERE extract(day FROM now() - tz) < 3", "comparison", "now"),
    ("SELECT id FROM t WHERE extract(epoch FROM now() - tz) < 0.00000001", "comparison", "now"),
    ("SELECT id FROM t WHERE tstzrange(now(), tz) @> tz", "now", "now"),
    ("SELECT id FROM t WHERE CASE WHEN ok THEN now() - tz > '1 day' END", "case", "now"),
    ("SELECT t.id FROM t LEFT JOIN u ON t.tz < now() - u.k * interval '1 s'", "left", None),
    (
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION SELECT n + 1 FROM r WHERE n < 5"
        " AND now() > '2000-01-01'::timestamptz + n * interval '1 day') TABLE r",
        "with recursive",
        "now",
    ),
    ("SELECT id, clock_timestamp() FROM t", "clock_timestamp", "clock_timestamp"),
    ("SELECT id, current_setting('TimeZone') AS z FROM t", "current_setting", None),
    ("SELECT id, age(tz) FROM t", "age", "age"),
    ("SELECT id, nextval('x'::text::regclass) FROM t", "", None),
    ("SELECT id, 'today'::date AS d FROM t", "current time", "'today'"),
    ("SELECT id FROM t WHERE ts > ' Now '", "current time", "' Now '"),
    ("SELECT id, counted(k) FROM t", "counted", "counted"),
    ("SELECT id, dice(k) FROM t", "dice", "dice"),
    ("SELECT id, padded(k) FROM t", "default", "padded"),
    ("SELECT j, count(*) FROM t GROUP BY jb, j::text, j", "", None),
    ("SELECT s, count(*) FROM loose GROUP BY s", "", None),
    ("SELECT DISTINCT s FROM loose", "nondeterministic", None),
    ("SELECT id FROM hasty", "unlogged", None),
    ("SELECT count(*) FROM columnless", 'table "columnless" without columns', None),
    ("SELECT count(*) FROM columnless_full, t", "without columns", None),
    ("SELECT id FROM t WHERE EXISTS (SELECT FROM columnless)", "without columns", None),
    ("SELECT y FROM hidden", 'generated column "y"', None),
    ("SELECT x FROM bykey", "in the key of table", None),
    ("SELECT id FROM frozen_view", "materialized view", None),
    ("SELECT relname FROM pg_class", "system relation", None),
    ("SELECT tablename FROM pg_tables", "system relation", None),
    ("SELECT FROM t", "without columns", None),
    (f"SELECT {'+'.join(['k'] * 1000)} AS c FROM t", "this deeply", None),
    (f"SELECT id FROM t WHERE {'abs(' * 1000}k{')' * 1000} > 1", "this deeply", None),
]


@pytest.mark.parametrize(("query", "word", "at"), UNSUPPORTED, ids=lambda v: str(v)[:40])
def test_unsupported(conn, query, word, at):
    error = refusal(conn, query)
    assert error.code in ("0A000", "42883", "42704") or not word
    told = f"{error.message} {error.detail or ''} {error.hint or ''}"
    assert JARGON.search(told) is None, told
    assert word in f"{error.message} {error.detail or ''}".lower(), error.message
    if word:
        assert isinstance(error, UnsupportedError)
    if at is not None:
        # Postgres 17 and newer keep no locations: then only names are found.
        old = conn.info.server_version < 170000
        assert error.position is not None or not (old or '"' in error.message)
        if old:
            found = query[error.position - 1 :]
            # An operator's or cast's location may be the operator itself.
            assert query.find(at) >= 0
            assert found.startswith(at) or abs(query.index(at) + 1 - error.position) <= 4


def test_a_cast_to_text_is_no_remedy_for_a_nondeterministic_collation(conn):
    with pytest.raises(UnsupportedError) as refused:
        plan(conn, PlanRequest("SELECT s, count(*) FROM loose GROUP BY s"))
    assert 'such as lower(…) COLLATE "C"' in str(refused.value.hint)
    with pytest.raises(UnsupportedError):
        plan(conn, PlanRequest("SELECT s::text AS s, count(*) FROM loose GROUP BY 1"))
    plan(conn, PlanRequest('SELECT s COLLATE "C" AS s, count(*) FROM loose GROUP BY 1'))


def test_copies_without_end_are_refused(conn, monkeypatch):
    monkeypatch.setattr(limits, "COLUMNS_MAX", 100)
    inner = "x.k"
    for depth in range(4):
        inner = (
            f"(SELECT max(x{depth}.k) FROM t x{depth} FULL JOIN t y{depth}"
            f" ON x{depth}.k = y{depth}.id WHERE x{depth}.k = x.k OR y{depth}.k > {inner})"
        )
    error = refusal(conn, f"SELECT x.id, {inner} AS m FROM t x")
    assert isinstance(error, UnsupportedError)
    assert "nested this deeply" in error.message
    assert error.hint


ERRORS = [
    ("SELECT id FRM t", "42601", "t"),
    ("SELECT id, nope FROM t", "42703", "nope"),
    ("SELECT é.id, 'é' FROM t", "42P01", "é.id"),
    ("SELECT * FROM nope", "42P01", "nope"),
    ("SELECT nofunc(id) FROM t", "42883", "nofunc"),
    ("SELECT id, id FROM t", "42701", None),
    ("SELECT 1 UNION SELECT 'a'", "22P02", "'a'"),
    ("SELECT id FROM t; DROP TABLE t", "42601", None),
    ("INSERT INTO t (id) VALUES (1) RETURNING id", "42601", "INSERT"),
    ("SELECT id INTO x FROM t", None, None),
    ("SELECT id FROM t WHERE id = $1", "42P02", "$1"),
    ("WITH x AS (DELETE FROM t RETURNING id) SELECT id FROM x", "0A000", None),
    ("SELECT id FROM t WITH CHECK OPTION", "42601", "WITH"),
    ("", "42601", None),
    ("SELECT id FROM t WHERE s = 'unfinished", "42601", "'unfinished"),
]


@pytest.mark.parametrize(("query", "code", "at"), ERRORS, ids=lambda v: str(v)[:40])
def test_errors_of_postgres_come_back_with_their_position(conn, query, code, at):
    error = refusal(conn, query)
    assert code is None or error.code == code, error.code
    if at is not None:
        assert error.position == query.index(at, 7 if at == "t" else 0) + 1 or (
            query[error.position - 1 :].startswith(at)
        )


def test_no_clock_is_hidden_by_strings_that_end_otherwise(conn):
    settings = {"standard_conforming_strings": "off", "backslash_quote": "on"}
    query = "SELECT id, 'x\\', ' AS a, 'today'::date AS d, 'y\\', ' AS b FROM t"
    error = refusal(conn, query, settings=settings)
    assert "current time" in error.message
    assert error.position == query.index("'today'") + 1


TEXTS = [
    "'now'",
    "E'to\\tday'",
    "'back\\slash'",
    "$$see today's list$$",
    "E'it''s \\u0041 tomorrow'",
]
FAR = [
    "date '2020-02-29'",
    "timestamp '1969-07-20 20:17'",
    "'infinity'::timestamptz",
    "date '0044-03-15 BC'",
]
CLOCK = [
    "date 'today'",
    "' Now '::timestamptz",
    "timestamp E'to\\u006dorrow'",
    "DATE 'today bc'",
    "'{today}'::date[]",
]


@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize("text", TEXTS)
def test_a_text_beside_a_date_is_not_taken_for_the_clock(conn, far, text):
    """Also where the server keeps no locations (Postgres 17 and newer)."""
    plan(conn, PlanRequest(f"SELECT id, {text} AS s, {far} AS d FROM t"))


def test_the_server_is_asked_for_its_time_once_at_most(conn, monkeypatch):
    asked = []
    now = Catalog.now
    monkeypatch.setattr(Catalog, "now", lambda self: asked.append(1) or now(self))
    dates = ", ".join(f"date '2020-02-{day:02}' AS d{day}" for day in range(1, 29))
    plan(conn, PlanRequest(f"SELECT id, {dates} FROM t"))
    assert asked == []
    plan(conn, PlanRequest(f"SELECT id, 'now' AS s, {dates} FROM t"))
    assert len(asked) == (1 if conn.info.server_version >= 170000 else 0)


@pytest.mark.parametrize("clock", CLOCK)
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("far", FAR)
def test_the_clock_is_found_beside_any_text_and_date(conn, far, text, clock):
    error = refusal(conn, f"SELECT id, {text} AS s, {far} AS d, {clock} AS c FROM t")
    assert "current time" in error.message


def test_unknown_column_keeps_the_hint(conn):
    error = refusal(conn, "SELECT bgi FROM t WHERE bigg = 1")
    assert error.code == "42703"
    error = refusal(conn, "SELECT t.bigg FROM t")
    assert error.hint is not None
    assert "big" in error.hint


def test_table_without_identity_says_how_to_mend_it(conn):
    error = refusal(conn, "SELECT x FROM nokey")
    assert isinstance(error, PrerequisiteError)
    assert error.code == "55000"
    assert 'ALTER TABLE "public"."nokey" REPLICA IDENTITY FULL;' in error.hint


ACCEPTED = [
    "SELECT id, current_date - d AS days FROM t",
    "SELECT date_trunc('hour', now()) AS h, extract(year FROM current_date) AS y, count(*) FROM t",
    "SELECT t.id FROM t LEFT JOIN u ON t.d < current_date - u.k::int",
    "SELECT id FROM t WHERE CASE WHEN ok THEN current_date - d > k END",
    "SELECT id, now() - interval '1 day' < tz AS new, to_char(now(), 'YYYY-MM') AS m FROM t",
    "SELECT id FROM t WHERE extract(epoch FROM now() - tz) / 3600 < 24.5",
    "SELECT id FROM t WHERE NOT tstzrange(tz, NULL) @> now() OR now() <@ tstzrange(NULL, tz)",
    "SELECT upper(v COLLATE \"C\") AS x, substr(v, 2) AS y FROM t WHERE w LIKE 'a%'",
    "SELECT t.id FROM t FULL JOIN u ON t.k < u.k WHERE t.id > 0",
    "SELECT t.id FROM t FULL JOIN u ON t.k = u.k AND t.n < u.n",
    "SELECT t.id FROM t FULL JOIN u ON false",
    "SELECT t.id FROM t FULL JOIN u ON twice(t.k) = u.k",
    "SELECT CASE WHEN k > 0 THEN (SELECT 1 / n FROM u WHERE u.id = k) END FROM t",
    "SELECT coalesce(k, (SELECT sum(1 / k) FROM u)) AS v FROM t",
    "SELECT id FROM t WHERE k = 1 OR k IN (SELECT 1 / k FROM u)",
    "SELECT id FROM t;",
    "SELECT id FROM t ORDER BY k, s DESC",
    "SELECT t.* FROM t",
    "SELECT id, to_char(tz, 'YYYY') AS y, date_trunc('month', tz) AS m FROM t",
    "SELECT id, tz::date AS d, ts::text AS x, tz AT TIME ZONE 'UTC' AS u FROM t",
    "SELECT id, 'today' AS word FROM t WHERE s = 'now'",
    "SELECT id, jb -> 'a' AS a, jb ->> 'b' AS b FROM t WHERE jb @> '{\"x\": [1]}'",
    "SELECT id, twice(k) AS k2 FROM t",
    "SELECT id, tags[1] AS first, array_length(tags, 1) AS n FROM t WHERE 'x' = ANY (tags)",
    "SELECT id, m, m = 'happy' AS glad FROM t WHERE m > 'sad'",
    "SELECT id, c || '!' AS c, v::varchar(3) AS v3, n::int AS i FROM t",
    "SELECT w || 'x' AS wx, w < 'm' AS low FROM t WHERE w = 'a' COLLATE \"C\"",
    "SELECT id, GREATEST(k, 3) AS g, NULLIF(k, 0) AS z, COALESCE(s, '-') AS s FROM t",
    "SELECT id, CASE k WHEN 1 THEN 'a' WHEN 2 THEN 'b' END AS c FROM t",
    "SELECT id, (k IS DISTINCT FROM small) AS x, ok IS NOT TRUE AS y FROM t",
    "SELECT id, dom FROM t WHERE dom = 'abc'",
    "SELECT x.id FROM other.t x WHERE other.lower('A') = 'x'",
    "SELECT id FROM t WHERE k OPERATOR(other.=) id",
    "SELECT count(*) FROM t HAVING count(*) > 0",
    "SELECT 1 AS one FROM t GROUP BY ()",
    "SELECT 'c' AS c, count(*) FROM t GROUP BY 1",
    "SELECT a.id FROM (t a JOIN t b USING (id)) JOIN u USING (id)",
    "SELECT id FROM t NATURAL JOIN (SELECT id FROM u) x",
    "SELECT k FROM t UNION ALL SELECT n FROM u UNION ALL SELECT f FROM t",
    "SELECT y, count(*) FROM bag GROUP BY y",
    "SELECT E'a\\\\b\\n''' AS s, 1e10 AS e, -5 AS m, 1.50 AS n, B'101' AS b, NULL AS x FROM t",
    "SELECT interval '1 day 2 h' AS i, date '0044-03-15 BC' AS d, 'infinity'::date AS f FROM t",
    "SELECT '{1,NULL,\"3\"}'::text[] AS a, '[1,5)'::int4range AS r, '(1,2)'::point AS p FROM t",
    "TABLE example_table",
    f"SELECT {'||'.join(['s'] * 150)} AS c FROM t",
    f"SELECT id FROM t WHERE k IN ({','.join(map(str, range(2000)))})",
    "VALUES (1, 'a'), (2, 'b')",
]


@pytest.mark.parametrize("query", ACCEPTED, ids=lambda q: q[:40])
def test_accepted(conn, query):
    planned = plan(conn, PlanRequest(query))
    assert from_json(to_json(planned.physical)) == planned.physical
    assert planned.physical.sink.schema == planned.columns
    assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def remotes(value):
    if isinstance(value, ir.Remote):
        yield value
    for name in getattr(value, "__struct_fields__", ()):
        yield from remotes(getattr(value, name))
    if isinstance(value, tuple):
        for item in value:
            yield from remotes(item)


def test_sql_for_postgres_is_unambiguous(conn):
    query = (
        "SELECT id, other.lower(s) AS mine, pg_catalog.lower(s) AS theirs,"
        " k OPERATOR(other.=) id AS close FROM public.t"
    )
    planned = plan(conn, PlanRequest(query, settings={"search_path": "other, public"}))
    found = {r.sql: r.trusted for r in remotes(planned.physical.nodes)}
    assert found == {
        "other.lower($1)": False,
        "pg_catalog.lower($1)": True,
        "($1 OPERATOR(other.=) $2)": False,
    }


def test_search_path_of_the_caller_counts(conn):
    planned = plan(conn, PlanRequest("SELECT * FROM t", settings={"search_path": "other"}))
    assert [c.name for c in planned.columns] == ["id", "x"]
    assert planned.tables[0].schema == "other"


def test_settings_of_the_caller_are_kept_with_the_view(conn):
    request = PlanRequest("SELECT tz::date AS d FROM t", settings={"TimeZone": "Asia/Tokyo"})
    assert plan(conn, request).settings["TimeZone"] == "Asia/Tokyo"
    assert conn.execute("SHOW TimeZone").fetchone() != ("Asia/Tokyo",)


def test_functions_of_users_keep_the_search_path(conn):
    settings = {"search_path": "other, nowhere, public, pg_catalog"}
    planned = plan(conn, PlanRequest("SELECT lower(s) AS x FROM public.t", settings=settings))
    assert planned.settings[FUNCTION_PATH] == "other, public, pg_temp"
    # A view that is planned again keeps it; a query without such functions has none.
    again = plan(conn, PlanRequest(planned.canonical_sql, settings=planned.settings))
    assert again.settings == planned.settings
    plain = plan(conn, PlanRequest("SELECT id FROM t", settings=settings))
    assert FUNCTION_PATH not in plain.settings


def test_names_are_the_same_however_the_caller_quotes_them(conn):
    query = "SELECT lower(s) AS x, quote_ident(s) AS y FROM public.t"
    path = {"search_path": "other, public"}
    plain, quoted = (
        plan(conn, PlanRequest(query, settings=path | {"quote_all_identifiers": value}))
        for value in ("off", "on")
    )
    assert quoted.canonical_sql == plain.canonical_sql
    assert quoted.physical == plain.physical
    assert quoted.settings == plain.settings | {"quote_all_identifiers": "on"}


def test_literals_are_read_under_the_settings_of_the_caller(conn):
    query = "SELECT id FROM t WHERE d = '03/02/2020'"
    for style, day in (("SQL, DMY", "2020-02-03"), ("SQL, MDY", "2020-03-02")):
        planned = plan(conn, PlanRequest(query, settings={"DateStyle": style}))
        assert day in planned.explain["logical"]


@pytest.fixture
def role(conn):
    conn.execute("DROP ROLE IF EXISTS d_limited")
    conn.execute("CREATE ROLE d_limited")
    yield "d_limited"
    conn.execute("DROP OWNED BY d_limited")
    conn.execute("DROP ROLE d_limited")


def test_rights_of_the_caller_are_checked(conn, role):
    error = refusal(conn, "SELECT id FROM t", caller=role)
    assert isinstance(error, PrivilegeError)
    assert error.message == "permission denied for table t"
    conn.execute("GRANT SELECT (id, k) ON t TO d_limited")
    plan(conn, PlanRequest("SELECT id FROM t WHERE k > 0", caller=role))
    plan(conn, PlanRequest("SELECT count(*) FROM t", caller=role))
    assert refusal(conn, "SELECT id FROM t WHERE s = 'x'", caller=role).code == "42501"
    assert refusal(conn, "SELECT t.id FROM t JOIN u USING (id)", caller=role).code == "42501"


def test_row_security_that_applies_to_the_caller_is_carried_over(conn, role):
    conn.execute("CREATE TABLE guarded (id int PRIMARY KEY)")
    try:
        conn.execute("ALTER TABLE guarded ENABLE ROW LEVEL SECURITY")
        conn.execute("GRANT SELECT ON guarded TO d_limited")
        planned = plan(conn, PlanRequest("SELECT id FROM guarded", role))
        assert "Row security of public.guarded" in planned.explain["sources"]
        [condition] = planned.physical.sink.conditions
        assert "ELSE (false)" in condition  # there is no policy
        # A superuser sees all rows.
        assert not plan(conn, PlanRequest("SELECT id FROM guarded")).physical.sink.conditions
        error = refusal(conn, "SELECT count(*) AS n FROM guarded", caller=role)
        assert "row security" in error.message
        conn.execute("CREATE POLICY p ON guarded USING (guarded IS NOT NULL)")
        assert "whole rows" in refusal(conn, "SELECT id FROM guarded", caller=role).detail
        conn.execute("DROP POLICY p ON guarded; ALTER TABLE guarded ADD kind short")
        conn.execute("CREATE POLICY p ON guarded USING (kind = 'x')")
        assert "domain" in refusal(conn, "SELECT id, kind FROM guarded", caller=role).detail
    finally:
        conn.execute("DROP TABLE guarded")


def test_headrace_itself_must_see_all_rows(conn, planner_dsn, role):
    conn.execute("CREATE TABLE guarded (id int PRIMARY KEY)")
    conn.execute("ALTER TABLE guarded ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
    conn.execute("CREATE ROLE d_reader_of_all LOGIN IN ROLE d_limited")
    conn.execute(
        "GRANT SELECT ON guarded TO d_limited; GRANT USAGE ON SCHEMA public TO d_reader_of_all"
    )
    request = PlanRequest("SELECT id FROM guarded", role)
    try:
        with psycopg.connect(
            make_conninfo(planner_dsn, user="d_reader_of_all"), autocommit=True
        ) as ours:
            with pytest.raises(PrerequisiteError, match="hides rows from Headrace") as refused:
                plan(ours, request)
            conn.execute(refused.value.hint.removeprefix("Run as a superuser: "))
            assert plan(ours, request).physical.sink.conditions
    finally:
        conn.execute("DROP TABLE guarded; DROP OWNED BY d_reader_of_all; DROP ROLE d_reader_of_all")


def test_missing_right_for_temporary_tables_says_what_to_grant(conn, role):
    conn.execute(f"REVOKE TEMPORARY ON DATABASE {conn.info.dbname} FROM PUBLIC")
    try:
        error = refusal(conn, "SELECT 1 AS one", caller=role)
        assert isinstance(error, PrerequisiteError)
        assert error.hint == (
            f'Run: GRANT TEMPORARY ON DATABASE "{conn.info.dbname}" TO "d_limited";'
        )
    finally:
        conn.execute(f"GRANT TEMPORARY ON DATABASE {conn.info.dbname} TO PUBLIC")


def test_engine_that_may_not_act_for_the_caller(planner_dsn, conn, role):
    conn.execute("DROP ROLE IF EXISTS d_engine")
    conn.execute("CREATE ROLE d_engine LOGIN")
    try:
        with psycopg.connect(planner_dsn, user="d_engine", autocommit=True) as engine:
            error = refusal(engine, "SELECT 1 AS one", caller=role)
            assert error.hint == 'Run: GRANT "d_limited" TO "d_engine";'
            error = refusal(engine, "SELECT id FROM t")
            assert error.code == "42501"
    finally:
        conn.execute("DROP ROLE d_engine")


@pytest.mark.parametrize("option", ["SUPERUSER", "IN ROLE postgres"])
def test_a_superuser_as_caller_is_never_proposed_for_a_grant(planner_dsn, conn, option):
    """As a member of a superuser, or of its member, Headrace's role would be one in effect."""
    conn.execute(f"CREATE ROLE d_engine LOGIN; CREATE ROLE d_boss LOGIN {option}")
    try:
        with psycopg.connect(planner_dsn, user="d_engine", autocommit=True) as engine:
            error = refusal(engine, "SELECT 1 AS one", caller="d_boss")
            assert error.code == "42501"
            assert '"d_engine" is no superuser' in error.detail
            assert '"d_boss"' in error.detail
            assert error.hint.startswith("Connect as an ordinary role")
            assert "GRANT " not in error.hint
            # That is why: a grant would be a superuser's rights.
            conn.execute("GRANT d_boss TO d_engine")
            engine.execute("SET ROLE postgres" if option != "SUPERUSER" else "SET ROLE d_boss")
            assert engine.execute("SHOW is_superuser").fetchone() == ("on",)
    finally:
        conn.execute("DROP ROLE d_engine; DROP ROLE d_boss")


def test_unknown_caller(conn):
    assert refusal(conn, "SELECT 1", caller="d_nobody").code == "22023"


def test_nothing_is_left_behind(conn):
    plan(conn, PlanRequest("SELECT id, lower(s) AS s FROM t WHERE n > 1.5"))
    count = conn.execute(
        "SELECT count(*) FROM pg_class WHERE relname LIKE 'headrace\\_%'"
    ).fetchone()
    assert count == (0,)
    assert conn.execute("SELECT current_user = session_user").fetchone() == (True,)
    assert conn.execute("SHOW search_path").fetchone() == ('"$user", public',)


def test_same_query_same_plan(conn):
    query = "SELECT k, count(*) FROM t JOIN u USING (id, s) WHERE t.n > 1 GROUP BY t.k"
    query = query.replace("SELECT k", "SELECT t.k")
    first, second = (plan(conn, PlanRequest(query)) for _ in range(2))
    assert first.physical == second.physical
    assert first.explain == second.explain


def test_a_cycle_clause_is_printed_so_that_it_can_be_read(conn):
    query = (
        "WITH RECURSIVE r(a) AS (SELECT id FROM t UNION ALL SELECT k FROM t, r"
        " WHERE t.id = r.a) CYCLE a SET c TO 'it''s' DEFAULT 'N' USING p SELECT a, c FROM r"
    )
    planned = plan(conn, PlanRequest(query))
    again = plan(conn, PlanRequest(planned.canonical_sql.removesuffix(";")))
    assert again.physical == planned.physical
    assert "text 'it''s' DEFAULT text 'N'" in planned.canonical_sql


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("SELECT id, now() - tz AS age FROM t", "when the view is read"),
        ("SELECT id, now() - tz AS age FROM t", "date_trunc('minute', now())"),
        ("SELECT id FROM t WHERE now() + i > tz", "date_trunc('minute', now())"),
        ("SELECT id, counted(k) AS c FROM t", "IMMUTABLE"),
        ("SELECT FROM t", "constant"),
        (
            "SELECT t.id FROM t FULL JOIN u ON t.id = u.id AND t.k > (SELECT 1 FROM w)",
            "a subquery in FROM",
        ),
        ("SELECT id FROM t TABLESAMPLE SYSTEM (1)", "hash"),
        ("SELECT id FROM t WHERE to_tsquery('simple', s) = 'a'", "cast both sides to text"),
        ("SELECT id FROM t ORDER BY to_tsquery('simple', s) LIMIT 1", "to text"),
        ("SELECT count(DISTINCT to_tsquery('simple', s)) FROM t", "to text"),
        ("SELECT count(*) FROM t GROUP BY to_tsquery('simple', s)", "to text"),
    ],
)
def test_what_is_refused_comes_with_a_way_out(conn, query, word):
    error = refusal(conn, query)
    assert error.code == "0A000"
    assert word in (error.hint or ""), error.hint


@pytest.mark.parametrize("value", ["s::text[]", "('{' || s || '}')::varchar[]"])
def test_texts_are_not_made_arrays_where_NULL_is_a_string(conn, value):
    query = f"SELECT id, {value} AS a FROM t"
    plan(conn, PlanRequest(query))
    error = refusal(conn, query, settings={"array_nulls": "off"})
    assert error.code == "0A000"
    assert "array_nulls" in error.message
    settings = {"array_nulls": "off"}
    constant = "SELECT id, '{NULL,a}'::text[] AS a, initcap(s) AS u FROM t"
    plan(conn, PlanRequest(constant, settings=settings))


def test_collate_reaches_the_node_that_compares(conn):
    for query in (
        'SELECT count(DISTINCT s COLLATE "C") FROM t',
        'SELECT rank() OVER (ORDER BY s COLLATE "C") FROM t',
        'SELECT s COLLATE "C" AS s FROM t ORDER BY 1 LIMIT 3',
    ):
        made = plan(conn, PlanRequest(query)).physical
        [last] = [n for n in made.nodes if isinstance(n, ReduceSpec | WindowSpec | TopKSpec)]
        [below] = [n for n in made.nodes if n.id == last.input]
        assert [f.collation for f in below.schema] == [950], query
