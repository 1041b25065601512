"""How far the standbys of the source are, as its physical replication slots show.

A standby that may be promoted needs such a slot, which keeps the WAL that it lacks.  Every role may
read the view of slots, unlike the positions in ``pg_stat_replication``.

Source: Postgres manual, "Logical Replication Failover", ``synchronized_standby_slots``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg

from headrace.types import Lsn, parse_lsn

Connection = psycopg.Connection[Any]

_REACHED: Final = """
SELECT pg_catalog.pg_current_wal_insert_lsn()::text,
       (SELECT json_object_agg(slot_name, restart_lsn) FROM pg_catalog.pg_replication_slots s
         WHERE slot_type = 'physical' AND NOT temporary AND restart_lsn IS NOT NULL
           AND CASE coalesce(current_setting('synchronized_standby_slots', true), '')
               WHEN '' THEN active OR coalesce((to_jsonb(s) ->> 'inactive_since')::timestamptz
                                               > clock_timestamp() - interval '60 s', false)
               ELSE slot_name = ANY (regexp_split_to_array(
                    current_setting('synchronized_standby_slots', true), '[\\s",]+')) END)
"""


@dataclass(frozen=True, slots=True)
class ReplicationProgress:
    """Positions of the source and of its standbys, read at once."""

    written: Lsn
    """LSN up to which the source has written WAL."""
    standbys: dict[str, Lsn]
    """LSN up to which each standby that counts has it on disk, by the name of its slot."""

    def behind(self, lsn: int) -> set[str]:
        """Return the standbys that lack WAL before ``lsn``."""
        return {slot for slot, has in self.standbys.items() if has < lsn}


def progress(conn: Connection) -> ReplicationProgress:
    """Return how far source and standbys are.

    All standbys with an active slot count, or those that ``synchronized_standby_slots`` names.  A
    slot that was active a moment ago counts as well: a server that dies may end the connection to
    its standby before those of its clients.

    Raises:
        psycopg.Error: the connection is lost.
    """
    row = conn.execute(_REACHED).fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    written, standbys = row
    found = {slot: parse_lsn(lsn) for slot, lsn in (standbys or {}).items()}
    return ReplicationProgress(parse_lsn(written), found)
