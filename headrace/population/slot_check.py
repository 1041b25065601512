"""The check that the permanent slot still has every change since a population's snapshot."""

from __future__ import annotations

import contextlib

from headrace.config import Settings
from headrace.errors import PrerequisiteError, SnapshotLost
from headrace.postgres import decoding_standby
from headrace.postgres.connect import Connection
from headrace.types import format_lsn


def check_slot(conn: Connection, settings: Settings, start_lsn: int = 0) -> None:
    """Check that the permanent slot still has every change since ``start_lsn`` (0 means any).

    Raises:
        SnapshotLost: the slot was confirmed beyond the snapshot (a worker died with its holds).
        PrerequisiteError: the slot is lost.
    """
    row = None
    with (
        contextlib.suppress(decoding_standby.StandbyUnavailable),
        decoding_standby.connected(settings, conn) as server,
    ):
        row = server.execute(
            "SELECT wal_status, confirmed_flush_lsn > %s::pg_lsn"
            " FROM pg_replication_slots WHERE slot_name = %s AND NOT temporary",
            (format_lsn(start_lsn), settings.slot_name),
        ).fetchone()
    if row is None:
        return  # the worker, which owns the slot, reports that when it adopts the view
    if row[0] == "lost":
        raise PrerequisiteError(
            f'replication slot "{settings.slot_name}" lost its WAL during the population',
            hint="Raise max_slot_wal_keep_size and create the view again.",
        )
    if start_lsn and row[1]:
        raise SnapshotLost("the stream went on past the snapshot of the population")
