"""The server that a relayed session comes to, where the connection string names several."""

from __future__ import annotations

import asyncio
import socket

import pytest

from headrace.errors import TransientError
from headrace.postgres import connect
from headrace.server.route import Route, SourceServer
from tests.failover.pair import pair as pair

CLIENTS = 50


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """Count the connections that are opened."""
    found: list[str] = []
    session = connect.async_session

    async def counted(dsn: str, **more):
        found.append(dsn)
        return await session(dsn, **more)

    monkeypatch.setattr(connect, "async_session", counted)
    return found


def results(route: Route) -> list[object]:
    async def find_all() -> list[object]:
        found = (route.find() for _ in range(CLIENTS))
        return list(await asyncio.gather(*found, return_exceptions=True))

    return asyncio.run(find_all())


def test_the_primary_is_found_whatever_the_order(pair, asked):
    for ports in (pair.ports, pair.ports[::-1]):
        names = ",".join(map(str, ports))
        dsn = f"host=127.0.0.1,127.0.0.1 port={names} user=postgres dbname=postgres"
        found = results(Route(f"{dsn} target_session_attrs=read-write"))
        assert set(found) == {SourceServer("127.0.0.1", pair.primary.port, "127.0.0.1")}
    assert len(asked) == 2, "callers share an answer"


def test_a_failure_is_shared_too(asked):
    """While no server is a primary, clients do not wait one after the other."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    dsn = f"host=127.0.0.1,127.0.0.1 port={port},{port} target_session_attrs=read-write"
    found = results(Route(dsn))
    assert {type(one) for one in found} == {TransientError}
    assert len(asked) == 1
