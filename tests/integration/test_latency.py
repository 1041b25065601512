"""Option ``latency_ms``: views that may lag cost less (A-41, A-44), and lose no rows."""

from __future__ import annotations

import json

import psycopg
import pytest

from tests.compared import differs
from tests.waiting import wait_until

TABLES = "CREATE TABLE items (id int PRIMARY KEY, n int NOT NULL)"
QUERY = "SELECT id, n FROM items"
SUM = "SELECT sum(n) AS s FROM items"
LATE = json.dumps({"latency_ms": 3_600_000})

pytestmark = pytest.mark.shared_engine


def txid(commander) -> int:
    return max(r[0] for r in commander.execute("SELECT txid FROM headrace.list_views()").fetchall())


def change(source, times: int) -> None:
    for _ in range(times):
        source.execute("INSERT INTO items SELECT coalesce(max(id), 0) + 1, 1 FROM items")


def test_a41_what_may_be_late_is_done_at_once_for_whoever_waits(commander, source):
    change(source, 3)
    commander.execute("CALL headrace.create_view('v', %s, %s)", (QUERY, LATE))
    change(source, 1)  # the batches before this one may still have been in the stream
    commander.execute("CALL headrace.wait_for('v')")
    before = txid(commander)
    change(source, 50)
    commander.execute("CALL headrace.wait_for('v')")
    assert differs(source, "v", QUERY) == []
    assert txid(commander) == before + 1, "50 transactions are one batch"


def test_a44_a_view_that_comes_or_stops_finds_all(commander, source):
    commander.execute("CALL headrace.create_view('v', %s, %s)", (QUERY, LATE))
    change(source, 5)
    commander.execute("CALL headrace.create_view('w', %s, %s)", (SUM, LATE))
    change(source, 5)
    commander.execute("CALL headrace.pause_view('v')")
    change(source, 5)
    commander.execute("CALL headrace.resume_view('v')")
    assert commander.execute("SELECT * FROM headrace.verify_view('w')").fetchall() == []
    change(source, 5)
    for name, query in (("v", QUERY), ("w", SUM)):
        commander.execute("CALL headrace.wait_for(%s)", (name,))
        assert differs(source, name, query) == []


def test_the_least_of_all_views_counts(commander, source):
    commander.execute("CALL headrace.create_view('v', %s, %s)", (QUERY, LATE))
    commander.execute("CALL headrace.create_view('w', %s, '{\"latency_ms\": 20}')", (SUM,))
    change(source, 5)
    wait_until(lambda: differs(source, "v", QUERY) == [], "nobody waits, and it is shown")
    commander.execute("CALL headrace.set_latency('w', 3600000)")
    before = txid(commander)
    change(source, 50)
    commander.execute("CALL headrace.wait_for('w')")
    assert txid(commander) == before + 1, "both may be late"
    change(source, 5)
    commander.execute("CALL headrace.set_latency('v', 0)")
    wait_until(lambda: differs(source, "v", QUERY) == [], "nobody waits, and it is shown")


def test_who_may_say_so_and_what(commander, source):
    commander.execute("CALL headrace.create_view('v', %s)", (QUERY,))
    for value, state in ((-1, "22023"), (3_600_001, "22023")):
        with pytest.raises(psycopg.Error, match="milliseconds up to 3600000") as refused:
            commander.execute("CALL headrace.set_latency('v', %s)", (value,))
        assert refused.value.sqlstate == state
    with pytest.raises(psycopg.errors.UndefinedTable):
        commander.execute("CALL headrace.set_latency('none', 5)")
    source.execute("CREATE ROLE latecomer")
    try:
        commander.execute("SET ROLE latecomer")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="must be owner of view v"):
            commander.execute("CALL headrace.set_latency('public.v', 5)")
    finally:
        commander.execute("RESET ROLE")
        source.execute("DROP ROLE latecomer")
