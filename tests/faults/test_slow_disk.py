"""While a checkpoint is written to a slow disk, calls wait for it, and views do not."""

from __future__ import annotations

import psycopg
import pytest

from headrace.process import faults
from tests.faults.helpers import arm
from tests.waiting import wait_until

TABLES = """
CREATE TABLE probe (id int PRIMARY KEY, n int NOT NULL);
CREATE TABLE items (id int PRIMARY KEY, k int NOT NULL);
INSERT INTO probe VALUES (1, 0);
INSERT INTO items SELECT i, i % 7 FROM generate_series(1, 100) i;
"""
QUERY = "SELECT k, count(*) AS n FROM items GROUP BY k"
HANGS_MS = (4_000, 12_000, 36_000)
"""How long the checkpoint takes in each round: a busy machine may need more than the first."""


@pytest.fixture
def traps(tmp_path):
    folder = tmp_path / "traps"
    folder.mkdir()
    return folder


@pytest.fixture
def engine(database, start_engine, traps):
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(TABLES)
    return start_engine(database, HEADRACE_FAULT_DIR=str(traps))


def test_views_follow_while_a_call_waits_for_a_checkpoint(engine, traps):
    """Dropping a view removes it from the states, which must wait for the checkpoint's end."""

    def change() -> None:
        """Change a row, and wait until the view shows it."""
        [(n,)] = source.execute("UPDATE probe SET n = n + 1 RETURNING n").fetchall()
        shown = "SELECT n FROM probe_view"
        wait_until(lambda: source.execute(shown).fetchall() == [(n,)], f"change {n} is shown")

    def dropped() -> int:
        return engine.log_path.read_text().count('"view forgotten"')

    with (
        psycopg.connect(engine.source, autocommit=True) as source,
        psycopg.connect(engine.dsn, autocommit=True) as commander,
    ):
        commander.execute("CALL headrace.create_view('probe_view', 'SELECT id, n FROM probe')")
        for round_number, hang_ms in enumerate(HANGS_MS):
            commander.execute("CALL headrace.create_view('other', %s)", (QUERY,))
            arm(traps, faults.CHECKPOINT_BEGUN, f"hang:1:{hang_ms}")
            sprung = traps / f"{faults.CHECKPOINT_BEGUN}{faults.SPRUNG}"
            change()
            wait_until(sprung.exists, "a checkpoint is written")
            commander.execute("CALL headrace.drop_view('other')")
            change()
            waits = dropped() == round_number
            wait_until(lambda r=round_number: dropped() == r + 1, "the view is dropped")
            if waits:
                return
    raise AssertionError("each change was shown only after the checkpoint")
