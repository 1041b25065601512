"""The part of ``headrace check`` that looks at standbys: can they decode, or be promoted?

A standby that may be promoted is known if the connection string names it, besides the primary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from headrace.config import Settings
from headrace.errors import HeadraceError
from headrace.postgres import connect, decoding_standby
from headrace.postgres import slot as setup

Connection = psycopg.Connection[Any]

PAGE: Final = "See docs/manual/high-availability.md."
COPIED: Final = "slot {} is copied to {}"
_STANDBY: Final = """
SELECT pg_catalog.pg_is_in_recovery(),
       coalesce(current_setting('sync_replication_slots', true), 'off') = 'on',
       current_setting('hot_standby_feedback') = 'on',
       current_setting('primary_slot_name') <> '',
       (SELECT (to_jsonb(s) ->> 'synced')::bool AND NOT temporary
               AND to_jsonb(s) ->> 'invalidation_reason' IS NULL
          FROM pg_catalog.pg_replication_slots s WHERE slot_name = %s)
"""
_DECODING: Final = """
SELECT pg_catalog.pg_is_in_recovery(),
       current_setting('hot_standby_feedback') = 'on',
       current_setting('primary_slot_name') <> '',
       EXISTS (SELECT FROM pg_catalog.pg_replication_slots s WHERE slot_name = %s
                AND (to_jsonb(s) ->> 'invalidation_reason' IS NOT NULL
                     OR (to_jsonb(s) ->> 'conflicting')::bool OR wal_status = 'lost'))
"""
_WANTED: Final = ("sync_replication_slots = on", "hot_standby_feedback = on", "primary_slot_name")


def findings(conn: Connection, settings: Settings) -> Iterator[tuple[str, str | None]]:
    """Yield what was found of failover, and a warning if views would not survive a promotion.

    ``conn`` is a connection to the primary.
    """
    if settings.decode_from:
        slot = settings.slot_name
        yield f"slot {slot} survives if the standby of decode_from follows, or is promoted", None
        return
    standbys = _standbys(settings.source, conn)
    count = conn.execute(
        "SELECT count(*) FROM pg_catalog.pg_replication_slots"
        " WHERE slot_type = 'physical' AND NOT temporary"
    ).fetchone()
    assert count is not None, "a SELECT of an aggregate has one row"
    if not standbys and not count[0]:
        yield "no standby with a slot", None
    elif not setup.fails_over(conn, settings):
        why = "slot_failover is off" if not settings.slot_failover else "it needs Postgres 17"
        warning = f"After a promotion all views are filled anew. {PAGE}"
        yield f"slot {settings.slot_name} is not copied to standbys: {why}", warning
    elif not standbys:
        yield f"slot {settings.slot_name} is copied to standbys that ask for it", None
    for where, dsn in standbys.items():
        yield _of(where, dsn, settings.slot_name)


def decoding(conn: Connection, settings: Settings) -> Iterator[tuple[str, str | None]]:
    """Yield what was found of the standby of ``decode_from``, and warnings about its slot.

    ``conn`` is a connection to the primary.

    Raises:
        HeadraceError: the first thing that keeps it from decoding.
    """
    lacking = decoding_standby.check(conn, settings)
    if lacking:
        raise lacking[0]
    with decoding_standby.connected(settings, conn) as standby:
        where = f"{standby.info.host}:{standby.info.port}"
        row = standby.execute(_DECODING, (settings.slot_name,)).fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    recovers, feedback, has_slot, lost = row
    if lost:
        yield (
            f"slot {settings.slot_name} of {where} was invalidated",
            f"All views are filled anew. {PAGE}",
        )
        return
    wanted = {"hot_standby_feedback = on": feedback, "primary_slot_name": has_slot}
    unset = [name for name, there in wanted.items() if recovers and not there]
    if unset:
        warning = (
            f"Set {' and '.join(unset)} on it, or a vacuum of the primary may invalidate its slot."
        )
        yield f"{where} decodes", f"{warning} {PAGE}"
    else:
        yield f"{where} decodes{'' if recovers else ', and is the primary'}", None


def _of(where: str, dsn: str, slot: str) -> tuple[str, str | None]:
    """Return what was found of one standby, and a warning."""
    try:
        with connect.connect(dsn, name="headrace check") as conn:
            row = conn.execute(_STANDBY, (slot,)).fetchone()
    except (HeadraceError, psycopg.Error) as error:
        return f"{where} cannot be reached", f"{error}. It cannot be seen whether it has the slot."
    assert row is not None, "a SELECT without FROM has one row"
    recovers, *wanted, ready = row
    if not recovers:
        return f"{where} is not a standby", "Two servers accept writes: remove one of them."
    lacking = [name for name, there in zip(_WANTED, wanted, strict=True) if not there]
    if lacking:
        return f"{where} does not copy slots", f"Set {', '.join(lacking)} on it. {PAGE}"
    if not ready:
        warning = "A promotion now would fill all views anew. Check again in half a minute."
        return f"slot {slot} is not copied to {where} yet", warning
    return COPIED.format(slot, where), None


def _standbys(dsn: str, primary: Connection) -> dict[str, str]:
    """Return connection strings of the other servers that ``dsn`` names, by address."""
    given = {key: str(value) for key, value in conninfo_to_dict(dsn).items()}
    hosts = (given.get("host") or given.get("hostaddr", "")).split(",")
    if len(hosts) < 2:
        return {}
    ports = (given.get("port") or "5432").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    out = {}
    for place, (host, port) in enumerate(zip(hosts, ports, strict=True)):
        if (host, port) == (primary.info.host, str(primary.info.port)):
            continue
        one = given | {"host": host, "port": port, "target_session_attrs": "any"}
        if "hostaddr" in given:
            one["hostaddr"] = given["hostaddr"].split(",")[place]
        out[f"{host}:{port}"] = make_conninfo("", **one)
    return out
