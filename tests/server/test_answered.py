"""Every call is answered, even if it fails or is cancelled; no client waits for ever."""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
import threading

import psycopg
import pytest

from headrace.server.messages import ResultSet
from headrace.server.states import SessionState
from tests.security import wire as w
from tests.waiting import PATIENCE_S, wait_until

CALL = "CALL headrace.create_view('slow', 'SELECT 1')"


def session(commander, database) -> w.Wire:
    name = str(psycopg.conninfo.conninfo_to_dict(database)["dbname"])
    return w.Wire(commander.port, user="postgres", database=name)


def has_come(number: int) -> bool:
    """Return whether there is data to read."""
    return fcntl.ioctl(number, termios.FIONREAD, bytes(4)) != bytes(4)


@pytest.mark.parametrize(
    ("sent", "kinds"),
    [(w.query(CALL), "EZ"), (w.run(CALL) + w.SYNC, "12nEZ")],
    ids=["simple", "extended"],
)
def test_a_call_that_is_cancelled_before_it_begins_is_answered(commander, database, sent, kinds):
    """The answer that lets the call begin and the cancel request are read in one round of the loop.

    The test blocks the loop for a moment to achieve that.
    """
    port = commander.listener.port
    with (
        session(commander, database) as one,
        w.Wire(commander.port) as canceller,
    ):
        one.seen.clear()
        wait_until(lambda: len(port.connections) == 2, "both are let in")
        ((key, client),) = port.keys.items()
        (other,) = port.connections - {client}
        source = client._upstream.transport.get_extra_info("socket").fileno()
        requests = other._transport.get_extra_info("socket").fileno()

        begun = threading.Event()

        async def meet() -> None:
            """Block the loop from the query for the caller until a cancel request arrives."""
            begun.set()
            while client.session.state is not SessionState.CONTEXT:
                await asyncio.sleep(0)
            await asyncio.sleep(0)  # uvloop sends at the end of a round
            wait_until(
                lambda: has_come(source) or client.session.state is not SessionState.CONTEXT,
                "who calls is answered",
            )
            canceller.send(struct.pack("!ii", 8 + len(key), 80877102) + key)
            wait_until(lambda: has_come(requests), "the request comes")

        met = asyncio.run_coroutine_threadsafe(meet(), commander._loop)
        assert begun.wait(PATIENCE_S), "else it may come too late"
        one.send(sent)
        assert w.kinds(one.until("Z")).replace("N", "") == kinds
        met.result()
        assert [w.fields(body)["C"] for kind, body in one.seen if kind == "E"] == ["57014"]
        one.send(w.query("SELECT 5"))
        assert w.kinds(one.until("Z")) == "TDCZ"


def test_an_answer_that_cannot_be_said_ends_the_session(commander, database):
    """An answer that cannot be encoded, as after a bug, ends the session."""

    async def runner(*_) -> ResultSet:
        return ResultSet(("plan",), [("two values", "for one column")])

    commander.listener.port.runner = runner
    with session(commander, database) as one:
        one.send(w.query("CALL headrace.check_view('SELECT 1')"))
        assert one.read() is None
    wait_until(lambda: not commander.listener.port.sessions, "nothing is left of it")
