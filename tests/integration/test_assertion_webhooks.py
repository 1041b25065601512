"""Webhooks of assertions: delivered at least once, signed, and never in the way of anything."""

from __future__ import annotations

import json
from collections.abc import Iterator

import psycopg
import pytest

from tests.integration.test_assertions import (
    TABLES as TABLES,
)
from tests.integration.test_assertions import (
    covered,
    create,
    is_now,
    recorded,
    resolve,
    violate,
    violations,
)
from tests.receivers import Receiver
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.shared_engine,
    pytest.mark.engine_with(
        HEADRACE_WEBHOOK_HOSTS="127.0.0.1:*",
        # Longer than any test waits: a receiver that hangs does so to the end.
        HEADRACE_WEBHOOK_TIMEOUT_MS="600000",
        HEADRACE_WEBHOOK_TRIES_MAX="3",
    ),
]


def webhooks(conn, name: str = "public.no_oversell"):
    """Return (secret, pending, delivered, failed, last error)."""
    return conn.execute(
        "SELECT secret, pending, delivered, failed, last_error FROM headrace.webhooks()"
        " WHERE assertion = %s",
        (name,),
    ).fetchone()


def delivered(conn, number: int, name: str = "public.no_oversell") -> None:
    wait_until(lambda: webhooks(conn, name)[2] == number, lambda: f"{webhooks(conn, name)}")


def test_both_events_are_delivered(commander, source):
    with Receiver() as receiver:
        create(commander, on_violation="both", webhook=receiver.url)
        violate(source)
        wait_until(lambda: receiver.received, "the violation is sent")
        resolve(source)
        wait_until(lambda: len(receiver.received) == 2, "its end is sent")
        delivered(source, 2)
    secret, *counts, error = webhooks(source)
    assert (counts, error) == ([0, 2, 0], None)
    [row] = violations(source)
    first, second = (request.told for request in receiver.received)
    assert [first["type"], second["type"]] == ["assertion.violated", "assertion.resolved"]
    assert first["sample"] == row["sample"] == [{"sku": "lamp", "oversold": "1"}]
    assert (first["violation"], second["violation"]) == (row["id"], row["id"])
    assert (first["xids"], second["xids"]) == (row["xids"], row["resolved_xids"])
    assert (first["rows"], second["rows"]) == (1, 0)
    assert "sample" not in second
    assert row["webhook"] == "delivered"
    for request in receiver.received:
        assert request.headers["webhook-id"] == request.told["id"]
        assert request.is_signed(secret)
    assert len({request.told["id"] for request in receiver.received}) == 2


def test_a_failed_delivery_is_repeated_with_the_same_id(commander, source, engine):
    with Receiver(lambda number: 200 if number else 500) as receiver:
        create(commander, on_violation="webhook", webhook=receiver.url)
        violate(source)
        delivered(source, 1)
    one, two = receiver.received
    assert one.body == two.body
    assert one.headers["webhook-id"] == two.headers["webhook-id"]
    assert "t0ps3cret" not in engine.log
    assert "webhook not delivered" in engine.log


def test_a_receiver_that_refuses_is_given_up(commander, source):
    with Receiver(lambda _: 403) as receiver:
        create(commander, on_violation="webhook", webhook=receiver.url)
        violate(source)
        recorded(source, 1, 0)
        resolve(source)
        wait_until(lambda: webhooks(source)[3] == 2, lambda: f"{webhooks(source)}")
        told = [request.told["type"] for request in receiver.received]
        # The end is not sent before its beginning is delivered, or given up.
        assert told == ["assertion.violated"] * 3 + ["assertion.resolved"] * 3
    place = receiver.url.split("/")[2]
    assert webhooks(source)[4] == f"{place} answered 403"
    [shown] = source.execute("SELECT webhook FROM headrace.assertions()").fetchone()
    assert shown == f"2 failed: {place} answered 403"
    assert violations(source)[0]["webhook"] == "failed"


def test_a_redirect_is_not_followed(commander, source):
    with Receiver() as other, Receiver(lambda number: 200 if number else 302) as receiver:
        receiver.location = other.url
        create(commander, on_violation="webhook", webhook=receiver.url)
        violate(source)
        delivered(source, 1)
    assert (len(receiver.received), other.received) == (2, [])


def test_a_receiver_that_hangs_is_in_nobodys_way(commander, source):
    with Receiver(lambda _: 0) as hanging, Receiver() as receiver:
        for n in range(6):
            create(commander, f"hangs{n}", on_violation="both", webhook=hanging.url)
        create(commander, on_violation="both", webhook=receiver.url)
        commander.execute("CALL headrace.create_view('plain', 'SELECT sku, units FROM stock')")
        for n in range(1, 4):
            violate(source)
            wait_until(lambda n=n: len(receiver.received) == 2 * n - 1, "it is sent")
            is_now(source, "violated", 1)
            resolve(source)
            wait_until(lambda n=n: len(receiver.received) == 2 * n, "its end is sent")
            covered(source, "plain")
        for n in range(6):
            recorded(source, 3, 3, f"public.hangs{n}")
        assert 0 < len(hanging.received) < 6, "a few at a time"
        assert sum(webhooks(source, f"public.hangs{n}")[1] for n in range(6)) == 36


def test_kill_9_while_it_is_sent(engine, commander, source):
    """Whether the receiver has handled it is not known: it gets the event again, by the same id."""
    with Receiver(lambda number: 204 if number else 0) as receiver:
        create(commander, on_violation="webhook", webhook=receiver.url)
        violate(source)
        wait_until(lambda: receiver.received, "it is being sent")
        engine.kill9()
        engine.start()
        delivered(source, 1)
        recorded(source, 1, 0)
    one, two = receiver.received
    assert one.body == two.body


def test_a_full_queue_fails_at_once(commander, source):
    with Receiver(lambda _: 503) as receiver:
        create(commander, on_violation="webhook", webhook=receiver.url)
        violate(source)
        wait_until(lambda: receiver.received, "an attempt is made")
        source.execute(
            "INSERT INTO headrace.webhook_deliveries (assertion_id, violation_id, event, due_at)"
            " SELECT v.assertion_id, v.id, 'violated', now() + interval '1 day'"
            "   FROM headrace.violations v, generate_series(1, 1000)"
        )
        resolve(source)
        recorded(source, 1, 1)
        found = source.execute(
            "SELECT status, error FROM headrace.webhook_deliveries WHERE event = 'resolved'"
        )
        assert found.fetchall() == [("failed", "too many deliveries are pending")]


@pytest.fixture
def owner(source) -> Iterator[str]:
    """A role that may create an assertion; the connection acts as it."""
    name = f"{source.info.dbname}_owner"
    source.execute(f"CREATE ROLE {name}")
    source.execute(f"GRANT CREATE ON SCHEMA public TO {name}")
    source.execute(f"GRANT SELECT ON stock, reservations TO {name}")
    yield name
    source.execute("RESET ROLE")
    if source.execute("SELECT to_regrole(%s)", (name,)).fetchone() != (None,):
        source.execute("CALL headrace.drop_assertion('no_oversell', true)")
        source.execute(f"DROP OWNED BY {name}")
        source.execute(f"DROP ROLE {name}")


def test_rows_are_sent_while_the_owner_may_read_them(commander, source, owner):
    with Receiver() as receiver:
        source.execute(f"SET ROLE {owner}")
        create(source, on_violation="both", webhook=receiver.url)
        source.execute("RESET ROLE")
        source.execute(f"REVOKE SELECT ON no_oversell FROM {owner}")
        violate(source)
        wait_until(lambda: receiver.received, "the violation is sent")
        assert "sample" not in receiver.received[0].told
        resolve(source)
        recorded(source, 1, 1)
        source.execute(f"GRANT SELECT ON no_oversell TO {owner}")
        violate(source)
        wait_until(lambda: len(receiver.received) == 3, "the next one is sent")
        assert receiver.received[2].told["sample"] == [{"sku": "lamp", "oversold": "1"}]


def test_the_request_is_sent_while_the_owner_may_read_the_rows(commander, source, owner):
    """Every role may read the notification, so it names no request."""
    name = "SELECT pg_logical_emit_message(true, 'headrace', %s)"
    with Receiver() as receiver:
        source.execute(f"SET ROLE {owner}")
        create(source, on_violation="both", webhook=receiver.url)
        source.execute("RESET ROLE")
        source.execute('LISTEN "headrace.violations"')
        for n, change in enumerate((violate, resolve, violate, resolve)):
            if n == 2:
                source.execute(f"REVOKE SELECT ON no_oversell FROM {owner}")
            with source.transaction():
                source.execute(name, (f"request {n}",))
                change(source)
            wait_until(lambda n=n: len(receiver.received) == n + 1, "it is sent")
        found = recorded(source, 2, 2)
    assert [row["requests"] for row in found] == [["request 0"], ["request 2"]]
    assert [row["resolved_requests"] for row in found] == [["request 1"], ["request 3"]]
    told = [request.told.get("requests") for request in receiver.received]
    assert told == [["request 0"], ["request 1"], None, None]
    payloads = [json.loads(n.payload) for n in source.notifies(timeout=1, stop_after=4)]
    assert [payload["event"] for payload in payloads] == ["violated", "resolved"] * 2
    assert "request" not in str(payloads)
    source.execute('UNLISTEN "headrace.violations"')


def test_the_owner_is_dropped(commander, source, owner):
    """Nothing is sent for a role that does not exist any more."""
    with Receiver() as receiver:
        source.execute(f"SET ROLE {owner}")
        create(source, on_violation="both", webhook=receiver.url)
        source.execute("RESET ROLE")
        is_now(source, "holds", 0)
        commander.execute("CALL headrace.pause_view('no_oversell')")
        violate(source)
        with psycopg.connect(source.info.dsn) as locking:
            locking.execute("LOCK TABLE headrace.webhook_deliveries IN SHARE MODE")
            commander.execute("CALL headrace.resume_view('no_oversell')")
            covered(source)
            source.execute(f"DROP OWNED BY {owner}")
            source.execute(f"DROP ROLE {owner}")
        wait_until(lambda: webhooks(source)[3], lambda: f"{webhooks(source)}")
        assert webhooks(source)[4] == "the role that owned the assertion was dropped"
    assert receiver.received == []
    shown = "SELECT state, reason FROM headrace.assertions()"
    wait_until(
        lambda: source.execute(shown).fetchone()[0] == "unknown",
        lambda: f"{source.execute(shown).fetchone()}",
    )
    assert "the role that owned it was dropped" in source.execute(shown).fetchone()[1]
    assert len(violations(source)) == 1
