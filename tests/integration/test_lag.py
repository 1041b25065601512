"""The lag that every report shows, checked with probes, also beside views that lag.

A probe is a row that is committed between two readings of the server's clock and WAL position.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
import pytest

from headrace.sql import samples
from tests.integration.test_metrics import page, value
from tests.waiting import again_and_again, wait_until

pytestmark = [
    pytest.mark.shared_engine,
    pytest.mark.engine_with(
        HEADRACE_HTTP="127.0.0.1:0",
        HEADRACE_LOCK_TIMEOUT_MS="300",
        # The view that stands still holds back the slot.
        HEADRACE_WAL_RETENTION="source",
    ),
]

TABLES = """
CREATE TABLE t (id int PRIMARY KEY, n int);
INSERT INTO t SELECT i, 1 FROM generate_series(1, 9) i;
CREATE TABLE other (id int PRIMARY KEY);
CREATE TABLE noise (id int);
"""
VIEWS = {
    "written": "SELECT id, n FROM t",
    "idle": "SELECT id FROM other",
    "above": "SELECT count(*) AS n FROM written",
    "paused": "SELECT id FROM t",
    "blocked": "SELECT id, n + 1 AS m FROM t",
    "stopped": "SELECT id, 1 / n AS m FROM t",
}
FOLLOWING = ("written", "idle", "above")
STANDING = ("paused", "blocked")


@dataclass(frozen=True)
class Probe:
    """A commit: the server's clock before and after it, and its WAL."""

    key: int
    before: float
    committing: int
    """End of the WAL just before the commit; ``wal`` may include what the sink wrote for it."""
    after: float
    wal: int


@dataclass(frozen=True)
class Lag:
    """The row of a view in list_views(), with the server's clock and WAL before and after."""

    status: str
    ms: int | None
    bytes: int
    held_by: str | None
    before: float
    after: float
    wal: int


def clock(conn: psycopg.Connection) -> tuple[float, int]:
    row = conn.execute(
        "SELECT extract(epoch FROM clock_timestamp())::float8, pg_current_wal_lsn() - '0/0'::pg_lsn"
    ).fetchone()
    assert row is not None
    return row[0], int(row[1])


def probe(conn: psycopg.Connection, key: int, n: int = 1) -> Probe:
    before, _ = clock(conn)
    with conn.transaction():
        conn.execute("INSERT INTO t VALUES (%s, %s)", (key, n))
        row = conn.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
        assert row is not None
    after, wal = clock(conn)
    return Probe(key, before, int(row[0]), after, wal)


def lags(conn: psycopg.Connection) -> dict[str, Lag]:
    before, _ = clock(conn)
    rows = conn.execute(
        "SELECT substr(name, 8), status, lag_ms, lag_bytes, held_by FROM headrace.list_views()"
    ).fetchall()
    after, wal = clock(conn)
    return {name: Lag(*more, before, after, wal) for name, *more in rows}


def shows(conn: psycopg.Connection, key: int) -> bool:
    row = conn.execute("SELECT EXISTS (SELECT FROM written WHERE id = %s)", (key,)).fetchone()
    return bool(row and row[0])


def check_following(conn: psycopg.Connection, last: Probe) -> None:
    """Check that lag is at most the WAL since the probe, once the view shows the probe."""
    wait_until(lambda: shows(conn, last.key), "the probe came")
    found = lags(conn)["written"]
    assert found.status == "running"
    assert found.ms is not None
    assert found.bytes <= found.wal - last.committing, (found, last)

    def current() -> bool:
        now = lags(conn)
        return all(now[name].ms == 0 and now[name].held_by is None for name in FOLLOWING)

    wait_until(current, lambda: f"not behind: {lags(conn)}")


def check_standing(conn: psycopg.Connection, name: str, first: Probe) -> None:
    """Check that a view lags by the age of its first missing commit, to the clock's precision."""

    def told() -> bool:
        found = lags(conn)[name]
        assert found.ms is not None
        # The commit is between both readings; a batch's time is that of its last commit.
        least, most = found.before - first.after, found.after - first.before
        return least - 0.1 <= found.ms / 1000 <= most + 0.1 and found.bytes > 0

    wait_until(told, lambda: f"{name} is late since {first}: {lags(conn)[name]}")


def metrics_agree(engine) -> bool:
    found = page(engine)
    return value(found, "views_freshness_max_seconds") == 0 and all(
        value(found, "view_freshness_seconds", view=f"public.{name}") == 0 for name in FOLLOWING
    )


def behind(conn: psycopg.Connection) -> str:
    [(said,)] = conn.execute(
        "SELECT value FROM headrace.status() WHERE fact = 'stream behind'"
    ).fetchall()
    return str(said)


@contextmanager
def locked(dsn: str) -> Iterator[None]:
    with psycopg.connect(dsn) as conn:
        conn.execute("LOCK TABLE blocked IN SHARE MODE")
        yield


CREATE = "CALL headrace.create_view('populating', 'SELECT id FROM other')"


@contextmanager
def populating(engine, source: psycopg.Connection, call: str = CREATE) -> Iterator[None]:
    """Keep a view waiting for its snapshot, by an open transaction."""
    with psycopg.connect(engine.source) as writer:
        writer.execute("CREATE TABLE open_one (x int)")

        def create() -> None:
            with psycopg.connect(engine.dsn, autocommit=True) as conn:
                conn.execute(call)

        thread = threading.Thread(target=create)
        thread.start()
        try:
            if call == CREATE:
                wait_until(
                    lambda: lags(source).get("populating"), "the view that is populated is listed"
                )
            yield
        finally:
            writer.rollback()
            thread.join()


def test_views_that_stand_still_make_no_other_view_late(engine, source, commander):
    slot = engine.env["HEADRACE_SLOT_NAME"]
    wait_until(
        lambda: (
            source.execute("SELECT lag_ms FROM headrace.worker_position()").fetchone()[0]
            is not None
        ),
        "the worker knows how late it is; from then on it always does",
    )
    source.execute("CALL headrace.pause_view('paused')")
    with locked(engine.source):
        first = probe(source, 100, n=0)  # stops the view that divides by it
        wait_until(lambda: lags(source)["blocked"].status == "sink_error", "one is blocked")
        wait_until(lambda: lags(source)["stopped"].status == "error", "one has stopped")
        with populating(engine, source):
            assert lags(source)["populating"].ms is None
            for key in range(101, 104):
                # The slot confirms none of the WAL written beside the views.
                source.execute("INSERT INTO noise SELECT generate_series(1, 1000)")
                check_following(source, probe(source, key))
            for name in STANDING:
                check_standing(source, name, first)
            wait_until(lambda: metrics_agree(engine), "the metrics say the same")
            wait_until(lambda: behind(source).endswith(" 0.0 s"), lambda: behind(source))
            held_back = source.execute(
                "SELECT confirmed_flush_lsn - '0/0'::pg_lsn <= %s FROM pg_replication_slots"
                " WHERE slot_name = %s",
                (first.wal, slot),
            ).fetchone()
            assert held_back == (True,), "else it was no test"
            # Also later, while these views are still behind and nothing is written.
            for _ in again_and_again(3):
                found = lags(source)
                # A transaction of the sink under way counts for a moment.
                assert not [n for n in FOLLOWING if 2 * found[n].ms > found["paused"].ms], found
    source.execute("CALL headrace.resume_view('paused')")
    wait_until(
        lambda: all(lags(source)[name].ms == 0 for name in (*FOLLOWING, *STANDING)),
        lambda: f"all have caught up: {lags(source)}",
    )


def test_a_view_that_lacks_nothing_is_not_late_for_standing_still(engine, source, commander):
    """Writes to other tables do not concern it: its table is up to date."""
    source.execute("CALL headrace.pause_view('paused')")
    source.execute("CREATE TABLE apart (id int)")
    source.execute("INSERT INTO apart SELECT generate_series(1, 1000)")
    wait_until(lambda: lags(source)["paused"].ms == 0, lambda: f"{lags(source)['paused']}")


def test_the_progress_of_a_population_is_told(engine, source, commander):
    waits = "it waits for a snapshot"
    with populating(engine, source):
        filled = f"it is being filled: {waits}"
        wait_until(lambda: lags(source)["populating"].held_by == filled, lambda: f"{lags(source)}")
    wait_until(lambda: lags(source)["populating"].held_by is None, lambda: f"{lags(source)}")
    with populating(engine, source, "CALL headrace.resync_view('populating')"):
        filled = f"it is being filled anew: {waits}"
        wait_until(lambda: lags(source)["populating"].held_by == filled, lambda: f"{lags(source)}")
        assert lags(source)["populating"].status == "running"
    wait_until(lambda: lags(source)["populating"].held_by is None, lambda: f"{lags(source)}")
    commander.execute("CALL headrace.drop_view('populating')")


def test_samples_look_at_all_views_only_where_one_may_lag(commander, source):
    """Apart from the look each minute, which a step of a microsecond excludes here."""

    def due() -> bool:
        row = source.execute(samples._DUE, {"step": 1e-6}).fetchone()
        assert row is not None
        return bool(row[0])

    wait_until(lambda: not due(), "all is well")
    commander.execute("CALL headrace.create_view('late', 'SELECT id FROM t')")
    commander.execute("CALL headrace.pause_view('late')")
    try:
        source.execute("INSERT INTO t VALUES (990001, 1)")
        wait_until(due, "a paused view lacks a commit")
        commander.execute("CALL headrace.resume_view('late')")
        wait_until(lambda: not due(), "it has caught up")
    finally:
        commander.execute("CALL headrace.drop_view('late')")
        source.execute("DELETE FROM t WHERE id = 990001")
    wait_until(lambda: not due(), "all is well")
