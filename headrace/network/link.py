"""A coordinator's link to a worker: what is sent arrives in order, or the link is dead.

A link is one exchange of Arrow Flight, and files go beside it.  Once it has failed, or the worker
has not given a sign of life for a while, it is dead for good: nobody waits for it any more, and
whoever wants to go on makes a new one.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import structlog
from pyarrow import flight

from headrace import clock, errors
from headrace.errors import OutOfReach
from headrace.network import parcels
from headrace.network.ends import End
from headrace.network.messages import (
    PROTOCOL,
    Alive,
    BatchDone,
    Bye,
    FromWorker,
    Greeted,
    Greeting,
    Numbered,
    Reply,
    ToWorker,
    UnitDiffs,
    WordLost,
    Work,
    from_worker,
)
from headrace.network.probe import Prober
from headrace.network.sender import Sender

_log = structlog.get_logger(__name__)

SILENCE_S: Final = 15.0
"""Without a sign of life from a worker: then it is lost."""
AWAITED_S: Final = 5.0
"""The same where somebody waits for it, the first time; see ``Outpost.patience_s``."""
ALIVE_S: Final = 1.0
"""Between two signs of life."""
_JOIN_S: Final = 10.0
"""Seconds in which a worker should answer a greeting."""
_SLICE_S: Final = 0.25
_INTERRUPT_S: Final = 2.0
INTERRUPT: Final = "interrupt"
"""An action: its body is a JSON array of units."""

Results = tuple[BatchDone, dict[int, pa.RecordBatch]]
"""What a batch came to, and the diffs by unit."""


class FlightLink:
    """To one worker; what waits for results is for one thread, all else for any."""

    def __init__(
        self,
        name: str,
        end: End,
        wake: Callable[[], None],
        said: int | None = None,
        awaited_s: float = AWAITED_S,
    ) -> None:
        """Connect; ``wake`` is called, on another thread, when the link dies.

        ``said``: the bandwidth that ``add_link`` gave, in bytes per second.
        ``awaited_s``: after so long without a sign of life it is lost, where somebody waits for it.

        Raises:
            OutOfReach: nobody is there.
        """
        self.name: Final = name
        self.end: Final = end
        self.silent = False
        """Whether it is dead for want of signs of life."""
        self.begun: Final = clock.monotonic()
        self._wake = wake
        self._awaited_s: Final = awaited_s
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()
        self._heard = clock.monotonic()
        """When something came last; written by the reader."""
        # Guarded by the condition's lock.
        self._reason: str | None = None
        self._joined: Greeted | None = None
        self._done: deque[Results] = deque()
        self._answers: dict[int, Reply] = {}
        self._waiters = 0
        """So many wait for something of the worker."""
        self._awaited_since = 0.0
        self._at: list[Work] = []
        try:
            self._client = end.client()
            descriptor = flight.FlightDescriptor.for_command(PROTOCOL)
            writer, self._reader = self._client.do_exchange(descriptor)
        except (pa.ArrowException, OSError) as error:
            raise self._lost(str(error)) from error
        self.sender: Final = Sender(writer, said, self._die, far=end.far)
        self._prober: Final = Prober(
            name, self._client, lambda: self.sender.moved, self.sender.probed
        )
        for run in (self._read, self.sender.run, self._watch):
            threading.Thread(target=run, name=f"headrace-link-{name}", daemon=True).start()

    # --- for the engine's thread

    @property
    def up(self) -> bool:
        """Whether it is not dead."""
        return self._reason is None

    @property
    def at(self) -> list[Work]:
        """What it has said last that it is at; from any thread."""
        return self._at

    def send(self, word: ToWorker, batch: pa.RecordBatch | None = None) -> None:
        """Send; from any thread.

        Raises:
            OutOfReach: the link is dead.
        """
        with self._awaiting():
            # Who has heard that it is dead sends nothing more; the sender may not know it yet.
            if not self.up or not self.sender.send(word, batch):
                raise self._gone()

    def join(self, word: Greeting) -> Greeted:
        """Begin; returns what the worker has.

        Raises:
            OutOfReach: the worker does not answer.
        """
        self.send(word)
        with self._changed:
            self._changed.wait_for(lambda: self._joined or self._reason, _JOIN_S)
            self._heard = clock.monotonic()
            if self._joined is None:
                raise self._lost(self._reason or "it does not answer")
            return self._joined

    def results(self, txid: int, attempt: int) -> Results:
        """What a batch came to, once that is known.

        Raises:
            OutOfReach: the link is dead.
        """
        with self._awaiting(), self._changed:
            while True:
                self._changed.wait_for(lambda: self._done or self._reason)
                while self._done:
                    done, diffs = self._done.popleft()
                    if (done.txid, done.attempt) == (txid, attempt):
                        return done, diffs
                if self._reason is not None:
                    raise self._lost(self._reason)

    # --- for any thread

    def number(self) -> int:
        """One for a call."""
        return next(self._numbers)

    def answer(self, call: int) -> int:
        """The number that a call came to; see ``reply``."""
        return self.reply(call).value

    def reply(self, call: int) -> Reply:
        """What a call came to that was sent.

        Raises:
            HeadraceError: what the worker answered.
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
        """Have the worker keep a file under ``name``.

        Raises:
            OutOfReach: it is not there.
            OSError: the file cannot be read.
        """
        try:
            with self._prober.transfer():
                parcels.send(self._client, path, name)
        except pa.ArrowException as error:
            raise self._lost(str(error)) from error

    def fetch_file(self, name: str, path: Path) -> None:
        """Get the worker's file ``name``, which it has no longer then.

        Raises:
            OutOfReach: it is not there.
            OSError: the file cannot be written.
        """
        try:
            with self._prober.transfer():
                parcels.fetch(self._client, name, path)
        except pa.ArrowException as error:
            raise self._lost(str(error)) from error

    def interrupt(self, units: Sequence[int] = ()) -> None:
        """Have units (all, where none is said) give up what they are at, as soon as may be.

        It waits neither for rows that are being sent nor for an answer.  It has a connection of
        its own, for megabytes may be in the buffers of the one that rows go over.
        """
        threading.Thread(target=self._interrupt, args=(list(units),), daemon=True).start()

    def _interrupt(self, units: list[int]) -> None:
        options = flight.FlightCallOptions(timeout=_INTERRUPT_S)
        with contextlib.suppress(pa.ArrowException, OSError), self.end.client() as client:
            action = flight.Action(INTERRUPT, msgspec.json.encode(units))
            list(client.do_action(action, options))

    def close(self, reason: str = "it was closed") -> None:
        """Let go; whoever waits hears it."""
        self._die(reason)

    # --- inside: what comes

    def _read(self) -> None:
        diffs: dict[int, list[pa.RecordBatch]] = {}
        numbered = Numbered()
        try:
            while True:
                message = self._reader.read_chunk().app_metadata
                numbered.check(message)
                word, batch = from_worker(message)
                self._heard = clock.monotonic()
                self.sender.heard(message.size)
                if isinstance(word, UnitDiffs):
                    assert batch is not None, "they are behind it"
                    diffs.setdefault(word.unit, []).append(batch)
                    continue
                if isinstance(word, Bye):
                    self._die("it has ended the session")
                    break
                if isinstance(word, BatchDone):
                    self._finish(word, diffs)
                    diffs = {}
                else:
                    self._hear(word)
        except StopIteration:
            self._die("it has ended")
        except (pa.ArrowException, OSError, msgspec.DecodeError, WordLost) as error:
            self._die(str(error))
        self.sender.end()
        with contextlib.suppress(pa.ArrowException, OSError):
            self._client.close()

    def _finish(self, word: BatchDone, diffs: dict[int, list[pa.RecordBatch]]) -> None:
        came = {unit: sum(part.num_rows for part in parts) for unit, parts in diffs.items()}
        if came != word.rows:
            raise WordLost(f"got {came} of the rows {word.rows} of txid {word.txid}")
        whole = {unit: _whole(parts) for unit, parts in diffs.items()}
        with self._changed:
            self._done.append((word, whole))
            self._changed.notify_all()

    def _hear(self, word: FromWorker) -> None:
        with self._changed:
            match word:
                case Greeted():
                    self._joined = word
                case Reply():
                    self._answers[word.call] = word
                case Alive():
                    self._at = word.at
            self._changed.notify_all()

    # --- inside: whether it lives

    def _watch(self) -> None:
        """Give up a worker that gives no sign of life: it is stopped, or cut off."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._reason is not None, _SLICE_S)
                if self._reason is not None:
                    return
                now = clock.monotonic()
                silent_s = now - self._heard
                in_vain_s = now - max(self._heard, self._awaited_since) if self._waiters else 0.0
                joined = self._joined is not None
            if joined:
                self._prober.look()
            if silent_s > max(SILENCE_S, self._awaited_s) or in_vain_s > self._awaited_s:
                self.silent = True
                self._die(f"it has given no sign of life for {silent_s:.0f} s")
                return

    @contextlib.contextmanager
    def _awaiting(self) -> Iterator[None]:
        """Inside, somebody may wait for the worker."""
        with self._changed:
            if not self._waiters:
                self._awaited_since = clock.monotonic()
            self._waiters += 1
        try:
            yield
        finally:
            with self._changed:
                self._waiters -= 1

    def _die(self, reason: str) -> None:
        with self._changed:
            if self._reason is not None:
                return
            self._reason = reason.splitlines()[0] if reason else "it is gone"
            self._changed.notify_all()
        _log.warning("link lost", worker=self.name, reason=self._reason)
        self.sender.close()
        # What waits inside of it, to send or to read, comes out.
        self._reader.cancel()
        self._wake()

    def _gone(self) -> OutOfReach:
        return self._lost(self._reason or "it is gone")

    def _lost(self, reason: str) -> OutOfReach:
        return OutOfReach(f'worker "{self.name}" cannot be reached', detail=f"{reason}.")


def _whole(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


class Joining:
    """A link that is being made: a worker that is stopped takes its time, and holds up nobody."""

    def __init__(
        self,
        name: str,
        end: End,
        greeting: Greeting,
        wake: Callable[[], None],
        said: int | None = None,
        awaited_s: float = AWAITED_S,
    ) -> None:
        """``wake`` is called, on another thread, when it is known, and when the link dies.

        The others are those of ``FlightLink``.
        """
        self._wake = wake
        self._known = threading.Event()
        self._found: tuple[FlightLink, Greeted] | OutOfReach | None = None

        def make() -> None:
            try:
                link = FlightLink(name, end, wake, said, awaited_s)
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
        """Whether it is known what comes of it."""
        return self._known.wait(timeout_s)

    def made(self) -> tuple[FlightLink, Greeted]:
        """The link, and what the worker has.  REQUIRES: it is known.

        Raises:
            OutOfReach: the worker is not there, or does not answer.
        """
        found = self._found
        assert found is not None, "it is known"
        if isinstance(found, OutOfReach):
            raise found
        return found
