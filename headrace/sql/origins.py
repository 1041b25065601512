"""Rows of ``headrace.origins`` and ``headrace.stand_ins``: other databases that views may read.

Each table of a source has an empty table with the same columns here, its *stand-in*, in a schema
of the source's name.  The source's carrier moves ``position`` in the transaction that writes the
changes before it into the WAL here, so that neither exists without the other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg.rows import class_row

from headrace.types import Lsn, format_lsn, parse_lsn

Connection = psycopg.Connection[Any]
AsyncConnection = psycopg.AsyncConnection[dict[str, Any]]

CHANNEL: Final = "headrace_sources"
"""Channel that is notified with a source's name when its carrier has new orders."""
_HELD: Final = """
SELECT EXISTS (
  SELECT FROM pg_catalog.pg_stat_activity a
   WHERE a.datname = current_database() AND a.usename = current_user AND a.pid <> pg_backend_pid()
     AND a.application_name = %s)"""
_EMIT: Final = """
SELECT pg_catalog.pg_logical_emit_message(true, %s || (SELECT token FROM headrace.carrier), %b::bytea)"""
_NOTIFY: Final = "SELECT pg_catalog.pg_notify('headrace_sources', %s)"
_CANDIDATES: Final = """
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind = 'r' AND c.relpersistence = 'p' AND NOT c.relispartition
   AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'headrace')
   AND c.oid NOT IN (SELECT result_oid FROM headrace.views WHERE result_oid IS NOT NULL)
   AND c.oid NOT IN (SELECT table_oid FROM headrace.stand_ins) ORDER BY 1"""
_ASKED: Final = """
SELECT position::text, wanted::text, hold::text FROM headrace.origins WHERE name = %s"""
_ASKED_LOCKED: Final = f"{_ASKED} FOR NO KEY UPDATE"
_ROW: Final = """
SELECT name, dsn, slot, system_id, timeline, published, position::text, state, problem, last_commit
  FROM headrace.origins"""


@dataclass(frozen=True, slots=True)
class SourceRow:
    """Source; ``slot`` is the name of its slot and of its publication."""

    name: str
    dsn: str
    slot: str
    system_id: str
    timeline: int
    published: str
    """Definition of its publication when that was created."""
    position: str
    state: str
    problem: str | None
    last_commit: bytes | None = None
    """Message about the last transaction that was replicated; None: unknown."""


@dataclass(frozen=True, slots=True)
class StandIn:
    """Table of a source, and its stand-in here."""

    table_oid: int
    source: str
    origin_oid: int
    schema_name: str
    """Schema in the source; so is ``table_name``."""
    table_name: str


@dataclass(frozen=True, slots=True)
class ReplicatorRequests:
    """Orders to a carrier; ``hold``: the position up to which it may go, None: no limit."""

    position: Lsn
    wanted: Lsn
    hold: Lsn | None


async def activity(conn: AsyncConnection) -> list[tuple[str, bool, int]]:
    """Return each source's name, whether it is running, and the number of changes received."""
    found = await conn.execute(
        "SELECT name, state = 'running' AS up, changed FROM headrace.origins ORDER BY name"
    )
    return [(row["name"], row["up"], row["changed"]) for row in await found.fetchall()]


# --- sources and stand-ins


def token(conn: Connection) -> str | None:
    """Return the token with which carriers' messages begin; None: there has never been a source."""
    row = conn.execute("SELECT token FROM headrace.carrier").fetchone()
    return None if row is None else str(row[0])


def ensure_token(conn: Connection) -> str:
    """Return the token, created if missing; by Postgres, because parameters may be logged."""
    conn.execute(
        "INSERT INTO headrace.carrier (token)"
        " VALUES (replace(gen_random_uuid()::text, '-', '')) ON CONFLICT DO NOTHING"
    )
    made = token(conn)
    assert made is not None, "it was just made"
    return made


def listed(conn: Connection) -> list[SourceRow]:
    """Return all sources, by name."""
    with conn.cursor(row_factory=class_row(SourceRow)) as cursor:
        return cursor.execute(f"{_ROW} ORDER BY name").fetchall()


def slots(conn: Connection) -> list[tuple[str, str]]:
    """Return name and slot of all sources, by name; none before the schema is installed."""
    row = conn.execute("SELECT pg_catalog.to_regclass('headrace.origins') IS NOT NULL").fetchone()
    if row != (True,):
        return []
    return conn.execute("SELECT name, slot FROM headrace.origins ORDER BY name").fetchall()


def find(conn: Connection, name: str) -> SourceRow | None:
    """Return the source of that name, or None."""
    with conn.cursor(row_factory=class_row(SourceRow)) as cursor:
        return cursor.execute(f"{_ROW} WHERE name = %s", (name,)).fetchone()


def insert(conn: Connection, row: SourceRow) -> bool:
    """Add a source; False: one of that name exists, and the transaction has failed.

    The connection string may hold a password.  The server logs parameters of statements, but not
    data of COPY, and error messages do not show binary data either.
    """
    copy = (
        "COPY headrace.origins (name, dsn, slot, system_id, timeline, published, position, wanted,"
        " last_commit) FROM STDIN (FORMAT binary)"
    )
    values = (row.name, row.dsn, row.slot, row.system_id, row.timeline, row.published)
    try:
        with conn.cursor() as cursor, cursor.copy(copy) as sent:
            # Binary pg_lsn is a big-endian integer of eight bytes, as int8 is.
            sent.set_types([*["text"] * 4, "int4", "text", "int8", "int8", "bytea"])
            position = int(parse_lsn(row.position))
            sent.write_row([*values, position, position, row.last_commit])
    except psycopg.errors.UniqueViolation:
        return False
    return True


def switch(conn: Connection, name: str, timeline: int) -> None:
    """Record that a source goes on on another timeline."""
    conn.execute("UPDATE headrace.origins SET timeline = %s WHERE name = %s", (timeline, name))


def delete(conn: Connection, name: str) -> None:
    """Delete a source and its stand-ins' rows; the tables stay."""
    conn.execute("DELETE FROM headrace.origins WHERE name = %s", (name,))


def add_stand_in(conn: Connection, row: StandIn) -> None:
    """Add a stand-in."""
    conn.execute(
        "INSERT INTO headrace.stand_ins (table_oid, source, origin_oid, schema_name, table_name)"
        " VALUES (%s, %s, %s, %s, %s)",
        (row.table_oid, row.source, row.origin_oid, row.schema_name, row.table_name),
    )


def stand_ins(conn: Connection, source: str) -> list[StandIn]:
    """Return the stand-ins of a source."""
    return _stand_ins(conn, source, None)


def standing_in(conn: Connection, oids: Collection[int]) -> dict[int, StandIn]:
    """Return the stand-ins among the tables ``oids``, by OID."""
    found = _stand_ins(conn, None, list(oids))
    return {row.table_oid: row for row in found}


def _stand_ins(conn: Connection, source: str | None, oids: list[int] | None) -> list[StandIn]:
    rows = conn.execute(
        "SELECT table_oid::bigint, source, origin_oid::bigint, schema_name, table_name"
        " FROM headrace.stand_ins WHERE source = %(source)s OR table_oid = ANY (%(oids)s::oid[])"
        " ORDER BY table_oid",
        {"source": source, "oids": oids},
    )
    return [StandIn(*row) for row in rows.fetchall()]


def readers(conn: Connection, name: str) -> list[str]:
    """Return the names of the views that read a source."""
    rows = conn.execute(
        "SELECT DISTINCT quote_ident(v.schema_name) || '.' || quote_ident(v.view_name)"
        " FROM headrace.views v JOIN headrace.view_tables t ON t.view_id = v.id"
        " JOIN headrace.stand_ins s ON s.table_oid = t.table_oid WHERE s.source = %s ORDER BY 1",
        (name,),
    )
    return [str(row[0]) for row in rows]


def shown(conn: Connection) -> list[Sequence[Any]]:
    """Return a row for each source, with the columns of ``sources.sql`` except the lag."""
    return conn.execute(
        "SELECT s.name, s.state, s.position::text, s.changed, s.heard_at::text,"
        " (SELECT count(DISTINCT t.view_id) FROM headrace.stand_ins i"
        "   JOIN headrace.view_tables t ON t.table_oid = i.table_oid WHERE i.source = s.name),"
        " (SELECT count(*) FROM headrace.stand_ins i WHERE i.source = s.name),"
        " s.problem FROM headrace.origins s ORDER BY s.name"
    ).fetchall()


def candidates(conn: Connection) -> list[str]:
    """Return names of the user's tables here; result tables and stand-ins are left out."""
    return [str(row[0]) for row in conn.execute(_CANDIDATES).fetchall()]


# --- orders to a carrier


def is_held(conn: Connection, name: str) -> bool:
    """Return whether another session of our role holds the source (``mark_holder``).

    Advisory locks do not serve: every role can take any of them and keep it for ever.
    """
    row = conn.execute(_HELD, (_holder(name),)).fetchone()
    return row is not None and bool(row[0])


def mark_holder(conn: Connection, name: str) -> None:
    """Show that this session holds the source, until it ends; call it before ``hold_here``."""
    conn.execute("SELECT pg_catalog.set_config('application_name', %s, false)", (_holder(name),))


def _holder(name: str) -> str:
    return f"headrace holds source {name}"


def hold_here(conn: Connection, name: str) -> None:
    """Order its carrier to bring nothing more.  REQUIRES: ``mark_holder``; autocommit."""
    conn.execute("UPDATE headrace.origins SET hold = position WHERE name = %s", (name,))


def hold_at(conn: Connection, name: str, lsn: Lsn) -> None:
    """Order its carrier to bring everything committed before ``lsn``, and nothing after it."""
    conn.execute(
        "UPDATE headrace.origins SET hold = %(lsn)s, wanted = greatest(wanted, %(lsn)s)"
        " WHERE name = %(name)s",
        {"lsn": format_lsn(lsn), "name": name},
    )
    conn.execute(_NOTIFY, (name,))


def release(conn: Connection, name: str) -> None:
    """Let its carrier continue."""
    conn.execute("UPDATE headrace.origins SET hold = NULL WHERE name = %s", (name,))
    conn.execute(_NOTIFY, (name,))


async def reach(conn: psycopg.AsyncConnection[Any], name: str, lsn: Lsn) -> bool | None:
    """Order changes before ``lsn``; return whether all are here.  None: the source is gone."""
    cursor = await conn.execute(
        "SELECT position >= %(lsn)s, wanted < %(lsn)s FROM headrace.origins WHERE name = %(name)s",
        {"lsn": format_lsn(lsn), "name": name},
    )
    row = await cursor.fetchone()
    if row is not None and row[1] and not row[0]:
        await conn.execute(
            "UPDATE headrace.origins SET wanted = greatest(wanted, %s) WHERE name = %s",
            (format_lsn(lsn), name),
        )
        await conn.execute(_NOTIFY, (name,))
    return None if row is None else bool(row[0])


async def read_by(conn: psycopg.AsyncConnection[Any], view_id: int) -> dict[str, str]:
    """Return the connection strings of the sources that a view reads, by name."""
    cursor = await conn.execute(
        "SELECT s.name, s.dsn FROM headrace.origins s WHERE EXISTS (SELECT"
        " FROM headrace.stand_ins i JOIN headrace.view_tables t ON t.table_oid = i.table_oid"
        " WHERE i.source = s.name AND t.view_id = %s) ORDER BY s.name",
        (view_id,),
    )
    return {str(name): str(dsn) for name, dsn in await cursor.fetchall()}


# --- for a carrier


def asked(conn: Connection, name: str, *, lock: bool = False) -> ReplicatorRequests | None:
    """Return its orders; None: the source is gone.  ``lock``: they stay so in the transaction."""
    row = conn.execute(_ASKED_LOCKED if lock else _ASKED, (name,)).fetchone()
    if row is None:
        return None
    position, wanted, hold = row
    return ReplicatorRequests(
        parse_lsn(position), parse_lsn(wanted), None if hold is None else parse_lsn(hold)
    )


def emit(conn: Connection, prefix: str, content: bytes) -> bool:
    """Write a logical message with ``prefix`` and the token; False: there is no token.

    Postgres joins the two, because parameters may be logged, and any role that knows the token can
    emit messages that are taken for changes of a source.
    """
    row = conn.execute(_EMIT, (prefix, content)).fetchone()
    return row is not None and row[0] is not None


def release_deserted(conn: Connection, name: str) -> None:
    """Release the source if the session that held it has ended.

    The row is locked first: a new holder marks its session before it writes into the row.
    """
    with conn.transaction():
        conn.execute("SELECT FROM headrace.origins WHERE name = %s FOR NO KEY UPDATE", (name,))
        if not is_held(conn, name):
            conn.execute("UPDATE headrace.origins SET hold = NULL WHERE name = %s", (name,))


def move(
    conn: Connection, name: str, old: Lsn, new: Lsn, rows: int = 0, last: bytes | None = None
) -> bool:
    """Move the position after ``rows`` changes; return False if another carrier has moved it.

    ``last``: message about the last transaction that was replicated; None: unchanged.
    """
    moved = conn.execute(
        "UPDATE headrace.origins SET position = %s, changed = changed + %s,"
        " heard_at = pg_catalog.now(), last_commit = coalesce(%s, last_commit)"
        " WHERE name = %s AND position = %s",
        (format_lsn(new), rows, last, name, format_lsn(old)),
    )
    return moved.rowcount > 0


def become(conn: Connection, name: str, state: str, problem: str | None = None) -> None:
    """Store the state of its carrier."""
    conn.execute(
        "UPDATE headrace.origins SET state = %(state)s, problem = %(problem)s"
        " WHERE name = %(name)s AND (state, problem) IS DISTINCT FROM (%(state)s, %(problem)s)",
        {"state": state, "problem": problem, "name": name},
    )
