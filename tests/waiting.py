"""Waits for conditions and for the views, never for a fixed time.

Views are waited for with a marker that travels with the data. Every test transaction also updates a
row of table ``marker``, which has its own view. All views that lead their commit group commit a txid
together, so once ``marker_view`` shows a number, each of them covers it. A view that catches up does
not: ``settle`` also waits for each of these, and so a test that kills a process uses it.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg

PATIENCE_S = 90.0
"""How long a test waits for a condition: a busy machine may be ten times slower."""
LOOK_S_MAX = 0.05
"""Longest pause between two looks at a condition."""

STOPPED = """
    SELECT string_agg(view_name || ': ' || status || ' ' || coalesce(message, ''), E'\n')
      FROM headrace.views
     WHERE status NOT IN ('running', 'pending', 'populating')
"""


def wait_until(
    done: Callable[[], Any],
    what: str | Callable[[], object],
    seconds: float = PATIENCE_S,
    every_s: float = 0.01,
) -> Any:
    """Return the first true answer of ``done``; fail with ``what`` after ``seconds``."""
    began = time.monotonic()
    while not (answer := done()):
        if time.monotonic() > began + seconds:
            said = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {seconds} s: {said}")
        _pause(began, every_s)
    return answer


def _pause(began: float, least_s: float) -> None:
    """Wait for a tenth of the time since ``began``, at least ``least_s``.

    Looks cost processor time that the processes under test need: a look is often a query.
    """
    time.sleep(max(least_s, min(LOOK_S_MAX, (time.monotonic() - began) / 10)))


async def eventually(done: Callable[[], Any], what: str) -> Any:
    """Wait as ``wait_until`` does, on an event loop; ``done`` may be a coroutine function."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = done()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}"
        await asyncio.sleep(0.02)


def at_any_moment(rng: random.Random, least_s: float, most_s: float) -> None:
    """Wait for a random time, so that the next step, usually a kill, comes at any point."""
    time.sleep(rng.uniform(least_s, most_s))


def time_passes(seconds: float) -> None:
    """Wait for ``seconds``, if the test is about time: an age, a stall."""
    time.sleep(seconds)


def again_and_again(seconds: float) -> Iterator[None]:
    """Yield repeatedly for ``seconds``: for conditions that must hold all the time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield
        time.sleep(0.02)


def create_marker(source: psycopg.Connection, commander: psycopg.Connection) -> None:
    """Create the marker table and its view."""
    source.execute("CREATE TABLE marker (id int PRIMARY KEY, n bigint)")
    source.execute("INSERT INTO marker VALUES (1, 0)")
    commander.execute("CALL headrace.create_view('marker_view', 'SELECT n FROM marker')")


def bump(source: psycopg.Connection) -> int:
    """Increment the marker inside the caller's transaction; return its new number."""
    row = source.execute("UPDATE marker SET n = n + 1 RETURNING n").fetchone()
    assert row is not None
    return row[0]


def wait_for(source: psycopg.Connection, number: int, seconds: float = PATIENCE_S) -> None:
    """Return once the views cover marker ``number``; fail if a view has stopped."""
    began = time.monotonic()
    while True:
        row = source.execute("SELECT n FROM marker_view").fetchone()
        if row and row[0] >= number:
            break
        assert time.monotonic() < began + seconds, (
            f"views do not cover marker {number} after {seconds} s: {row}; "
            f"{source.execute(STOPPED).fetchone()}"
        )
        _pause(began, 0.003)
    stopped = source.execute(STOPPED).fetchone()
    assert stopped is None or not stopped[0], stopped


def settle(source: psycopg.Connection, seconds: float = PATIENCE_S) -> None:
    """Return once every view covers all that is committed, also one that catches up by itself."""
    wait_for(source, bump(source), seconds)
    running = "SELECT format('%I.%I', schema_name, view_name) FROM headrace.views WHERE status = 'running'"
    for (name,) in source.execute(running).fetchall():
        source.execute(
            "CALL headrace.wait_for(%s, timeout => make_interval(secs => %s))", (name, seconds)
        )
