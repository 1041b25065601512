"""After every random step, the relay's model of the source's state equals the actual state.

A step sends a few random messages at once: both protocols, COPY in and out, errors, messages beyond
the limits, calls of headrace, cancel requests. When all is quiet (Postgres has read every byte and
waits for the next), Postgres reports the state of the session, and the relay's model must agree.
Postgres may end a session; the relay may not.

``HEADRACE_RELAY_SEED`` repeats the messages of a run as far as the answers are the same; the time
of a cancel request cannot be repeated. The seed is printed.
"""

from __future__ import annotations

import asyncio
import fcntl
import random
import socket
import struct
import termios
from typing import Any

import psycopg
import pytest

from headrace.server.pipeline import OwedAnswers
from headrace.server.states import SessionState
from tests import seeds
from tests.security import wire as w
from tests.security.conftest import Nobody
from tests.security.sockets import queues
from tests.waiting import wait_until

PREPARATION = """
CREATE TABLE play.t (a int);
CREATE FUNCTION play.no() RETURNS trigger LANGUAGE plpgsql AS
  $$BEGIN RAISE EXCEPTION 'no'; END$$;
CREATE TABLE play.refuses (a int);
CREATE TRIGGER x BEFORE INSERT ON play.refuses EXECUTE FUNCTION play.no();
CREATE TABLE play.late (a int);
CREATE CONSTRAINT TRIGGER x AFTER INSERT ON play.late DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION play.no();
CREATE FUNCTION play.shout(n int) RETURNS int LANGUAGE plpgsql AS
  $$BEGIN RAISE EXCEPTION '%', repeat('x', n); END$$;
"""
CALL = "CALL headrace.create_view('v', 'SELECT 1')"
TEXTS = [
    "SELECT 1",
    "SELECT generate_series(1, 50)",
    "",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "SELECT 1/0",
    "nonsense",
    "INSERT INTO play.t VALUES (1)",
    "INSERT INTO play.late VALUES (1)",
    "COPY play.t TO STDOUT",
    "COPY play.t FROM STDIN",
    "COPY play.t FROM STDIN (HEADER match)",
    "COPY play.refuses FROM STDIN",
    "COPY play.late FROM STDOUT",
    "COPY play.nothing FROM STDIN",
    "SELECT play.shout(10)",
    "SELECT play.shout(200000)",
    "SELECT 'copy from stdin'",
    "DEALLOCATE ALL",
    "SET standard_conforming_strings = off",
    "RESET ALL",
    CALL,
]
SEVERAL = [
    "SELECT 1; SELECT 2",
    "SELECT 1; SELECT 1/0",
    "COPY play.t FROM STDIN; COPY play.t FROM STDIN",
    "SELECT 1; COPY play.t FROM STDIN; SELECT 2",
    "BEGIN; SELECT 1",
]
SIOCOUTQNSD = 0x894B
"""Bytes that the kernel has not sent (termios.TIOCOUTQ: that are not acknowledged)."""
COPIED = [b"1\n", b"2\n3\n", b"x\n", b"a\n", b"1\n" * 100_000]
LONG = " " * 70_000


class Script:
    """Random messages; the state of the session makes the more telling ones more likely."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)

    def text(self) -> str:
        text = self.random.choice(TEXTS)
        return text + LONG if self.random.random() < 0.05 else text

    def name(self) -> str:
        return self.random.choice(["", "", "a", "b"])

    def burst(self, pipeline: OwedAnswers) -> list[bytes]:
        """Return the messages to send at once.

        In a failed transaction, only a portal that was just bound is executed. An Execute of an
        older portal crashes Postgres 16. (The commander executes only portals that it has just
        bound, outside any transaction.)

        So an Execute of an old portal is sent alone, when all before it is answered and no
        transaction has failed. Then nothing can fail between the choice and the Execute.
        """
        count = self.random.choice([1, 1, 1, 2, 3])
        executes = count == 1 and pipeline.status != b"E"
        return [
            self.message(copying=pipeline.copying, ignoring=pipeline.ignoring, executes=executes)
            for _ in range(count)
        ]

    def message(self, *, copying: bool, ignoring: bool, executes: bool) -> bytes:
        """Return one message, or a few that belong together."""
        pick = self.random.random()
        if copying and pick < 0.9:
            ending = [w.COPY_DONE, w.COPY_DONE + w.SYNC, w.message("f", b"no\0")]
            data = w.copy_data(self.random.choice(COPIED))
            return self.random.choice([data, data, *ending, w.SYNC, w.FLUSH])
        if ignoring and pick < 0.6:
            return w.SYNC
        several = self.random.choice(SEVERAL)
        return self.random.choice(
            [
                w.query(self.text()),
                w.query(self.text()),
                w.query(several),
                w.parse(self.text(), self.name()),
                w.bind(portal=self.name(), name=self.name()),
                w.describe(self.random.choice("PS")),
                w.execute(self.name()) if executes else w.SYNC,
                w.run(self.text()),
                w.run(self.text()) + w.SYNC,
                w.run(self.text()) + w.run(self.text()) + w.SYNC,
                w.message("C", b"S" + self.name().encode() + b"\0"),
                w.SYNC,
                w.FLUSH,
                w.COPY_DONE,
                w.copy_data(b"1\n"),
            ]
        )


class Calls(Script):
    """Mostly calls of headrace."""

    def message(self, *, copying: bool, ignoring: bool, executes: bool) -> bytes:
        """Return one message, or a few that belong together."""
        call = w.run(CALL)
        return self.random.choice([w.query(CALL), call, call + w.SYNC, call + call, w.SYNC])


class Observed:
    """A session through the port, and its state according to Postgres."""

    def __init__(self, nobody: Nobody, monitor: psycopg.Connection) -> None:
        self._nobody = nobody
        self._monitor = monitor
        self.wire = nobody.wire()
        self.key = next(body for kind, body in self.wire.seen if kind == "K")
        self._pid = struct.unpack("!i", self.key[:4])[0]
        self.client = nobody.commander.listener.port.keys[self.key]
        inner = self.client._upstream.transport.get_extra_info("socket")
        self._fd = inner.fileno()
        self._ends = inner.getpeername(), inner.getsockname()

    def cancel(self) -> None:
        """Send a cancel request."""
        with socket.create_connection(("127.0.0.1", self._nobody.commander.port)) as s:
            s.sendall(struct.pack("!ii", 8 + len(self.key), 80877102) + self.key)
            while s.recv(1):
                pass

    def settle(self, *, strict: bool = False) -> dict[str, Any] | None:
        """Wait until all is quiet; return Postgres's view of the session, or None if it ended.

        ``strict``: also wait for acknowledgements, which takes 40 ms. Without it, bytes in transit
        inside the kernel may be overlooked.
        """
        self._unsent = termios.TIOCOUTQ if strict else SIOCOUTQNSD
        return wait_until(self._settled, self._told)[0]

    def _told(self) -> str:
        """Describe a session that does not become quiet."""
        relay, call = self.client.session, self.client.call
        owed = bytes(relay.pipeline._owed).decode()
        known = "SELECT state, wait_event, query FROM pg_stat_activity WHERE pid = %s"
        return (
            f"nothing moves ({relay.state.name}, {owed=}, gated={relay.pipeline.gated},"
            f" buffered={relay.buffered_bytes}, {call=}, held by {self.client._holds},"
            f" source: {self._monitor.execute(known, (self._pid,)).fetchone()})"
        )

    def _settled(self) -> tuple[dict[str, Any] | None] | None:
        first = self._look()
        if first is None:
            return None
        # Answers that arrived meanwhile may have let the relay send more: look again.
        return first if first == (None,) else self._look()

    def _look(self) -> tuple[dict[str, Any] | None] | None:
        """Check every place on the way there and back; return None if any byte is in transit."""
        self._read_all()
        if self.client._closed:
            # Bytes written before are still in transit.
            for _ in self.wire.rest():
                pass
            return (None,)
        if _ioctl(self.wire.socket.fileno(), self._unsent) or self._relay_is_busy():
            return None
        if not self._read_by_postgres():
            return None
        row = self._monitor.execute(
            "SELECT state, wait_event, EXISTS (SELECT FROM pg_stat_progress_copy p"
            " WHERE p.pid = a.pid AND p.command = 'COPY FROM') FROM pg_stat_activity a"
            " WHERE pid = %s",
            (self._pid,),
        ).fetchone()
        if row is None or row[1] != "ClientRead" or not self._read_by_postgres():
            return None
        if self._relay_is_busy():
            return None
        self._read_all()
        return ({"state": row[0], "copying": row[2]},)

    def _read_all(self) -> None:
        self.wire.socket.setblocking(False)
        try:
            while self.wire.read() is not None:
                pass
        except BlockingIOError:
            pass
        finally:
            self.wire.socket.setblocking(True)

    def _read_by_postgres(self) -> bool:
        """Return whether Postgres has read all bytes sent to it, and its own bytes have arrived."""
        strict = self._unsent == termios.TIOCOUTQ
        found = queues(*self._ends)
        return found is not None and not found[0] and not (strict and found[1])

    def _relay_is_busy(self) -> bool:
        """Return whether the relay has bytes to read or to write on either side."""
        client = self.client

        async def look() -> bool:
            await asyncio.sleep(0)
            inner, outer = client._upstream.transport, client._transport
            if inner is None or outer is None or client._closed:
                return False
            outside = outer.get_extra_info("socket").fileno()
            return bool(
                client.session.state not in (SessionState.RELAY, SessionState.SKIP)
                or inner.get_write_buffer_size() + outer.get_write_buffer_size()
                or any(
                    _ioctl(fd, request)
                    for fd in (outside, self._fd)
                    for request in (termios.FIONREAD, self._unsent)
                )
            )

        loop = self._nobody.commander._loop
        return asyncio.run_coroutine_threadsafe(look(), loop).result()


def _ioctl(fd: int, request: int) -> int:
    return struct.unpack("i", fcntl.ioctl(fd, request, b"\0" * 4))[0]


STATUS = {"idle": b"I", "idle in transaction": b"T", "idle in transaction (aborted)": b"E"}


def check(session: Observed, truth: dict[str, Any] | None) -> None:
    """Compare the relay's model with the truth, unless the session has ended."""
    if truth is None:
        return
    relay = session.client.session
    pipeline = relay.pipeline
    kinds = w.kinds(session.wire.seen)
    owed = w.ready_owed(pipeline)
    assert relay.state in (SessionState.RELAY, SessionState.SKIP)
    assert pipeline.copying == truth["copying"]
    assert owed == 0 or (truth["copying"] and owed == 1)
    if relay.state is SessionState.RELAY:
        # After an error nothing is answered until a Sync is sent.
        assert pipeline.ignoring == (kinds.rfind("E") > kinds.rfind("Z"))
    if not truth["copying"]:
        assert not pipeline.gated
        assert pipeline.settled
        if truth["state"] in STATUS:
            assert pipeline.status == STATUS[truth["state"]]
        assert relay.buffered_bytes == 0


def walk(nobody: Nobody, source: str, steps: int, script: Script, cancels: float = 0.03) -> None:
    """Take ``steps`` random steps; follow the fraction ``cancels`` by a cancel request."""
    seed = script.seed
    ended = 0
    with nobody.wire() as first:
        first.send(w.query(PREPARATION))
        assert "E" not in w.kinds(first.until("Z"))
    with psycopg.connect(source, autocommit=True) as monitor:
        session = Observed(nobody, monitor)
        trail: list[bytes] = []
        for _ in range(steps):
            burst = script.burst(session.client.session.pipeline)
            trail = [*trail, b" ".join(b[:120].strip() for b in burst)][-12:]
            try:
                # With a Flush, so that Postgres does not hold back its answers.
                session.wire.send(*burst, w.FLUSH)
                if script.random.random() < cancels:
                    session.cancel()
                truth = session.settle()
                try:
                    check(session, truth)
                except AssertionError:
                    truth = session.settle(strict=True)
                    check(session, truth)
            except ConnectionError:
                truth = None
            except AssertionError as error:
                tail = w.kinds(session.wire.seen)[-40:]
                raise AssertionError(f"{seed=} {trail} {tail}: {error}") from error
            except psycopg.OperationalError as error:
                raise AssertionError(f"{seed=} Postgres crashed: {trail}") from error
            if truth is None:
                ended += 1
                errors = [w.fields(b) for k, b in session.wire.seen if k == "E"]
                # Only Postgres's own errors have a file and a line.
                assert errors, f"{seed=} {trail}"
                assert "F" in errors[-1], f"{seed=} {trail} {errors[-1]}"
                session.wire.close()
                session = Observed(nobody, monitor)
            elif script.random.random() < 0.01 or len(session.wire.seen) > 100_000:
                session.wire.close()
                session = Observed(nobody, monitor)
        session.wire.close()
    with nobody.wire() as last:  # by chance there was no call before
        last.send(w.query(CALL))
        last.until("Z")
    assert nobody.callers() == {nobody.name}
    assert ended < steps / 5


@pytest.mark.parametrize("seed", range(20))
def test_the_walk_executes_nothing_old_where_a_transaction_has_failed(seed):
    """An Execute of an old portal crashes Postgres 16; see ``Script.burst``."""
    script = Script(seed)
    pipeline = OwedAnswers()
    alone = 0
    for _ in range(2_000):
        pipeline.status = script.random.choice([b"I", b"T", b"E"])
        pipeline.copying = script.random.random() < 0.2
        pipeline.ignoring = script.random.random() < 0.2
        burst = script.burst(pipeline)
        old = [message for message in burst if message[:1] == b"E"]
        assert not old or (len(burst) == 1 and pipeline.status != b"E")
        alone += len(old)
    assert alone > 0


@pytest.mark.parametrize(
    "steps", [500, pytest.param(20_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_random_steps(nobody, database, steps):
    walk(nobody, database, steps, Script(seeds.chosen("HEADRACE_RELAY_SEED")))


@pytest.mark.parametrize("steps", [100, pytest.param(3_000, marks=pytest.mark.slow)])
def test_calls_that_are_cancelled_at_any_moment(nobody, database, steps):
    walk(nobody, database, steps, Calls(seeds.chosen("HEADRACE_RELAY_SEED")), cancels=0.5)
