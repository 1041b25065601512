"""Request ids: which request of an application has changed a row of a view."""

from __future__ import annotations

import random

import psycopg
import pytest

from tests.waiting import wait_until

TABLES = """
CREATE TABLE items (id int PRIMARY KEY, x text);
CREATE TABLE unread (id int);
INSERT INTO items SELECT i, 'old' FROM generate_series(1, 50) i;
"""
VIEWS = {"kept": "SELECT id, x FROM items"}
NAME = "SELECT pg_logical_emit_message(true, 'headrace', %s)"
Found = list[tuple[str | None, ...] | None]


@pytest.fixture
def view(commander: psycopg.Connection) -> psycopg.Connection:
    commander.execute("CALL headrace.set_history('kept', '1 hour')")
    return commander


def update(source: psycopg.Connection, row: int, request: str | bytes | None) -> int:
    """Update a row in a transaction of that request; return its xid."""
    with source.transaction():
        if request is not None:
            source.execute(NAME, (request,))
        source.execute("UPDATE items SET x = x || '+' WHERE id = %s", (row,))
        [xid] = source.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
        return int(xid)


def requests(conn: psycopg.Connection, row: int, most: int = 1) -> list[tuple[int, str | None]]:
    """Return the transactions of the last changes of a row, with their requests."""
    conn.execute("CALL headrace.wait_for('kept')")
    found = conn.execute(
        "SELECT xids, requests FROM headrace.who_changed('kept', %s, %s)",
        (f'{{"id": {row}}}', most),
    ).fetchall()
    out = []
    for xids, ids in found:
        assert ids is None or len(ids) == len(xids)
        out += zip(xids, ids or [None] * len(xids), strict=True)
    return out


@pytest.mark.shared_engine
def test_each_transaction_has_its_request(source, view):
    rng = random.Random(7)
    made = []
    for n in range(60):
        request = rng.choice([None, f"request {n}", "again"])
        made.append((update(source, 1, request), request))
    assert sorted(requests(view, 1, 100), key=str) == sorted(made, key=str)
    source.execute("UPDATE items SET x = 'direct' WHERE id = 2")
    assert [request for _, request in requests(view, 2)] == [None]


@pytest.mark.shared_engine
@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("ключ 🔑", "ключ 🔑"),
        ("x" * 900, "x" * 200),
        ("x" * 5_000, None),
        ("", ""),
        (b"half \xff\x00 utf", "half \ufffd utf"),
    ],
)
def test_any_text(source, view, given, shown):
    xid = update(source, 3, given)
    assert requests(view, 3) == [(xid, shown)]


@pytest.mark.shared_engine
def test_what_is_no_request_of_the_transaction(source, view):
    with source.transaction():
        for flag, prefix in (
            *((False, "headrace"), (True, "headrace2"), (True, "headrac")),
            *((True, "headrace carrier guess"), (True, ""), (True, "outbox")),
        ):
            source.execute("SELECT pg_logical_emit_message(%s, %s, 'wrong')", (flag, prefix))
        with source.transaction(force_rollback=True):
            source.execute(NAME, ("rolled back",))
        source.execute("UPDATE items SET x = 'a' WHERE id = 4")
    assert [request for _, request in requests(view, 4)] == [None]
    with source.transaction():
        source.execute(NAME, ("first",))
        source.execute("UPDATE items SET x = 'b' WHERE id = 4")
        source.execute(NAME, ("last",))
    assert [request for _, request in requests(view, 4)] == ["last"]


@pytest.mark.shared_engine
def test_messages_without_rows_make_no_batch(source, view):
    update(source, 5, "before")
    view.execute("CALL headrace.wait_for('kept')")
    count = "SELECT max(txid) FROM headrace.batches()"
    before = view.execute(count).fetchone()
    for n in range(50):
        source.execute("SELECT pg_logical_emit_message(true, 'outbox', repeat('x', 5000))")
        source.execute(NAME, (f"nothing {n}",))
        source.execute("INSERT INTO unread VALUES (1)")
    view.execute("CALL headrace.wait_for('kept')")
    assert view.execute(count).fetchone() == before
    xid = update(source, 5, "after")
    assert requests(view, 5) == [(xid, "after")]


def test_a_transaction_that_is_sent_before_it_commits(source, view):
    """It is large; the message is in a block of the stream."""
    source.execute("ALTER SYSTEM SET logical_decoding_work_mem = '64kB'")
    source.execute("SELECT pg_reload_conf()")
    try:
        with source.transaction():
            source.execute(NAME, ("large",))
            source.execute(
                "INSERT INTO items SELECT i, repeat('y', 100) FROM generate_series(100, 20000) i"
            )
    finally:
        source.execute("ALTER SYSTEM RESET logical_decoding_work_mem")
        source.execute("SELECT pg_reload_conf()")
    assert [request for _, request in requests(view, 777)] == ["large"]


def test_a_kill_loses_no_request(engine, source, view):
    view.execute("CALL headrace.pause_view('kept')")
    made = [(update(source, 6, f"r{n}"), f"r{n}") for n in range(5)]
    view.execute("CREATE TEMP TABLE alive ()")
    engine.kill9()
    made += [(update(source, 6, f"down {n}"), f"down {n}") for n in range(5)]
    engine.start()
    with psycopg.connect(engine.dsn, autocommit=True) as again:
        again.execute("CALL headrace.resume_view('kept')")
        wait_until(
            lambda: (
                again.execute(
                    "SELECT count(*) FROM kept WHERE id = 6 AND x LIKE %s", ("old" + "+" * 10,)
                ).fetchone()
                == (1,)
            ),
            "it catches up",
        )
        found = again.execute(
            "SELECT xids, requests FROM headrace.who_changed('kept', '{\"id\": 6}', 100)"
        ).fetchall()
    pairs = [pair for xids, ids in found for pair in zip(xids, ids, strict=True)]
    assert sorted(pairs) == made
