"""A session that asks the engine inside of a transaction, while the engine is killed."""

from __future__ import annotations

import threading

import psycopg
import pytest

from tests.waiting import PATIENCE_S, wait_until

WAITING = "SELECT FROM pg_stat_activity WHERE application_name = 'headrace builder' AND wait_event_type = 'Lock'"


def test_it_notices_that_the_engine_is_gone(database, start_engine):
    """In a transaction the list of sessions, by which it sees that, does not change by itself."""
    engine = start_engine(database)
    with (
        psycopg.connect(database, autocommit=True) as conn,
        psycopg.connect(database) as other,
        psycopg.connect(database, autocommit=True) as watcher,
    ):
        conn.execute("CREATE TABLE items (id int PRIMARY KEY)")
        other.execute("LOCK TABLE items IN ACCESS EXCLUSIVE MODE")
        said: list[str | None] = []

        def ask() -> None:
            with conn.transaction():
                try:
                    conn.execute("CALL headrace.check_view('SELECT id FROM items')")
                except psycopg.Error as error:
                    said.append(error.sqlstate)
                    raise

        def run() -> None:
            with pytest.raises(psycopg.errors.CannotConnectNow):
                ask()

        asks = threading.Thread(target=run)
        asks.start()
        wait_until(lambda: watcher.execute(WAITING).fetchone() is not None, "the builder waits")
        engine.kill9()
        asks.join(PATIENCE_S)
        assert said == ["57P03"]


def test_a_wait_of_another_call_for_the_transaction_is_no_deadlock(database, start_engine):
    """A population waits for all transactions that have written, also for one that asks."""
    engine = start_engine(database)
    with (
        psycopg.connect(database) as asking,
        psycopg.connect(database) as holder,
        psycopg.connect(database, autocommit=True) as watcher,
        psycopg.connect(engine.dsn, autocommit=True) as caller,
    ):
        watcher.execute(
            "CREATE TABLE items (id int PRIMARY KEY); CREATE TABLE others (id int PRIMARY KEY)"
        )
        caller.execute("CALL headrace.create_view('v', 'SELECT id FROM items')")
        asking.execute("INSERT INTO others VALUES (1)")
        fills = threading.Thread(
            target=caller.execute, args=("CALL headrace.create_view('w', 'SELECT id FROM others')",)
        )
        fills.start()
        slot = "SELECT FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
        wait_until(lambda: watcher.execute(slot).fetchone() is not None, "the slot waits")
        holder.execute("LOCK TABLE items IN ACCESS EXCLUSIVE MODE")
        said: list[object] = []

        def ask() -> None:
            try:
                said.extend(asking.execute("CALL headrace.check_view('SELECT id FROM items')"))
            except psycopg.Error as error:
                said.append(error.sqlstate)
            asking.rollback()

        asks = threading.Thread(target=ask)
        asks.start()
        # Several checks for a deadlock, of which there is one a second.
        long = (
            "SELECT FROM pg_stat_activity WHERE pid = %s AND query LIKE 'CALL%%'"
            " AND clock_timestamp() - query_start > interval '3.5 s'"
        )
        pid = (asking.info.backend_pid,)
        wait_until(lambda: said or watcher.execute(long, pid).fetchone() is not None, "it waits")
        holder.rollback()
        asks.join(PATIENCE_S)
        fills.join(PATIENCE_S)
        assert len(said) == 1
        assert "Sink" in str(said[0])
