"""rename_view: the table keeps following under its new name."""

from __future__ import annotations

import os
import signal

import psycopg
import pytest

from tests.compared import differs
from tests.integration.conftest import ITEMS

pytestmark = pytest.mark.shared_engine

QUERY = "SELECT g, count(*) AS n FROM items GROUP BY g"


TABLES = ITEMS
VIEWS = {"v": QUERY, "other": QUERY}


def assert_follows(conn, name):
    conn.execute("UPDATE items SET g = g + 1")
    conn.execute("CALL headrace.wait_for(%s, timeout => '90 s')", (name,))
    assert differs(conn, name, QUERY) == []


def test_it_follows_under_each_name(commander, source, engine):
    source.execute("GRANT SELECT ON v TO PUBLIC")
    name = "v"
    for new in ('"Its ""new"""', "w", "public.x"):
        commander.execute("CALL headrace.rename_view(%s, %s)", (name, new))
        assert source.execute("SELECT to_regclass(%s)", (name,)).fetchone() == (None,)
        assert_follows(source, new)
        name = new
    source.execute("CALL headrace.rename_view('x', 'v')")
    assert_follows(commander, "v")
    assert_follows(commander, "other")
    os.kill(engine.child("headrace.runtime.worker"), signal.SIGKILL)
    assert_follows(commander, "v")
    assert commander.execute("SELECT * FROM headrace.verify_view('v')").fetchall() == []
    assert source.execute("SELECT has_table_privilege('public', 'v', 'select')").fetchone() == (
        True,
    )


def test_what_is_refused_changes_nothing(commander, source, engine):
    source.execute("CREATE SCHEMA elsewhere")
    for new, error in (
        ("other", psycopg.errors.DuplicateTable),
        ("items", psycopg.errors.DuplicateTable),
        ("nowhere.v", psycopg.errors.InvalidSchemaName),
        ("headrace.v", psycopg.errors.InsufficientPrivilege),
        ("a b", psycopg.errors.InvalidName),
    ):
        with pytest.raises(error):
            commander.execute("CALL headrace.rename_view('v', %s)", (new,))
    with pytest.raises(psycopg.errors.UndefinedTable):
        commander.execute("CALL headrace.rename_view('nope', 'w')")
    with psycopg.connect(engine.source) as blocker:
        blocker.execute("LOCK TABLE v IN ACCESS SHARE MODE")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            commander.execute("CALL headrace.rename_view('v', 'w')")
        assert_follows(source, "v")
    assert_follows(source, "v")
    source.execute("DROP SCHEMA elsewhere")


def test_it_moves_into_another_schema(commander, source):
    source.execute("CREATE SCHEMA away")
    # No step may collide with a table that has one of the two names in the other schema.
    source.execute("CREATE TABLE away.v (); CREATE TABLE w ()")
    source.execute("GRANT SELECT ON v TO PUBLIC")
    commander.execute("CALL headrace.create_index('v', '(n)')")
    oid = source.execute("SELECT 'v'::regclass::oid").fetchone()
    commander.execute("CALL headrace.rename_view('v', 'away.w')")
    assert source.execute("SELECT 'away.w'::regclass::oid").fetchone() == oid
    assert_follows(commander, "away.w")
    assert source.execute(
        "SELECT has_table_privilege('public', 'away.w', 'select'), count(*) FROM pg_indexes"
        " WHERE schemaname = 'away' AND tablename = 'w'"
    ).fetchone() == (True, 2)
    source.execute(
        "CREATE ROLE mover LOGIN; GRANT SELECT ON items TO mover; GRANT CREATE ON SCHEMA away TO mover"
    )
    commander.execute("CALL headrace.set_owner('away.w', 'mover')")
    with (
        psycopg.connect(commander.info.dsn, user="mover", autocommit=True) as mover,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        mover.execute("CALL headrace.rename_view('away.w', 'public.mine')")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied"):
        commander.execute("CALL headrace.rename_view('away.w', 'public.mine')")
    assert_follows(commander, "away.w")
    source.execute("GRANT CREATE ON SCHEMA public TO mover")
    commander.execute("CALL headrace.rename_view('away.w', 'public.mine')")
    assert_follows(commander, "mine")
    assert_follows(commander, "other")
    commander.execute("CALL headrace.drop_view('mine')")
    source.execute("DROP TABLE w; DROP SCHEMA away CASCADE")
    source.execute("DROP OWNED BY mover; DROP ROLE mover")
