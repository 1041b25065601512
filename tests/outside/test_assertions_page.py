"""The page about assertions: its receiver receives, and its messages look like real ones."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.outside import pages
from tests.receivers import Receiver
from tests.waiting import PATIENCE_S, wait_until

pytestmark = [
    pytest.mark.shared_engine,
    pytest.mark.engine_with(HEADRACE_WEBHOOK_HOSTS="127.0.0.1:*"),
]


@pytest.fixture
def conn(engine) -> Iterator[psycopg.Connection]:
    """Open a connection to a database with the tables of the page."""
    with psycopg.connect(engine.source, autocommit=True) as made:
        first = pages.statements(pages.fences("assertions", "sql")[0])
        for statement in first[:3]:
            made.execute(statement.encode())
        yield made


def create(conn: psycopg.Connection, url: str) -> str:
    """Create the assertion of the page with a webhook; return the secret."""
    [query] = re.findall(r"\$\$(.*)\$\$", pages.fences("assertions", "sql")[0], re.DOTALL)
    options = json.dumps({"on_violation": "both", "webhook": url})
    conn.execute("CALL headrace.create_assertion('no_oversell', %s, %s)", (query, options))
    row = conn.execute("SELECT secret FROM headrace.webhooks()").fetchone()
    assert row is not None
    return str(row[0])


def violate(conn: psycopg.Connection) -> None:
    conn.execute("INSERT INTO reservations VALUES (1, 'lamp', 11)")


def test_the_receiver(conn):
    [program] = pages.fences("assertions", "python")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    secret = create(conn, f"http://127.0.0.1:{port}/")
    env = os.environ | {"WEBHOOK_SECRET": secret, "PORT": str(port)}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as receiver:
        try:
            violate(conn)
            assert receiver.stdout is not None
            told = receiver.stdout.readline().strip()
            delivered = "SELECT delivered FROM headrace.webhooks()"
            wait_until(lambda: conn.execute(delivered).fetchone() == (1,), "it is delivered")
        finally:
            receiver.terminate()
    assert told == ("assertion.violated public.no_oversell [{'sku': 'lamp', 'oversold': '1'}]")


def test_a_forged_request_is_refused(conn):
    """The receiver of the page checks the signature."""
    [program] = pages.fences("assertions", "python")
    assert program.count("send_error(401)") == 2
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    create(conn, f"http://127.0.0.1:{port}/")
    env = os.environ | {"WEBHOOK_SECRET": "whsec_" + "A" * 44, "PORT": str(port)}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as receiver:
        try:
            violate(conn)
            shown = "SELECT last_error FROM headrace.webhooks()"
            wait_until(
                lambda: "answered 401" in (conn.execute(shown).fetchone()[0] or ""), "it is refused"
            )
        finally:
            receiver.terminate()


def shape(told: dict[str, Any]) -> dict[str, str]:
    """Return the fields of a message with their types, in order."""
    return {name: type(value).__name__ for name, value in told.items()}


def test_contents(conn):
    notification, body = map(json.loads, pages.fences("assertions", "json"))
    conn.execute('LISTEN "headrace.violations"')
    with Receiver() as receiver:
        create(conn, receiver.url)
        violate(conn)
        wait_until(lambda: receiver.received, "it is sent")
    [heard] = [json.loads(n.payload) for n in conn.notifies(timeout=PATIENCE_S, stop_after=1)]
    sent = receiver.received[0].told
    assert (shape(heard), list(heard)) == (shape(notification), list(notification))
    assert (shape(sent), list(sent)) == (shape(body), list(body))
    for name in ("event", "assertion", "rows", "transactions"):
        assert heard[name] == notification[name]
    for name in ("type", "assertion", "rows", "transactions", "sample"):
        assert sent[name] == body[name]
