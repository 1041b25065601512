"""Views with a history: their changes, their earlier rows, and the progress of their readers."""

from __future__ import annotations

import asyncio
import collections
import os
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from headrace.config import Settings
from headrace.server import janitor
from tests.compared import differs
from tests.integration.conftest import ITEMS
from tests.waiting import at_any_moment, wait_until

pytestmark = pytest.mark.shared_engine

TABLES = (
    ITEMS
    + """
CREATE TABLE notes (id int, t text, b bytea, r numeric[], d interval, f float8);
ALTER TABLE notes REPLICA IDENTITY FULL;
INSERT INTO notes VALUES (1, 'a', '\\x00', '{1,NULL}', '1 day -1 s', 'NaN'), (1, 'a', '\\x00', '{1,NULL}', '1 day -1 s', 'NaN'),
    (2, '', NULL, '{}', NULL, 0.1), (3, 'q"(,)\\ x', '', NULL, '-1 mon', '-Infinity');
"""
)
HISTORY = '{"history": "2 hours"}'
GROUPS = "SELECT g, count(*) AS n, sum(x) AS total FROM items GROUP BY g"
NOTES = "SELECT t, b, r, d, f FROM notes"
QUERIES = {"v": GROUPS, "w": NOTES}
"""One with a key, one without."""


@pytest.fixture
def commander(commander):
    for name, query in QUERIES.items():
        commander.execute("CALL headrace.create_view(%s, %s, %s)", (name, query, HISTORY))
    return commander


def caught_up(conn, *names):
    for name in names or QUERIES:
        conn.execute("CALL headrace.wait_for(%s, timeout => '90 s')", (name,))


def rows(conn, name):
    """Return the rows of a table or a function, as texts."""
    return collections.Counter(r[0] for r in conn.execute(f"SELECT (t.*)::text FROM {name} t"))


def snapshot(conn, name):
    """Return the txid of a view and its rows, from one snapshot."""
    with conn.transaction():
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        at = conn.execute("SELECT headrace.view_txid(%s)", (name,)).fetchone()[0]
        return at, rows(conn, name)


def changes(conn, name, since=0):
    return conn.execute(
        "SELECT txid, weight, data, lsn, commit_at FROM headrace.view_changes(%s, since => %s)",
        (name, since),
    ).fetchall()


def added_up(before, told, upto=None):
    out = collections.Counter(before)
    for txid, weight, data, *_ in told:
        if upto is None or txid <= upto:
            out[data] += weight
    assert min(out.values(), default=0) >= 0
    return +out


def as_of(conn, name, txid):
    return rows(conn, f"headrace.view_as_of(NULL::{name}, txid => {txid})")


def change(conn, rng):
    for statement in rng.sample(
        [
            "UPDATE items SET x = x + 1 WHERE id % 7 = 3",
            "UPDATE items SET g = (g + 1) % 6 WHERE id % 5 = 2",
            "DELETE FROM items WHERE id = (SELECT max(id) FROM items)",
            "INSERT INTO items SELECT max(id) + 1, 9, 0.10 FROM items",
            "INSERT INTO notes SELECT * FROM notes WHERE id = 1 LIMIT 1",
            "INSERT INTO notes VALUES (4, ' ', 'x', '{2.50}', '3 h', 1e-7)",
            "DELETE FROM notes WHERE id = 4",
            "UPDATE notes SET t = t || '\"' WHERE id = 3",
        ],
        3,
    ):
        conn.execute(statement)


def test_changes_add_up_to_the_view_at_every_txid(commander, source):
    rng = random.Random(5)
    first = {name: snapshot(source, name) for name in QUERIES}
    seen = {name: [] for name in QUERIES}
    for _ in range(12):
        with source.transaction():
            change(source, rng)
        caught_up(source)
        for name in QUERIES:
            seen[name].append(snapshot(source, name))
    for name, query in QUERIES.items():
        told = changes(source, name)
        assert told == sorted(told, key=lambda row: row[0])
        at, before = first[name]
        assert all(row[0] > at for row in told)
        for txid, contents in seen[name]:
            assert added_up(before, told, txid) == contents
            assert as_of(source, name, txid) == contents
            assert changes(source, name, txid) == [row for row in told if row[0] > txid]
        assert differs(source, name, query) == []
        # By columns, by position and by time.
        assert source.execute(
            f"SELECT (data::{name}).* FROM headrace.view_changes('{name}')"
        ).fetchall()
        for txid, _, _, lsn, commit_at in told:
            assert rows(source, f"headrace.view_as_of(NULL::{name}, lsn => '{lsn}')") == as_of(
                source, name, txid
            )
            assert rows(source, f"headrace.view_as_of(NULL::{name}, at => '{commit_at}')") == as_of(
                source, name, txid
            )


def test_a29_a_large_transaction_is_in_parts_and_whole(commander, source):
    at, before = snapshot(source, "w")
    source.execute("CALL headrace.create_feed('f', 'w')")
    source.execute(
        "INSERT INTO notes SELECT i, repeat(md5(i::text), 3) FROM generate_series(10, 30000) i"
    )
    caught_up(source)
    told = changes(source, "w")
    assert len({row[0] for row in told}) == 1
    assert source.execute("SELECT count(*) > 1 FROM headrace.history").fetchone() == (True,)
    assert added_up(before, told) == rows(source, "w")
    assert as_of(source, "w", at) == before
    assert source.execute("SELECT count(*) FROM headrace.feed_read('f', 1)").fetchone() == (
        len(told),
    )


def test_a_resync_goes_on_with_what_differs(commander, source):
    first = {name: snapshot(source, name) for name in QUERIES}
    source.execute("UPDATE items SET x = x + 1 WHERE id < 9")
    source.execute("DELETE FROM notes WHERE id = 2")
    caught_up(source)
    again = {name: snapshot(source, name) for name in QUERIES}
    # Changes that a paused view misses: the resync records them.
    source.execute("CALL headrace.pause_view('v')")
    source.execute("CALL headrace.pause_view('w')")
    source.execute("UPDATE items SET x = x + 1 WHERE id < 9")
    source.execute("INSERT INTO notes SELECT * FROM notes")
    for name in QUERIES:
        source.execute("CALL headrace.resync_view(%s)", (name,))
        after = snapshot(source, name)
        assert after[0] > again[name][0]
        told = changes(source, name)
        assert {r[0] for r in told} <= set(range(first[name][0] + 1, after[0] + 1))
        for txid, contents in (again[name], after):
            assert added_up(first[name][1], told, txid) == contents
            assert as_of(source, name, txid) == contents
        source.execute("UPDATE items SET x = x + 1 WHERE id < 9")
        source.execute("UPDATE notes SET t = t || 'z' WHERE id = 3")
        caught_up(source, name)
        last = snapshot(source, name)
        assert last[0] > after[0]
        assert added_up(after[1], changes(source, name, after[0])) == last[1]


def test_a_history_is_given_and_taken(commander, source):
    source.execute("CALL headrace.create_view('p', %s)", (GROUPS,))
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="no history"):
        changes(source, "p")
    for bad in ("-1 hour", "0", "soon"):
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            source.execute("CALL headrace.set_history('p', %s)", (bad,))
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            source.execute(
                "CALL headrace.create_view('q', %s, jsonb_build_object('history', %s::text))",
                (GROUPS, bad),
            )
    commander.execute("CALL headrace.set_history('p', '1 hour')")
    at, before = snapshot(source, "p")
    source.execute("UPDATE items SET x = 0 WHERE id = 1")
    caught_up(source, "p")
    assert added_up(before, changes(source, "p", at)) == rows(source, "p")
    commander.execute("CALL headrace.set_history('p', NULL)")
    source.execute("UPDATE items SET x = 1 WHERE id = 1")
    caught_up(source, "p")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="no history"):
        changes(source, "p")
    source.execute("CALL headrace.set_history('p', '1 hour')")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="does not reach"):
        changes(source, "p", at)
    at, before = snapshot(source, "p")
    source.execute("UPDATE items SET x = 3 WHERE id = 1")
    caught_up(source, "p")
    assert added_up(before, changes(source, "p", at)) == rows(source, "p")
    source.execute("CALL headrace.drop_view('p')")
    assert source.execute(
        "SELECT count(*) FROM headrace.history WHERE history_id NOT IN"
        " (SELECT h.id FROM headrace.histories h JOIN headrace.views v ON v.id = h.view_id)"
    ).fetchone() == (0,)


def test_a30_a31_what_is_too_old_is_purged_and_said(commander, source, engine):
    at, _ = snapshot(source, "v")
    source.execute("UPDATE items SET x = 0 WHERE id = 1")
    caught_up(source)
    middle, contents = snapshot(source, "v")
    source.execute(
        "UPDATE headrace.history c SET commit_at = now() - interval '1 day'"
        " FROM headrace.histories h WHERE h.id = c.history_id AND h.result_oid = 'v'::regclass"
    )
    source.execute("UPDATE items SET x = 5 WHERE id = 1")
    caught_up(source)
    asyncio.run(janitor.purge(Settings(source=engine.source)))
    with pytest.raises(psycopg.errors.InvalidParameterValue) as caught:
        changes(source, "v", at)
    assert f"from txid {middle} " in caught.value.diag.message_detail
    assert "view_as_of" in caught.value.diag.message_hint
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        as_of(source, "v", at)
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        as_of(source, "v", 10**9)
    assert as_of(source, "v", middle) == contents
    assert added_up(contents, changes(source, "v")) == rows(source, "v")


def test_listeners_hear_the_txid(commander, source, engine):
    with psycopg.connect(engine.source, autocommit=True) as listener:
        listener.execute("LISTEN headrace_v")
        source.execute("UPDATE items SET x = 0 WHERE id = 1")
        heard = next(listener.notifies(timeout=90))
        caught_up(source)
        assert heard.payload == str(snapshot(source, "v")[0])


def test_feeds(commander, source):
    commander.execute("CALL headrace.create_feed('f', 'v')")
    with pytest.raises(psycopg.errors.DuplicateObject):
        source.execute("CALL headrace.create_feed('f', 'v')")
    _, contents = snapshot(source, "v")
    for n in range(4):
        source.execute("UPDATE items SET x = %s WHERE id < 4", (n,))
        caught_up(source)
    everything = changes(source, "v")
    txids = sorted({row[0] for row in everything})
    got = source.execute("SELECT txid, weight, data FROM headrace.feed_read('f', 3)").fetchall()
    assert got == [row[:3] for row in everything if row[0] <= got[-1][0]]
    assert got[-1][0] < txids[-1]
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        source.execute("CALL headrace.feed_ack('f', %s)", (txids[-1] + 99,))
    commander.execute("CALL headrace.feed_ack('f', %s)", (got[-1][0],))
    rest = source.execute("SELECT txid, weight, data FROM headrace.feed_read('f')").fetchall()
    assert got + rest == [row[:3] for row in everything]
    assert added_up(contents, got + rest) == rows(source, "v")
    source.execute("CALL headrace.drop_feed('f')")
    with pytest.raises(psycopg.errors.UndefinedObject):
        source.execute("SELECT * FROM headrace.feed_read('f')")


def test_renamed_altered_and_retyped(commander, source):
    at, before = snapshot(source, "v")
    source.execute("CALL headrace.rename_view('v', 'u')")
    source.execute("UPDATE items SET x = 7 WHERE id = 1")
    caught_up(source, "u")
    assert added_up(before, changes(source, "u", at)) == rows(source, "u")
    assert as_of(source, "u", at) == before
    # With another query or type, the history begins anew.
    source.execute(
        "CALL headrace.alter_view('u', %s)", (GROUPS.replace("GROUP", "WHERE g > 1 GROUP"),)
    )
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        changes(source, "u", at)
    at, before = snapshot(source, "u")
    source.execute("ALTER TABLE items ALTER g TYPE bigint")
    source.execute("UPDATE items SET x = 8 WHERE id = 3")
    source.execute("CALL headrace.resync_view('u')")
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        changes(source, "u", at)
    at, before = snapshot(source, "u")
    source.execute("UPDATE items SET x = 9 WHERE id = 3")
    caught_up(source, "u")
    assert added_up(before, changes(source, "u", at)) == rows(source, "u")


def test_a_worker_killed_amid_commits(commander, source, engine):
    rng = random.Random(11)
    first = {name: snapshot(source, name) for name in QUERIES}
    for _ in range(4):
        for _ in range(15):
            with source.transaction():
                change(source, rng)
        at_any_moment(rng, 0.0, 0.2)
        os.kill(engine.child("headrace.runtime.worker"), signal.SIGKILL)
        for name in QUERIES:
            at, contents = snapshot(source, name)
            assert added_up(first[name][1], changes(source, name), at) == contents
        caught_up(source)
    for name, query in QUERIES.items():
        assert differs(source, name, query) == []
        assert added_up(first[name][1], changes(source, name)) == rows(source, name)
        assert as_of(source, name, first[name][0]) == first[name][1]


def test_a_subscriber_killed_at_random(commander, source, engine):
    rng = random.Random(3)
    source.execute("CALL headrace.create_feed('f', 'v')")
    source.execute("CREATE TABLE sums (data text PRIMARY KEY, weight bigint)")
    source.execute("INSERT INTO sums SELECT t::text, 1 FROM v t")
    wrote = 0
    while wrote < 25 or changes_left(source):
        if wrote < 25:
            with source.transaction():
                change(source, rng)
            wrote += 1
        with psycopg.connect(engine.source) as subscriber:
            batch = subscriber.execute("SELECT * FROM headrace.feed_read('f', 2)").fetchall()
            for *_, weight, data in batch:
                subscriber.execute(
                    "INSERT INTO sums VALUES (%s, %s) ON CONFLICT (data)"
                    " DO UPDATE SET weight = sums.weight + EXCLUDED.weight",
                    (data, weight),
                )
            if batch:
                subscriber.execute("CALL headrace.feed_ack('f', %s)", (batch[-1][0],))
            if rng.random() < 0.4:
                source.execute("SELECT pg_terminate_backend(%s)", (subscriber.info.backend_pid,))
                subscriber.close()
        if wrote == 25:
            caught_up(source)
    got = dict(source.execute("SELECT data, weight FROM sums WHERE weight <> 0").fetchall())
    assert got == dict(rows(source, "v"))


def changes_left(conn):
    return conn.execute("SELECT EXISTS (SELECT FROM headrace.feed_read('f'))").fetchone()[0]


def test_a_view_without_history_writes_none(commander, source):
    source.execute("CALL headrace.create_view('p', %s)", (GROUPS,))
    before = source.execute("SELECT count(*) FROM headrace.histories").fetchone()
    source.execute("UPDATE items SET x = 3 WHERE id = 1")
    caught_up(source, "p")
    assert before == (2,)
    wait_until(
        lambda: (
            source.execute("SELECT count(DISTINCT history_id) FROM headrace.history").fetchone()[0]
            == 1
        ),
        "only that of v",
    )


def began_anew(conn, name, at):
    """Return whether the history does not reach back to ``at``; a population raises no error."""
    try:
        changes(conn, name, at)
    except psycopg.errors.InvalidParameterValue:
        return True
    return False


def test_a_table_that_was_changed_by_a_hand_has_no_past(commander, source):
    at, before = snapshot(source, "w")
    source.execute("DELETE FROM w WHERE t = 'a'")
    source.execute("DELETE FROM notes WHERE t = 'a'")
    wait_until(lambda: began_anew(source, "w", at), "it begins anew")
    caught_up(source, "w")
    assert differs(source, "w", NOTES) == []
    at, before = snapshot(source, "w")
    source.execute("INSERT INTO notes SELECT * FROM notes")
    caught_up(source, "w")
    assert added_up(before, changes(source, "w", at)) == rows(source, "w")
    # A table that was dropped and is created again.
    source.execute("DROP TABLE w")
    wait_until(
        lambda: (
            source.execute("SELECT to_regclass('w')").fetchone()[0] and began_anew(source, "w", at)
        ),
        "it is made anew",
    )
    caught_up(source, "w")
    at, before = snapshot(source, "w")
    source.execute("DELETE FROM notes WHERE t = ''")
    caught_up(source, "w")
    assert added_up(before, changes(source, "w", at)) == rows(source, "w")


def test_readers_amid_commits_see_whole_txids_only(commander, source, engine):
    """Each txid changes all rows, so a partial or late one would show."""
    at, before = snapshot(source, "v")

    def write() -> None:
        with psycopg.connect(engine.source, autocommit=True) as writer:
            for _ in range(80):
                writer.execute("UPDATE items SET x = x + 1")

    last, seen = at, []
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        while not writing.done() or not seen:
            got = changes(source, "v", last)
            seen += got
            last = got[-1][0] if got else last
            assert sum(added_up(before, seen).values()) == 5
        writing.result()
    caught_up(source)
    seen += changes(source, "v", last)
    assert seen == changes(source, "v", at)
    assert added_up(before, seen) == rows(source, "v")


SUBSCRIBER = """
import sys
import psycopg
with psycopg.connect(sys.argv[1]) as conn:
    while True:
        with conn.transaction():
            # As after each kill: what is done and how far he is cannot part.
            row = conn.execute(
                "WITH got AS MATERIALIZED (SELECT * FROM headrace.feed_read('f', 20000)),"
                " added AS (INSERT INTO sums SELECT data, sum(weight), sum(abs(weight)) FROM got"
                "   GROUP BY data ON CONFLICT (data) DO UPDATE"
                "   SET weight = sums.weight + EXCLUDED.weight, seen = sums.seen + EXCLUDED.seen)"
                " SELECT max(txid) FROM got").fetchone()
            if row[0] is not None:
                conn.execute("CALL headrace.feed_ack('f', %s)", row)
"""


@pytest.mark.slow
def test_a_million_changes_reach_a_subscriber_that_is_killed(commander, source, engine):
    rng = random.Random(14)
    source.execute("CREATE TABLE big (id int PRIMARY KEY, n int)")
    source.execute("INSERT INTO big SELECT i, 0 FROM generate_series(1, 10000) i")
    source.execute("CALL headrace.create_view('x', 'SELECT id, n FROM big', %s)", (HISTORY,))
    source.execute("CREATE TABLE sums (data text PRIMARY KEY, weight bigint, seen bigint)")
    source.execute("INSERT INTO sums SELECT x::text, 1, 0 FROM x")
    source.execute("CALL headrace.create_feed('f', 'x')")
    at = [snapshot(source, "x")]
    for n in range(50):
        with subprocess.Popen([sys.executable, "-c", SUBSCRIBER, engine.source]) as subscriber:
            source.execute("UPDATE big SET n = %s", (n + 1,))
            if n % 10 == 0:
                caught_up(source, "x")
                at.append(snapshot(source, "x"))
            at_any_moment(rng, 0.1, 1.5)
            subscriber.kill()
    caught_up(source, "x")
    with subprocess.Popen([sys.executable, "-c", SUBSCRIBER, engine.source]) as subscriber:
        wait_until(lambda: not changes_left(source), "all is read")
        subscriber.kill()
    # Transactions may have shared a batch: then fewer rows have changed.
    told = source.execute(
        "SELECT sum(row_count) FROM headrace.history c JOIN headrace.histories h"
        " ON h.id = c.history_id WHERE h.result_oid = 'x'::regclass"
    ).fetchone()
    assert source.execute("SELECT sum(seen) FROM sums").fetchone() == told
    assert told[0] > 500_000
    got = dict(source.execute("SELECT data, weight FROM sums WHERE weight <> 0").fetchall())
    assert got == dict(rows(source, "x"))
    for txid, contents in at:
        assert as_of(source, "x", txid) == contents


def test_feeds_have_a_quota(commander, source):
    """Also for a role that inserts the rows itself, many in one statement."""
    caught_up(commander)
    (history,) = source.execute(
        "SELECT id FROM headrace.histories WHERE result_oid = 'v'::regclass"
    ).fetchone()
    role = f"feeder_{source.info.dbname}"
    source.execute(f"CREATE ROLE {role}; GRANT SELECT ON v TO {role}; SET ROLE {role}")
    insert = (
        "INSERT INTO headrace.feeds (name, history_id, txid)"
        " SELECT 'f' || i, %s, 0 FROM generate_series(1, %s) i"
    )
    try:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            source.execute(insert, (history, 1001))
        source.execute(insert, (history, 1000))
        with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
            source.execute("CALL headrace.create_feed('one more', 'v')")
        with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
            # (In one transaction: the janitor deletes dropped feeds.)
            source.execute(
                "UPDATE headrace.feeds SET name = NULL; CALL headrace.create_feed('one more', 'v')"
            )
    finally:
        source.execute(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")
        source.execute("DELETE FROM headrace.feeds")
    source.execute("CALL headrace.create_feed('one more', 'v')")
    source.execute("CALL headrace.drop_feed('one more')")
