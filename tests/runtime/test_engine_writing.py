"""The sink thread's part of a txid: groups, departing views, txids that are already written."""

from __future__ import annotations

import time
from dataclasses import replace

import psycopg
import pyarrow as pa
import pytest

from headrace.errors import FencedError, SinkBlocked, SinkTableError
from headrace.runtime.crash_attribution import CrashAttribution
from headrace.runtime.jobs import CommitJob, ViewPart
from headrace.runtime.ownership import Owner
from headrace.runtime.pipeline import Pipeline
from headrace.runtime.writing import SinkThread
from headrace.sink import table
from headrace.sink.table import ResultTable
from headrace.sql import progress
from headrace.types import INT4, Field, arrow_schema, format_lsn
from tests.runtime.harness import settings_for

SCHEMA = (Field("a", INT4),)


@pytest.fixture
def conn(catalog, database):
    with psycopg.connect(database, autocommit=True) as made:
        yield made


@pytest.fixture
def owner(conn, database, tmp_path):
    made = Owner(settings_for(database, tmp_path, lock_timeout_ms=100))
    yield made
    made.close()


@pytest.fixture
def sink(tmp_path):
    pipeline = Pipeline(4)
    made = SinkThread(pipeline, CrashAttribution(tmp_path), lambda: None)
    yield made
    pipeline.close()
    made.close()


class View:
    """A result table with its progress, and the parts that are written to it."""

    def __init__(self, conn, number: int, group: str = "") -> None:
        self.conn = conn
        self.id = number
        self.name = f"v{number}"
        self.group = group
        conn.execute(
            "INSERT INTO headrace.views (id, schema_name, view_name, query)"
            " VALUES (%s, 'public', %s, '')",
            (number, self.name),
        )
        conn.execute(
            "INSERT INTO headrace.progress (view_id, txid, lsn) VALUES (%s, 0, '0/0')", (number,)
        )
        oid = table.create(conn, "public", self.name, "SELECT 1::int AS a")
        self.target = ResultTable(number, "public", self.name, oid, SCHEMA)
        self.progress = progress.take_over(conn, [number])[number]

    def part(self, *values: int) -> ViewPart:
        diffs = pa.RecordBatch.from_arrays(
            [pa.array(values, pa.int32()), pa.array([1] * len(values), pa.int64())],
            schema=arrow_schema(SCHEMA),
        )
        return ViewPart(self.id, self.target, self.group, self.progress, diffs)

    @property
    def rows(self) -> list[int]:
        found = self.conn.execute(f"SELECT a FROM {self.name} ORDER BY 1").fetchall()
        return [row[0] for row in found]

    @property
    def stored(self) -> tuple[int, str]:
        """Txid of its progress, and the transaction that set it."""
        return self.conn.execute(
            "SELECT txid, xmin::text FROM headrace.progress WHERE view_id = %s", (self.id,)
        ).fetchone()


def job(txid: int, *parts: ViewPart) -> CommitJob:
    return CommitJob(txid, 0, txid * 16, 1, 0, parts)


def test_the_unnamed_group_is_one_transaction_and_each_named_one_another(conn, owner, sink):
    views = [View(conn, i, group) for i, group in enumerate(["", "g", "", "h", "g"], 1)]
    answer = sink.write(owner, job(1, *(v.part(v.id) for v in views)))
    assert set(answer.progress) == {1, 2, 3, 4, 5}
    assert [v.rows for v in views] == [[1], [2], [3], [4], [5]]
    xids = [v.stored[1] for v in views]
    assert xids[0] == xids[2]
    assert xids[1] == xids[4]
    assert len(set(xids)) == 3


def test_a_view_without_changes_is_not_written(conn, owner, sink):
    a, b, c = View(conn, 1), View(conn, 2, "g"), View(conn, 3, "g")
    before = [v.stored for v in (b, c)]
    answer = sink.write(owner, job(1, a.part(1), b.part(), c.part()))
    assert set(answer.progress) == {1}
    assert [v.stored for v in (b, c)] == before
    # The next one moves over the txid that was not written.
    answer = sink.write(owner, job(2, a.part(), b.part(5), c.part()))
    assert {i: p.txid for i, p in answer.progress.items()} == {2: 2}
    assert c.stored == before[1]


def test_the_group_that_may_be_least_late_is_written_first(conn, owner, sink):
    views = [View(conn, i, group) for i, group in enumerate(["a", "b", "c", "b"], 1)]
    for txid, (latencies, order) in enumerate(
        [([500, 100, 0, 900], "cba"), ([0, 100, 500, 900], "abc"), ([500, 900, 100, 0], "bca")], 1
    ):
        parts = [v.part(txid) for v in views]
        parts = [replace(p, latency_ms=ms) for p, ms in zip(parts, latencies, strict=True)]
        answer = sink.write(owner, job(txid, *parts))
        assert "".join(answer.seconds) == order
        xids = {v.group: int(v.stored[1]) for v in views}
        assert sorted(xids, key=lambda group: xids[group]) == list(order)


def test_a_locked_table_leaves_its_group_and_other_groups_commit(conn, owner, sink, database):
    a, b, c = View(conn, 1, "g"), View(conn, 2, "g"), View(conn, 3)
    with psycopg.connect(database) as blocker:
        blocker.execute("LOCK TABLE v1 IN SHARE MODE")
        answer = sink.write(owner, job(1, a.part(1), b.part(1), c.part(1)))
        pid = blocker.info.backend_pid
    assert isinstance(answer.failed[1], SinkBlocked)
    assert str(pid) in (answer.failed[1].detail or "")
    assert set(answer.progress) == {2, 3}
    assert (a.rows, b.rows, c.rows) == ([], [1], [1])


def test_what_follows_a_txid_that_was_not_written_is_not_written(conn, owner, sink, database):
    a, b = View(conn, 1), View(conn, 2)
    sink.start(owner)
    with psycopg.connect(database) as blocker:
        blocker.execute("LOCK TABLE v1 IN SHARE MODE")
        sink.write(owner, job(1, a.part(1), b.part(1)))
    # The table is free again, but txid 1 is missing.
    answer = sink.write(owner, job(2, a.part(2), b.part(2)))
    assert set(answer.progress) == {2}
    assert answer.failed == {}
    assert (a.rows, b.rows) == ([], [1, 2])
    assert (a.stored[0], b.stored[0]) == (0, 2)
    # The engine has gone back to before txid 1.
    sink.start(owner)
    b.progress = progress.Progress(2, b.progress.epoch, 2, 32)
    for txid in (1, 2):
        sink.write(owner, job(txid, a.part(txid), b.part(txid)))
    assert (a.rows, b.rows) == ([1, 2], [1, 2])


def test_a_txid_that_progress_shows_is_skipped(conn, owner, sink):
    a, b = View(conn, 1), View(conn, 2)
    sink.write(owner, job(1, a.part(1)))
    sink.start(owner)
    a.progress = progress.take_over(conn, [1])[1]
    assert a.progress.txid == 1
    answer = sink.write(owner, job(1, a.part(1), b.part(1)))
    assert set(answer.progress) == {2}
    assert (a.rows, b.rows) == ([1], [1])


def test_jobs_made_ahead_of_the_answers_know_old_progress(conn, owner, sink):
    a = View(conn, 1)
    jobs = [job(txid, a.part(txid)) for txid in (1, 2, 3)]
    for each in jobs:
        sink.write(owner, each)
    assert a.rows == [1, 2, 3]
    assert a.stored[0] == 3


def test_a_batch_that_takes_long_is_told_to_whoever_looks(conn, owner):
    """The connection's name reports it: nothing is written."""
    lag = "SELECT lag_ms FROM headrace.list_views()"
    view = View(conn, 1)
    owner.announce()
    conn.execute(
        "UPDATE headrace.views SET status = 'running', result_oid = %s", (view.target.oid,)
    )
    conn.execute("UPDATE headrace.progress SET applied_at = now()")
    wal = owner.look().wal
    assert conn.execute(lag).fetchone() == (None,), "it has not said how far it is"
    watermark = format_lsn(wal - 8)
    for look, least in ((0.5, 0), (7.0, 7000), (8.0, 7000)):
        owner.look(look, watermark)
        found = conn.execute(lag).fetchone()[0]
        assert found >= 0.99 * least, "to the millisecond it is another clock's"
        assert (found == 0) == (least == 0)
    assert owner.due
    owner.look(watermark=watermark)
    assert conn.execute(lag).fetchone() == (0,)
    # Both times fit into the application name at any position.
    owner.look(9.0, f"FFFFFFFF/FFFFFFFF {time.time() - 20:.1f}")
    found = conn.execute("SELECT * FROM headrace.worker_position()").fetchone()
    assert found is not None
    heard, lsn, lag_ms, batch_s, _ = found
    assert (heard, lsn) == (True, "FFFFFFFF/FFFFFFFF")
    assert lag_ms >= 19_000
    assert batch_s >= 8.9


def test_another_owner_fences_all_groups(conn, owner, sink):
    a, b = View(conn, 1, "g"), View(conn, 2)
    sink.start(owner)
    sink.write(owner, job(1, a.part(1), b.part(1)))
    progress.take_over(conn, [1])
    with pytest.raises(FencedError):
        sink.write(owner, job(2, a.part(2)))
    assert a.rows == [1]


def test_views_dropped_or_swapped_meanwhile(conn, owner, sink):
    a, b, c = View(conn, 1), View(conn, 2), View(conn, 3)
    conn.execute("DELETE FROM headrace.views WHERE id = 1")
    conn.execute("DROP TABLE v2; CREATE TABLE v2 (a int)")
    answer = sink.write(owner, job(1, a.part(1), b.part(1), c.part(1)))
    assert answer.gone == {1}
    assert isinstance(answer.failed[2], SinkTableError)
    assert set(answer.progress) == {3}
    assert (a.rows, b.rows, c.rows) == ([], [], [1])
