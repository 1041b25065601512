"""The limits are those of one transaction: a view that catches up takes fewer at a time."""

from __future__ import annotations

import psycopg
import pytest

from tests.compared import differs
from tests.waiting import wait_until

ROWS = 16
TABLES = """
CREATE FUNCTION slowly(v int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_sleep(0.15);
  RETURN v + 1;
END $$;
CREATE TABLE items (id int PRIMARY KEY);
"""
QUERIES = {
    "time": "SELECT id, slowly(id) AS next FROM items",
    "rows": "SELECT i.id, s.n FROM items i, generate_series(1, 1500) AS s(n)",
}
"""By the limit that a backlog exceeds."""
OPTIONS = '{"view_rows_max": 2000}'
VIEWS = {"leads": "SELECT count(*) AS n FROM items"}


def view_ids(source: psycopg.Connection) -> dict[str, int]:
    """Return the IDs of the views by name; a resync would change them."""
    return dict(source.execute("SELECT view_name, id FROM headrace.views").fetchall())


@pytest.mark.parametrize("killed", [False, True], ids=["in the log", "at the source"])
@pytest.mark.engine_with(
    HEADRACE_BATCH_ROWS_MAX="1",
    HEADRACE_RECOMPUTE_BACKLOGS="false",
    HEADRACE_VIEW_TIME_MS_MAX="1000",
)
def test_a_backlog_exceeds_no_limit(engine, source, commander, killed):
    for name, query in QUERIES.items():
        commander.execute(
            "CALL headrace.create_view(%s, %s, options => %s)", (name, query, OPTIONS)
        )
        commander.execute(f"CALL headrace.pause_view('{name}')")
    before = view_ids(source)
    for i in range(ROWS):
        source.execute("INSERT INTO items VALUES (%s)", (i,))
    commander.execute("CALL headrace.wait_for('leads')")
    if killed:
        engine.kill9()
        engine.start()
    with psycopg.connect(engine.dsn, autocommit=True) as again:
        for name in QUERIES:
            again.execute(f"CALL headrace.resume_view('{name}')")
        for name, query in QUERIES.items():
            wait_until(lambda n=name, q=query: not differs(source, n, q), f"{name} has caught up")
    assert '"code": "54H01"' not in engine.log
    assert view_ids(source) == before
