"""``CALL headrace.fail_batch(n)`` through the commander and on direct connections (T-30)."""

from __future__ import annotations

import asyncio
import time

import psycopg
import pytest

from headrace.process import rpc

pytestmark = pytest.mark.shared_engine


@pytest.mark.parametrize("direct", [False, True])
def test_what_cannot_be_failed(engine, source, direct):
    with psycopg.connect(engine.source if direct else engine.dsn, autocommit=True) as c:
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState) as raised:
            c.execute("CALL headrace.fail_batch(1234567)")
        assert raised.value.diag.message_primary == "batch 1234567 is not in flight"
        with pytest.raises(psycopg.errors.NullValueNotAllowed):
            c.execute("CALL headrace.fail_batch(NULL)")
        with pytest.raises(psycopg.errors.InvalidTextRepresentation):
            c.execute("CALL headrace.fail_batch('x')")


@pytest.mark.parametrize("direct", [False, True])
def test_only_the_engines_role_may(engine, source, direct):
    name = "h_test_nobody"
    source.execute(f"DROP ROLE IF EXISTS {name}")
    source.execute(f"CREATE ROLE {name}")
    try:
        dsn = engine.source if direct else engine.dsn
        with psycopg.connect(dsn, autocommit=True) as c:
            c.execute(f"SET ROLE {name}")
            with pytest.raises(psycopg.errors.InsufficientPrivilege) as raised:
                c.execute("CALL headrace.fail_batch(%s)", (1,))
            assert "Only members of role" in raised.value.diag.message_hint
    finally:
        source.execute(f"DROP ROLE {name}")


async def status(path) -> dict:
    peer = await rpc.connect(path)
    answer = await peer.call("status")
    await peer.close()
    return answer


def in_commit(path) -> int | None:
    flying = asyncio.run(status(path))["in_flight"]
    return next((f["txid"] for f in flying if f["state"] == "committing"), None)


def test_a_batch_that_is_stuck_is_replayed(database, start_engine):
    engine = start_engine(database, HEADRACE_LOCK_TIMEOUT_MS="90000")
    socket = engine.data_dir / "run" / "worker.sock"
    with (
        psycopg.connect(engine.dsn, autocommit=True) as commander,
        psycopg.connect(database, autocommit=True) as source,
    ):
        source.execute("CREATE TABLE items (id int PRIMARY KEY)")
        commander.execute("CALL headrace.create_view('v', 'SELECT id FROM items')")
        worker = engine.child("headrace.runtime.worker")
        with psycopg.connect(database) as blocker:
            blocker.execute("LOCK TABLE v IN SHARE MODE")
            source.execute("INSERT INTO items VALUES (2)")
            deadline = time.monotonic() + 90
            while (txid := in_commit(socket)) is None:
                assert time.monotonic() < deadline
            with pytest.raises(psycopg.Error, match=f"In flight: {txid}"):
                source.execute("CALL headrace.fail_batch(0)")
            commander.execute("CALL headrace.fail_batch(%s)", (txid,))
            while not asyncio.run(status(socket))["reconnects"]:
                assert time.monotonic() < deadline, "it is given up"
        commander.execute("CALL headrace.wait_for('v', timeout => '90 s')")
        assert source.execute("TABLE v").fetchall() == [(2,)]
        assert source.execute(
            "SELECT attempt > 0 FROM headrace.progress WHERE txid >= %s", (txid,)
        ).fetchall() == [(True,)]
        assert engine.child("headrace.runtime.worker") == worker, "the process lives"
