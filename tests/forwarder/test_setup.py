"""Slot and publication on a real server: made once, refused when they are not Headrace's."""

from __future__ import annotations

import psycopg
import pytest

from headrace.config import Settings
from headrace.errors import PrerequisiteError, TransientError
from headrace.postgres import publication
from headrace.postgres import slot as setup
from headrace.sql import watched


@pytest.fixture
def conn(database):
    with psycopg.connect(database, autocommit=True) as made:
        yield made


@pytest.fixture
def settings(database, tmp_path):
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    return Settings(source=database, data_dir=tmp_path, slot_name=f"s_{name}", lock_timeout_ms=100)


def oid(conn, name) -> int:
    return conn.execute("SELECT %s::regclass::oid::int", (name,)).fetchone()[0]


def test_ready_server_lacks_nothing_and_ensure_is_idempotent(conn, settings):
    assert setup.preflight(conn, settings) == []
    first = setup.ensure(conn, settings, watched.fed)
    assert first.created
    again = setup.ensure(conn, settings, watched.fed)
    assert not again.created
    assert again.confirmed == first.confirmed
    setup.drop(conn, settings)
    setup.drop(conn, settings)
    assert setup.slot_state(conn, settings.slot_name) is None


def test_role_without_replication_is_told_what_to_do(conn, settings):
    conn.execute("CREATE ROLE e_plain")
    try:
        conn.execute("SET ROLE e_plain")
        (problem,) = setup.preflight(conn, settings)
        conn.execute("RESET ROLE")
        assert problem.code == "42501"
        assert "ALTER ROLE" in problem.hint
    finally:
        conn.execute("DROP ROLE e_plain")


@pytest.mark.parametrize(
    ("made", "word"),
    [
        ("CREATE PUBLICATION headrace FOR ALL TABLES", "ALL TABLES"),
        ("CREATE PUBLICATION headrace WITH (publish = 'insert')", "does not publish"),
        ("CREATE PUBLICATION headrace FOR TABLE t WHERE (a > 1)", "row filter"),
        ("CREATE PUBLICATION headrace FOR TABLE t (a)", "column list"),
        ("CREATE PUBLICATION headrace FOR TABLES IN SCHEMA public", "schema"),
        ("CREATE PUBLICATION headrace WITH (publish_via_partition_root)", "partition_root"),
    ],
)
def test_strange_publication_is_refused(conn, settings, made, word):
    conn.execute("CREATE TABLE t (a int PRIMARY KEY, b int)")
    conn.execute(made)
    with pytest.raises(PrerequisiteError, match=word):
        setup.ensure(conn, settings, watched.fed)


def test_slot_of_another_database_is_refused(conn, settings, postgres):
    with psycopg.connect(postgres, autocommit=True) as other:
        other.execute(
            "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (settings.slot_name,)
        )
        try:
            with pytest.raises(PrerequisiteError, match="cannot be used"):
                setup.ensure(conn, settings, watched.fed)
        finally:
            other.execute("SELECT pg_drop_replication_slot(%s)", (settings.slot_name,))


def test_tables_come_and_go(conn, settings):
    setup.ensure(conn, settings, watched.fed)
    conn.execute('CREATE TABLE "t ""1" (a int PRIMARY KEY)')
    conn.execute('CREATE TABLE child (PRIMARY KEY (a)) INHERITS ("t ""1")')
    first, child = oid(conn, '"t ""1"'), oid(conn, "child")
    assert publication.add_tables(conn, settings, [first, first], watched.fed) == [first]
    assert publication.add_tables(conn, settings, [first], watched.fed) == []
    assert publication.tables(conn, "headrace") == {first}
    assert publication.add_tables(conn, settings, [child, 4_000_000], watched.fed) != []
    assert publication.drop_tables(conn, settings, [first]) == [first]
    assert publication.drop_tables(conn, settings, [first]) == []
    assert publication.tables(conn, "headrace") == {child}


def test_locked_table_is_given_up_in_the_end(conn, settings, database, monkeypatch):
    monkeypatch.setattr(publication, "_ATTEMPTS", 2)
    monkeypatch.setattr(publication, "_PAUSE_S", 0.01)
    setup.ensure(conn, settings, watched.fed)
    conn.execute("CREATE TABLE t (a int PRIMARY KEY)")
    with psycopg.connect(database) as other:
        other.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(TransientError):
            publication.add_tables(conn, settings, [oid(conn, "t")], watched.fed)
    assert publication.add_tables(conn, settings, [oid(conn, "t")], watched.fed) == [oid(conn, "t")]
