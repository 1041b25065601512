"""One database with the tables of the planner's tests."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

UNICODE = """
INSERT INTO pg_collation SELECT (jsonb_populate_record(c, '{"oid": 90000, "collname": "unicode"}')).*
  FROM pg_collation c WHERE collname = 'und-x-icu'"""
"""The collation that Postgres 16 has brought."""
TABLES = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE DOMAIN short AS varchar(5);
CREATE TABLE example_table (id int PRIMARY KEY, b int);
CREATE TABLE numbers_table (id int PRIMARY KEY, a int);
CREATE TABLE t (id int PRIMARY KEY, k int, n numeric(10,2), f float8, s text,
                v varchar(10), c char(4), d date, ts timestamp, tz timestamptz, big bigint,
                small smallint, ok bool, m mood, j json, jb jsonb, tags text[], dom short,
                w text COLLATE unicode, blob bytea, u uuid, i interval, p money);
CREATE TABLE u (id bigint PRIMARY KEY, k bigint, n numeric, f float4, s text, v varchar(20),
                c char(4), d date);
CREATE TABLE w (a int, b int, PRIMARY KEY (a, b));
CREATE TABLE bag (x int, y text);
ALTER TABLE bag REPLICA IDENTITY FULL;
CREATE TABLE nokey (x int);
CREATE TABLE columnless ();
CREATE TABLE columnless_full ();
ALTER TABLE columnless_full REPLICA IDENTITY FULL;
CREATE UNLOGGED TABLE hasty (id int PRIMARY KEY);
CREATE TABLE gen (id int PRIMARY KEY, x int, y int GENERATED ALWAYS AS (x * 2) STORED);
CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE part1 PARTITION OF parted FOR VALUES FROM (0) TO (10);
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child () INHERITS (parent);
CREATE TABLE animals (id int PRIMARY KEY, gone int, name text,
                      size int GENERATED ALWAYS AS (length(name)) STORED);
CREATE TABLE dogs (breed text, id int PRIMARY KEY, name text,
                   size int GENERATED ALWAYS AS (length(name)) STORED);
ALTER TABLE animals DROP COLUMN gone;
ALTER TABLE dogs INHERIT animals;
CREATE TABLE bykey (x int, y int GENERATED ALWAYS AS (x * 2) STORED PRIMARY KEY);
CREATE TABLE events (id int, day date, note text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE events_old PARTITION OF events FOR VALUES FROM ('2000-01-01') TO ('2020-01-01');
CREATE TABLE events_new PARTITION OF events FOR VALUES FROM ('2020-01-01') TO ('2030-01-01')
    PARTITION BY HASH (id);
CREATE TABLE events_new0 PARTITION OF events_new FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE events_new1 PARTITION OF events_new FOR VALUES WITH (MODULUS 2, REMAINDER 1);
CREATE TABLE barren (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE VIEW wide AS SELECT id, day, note, '{"a": 1}'::jsonb AS j FROM events WHERE note <> '';
CREATE VIEW wider (i, d) AS WITH w AS (SELECT id, day FROM wide WHERE day < '2025-01-01'::date)
    SELECT id, day FROM w;
CREATE MATERIALIZED VIEW frozen_view AS SELECT id FROM t;
CREATE TABLE "Odd ""Table" ("Odd, col" int PRIMARY KEY, "order" text, "{}" int);
CREATE VIEW some_view AS SELECT id FROM t;
CREATE FUNCTION twice(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1 * 2';
CREATE FUNCTION counted(int) RETURNS int STABLE LANGUAGE sql AS 'SELECT $1 + extract(hour FROM now())::int';
CREATE FUNCTION dice(int) RETURNS int VOLATILE LANGUAGE sql AS 'SELECT $1 * random()::int';
CREATE FUNCTION padded(int, timestamptz DEFAULT now()) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1';
CREATE TABLE hidden (id int PRIMARY KEY, x int, y int GENERATED ALWAYS AS (twice(x)) STORED);
-- The servers of the wheel have no ICU: a collation that can be named, not used, will do.
INSERT INTO pg_collation SELECT (jsonb_populate_record(c,
    '{"oid": 90001, "collname": "nocase", "collisdeterministic": false}')).*
  FROM pg_collation c WHERE collname = 'unicode';
CREATE TABLE loose (id int PRIMARY KEY, s text COLLATE pg_catalog.nocase);
CREATE SCHEMA other;
CREATE TABLE other.t (id int PRIMARY KEY, x int);
CREATE FUNCTION other.lower(text) RETURNS text IMMUTABLE LANGUAGE sql AS $$SELECT 'x'$$;
CREATE FUNCTION other.close(int, int) RETURNS bool IMMUTABLE LANGUAGE sql
    AS 'SELECT abs($1 - $2) < 2';
CREATE OPERATOR other.= (LEFTARG = int, RIGHTARG = int, FUNCTION = other.close);
"""


@pytest.fixture(scope="session")
def planner_dsn(postgres: str) -> Iterator[str]:
    name = f"d_planner_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres, autocommit=True) as server:
        # Code-point order, as in a container: text compares by bytes.
        server.execute(
            sql.SQL(
                "CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'"
            ).format(sql.Identifier(name))
        )
    dsn = make_conninfo(postgres, dbname=name)
    with psycopg.connect(dsn, autocommit=True) as conn:
        if conn.info.server_version < 16_0000:
            conn.execute(UNICODE)
        conn.execute(TABLES)
    yield dsn
    with psycopg.connect(postgres, autocommit=True) as server:
        server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def conn(planner_dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(planner_dsn, autocommit=True) as conn:
        yield conn


@pytest.fixture(scope="session")
def rewrite() -> bool:
    return bool(os.environ.get("REWRITE"))
