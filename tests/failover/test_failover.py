"""Views go on after the promotion of a standby, and none is filled anew.

Each seed has its own database and engine, and its own trouble around the promotion. To run one:
``pytest tests/failover -k seed7``.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import time

import pytest
from psycopg.conninfo import conninfo_to_dict

from headrace.server import standby_check
from tests.conftest import TOLD
from tests.failover.drill import Drill, Writer, connect, drill
from tests.failover.pair import pair as pair
from tests.outside import pages
from tests.waiting import at_any_moment, time_passes, wait_until

SEEDS = 100
QUICK = 10
"""Seeds of `make test`."""
LATE_S: list[float] = []
"""Seconds from each promotion until all views showed a row written after it."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(n, id=f"seed{n}", marks=[pytest.mark.slow] if n > QUICK else [])
        for n in range(1, SEEDS + 1)
    ],
)
def test_no_view_is_filled_anew(pair, tmp_path, record_property, seed):
    rng = random.Random(seed)
    env = {
        "HEADRACE_WAL_RETENTION": rng.choice(("local", "local", "source")),
        "HEADRACE_BATCH_INTERVAL_MS": str(rng.choice((2, 50))),
        "HEADRACE_CHECKPOINT_TXIDS": str(rng.choice((5, 100))),
    }
    with drill(pair, f"seed{seed}", tmp_path, **env) as made:
        ids = made.open(("averages", "ranks") if rng.random() < 0.4 else ())
        paused = rng.random() < 0.3
        if paused:
            with connect(made.engine.dsn) as conn:
                conn.execute("CALL headrace.pause_view('large')")
        pair.wait_synchronised(made.slot)
        if rng.random() < 0.5:
            pair.guard()
        writer = Writer(pair.dsn(made.name), rng)
        try:
            wait_until(lambda: writer.written > 50, "it writes")
            at_any_moment(rng, 0.0, 0.5)
            kill = rng.random() < 0.7
            if kill and rng.random() < 0.5:
                # The last commits, of the writer and of the sink, never arrive.
                pair.stall()
                at_any_moment(rng, 0.0, 1.0)
            killed = rng.random() < 0.3
            if killed:
                made.engine.kill9()
            pair.promote(kill=kill)
            promoted = time.monotonic()
            if killed:
                made.engine.start()
            with pair.connect(made.name) as conn:
                conn.execute("INSERT INTO orders VALUES (1000, 1, 1, 390)")

                def shown() -> bool:
                    query = "SELECT count(*) FROM ranks WHERE id = 1000"
                    return conn.execute(query).fetchone() == (1,)

                wait_until(shown, lambda: (made.wrong(), made.ids()))
                LATE_S.append(time.monotonic() - promoted)
        finally:
            writer.stop()
        if paused:
            with connect(made.engine.dsn) as conn:
                conn.execute("CALL headrace.resume_view('large')")
        made.equal()
        assert made.ids() == ids, "no view was filled anew"
    record_property(
        TOLD,
        f"views fresh {statistics.median(LATE_S):.1f} s after a promotion (median of {len(LATE_S)},"
        f" at most {max(LATE_S):.1f} s)",
    )


@pytest.mark.timeout(300)
def test_a_standby_that_lags_too_long_costs_a_refill_and_no_row(pair, tmp_path):
    """Nothing proves that the checkpoints are not ahead; then views are filled anew, and say why."""
    with drill(pair, "lagging", tmp_path) as made:
        ids = made.open()
        pair.wait_synchronised(made.slot)
        pair.stall()
        writer = Writer(pair.dsn(made.name), random.Random(1))
        try:
            told = "checkpoint not replicated"
            wait_until(lambda: told in made.engine.log, "a checkpoint is written without")
            time_passes(1.0)  # for the checkpoint
            pair.promote(kill=True)
        finally:
            writer.stop()
        with pair.connect(made.name) as conn:
            conn.execute("INSERT INTO orders VALUES (1000, 1, 1, 390)")
        wait_until(lambda: made.ids() != ids, "a view is filled anew")
        made.equal()
        assert "the promoted server lacks changes" in made.engine.log


@pytest.mark.timeout(300)
def test_a_slot_that_the_standby_lacks_is_named(pair, tmp_path):
    with drill(pair, "lacking", tmp_path, HEADRACE_SLOT_FAILOVER="false") as made:
        ids = made.open()
        made.equal()
        pair.promote(kill=True)
        wait_until(lambda: set(made.ids().values()).isdisjoint(ids.values()), "all are filled anew")
        made.equal()
        assert f'the promoted server does not have slot \\"{made.slot}\\"' in made.engine.log


@pytest.mark.timeout(300)
def test_an_older_slot_is_copied_from_the_next_start_on(pair, tmp_path):
    with drill(pair, "older", tmp_path, HEADRACE_SLOT_FAILOVER="false") as made:
        ids = made.open()
        made.engine.stop()
        made.engine.env["HEADRACE_SLOT_FAILOVER"] = "true"
        made.engine.start()
        pair.wait_synchronised(made.slot)
        pair.promote(kill=True)
        with pair.connect(made.name) as conn:
            conn.execute("INSERT INTO orders VALUES (1000, 1, 1, 390)")
        made.equal()
        assert made.ids() == ids


@pytest.mark.timeout(300)
def test_a_primary_that_waits_for_a_standby_loses_nothing(pair, tmp_path):
    """The server warns within the stream, which once counted as a loss."""
    with drill(pair, "waiting", tmp_path) as made:
        ids = made.open()
        pair.wait_synchronised(made.slot)
        pair.guard()
        pair.standby.stop()
        with pair.connect(made.name) as conn:
            conn.execute("INSERT INTO orders VALUES (1000, 1, 1, 390)")
        wait_until(lambda: "the source waits for a standby" in made.engine.log, "it is logged")
        assert made.wrong(), "the change has not been sent"
        pair.standby.start()
        made.equal()
        assert made.ids() == ids


def checked(made: Drill) -> list[str]:
    """Return what ``headrace check`` says of failover."""
    done = subprocess.run(
        [sys.executable, "-m", "headrace.server.cli", "check", "--source", made.engine.source],
        env=os.environ | made.engine.env | {"HEADRACE_DATA_DIR": str(made.engine.data_dir)},
        capture_output=True,
        text=True,
        check=False,
    )
    return [line for line in done.stdout.splitlines() if "failover" in line]


@pytest.mark.timeout(300)
def test_check_says_whether_a_standby_is_ready(pair, tmp_path):
    with drill(pair, "checked", tmp_path) as made:
        standby = f"127.0.0.1:{pair.standby.port}"
        made.engine.start()
        pair.wait_synchronised(made.slot)
        made.engine.stop()
        assert checked(made) == [f"✓ failover: slot {made.slot} is copied to {standby}"]
        with connect(pair.standby.dsn()) as conn:
            conn.execute("ALTER SYSTEM SET sync_replication_slots = off")
            conn.execute("SELECT pg_reload_conf()")
            wait_until(
                lambda: conn.execute("SHOW sync_replication_slots").fetchone() == ("off",),
                "it is set",
            )
            assert checked(made) == [f"! failover: {standby} does not copy slots"]
            conn.execute("ALTER SYSTEM RESET sync_replication_slots")
            conn.execute("SELECT pg_reload_conf()")
        made.engine.env["HEADRACE_SLOT_FAILOVER"] = "false"
        assert checked(made)[0] == (
            f"! failover: slot {made.slot} is not copied to standbys: slot_failover is off"
        )


@pytest.mark.timeout(300)
def test_the_statements_of_the_manual(pair):
    """Each is executed where the page says, and has the effect that it names."""
    page = pages.fences("high-availability", "sql")
    on_primary, on_standby, ready = page[:3]  # tests/standby sends the others
    given, _ = pages.fences("high-availability", "ini")
    source = conninfo_to_dict(given.split("=", 1)[1].strip().strip('"'))
    assert source["target_session_attrs"] == "read-write"
    shown, _ = pages.fences("high-availability", "text")
    assert shown.strip() == f"✓ failover: {standby_check.COPIED.format('headrace', 'db2:5432')}"
    pair.renew()
    with pair.connect() as conn:
        conn.execute(
            "SELECT pg_drop_replication_slot('standby_1') WHERE EXISTS"
            " (SELECT FROM pg_replication_slots WHERE slot_name = 'standby_1')"
        )
        conn.execute(on_primary)
        conn.execute(
            "SELECT pg_create_logical_replication_slot('headrace', 'pgoutput', failover => true)"
        )
    with connect(pair.standby.dsn()) as conn:
        for statement in on_standby.split(";")[:-1]:
            conn.execute(statement)
        wanted = "sync_replication_slots", "hot_standby_feedback", "primary_slot_name"
        wait_until(
            lambda: (
                [conn.execute(f"SHOW {name}").fetchone()[0] for name in wanted]
                == ["on", "on", "standby_1"]
            ),
            "they are set",
        )

        def shown() -> bool:
            pair.hasten(conn)
            with pair.connect() as primary:  # as an engine does
                primary.execute(
                    "SELECT pg_replication_slot_advance('headrace', pg_current_wal_flush_lsn())"
                )
            return conn.execute(ready).fetchall() == [(True,)]

        wait_until(shown, "the slot is copied", every_s=0.1)
    with pair.connect() as conn:
        [(active,)] = conn.execute(
            "SELECT active FROM pg_replication_slots WHERE slot_name = 'standby_1'"
        ).fetchall()
        assert active, "the standby uses the slot that it was given"
    pair.standby.destroy()
    pair.standby = None  # the next test gets one with the usual slot
