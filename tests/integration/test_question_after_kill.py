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
