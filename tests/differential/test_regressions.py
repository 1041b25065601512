"""Queries, types and data that once gave wrong results: the result table equals the query.

One engine runs all cases, each in its own tables, so a case costs a few milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
import pytest

from tests.compared import check, commit, create_view
from tests.waiting import create_marker


@dataclass(frozen=True)
class Case:
    why: str
    ddl: tuple[str, ...]
    views: tuple[str, ...]
    transactions: tuple[str, ...]


CASES = (
    Case(
        "from Postgres 18 on a subquery in GROUP BY was refused",
        (
            "CREATE TABLE asked (id int PRIMARY KEY, x int, y int)",
            "CREATE TABLE best (id int PRIMARY KEY, x int)",
            "INSERT INTO asked SELECT i, i % 4, i % 3 FROM generate_series(1, 20) i",
            "INSERT INTO best SELECT i, i % 5 + 1 FROM generate_series(1, 9) i",
        ),
        (
            "SELECT (SELECT max(id) FROM best b WHERE b.x = a.x) AS m, count(*)"
            " FROM asked a GROUP BY 1",
            "SELECT x IN (SELECT x FROM best) AS m, sum(y) FROM asked GROUP BY 1"
            " HAVING count(*) > 1",
            "SELECT (SELECT max(id) FROM best b WHERE b.x = a.x) AS m, y, count(*)"
            " FROM asked a GROUP BY CUBE (1, 2)",
        ),
        (
            "DELETE FROM best WHERE x = 2",
            "UPDATE asked SET x = NULL WHERE id % 3 = 0",
            "DELETE FROM asked",
        ),
    ),
    Case(
        "expressions over a varchar with a collation of its own were refused",
        (
            'CREATE TABLE collated (id int PRIMARY KEY, v varchar(9) COLLATE "C",'
            ' w text COLLATE "C")',
            "INSERT INTO collated VALUES (1, 'ab', 'B'), (2, 'Äb', 'a'), (3, NULL, '')",
        ),
        (
            "SELECT id, upper(v) AS u, initcap(w) AS i, w::varchar(1) AS s FROM collated",
            'SELECT id, v < w AS l, upper(v COLLATE "default") AS u FROM collated'
            " WHERE v LIKE '_b' OR w ~ '^a'",
            "SELECT id, to_jsonb(c) AS j FROM collated c",
        ),
        ("UPDATE collated SET v = lower(v) || w", "INSERT INTO collated VALUES (4, 'éb', 'éB')"),
    ),
    Case(
        "windows of one order and two ROWS frames saw rows equal in it in two orders",
        (
            "CREATE TABLE ties (x int, y int, n numeric)",
            "ALTER TABLE ties REPLICA IDENTITY FULL",
            "INSERT INTO ties VALUES (1, -5, 1.0), (1, -5, 1.00), (1, 3, 1), (1, -5, 1.0),"
            " (1, NULL, NULL), (2, -1, NULL), (2, -1, NULL), (NULL, 7, 2), (NULL, -7, 2.0)",
        ),
        (
            "SELECT x, a + b - coalesce(y, 0) AS whole, count(*) FROM (SELECT x, y,"
            " sum(coalesce(y, 0)) OVER (w ROWS UNBOUNDED PRECEDING) AS a,"
            " sum(coalesce(y, 0)) OVER (w ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS b"
            " FROM ties WINDOW w AS (ORDER BY x)) q GROUP BY 1, 2",
            'SELECT x, (SELECT array_agg(e ORDER BY e COLLATE "C") FROM unnest(a || b) e) AS every,'
            " count(*) FROM (SELECT x,"
            " array_agg(n::text) OVER (w ROWS UNBOUNDED PRECEDING) AS a,"
            " array_agg(n::text) OVER (w ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS b"
            " FROM ties WINDOW w AS (PARTITION BY x)) q GROUP BY 1, 2",
            "SELECT x, l IS NOT DISTINCT FROM p AS same, f = c AS last, count(*) FROM (SELECT x,"
            " lag(n::text) OVER w AS l,"
            " max(n::text) OVER (w ROWS BETWEEN 1 PRECEDING AND 1 PRECEDING) AS p,"
            " count(*) OVER (w GROUPS CURRENT ROW) AS c,"
            " count(*) OVER (w ROWS BETWEEN CURRENT ROW AND 1 FOLLOWING EXCLUDE CURRENT ROW) AS f"
            " FROM ties WINDOW w AS (PARTITION BY x ORDER BY n DESC NULLS LAST)) q GROUP BY 1, 2, 3",
        ),
        (
            "INSERT INTO ties VALUES (1, -9, 1.000), (2, -3, 4), (NULL, 7, 2)",
            "DELETE FROM ties WHERE n::text = '1.0'",
            "UPDATE ties SET x = 1",
            "DELETE FROM ties",
        ),
    ),
    Case(
        "windows of one order, but other frames, saw rows equal in it in other orders",
        (
            "CREATE TABLE peers (x int, y int)",
            "ALTER TABLE peers REPLICA IDENTITY FULL",
            "INSERT INTO peers VALUES (1, 5), (1, -1), (1, 5), (2, 1), (2, 1)",
        ),
        (
            "SELECT rn - c AS zero, count(*) FROM (SELECT row_number() OVER (ORDER BY x)"
            " AS rn, count(*) OVER (ORDER BY x ROWS UNBOUNDED PRECEDING) AS c,"
            " sum(y) OVER (ORDER BY x) AS s FROM peers) q GROUP BY 1",
            "SELECT l = f AS same, count(*) FROM (SELECT lag(y) OVER w AS l, first_value(y)"
            " OVER (w ROWS BETWEEN 1 PRECEDING AND 1 PRECEDING) AS f FROM peers"
            " WINDOW w AS (PARTITION BY x)) q GROUP BY 1",
        ),
        (
            "INSERT INTO peers VALUES (1, 3), (1, -7), (2, 0)",
            "DELETE FROM peers WHERE y = 5",
            "DELETE FROM peers",
        ),
    ),
    Case(
        "of equal values a running min and max kept the first, Postgres the last",
        (
            "CREATE TABLE forms (id int PRIMARY KEY, n numeric, c char(3), f float8)",
            "INSERT INTO forms VALUES (1, 1.0, 'a', 0), (2, 1.00, 'a', '-0'),"
            " (3, 2, 'b', 1), (4, 1, 'a', 0)",
        ),
        (
            "SELECT id, min(n) OVER w AS a, max(n) OVER w AS b, min(f) OVER w AS c,"
            " max(f) OVER w AS d, max(c) OVER w AS e FROM forms WINDOW w AS (ORDER BY id)",
        ),
        (
            "UPDATE forms SET n = 1.000 WHERE id = 4",
            "DELETE FROM forms WHERE id = 3",
            "INSERT INTO forms VALUES (0, 1, 'a', '-0'), (5, 1, 'a', 0)",
        ),
    ),
    Case(
        "a limit near the end of bigint went beyond it",
        (
            "CREATE TABLE few (id int)",
            "ALTER TABLE few REPLICA IDENTITY FULL",
            "INSERT INTO few VALUES (1), (2), (3)",
        ),
        (
            "SELECT id FROM few ORDER BY id LIMIT 9223372036854775807 OFFSET 1",
            "SELECT id FROM few ORDER BY id OFFSET 9223372036854775807",
            "SELECT id FROM few ORDER BY id FETCH FIRST 9223372036854775807 ROWS WITH TIES",
        ),
        ("INSERT INTO few VALUES (0), (3)", "DELETE FROM few"),
    ),
    Case(
        "columns called as our own were looked up by name",
        (
            'CREATE TABLE own (id int PRIMARY KEY, "__weight" int, "__op" text,'
            ' "n:x" int, "__lsn" int)',
            "INSERT INTO own VALUES (1, 5, 'x', 1, 1), (2, 0, NULL, NULL, 1)",
        ),
        (
            "SELECT * FROM own",
            'SELECT "__weight", count(*) AS "__op" FROM own GROUP BY "__weight"',
            'SELECT DISTINCT "__weight", "__op" FROM own',
            'SELECT a."__weight", b."__weight" AS w FROM own a'
            ' JOIN own b ON a."__weight" = b."n:x"',
        ),
        (
            "INSERT INTO own SELECT i, i % 2, 'y', i % 3, 2 FROM generate_series(3, 9) i",
            'UPDATE own SET "__weight" = 0, "n:x" = 0 WHERE id > 1',
            "DELETE FROM own",
        ),
    ),
    Case(
        "a per cent sign in a column's name was taken for a placeholder",
        (
            'CREATE TABLE odd (id int PRIMARY KEY, "%" int, "a""%s" text, "$1" text)',
            "INSERT INTO odd VALUES (1, 1, 'x', 'y')",
        ),
        ("SELECT * FROM odd", 'SELECT "%" + 1 AS "%d", upper("$1") AS "$1" FROM odd'),
        ("""UPDATE odd SET "%" = 2, "$1" = '$1%s'""", "DELETE FROM odd"),
    ),
    Case(
        "deleting by text took bpchar values of other length for the same",
        (
            "CREATE TABLE blanks (id int PRIMARY KEY, c bpchar)",
            "INSERT INTO blanks VALUES (1, 'a'), (2, 'a  '), (3, 'a '), (4, '')",
        ),
        ("SELECT c FROM blanks", "SELECT c, octet_length(c) AS n FROM blanks"),
        (
            "DELETE FROM blanks WHERE id = 2",
            "UPDATE blanks SET c = 'b  ' WHERE id = 1",
            "UPDATE blanks SET c = 'b' WHERE id = 3",
            "DELETE FROM blanks WHERE id = 1",
        ),
    ),
    Case(
        "functions of users did not find what they call, and defaults were refused",
        (
            "CREATE TABLE called (id int PRIMARY KEY, a int, s text)",
            "INSERT INTO called SELECT i, i % 4, 's' || i FROM generate_series(1, 9) i",
            "CREATE FUNCTION helper(x int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT x + 1'",
            "CREATE FUNCTION outer_one(x int, y numeric DEFAULT 2, z text DEFAULT 'q') RETURNS text"
            " LANGUAGE sql IMMUTABLE AS 'SELECT (helper(x) * y)::text || z'",
            "CREATE FUNCTION several(x int) RETURNS SETOF int LANGUAGE plpgsql IMMUTABLE AS"
            " 'DECLARE r called; BEGIN RETURN NEXT helper(x); RETURN NEXT x; END'",
        ),
        (
            "SELECT id, outer_one(a) AS x, outer_one(z => s, x => a) AS y FROM called",
            "SELECT id, x FROM called, several(helper(a)) x WHERE x > 1",
            "SELECT a, string_agg(outer_one(id, 3), ',' ORDER BY helper(id)) AS x FROM called GROUP BY a",
            "SELECT id, sum(helper(a)) OVER (ORDER BY id ROWS 1 PRECEDING) AS x FROM called",
        ),
        (
            "UPDATE called SET a = a + 1 WHERE id % 2 = 0",
            "DELETE FROM called WHERE a = 1",
            "INSERT INTO called VALUES (20, NULL, NULL)",
        ),
    ),
    Case(
        "scalar subqueries were no arguments of windows and of functions in FROM",
        (
            "CREATE TABLE asking (id int PRIMARY KEY, b int)",
            "CREATE TABLE asked_for (id int PRIMARY KEY, a int)",
            "INSERT INTO asking SELECT i, i % 3 FROM generate_series(1, 9) i",
            "INSERT INTO asked_for SELECT i, i + 1 FROM generate_series(1, 5) i",
        ),
        (
            "SELECT id, sum((SELECT a FROM asked_for f WHERE f.a = e.id)) OVER (ORDER BY id) AS x"
            " FROM asking e",
            "SELECT id, lead(b, (SELECT a - 1 FROM asked_for f WHERE f.a = e.id)) OVER (ORDER BY id) AS x"
            " FROM asking e",
            "SELECT id, count(*) FILTER (WHERE (SELECT a > 3 FROM asked_for f WHERE f.a = e.id))"
            " OVER (PARTITION BY b) AS x FROM asking e",
            "SELECT id, max((SELECT a FROM asked_for f WHERE f.a = e.id))"
            " FILTER (WHERE id > 2) OVER (PARTITION BY b) AS x FROM asking e",
            "SELECT id, x FROM asking e,"
            " generate_series(1, (SELECT a FROM asked_for f WHERE f.a = e.id)) x",
        ),
        (
            "UPDATE asked_for SET a = a + 1",
            "DELETE FROM asked_for WHERE id = 2",
            "UPDATE asking SET b = b + 1 WHERE id < 5",
        ),
    ),
    Case(
        "functions in FROM took neither arguments by name nor constants of some array types",
        (
            "CREATE TABLE paths (id int PRIMARY KEY, j jsonb)",
            """INSERT INTO paths VALUES (1, '[1, 2]'), (2, '{"a": [3]}'), (3, NULL)""",
        ),
        (
            "SELECT id, x FROM paths, jsonb_path_query(j, 'strict $[*]', silent => true) x",
            "SELECT id, jsonb_path_query(path => '$.a[*]', target => j, silent => id > 1) AS x FROM paths",
            """SELECT id, x FROM paths, unnest(ARRAY['{"b": 1}'::jsonb, '2']) x WHERE j <> x""",
            "SELECT id, x, y FROM paths, unnest(ARRAY[[1, 2], [3, 4]], ARRAY['[1,2)'::int4range]) u(x, y)",
            "SELECT id, '\\000'::\"char\"::text AS x FROM paths",
        ),
        ("""UPDATE paths SET j = '[5, {"a": [6]}]' WHERE id = 3""", "DELETE FROM paths"),
    ),
    Case(
        "dates in JSON were refused, for one could be called 'now'",
        (
            "CREATE TABLE events (id int PRIMARY KEY, j jsonb)",
            """INSERT INTO events VALUES (1, '[{"at": "2024-02-29 12:00+03", "day": "2024-03-01", "n": 1},
            {"at": null, "day": 20240302, "n": "2"}]'), (2, '[]'), (3, NULL)""",
        ),
        (
            "SELECT id, x.* FROM events, jsonb_to_recordset(j) AS x(n int, at timestamptz, day date)",
            "SELECT id, x.day, x.o FROM events, ROWS FROM (jsonb_to_recordset(j) AS (day date, n int),"
            " generate_series(1, id)) WITH ORDINALITY x(day, n, g, o) WHERE x.day > '2024-01-01' OR o = 3",
            "SELECT x.at::date AS d, sum(n) AS s FROM events e LEFT JOIN LATERAL"
            " jsonb_to_recordset(j) AS x(n int, at timestamp) ON n > 0 GROUP BY 1",
        ),
        (
            """UPDATE events SET j = '[{"at": "infinity", "n": 7, "day": "J2460000"}]' WHERE id = 2""",
            "DELETE FROM events WHERE id = 1",
        ),
    ),
)

REFUSED = (
    # Fixed at the creation.
    "SELECT '{now}'::timestamp[] AS x FROM plain",
    "SELECT '[today,infinity)'::daterange AS x FROM plain",
    "SELECT '{[now,)}'::tstzmultirange AS x FROM plain",
    "SELECT U&'\\006eow'::timestamp AS x FROM plain",
    "SELECT 'to'\n'day'::date AS x FROM plain",
    "SELECT 'today10:00'::timestamp AS x FROM plain",
    "SELECT id FROM plain WHERE 'now' BETWEEN t AND t AND d > 'now'",
    # A zone's offset at the current date.
    "SELECT d::time::timetz AS x FROM plain",
    "SELECT '10:00+00'::timetz AT TIME ZONE 'Europe/Berlin' AS x FROM plain",
)
ACCEPTED = (
    "SELECT id FROM plain WHERE t = 'today' AND d > '2024-01-01'",
    "SELECT id, E'now\\n' AS x FROM plain WHERE d > date '2024-01-01'",
)


def test_once_wrong(source, commander):
    create_marker(source, commander)
    for number, case in enumerate(CASES):
        for statement in case.ddl:
            source.execute(statement)
        views = {f"v{number}_{i}": query for i, query in enumerate(case.views)}
        for name, query in views.items():
            create_view(commander, name, query)
        check(source, views, f"{case.why}: population")
        for statement in case.transactions:
            commit(source, [statement])
            check(source, views, f"{case.why}: {statement}")


def test_what_depends_on_the_clock_is_refused(source, commander):
    source.execute("CREATE TABLE plain (id int PRIMARY KEY, t text, d timestamp)")
    for query in REFUSED:
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            create_view(commander, "refused", query)
    if source.info.server_version >= 170000:
        return  # keeps no locations: one such word in the text is enough to refuse
    for number, query in enumerate(ACCEPTED):
        create_view(commander, f"accepted{number}", query)


SHADOWS = """
    CREATE SCHEMA evil;
    CREATE DOMAIN evil.text AS varchar(1);
    CREATE FUNCTION evil.called() RETURNS text LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'a shadow was called by %', current_user; END $$;
    CREATE FUNCTION evil.set_config(text, text, boolean) RETURNS text LANGUAGE sql AS
        'SELECT evil.called()';
    CREATE FUNCTION evil.current_setting(text, boolean) RETURNS text LANGUAGE sql AS
        'SELECT evil.called()';
    CREATE FUNCTION evil.upper(text) RETURNS text LANGUAGE sql AS
        'SELECT evil.called()';
    CREATE TABLE evil.words (id int PRIMARY KEY, t varchar);
    CREATE TABLE words (id int PRIMARY KEY, t varchar);
    INSERT INTO words VALUES (1, 'abc'), (2, NULL);
"""


def test_session_settings_give_the_query_its_meaning(source, commander):
    """The query has the meaning of the caller's session settings."""
    create_marker(source, commander)
    source.execute(SHADOWS)
    for setting in (
        "search_path = evil, pg_catalog, public",
        "standard_conforming_strings = off",
        "array_nulls = off",
        "transform_null_equals = on",
        "DateStyle = 'SQL, DMY'",
        "IntervalStyle = sql_standard",
        "TimeZone = 'America/New_York'",
    ):
        source.execute(f"SET {setting}")
        commander.execute(f"SET {setting}")
    views = {
        "public.strings": "SELECT id, t || 'a\\\\tb' AS x, t ~ 'a\\\\w' AS y,"
        " '{NULL,a}'::varchar[] AS z FROM public.words",
        "public.nulls": "SELECT id FROM public.words WHERE t = NULL",
        "public.dates": "SELECT id, date '02/03/2024' AS d, interval '-1 2:03' AS i,"
        " (timestamptz '2024-03-10 07:30+00' + id * interval '1 day')::date AS z"
        " FROM public.words",
        "public.lengths": "SELECT id, pg_catalog.upper(t) AS u FROM public.words",
    }
    for name, query in views.items():
        create_view(commander, name, query)
    check(source, views, "population")
    changes = [
        "UPDATE public.words SET t = 'x' WHERE id = 2",
        "UPDATE public.words SET t = NULL WHERE id = 1",
        "INSERT INTO public.words VALUES (3, 'a b')",
    ]
    commit(source, changes)
    check(source, views, "changes")
