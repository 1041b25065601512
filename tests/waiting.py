"""Waiting for conditions and for the views, never for a fixed time.

For views, by a marker that travels with the data.  Every test transaction also bumps a row of table ``marker``, which has a view of its own.  All
views commit a txid together, so once ``marker_view`` shows a number, every view covers it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg

PATIENCE_S = 90.0
"""How long a test waits for what must happen: a busy machine may be ten times slower."""

STOPPED = """
    SELECT string_agg(view_name || ': ' || status || ' ' || coalesce(message, ''), E'\n')
      FROM headrace.views
     WHERE status NOT IN ('running', 'pending', 'populating')
"""


def wait_until(done: Callable[[], Any], what: str, seconds: float = PATIENCE_S) -> Any:
    """The first true answer of ``done``; fails with ``what`` after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not (answer := done()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.01)
    return answer


def create_marker(source: psycopg.Connection, commander: psycopg.Connection) -> None:
    """Make the table and its view."""
    source.execute("CREATE TABLE marker (id int PRIMARY KEY, n bigint)")
    source.execute("INSERT INTO marker VALUES (1, 0)")
    commander.execute(
        "CALL headrace.create_view('marker_view', 'SELECT n FROM marker')"
    )


def bump(source: psycopg.Connection) -> int:
    """Move the marker inside the caller's transaction; returns its new number."""
    row = source.execute("UPDATE marker SET n = n + 1 RETURNING n").fetchone()
    assert row is not None
    return row[0]


def wait_for(
    source: psycopg.Connection, number: int, seconds: float = PATIENCE_S
) -> None:
    """Return once the views cover marker ``number``; fail when a view has stopped."""
    deadline = time.monotonic() + seconds
    while True:
        row = source.execute("SELECT n FROM marker_view").fetchone()
        if row and row[0] >= number:
            break
        assert time.monotonic() < deadline, (
            f"views do not cover marker {number} after {seconds} s: {row}; "
            f"{source.execute(STOPPED).fetchone()}"
        )
        time.sleep(0.003)
    stopped = source.execute(STOPPED).fetchone()
    assert stopped is None or not stopped[0], stopped
