"""File transfer between two ends, as streams of pieces (Arrow Flight's put and get).

A received file is complete and synced to disk, or it does not exist.  An empty piece ends a file;
without it the file was cut off.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import flight

from headrace.process import durable

_PIECE_BYTES: Final = 1 << 18
"""Bytes of a file that may delay a message on the same connection."""
_SCHEMA: Final = pa.schema([pa.field("piece", pa.binary())])
_NAME: Final = re.compile(r"[0-9a-z][0-9a-z._-]{0,99}")


def within(folder: Path, name: bytes) -> Path:
    """Return the path of the file ``name`` in ``folder``; it cannot lead outside.

    Raises:
        ArrowInvalid: that is not the name of a file.
    """
    text = name.decode(errors="replace")
    if not _NAME.fullmatch(text):
        raise pa.ArrowInvalid(f"invalid file name: {text!r}")
    return folder / text


def send(client: Any, path: Path, name: str) -> None:
    """Send a file; return when the other end has it."""
    writer, _ = client.do_put(flight.FlightDescriptor.for_path(name), _SCHEMA)
    with writer:
        for batch in _pieces(path):
            writer.write_batch(batch)


def write_file(reader: Any, path: Path) -> None:
    """Write a received file."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write(path, (chunk.data for chunk in reader))


def fetch(client: Any, name: str, path: Path) -> None:
    """Fetch a file from the other end."""
    reader = client.do_get(flight.Ticket(name.encode()))
    _write(path, (chunk.data for chunk in reader))


def given(path: Path) -> Any:
    """Return a stream that sends a file and then deletes it.

    Raises:
        ArrowKeyError: there is no such file.
    """
    if not path.exists():
        raise pa.ArrowKeyError(f"no file {path.name}")

    def pieces() -> Iterator[pa.RecordBatch]:
        yield from _pieces(path)
        path.unlink(missing_ok=True)

    return flight.GeneratorStream(_SCHEMA, pieces())


def _pieces(path: Path) -> Iterator[pa.RecordBatch]:
    with path.open("rb") as file:
        piece = None
        while piece != b"":
            piece = file.read(_PIECE_BYTES)
            yield pa.record_batch([pa.array([piece], pa.binary())], schema=_SCHEMA)


def _write(path: Path, batches: Iterable[pa.RecordBatch]) -> None:
    draft = path.with_name(f".{path.name}.new")
    whole = False
    try:
        with draft.open("wb") as file:
            for batch in batches:
                [piece] = batch.column(0)
                whole = file.write(piece.as_buffer()) == 0
        if not whole:
            raise pa.ArrowInvalid(f"file {path.name} was cut off")
        durable.sync(draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
