"""Hazards H3, H4, H7, H8: snapshots that are lost, missed, blocked or half-made."""

from __future__ import annotations

import contextlib
import threading

import psycopg
import pytest

from headrace.embedded.postgres import EmbeddedPostgres
from headrace.errors import PrerequisiteError, QueryCancelled, SnapshotLost
from headrace.population import reader, tables
from headrace.population import snapshot as snapshots
from headrace.population.job import Job
from headrace.population.snapshot import SnapshotBlocked, SnapshotRef
from headrace.population.tables import TableChanged
from headrace.postgres.connect import for_job
from tests.population import plans
from tests.waiting import PATIENCE_S, time_passes, wait_until


def export(bench, job=None, number="1", wait_ms=60_000):
    return snapshots.export(
        job or bench.job(), bench.dsn, slot_name=bench.settings.slot_name,
        number=number, wait_ms=wait_ms,
    )  # fmt: skip


def slots(bench) -> list[tuple]:
    return bench.conn.execute(
        "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    ).fetchall()


def no_slot(bench) -> None:
    wait_until(lambda: not slots(bench), "the slots are gone")


def count(conn, source) -> int:
    return sum(len(columns[0]) for columns in reader.read(conn, source))


def test_readers_see_the_snapshot_and_nothing_else(bench):
    source = plans.copy(bench.conn).plan.sources[0]
    with export(bench) as snapshot:
        bench.conn.execute("INSERT INTO customers VALUES (9999, 'late', '')")
        with reader.joined(bench.dsn, snapshot.ref) as conn:
            assert count(conn, source) == 50
        bench.conn.execute("DELETE FROM customers")
        with reader.joined(bench.dsn, snapshot.ref) as conn:
            assert count(conn, source) == 50
        snapshot.check()
    no_slot(bench)


def test_values_come_typed_and_exact(bench):
    source = plans.filtered(bench.conn).plan.sources[0]
    with export(bench) as snapshot, reader.joined(bench.dsn, snapshot.ref) as conn:
        batches = list(reader.read(conn, source))
    assert [str(c.type) for c in batches[0]] == ["int32", "string", "double"]
    want = bench.conn.execute("SELECT id, amount::text, f::text FROM orders ORDER BY id").fetchall()
    rows = [zip(*(column.to_pylist() for column in batch), strict=True) for batch in batches]
    got = sorted(row for batch in rows for row in batch)
    assert [(a, b) for a, b, _ in got] == [(a, b) for a, b, _ in want]
    assert str(got[4][2]) == "-0.0"


def test_a_reader_that_is_left_amid_a_table_leaves_nobody_behind(bench, monkeypatch):
    plan = plans.copy(bench.conn).plan
    bench.conn.execute(
        "INSERT INTO customers SELECT i, repeat('x', 90), '' FROM generate_series(10000, 99999) i"
    )
    monkeypatch.setattr(reader, "BYTES_PER_BATCH", 1000)
    source = plan.sources[0]
    with export(bench) as snapshot:
        with (
            reader.joined(bench.dsn, snapshot.ref) as conn,
            contextlib.closing(reader.read(conn, source)) as batches,
        ):
            next(batches)
        assert conn.closed
        assert not [t for t in threading.enumerate() if t.name.startswith("headrace-reading")]
        with reader.joined(bench.dsn, snapshot.ref) as conn:
            assert count(conn, source) == 90_050


def test_why_a_reader_was_left_is_told_though_it_cannot_be_cancelled(bench, monkeypatch):
    source = plans.copy(bench.conn).plan.sources[0]
    asked, read = threading.Event(), reader.copydata.read
    pieces: list[int] = []

    def slowly(*words):
        pieces.append(1)
        assert len(pieces) == 1 or asked.wait(PATIENCE_S)
        return read(*words)

    def cancel(**_):
        asked.set()
        raise psycopg.OperationalError("nobody listens")

    def leave(ref):
        with (
            reader.joined(bench.dsn, ref) as conn,
            contextlib.closing(reader.read(conn, source)) as batches,
        ):
            monkeypatch.setattr(conn, "cancel_safe", cancel)
            next(batches)
            raise ZeroDivisionError

    monkeypatch.setattr(reader, "ROWS_PER_BATCH", 10)
    monkeypatch.setattr(reader.copydata, "read", slowly)
    with export(bench) as snapshot, pytest.raises(ZeroDivisionError):
        leave(snapshot.ref)
    assert asked.is_set()


def test_a_table_of_somebody_else_is_read_whole(bench):
    """No part of its scan is planned: neither blocks nor predicates."""
    source = plans.filtered(bench.conn).plan.sources[0]
    role = f"{bench.conn.info.dbname}_owner"
    bench.conn.execute(f"CREATE ROLE {role}")
    bench.conn.execute(f"ALTER TABLE orders OWNER TO {role}")
    try:
        assert tables.size(bench.conn, source).whole
        with export(bench) as snapshot, reader.joined(bench.dsn, snapshot.ref) as conn:
            assert count(conn, source) == 500
            with pytest.raises(TableChanged):
                list(reader.read(conn, source, reader.Blocks(1, None)))
    finally:
        bench.conn.execute(f"REASSIGN OWNED BY {role} TO CURRENT_USER")
        bench.conn.execute(f"DROP ROLE {role}")
    assert not tables.size(bench.conn, source).whole


def test_reader_outside_the_snapshot_is_refused(bench):
    with export(bench) as snapshot:
        ref = snapshot.ref
        wrong = SnapshotRef(ref.name, "1:1:", ref.start_lsn)
        with pytest.raises(SnapshotLost, match="outside"), reader.joined(bench.dsn, wrong):
            pass
        with for_job(bench.dsn, what="test") as conn:
            # Autocommit: no error, no effect; each statement has its own snapshot (E5).
            conn.execute("SET default_transaction_isolation = 'repeatable read'")
            conn.execute(f"SET TRANSACTION SNAPSHOT '{ref.name}'")
            bench.conn.execute("INSERT INTO customers VALUES (9998, 'x', '')")
            with pytest.raises(SnapshotLost):
                reader.prove(conn, ref)

    def is_refused() -> bool:
        try:
            with reader.joined(bench.dsn, ref):
                return False
        except SnapshotLost:
            return True

    wait_until(is_refused, "the exporter's server process has ended, and its snapshot with it")


def terminate_exporter(bench) -> None:
    rows = bench.conn.execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
        " WHERE temporary AND database = current_database()"
    ).fetchall()
    assert rows == [(True,)]
    no_slot(bench)


def test_dead_exporter_is_noticed(bench):
    with export(bench) as snapshot:
        terminate_exporter(bench)
        with pytest.raises(SnapshotLost):
            snapshot.check()
        with pytest.raises(SnapshotLost), reader.joined(bench.dsn, snapshot.ref):
            pass


@pytest.mark.parametrize("moment", ["publication", "reading"])
def test_population_starts_again_when_the_exporter_dies(bench, moment):
    """H3: everything from one snapshot, or all of it again from another."""
    job = bench.job()
    killed = []

    def report(message):
        now = message["phase"]
        if not killed and now == moment and slots(bench):
            bench.conn.execute("INSERT INTO customers VALUES (777, 'r1', '')")
            terminate_exporter(bench)
            killed.append(now)

    job._report = report
    bench.create("v", "SELECT region, count(*) FROM customers GROUP BY region", job=job)
    assert bench.rows("TABLE v") == bench.rows(
        "SELECT region, count(*) FROM customers GROUP BY region"
    )
    assert bool(killed) == (moment != "publication")


@pytest.mark.parametrize("limit_ms", [0, 1_200])
def test_open_writer_is_named(bench, in_thread, limit_ms):
    """H7: a writer of any role is waited for without limit, unless one is set."""
    role = f"{bench.conn.info.dbname}_writer"
    bench.conn.execute(f"CREATE ROLE {role} LOGIN; GRANT INSERT ON customers TO {role}")
    bench.change(population_lock_wait_ms=limit_ms)
    query = "SELECT id FROM customers"
    messages = []
    errors = []

    def create() -> None:
        try:
            bench.create("v", query, job=Job(lambda step: messages.append(step.get("message"))))
        except PrerequisiteError as error:
            errors.append(error)

    try:
        with psycopg.connect(bench.dsn, user=role) as writer:
            writer.execute("INSERT INTO customers VALUES (9997, 'open', '')")
            since = writer.execute("SELECT to_char(now(), 'YYYY-MM-DD HH24:MI:SS TZ')").fetchone()[
                0
            ]
            words = f"transaction of {role} (process {writer.info.backend_pid}), started {since}"
            thread = in_thread(create)
            wait_until(lambda: f"waiting for {words}" in messages, lambda: messages)
            if limit_ms:
                thread.join(PATIENCE_S)
                assert [error.code for error in errors] == ["55P03"]
                assert words in errors[0].detail
                bench.nothing_left()
                assert slots(bench) == []
            else:
                assert not errors
                assert bench.waits_for_writer()
            writer.commit()
        thread.join(PATIENCE_S)
        bench.change(population_lock_wait_ms=0)
        if limit_ms:
            bench.create("v", query)
        assert bench.rows("TABLE v") == bench.rows(query)
    finally:
        bench.conn.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_the_setting_lets_a_population_wait_as_long_as_it_takes(bench):
    assert bench.settings.population_lock_wait_ms == 0


def test_prepared_transaction_is_named():
    """An orphan of a two-phase commit: it has no process to look up."""
    settings = {"max_prepared_transactions": "2"}
    with EmbeddedPostgres(None, 16, settings=settings, durable=False) as server:
        dsn = server.dsn()
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("BEGIN")
            conn.execute("CREATE TABLE t (id int)")
            conn.execute("PREPARE TRANSACTION 'orphan'")
            job = Job(lambda m: None)
            with (
                pytest.raises(SnapshotBlocked, match="stay open") as caught,
                snapshots.export(job, dsn, slot_name="s", number="1", wait_ms=1500),
            ):
                pass
            assert "transaction of postgres (prepared as 'orphan'), started" in caught.value.detail
            assert conn.execute("SELECT 1 FROM pg_replication_slots").fetchall() == []
            conn.execute("ROLLBACK PREPARED 'orphan'")


def test_writers_are_waited_for_that_are_open_now(bench, in_thread):
    """Later writers are not waited for; a cancelled job waits no more."""
    job, given_up = bench.job(), bench.job()
    with psycopg.connect(bench.dsn) as writer, psycopg.connect(bench.dsn) as later:
        writer.execute("INSERT INTO customers VALUES (9997, 'open', '')")
        thread = in_thread(lambda: snapshots.wait_for_writers(job, bench.dsn))

        def give_up() -> None:
            with pytest.raises(QueryCancelled):
                snapshots.wait_for_writers(given_up, bench.dsn)

        other = in_thread(give_up)
        asked = (
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'headrace snapshot'"
            " AND datname = current_database() AND query <> ''"
        )
        wait_until(lambda: bench.conn.execute(asked).fetchone() == (2,), "both look")
        given_up.cancel()
        other.join(PATIENCE_S)
        assert not other.is_alive()
        later.execute("INSERT INTO customers VALUES (9998, 'later', '')")
        assert thread.is_alive()
        writer.commit()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_cancel_while_the_slot_is_blocked(bench, in_thread):
    job = bench.job()

    def create() -> None:
        with pytest.raises(QueryCancelled):
            bench.create("v", "SELECT id FROM customers", job=job)

    with psycopg.connect(bench.dsn) as writer:
        writer.execute("INSERT INTO customers VALUES (9996, 'open', '')")
        thread = in_thread(create)
        wait_until(bench.waits_for_writer, "the slot waits for the writer")
        job.cancel()
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "it did not wait for the writer's end"
        bench.nothing_left()
        assert slots(bench) == []


def test_half_made_slot_is_removed(bench):
    """H8: the client is gone, the slot is half-made and active until the blocker ends."""
    name = snapshots.slot_of(bench.settings.slot_name, "9_1")
    with psycopg.connect(bench.dsn) as writer:
        writer.execute("INSERT INTO customers VALUES (9995, 'open', '')")
        conn = for_job(bench.dsn, what="test", replication=True)
        conn.execute("SET lock_timeout = 0")  # it must wait for the writer, not give up
        conn.execute("BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ")
        conn.pgconn.send_query(
            f"CREATE_REPLICATION_SLOT {name} TEMPORARY LOGICAL pgoutput (SNAPSHOT 'use')".encode()
        )
        conn.pgconn.flush()
        # The server does not notice a lost client only while it waits for the writer's lock.
        wait_until(bench.waits_for_writer, "the slot waits for the writer")
        conn.close()
        assert slots(bench) == [(name,)], "the server has not noticed"
        assert snapshots.remove_slots(bench.conn, bench.settings.slot_name) == 1
        no_slot(bench)


def test_no_free_slot_says_what_to_set(bench):
    limit = int(bench.conn.execute("SHOW max_replication_slots").fetchone()[0])
    used = bench.conn.execute("SELECT count(*) FROM pg_replication_slots").fetchone()[0]
    if limit - used > 40:
        pytest.skip("the server has too many slots to use up")
    made = []
    try:
        for number in range(limit - used):
            name = f"{bench.settings.slot_name}_{number}"
            bench.conn.execute("SELECT pg_create_physical_replication_slot(%s)", (name,))
            made.append(name)
        with pytest.raises(PrerequisiteError, match="slot is free") as caught:
            bench.create("v", "SELECT id FROM customers")
        assert "max_replication_slots" in caught.value.hint
    finally:
        for name in made:
            bench.conn.execute("SELECT pg_drop_replication_slot(%s)", (name,))
    bench.nothing_left()


def test_idle_timeouts_of_the_database_do_not_kill_it(bench):
    """E7."""
    name = bench.conn.info.dbname
    bench.conn.execute(f"ALTER DATABASE {name} SET idle_in_transaction_session_timeout = '200ms'")
    bench.conn.execute(f"ALTER DATABASE {name} SET idle_session_timeout = '200ms'")
    with export(bench) as snapshot:
        with reader.joined(bench.dsn, snapshot.ref) as conn:
            time_passes(0.6)
            reader.prove(conn, snapshot.ref)
        snapshot.check()


@pytest.mark.parametrize(
    "change",
    [
        "TRUNCATE orders",
        "VACUUM FULL orders",
        "ALTER TABLE orders ALTER amount TYPE numeric(12,3)",
        "ALTER TABLE orders RENAME TO orders_old",
        "ALTER TABLE orders REPLICA IDENTITY FULL",
    ],
)
def test_ddl_under_the_readers_is_noticed(bench, change):
    """H9: a snapshot does not protect against DDL that rewrites the table."""
    source = plans.filtered(bench.conn).plan.sources[0]
    before = tables.shape(bench.conn, [source])
    tables.check_same(before, tables.shape(bench.conn, [source]))
    bench.conn.execute("VACUUM orders")
    tables.check_same(before, tables.shape(bench.conn, [source]))
    bench.conn.execute(change)
    with pytest.raises(TableChanged):
        tables.check_same(before, tables.shape(bench.conn, [source]))


def test_renamed_enum_label_is_noticed(bench):
    bench.conn.execute("CREATE TYPE mood AS ENUM ('a', 'b')")
    bench.conn.execute("CREATE TABLE moods (id int PRIMARY KEY, m mood)")
    source = plans.source(bench.conn, "moods", ["id", "m"])
    before = tables.shape(bench.conn, [source])
    bench.conn.execute("ALTER TYPE mood RENAME VALUE 'a' TO 'c'")
    with pytest.raises(TableChanged):
        tables.check_same(before, tables.shape(bench.conn, [source]))


def test_truncate_in_the_middle_of_a_population(bench):
    job = bench.job()
    done = []

    def report(message):
        if message["phase"] == "reading" and not done:
            done.append(bench.conn.execute("TRUNCATE orders"))
            bench.conn.execute("INSERT INTO orders VALUES (5, 5, 5, 5)")

    job._report = report
    bench.create("v", "SELECT id FROM orders", job=job)
    assert bench.rows("TABLE v") == [("(5)",)]


def test_sizes(bench):
    bench.conn.execute("CREATE TABLE none (id int PRIMARY KEY)")
    bench.conn.execute("ANALYZE")
    assert tables.size(bench.conn, plans.source(bench.conn, "none", ["id"])) == tables.TableSize(
        0, 0
    )
    size = tables.size(bench.conn, plans.source(bench.conn, "orders", ["id"]))
    assert size.rows == 500
    assert size.blocks >= 1
