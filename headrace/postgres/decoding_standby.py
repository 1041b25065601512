"""The standby that decodes the changes (setting ``decode_from``): its slot and its history.

    primary:  publication ─► WAL ──────────► results, catalog, snapshots
                              └─► standby:  replay ─► slot ─► stream

A standby has the WAL of its primary, so positions are the same on both.  It sends nothing that it
has not replayed, and replays nothing that the primary has not written.  Three conditions make its
stream as good as one of the primary:

* The publication is there before the slot: ``ensure`` waits until it is replayed.  From then on
  each change is decoded with the catalog of its own time, as on a primary.
* Both servers are on one timeline (``check_history``), now and with every message that is used
  (``Receiver``): a stream goes on over a promotion without a word.
* A slot begins at a record of the running transactions, which only the primary writes: it is asked
  to (``_create``).

Source: Postgres manual, "Logical Decoding Concepts", on standbys.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import psycopg
import structlog
from psycopg import sql

from headrace import clock
from headrace.config import Settings
from headrace.errors import HeadraceError, PrerequisiteError, TransientError
from headrace.postgres import connect, failures, timeline
from headrace.postgres import slot as setup
from headrace.types import Lsn, format_lsn, parse_lsn

Connection = psycopg.Connection[Any]

_log = structlog.get_logger(__name__)

VERSION_MIN: Final = 16_0000
PAGE: Final = "See docs/manual/high-availability.md."
_NAME: Final = "headrace stream"
_REPLAY_S: Final = 10.0
"""Seconds that one attempt waits for the publication to be replayed."""
_CREATE_S: Final = 30
"""Seconds that one attempt to create the slot may take; servers log a snapshot every 15 s."""
_POLL_S: Final = 0.02
_SNAPSHOT_S: Final = 0.2
"""Seconds between two requests to log the running transactions: a slot may need several."""


class StandbyUnavailable(TransientError):
    """The standby cannot decode now; the primary is not affected."""


def dsn(settings: Settings) -> str:
    """Return the connection string of the server of the slot."""
    return settings.decode_from or settings.source


@contextlib.contextmanager
def blamed(settings: Settings) -> Iterator[None]:
    """Turn errors that a retry may cure to ``StandbyUnavailable``, if a standby decodes."""
    try:
        yield
    except (TransientError, psycopg.Error) as error:
        known = error if isinstance(error, HeadraceError) else failures.classify(error)
        if not settings.decode_from or not isinstance(known, TransientError):
            raise
        raise unavailable(known) from error


def unavailable(error: TransientError) -> StandbyUnavailable:
    """Return ``error`` as one of the standby, which the message names."""
    if isinstance(error, StandbyUnavailable):
        return error
    return StandbyUnavailable(
        f"the standby of decode_from does not send changes: {error.message}",
        detail=error.detail,
        hint=error.advice,
        sqlstate=error.code,
    )


@contextlib.contextmanager
def connected(settings: Settings, primary: Connection) -> Iterator[Connection]:
    """Yield a connection to the server of the slot: ``primary`` if no standby decodes.

    Raises:
        StandbyUnavailable: the standby cannot be reached now.
        PrerequisiteError: it refuses us.
    """
    if not settings.decode_from:
        yield primary
        return
    with blamed(settings):
        conn = connect.connect(settings.decode_from, name=_NAME)
    with conn:
        yield conn


# --- prerequisites


def problems(conn: Connection, primary: Connection, settings: Settings) -> list[HeadraceError]:
    """Return what keeps the standby at ``conn`` from decoding; empty if it can.

    Raises:
        psycopg.Error: a connection is lost.
    """
    version = conn.info.server_version
    if version < VERSION_MIN:
        shown = f"{version // 10_000}.{version % 10_000}"
        return [
            PrerequisiteError(
                f"the server of decode_from is Postgres {shown}, which cannot decode on a standby",
                hint="Use Postgres 16 or later, or remove decode_from.",
                sqlstate="0A000",
            )
        ]
    row = conn.execute(
        "SELECT pg_catalog.pg_is_in_recovery(), current_setting('wal_level'),"
        " current_setting('max_replication_slots')::int,"
        " (SELECT count(*) FROM pg_catalog.pg_replication_slots),"
        " EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = %s)",
        (settings.slot_name,),
    ).fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    recovers, wal_level, slots_max, slots, has_slot = row
    found: list[HeadraceError] = []
    # After its promotion it is the primary, and its slot goes on.
    if not recovers and not (has_slot and is_same(conn, primary)):
        found.append(
            PrerequisiteError(
                "the server of decode_from is not a standby",
                hint="Name a standby of the source, or remove decode_from.",
            )
        )
    if wal_level != "logical":
        found.append(
            PrerequisiteError(
                f'wal_level of the standby of decode_from is "{wal_level}", but must be "logical"',
                hint="Run ALTER SYSTEM SET wal_level = 'logical'; there, and restart it.",
            )
        )
    if not has_slot and slots >= slots_max:
        found.append(
            PrerequisiteError(
                f"no replication slot is free on the standby of decode_from: {slots} of"
                f" max_replication_slots = {slots_max} are in use",
                hint=f"Set max_replication_slots to {slots + 2} or more there, and restart it.",
                sqlstate="53400",
            )
        )
    return found


def check(primary: Connection, settings: Settings) -> list[HeadraceError]:
    """Return what keeps the standby from decoding now, the first time; empty if it can.

    Raises:
        StandbyUnavailable: it is away, or its history is not that of the primary now.
        TransientError: the primary cannot be reached now.
    """
    found: list[HeadraceError] = []
    try:
        check_history(settings)
    except PrerequisiteError as error:
        found.append(error)
    with connected(settings, primary) as conn, blamed(settings):
        return found + problems(conn, primary, settings)


def is_same(conn: Connection, other: Connection) -> bool:
    """Return whether two connections lead to one server."""
    query = "SELECT pg_catalog.pg_postmaster_start_time(), current_setting('port')"
    return conn.execute(query).fetchone() == other.execute(query).fetchone()


def check_history(settings: Settings) -> None:
    """Check that the standby, if one decodes, has the WAL of the primary and no other.

    Raises:
        PrerequisiteError: it belongs to another cluster.
        StandbyUnavailable: it is away, has not followed a promotion yet, or has another history.
        TransientError: the primary cannot be reached now.
    """
    if not settings.decode_from:
        return
    with connect.connect(settings.source, name=_NAME, replication=True) as primary:
        with blamed(settings):
            standby = connect.connect(settings.decode_from, name=_NAME, replication=True)
        with standby:
            ours = timeline.identify(primary)
            with blamed(settings):
                theirs = timeline.identify(standby)
                ends = timeline.history(standby, theirs.timeline)
                at = _replayed(standby)
            if theirs.system_id != ours.system_id:
                raise PrerequisiteError(
                    "the server of decode_from belongs to another cluster than the source",
                    detail=f"Its system identifier is {theirs.system_id}, that of the source"
                    f" {ours.system_id}.",
                    hint="Name a standby of the source.",
                )
            whole = timeline.history(primary, ours.timeline)
    if theirs.timeline > ours.timeline:
        raise StandbyUnavailable(
            f"the standby of decode_from is on timeline {theirs.timeline}, the primary on"
            f" {ours.timeline}",
            detail="It was promoted, or it follows another primary.",
            hint=f"Let source lead to the primary of timeline {theirs.timeline}, or name another"
            f" standby. {PAGE}",
            sqlstate="55000",
        )
    before = {number: end for number, end in whole.items() if number < theirs.timeline}
    end = whole.get(theirs.timeline)
    if ends != before or (end is not None and at is not None and at > end):
        raise StandbyUnavailable(
            "the standby of decode_from has changes that the primary does not have",
            detail=f"It is at {format_lsn(at or 0)} on timeline {theirs.timeline}, which the primary"
            f" left at {format_lsn(end or 0)}.",
            hint=f"Build the standby anew, or name another one. {PAGE}",
            sqlstate="55000",
        )
    if end is not None:
        raise StandbyUnavailable(
            f"the standby of decode_from has not followed the primary to timeline {ours.timeline}",
            sqlstate="55000",
        )


def _replayed(standby: Connection) -> Lsn | None:
    """Return the LSN up to which the standby has replayed; None: it is no standby."""
    row = standby.execute(
        "SELECT CASE WHEN pg_catalog.pg_is_in_recovery()"
        " THEN pg_catalog.pg_last_wal_replay_lsn()::text END"
    ).fetchone()
    return parse_lsn(row[0]) if row and row[0] else None


# --- slot


def ensure(primary: Connection, settings: Settings, fed: setup.Fed) -> setup.SlotState:
    """Create publication and slot if missing, each on its server; see ``slot.ensure``.

    Raises:
        PrerequisiteError: the first missing prerequisite.
        TransientError: the slot could not be created now.
    """
    if not settings.decode_from:
        return setup.ensure(primary, settings, fed)
    setup.prepare(primary, settings, fed)
    check_history(settings)
    with connected(settings, primary) as conn, blamed(settings):
        lacking = problems(conn, primary, settings)
        if lacking:
            raise lacking[0]
        state = setup.slot_state(conn, settings.slot_name)
        same = is_same(conn, primary)
        if same:
            _log.warning("decode_from is the primary")
        if state is None:
            _await_publication(conn, primary, settings.publication_name)
            state = _create(conn, primary, settings)
    if not same:
        _drop_former(primary, settings)
    return state


def _await_publication(conn: Connection, primary: Connection, name: str) -> None:
    """Wait until the standby has the publication, so that its new slot can decode everything.

    Raises:
        StandbyUnavailable: it lags by more than ``_REPLAY_S``.
    """
    until = clock.monotonic() + _REPLAY_S
    wanted = setup.publication_oid(primary, name)
    while setup.publication_oid(conn, name) != wanted:
        if clock.monotonic() >= until:
            raise StandbyUnavailable(
                f'the standby of decode_from does not have publication "{name}" yet',
                detail="It lags: its slot can be created when it has replayed the publication.",
                sqlstate="55000",
            )
        clock.sleep(_POLL_S)


def _create(conn: Connection, primary: Connection, settings: Settings) -> setup.SlotState:
    """Create the slot on the standby.

    Raises:
        StandbyUnavailable: the server did not find a beginning in ``_CREATE_S``.
    """
    may = primary.execute(
        "SELECT pg_catalog.has_function_privilege('pg_catalog.pg_log_standby_snapshot()', 'EXECUTE')"
    ).fetchone() == (True,)
    conn.execute(sql.SQL("SET statement_timeout = {}").format(sql.Literal(f"{_CREATE_S}s")))
    try:
        with _SnapshotRequests(settings, asks=may):
            conn.execute(
                "SELECT pg_catalog.pg_create_logical_replication_slot(%s, 'pgoutput')",
                (settings.slot_name,),
            )
        conn.execute("RESET statement_timeout")
    except psycopg.errors.QueryCanceled as error:
        hint = "End open transactions (see pg_stat_activity, pg_prepared_xacts)."
        if not may:
            role = sql.Identifier(primary.info.user).as_string(primary)
            hint = (
                "Let Headrace shorten the wait: GRANT EXECUTE ON FUNCTION"
                f" pg_catalog.pg_log_standby_snapshot() TO {role};"
            )
        raise StandbyUnavailable(
            f'slot "{settings.slot_name}" could not be created on the standby of decode_from yet',
            detail=setup.open_writers(primary)
            or "The standby lags, or the primary has not logged its running transactions.",
            hint=hint,
            sqlstate="55P03",
        ) from error
    made = setup.slot_state(conn, settings.slot_name)
    assert made is not None, "the slot was just made"
    _log.info("slot created", slot=settings.slot_name, lsn=made.confirmed)
    return replace(made, active_pid=None, created=True)


class _SnapshotRequests:
    """Has the primary log its running transactions again and again during the block."""

    def __init__(self, settings: Settings, *, asks: bool) -> None:
        """``asks``: the role may ask; else there is only something to log, every 15 s."""
        self._dsn: Final = settings.source
        self._statement: Final = (
            "SELECT pg_catalog.pg_log_standby_snapshot()"
            if asks
            else "SELECT pg_catalog.pg_logical_emit_message(false, 'headrace', '')"
        )
        self._over: Final = threading.Event()
        self._thread: Final = threading.Thread(
            target=self._run, name="headrace-snapshots", daemon=True
        )

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        # If the primary fails, the time limit of the creation ends the wait.
        with (
            contextlib.suppress(HeadraceError, psycopg.Error),
            connect.connect(self._dsn, name=_NAME) as conn,
        ):
            while not self._over.is_set():
                conn.execute(self._statement)
                self._over.wait(_SNAPSHOT_S)


def _drop_former(primary: Connection, settings: Settings) -> None:
    """Drop the slot of a time without ``decode_from``: nothing reads it, and it holds WAL."""
    state = setup.slot_state(primary, settings.slot_name)
    if state is not None and state.active_pid is None:
        setup.drop_slot(primary, settings.slot_name)
        _log.warning("slot of the primary dropped", slot=settings.slot_name)
