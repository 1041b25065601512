"""Slot and publication: checks of the source, and their creation.

The publication comes first: a slot cannot decode what was written before its publication
existed (E12).  It starts empty; ``publication.add_tables`` fills it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg
import structlog
from psycopg import sql

from headrace import clock
from headrace.config import Settings
from headrace.errors import PrerequisiteError, TransientError
from headrace.postgres import connect, failures, pending
from headrace.types import Lsn, parse_lsn

Connection = psycopg.Connection[Any]
Fed = Callable[[Connection, int | None], bool]
"""Whether a view was populated under the publication with that OID."""

_log = structlog.get_logger(__name__)

# Releases before these lose changes silently.
_FLOOR: Final = {15: 15_0013, 16: 16_0009, 17: 17_0005}
_VERSION_MIN: Final = 15_0000
_FAILOVER_SINCE: Final = 17_0000
_REFUSALS: Final = ("0A000", "22023", "42501", "42883", "55000")
"""SQLSTATEs of a server that may refuse property ``failover``, and not the slot."""
_DROP_ATTEMPTS: Final = 100
_DROP_PAUSE_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class SlotState:
    """The permanent slot as the server shows it."""

    confirmed: Lsn
    restart: Lsn
    active_pid: int | None
    wal_status: str | None
    failover: bool = False
    """Whether standbys get a copy of it (Postgres 17)."""
    lost_because: str | None = None
    """Why the server has invalidated it, in its own word; None: it has not, or says nothing.
    ``recovery_conflict``: a standby of Postgres 16, which does not say more."""
    created: bool = False
    """Whether ``ensure`` has just created it: then it cannot continue any existing state."""


def preflight(conn: Connection, settings: Settings) -> list[PrerequisiteError]:
    """Return all missing prerequisites of the source, with hints; empty if it is ready."""
    problems = []
    version = conn.info.server_version
    floor = max(_VERSION_MIN, _floor(version))
    if version < floor:
        problems.append(
            PrerequisiteError(
                f"Postgres {_shown(version)} is not supported",
                detail=f"Logical replication loses changes before {_shown(floor)}.",
                hint="Install the latest minor release of version 15 or later.",
            )
        )
    row = conn.execute(
        "SELECT current_setting('wal_level'),"
        " current_setting('max_replication_slots')::int,"
        " (SELECT count(*) FROM pg_catalog.pg_replication_slots),"
        " EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = %s),"
        " (SELECT rolreplication OR rolsuper FROM pg_catalog.pg_roles"
        "   WHERE rolname = current_user), current_user,"
        " pg_catalog.pg_is_in_recovery()",
        (settings.slot_name,),
    ).fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    wal_level, slots_max, slots, has_slot, may_replicate, user, standby = row
    if wal_level != "logical":
        problems.append(
            PrerequisiteError(
                f'wal_level is "{wal_level}", but must be "logical"',
                hint=pending.remedy(conn, "wal_level", "'logical'", pending.is_logical),
            )
        )
    if not may_replicate and not _may_by_service(conn):
        problems.append(
            PrerequisiteError(
                f'role "{user}" may not use replication',
                hint=f"Run ALTER ROLE {sql.Identifier(user).as_string(conn)} REPLICATION; as a superuser.",
                sqlstate="42501",
            )
        )
    # One for a population, one for the engine unless a standby has it.
    needed = slots + (1 if has_slot or settings.decode_from else 2)
    if needed > slots_max:
        problems.append(
            PrerequisiteError(
                f"no replication slot is free: {slots} of max_replication_slots ="
                f" {slots_max} are in use",
                hint="Restart Postgres: the new value of max_replication_slots takes effect then."
                if pending.is_pending(conn, "max_replication_slots", pending.at_least(needed))
                else f"Set max_replication_slots to {needed} or more (and max_wal_senders"
                " too), restart Postgres, or drop an unused slot.",
                sqlstate="53400",
            )
        )
    if standby:
        problems.append(
            PrerequisiteError("the source database is a standby", hint="Connect to the primary.")
        )
    problems += _foreign_publication(conn, settings.publication_name)
    return problems


def _foreign_publication(conn: Connection, name: str) -> list[PrerequisiteError]:
    """Refuse a publication of another role, which could remove tables: views would miss changes."""
    row = conn.execute(
        "SELECT r.rolname FROM pg_catalog.pg_publication p"
        " JOIN pg_catalog.pg_roles r ON r.oid = p.pubowner"
        " WHERE p.pubname = %s AND r.rolname <> current_user",
        (name,),
    ).fetchone()
    if row is None:
        return []
    return [
        PrerequisiteError(
            f'publication "{name}" belongs to role "{row[0]}"',
            detail="Its owner may change what it publishes.",
            hint="Drop it, or set publication_name to another name.",
            sqlstate="42501",
        )
    ]


def ensure(conn: Connection, settings: Settings, fed: Fed) -> SlotState:
    """Check the source, and create publication and slot if missing; idempotent.

    Raises:
        PrerequisiteError: the first missing prerequisite.
        TransientError: the slot could not be created now.
    """
    prepare(conn, settings, fed)
    try:
        state = slot_state(conn, settings.slot_name)
        if state is not None:
            if fails_over(conn, settings) and not state.failover and state.active_pid is None:
                _let_fail_over(settings)
            return state
        # Creation waits for every open transaction that has written; bound that wait (E8).
        conn.execute("SET lock_timeout = '10s'")
        try:
            options = ", failover => true" if fails_over(conn, settings) else ""
            conn.execute(
                f"SELECT pg_catalog.pg_create_logical_replication_slot(%s, 'pgoutput'{options})",
                (settings.slot_name,),
            )
        finally:
            if not conn.closed:
                conn.execute("RESET lock_timeout")
    except psycopg.errors.LockNotAvailable as error:
        raise PrerequisiteError(
            f'slot "{settings.slot_name}" could not be made: a transaction that writes'
            " has been open for too long",
            detail=open_writers(conn),
            hint="End that transaction (see pg_stat_activity, pg_prepared_xacts).",
            sqlstate="55P03",
        ) from error
    except psycopg.Error as error:
        known = failures.classify(error)
        if fails_over(conn, settings) and error.sqlstate in _REFUSALS:
            more = "If the server refuses slots with property failover, set slot_failover = false."
            known = known.again(hint=" ".join(filter(None, (known.hint, more))))
        raise known from error
    made = slot_state(conn, settings.slot_name)
    assert made is not None, "the slot was just made"
    _log.info("slot created", slot=settings.slot_name, lsn=made.confirmed)
    return replace(made, active_pid=None, created=True)


def prepare(conn: Connection, settings: Settings, fed: Fed) -> None:
    """Check the source, and create the publication if it is missing.

    Raises:
        PrerequisiteError: the first missing prerequisite.
        TransientError: the publication could not be created now.
    """
    problems = preflight(conn, settings)
    if problems:
        raise problems[0]
    try:
        ensure_publication(conn, settings, fed)
    except psycopg.Error as error:
        raise failures.classify(error) from error


def fails_over(conn: Connection, settings: Settings) -> bool:
    """Return whether the slot is to be copied to standbys: the server must know how."""
    return settings.slot_failover and conn.info.server_version >= _FAILOVER_SINCE


def _let_fail_over(settings: Settings) -> None:
    """Let the server copy an existing slot to standbys; if it is in use, the next start does.

    A server that refuses is no reason to stop: the stream does not need it.

    Raises:
        psycopg.OperationalError: the connection failed.
    """
    text = sql.SQL("ALTER_REPLICATION_SLOT {} (FAILOVER true)")
    statement, slot = text.format(sql.Identifier(settings.slot_name)), settings.slot_name
    with connect.session(settings.source, name="headrace stream", replication=True) as conn:
        try:
            conn.execute(statement)
        except psycopg.errors.ObjectInUse:
            return
        except psycopg.Error as error:
            if failures.is_lost(error):
                raise
            _log.warning("slot is not copied to standbys", slot=slot, reason=str(error).strip())
            return
    _log.info("slot is copied to standbys", slot=slot)


def ensure_publication(conn: Connection, settings: Settings, fed: Fed) -> None:
    """Create the empty publication, or check that the existing one has the right options.

    A publication that has fed views is repaired if it was altered.  These views have stopped, or
    will: the alteration stays visible (fingerprint.py).
    """
    name = settings.publication_name
    oid = publication_oid(conn, name)
    if oid is None:
        conn.execute(sql.SQL("CREATE PUBLICATION {}").format(sql.Identifier(name)))
        _log.info("publication created", publication=name)
        return
    wrong = _wrong(conn, name)
    if wrong and fed(conn, oid):
        _repair(conn, name)
        _log.warning("publication put right", publication=name, was=wrong)
        wrong = _wrong(conn, name)
    if wrong:
        raise PrerequisiteError(
            f'publication "{name}" {wrong}',
            hint="Drop it, or set publication_name to another name.",
        )


def publication_oid(conn: Connection, name: str) -> int | None:
    """Return the OID of the publication, or None."""
    row = conn.execute(
        "SELECT oid::bigint FROM pg_catalog.pg_publication WHERE pubname = %s", (name,)
    ).fetchone()
    return None if row is None else int(row[0])


def _wrong(conn: Connection, name: str) -> str | None:
    """Return how the existing publication differs from the required one; None: it does not."""
    row = conn.execute(
        "SELECT puballtables, pubinsert AND pubupdate AND pubdelete AND pubtruncate,"
        " pubviaroot, EXISTS (SELECT FROM pg_catalog.pg_publication_namespace n"
        "   WHERE n.pnpubid = p.oid)"
        " FROM pg_catalog.pg_publication p WHERE pubname = %s",
        (name,),
    ).fetchone()
    if row is None:
        return "was dropped"
    all_tables, whole, via_root, by_schema = row
    if all_tables or by_schema:
        return "is FOR ALL TABLES or a whole schema"
    if not whole:
        return "does not publish insert, update, delete and truncate"
    if via_root:
        return "has publish_via_partition_root set"
    if _filtered(conn, name):
        return "has a row filter or column list"
    return None


def _repair(conn: Connection, name: str) -> None:
    """Set the publication to publish all changes of its tables, and no schemas.

    Filtered tables are removed; a view that reads one adds it again.
    """
    tables = conn.execute(
        "SELECT n.nspname, c.relname FROM pg_catalog.pg_publication_rel r"
        " JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid"
        " JOIN pg_catalog.pg_class c ON c.oid = r.prrelid"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " WHERE p.pubname = %s AND (r.prqual IS NOT NULL OR r.prattrs IS NOT NULL)",
        (name,),
    ).fetchall()
    schemas = conn.execute(
        "SELECT s.nspname FROM pg_catalog.pg_publication_namespace n"
        " JOIN pg_catalog.pg_publication p ON p.oid = n.pnpubid"
        " JOIN pg_catalog.pg_namespace s ON s.oid = n.pnnspid WHERE p.pubname = %s",
        (name,),
    ).fetchall()
    ours = sql.Identifier(name)
    with conn.transaction():
        for row in tables:
            statement = sql.SQL("ALTER PUBLICATION {} DROP TABLE ONLY {}")
            conn.execute(statement.format(ours, sql.Identifier(*row)))
        for row in schemas:
            statement = sql.SQL("ALTER PUBLICATION {} DROP TABLES IN SCHEMA {}")
            conn.execute(statement.format(ours, sql.Identifier(*row)))
        if _wrong(conn, name):  # setting anything stops every view (fingerprint.py)
            conn.execute(
                sql.SQL(
                    "ALTER PUBLICATION {} SET (publish_via_partition_root = false,"
                    " publish = 'insert, update, delete, truncate')"
                ).format(ours)
            )


def slot_state(conn: Connection, name: str) -> SlotState | None:
    """Return the slot of that name in this database; None if there is none.

    Raises:
        PrerequisiteError: the name is taken by another database or plugin.
    """
    row = conn.execute(
        "SELECT confirmed_flush_lsn::text, restart_lsn::text, active_pid, wal_status,"
        " coalesce(to_jsonb(s) ->> 'failover', 'false')::bool,"
        " coalesce(to_jsonb(s) ->> 'invalidation_reason',"
        "   CASE WHEN (to_jsonb(s) ->> 'conflicting')::bool THEN 'recovery_conflict' END),"
        " plugin, database, current_database()"
        " FROM pg_catalog.pg_replication_slots s WHERE slot_name = %s",
        (name,),
    ).fetchone()
    if row is None:
        return None
    confirmed, restart, pid, status, failover, reason, plugin, database, here = row
    if plugin != "pgoutput" or database != here:
        raise PrerequisiteError(
            f'replication slot "{name}" cannot be used: it belongs to database'
            f' "{database}", plugin "{plugin}"',
            hint="Slots are per server: set slot_name to another name.",
        )
    return SlotState(
        parse_lsn(confirmed) if confirmed else Lsn(0),
        parse_lsn(restart) if restart else Lsn(0),
        pid,
        status,
        failover,
        reason,
    )


def drop(conn: Connection, settings: Settings) -> None:
    """Drop slot and publication (uninstall), if they exist; see ``drop_ours``."""
    drop_ours(conn, settings.slot_name)
    conn.execute(
        sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(settings.publication_name))
    )


def drop_ours(conn: Connection, name: str) -> None:
    """Drop the slot if it exists, and belongs to this database.

    A copy of a database on the same server finds the slot of the original.
    """
    elsewhere = conn.execute(
        "SELECT database <> current_database() FROM pg_catalog.pg_replication_slots"
        " WHERE slot_name = %s",
        (name,),
    ).fetchone()
    if elsewhere != (True,):
        drop_slot(conn, name)


def drop_slot(conn: Connection, name: str) -> None:
    """Drop Headrace's slot if it exists; wait for a walsender that is just ending.

    Raises:
        TransientError: the slot stays in use.
    """
    for _ in range(_DROP_ATTEMPTS):
        if slot_state(conn, name) is None:
            return
        with contextlib.suppress(psycopg.errors.ObjectInUse):
            conn.execute("SELECT pg_catalog.pg_drop_replication_slot(%s)", (name,))
            return
        clock.sleep(_DROP_PAUSE_S)
    raise TransientError(f'replication slot "{name}" is in use', sqlstate="55006")


def _filtered(conn: Connection, name: str) -> bool:
    row = conn.execute(
        "SELECT count(*) FROM pg_catalog.pg_publication_rel r"
        " JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid"
        " WHERE p.pubname = %s AND (r.prqual IS NOT NULL OR r.prattrs IS NOT NULL)",
        (name,),
    ).fetchone()
    return bool(row and row[0])


def _may_by_service(conn: Connection) -> bool:
    """Return whether the role may replicate through a managed service's group role."""
    row = conn.execute(
        "SELECT count(*) FROM pg_catalog.pg_roles WHERE rolname IN"
        " ('rds_replication', 'cloudsqlreplica', 'azure_pg_admin')"
        " AND pg_catalog.pg_has_role(oid, 'MEMBER')"
    ).fetchone()
    return bool(row and row[0])


def open_writers(conn: Connection) -> str | None:
    """Return a sentence with the processes whose transactions have written, or None."""
    rows = conn.execute(
        "SELECT pid FROM pg_catalog.pg_stat_activity WHERE backend_xid IS NOT NULL"
        " AND pid <> pg_catalog.pg_backend_pid() ORDER BY xact_start LIMIT 5"
    ).fetchall()
    if not rows:
        return None
    return f"Processes with open transactions: {', '.join(str(r[0]) for r in rows)}."


def _floor(version: int) -> int:
    return _FLOOR.get(version // 10_000, 0)


def _shown(version: int) -> str:
    return f"{version // 10_000}.{version % 10_000}"
