"""The server that positions belong to, and the way that its history took.

An LSN has a meaning only on one server and timeline.  A promoted standby begins a new timeline at
the *switch point*: all before it is the same on both, all after it may differ.

Source: Postgres manual, "Streaming Replication Protocol" (IDENTIFY_SYSTEM, TIMELINE_HISTORY).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGresult

from headrace.errors import ContinuityLost, TransientError
from headrace.postgres import connect
from headrace.types import Lsn, parse_lsn

Connection = psycopg.Connection[Any]

IDENTIFY: Final = b"IDENTIFY_SYSTEM"


@dataclass(frozen=True, slots=True)
class Identity:
    """The server that a stream comes from; LSNs mean nothing on another one (H24, H25)."""

    system_id: str
    timeline: int


def identify(conn: Connection) -> Identity:
    """Return the server at the other end of a replication connection.

    Raises:
        TransientError: it does not answer.
    """
    return identity(conn.pgconn.exec_(IDENTIFY))


def identity(result: PGresult | None) -> Identity:
    """Return the server that has answered ``IDENTIFY``.

    Raises:
        TransientError: it has not answered.
    """
    row = _row(result)
    return Identity(row[0].decode(), int(row[1]))


def current(dsn: str, name: str) -> Identity:
    """Return the server that ``dsn`` leads to; see ``switch_point``."""
    with connect.connect(dsn, name=name, replication=True) as conn:
        return identify(conn)


def switch_point(dsn: str, expected: Identity, name: str) -> tuple[Identity, Lsn] | None:
    """Return the server that ``dsn`` leads to, and where it left the timeline of ``expected``.

    None: it is the expected one.  ``name``: application name of the connection.

    Raises:
        ContinuityLost: it is another server, or its history does not contain that timeline.
        TransientError: it cannot be reached now.
        PrerequisiteError: it refuses us.
    """
    with connect.connect(dsn, name=name, replication=True) as conn:
        found = identify(conn)
        if found == expected:
            return None
        if found.system_id == expected.system_id and found.timeline > expected.timeline:
            ends = history(conn, found.timeline)
            if expected.timeline in ends:
                return found, ends[expected.timeline]
    raise other(found, expected)


def history(conn: Connection, number: int) -> dict[int, Lsn]:
    """Return the ends of the timelines before timeline ``number``, as the server knows them.

    Raises:
        TransientError: it does not answer, or does not have the history.
    """
    if number == 1:
        return {}
    return parse_history(_ask(conn, f"TIMELINE_HISTORY {number}")[1].decode(errors="replace"))


def other(found: Identity, expected: Identity) -> ContinuityLost:
    """Return the error for a server whose history is not that of ``expected``."""
    return ContinuityLost(
        "the source is another server, or was restored to an earlier time",
        detail=f"It is system {found.system_id}, timeline {found.timeline};"
        f" expected {expected.system_id}, {expected.timeline}.",
    )


def parse_history(text: str) -> dict[int, Lsn]:
    """Return the end of each timeline in a history file, by number."""
    ends: dict[int, Lsn] = {}
    for line in text.splitlines():
        fields = line.split("#")[0].split()
        if len(fields) >= 2:
            ends[int(fields[0])] = parse_lsn(fields[1])
    return ends


def _ask(conn: Connection, command: str) -> list[bytes]:
    return _row(conn.pgconn.exec_(command.encode()))


def _row(result: PGresult | None) -> list[bytes]:
    if result is None:
        raise TransientError("no answer")
    if result.status != pq.ExecStatus.TUPLES_OK or not result.ntuples:
        raise TransientError(result.error_message.decode(errors="replace").strip() or "no answer")
    return [result.get_value(0, column) or b"" for column in range(result.nfields)]
