"""Requirements on storage that Postgres' own pages meet (A-2, A-32 … A-46).

The history of a connection point is a Headrace table in the user's database, and its storage key
an index of the result table.  Their pages are in Postgres' buffer pool, not in our blocks.
"""

from __future__ import annotations

import json
import random

import pytest

from tests.compared import differs
from tests.integration.test_fed import OVER, TABLES, VIEWS, check, feed, inlined, scans
from tests.integration.test_insight import by_reader, rows
from tests.integration.test_resync import wait
from tests.waiting import wait_until

pytestmark = pytest.mark.shared_engine

__all__ = ["TABLES", "VIEWS"]

MOVING = (
    "SELECT id, g, sum(x) OVER (PARTITION BY g ORDER BY id"
    " ROWS BETWEEN 3 PRECEDING AND CURRENT ROW) AS s FROM items"
)
BLOCK_BYTES = 131_072
KEYED = "SELECT g, total FROM v WHERE n = {}"


def changed(source, rounds: int = 3) -> None:
    rng = random.Random(rounds)
    for _ in range(rounds):
        source.execute(
            "UPDATE items SET x = x + 1, g = (g + 1) %% 60 WHERE id %% 37 = %s",
            (rng.randint(0, 36),),
        )


def test_a2_a_window_has_what_it_looks_back_on(commander, source):
    """A new row is processed with those before it, without another scan of the table."""
    commander.execute("CALL headrace.create_view('m', %s)", (MOVING,))
    read = scans(source, "items")
    for number in range(1001, 1021):
        source.execute("INSERT INTO items VALUES (%s, 7, %s)", (number, number))
    wait(commander, "m")
    assert scans(source, "items") == read
    assert differs(source, "m", MOVING) == []


def test_a32_history_takes_no_block_of_a_queue(commander, source):
    """History is in pages of Postgres, which are smaller than the blocks of a queue."""
    commander.execute("CALL headrace.create_connection_point('p', 'v', history => '2 hours')")
    changed(source, 20)
    wait(commander, "v")
    [(kept,)] = source.execute("SELECT count(*) FROM headrace.view_changes('v')").fetchall()
    assert kept > 100
    assert [row["queue"] for row in rows(commander, "queues")] == ["stream"]
    [in_use] = [row["bytes"] for row in rows(commander, "memory") if row["part"] == "queues in use"]
    assert in_use == 0
    [(page,)] = source.execute("SELECT current_setting('block_size')::int").fetchall()
    assert page < BLOCK_BYTES


def test_a33_who_is_attached_has_a_row_in_the_shared_table(commander, source):
    commander.execute("CALL headrace.create_connection_point('p', 'v')")
    feed(commander, "w", OVER)
    changed(source)
    check(commander, {"w": inlined(OVER)})
    row = by_reader(commander)["public.w"]
    assert row["kind"] == "subplan"
    assert row["priority"] is not None
    assert row["head_txid"] >= row["tail_txid"]
    commander.execute("CALL headrace.drop_view('w')")
    assert "public.w" not in by_reader(commander)


def blocks(source, relation: str) -> tuple[int, int]:
    """Return the index pages read from disk, and those found in memory."""
    source.execute("SELECT pg_stat_force_next_flush()")
    [(found,)] = source.execute(
        "SELECT array[sum(idx_blks_read), sum(idx_blks_hit)]::bigint[]"
        " FROM pg_statio_user_indexes WHERE relname = %s",
        (relation,),
    ).fetchall()
    return found[0], found[1]


def test_a34_a35_pages_of_the_key_are_read_once(commander, source):
    """A query by the key reads pages of the index; the second time it reads none from disk."""
    source.execute("INSERT INTO items SELECT i, i, i FROM generate_series(2000, 20000) i")
    wait(commander, "v")
    commander.execute("CALL headrace.create_connection_point('p', 'v', storage_key => 'g')")
    source.execute("ANALYZE v")
    query = "SELECT g, total FROM v WHERE g BETWEEN 5000 AND 5099"
    feed(commander, "w1", query)
    read, had = blocks(source, "v")
    feed(commander, "w2", query)
    again = blocks(source, "v")
    assert again[0] == read
    assert again[1] > had
    plan = source.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}").fetchone()[0]
    assert "Index" in json.dumps(plan)
    assert plan[0]["Plan"]["Shared Read Blocks"] == 0
    check(commander, {"w1": inlined(query), "w2": inlined(query)})


def test_a36_history_is_not_kept_in_memory(commander, source):
    """None of the worker's memory is for history, and it does not grow with the history."""
    commander.execute("CALL headrace.create_connection_point('p', 'v', history => '2 hours')")

    def only_log() -> bool:
        """Return whether the intake log, which is the only queue, has all of the memory."""
        used = {
            row["part"]: row["bytes"]
            for row in rows(commander, "memory")
            if row["view"] is None and row["part"] in ("queues in memory", "rows to be written")
        }
        [log] = rows(commander, "queues")
        return used == {"queues in memory": log["resident_bytes"], "rows to be written": 0}

    for transactions in (2, 60):
        changed(source, transactions)
        wait(commander, "v")
        # A checkpoint between the two calls may release blocks of the log.
        wait_until(only_log, "the log alone is in memory")
    assert not [row for row in rows(commander, "memory") if "history" in str(row["part"])]


def test_a46_a_point_over_what_never_changes(commander, source):
    """It gives its rows to lookups and to full reads, and later changes follow."""
    source.execute(
        "CREATE TABLE fixed (id int PRIMARY KEY, k int);"
        "INSERT INTO fixed SELECT i, i % 10 FROM generate_series(1, 500) i"
    )
    static = "SELECT k, count(*) AS n FROM fixed GROUP BY k"
    commander.execute("CALL headrace.create_view('s', %s)", (static,))
    commander.execute("CALL headrace.create_connection_point('p', 's', storage_key => 'k')")
    feed(commander, "pulled", "SELECT k, n FROM s WHERE k = 3")
    feed(commander, "whole", "SELECT sum(n) AS n FROM s")

    def right() -> bool:
        pulled = f"SELECT k, n FROM ({static}) s WHERE k = 3"
        return not (
            differs(source, "pulled", pulled)
            or differs(source, "whole", f"SELECT sum(n) AS n FROM ({static}) s")
        )

    assert right()
    source.execute("UPDATE items SET x = x + 1")
    wait(commander, "v")
    assert right()
    source.execute("UPDATE fixed SET k = 3 WHERE id < 100")
    for name in ("pulled", "whole"):
        wait(commander, name)
    assert right()
