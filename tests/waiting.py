"""Waiting for conditions and for the views, never for a fixed time.

For views, by a marker that travels with the data.  Every test transaction also bumps a row of table ``marker``, which has a view of its own.  All
views commit a txid together, so once ``marker_view`` shows a number, every view covers it.
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
"""How long a test waits for what must happen: a busy machine may be ten times slower."""

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
    """The first true answer of ``done``; fails with ``what`` after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not (answer := done()):
        if time.monotonic() > deadline:
            said = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {seconds} s: {said}")
        time.sleep(every_s)
    return answer


async def eventually(done: Callable[[], Any], what: str) -> Any:
    """As ``wait_until``, while the loop goes on; ``done`` may be a coroutine function."""
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
    """Let a random time pass: what comes next, mostly a kill, meets the others anywhere."""
    time.sleep(rng.uniform(least_s, most_s))


def time_passes(seconds: float) -> None:
    """Let so much time pass, where that is what the test is about: an age, a stall."""
    time.sleep(seconds)


def again_and_again(seconds: float) -> Iterator[None]:
    """For so long: to look at what must be so at every moment."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield
        time.sleep(0.02)


def create_marker(source: psycopg.Connection, commander: psycopg.Connection) -> None:
    """Make the table and its view."""
    source.execute("CREATE TABLE marker (id int PRIMARY KEY, n bigint)")
    source.execute("INSERT INTO marker VALUES (1, 0)")
    commander.execute("CALL headrace.create_view('marker_view', 'SELECT n FROM marker')")


def bump(source: psycopg.Connection) -> int:
    """Move the marker inside the caller's transaction; returns its new number."""
    row = source.execute("UPDATE marker SET n = n + 1 RETURNING n").fetchone()
    assert row is not None
    return row[0]


def wait_for(source: psycopg.Connection, number: int, seconds: float = PATIENCE_S) -> None:
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
