"""Coordinator's link to a worker: messages arrive in order, or the link is dead.

A link has two exchanges of Arrow Flight: one for all messages, and one for the batches of units
that lag, which so delay no other batch.  Files go over separate calls.  Once an exchange has
failed, or the worker has sent no heartbeat for a while, the link is dead for good: every wait for
it ends, and only a new link can continue.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import structlog
from pyarrow import flight

from headrace import clock, errors
from headrace.errors import OutOfReach
from headrace.network import file_transfer
from headrace.network.ends import End
from headrace.network.exchange import Exchange, Results
from headrace.network.messages import (
    LAGGING,
    PROTOCOL,
    Alive,
    Attach,
    FromWorker,
    Greeted,
    Greeting,
    Reply,
    ToWorker,
    UnitDiffs,
    Work,
)
from headrace.network.probe import Probed, Prober

_log = structlog.get_logger(__name__)

SILENCE_S: Final = 15.0
"""Seconds without a heartbeat after which a worker is lost."""
AWAITED_S: Final = 5.0
"""The same while a caller waits for it, at first; see ``RemoteWorker.patience_s``."""
LEADING_S: Final = 0.5
"""The same while a batch of leading units waits for a worker on this machine, at first.

All views wait for such a batch, also those that have nothing on the worker.
"""
ALIVE_S: Final = 1.0
"""Seconds between two heartbeats of a worker that has nothing to do."""
BUSY_ALIVE_S: Final = 0.1
"""The same of a worker that handles a message."""
_JOIN_S: Final = 10.0
"""Seconds in which a worker should answer a greeting."""
_SLICE_S: Final = 0.25
_INTERRUPT_S: Final = 2.0
INTERRUPT: Final = "interrupt"
"""Action type; its body is a JSON array of units."""


class FlightLink:
    """Link to one worker; every method is for any thread.

    Of the batches of each exchange, one thread may wait for results.
    """

    def __init__(
        self,
        name: str,
        end: End,
        wake: Callable[[], None],
        said: int | None = None,
        awaited_s: float = AWAITED_S,
        leading_s: float = AWAITED_S,
    ) -> None:
        """Connect; ``wake`` is called, on another thread, when the link dies.

        ``said``: the bandwidth that ``add_link`` gave, in bytes per second.
        ``awaited_s``: seconds without a heartbeat after which it is lost while a caller waits;
        ``leading_s``: while a batch of leading units waits.

        Raises:
            OutOfReach: the worker does not listen.
        """
        self.name: Final = name
        self.end: Final = end
        self.silent = False
        """Whether it died because heartbeats were missing."""
        self.begun: Final = clock.monotonic()
        self._wake = wake
        self._awaited_s: Final = awaited_s
        self._leading_s: Final = leading_s
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()
        self._heard = clock.monotonic()
        """Time of the last message; written by the reader."""
        # Guarded by the condition's lock.
        self._reason: str | None = None
        self._joined: Greeted | None = None
        self._answers: dict[int, Reply] = {}
        self._waiting: list[tuple[float, bool]] = []
        """Since when callers wait for the worker, and whether for a batch of leading units."""
        self._at: list[Work] = []
        self._lagging: Exchange | None = None
        """The exchange of units that lag, once the worker has joined."""
        try:
            self._client = end.client()
            self._exchange: Final = self._open(PROTOCOL, said)
        except (pa.ArrowException, OSError) as error:
            raise self._lost(str(error)) from error
        self.sender: Final = self._exchange.sender
        self._prober: Final = Prober(name, self._client, lambda: self._moved, self._probed)
        self._exchange.start(f"headrace-link-{name}")
        threading.Thread(target=self._watch, name=f"headrace-link-{name}", daemon=True).start()

    def _open(self, command: bytes, said: int | None) -> Exchange:
        far = self.end.far
        return Exchange(self._client, command, said, self._hear, self._die, far=far)

    # --- for the engine's thread

    @property
    def up(self) -> bool:
        """Whether it is alive."""
        return self._reason is None

    @property
    def at(self) -> list[Work]:
        """Current work of its units, as last reported; from any thread."""
        return self._at

    def send(
        self, word: ToWorker, batch: pa.RecordBatch | None = None, *, lagging: bool = False
    ) -> None:
        """Send a message; from any thread.

        ``lagging``: over the exchange of units that lag.

        Raises:
            OutOfReach: the link is dead.
        """
        with self._awaiting(leading=not lagging):
            # Nothing is sent over a link known to be dead; the sender may not know it yet.
            if not self.up or not self._over(lagging=lagging).sender.send(word, batch):
                raise self._gone()

    def override(self, said: int | None) -> None:
        """Take the bandwidth that ``add_link`` gave; None: the measured one counts."""
        for exchange in self._exchanges:
            exchange.sender.override(said)

    def join(self, word: Greeting) -> Greeted:
        """Send the greeting; return the worker's answer.

        Raises:
            OutOfReach: the worker does not answer.
        """
        session = uuid.uuid4().hex
        self.send(msgspec.structs.replace(word, session=session))
        with self._changed:
            self._changed.wait_for(lambda: self._joined or self._reason, _JOIN_S)
            self._heard = clock.monotonic()
            joined = self._joined
            if joined is None:
                raise self._lost(self._reason or "it does not answer")
        try:
            lagging = self._open(LAGGING, self.sender.said)
        except (pa.ArrowException, OSError) as error:
            raise self._lost(str(error)) from error
        with self._changed:
            self._lagging = lagging
            if self._reason is not None:
                lagging.cancel()
        lagging.start(f"headrace-lagging-{self.name}")
        self.send(Attach(session), lagging=True)
        return joined

    def results(self, txid: int, attempt: int, *, lagging: bool = False) -> Results:
        """Wait for the next result of a batch and return it.

        ``lagging``: the batch was sent over the exchange of units that lag.

        Raises:
            OutOfReach: the link is dead.
        """
        exchange = self._over(lagging=lagging)
        with self._awaiting(leading=not lagging), self._changed:
            while True:
                found = exchange.result(txid, attempt)
                if found is not None:
                    return found
                if self._reason is not None:
                    raise self._lost(self._reason)
                self._changed.wait()

    # --- for any thread

    def number(self) -> int:
        """Return a number for a new call."""
        return next(self._numbers)

    def answer(self, call: int) -> int:
        """Return the number in the answer to a call; see ``reply``."""
        return self.reply(call).value

    def reply(self, call: int) -> Reply:
        """Wait for the answer to a call that was sent, and return it.

        Raises:
            HeadraceError: the worker answered with this error.
            OutOfReach: the link is dead.
        """
        with self._awaiting(), self._changed:
            self._changed.wait_for(lambda: call in self._answers or self._reason)
            found = self._answers.pop(call, None)
            if found is None:
                raise self._gone()
        if found.error is not None:
            raise errors.from_wire(found.error)
        return found

    def send_file(self, path: Path, name: str) -> None:
        """Send a file, which the worker stores under ``name``.

        Raises:
            OutOfReach: the worker cannot be reached.
            OSError: the file cannot be read.
        """
        try:
            with self._prober.transfer():
                file_transfer.send(self._client, path, name)
        except pa.ArrowException as error:
            raise self._lost(str(error)) from error

    def fetch_file(self, name: str, path: Path) -> None:
        """Fetch the worker's file ``name``, which the worker then deletes.

        Raises:
            OutOfReach: the worker cannot be reached.
            OSError: the file cannot be written.
        """
        try:
            with self._prober.transfer():
                file_transfer.fetch(self._client, name, path)
        except pa.ArrowException as error:
            raise self._lost(str(error)) from error

    def interrupt(self, units: Sequence[int] = ()) -> None:
        """Cancel the work of units (of all, if none is given) as soon as possible.

        It waits neither for rows that are being sent nor for an answer.  It uses its own
        connection, because megabytes may be in the buffers of the one that carries rows.
        """
        threading.Thread(target=self._interrupt, args=(list(units),), daemon=True).start()

    def _interrupt(self, units: list[int]) -> None:
        options = flight.FlightCallOptions(timeout=_INTERRUPT_S)
        with contextlib.suppress(pa.ArrowException, OSError), self.end.client() as client:
            action = flight.Action(INTERRUPT, msgspec.json.encode(units))
            list(client.do_action(action, options))

    def close(self, reason: str = "it was closed") -> None:
        """End the link; waiting callers get ``OutOfReach``."""
        self._die(reason)

    # --- inside: receive

    def _over(self, *, lagging: bool) -> Exchange:
        if not lagging:
            return self._exchange
        assert self._lagging is not None, "the worker has joined"
        return self._lagging

    @property
    def _exchanges(self) -> list[Exchange]:
        lagging = self._lagging
        return [self._exchange] if lagging is None else [self._exchange, lagging]

    @property
    def _moved(self) -> int:
        """Bytes of messages that were sent and received so far."""
        return sum(exchange.sender.moved for exchange in self._exchanges)

    def _probed(self, found: Probed) -> None:
        for exchange in self._exchanges:
            exchange.sender.probed(found)

    def _hear(self, word: FromWorker) -> None:
        with self._changed:
            self._heard = clock.monotonic()
            match word:
                case UnitDiffs():
                    return  # no caller waits for a part of a result
                case Greeted():
                    self._joined = word
                case Reply():
                    self._answers[word.call] = word
                case Alive():
                    self._at = word.at
            self._changed.notify_all()

    # --- inside: liveness

    def _watch(self) -> None:
        """Watch the worker until the link is dead, and close the client then."""
        self._wait()
        for exchange in self._exchanges:
            exchange.join()
        with contextlib.suppress(pa.ArrowException, OSError):
            self._client.close()

    def _wait(self) -> None:
        """Give up a worker without heartbeats: it is stopped, or cut off."""
        heard, seen, looked = self._heard, 0.0, clock.monotonic()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._reason is not None, _SLICE_S)
                if self._reason is not None:
                    return
                now = clock.monotonic()
                # Silence counts only while this thread runs: a busy process hears late.
                seen = seen + min(now - looked, 2 * _SLICE_S) if heard == self._heard else 0.0
                heard, looked = self._heard, now
                silent_s = now - heard
                waits = [(now - max(heard, since), leading) for since, leading in self._waiting]
                joined = self._joined is not None
            if joined:
                self._prober.look()
            if (
                silent_s > max(SILENCE_S, self._awaited_s)
                or any(wait_s > self._awaited_s for wait_s, _ in waits)
                or any(leading and min(wait_s, seen) > self._leading_s for wait_s, leading in waits)
            ):
                self.silent = True
                self._die(f"no message has come from it for {silent_s:.1f} s")
                return

    @contextlib.contextmanager
    def _awaiting(self, *, leading: bool = False) -> Iterator[None]:
        """Count the caller as waiting for the worker; ``leading``: all views may wait with it."""
        wait = clock.monotonic(), leading
        with self._changed:
            self._waiting.append(wait)
        try:
            yield
        finally:
            with self._changed:
                self._waiting.remove(wait)

    def _die(self, reason: str) -> None:
        with self._changed:
            if self._reason is not None:
                return
            self._reason = reason.splitlines()[0] if reason else "it is gone"
            self._changed.notify_all()
        _log.warning("link lost", worker=self.name, reason=self._reason)
        for exchange in self._exchanges:
            exchange.cancel()
        self._wake()

    def _gone(self) -> OutOfReach:
        return self._lost(self._reason or "it is gone")

    def _lost(self, reason: str) -> OutOfReach:
        return OutOfReach(f'worker "{self.name}" cannot be reached', detail=f"{reason}.")


class Joining:
    """Link that is being set up on its own thread, so that a slow worker blocks no other."""

    def __init__(
        self,
        name: str,
        end: End,
        greeting: Greeting,
        wake: Callable[[], None],
        said: int | None = None,
        awaited_s: float = AWAITED_S,
        leading_s: float = AWAITED_S,
    ) -> None:
        """Begin to connect; ``wake`` is called, on another thread, at the outcome and when it dies.

        The other arguments are those of ``FlightLink``.
        """
        self._wake = wake
        self._known = threading.Event()
        self._found: tuple[FlightLink, Greeted] | OutOfReach | None = None

        def make() -> None:
            try:
                link = FlightLink(name, end, wake, said, awaited_s, leading_s)
                try:
                    self._found = link, link.join(greeting)
                except OutOfReach:
                    link.close()
                    raise
            except OutOfReach as error:
                self._found = error
            self._known.set()
            self._wake()

        threading.Thread(target=make, name=f"headrace-join-{name}", daemon=True).start()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the outcome; return whether it is known."""
        return self._known.wait(timeout_s)

    def made(self) -> tuple[FlightLink, Greeted]:
        """Return the link, and the worker's answer.  REQUIRES: the outcome is known.

        Raises:
            OutOfReach: the worker does not listen, or does not answer.
        """
        found = self._found
        assert found is not None, "it is known"
        if isinstance(found, OutOfReach):
            raise found
        return found
