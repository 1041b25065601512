"""Connections: one that cannot be made ready is closed, not left to the server."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from headrace.postgres import connect
from tests.waiting import wait_until


@pytest.fixture
def first(monkeypatch):
    """Let every connection begin with a statement, on servers of any version."""

    def begins(statement: str) -> None:
        monkeypatch.setattr(connect, "_TRANSACTION_TIMEOUT_SINCE", 0)
        monkeypatch.setattr(connect, "_NO_TIMEOUT", statement)

    return begins


@pytest.fixture
def sessions(database):
    """Return a function that lists names and states of the other sessions."""
    with psycopg.connect(database, autocommit=True) as conn:
        yield lambda: conn.execute(
            "SELECT state FROM pg_stat_activity WHERE application_name = 'begun'"
        ).fetchall()


@pytest.mark.parametrize("autocommit", [True, False])
def test_what_fails_at_first_is_closed(database, first, sessions, autocommit):
    first("SELECT 1 / 0")
    # The caught error keeps the connection alive, as a log or a retry would.
    with pytest.raises(psycopg.errors.DivisionByZero) as caught:
        connect.session(database, name="begun", autocommit=autocommit)
    wait_until(lambda: sessions() == [], "the connection is closed")
    assert caught.value.sqlstate == "22012"


def test_what_fails_at_first_is_closed_on_a_loop(database, first, sessions):
    first("SELECT 1 / 0")
    with pytest.raises(psycopg.errors.DivisionByZero) as caught:
        asyncio.run(connect.async_session(database, name="begun"))
    wait_until(lambda: sessions() == [], "the connection is closed")
    assert caught.value.sqlstate == "22012"


def test_what_is_cancelled_at_first_is_closed(database, first, sessions):
    first("SELECT pg_sleep(3600)")

    async def run() -> None:
        begun = asyncio.create_task(connect.async_session(database, name="begun"))
        active = [("active",)]
        await asyncio.to_thread(wait_until, lambda: sessions() == active, "the statement runs")
        begun.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await begun
        await asyncio.to_thread(wait_until, lambda: sessions() == [], "the connection is closed")
        assert caught.value is not None

    asyncio.run(run())
