"""The schemas of frames, each with a number, in an append-only file.

A schema is written before the first frame that uses it, so after a kill every frame can be read.
"""

from __future__ import annotations

import os
import struct
import threading
from pathlib import Path
from typing import Final

import crc32c
import pyarrow as pa

_HEAD: Final = struct.Struct("<II")
"""Size of the schema in bytes, and its checksum."""


class Schemas:
    """Schemas by number, and numbers by schema; safe between threads."""

    def __init__(self, path: Path) -> None:
        """Read the schemas in ``path``; a partial record that a kill left at the end is removed."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._lock = threading.Lock()
        self._schemas: list[pa.Schema] = []
        self._numbers: dict[bytes, int] = {}
        self._read(path)

    def __getitem__(self, number: int) -> pa.Schema:
        """Return the schema of a number; IndexError if there is none."""
        return self._schemas[number]

    def __len__(self) -> int:
        """Return the number of schemas; they are numbered from 0."""
        return len(self._schemas)

    def number(self, schema: pa.Schema) -> int:
        """Return the number of ``schema``, which is added if it is new.

        Raises:
            OSError: it cannot be written.
        """
        data = schema.serialize().to_pybytes()
        with self._lock:
            number = self._numbers.get(data)
            if number is None:
                at = os.lseek(self._file, 0, os.SEEK_END)
                record = _HEAD.pack(len(data), crc32c.crc32c(data)) + data
                if os.pwrite(self._file, record, at) != len(record):
                    os.ftruncate(self._file, at)
                    message = "the schema of a queue cannot be written"
                    raise OSError(message)
                number = self._add(data)
        return number

    def sync(self) -> None:
        """Sync the file."""
        os.fdatasync(self._file)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _add(self, data: bytes) -> int:
        number = len(self._schemas)
        self._schemas.append(pa.ipc.read_schema(pa.py_buffer(data)))
        self._numbers[data] = number
        return number

    def _read(self, path: Path) -> None:
        data, at = path.read_bytes(), 0
        while at + _HEAD.size <= len(data):
            count, told = _HEAD.unpack_from(data, at)
            body = data[at + _HEAD.size : at + _HEAD.size + count]
            # After a power failure the file may end with zeros, and zero is the sum of no bytes.
            if not count or len(body) < count or crc32c.crc32c(body) != told:
                break
            self._add(body)
            at += _HEAD.size + count
        if at < len(data):
            os.ftruncate(self._file, at)
            # Or another crash might bring the rest back after a new record.
            os.fsync(self._file)
