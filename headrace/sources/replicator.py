"""Replicates the changes of one source into the WAL of the main database.

    BEGIN ─ lock the source's row ─ emit messages … ─ move its position ─ COMMIT ─ confirm

Transactions of the source are written whole and in order; waiting ones share a transaction here.
One commit covers the emitted messages and the position, and only then may the source discard the
WAL before that position.  So each change arrives exactly once, whichever process is killed.

A stream begins at the last transaction that was replicated.  A source that does not send it again
was restored (``forwarder/last_commit.py``).  Before that is known, no position is confirmed to it,
and later none that it has not reached.

During a snapshot of the source (``population/elsewhere.py``) transactions committed at or after
``hold`` wait, for any time; meanwhile the replicator keeps answering the source's server.
"""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Iterator
from typing import Any, Final

import psycopg
import structlog

from headrace import clock
from headrace.config import Settings
from headrace.errors import ContinuityLost, FencedError, HeadraceError, TransientError
from headrace.forwarder import carried, last_commit
from headrace.forwarder.receiver import Origin, Receiver
from headrace.kernels.pgoutput import Commit, read_begin, read_commit
from headrace.postgres import failures, timeline
from headrace.postgres import identity as replica_identity
from headrace.postgres.connect import connect
from headrace.postgres.timeline import Identity
from headrace.process import password_files
from headrace.sources import remote, widths
from headrace.sources.confirmation import Confirmation
from headrace.sql import origins
from headrace.types import Lsn, format_lsn, parse_lsn

_log = structlog.get_logger(__name__)

_OID: Final = struct.Struct("!I")
_TRUNCATE: Final = struct.Struct("!IB")
_B, _C, _R, _T = b"BCRT"
_ROWS: Final = frozenset(b"IUD")
_CHUNK_BYTES: Final = 1 << 18
"""Size from which buffered changes are emitted as one message."""
_GROUP_BYTES: Final = 1 << 20
"""Size from which the open transaction is committed, even if more changes wait."""
_FEEDBACK_S: Final = 1.0
_ASK_S_MIN: Final = 0.002
_ASK_S_MAX: Final = 0.05
_STAND_S: Final = 0.02
_KEEP_S: Final = 10.0
"""Interval at which the position moves on while the source's tables do not change."""
_LOCK_TIMEOUT_MS: Final = 500
_SILENCE_S_MAX: Final = 90.0
_RETRY_S_MIN: Final = 0.2
_RETRY_S_MAX: Final = 5.0


class SourceCarrier:
    """Replicator of one source; it runs until ``stop``."""

    def __init__(self, settings: Settings, name: str) -> None:
        self._settings = settings
        self._name = name
        self._stopping = threading.Event()
        self._session: _Session | None = None
        self._log = _log.bind(source=name)

    def stop(self) -> None:
        """End soon; uncommitted changes are read again later.  For any thread."""
        self._stopping.set()
        if (session := self._session) is not None:
            session.wake()

    def run(self) -> None:
        """Replicate until told to stop; retry after every error."""
        pause = _RETRY_S_MIN
        while not self._stopping.is_set():
            began = clock.monotonic()
            try:
                with self._connected() as main:
                    self._carry(main)
            except psycopg.Error as error:
                self._log.warning("carrier lost its connection", reason=str(error).strip())
            except HeadraceError as error:
                self._log.warning("carrier interrupted", reason=error.message, code=error.code)
            if clock.monotonic() - began > _RETRY_S_MAX:
                pause = _RETRY_S_MIN
            self._stopping.wait(pause)
            pause = min(2 * pause, _RETRY_S_MAX)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[Any]]:
        with connect(
            self._settings.source,
            name=f"headrace carrier {self._name}",
            # The source discards its WAL once the changes are committed here.
            settings={"synchronous_commit": "on"},
        ) as main:
            main.add_notify_handler(_heard)
            main.execute(f"LISTEN {origins.CHANNEL}")
            yield main

    def _carry(self, main: psycopg.Connection[Any]) -> None:
        row = origins.find(main, self._name)
        if row is None:
            return  # the source was dropped: the commander ends this process
        try:
            session = _Session(main, row, self._stopping, self._settings)
        except (HeadraceError, psycopg.Error) as error:
            self._tell(main, error)
            raise
        self._session = session
        try:
            origins.become(main, self._name, "running")
            self._log.info("carrier begins", lsn=row.position)
            session.run()
        except (HeadraceError, psycopg.Error) as error:
            with contextlib.suppress(psycopg.Error):  # this connection may be the lost one
                main.execute("ROLLBACK")
                self._tell(main, error)
            raise
        finally:
            self._session = None
            session.close()

    def _tell(self, main: psycopg.Connection[Any], error: Exception) -> None:
        """Record the problem of the source in the catalog."""
        known = error if isinstance(error, HeadraceError) else failures.classify(error)  # type: ignore[arg-type]
        lost = isinstance(known, ContinuityLost)
        text = known.message if not known.detail else f"{known.message}: {known.detail}"
        origins.become(main, self._name, "lost" if lost else "down", text)


class _Session:
    """Replication over one connection to the source."""

    def __init__(
        self,
        main: psycopg.Connection[Any],
        row: origins.SourceRow,
        stopping: threading.Event,
        settings: Settings,
    ) -> None:
        self._main = main
        self._name = row.name
        self._stopping = stopping
        self._position = parse_lsn(row.position)
        last = None if row.last_commit is None else read_commit(row.last_commit)
        self._covered = self._position if last is None else Lsn(last.end_lsn)
        """Transactions that committed before it were replicated by an earlier session."""
        self._last: Commit | None = None
        """Last transaction that this session has replicated."""
        stand_ins = origins.stand_ins(main, row.name)
        names = _names(main, [s.table_oid for s in stand_ins])
        self._tables = {
            s.origin_oid: (_OID.pack(s.table_oid), *names[s.table_oid])
            for s in stand_ins
            if s.table_oid in names
        }
        """By OID in the source: the shadow table's OID, names and columns, as in messages."""
        self._narrow: dict[int, frozenset[int]] = {}
        """Positions of the columns to forward, for tables that have gained columns."""
        self._described: dict[int, bytes] = {}
        """Forwarded descriptions of tables, by OID in the source."""
        origin = Origin(
            row.dsn,
            f"headrace carrier {row.name}",
            row.slot,
            row.slot,
            settings.spool_dir,
            settings.memory.transaction,
        )
        self._confirmation = Confirmation(main)
        password_files.check(row.dsn)
        identity = self._follow(row)
        self._ordinary = connect(row.dsn, name="headrace carrier")
        self._slot, self._published = row.slot, row.published
        try:
            self._check()
            self._receiver = Receiver(
                origin,
                self._ordinary,
                self._position,
                self._on_keepalive,
                identity,
                self._covered if last is None else last.commit_lsn or last.end_lsn,
            )
        except BaseException:
            self._ordinary.close()
            raise
        begins = Lsn(self._receiver.begins)
        # The slot of a source that goes back further was confirmed in this history.
        self._expected = last if last and begins <= last.commit_lsn else None
        """Transaction that the source must send again."""
        self._sent = begins
        """LSN up to which this source is known to have written."""
        self._inside = self._late = False
        """Whether a transaction of the source is open, and whether it was replicated before."""
        self._alive = Lsn(0)
        """LSN before which everything has been received."""
        self._wanted = Lsn(0)
        # State of the transaction that is open in the main database.
        self._open = False
        self._asked = origins.ReplicatorRequests(self._position, self._position, None)
        self._end = self._position
        self._told: set[int] = set()
        self._chunk: list[bytes] = []
        self._chunk_bytes = self._group_bytes = self._rows = 0

    def _follow(self, row: origins.SourceRow) -> Identity:
        """Return the source's timeline; go over to a new one that has all that was replicated.

        Raises:
            ContinuityLost: the promoted server may lack changes.
        """
        known = Identity(row.system_id, row.timeline)
        found = timeline.switch_point(row.dsn, known, f"headrace carrier {row.name}")
        if found is None:
            return known
        who, lsn = found
        if self._position > lsn:
            raise ContinuityLost(
                "the promoted server lacks changes that were replicated",
                detail=f"It left timeline {known.timeline} at {format_lsn(lsn)}; changes were"
                f" replicated up to {row.position}.",
                hint="Set synchronized_standby_slots on the source.",
            )
        origins.switch(self._main, row.name, who.timeline)
        _log.info("source switched", source=row.name, timeline=who.timeline)
        return who

    def wake(self) -> None:
        """Wake the loop, so that it sees a stop; for any thread."""
        self._receiver.wake()

    def close(self) -> None:
        """Disconnect from the source."""
        self._ordinary.close()
        self._receiver.close()

    def _check(self) -> None:
        """Raise ContinuityLost if the publication of the source has changed.

        Unpublish tables that have lost their replica identity, because Postgres would refuse
        updates and deletes of them.
        """
        lost = replica_identity.find_unidentified(self._ordinary, self._slot)
        replica_identity.withdraw(self._ordinary, self._slot, lost, _LOCK_TIMEOUT_MS)
        if remote.published(self._ordinary, self._slot) != self._published:
            raise ContinuityLost(
                f'publication "{self._slot}" of the source was changed',
                detail="Changes may have been missed.",
            )

    def run(self) -> None:
        """Replicate until told to stop, or until an error."""
        receiver = self._receiver
        last_feedback = last_input = kept = checked = clock.monotonic()
        pause = _ASK_S_MIN
        self._look()
        while not self._stopping.is_set():
            now = clock.monotonic()
            urgent = self._wanted > self._position
            pause = pause if urgent else _ASK_S_MIN
            every = pause if urgent else _FEEDBACK_S
            if now - last_feedback >= every:
                self._confirm(ask=True)
                last_feedback, pause = now, min(2 * pause, _ASK_S_MAX)
            if now - checked >= _FEEDBACK_S:
                self._check()
                checked = now
            messages, idle = receiver.gather()
            receiver.check_notices()
            if messages:
                last_input = now
                self._take(messages)
            if self._open and not self._inside and (idle or self._group_bytes > _GROUP_BYTES):
                self._commit()
            if not idle:
                continue
            if not self._open and self._alive > self._position and (urgent or now - kept > _KEEP_S):
                self._move(self._alive)
                kept = now
                continue
            left = max(last_feedback + every - clock.monotonic(), 0.0)
            if receiver.wait(left, self._main.fileno()):
                last_input = clock.monotonic()
            elif clock.monotonic() - last_input > _SILENCE_S_MAX:
                raise TransientError("the source has been silent for too long")
            if not self._open:
                self._look()

    # --- messages from the source

    def _take(self, messages: list[bytes]) -> None:
        for message in messages:
            kind = message[0]
            if kind in _ROWS:
                if not self._late:
                    self._change(message)
            elif kind == _B:
                final = Lsn(read_begin(message).final_lsn)
                self._inside, self._late = True, final < self._covered
                if not self._late:
                    self._begin(final)
            elif kind == _C:
                self._end_transaction(read_commit(message))
            elif kind == _R:
                self._describe(message)
            elif kind == _T and not self._late:
                self._truncate(message)

    def _end_transaction(self, commit: Commit) -> None:
        """Note the end of a transaction of the source.

        Raises:
            ContinuityLost: the source does not have the transaction that it must send again.
        """
        if self._expected is not None and last_commit.repeats(self._expected, commit):
            self._expected = None
        self._sent = max(self._sent, Lsn(commit.end_lsn))
        if not self._late:
            self._last = commit
            self._end = max(self._end, Lsn(commit.end_lsn))
        self._inside = self._late = False

    def _on_keepalive(self, before: list[bytes], lsn: int, ask: bool) -> None:
        self._take(before)
        if not self._inside:
            if self._expected is not None and self._expected.end_lsn <= lsn:
                raise last_commit.missing(self._expected)
            self._alive = Lsn(lsn)
            self._sent = max(self._sent, self._alive)
        if ask:
            self._confirm(ask=False)

    def _confirm(self, *, ask: bool) -> None:
        """Confirm what the main database has; ``ask`` the server for its position."""
        lsn = min(self._confirmation.of(self._position), self._sent)
        self._receiver.feedback(Lsn(0) if self._expected is not None else lsn, ask=ask)

    def _describe(self, message: bytes) -> None:
        (oid,) = _OID.unpack_from(message, 1)
        if oid not in self._tables:
            return
        own, names, columns = self._tables[oid]
        at = message.index(0, message.index(0, 1 + _OID.size) + 1) + 1
        found = widths.columns(message, at)
        kept = widths.places(found, columns)
        if kept is None:
            raise ContinuityLost(
                "a table of the source was altered",
                detail=f"{names[:-1].decode().replace(chr(0), '.')} stands for one that had"
                " other columns.",
                hint="Drop what reads the source, drop_source, and add it again.",
            )
        described = message[at:]
        if len(kept) < len(found):
            self._narrow[oid] = kept
            described = widths.narrowed(described, kept)
        else:
            self._narrow.pop(oid, None)
        self._described[oid] = b"R" + own + names + described
        self._told.discard(oid)

    def _change(self, message: bytes) -> None:
        (oid,) = _OID.unpack_from(message, 1)
        if oid in self._tables:
            self._tell(oid)
            if oid in self._narrow:
                message = widths.narrow_row(message, self._narrow[oid])
            self._put(message[:1] + self._tables[oid][0] + message[1 + _OID.size :])
            self._rows += 1

    def _truncate(self, message: bytes) -> None:
        count, options = _TRUNCATE.unpack_from(message, 1)
        oids = struct.unpack_from(f"!{count}I", message, 1 + _TRUNCATE.size)
        known = [oid for oid in oids if oid in self._tables]
        for oid in known:
            self._tell(oid)
        if known:
            own = b"".join(self._tables[oid][0] for oid in known)
            self._put(b"T" + _TRUNCATE.pack(len(known), options) + own)
            self._rows += len(known)

    def _tell(self, oid: int) -> None:
        """Emit the table's description once per transaction: a reader may begin at any of these."""
        if oid not in self._told:
            if oid not in self._described:
                raise ContinuityLost(f"the source did not describe the table with OID {oid}")
            self._told.add(oid)
            self._put(self._described[oid])

    # --- writes to the main database

    def _begin(self, final: Lsn) -> None:
        """Open a transaction that may include changes committed at ``final``; wait for holds."""
        asked = self._locked()
        while asked.hold is not None and final >= asked.hold:
            if self._end > self._position or self._rows:
                self._commit()
            else:
                self._main.execute("ROLLBACK")
                self._forget()
            if asked.hold > self._position:
                self._move(asked.hold)
            self._stand()
            asked = self._locked()

    def _locked(self) -> origins.ReplicatorRequests:
        """Open a transaction and lock the source's row; return its orders, fixed until the end."""
        if self._open:
            return self._asked
        self._main.execute("BEGIN")
        self._open = True
        asked = origins.asked(self._main, self._name, lock=True)
        if asked is None:
            raise TransientError("the source was dropped")
        if asked.position != self._position:
            raise FencedError("another carrier has taken over")
        self._asked = asked
        return asked

    def _stand(self) -> None:
        """Wait while held, for up to a second; then send feedback, and release a deserted hold."""
        until = clock.monotonic() + _FEEDBACK_S
        hold = True
        while hold and clock.monotonic() < until and not self._stopping.is_set():
            self._stopping.wait(_STAND_S)
            asked = origins.asked(self._main, self._name)
            hold = asked is not None and asked.hold is not None and asked.hold <= self._position
        if self._stopping.is_set():
            raise TransientError("told to stop")
        if hold:
            self._confirm(ask=False)
            origins.release_deserted(self._main, self._name)

    def _put(self, message: bytes) -> None:
        self._chunk.append(message)
        self._chunk_bytes += len(message)
        if self._chunk_bytes >= _CHUNK_BYTES:
            self._emit()

    def _emit(self) -> None:
        chunk, prefix = self._chunk, carried.prefix("")
        if chunk and not origins.emit(self._main, prefix, carried.packed(chunk)):
            raise FencedError("the catalog was removed")
        self._group_bytes += self._chunk_bytes
        self._chunk, self._chunk_bytes = [], 0

    def _commit(self) -> None:
        """Commit the open transaction.  REQUIRES: no transaction of the source is half done."""
        self._emit()
        rows, end = self._rows, self._end
        last = self._last.encode() if self._last else None
        if not origins.move(self._main, self._name, self._position, end, rows, last):
            raise FencedError("another carrier has taken over")
        self._main.execute("COMMIT")
        self._forget()
        self._came(end)

    def _forget(self) -> None:
        self._open = False
        self._told.clear()
        self._chunk = []
        self._chunk_bytes = self._group_bytes = self._rows = 0

    def _move(self, lsn: Lsn) -> None:
        """Move the position to ``lsn``, without changes in between."""
        if not origins.move(self._main, self._name, self._position, lsn):
            raise FencedError("another carrier has taken over")
        self._came(lsn)

    def _came(self, lsn: Lsn) -> None:
        self._position = self._end = lsn
        self._confirm(ask=False)

    def _look(self) -> None:
        """Read the requested position from the catalog."""
        asked = origins.asked(self._main, self._name)
        if asked is None:
            raise TransientError("the source was dropped")
        self._wanted = asked.wanted


def _names(
    main: psycopg.Connection[Any], oids: list[int]
) -> dict[int, tuple[bytes, tuple[widths.Column, ...]]]:
    """Return the names of tables, encoded as in a description, and their columns, by OID."""
    rows = main.execute(
        "SELECT c.oid::bigint, n.nspname, c.relname, (SELECT jsonb_agg(jsonb_build_array("
        "   a.attname, a.atttypid::bigint) ORDER BY a.attnum) FROM pg_attribute a"
        "  WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)"
        " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.oid = ANY (%s::oid[])",
        (oids,),
    ).fetchall()
    return {
        int(oid): (f"{schema}\0{name}\0".encode(), tuple((str(n), int(t)) for n, t in columns))
        for oid, schema, name, columns in rows
    }


def _heard(notify: psycopg.Notify) -> None:
    """Ignore the notification: its arrival alone wakes the loop."""
