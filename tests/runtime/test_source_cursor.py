"""Views that lack batches which the intake log does not have: they read the source once more."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from collections.abc import Iterator
from functools import partial

import psycopg
import pytest

from headrace.forwarder.batcher import Batch
from headrace.postgres import connect
from headrace.runtime import copied_stream, intake_log
from headrace.runtime.copied_stream import CopiedStream
from headrace.runtime.cursor import Cursor
from headrace.runtime.intake import Intake
from headrace.runtime.source_cursor import SourceCursor
from headrace.sql.status import Status
from headrace.storage.blocks import NoRoom
from headrace.storage.queue import Queue
from tests.compared import differs, status_of
from tests.runtime import test_sharing
from tests.runtime.harness import settle
from tests.runtime.test_sharing import change, create
from tests.waiting import wait_until

TABLES = test_sharing.TABLES
QUICK = "SELECT id, n FROM orders"
COUNTS = "SELECT o.item, count(*) AS c, sum(n) AS s FROM orders o GROUP BY o.item"
NAMES = "SELECT name, count(*) AS c FROM items GROUP BY name"
COPIES = (
    "SELECT slot_name FROM pg_replication_slots"
    " WHERE database = current_database() AND slot_name LIKE '%\\_c\\_%'"
)


@pytest.fixture
def reads(monkeypatch) -> list[tuple[str, int, int]]:
    """Collect what cursors read: where ("source" or "log"), after which txid, and up to which."""
    read, found = Cursor.read, list[tuple[str, int, int]]()

    def spied(cursor: Cursor, last: int, *more):
        where = "source" if isinstance(cursor, SourceCursor) else "log"
        found.append((where, cursor.txid, last))
        return read(cursor, last, *more)

    monkeypatch.setattr(Cursor, "read", spied)
    return found


def pause(running, *ids: int) -> None:
    for view_id in ids:
        running.on(partial(running.engine.lifecycle.pause, view_id))


def resume(running, *ids: int) -> None:
    """Resume views together: no batch of the first begins before the last is resumed."""

    def resume_all() -> None:
        for view_id in ids:
            running.engine.lifecycle.resume(view_id)

    running.on(resume_all)


def some(running, source, rng: random.Random, batches: int = 5) -> None:
    for _ in range(batches):
        change(source, rng, 2)
        settle(running, source)


def lead(running) -> None:
    wait_until(lambda: not running.book.index.catching_up, "all lead")


def equal(running, source, **queries: str) -> None:
    settle(running, source)
    for name, query in queries.items():
        assert differs(source, name, query) == [], name


def no_copy_is_left(source) -> None:
    wait_until(lambda: source.execute(COPIES).fetchall() == [], "the copy of the slot is gone")


def full_once(monkeypatch, running, source, rng) -> None:
    """Let the log have no room for a batch."""
    put, failed = Queue.put, []

    def full(queue: Queue, *frame):
        if queue.name.startswith("intake") and not failed:
            failed.append(frame)
            raise NoRoom("they hold as much as they may")
        return put(queue, *frame)

    monkeypatch.setattr(Queue, "put", full)
    some(running, source, rng, 1)
    assert failed
    assert not running.book.retained.appending


@pytest.mark.parametrize("how", ["older than the log", "full", "full, local"])
def test_no_other_view_notices_a_view_that_reads_the_source(
    source, database, start, monkeypatch, reads, how
):
    """The stream goes on, and the other views process each txid once."""
    settings = {"wal_retention": "local" if how == "full, local" else "source"}
    running = start(**settings)
    ids = {"quick": create(running, database, "quick", QUICK)}
    ids["counts"] = create(running, database, "counts", COUNTS)
    rng = random.Random(1)
    some(running, source, rng)
    pause(running, ids["counts"])
    some(running, source, rng)
    if how == "older than the log":
        running.stop()
        running = start(**settings)
        settle(running, source)
    else:
        full_once(monkeypatch, running, source, rng)
    book = running.book
    some(running, source, rng)
    stream, quick, begun = book.stream, book.views[ids["quick"]], book.taken.txid
    works = quick.works
    at = book.views[ids["counts"]].processed
    resume(running, ids["counts"])
    some(running, source, rng)
    equal(running, source, quick=QUICK, counts=COUNTS)
    lead(running)
    assert reads[0][1] == at
    assert [after for _, after, _ in reads[1:]] == [last for *_, last in reads[:-1]], "each once"
    expected = ["log", "source"] if how == "full, local" else ["source"]
    assert [where for where, _ in itertools.groupby(w for w, *_ in reads)][
        : len(expected)
    ] == expected
    assert book.stream is stream
    assert quick.works - works <= book.taken.txid - begun, "it has processed no txid twice"
    no_copy_is_left(source)


def test_batches_are_cut_as_they_were_recorded(source, database, start, monkeypatch):
    recorded, again = dict[int, tuple[int, int]](), dict[int, tuple[int, int]]()
    record, take = Intake.record, CopiedStream.take

    def recording(intake: Intake, txid: int, attempt: int, batch: Batch):
        recorded[txid] = batch.transactions, batch.messages
        return record(intake, txid, attempt, batch)

    def taking(stream: CopiedStream, last: int) -> list[Batch]:
        found = take(stream, last)
        again.update({batch.txid: (batch.transactions, batch.messages) for batch in found})
        return found

    monkeypatch.setattr(Intake, "record", recording)
    monkeypatch.setattr(CopiedStream, "take", taking)
    running = start(wal_retention="source")
    create(running, database, "quick", QUICK)
    create(running, database, "names", NAMES)
    counts = create(running, database, "counts", COUNTS)
    rng = random.Random(10)
    pause(running, counts)
    for n in range(20):
        change(source, rng, 1 + n % 4)
        settle(running, source)
    full_once(monkeypatch, running, source, rng)
    resume(running, counts)
    equal(running, source, quick=QUICK, counts=COUNTS, names=NAMES)
    lead(running)
    assert len(again) >= 10
    # A connection describes each table once, so the first batches have other numbers of messages.
    assert {txid: n for txid, (n, _) in again.items()} == {t: recorded[t][0] for t in again}
    rest = sorted(again)[-3:]
    assert {txid: again[txid] for txid in rest} == {txid: recorded[txid] for txid in rest}


def behind(running, source, start, rng, ids, **settings):
    """Return an engine whose log begins after the paused views ``ids``, one after the other."""
    for view_id in ids:
        pause(running, view_id)
        some(running, source, rng)
    running.stop()
    running = start(wal_retention="source", **settings)
    settle(running, source)
    some(running, source, rng, 1)
    return running


def test_two_views_at_different_positions_read_one_stream(source, database, start, reads):
    running = start(wal_retention="source")
    quick = create(running, database, "quick", QUICK)
    first = create(running, database, "first", COUNTS)
    second = create(running, database, "second", NAMES)
    rng = random.Random(2)
    running = behind(running, source, start, rng, [first, second])
    views, stream = running.book.views, running.book.stream
    at = [views[first].processed, views[second].processed]
    assert at[0] < at[1] < running.book.retained.base
    resume(running, second, first)
    some(running, source, rng, 2)
    equal(running, source, quick=QUICK, first=COUNTS, second=NAMES)
    lead(running)
    starts = [after for where, after, _ in reads if where == "source"]
    assert {*at} <= {*starts}
    assert len({*starts}) == len(starts), "both read together what both lack"
    assert running.book.stream is stream
    assert views[quick].works <= running.book.taken.txid
    no_copy_is_left(source)


def test_a_shared_subplan_and_its_readers_read_one_stream_together(source, database, start, reads):
    """It does not go ahead of them, since the stream would have to begin anew for them."""
    sums, over = test_sharing.SUMS, test_sharing.OVER
    running = start(wal_retention="source")
    create(running, database, "quick", QUICK)
    ids = [create(running, database, name, q) for name, q in {"one": sums, "two": over}.items()]
    between = create(running, database, "between", NAMES)
    test_sharing.joined(running)
    rng = random.Random(5)
    pause(running, *ids)
    some(running, source, rng)
    running = behind(running, source, start, rng, [between])
    resume(running, between, *ids)
    equal(running, source, one=sums, two=over, between=NAMES)
    lead(running)
    starts = [after for where, after, _ in reads if where == "source"]
    assert starts
    assert len({*starts}) == len(starts), "each batch is read once"
    no_copy_is_left(source)


def test_a_view_that_stands_further_back_than_the_stream_has_its_turn(
    source, database, start, monkeypatch, reads
):
    """The stream begins anew at its position, though the other view has not caught up."""
    running = start(wal_retention="source")
    create(running, database, "quick", QUICK)
    first = create(running, database, "first", COUNTS)
    second = create(running, database, "second", NAMES)
    rng = random.Random(3)
    running = behind(running, source, start, rng, [first, second])
    views = running.book.views
    at, opened, wait = views[second].processed, threading.Event(), CopiedStream.take

    def take(stream: CopiedStream, last: int):
        opened.wait(0.0 if stream.known == 0 else 60)
        return wait(stream, last)

    monkeypatch.setattr(CopiedStream, "take", take)
    resume(running, second)
    wait_until(lambda: ("source", at) in {read[:2] for read in reads}, "the second one reads")
    asked = running.engine.submit(partial(running.engine.lifecycle.resume, first), quiet=False)
    asked.result(60)
    opened.set()
    equal(running, source, quick=QUICK, first=COUNTS, second=NAMES)
    lead(running)
    no_copy_is_left(source)


CHANGES = {
    "a column is added": (
        "INSERT INTO orders VALUES (901, 1, 1)",
        "ALTER TABLE orders ADD COLUMN more int DEFAULT 7",
        "INSERT INTO orders VALUES (902, 2, 2, 3)",
        "UPDATE orders SET more = 4 WHERE id = 901",
    ),
    "the table is truncated": (
        "INSERT INTO orders VALUES (901, 1, 1)",
        "TRUNCATE orders",
        "INSERT INTO orders VALUES (902, 2, 2)",
    ),
    "a large transaction": (
        "INSERT INTO orders SELECT i, i % 25, i FROM generate_series(1000, 9000) i",
        "DELETE FROM orders WHERE id % 3 = 0",
        "UPDATE orders SET item = 3 WHERE id > 8000",
    ),
    "a transaction that is rolled back": (
        "BEGIN; INSERT INTO orders VALUES (901, 1, 1); ROLLBACK",
        "BEGIN; SAVEPOINT a; INSERT INTO orders VALUES (902, 1, 1); ROLLBACK TO a;"
        " INSERT INTO orders VALUES (903, 2, 2); COMMIT",
    ),
    "nothing that the view reads": ("INSERT INTO items VALUES (99, 'new')",),
}


@pytest.mark.parametrize("what", CHANGES)
def test_the_changes_are_those_that_the_view_lacks(source, database, start, reads, what):
    small = {"spool_bytes_min": 50_000} if "large" in what else {}
    running = start(wal_retention="source", **small)
    create(running, database, "quick", QUICK)
    counts = create(running, database, "counts", COUNTS)
    rng = random.Random(4)
    some(running, source, rng, 2)
    pause(running, counts)
    for statement in CHANGES[what]:
        source.execute(statement)
        settle(running, source)
    running = behind(running, source, start, rng, [counts], **small)
    resume(running, counts)
    equal(running, source, quick=QUICK, counts=COUNTS)
    assert reads[0][0] == "source"
    some(running, source, rng, 2)
    equal(running, source, quick=QUICK, counts=COUNTS)
    lead(running)


def test_a_view_whose_table_left_the_publication_stops_alone(source, database, start, reads):
    running = start(wal_retention="source")
    quick = create(running, database, "quick", QUICK)
    names = create(running, database, "names", NAMES)
    rng = random.Random(5)
    running = behind(running, source, start, rng, [names])
    stream = running.book.stream
    source.execute("ALTER PUBLICATION headrace DROP TABLE items")
    resume(running, names)
    wait_until(lambda: status_of(source, "names")[0] == Status.ERROR, "it has stopped")
    some(running, source, rng, 2)
    equal(running, source, quick=QUICK)
    assert running.book.stream is stream
    assert running.book.views[quick].works <= running.book.taken.txid
    no_copy_is_left(source)


@contextlib.contextmanager
def no_slot_free(dsn: str) -> Iterator[None]:
    """Take all free replication slots of the server."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        # Not until it fails: an error drops the session's temporary slots.
        conn.execute(
            "SELECT pg_create_physical_replication_slot(format('taken_%s', n), false, true)"
            " FROM generate_series(1, current_setting('max_replication_slots')::int"
            " - (SELECT count(*)::int FROM pg_replication_slots)) n"
        )
        yield


@contextlib.contextmanager
def no_sender_free(dsn: str) -> Iterator[None]:
    """Take all free WAL senders of the server."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(psycopg.OperationalError):
            while True:
                info = connect.conninfo(dsn, name="taken", replication=True)
                stack.enter_context(contextlib.closing(psycopg.connect(info)))
        yield


@pytest.mark.parametrize(
    ("taken", "setting"),
    [(no_slot_free, "max_replication_slots"), (no_sender_free, "max_wal_senders")],
)
def test_a_view_waits_while_the_server_has_no_room_for_a_copy(
    source, database, start, reads, taken, setting
):
    """The view says which setting is exhausted; it catches up once there is room."""
    running = start(wal_retention="source")
    quick = create(running, database, "quick", QUICK)
    counts = create(running, database, "counts", COUNTS)
    rng = random.Random(6)
    running = behind(running, source, start, rng, [counts])
    book, [(value,)] = running.book, source.execute(f"SHOW {setting}")
    stream = book.stream

    def messages() -> dict[str, str | None]:
        return dict(
            source.execute("SELECT split_part(name, '.', 2), message FROM headrace.list_views()")
        )

    with taken(database):
        resume(running, counts)
        wait_until(lambda: messages()["counts"], "it says why it waits")
        said = messages()
        assert f"{setting} = {value}" in said["counts"]
        assert f"set {setting} to {int(value) + 1} or more" in said["counts"]
        assert said["quick"] is None
        change(source, rng, 5)
        wait_until(lambda: differs(source, "quick", QUICK) == [], "no other view waits")
        assert not reads
        assert status_of(source, "counts")[0] == Status.RUNNING
        # It has waited for hours: a pause that only doubles is too large for a number.
        cursors = running.engine._catching_up._cursors._source
        running.on(lambda: vars(cursors).update(_failures=2_000, _retry_at=0.0))
        wait_until(lambda: cursors._failures > 2_000, "it tries again")
        change(source, rng, 5)
        wait_until(lambda: differs(source, "quick", QUICK) == [], "no other view waits")
    running.on(lambda: vars(cursors).update(_retry_at=0.0))
    equal(running, source, quick=QUICK, counts=COUNTS)
    lead(running)
    wait_until(lambda: not any(messages().values()), "it no longer waits")
    assert reads[0][0] == "source"
    assert book.stream is stream
    assert book.views[quick].works <= book.taken.txid


@pytest.mark.parametrize("how", ["pause", "drop", "stop"])
def test_the_copy_ends_with_the_view_that_needs_it(source, database, start, monkeypatch, how):
    running = start(wal_retention="source")
    quick = create(running, database, "quick", QUICK)
    counts = create(running, database, "counts", COUNTS)
    rng = random.Random(7)
    running = behind(running, source, start, rng, [counts])
    reach = CopiedStream.reach
    monkeypatch.setattr(CopiedStream, "reach", property(lambda _: 0))  # it waits for its rows
    resume(running, counts)
    wait_until(lambda: source.execute(COPIES).fetchall(), "the slot is copied")
    if how == "stop":
        running.stop()
        assert source.execute(COPIES).fetchall() == []
        return
    command = running.engine.lifecycle
    running.on(partial(command.pause if how == "pause" else command.drop, counts))
    no_copy_is_left(source)
    monkeypatch.setattr(CopiedStream, "reach", reach)
    some(running, source, rng, 2)
    equal(running, source, quick=QUICK)
    if how == "pause":
        resume(running, counts)
        equal(running, source, counts=COUNTS)
    assert running.book.views[quick].works <= running.book.taken.txid


def test_a_lost_copy_is_made_again(source, database, start, monkeypatch, reads):
    """Each time, the view goes on where it stands."""
    monkeypatch.setattr(copied_stream, "_WAITING_BYTES", 1)  # the others are not received yet
    running = start(wal_retention="source")
    create(running, database, "quick", QUICK)
    counts = create(running, database, "counts", COUNTS)
    rng = random.Random(8)
    some(running, source, rng, 10)
    running = behind(running, source, start, rng, [counts])
    stream, lost = running.book.stream, 0
    before = CopiedStream.take

    def take(copied: CopiedStream, last: int):
        nonlocal lost
        if lost < 3:
            lost += 1
            with psycopg.connect(database, autocommit=True) as conn:
                conn.execute(
                    "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND application_name = %s",
                    (copied_stream.NAME,),
                )
        return before(copied, last)

    monkeypatch.setattr(CopiedStream, "take", take)
    resume(running, counts)
    equal(running, source, quick=QUICK, counts=COUNTS)
    lead(running)
    assert lost == 3
    assert len(reads) > 3
    assert running.book.stream is stream
    no_copy_is_left(source)


def test_a_full_log_begins_anew_without_a_rewind(source, database, start, monkeypatch, reads):
    """With ``local``, once no view needs what it has; a view between then reads the source."""
    monkeypatch.setattr(intake_log, "_RETRY_S", 0.0)
    running = start(wal_retention="local")
    quick = create(running, database, "quick", QUICK)
    counts = create(running, database, "counts", COUNTS)
    rng = random.Random(9)
    some(running, source, rng)
    book = running.book
    pause(running, counts)
    some(running, source, rng, 2)
    stream = book.stream
    full_once(monkeypatch, running, source, rng)
    end = book.retained.last
    some(running, source, rng, 2)
    assert book.retained.last == end, "a view needs what it has"
    # The view reads the log to its end, and is paused among the later batches.
    reach = CopiedStream.reach
    monkeypatch.setattr(CopiedStream, "reach", property(lambda _: 0))
    resume(running, counts)
    wait_until(lambda: book.views[counts].durable.txid == end, "it has what the log has")
    pause(running, counts)
    some(running, source, rng, 3)
    wait_until(lambda: book.retained.taking, "the log has begun anew")
    assert book.retained.base > end
    monkeypatch.setattr(CopiedStream, "reach", reach)
    resume(running, counts)
    some(running, source, rng, 2)
    equal(running, source, quick=QUICK, counts=COUNTS)
    lead(running)
    assert "source" in {where for where, *_ in reads}
    assert book.stream is stream
    assert book.views[quick].works <= book.taken.txid
    running.stop()
    running = start(wal_retention="local")
    some(running, source, rng, 2)
    equal(running, source, quick=QUICK, counts=COUNTS)
