"""Definitions that values depend on: a change and its reversal are detected as a change."""

from __future__ import annotations

import psycopg
import pytest

from headrace.postgres import definitions

SETUP = """
CREATE SCHEMA s;
CREATE SCHEMA r;
CREATE FUNCTION s.inner_(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1 + 1';
CREATE FUNCTION s."In ner"(int) RETURNS int IMMUTABLE LANGUAGE sql RETURN $1;
CREATE FUNCTION s.atomic(int) RETURNS int IMMUTABLE LANGUAGE sql RETURN s.inner_($1);
CREATE FUNCTION s.f(int) RETURNS int IMMUTABLE LANGUAGE plpgsql
  AS 'BEGIN RETURN s.ATOMIC($1) + s."In ner"($1); END';
CREATE FUNCTION s.step(int, int) RETURNS int IMMUTABLE LANGUAGE sql RETURN $1 + $2;
CREATE AGGREGATE s.total(int) (SFUNC = s.step, STYPE = int, INITCOND = '0');
CREATE OPERATOR s.|+| (FUNCTION = s.step, LEFTARG = int, RIGHTARG = int);
CREATE TYPE s.mood AS ENUM ('ok', 'bad');
CREATE TYPE s.pair AS (x int, m s.mood);
CREATE FUNCTION s.small_enough(int) RETURNS boolean IMMUTABLE LANGUAGE sql RETURN $1 < 10;
CREATE DOMAIN s.small AS int CHECK (s.small_enough(VALUE));
CREATE TYPE s.span AS RANGE (SUBTYPE = int4);
CREATE FUNCTION s.as_text(s.pair) RETURNS text IMMUTABLE LANGUAGE sql RETURN ($1).x::text;
CREATE CAST (s.pair AS text) WITH FUNCTION s.as_text(s.pair);
CREATE COLLATION s.plain FROM "C";
CREATE TEXT SEARCH DICTIONARY s.words (TEMPLATE = simple);
CREATE TEXT SEARCH CONFIGURATION s.config (COPY = simple);
ALTER TEXT SEARCH CONFIGURATION s.config ALTER MAPPING FOR asciiword WITH s.words;
CREATE FUNCTION s.cmp(s.pair, s.pair) RETURNS int IMMUTABLE LANGUAGE sql RETURN ($1).x - ($2).x;
CREATE FUNCTION s.less(s.pair, s.pair) RETURNS boolean IMMUTABLE LANGUAGE sql RETURN ($1).x < ($2).x;
CREATE OPERATOR s.<< (FUNCTION = s.less, LEFTARG = s.pair, RIGHTARG = s.pair);
CREATE OPERATOR CLASS s.by_x DEFAULT FOR TYPE s.pair USING btree AS
  OPERATOR 1 s.<<, FUNCTION 1 s.cmp(s.pair, s.pair);
CREATE TABLE s.t (id int, p s.pair);
"""
BODY = "CREATE OR REPLACE FUNCTION s.{} RETURNS {} IMMUTABLE LANGUAGE sql {}"
BACK = (
    (
        BODY.format("inner_(int)", "int", "AS 'SELECT 7'"),
        BODY.format("inner_(int)", "int", "AS 'SELECT $1 + 1'"),
    ),
    (
        BODY.format('"In ner"(int)', "int", "RETURN 7"),
        BODY.format('"In ner"(int)', "int", "RETURN $1"),
    ),
    (
        BODY.format("step(int, int)", "int", "RETURN 7"),
        BODY.format("step(int, int)", "int", "RETURN $1 + $2"),
    ),
    (
        BODY.format("small_enough(int)", "boolean", "RETURN true"),
        BODY.format("small_enough(int)", "boolean", "RETURN $1 < 10"),
    ),
    (
        BODY.format("as_text(s.pair)", "text", "RETURN 7"),
        BODY.format("as_text(s.pair)", "text", "RETURN ($1).x::text"),
    ),
    (
        BODY.format("cmp(s.pair, s.pair)", "int", "RETURN 0"),
        BODY.format("cmp(s.pair, s.pair)", "int", "RETURN ($1).x - ($2).x"),
    ),
    (
        "CREATE OR REPLACE AGGREGATE s.total(int) (SFUNC = s.step, STYPE = int, INITCOND = '5')",
        "CREATE OR REPLACE AGGREGATE s.total(int) (SFUNC = s.step, STYPE = int, INITCOND = '0')",
    ),
    ("ALTER FUNCTION s.f(int) SET DateStyle = 'German'", "ALTER FUNCTION s.f(int) RESET ALL"),
    ("ALTER FUNCTION s.f(int) RENAME TO g", "ALTER FUNCTION s.g(int) RENAME TO f"),
    ("ALTER FUNCTION s.f(int) SET SCHEMA r", "ALTER FUNCTION r.f(int) SET SCHEMA s"),
    ("ALTER SCHEMA s RENAME TO z", "ALTER SCHEMA z RENAME TO s"),
    (
        "ALTER OPERATOR s.|+| (int, int) SET SCHEMA r",
        "ALTER OPERATOR r.|+| (int, int) SET SCHEMA s",
    ),
    (
        "DROP OPERATOR s.|+| (int, int)",
        "CREATE OPERATOR s.|+| (FUNCTION = s.step, LEFTARG = int, RIGHTARG = int)",
    ),
    (
        "ALTER TYPE s.mood RENAME VALUE 'ok' TO 'fine'",
        "ALTER TYPE s.mood RENAME VALUE 'fine' TO 'ok'",
    ),
    ("ALTER TYPE s.mood RENAME TO m", "ALTER TYPE s.m RENAME TO mood"),
    ("ALTER TYPE s.pair RENAME ATTRIBUTE x TO z", "ALTER TYPE s.pair RENAME ATTRIBUTE z TO x"),
    ("ALTER TYPE s.span SET SCHEMA r", "ALTER TYPE r.span SET SCHEMA s"),
    (
        "ALTER DOMAIN s.small ADD CONSTRAINT more CHECK (VALUE <> 3)",
        "ALTER DOMAIN s.small DROP CONSTRAINT more",
    ),
    ("ALTER DOMAIN s.small SET NOT NULL", "ALTER DOMAIN s.small DROP NOT NULL"),
    ("DROP CAST (s.pair AS text)", "CREATE CAST (s.pair AS text) WITH FUNCTION s.as_text(s.pair)"),
    ("ALTER COLLATION s.plain RENAME TO other", "ALTER COLLATION s.other RENAME TO plain"),
    (
        "ALTER TEXT SEARCH CONFIGURATION s.config ALTER MAPPING FOR asciiword WITH simple",
        "ALTER TEXT SEARCH CONFIGURATION s.config ALTER MAPPING FOR asciiword WITH s.words",
    ),
    (
        "ALTER TEXT SEARCH DICTIONARY s.words (Accept = false)",
        "ALTER TEXT SEARCH DICTIONARY s.words (Accept)",
    ),
    (
        "ALTER OPERATOR FAMILY s.by_x USING btree DROP FUNCTION 1 (s.pair, int4)",
        "ALTER OPERATOR FAMILY s.by_x USING btree ADD FUNCTION 1 (s.pair, int4) s.cmp_int(s.pair, int)",
    ),
)
SEEN = (
    # A new object is seen while it exists; after its removal it leaves no trace.
    ("CREATE CAST (s.mood AS int) WITH FUNCTION s.number(s.mood)", "DROP CAST (s.mood AS int)"),
    (
        "ALTER DOMAIN s.small ADD CONSTRAINT more CHECK (VALUE <> 3)",
        "ALTER DOMAIN s.small DROP CONSTRAINT more",
    ),
    (
        "CREATE FUNCTION r.atomic(int) RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "DROP FUNCTION r.atomic(int)",
    ),
    ("ALTER TYPE s.pair ADD ATTRIBUTE z int", "ALTER TYPE s.pair DROP ATTRIBUTE z"),
)
HARMLESS = (
    "VACUUM FREEZE pg_proc, pg_type, pg_enum, pg_namespace, pg_operator, pg_cast, pg_attribute",
    "VACUUM FULL pg_proc",
    "VACUUM FULL pg_type",
    "VACUUM FULL pg_enum",
    "REINDEX TABLE pg_proc",
    "ANALYZE",
    "ALTER TYPE s.mood ADD VALUE 'new' BEFORE 'ok'",
    "CREATE FUNCTION s.unrelated(int) RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "CREATE TABLE s.more (id int, p s.pair, m s.mood)",
    "CREATE VIEW s.v AS SELECT s.f(id) AS f, s.f(id) OPERATOR(s.|+|) 1 AS o FROM s.t",
    "CREATE FUNCTION s.reader(s.mood) RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "COMMENT ON FUNCTION s.f(int) IS 'text'",
)
ALIKE = (
    # These statements update the catalog row, but no value depends on that.
    "GRANT EXECUTE ON FUNCTION s.f(int) TO PUBLIC",
    "GRANT USAGE ON SCHEMA s TO PUBLIC",
    "GRANT USAGE ON TYPE s.mood TO PUBLIC",
    "ALTER FUNCTION s.inner_(int) COST 5",
)


@pytest.fixture
def source(database):
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(SETUP)
        conn.execute(
            "CREATE FUNCTION s.number(s.mood) RETURNS int IMMUTABLE LANGUAGE sql RETURN 1;"
            "CREATE FUNCTION s.cmp_int(s.pair, int) RETURNS int IMMUTABLE LANGUAGE sql RETURN 1;"
            "ALTER OPERATOR FAMILY s.by_x USING btree ADD FUNCTION 1 (s.pair, int4) s.cmp_int(s.pair, int)"
        )
        yield conn


def found(conn: psycopg.Connection, *, deep: bool = True) -> definitions.Definitions:
    def oids(query: str) -> set[int]:
        return {row[0] for row in conn.execute(query)}

    roots = {
        "pg_proc": oids("SELECT oid::bigint FROM pg_proc WHERE proname IN ('f', 'total')"),
        "pg_operator": oids("SELECT oid::bigint FROM pg_operator WHERE oprname = '|+|'"),
        "pg_type": oids(
            "SELECT oid::bigint FROM pg_type WHERE typname IN ('pair', 'small', 'span', '_mood')"
        ),
        "pg_collation": oids("SELECT oid::bigint FROM pg_collation WHERE collname = 'plain'"),
        "pg_ts_config": oids("SELECT oid::bigint FROM pg_ts_config WHERE cfgname = 'config'"),
    }
    return definitions.find(conn, roots, deep=deep)


def told(conn, before, *, quiet: bool = False) -> list[str]:
    """Return the reported differences; the quick check must detect them as well."""
    (now,) = definitions.read(conn, [before])
    said = list(definitions.difference(before, now))
    (marks,) = definitions.marks(conn, [before])
    assert definitions.changed(before, marks) == bool(said), said
    assert all(said) and not any("None" in line for line in said), said
    return list(definitions.difference(before, now, quiet=True)) if quiet else said


def test_what_was_changed_back_is_known(source):
    for change, back in BACK:
        before = found(source)
        assert told(source, before) == []
        source.execute(change)
        while_changed = told(source, before, quiet=True)
        assert while_changed, change
        source.execute(back)
        if not change.startswith("ALTER DOMAIN s.small ADD"):
            assert told(source, before), back
        again = found(source)
        assert len(again["objects"]) == len(before["objects"]), change


def test_what_comes_is_seen(source):
    for change, back in SEEN:
        before = found(source)
        source.execute(change)
        assert told(source, before, quiet=True), change
        source.execute(back)


def test_the_rest_is_harmless(source):
    before = found(source)
    for statement in HARMLESS:
        source.execute(statement)
        assert told(source, before) == [], statement
    for statement in ALIKE:
        before = found(source)
        source.execute(statement)
        assert "another for a while" in " ".join(told(source, before)), statement
        assert told(source, before, quiet=True) == [], statement


def test_what_postgres_does_not_evaluate_depends_on_labels_and_attributes_only(source):
    before = found(source, deep=False)
    for change, back in (*BACK[:12], *SEEN[:3]):
        if "ALTER FUNCTION s.f" in change or "AGGREGATE" in change:
            continue
        if "OPERATOR" in change or "SCHEMA s" in change:
            continue
        source.execute(change)
        assert told(source, before) == [], change
        source.execute(back)
    source.execute("ALTER TYPE s.mood RENAME VALUE 'ok' TO 'fine'")
    assert told(source, before) == ['label "ok" of type s.mood was renamed']
    source.execute("ALTER TYPE s.pair ADD ATTRIBUTE z int")
    assert "the attributes of type s.pair have changed" in told(source, before)
