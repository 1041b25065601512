"""The observer's session: open between writes, and replaced once the server has ended it."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from headrace.server.observer import WriteSession


def test_a_session_that_was_lost_is_replaced(database):
    pids: list[int] = []

    async def write(conn) -> None:
        row = await (await conn.execute("SELECT pg_backend_pid()")).fetchone()
        pids.append(row[0])

    async def fail(conn) -> None:
        await conn.execute("SELECT 1 / 0")

    async def main() -> None:
        session = WriteSession(database)
        for _ in range(2):
            await session.run(write)
        with psycopg.connect(database, autocommit=True) as admin:
            admin.execute("SELECT pg_terminate_backend(%s, 10000)", (pids[-1],))
        await session.run(write)
        with pytest.raises(psycopg.errors.DivisionByZero):
            await session.run(fail)
        await session.run(write)
        await session.close()
        await session.run(write)
        await session.close()

    asyncio.run(main())
    first, second, third, fourth, fifth = pids
    assert first == second != third == fourth != fifth
