"""Stored queries after renamings: a new plan is the same, and so is Postgres' answer."""

from __future__ import annotations

import json

import pytest

from headrace.errors import UnsupportedError
from headrace.planner import PlanRequest, plan
from headrace.planner.analyse.present import present

DDL = """
CREATE SCHEMA shop;
CREATE TABLE shop.orders (id int PRIMARY KEY, spare int, buyer int, "Note; -- '" text);
CREATE TABLE buyers (id int PRIMARY KEY, orders int, name text);
CREATE VIEW notes AS SELECT id, "Note; -- '" AS note FROM shop.orders;
INSERT INTO shop.orders SELECT i, i, i % 3, 'n' || i FROM generate_series(1, 10) i;
CREATE TYPE shop.mood AS ENUM ('ok', 'bad');
CREATE TYPE shop.two AS (a int, b shop.mood);
CREATE DOMAIN shop.small AS int;
CREATE FUNCTION shop.twice(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1 * 2';
CREATE FUNCTION shop.twice(text) RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT $1 || $1';
INSERT INTO buyers VALUES (0, 5, 'a'), (1, 6, 'shop.orders'), (2, 7, NULL);
"""
RENAMINGS = """
ALTER FUNCTION shop.twice(int) RENAME TO thrice;
ALTER FUNCTION shop.twice(text) RENAME TO "Twice?";
ALTER TYPE shop.mood RENAME TO three;
ALTER TYPE shop.two RENAME TO mood;
ALTER DOMAIN shop.small SET SCHEMA public;
ALTER TABLE shop.orders RENAME buyer TO person;
ALTER TABLE shop.orders RENAME TO purchases;
ALTER SCHEMA shop RENAME TO "The Shop";
ALTER TABLE buyers RENAME name TO buyer;
ALTER TABLE buyers RENAME id TO name;
ALTER TABLE buyers RENAME buyer TO id;
ALTER TABLE buyers ADD late int DEFAULT 4;
ALTER VIEW notes RENAME note TO remark;
ALTER VIEW notes RENAME TO remarks;
"""
QUERIES = (
    "SELECT * FROM shop.orders",
    "SELECT o.buyer, orders.name FROM shop.orders o, buyers orders WHERE o.buyer = orders.id",
    "SELECT shop.orders FROM buyers shop WHERE shop.name <> 'FROM shop.orders x'",
    "SELECT id, b.name FROM (shop.orders JOIN buyers b USING (id))",
    "SELECT n.note, o.buyer FROM notes n NATURAL JOIN shop.orders o",
    "WITH w AS (SELECT id FROM ONLY shop.orders WHERE \"Note; -- '\" LIKE 'n%') SELECT * FROM w",
    "SELECT x.b, x.a FROM buyers x(a, b)",
    "SELECT id FROM shop.orders UNION ALL SELECT id FROM buyers UNION ALL SELECT buyer FROM shop.orders",
    "SELECT (a.buyer + 1) AS n, E'a\\\\b' AS e FROM shop.orders a CROSS JOIN shop.orders b"
    " WHERE a.id < b.id AND b.buyer > 0",
    "SELECT buyer, count(*) AS n FROM shop.orders GROUP BY buyer HAVING count(*) > 1",
    "SELECT shop.twice(o.id) AS i, o.buyer::shop.small + 1 AS b FROM shop.orders o",
    "SELECT (CASE WHEN id > 3 THEN 'ok' ELSE 'bad' END)::shop.mood AS m,"
    " '{ok,bad}'::shop.mood[] AS ms, ROW(id, 'ok')::shop.two AS p FROM shop.orders",
    "SELECT o::text AS t, o.*::shop.orders AS o, 'shop.twice(' || '::shop.mood' AS c FROM shop.orders o",
)


def rows(conn, query: str) -> list:
    return sorted(map(str, conn.execute(query).fetchall()))


@pytest.fixture
def shop(conn):
    with conn.transaction(force_rollback=True):
        conn.execute(DDL)
        yield


@pytest.mark.parametrize("query", QUERIES)
def test_queries_follow_renamings(conn, shop, query):
    before = plan(conn, PlanRequest(query))
    named = json.loads(json.dumps(before.named))
    want = rows(conn, query)
    assert present(conn, before.canonical_sql, named) == before.canonical_sql
    conn.execute(RENAMINGS)
    text = present(conn, before.canonical_sql, named)
    after = plan(conn, PlanRequest(text))
    assert rows(conn, text) == want
    assert after.columns == before.columns
    assert [(n["oid"], n.get("count")) for n in after.named] == [
        (n["oid"], n.get("count")) for n in named
    ]
    assert present(conn, after.canonical_sql, list(after.named)) == after.canonical_sql


def test_overloads_that_part_are_refused(conn, shop):
    made = plan(conn, PlanRequest("SELECT shop.twice(id), shop.twice(id::text) AS t FROM buyers"))
    named = list(made.named)
    conn.execute("ALTER FUNCTION shop.twice(int) RENAME TO thrice")
    with pytest.raises(UnsupportedError, match=r"function shop\.twice"):
        present(conn, made.canonical_sql, named)
    conn.execute("ALTER FUNCTION shop.twice(text) RENAME TO thrice")
    text = present(conn, made.canonical_sql, named)
    assert rows(conn, text) == ["(0, '00')", "(2, '11')", "(4, '22')"]


def test_a_dropped_column_shifts_none(conn, shop):
    queries = ("SELECT o.buyer FROM shop.orders o", "SELECT x.c FROM shop.orders x(a, b, c, d)")
    plans = [plan(conn, PlanRequest(query)) for query in queries]
    want = rows(conn, queries[0])
    conn.execute("ALTER TABLE shop.orders DROP spare, ADD extra int DEFAULT 9")
    for made in plans:
        text = present(conn, made.canonical_sql, list(made.named))
        assert rows(conn, text) == want
    conn.execute("ALTER TABLE shop.orders RENAME buyer TO person")
    for made in plans:
        renamed = plan(conn, PlanRequest(present(conn, made.canonical_sql, list(made.named))))
        conn.execute("ALTER TABLE shop.orders DROP extra, ADD extra int DEFAULT 9")
        text = present(conn, renamed.canonical_sql, list(renamed.named))
        assert rows(conn, text) == want


CONSTANTS = """
CREATE SCHEMA k;
CREATE TYPE k.mood AS ENUM ('ok', 'bad', 'it''s', 'a,b', 'NULL', '', '"q"', E'\\\\');
CREATE DOMAIN k.some AS k.mood CHECK (value <> 'bad');
CREATE TYPE k.span AS RANGE (subtype = k.mood, multirange_type_name = k.spans);
CREATE TYPE k.two AS (a int, b k.mood, c text, d k.mood[], e k.span);
CREATE TYPE k.deep AS (x k.two[], y k.some, z int);
CREATE TABLE k.rows (id int PRIMARY KEY, m k.mood);
INSERT INTO k.rows SELECT i, (enum_range(NULL::k.mood))[i] FROM generate_series(1, 8) i;
"""
VALUES = {
    "mood": ("ok", "it's", "a,b", "NULL", "", '"q"', "\\"),
    "some": ("it's",),
    "mood[]": ('{ok,NULL,"NULL"}', "{}", r'[2:3]={"\\","a,b"}', r'{{"",it\'s},{"\"q\"",bad}}'),
    "span": ("empty", "[ok,bad]", '[,"a,b")', "(it''s,)".replace("''", "'"), r'["NULL","\\"]'),
    "spans": ("{}", '{[ok,bad],["a,b",)}'),
    "two": (
        '(1,bad,"x ""y"", \\\\",,)',
        r"""(,"a,b",ok,"{ok,""a,b"",NULL}","[ok,""\\\\""]")""",
        "(,,,,)",
    ),
    "two[]": (r'{"(1,bad,,\"{ok,bad}\",empty)",NULL}',),
    "deep": (r'("{""(1,bad,NULL,{},)"",NULL}",ok,5)',),
    "rows": ("(7,bad)",),
}
"""Constants by type of the schema."""
CHANGES = (
    "ALTER TYPE k.mood RENAME VALUE 'bad' TO 'worse'",
    "ALTER TYPE k.mood RENAME VALUE 'ok' TO E' \\\\\"{}()[],'''",
    # Two labels change their places.
    "ALTER TYPE k.mood RENAME VALUE 'a,b' TO 'x'; ALTER TYPE k.mood RENAME VALUE '' TO 'a,b';"
    " ALTER TYPE k.mood RENAME VALUE 'x' TO ''",
    "ALTER TYPE k.mood ADD VALUE 'new' BEFORE 'worse'",
    "ALTER TYPE k.mood RENAME TO temper; ALTER TYPE k.temper RENAME VALUE 'NULL' TO 'null'",
    "ALTER TYPE k.two ADD ATTRIBUTE f text, DROP ATTRIBUTE c",
    "ALTER TYPE k.two RENAME ATTRIBUTE b TO c",
    "ALTER TABLE k.rows ADD late text DEFAULT 'x y'",
    "ALTER TYPE k.deep DROP ATTRIBUTE x, DROP ATTRIBUTE y, DROP ATTRIBUTE z",
)


def test_constants_follow_labels_and_attributes(conn):
    """As in views of Postgres, which store them by OID."""
    with conn.transaction(force_rollback=True):
        conn.execute(CONSTANTS)
        made = []
        for kind, texts in VALUES.items():
            for text in texts:
                literal = "'" + text.replace("'", "''") + "'"
                query = f"SELECT id, coalesce({literal}::k.{kind}, NULL)::text AS v FROM k.rows"
                conn.execute(f"CREATE VIEW k.v{len(made)} AS {query}")
                planned = plan(conn, PlanRequest(query))
                made.append((planned.canonical_sql, json.loads(json.dumps(planned.named))))
        for change in CHANGES:
            conn.execute(change)
            for number, (text, named) in enumerate(made):
                now = present(conn, text, named)
                want = rows(conn, f"SELECT * FROM k.v{number}")
                assert rows(conn, now) == want, (change, text)
        for text, named in made:
            now = present(conn, text, named)
            again = plan(conn, PlanRequest(now))
            assert rows(conn, again.canonical_sql) == rows(conn, now), text
