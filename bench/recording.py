"""Changes in pgoutput's format, recorded once and played to the engine any number of times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import psycopg
from psycopg.rows import scalar_row

_SLOT: Final = "bench_recording"
_PUBLICATION: Final = "bench"
_READ: Final = """
SELECT data FROM pg_logical_slot_get_binary_changes(
    %s, NULL, NULL, 'proto_version', '1', 'publication_names', %s)"""
_COMMIT: Final = b"C"[0]
_ROWS: Final = frozenset(b"IUD")


class Recorder:
    """Records all tables of a database from its creation on."""

    def __init__(self, conn: psycopg.Connection[tuple[object, ...]]) -> None:
        """Create the publication and the slot.

        REQUIRES: ``conn`` is in autocommit, as a superuser.
        """
        self._conn = conn
        conn.execute(f"CREATE PUBLICATION {_PUBLICATION} FOR ALL TABLES")
        conn.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (_SLOT,))

    def take(self) -> list[bytes]:
        """Return the messages of all transactions that have committed since the last call."""
        with self._conn.cursor(binary=True, row_factory=scalar_row) as cursor:
            return list(cursor.execute(_READ, (_SLOT, _PUBLICATION)))


def rows_in(messages: Sequence[bytes]) -> int:
    """Return the number of changed rows in the messages."""
    return sum(message[0] in _ROWS for message in messages)


def batches(messages: Sequence[bytes], rows_min: int) -> Iterator[list[bytes]]:
    """Yield whole transactions with at least ``rows_min`` rows (the last batch: the rest)."""
    out: list[bytes] = []
    rows = 0
    for message in messages:
        out.append(message)
        rows += message[0] in _ROWS
        if message[0] == _COMMIT and rows >= rows_min:
            yield out
            out, rows = [], 0
    if rows:
        yield out
