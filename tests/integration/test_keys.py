"""Keys of result tables, and what they are for: publications, foreign keys, ON CONFLICT, ORMs."""

from __future__ import annotations

import psycopg
import pytest


@pytest.fixture
def engine(shared_engine):
    return shared_engine


@pytest.fixture
def source(engine):
    with psycopg.connect(engine.source, autocommit=True) as conn:
        yield conn


@pytest.fixture
def commander(engine, source):
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        yield conn


def create(commander, name, query, options="{}"):
    commander.execute(
        psycopg.sql.SQL("CALL headrace.create_view({}, {}, {})").format(
            name, query, options
        )
    )


def assert_follows(commander, source, name, query):
    commander.execute("CALL headrace.wait_for(%s, timeout => '90 s')", (name,))
    rows = [
        source.execute(f"SELECT x::text FROM ({q}) x ORDER BY 1").fetchall()
        for q in (f"TABLE {name}", query)
    ]
    assert rows[0] == rows[1]


def test_a_publication_for_all_tables_does_not_hinder_writing(
    commander, source, engine
):
    """Updates and deletes of a published table need an identity, of ours as of any other."""
    query = "SELECT g, count(*) AS n FROM p GROUP BY g"
    source.execute("CREATE TABLE p (id int PRIMARY KEY, g int)")
    source.execute("INSERT INTO p SELECT i, i % 3 FROM generate_series(1, 9) i")
    create(commander, "unkeyed", query)
    name = source.info.dbname
    source.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    slot = f"reads_{name}"
    source.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    try:
        source.execute("DELETE FROM p WHERE g = 1")
        assert_follows(commander, source, "unkeyed", query)
        deleted = source.execute(
            # Relation and what is told of the old row: O, all of it.
            "SELECT count(*) FROM pg_logical_slot_get_binary_changes("
            "%s, NULL, NULL, 'proto_version', '1', 'publication_names', 'everything')"
            " WHERE substr(data, 1, 6) = 'D'::bytea || int4send('unkeyed'::regclass::int)"
            " || 'O'::bytea",
            (slot,),
        ).fetchone()
    finally:
        source.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
        source.execute("DROP PUBLICATION everything")
    assert deleted == (1,)
