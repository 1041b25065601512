"""One exchange of a link: messages in both directions, in order, and the results of its batches."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyarrow import flight

from headrace.network.messages import (
    Bye,
    FromWorker,
    MessageLost,
    Numbered,
    StageDone,
    UnitDiffs,
    from_worker,
)
from headrace.network.sender import Sender

Results = tuple[StageDone, dict[int, pa.RecordBatch]]
"""Result of a stage of a batch, and the diffs by unit."""


class Exchange:
    """An exchange, on threads of its own; ``die`` ends its link once it has failed."""

    def __init__(
        self,
        client: Any,
        command: bytes,
        said: int | None,
        hear: Callable[[FromWorker], None],
        die: Callable[[str], None],
        *,
        far: bool,
    ) -> None:
        """Open it.

        ``said``: the bandwidth that ``add_link`` gave, in bytes per second.
        ``hear`` gets each message; the results of batches are stored before it is called.

        Raises:
            ArrowException: the worker does not listen.
            OSError: the same.
        """
        self._hear = hear
        self._die = die
        self._lock: Final = threading.Lock()
        self._done: Final[deque[Results]] = deque()
        descriptor = flight.FlightDescriptor.for_command(command)
        writer, self._reader = client.do_exchange(descriptor)
        self.sender: Final = Sender(writer, said, die, far=far)
        self._threads: list[threading.Thread] = []

    def start(self, name: str) -> None:
        """Start the threads that read and send."""
        for run in (self._read, self.sender.run):
            thread = threading.Thread(target=run, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def join(self) -> None:
        """Wait until the threads have ended.  REQUIRES: the link is dead."""
        for thread in self._threads:
            thread.join()

    def result(self, txid: int, attempt: int) -> Results | None:
        """Return the next result of a batch, without earlier ones; None: there is none."""
        with self._lock:
            while self._done:
                done, diffs = self._done.popleft()
                if (done.txid, done.attempt) == (txid, attempt):
                    return done, diffs
        return None

    def cancel(self) -> None:
        """End it, with all calls of gRPC that are sending or reading."""
        self.sender.close()
        self._reader.cancel()

    def _read(self) -> None:
        diffs: dict[int, list[pa.RecordBatch]] = {}
        numbered = Numbered()
        try:
            while True:
                message = self._reader.read_chunk().app_metadata
                numbered.check(message)
                word, batch = from_worker(message)
                self.sender.heard(message.size)
                if isinstance(word, UnitDiffs):
                    assert batch is not None, "they are behind it"
                    diffs.setdefault(word.unit, []).append(batch)
                elif isinstance(word, StageDone):
                    self._finish(word, diffs)
                    diffs = {}
                self._hear(word)
                if isinstance(word, Bye):
                    self._die("it has ended the session")
                    break
        except StopIteration:
            self._die("it has ended")
        except (pa.ArrowException, OSError, msgspec.DecodeError, MessageLost) as error:
            self._die(str(error))
        self.sender.end()

    def _finish(self, word: StageDone, diffs: dict[int, list[pa.RecordBatch]]) -> None:
        came = {unit: sum(part.num_rows for part in parts) for unit, parts in diffs.items()}
        if came != word.rows:
            raise MessageLost(f"got {came} of the rows {word.rows} of txid {word.txid}")
        whole = {unit: _whole(parts) for unit, parts in diffs.items()}
        with self._lock:
            self._done.append((word, whole))


def _whole(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)
