"""Statements about violations that are hard to reach from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import psycopg
import pytest

from headrace.postgres import connect
from headrace.server import recorder
from headrace.sql import history, violations
from headrace.sql.assertion_spec import AssertionSpec
from headrace.sql.assertions import TableContents, insert
from tests.waiting import PATIENCE_S


@pytest.fixture
def conn(catalog: None, database: str) -> Iterator[psycopg.Connection]:
    """A catalog with an assertion, whose history has a change of a million rows in many parts."""
    with psycopg.connect(database, autocommit=True) as made:
        made.execute("CREATE TABLE v (id int, t text)")
        made.execute(
            "INSERT INTO headrace.views (id, schema_name, view_name, query, result_oid, start_lsn,"
            " columns) VALUES (1, 'public', 'v', '', 'v'::regclass, '0/5',"
            ' \'[{"name": "id"}, {"name": "t"}]\')'
        )
        history.ask(made, 1, "1 microsecond")
        made.execute(
            "INSERT INTO headrace.history (history_id, txid, part, lsn, commit_at, row_count,"
            " weights, data, net) SELECT h.id, 7, p, '0/9', now() - interval '1 hour', 2, '{3,-1}',"
            " ARRAY[format('(%s,a)', p), '(0,b)'], 2 FROM headrace.histories h,"
            " generate_series(0, 9) p"
        )
        insert(made, 1, AssertionSpec(sample=2), TableContents(0, []), "whsec_")
        yield made


def run(database: str, work: Callable[[violations.Connection], Awaitable[Any]]) -> Any:
    async def connected() -> Any:
        async with await connect.async_session(database, name="test") as conn:
            return await work(conn)

    return asyncio.run(connected())


def test_a_change_is_read_by_txid(database, conn):
    async def work(made):
        [taken] = await violations.take(made, (), (), None)
        found = await violations.changes(made, [taken.id])
        return taken, found, await violations.sample(made, taken, 7)

    taken, found, texts = run(database, work)
    [change] = found[taken.id]
    assert (change.mark.txid, change.mark.lsn, change.net, change.mark.xids) == (7, 9, 20, [])
    assert (taken.name, taken.columns, texts) == ("public.v", ["id", "t"], ["(0,a)"])
    assert (taken.txid, taken.fill_txid, taken.fill_rows, taken.fill_lsn) == (-1, 0, 0, 5)


def test_a_locked_assertion_is_left_for_later(database, conn):
    with psycopg.connect(database) as other:
        other.execute("UPDATE headrace.assertion_states SET fill_rows = 1")
        assert run(database, lambda made: violations.take(made, (), (), None)) == []
    assert len(run(database, lambda made: violations.take(made, (), (), None))) == 1


def test_changes_that_were_not_judged_are_not_purged(database, conn):
    count = "SELECT count(*) FROM headrace.history"
    run(database, lambda made: history.purge(made, 100))
    assert conn.execute(count).fetchone() == (10,)
    conn.execute("UPDATE headrace.assertion_states SET txid = 7")
    run(database, lambda made: history.purge(made, 100))
    assert conn.execute(count).fetchone() == (0,)


def test_a_full_queue_of_notifications_delays_them(database, conn, monkeypatch):
    """Any role can fill it: it listens, sleeps in a transaction, and notifies without end."""
    unsent = "SELECT unsent FROM headrace.assertion_states"
    [number] = conn.execute("SELECT id FROM headrace.assertion_states").fetchone()
    conn.execute('LISTEN "headrace.violations"')
    room = "pg_catalog.pg_notification_queue_usage() < 0.5"
    for name in ("_NOTIFY", "_SEND"):
        text = getattr(violations, name)
        assert room in text
        monkeypatch.setattr(violations, name, text.replace(room, "false"))
    run(database, lambda made: violations.tell(made, number, {"n": 1}))
    run(database, violations.send_unsent)
    assert conn.execute(unsent).fetchone() == (['{"n":1}'],)
    monkeypatch.undo()
    run(database, lambda made: violations.tell(made, number, {"n": 2}))
    run(database, violations.send_unsent)
    assert conn.execute(unsent).fetchone() == ([],)
    heard = [n.payload for n in conn.notifies(timeout=PATIENCE_S, stop_after=2)]
    assert heard == ['{"n":2}', '{"n":1}']


def test_waiting_notifications_are_bounded(database, conn, monkeypatch):
    [number] = conn.execute("SELECT id FROM headrace.assertion_states").fetchone()
    monkeypatch.setattr(violations, "_NOTIFY", "SELECT 1 WHERE %(channel)s = %(payload)s")

    async def work(made):
        for n in range(violations._UNSENT_MAX + 5):
            await violations.tell(made, number, {"n": n})

    run(database, work)
    counted = "SELECT cardinality(unsent) FROM headrace.assertion_states"
    assert conn.execute(counted).fetchone() == (violations._UNSENT_MAX,)


def test_the_largest_notification_fits(database, conn):
    """A notification may have less than 8 000 bytes; names have 63."""
    now = datetime.now(UTC)
    mark = violations.BatchMark(2**62, 2**64 - 1, now, now, 2**31, [2**32] * 100)
    [taken] = run(database, lambda made: violations.take(made, (), (), None))
    longest = replace(taken, name=f'"{chr(34) * 126}"."{chr(1) * 63}"')
    told = recorder._told(longest, 2**62, "violated", mark) | {"rows": 2**62}
    assert len(msgspec.json.encode(told)) < 4_000
