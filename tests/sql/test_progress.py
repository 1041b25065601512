"""The progress compare-and-set: done, gap, zombie, gone."""

from __future__ import annotations

from datetime import UTC, datetime

import psycopg
import pytest

from headrace.errors import BugError, FencedError
from headrace.sql import progress

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def conn(catalog, database):
    with psycopg.connect(database, autocommit=True) as made:
        made.execute(
            "INSERT INTO headrace.views (id, schema_name, view_name, query)"
            " SELECT i, 'public', 'v' || i, '' FROM generate_series(1, 3) i"
        )
        made.execute(
            "INSERT INTO headrace.progress (view_id, txid, lsn) SELECT i, 4, '0/10' FROM generate_series(1, 3) i"
        )
        yield made


def advance(conn, views, txid, attempt=0):
    with conn.transaction():
        return progress.advance(conn, views, txid, attempt, 0x1_0000_0020, NOW)


def test_moves_all_views_together(conn):
    owned = progress.take_over(conn, [1, 2, 3])
    assert advance(conn, list(owned.values()), 5, 2) == []
    rows = conn.execute(
        "SELECT view_id, txid, attempt, lsn::text, source_commit_at FROM headrace.progress ORDER BY 1"
    ).fetchall()
    assert rows == [(i, 5, 2, "1/20", NOW) for i in (1, 2, 3)]


def test_txids_that_changed_nothing_may_be_skipped(conn):
    owned = progress.take_over(conn, [1])
    assert advance(conn, [owned[1]], 9) == []


def test_second_commit_and_gap_are_refused_and_say_which(conn):
    owned = progress.take_over(conn, [1])
    advance(conn, [owned[1]], 5)
    with pytest.raises(BugError, match="already done"):
        advance(conn, [owned[1]], 5)
    ahead = progress.Progress(1, owned[1].epoch, 7, 0)
    with pytest.raises(BugError, match="a gap"):
        advance(conn, [ahead], 8)
    assert conn.execute("SELECT txid FROM headrace.progress WHERE view_id = 1").fetchone() == (5,)


def test_later_owner_fences_the_earlier(conn):
    old = progress.take_over(conn, [1, 2])
    progress.take_over(conn, [2])
    with pytest.raises(FencedError):
        advance(conn, list(old.values()), 5)
    assert (
        conn.execute("SELECT txid FROM headrace.progress ORDER BY view_id").fetchall() == [(4,)] * 3
    )


def test_dropped_view_is_told_apart(conn):
    owned = progress.take_over(conn, [1, 2, 77])
    assert set(owned) == {1, 2}
    conn.execute("DELETE FROM headrace.views WHERE id = 2")
    assert advance(conn, list(owned.values()), 5) == [2]


def test_take_over_waits_for_a_commit_under_way(conn, database):
    owned = progress.take_over(conn, [1])
    with psycopg.connect(database) as slow:
        progress.advance(slow, [owned[1]], 5, 0, 32, NOW)
        conn.execute("SET lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            progress.take_over(conn, [1])
        slow.commit()
    assert progress.take_over(conn, [1])[1].txid == 5


def test_who_has_a_snapshot_of_before_is_seen_by_who_may(conn, database):
    """A role that may not see the snapshots of other sessions assumes that there is one."""
    role = f"r_{conn.info.dbname}"
    conn.execute(
        f"CREATE ROLE {role} LOGIN BYPASSRLS; GRANT USAGE ON SCHEMA headrace TO {role};"
        f" GRANT SELECT ON headrace.progress TO {role}"
    )
    try:
        with psycopg.connect(database, autocommit=True, user=role) as other:
            assert progress.seen_by_all(conn, 1)
            assert not progress.seen_by_all(other, 1)
            with psycopg.connect(database) as old:
                old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                old.execute("SELECT FROM headrace.progress")
                assert progress.seen_by_all(conn, 1), "it has all of it"
                advance(conn, list(progress.take_over(conn, [1]).values()), 5)
                assert not progress.seen_by_all(conn, 1)
                assert progress.seen_by_all(conn, 2), "of which nothing has changed"
                assert not progress.seen_by_all(other, 1)
            assert progress.seen_by_all(conn, 1)
            assert not progress.seen_by_all(conn, 4), "there is none"
    finally:
        conn.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
