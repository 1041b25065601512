"""A worker's end of a link: it listens, and serves one coordinator at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyarrow import flight

from headrace.network.link import INTERRUPT
from headrace.network.messages import FromWorker, ToWorker, packed, to_worker


class Ended(Exception):
    """The coordinator is gone, or does not want this session any more."""


class FlightSession:
    """One exchange with a coordinator; ``send`` is for any thread."""

    def __init__(self, reader: Any, writer: Any) -> None:
        self._reader = reader
        self._writer = writer
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

    def send(self, word: FromWorker, batch: pa.RecordBatch | None = None) -> None:
        """Answer.

        Raises:
            Ended: nobody hears it.
        """
        message = packed(word, batch)
        with self._sending:
            try:
                self._writer.write_metadata(message)
            except (pa.ArrowException, OSError) as error:
                raise Ended(str(error)) from error


class FlightPort(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Listens on a Unix socket; each exchange is served on a thread of its own."""

    def __init__(
        self,
        path: Path,
        serve: Callable[[FlightSession], None],
        interrupt: Callable[[Sequence[int]], None],
    ) -> None:
        """``serve`` returns when its session has ended; ``interrupt`` comes on any thread."""
        path.unlink(missing_ok=True)
        self._interrupt: Final = interrupt
        self._serve: Final = serve
        super().__init__(f"grpc+unix://{path}")

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        """See Arrow Flight."""
        if action.type == INTERRUPT:
            self._interrupt(msgspec.json.decode(action.body.to_pybytes(), type=list[int]))
        return []

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """See Arrow Flight."""
        self._serve(FlightSession(reader, writer))
