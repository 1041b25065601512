"""Captures of an engine that is down, that has another worker, or whose view has stopped."""

from __future__ import annotations

import contextlib
import json

import psycopg
import pytest

from tests.replay.bundles import (
    batches,
    captured,
    entries,
    recording,
    replayed,
    writing,
)
from tests.waiting import wait_until

TABLES = """
CREATE TABLE rk_items (id int PRIMARY KEY, g int, x numeric, y int);
INSERT INTO rk_items SELECT i, i % 5, i * 1.50, 1 FROM generate_series(1, 100) i;
CREATE TABLE rk_groups (g int PRIMARY KEY, name text);
INSERT INTO rk_groups SELECT i, 'g' || i FROM generate_series(0, 4) i;
"""
JOINED = "rk_items i JOIN rk_groups USING (g)"
VIEWS = {
    "rk_sums": f"SELECT name, sum(x) AS total, min(x) AS least FROM {JOINED} GROUP BY name",
    "rk_ranks": f"SELECT name, x, y, rank() OVER (PARTITION BY name ORDER BY x) AS r FROM {JOINED}",
    "rk_more": f"SELECT name, x, y, row_number() OVER (PARTITION BY name ORDER BY x, y) FROM {JOINED}",
    "rk_divided": "SELECT id, 100 / y AS part FROM rk_items",
}
WRITE = """
INSERT INTO rk_items SELECT %(n)s, %(n)s %% 5, %(n)s %% 89 * 1.25, 1
"""


def subplans(engine, name: str) -> str:
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        rows = conn.execute("SELECT * FROM headrace.queues()").fetchall()
    return str(rows)


@pytest.mark.slow
def test_shared_subplans_other_workers_stopped_views_and_kills(engine, commander, source, tmp_path):
    commander.execute("CALL headrace.add_worker('w2')")
    there = json.dumps({"placement": "w2"})
    commander.execute(
        "CALL headrace.create_view('rk_there', 'SELECT count(*) AS n FROM rk_items', options => %s)",
        (there,),
    )
    wait_until(lambda: "subplan" in subplans(engine, "rk_ranks"), "views share a subplan")
    # A running engine; one view is on another worker, and one stops.
    bundle = tmp_path / "running.zip"
    with writing(engine.source, WRITE), recording(engine, "1h"):
        source.execute("INSERT INTO rk_items VALUES (0, 1, 2, 0)")
        stopped = "SELECT status FROM headrace.views WHERE view_name = 'rk_divided'"
        wait_until(lambda: source.execute(stopped).fetchone() == ("error",), "the view stops")
        said = captured(engine, bundle, "--rows", "--last", "1h", "--next", "1s")
        assert 'left out: view public.rk_there: its states are on worker "w2"' in said
        told = replayed(bundle)
        assert batches(told) > 0
        assert "public.rk_divided: " in told
        assert "stops at txid" in told
        assert "22012 division by zero" in told
        assert "subplan -" in told
        # The engine is killed, while the recorder goes on.
        with contextlib.suppress(psycopg.OperationalError):
            engine.kill9()
        said = captured(engine, tmp_path / "recorded.zip", "--rows", "--last", "1h")
        assert "the server does not run" not in said
        assert batches(replayed(tmp_path / "recorded.zip")) > 0
    said = captured(engine, tmp_path / "killed.zip", "--rows")
    assert "the server does not run" in said
    told = replayed(tmp_path / "killed.zip")
    assert "nothing to compare its states with" in told
    assert "batches.bin" in entries(tmp_path / "killed.zip")
    # It goes on as if nothing had happened.
    engine.start()
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        conn.execute("CALL headrace.wait_for('rk_sums')")
        rows = conn.execute("SELECT count(*) FROM rk_ranks").fetchone()
        assert rows == source.execute("SELECT count(*) FROM rk_items").fetchone()


@pytest.mark.engine_with(HEADRACE_WAL_RETENTION="source")
def test_the_log_may_be_a_cache(engine, commander, tmp_path):
    with writing(engine.source, WRITE):
        captured(engine, tmp_path / "bundle.zip", "--rows", "--next", "2s")
    assert batches(replayed(tmp_path / "bundle.zip")) > 0
