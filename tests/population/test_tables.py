"""Holding a table by its name: a replacement under the same name is detected."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql

from headrace.errors import UndefinedError
from headrace.population import tables

NAME = sql.Identifier("s", "t")
IN_ITS_PLACE = (
    "SELECT",
    "CREATE TABLE s.t (id int)",
    "CREATE VIEW s.t AS SELECT 1 AS id",
    "CREATE SEQUENCE s.t",
    "CREATE TYPE s.t AS (id int)",
    "CREATE INDEX t ON s.moved (id)",
    "ALTER SCHEMA s RENAME TO r",
)


@pytest.fixture
def conn(database):
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("CREATE SCHEMA s; CREATE TABLE s.t (id int)")
        yield conn


def hold(conn):
    row = conn.execute("SELECT oid::bigint FROM pg_class WHERE relname = 't'")
    tables.hold(conn, NAME, row.fetchone()[0], UndefinedError("gone"))


def test_a_held_table_keeps_its_name(conn, database):
    with conn.transaction(), psycopg.connect(database, autocommit=True) as other:
        hold(conn)
        other.execute("SET lock_timeout = '50ms'")
        for statement in ("ALTER TABLE s.t RENAME TO u", "DROP TABLE s.t"):
            with pytest.raises(psycopg.errors.LockNotAvailable):
                other.execute(statement)


@pytest.mark.parametrize("statement", IN_ITS_PLACE)
def test_what_else_has_the_name_is_not_held(conn, statement):
    (oid,) = conn.execute("SELECT 's.t'::regclass::oid::bigint").fetchone()
    conn.execute("ALTER TABLE s.t RENAME TO moved")
    conn.execute(statement)
    with pytest.raises(UndefinedError, match="gone"), conn.transaction():
        tables.hold(conn, NAME, oid, UndefinedError("gone"))
