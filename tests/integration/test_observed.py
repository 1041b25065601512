"""Is a view up to date, and if not, why: list_views(), status(), batches(), lag_history()."""

from __future__ import annotations

import os
import random
import re
import signal
from importlib import metadata

import psycopg
import pytest

from tests.faults.helpers import WORKER
from tests.integration import test_workers
from tests.integration.test_fed import change
from tests.integration.test_workers import MOST, SUMS, check, listed, place, refused
from tests.runtime.test_engine_threads import threads
from tests.security.roles import connect, role
from tests.waiting import wait_until

TABLES = test_workers.TABLES


def row(conn: psycopg.Connection, name: str) -> dict[str, object]:
    cursor = conn.execute(
        "SELECT * FROM headrace.list_views() WHERE name = 'public.' || %s::text", (name,)
    )
    assert cursor.description is not None
    [values] = cursor.fetchall()
    return dict(zip((c.name for c in cursor.description), values, strict=True))


def facts(conn: psycopg.Connection) -> dict[str, tuple[str, bool | None, str | None]]:
    rows = conn.execute("SELECT * FROM headrace.status()").fetchall()
    return {fact: (value, ok, hint) for fact, value, ok, hint in rows}


def held(conn: psycopg.Connection, name: str, words: str) -> None:
    """Wait until ``held_by`` of a view contains ``words``."""
    wait_until(
        lambda: words in str(row(conn, name)["held_by"]), lambda: f"{words}: {row(conn, name)}"
    )


@pytest.mark.slow
@pytest.mark.engine_with(HEADRACE_VIEW_TIME_MS_MAX="20000")
def test_who_keeps_a_view_from_being_up_to_date(engine, commander, source):
    rng = random.Random(1)
    commander.execute("CALL headrace.create_view('sums', %s)", (SUMS,))
    check(commander, sums=SUMS)
    assert row(commander, "sums")["held_by"] is None
    assert row(commander, "sums")["owner"] == source.info.user

    with psycopg.connect(engine.source) as blocker:
        blocker.execute("LOCK TABLE sums IN SHARE MODE")
        change(source, rng)
        held(commander, "sums", f"locked by process {blocker.info.backend_pid}")
        assert "LOCK TABLE sums" in str(row(commander, "sums")["held_by"])
    wait_until(lambda: row(commander, "sums")["status"] == "running", "it goes on")
    check(commander, sums=SUMS)
    assert row(commander, "sums")["held_by"] is None

    commander.execute("CALL headrace.pause_view('sums')")
    held(commander, "sums", f"paused by {source.info.user}")
    commander.execute("CALL headrace.resume_view('sums')")

    commander.execute("CALL headrace.add_worker('w1')")
    place(commander, "most", MOST, "w1")
    pid = listed(commander)["w1"][1]
    os.kill(pid, signal.SIGSTOP)
    change(source, rng)
    held(commander, "most", 'waits for worker "w1"')
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: row(commander, "most")["status"] == "running", "it goes on")
    last = row(commander, "most")
    assert "cannot be reached" in str(last["last_error"]), "what is over is told"
    assert last["last_error_at"] < last["since"]

    source.execute(
        "CREATE FUNCTION slow(x int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS"
        " 'BEGIN IF x < 0 THEN PERFORM pg_sleep(4); END IF; RETURN x; END'"
    )
    commander.execute("CALL headrace.create_view('slow', 'SELECT id, slow(id) AS s FROM items')")
    source.execute("INSERT INTO items VALUES (-1, 1, 1)")
    held(commander, "sums", "a batch under way")
    held(commander, "sums", "of public.slow")
    assert "of public.slow" in facts(commander)["batch under way"][0]
    check(commander, sums=SUMS)

    engine.stop()
    assert {row(source, name)["held_by"] for name in ("sums", "most")} == {"no engine is connected"}
    told = facts(source)
    assert told["engine"] == ("stopped", False, "headrace start")


def test_how_fresh_it_was(engine, commander, source):
    rng = random.Random(1)
    commander.execute("CALL headrace.create_view('sums', %s)", (SUMS,))
    commander.execute("CALL headrace.create_view('most', %s)", (MOST,))

    def sampled() -> dict[str, object] | None:
        change(source, rng)
        found = row(commander, "sums")
        return found if found["p50_ms"] is not None else None

    told = wait_until(sampled, "a sample")
    assert 0 < told["p50_ms"] <= told["p99_ms"] < 60_000
    assert told["rows_per_s"] > 0
    assert told["state_bytes"] > 0
    past = commander.execute("SELECT * FROM headrace.lag_history('sums')").fetchall()
    assert past
    assert past[0][1] == 10
    assert past[0][2] > 0
    assert refused(commander, "SELECT * FROM headrace.lag_history('none')").sqlstate == "42P01"
    with role(source, "stranger") as stranger, connect(engine.dsn, stranger) as other:
        assert refused(other, "SELECT * FROM headrace.lag_history('sums')").sqlstate == "42P01"
        assert other.execute("SELECT * FROM headrace.batches()").fetchall() == []
        found = row(other, "sums")
        assert (found["owner"], found["p50_ms"], found["last_error"]) == (None, None, None)
        seen = facts(other)
        assert seen["engine"][0] == "running"
        assert not {"memory", "threads", "workers"} & seen.keys(), "told to the engine's role"

    def batches() -> list[tuple]:
        return commander.execute("SELECT * FROM headrace.batches()").fetchall()

    done = [b for b in batches() if b[2] == "committed"]
    assert [b[0] for b in done] == sorted((b[0] for b in done), reverse=True)
    assert all(b[5] > 0 and b[6] >= 1 and b[9] > 0 for b in done if b[4] and b[6])
    assert any(b[6] == 2 for b in done), "both views"
    [(direct,)] = source.execute("CALL headrace.show_batches()").fetchall()
    assert len(direct) >= len(done)
    told = facts(commander)
    assert told["engine"] == ("running", True, None)
    assert told["views"] == ("2 running", True, None)
    assert "active" in told["slot"][0]
    assert told["WAL kept"][1] is True
    version = source.execute("SELECT split_part(current_setting('server_version'), ' ', 1)")
    assert told["server"] == (f"Postgres {version.fetchone()[0]}", None, None)
    assert told["version"][0] == metadata.version("headrace")
    assert told["worker"] == ("running", True, None)
    assert told["workers"] == ("main up", True, None)
    assert re.fullmatch(r"about \d+ % of 1024 MB", told["memory"][0])
    rocksdb = sum(name.startswith("rocksdb:") for name in threads(engine.child(WORKER)))
    shown = f"{max(2, os.cpu_count() or 2)} for batches, {rocksdb} of RocksDB, up to 64 for calls"
    assert told["threads"] == (shown, None, None)
    assert re.fullmatch(r"\d+ \w+(, [\d.]+ s)?", told["stream behind"][0])


@pytest.mark.slow
def test_samples_are_kept_at_falling_resolution(engine, commander, source):
    """Ten seconds for a quarter of an hour, then minutes, then ten minutes."""
    commander.execute("CALL headrace.create_view('sums', %s)", (SUMS,))
    source.execute(
        "INSERT INTO headrace.samples (view_id, step_s, at, batches, rows_per_s, p50_ms, max_ms)"
        " SELECT v.id, 10, date_bin('10 s', now() - i * interval '10 s', 'epoch'), 1, 6, i, i"
        " FROM headrace.views v, generate_series(1, 20) i"
    )

    def summed() -> list[tuple]:
        return source.execute(
            "SELECT at, batches, rows_per_s, p50_ms FROM headrace.samples WHERE step_s = 60"
            " ORDER BY at"
        ).fetchall()

    # The observer does it once a minute, the first time at once.
    rows = wait_until(summed, "minutes")
    whole = [r for r in rows if r[1] == 6]
    assert whole
    assert all(abs(r[2] - 6) < 1e-9 for r in whole)
    # A view that is populated again gets another id; its samples move with it.
    before = source.execute("SELECT count(*), min(view_id) FROM headrace.samples").fetchone()
    for call in ("resync_view('sums')", f"alter_view('sums', '{SUMS} HAVING true')"):
        commander.execute(f"CALL headrace.{call}")
        after = source.execute("SELECT count(*), min(view_id) FROM headrace.samples").fetchone()
        assert after[0] >= before[0]
        assert after[1] > before[1]
        before = after
