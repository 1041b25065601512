"""A worker's end of a link: it listens, and serves one coordinator at a time.

Files go beside the exchange: what is large holds up no word.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyarrow import flight

from headrace.network import parcels
from headrace.network.ends import End
from headrace.network.link import INTERRUPT
from headrace.network.messages import FromWorker, ToWorker, packed, to_worker

_PART_BYTES: Final = 1 << 20
"""A slow wire takes some seconds for them."""


class Ended(Exception):
    """The coordinator is gone, or does not want this session any more."""


class FlightSession:
    """One exchange with a coordinator; ``send`` is for any thread."""

    def __init__(self, reader: Any, writer: Any, *, compressed: bool = False) -> None:
        self._reader = reader
        self._writer = writer
        self._compressed = compressed
        self._sending = threading.Lock()

    def receive(self) -> tuple[ToWorker, pa.RecordBatch | None]:
        """The next word.

        Raises:
            Ended: there is none.
        """
        try:
            return to_worker(self._reader.read_chunk().app_metadata)
        except (StopIteration, pa.ArrowException, OSError, msgspec.DecodeError) as error:
            raise Ended(str(error)) from error

    def send_rows(self, word: FromWorker, batch: pa.RecordBatch) -> None:
        """Answer rows; in so many words that signs of life come between.

        Raises:
            Ended: nobody hears it.
        """
        parts = 1 + batch.nbytes // _PART_BYTES if self._compressed else 1
        rows = -(-batch.num_rows // parts) or 1
        for begin in range(0, max(batch.num_rows, 1), rows):
            self.send(word, batch.slice(begin, rows))

    def send(self, word: FromWorker, batch: pa.RecordBatch | None = None) -> None:
        """Answer.

        Raises:
            Ended: nobody hears it.
        """
        message = packed(word, batch, compressed=self._compressed)
        with self._sending:
            try:
                self._writer.write_metadata(message)
            except (pa.ArrowException, OSError) as error:
                raise Ended(str(error)) from error


class FlightPort(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Listens; each exchange is served on a thread of its own."""

    def __init__(
        self,
        end: End,
        serve: Callable[[FlightSession], None],
        interrupt: Callable[[Sequence[int]], None],
        files: Path,
    ) -> None:
        """``serve`` returns when its session has ended; ``interrupt`` comes on any thread.

        ``files``: where those are kept that are sent, and found that are asked for.

        Raises:
            OSError: nobody can listen there.
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
        """See Arrow Flight."""
        if action.type == INTERRUPT:
            self._interrupt(msgspec.json.decode(action.body.to_pybytes(), type=list[int]))
        return []

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """See Arrow Flight."""
        self._serve(FlightSession(reader, writer, compressed=self._far))

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """See Arrow Flight: keep a file."""
        parcels.keep(reader, parcels.within(self._files, descriptor.path[0]))

    def do_get(self, context: Any, ticket: Any) -> Any:
        """See Arrow Flight: give a file away."""
        return parcels.given(parcels.within(self._files, ticket.ticket))
