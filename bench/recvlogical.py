"""pg_recvlogical reading the same changes as Headrace: Postgres' own cost to send them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg

from bench import cpu
from bench.scenario import Bed, scalar

_SLOT: Final = "bench_recvlogical"
_PUBLICATION: Final = "headrace"
_COUNT: Final = """
SELECT count(*) FROM pg_logical_slot_peek_binary_changes(
    %s, NULL, NULL, 'proto_version', '1', 'publication_names', %s)
WHERE get_byte(data, 0) IN (ascii('I'), ascii('U'), ascii('D'))"""


@dataclass(frozen=True, slots=True)
class Received:
    """The time and resources spent reading a backlog."""

    seconds: float
    cpu_s: float
    """CPU seconds of pg_recvlogical."""
    walsender_s: float
    """CPU seconds of its walsender."""


class Backlog:
    """The changes of the views' tables since its creation, in a separate slot."""

    def __init__(self, on: Bed) -> None:
        """Begin the backlog now."""
        self._on = on
        self._end = ""
        scalar(on.source, "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')::text", _SLOT)

    def close(self) -> None:
        """Drop the slot."""
        scalar(self._on.source, "SELECT pg_drop_replication_slot(%s)::text", _SLOT)

    def end(self) -> None:
        """End the backlog now."""
        source = self._on.source
        self._end = scalar(source, "SELECT pg_current_wal_insert_lsn()::text")
        # pg_recvlogical stops at the first message at or after the end, so there must be one.
        scalar(source, "SELECT pg_logical_emit_message(true, 'bench', 'end')::text")

    def rows(self) -> int:
        """Return the number of changed rows in the backlog."""
        return int(scalar(self._on.source, _COUNT, _SLOT, _PUBLICATION))

    def receive(self, file: Path = Path("/dev/null")) -> Received:
        """Let pg_recvlogical read the backlog to ``file``.

        REQUIRES: ``end`` was called.
        """
        server = self._on.server
        ended, ours = cpu.of_ended_children(server.pid), os.times()
        begin = time.monotonic()
        subprocess.run(
            [
                *(server.bin_dir / "pg_recvlogical", "--dbname", self._on.source),
                *("--slot", _SLOT, "--start", "--no-loop", "--file", file),
                *("--endpos", self._end, "--option", "proto_version=1"),
                *("--option", f"publication_names={_PUBLICATION}"),
            ],
            check=True,
            timeout=600,
        )
        seconds = time.monotonic() - begin
        _released(self._on.source)  # its walsender has ended, too
        now = os.times()
        spent = now.children_user + now.children_system
        spent -= ours.children_user + ours.children_system
        return Received(seconds, spent, cpu.of_ended_children(server.pid) - ended)


@contextmanager
def backlog(on: Bed) -> Iterator[Backlog]:
    """Yield a backlog of the transactions that commit inside the block, and drop it afterwards."""
    made = Backlog(on)
    try:
        yield made
    finally:
        made.close()


def _released(source: str) -> None:
    with psycopg.connect(source, autocommit=True) as conn:
        while conn.execute(
            "SELECT FROM pg_replication_slots WHERE slot_name = %s AND active"
            " UNION ALL SELECT FROM pg_stat_replication WHERE application_name = 'pg_recvlogical'",
            (_SLOT,),
        ).fetchone():
            time.sleep(0.005)
