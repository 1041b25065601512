"""A worker's end of a link: it listens, and serves one coordinator at a time.

Files go over separate calls, so that a large one delays no message.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyarrow import flight

from headrace import clock
from headrace.network import file_transfer
from headrace.network.ends import Near
from headrace.network.link import ALIVE_S, BUSY_ALIVE_S, INTERRUPT
from headrace.network.messages import (
    FAST_PIECE_BYTES,
    LAGGING,
    PIECE_BYTES,
    PROTOCOL,
    Alive,
    FromWorker,
    MessageLost,
    Numbered,
    Packing,
    StageDone,
    ToWorker,
    UnitDiffs,
    Work,
    packed,
    pieces,
    to_worker,
)
from headrace.network.probe import PROBE, echo


class Ended(Exception):
    """The coordinator is gone, or has ended this session."""


class FlightSession:
    """One exchange with a coordinator; ``send`` is for any thread, ``receive`` for one."""

    def __init__(
        self, reader: Any, writer: Any, *, far: bool = False, lagging: bool = False
    ) -> None:
        self.lagging: Final = lagging
        """Whether it is for batches of units that lag."""
        self._reader = reader
        self._writer = writer
        self._piece_bytes = PIECE_BYTES if far else FAST_PIECE_BYTES
        self._compressed = far
        self._sending = threading.Lock()
        self._sent = itertools.count(1)
        self._numbered = Numbered()
        self._rows: dict[int, int] = {}
        """Number of rows sent since the last ``StageDone``, by unit."""
        self._woken = threading.Event()

    def receive(self) -> tuple[ToWorker, pa.RecordBatch | None]:
        """Return the next message.

        Raises:
            Ended: the session has ended.
        """
        try:
            while True:
                message = self._reader.read_chunk().app_metadata
                self._numbered.check(message)
                word, batch = to_worker(message)
                if not isinstance(word, Packing):
                    return word, batch
                self._compressed, self._piece_bytes = word.packed, word.piece_bytes
        except (
            StopIteration,
            pa.ArrowException,
            OSError,
            msgspec.DecodeError,
            MessageLost,
        ) as error:
            raise Ended(str(error)) from error

    def beat(
        self, ended: threading.Event, at: Callable[[], list[Work]], busy: Callable[[], bool]
    ) -> None:
        """Send a heartbeat every second until ``ended``, more often while ``busy``.

        ``at`` returns the current work.

        Raises:
            Ended: the connection is lost.
        """
        due = clock.monotonic() + ALIVE_S
        while not ended.is_set():
            woken = self._woken.wait(BUSY_ALIVE_S)
            if woken or busy() or clock.monotonic() >= due:
                self._woken.clear()
                due = clock.monotonic() + ALIVE_S
                self.send(Alive(at()))

    def wake(self) -> None:
        """Wake ``beat``, which sends at once and checks whether it has ended."""
        self._woken.set()

    def send_rows(self, word: FromWorker, batch: pa.RecordBatch) -> None:
        """Send rows in pieces, so that heartbeats can go between them.

        Raises:
            Ended: the connection is lost.
        """
        for piece in pieces(batch, self._piece_bytes):
            self.send(word, piece)

    def send(self, word: FromWorker, batch: pa.RecordBatch | None = None) -> None:
        """Send a message.

        Raises:
            Ended: the connection is lost.
        """
        with self._sending:
            match word:
                case UnitDiffs() if batch is not None:
                    self._rows[word.unit] = self._rows.get(word.unit, 0) + batch.num_rows
                case StageDone():
                    word.rows, self._rows = self._rows, {}
            message = packed(word, batch, compressed=self._compressed, number=next(self._sent))
            try:
                self._writer.write_metadata(message)
            except (pa.ArrowException, OSError) as error:
                raise Ended(str(error)) from error


class FlightPort(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Flight server of a worker; it serves each exchange on its own thread."""

    def __init__(
        self,
        end: Near,
        serve: Callable[[FlightSession], None],
        interrupt: Callable[[Sequence[int]], None],
        files: Path,
    ) -> None:
        """Listen at ``end``.

        ``serve`` returns when its exchange has ended; ``interrupt`` is called on any thread.
        ``files``: the folder of received files, and of those to be fetched.

        Raises:
            OSError: the endpoint cannot be opened.
        """
        self._interrupt: Final = interrupt
        self._serve: Final = serve
        self._files: Final = files
        self._far: Final = end.far
        try:
            super().__init__(**end.serving())
        except pa.ArrowException as error:
            raise OSError(f"cannot listen on {end.uri}: {error}") from error

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        """Interrupt units, on the action ``INTERRUPT``."""
        if action.type == INTERRUPT:
            self._interrupt(msgspec.json.decode(action.body.to_pybytes(), type=list[int]))
        return []

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Serve an exchange of a session, or a probe, by the descriptor."""
        if descriptor.command == PROBE:
            echo(reader, writer)
            return
        if descriptor.command not in (PROTOCOL, LAGGING):
            raise flight.FlightServerError("this worker runs another version of headrace")
        lagging = descriptor.command == LAGGING
        self._serve(FlightSession(reader, writer, far=self._far, lagging=lagging))

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Receive a file."""
        file_transfer.write_file(reader, file_transfer.within(self._files, descriptor.path[0]))

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Send a file, and delete it."""
        return file_transfer.given(file_transfer.within(self._files, ticket.ticket))
