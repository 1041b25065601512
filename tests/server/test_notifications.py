"""Notifications, which any role may send, do not delay the commands of other roles."""

from __future__ import annotations

import asyncio

import psycopg

from headrace.server.direct import Direct


def test_notifications_of_any_role_delay_no_command(request, monkeypatch):
    """A flood of notifications may keep the listening connection busy for any time."""

    async def busy(self, conn):
        await asyncio.Event().wait()

    monkeypatch.setattr(Direct, "_listen", busy)
    commander = request.getfixturevalue("commander")
    with psycopg.connect(commander.source, autocommit=True) as direct:
        direct.execute(
            "SELECT pg_notify('headrace_commands', i::text) FROM generate_series(1, 9999) i"
        )
        direct.execute("CALL headrace.drop_view('v')")
    assert [method for method, _ in commander.builder.calls] == ["drop_view"]
