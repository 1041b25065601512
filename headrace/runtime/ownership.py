"""Ownership of the views' progress: one engine per database, over two connections.

The *sink* connection belongs to the sink thread and holds the lock: without it, nothing can be
written.  The *catalog* connection belongs to the engine's thread, for status, checks and taking
over.  Both are opened and closed together.

There are two guards.  A session advisory lock makes a second engine refuse to start.  Epochs fence
an engine that lost the lock without noticing (a stopped process, a cut network): taking over a view
raises its epoch, so every other engine's compare-and-set misses.

``list_views()`` recognises the engine by the sink connection's backend, which is recorded once
(``link.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import psycopg
import structlog

from headrace import clock
from headrace.config import Settings
from headrace.errors import FencedError, PrerequisiteError, PrivilegeError, TransientError
from headrace.postgres import failures
from headrace.runtime.link import SinkLink, connected
from headrace.runtime.views import View
from headrace.sql import history, meta, progress, restored
from headrace.sql import views as catalog

Connection = psycopg.Connection[Any]

_log = structlog.get_logger(__name__)
_LOCK: Final = 0x4844_5203
_LOCK_WAIT_S: Final = 15.0
_PAUSE_S: Final = 0.05
_CATALOG: Final = {"synchronous_commit": "on", "plan_cache_mode": "force_generic_plan"}
"""Settings of the catalog connection.  Its statements look up lists of OIDs by index, and planning
them takes longer than running them: they are planned once, not for each list."""
_SINK: Final = "headrace sink"
_BESIDE: Final = "headrace lagging sink"


class Owner(SinkLink):
    """Holder of the advisory lock and the connections; created anew after each loss."""

    def __init__(
        self,
        settings: Settings,
        previous_pid: int | None = None,
        known_epoch: int = 0,
        before: Callable[[int], None] | None = None,
    ) -> None:
        """Connect and take the lock; end the engine's own backend ``previous_pid`` if it holds it.

        ``known_epoch``: the highest epoch that this engine has had.  ``before`` is called with the
        database's last epoch, before another one begins.

        Raises:
            PrerequisiteError: another engine runs on the database.
            TransientError: the server cannot be reached now.
        """
        super().__init__(settings, _SINK)
        self._settings: Final = settings
        try:
            self._lock(previous_pid)
            self.conn: Final = connected(settings, "headrace catalog", _CATALOG)
            _check_catalog(self.conn)
            if before is not None:
                before(meta.epoch(self.conn))
            self.epoch: Final = meta.begin(self.conn, known_epoch)
            """Higher than the epoch of every earlier holder of the lock."""
        except psycopg.Error as error:
            self.sink.close()
            raise failures.classify(error) from error
        except BaseException:
            self.sink.close()
            raise
        self._announced = False
        self._beside: SinkLink | None = None

    def beside(self) -> SinkLink:
        """Return the connection of lagging views, opened when it is first needed.

        It has no lock of its own: both connections are lost with the lock, and epochs fence writes
        that are still under way.

        Raises:
            TransientError: the server cannot be reached now, or another one is the primary.
        """
        if self._beside is None:
            link = SinkLink(self._settings, _BESIDE)
            # The primary may have died unnoticed: a promoted standby does not have the lock.
            if _holder(link.sink) != self.pid and not _taken(link.sink):
                link.close()
                raise TransientError("another server is the primary now")
            self._beside = link
        return self._beside

    def interrupt_beside(self) -> None:
        """Run ``interrupt`` on the connection of lagging views."""
        if self._beside is not None:
            self._beside.interrupt()

    def forget(self, view_id: int) -> None:
        """Forget what is known of a view's table.  REQUIRES: the table is not being written."""
        for link in self._links():
            link.writer.forget(view_id)

    def announce(self) -> None:
        """Record, once, that views are written over the sink connection from now on."""
        if self._announced:
            return
        self._announced = True
        self.conn.execute(meta.ANNOUNCE, ("worker", self.pid))

    def take_over(self, views: Iterable[View]) -> list[View]:
        """Take ownership of ``views``; return those that have no progress row (are gone).

        Raises:
            FencedError: another engine took one of them over meanwhile.
        """
        wanted = list(views)
        try:
            found = progress.take_over(self.conn, [v.id for v in wanted])
        except psycopg.Error:
            # The server may have done it, so the next epoch does not prove another engine.
            for view in wanted:
                view.progress = None
            raise
        gone = []
        for view in wanted:
            at = found.get(view.id)
            if at is None:
                gone.append(view)
                continue
            if view.progress is not None and at.epoch != view.progress.epoch + 1:
                raise FencedError(
                    f"another engine has taken over view {view.id}",
                    detail=f"Its epoch was {at.epoch - 1}; this engine had {view.progress.epoch}.",
                )
            view.progress = at
        self.look_for_histories(wanted)
        return gone

    def look_for_histories(self, views: Iterable[View]) -> None:
        """Read which of ``views``, as far as they are owned, have a history from now on.

        REQUIRES: nothing of them is in flight.
        """
        owned = {view.id: view for view in views if view.progress is not None}
        kept = history.begun(self.conn, {i: v.progress for i, v in owned.items() if v.progress})
        for view in owned.values():
            view.kept = view.id in kept

    def check_caller(self, caller: str | None) -> None:
        """Raise PrivilegeError unless ``caller`` may act for the engine's role."""
        row = self.conn.execute(
            "SELECT %(caller)s::name IS NULL OR EXISTS (SELECT FROM pg_catalog.pg_roles r"
            " WHERE r.rolname = %(caller)s"
            " AND pg_catalog.pg_has_role(r.oid, current_user, 'MEMBER')), current_user",
            {"caller": caller},
        ).fetchone()
        if not row or not row[0]:
            raise PrivilegeError(
                "permission denied to control the engine",
                hint=f'Only members of role "{row[1] if row else ""}" may.',
            )

    def close(self) -> None:
        """Close connections, which frees the lock.  REQUIRES: the sink threads have left them."""
        self.conn.close()
        for link in self._links():
            link.sink.close()

    def _links(self) -> list[SinkLink]:
        return [self] if self._beside is None else [self, self._beside]

    def _lock(self, previous_pid: int | None) -> None:
        until = clock.monotonic() + _LOCK_WAIT_S
        while True:
            row = self.sink.execute(
                "SELECT pg_catalog.pg_try_advisory_lock(%s)", (_LOCK,)
            ).fetchone()
            if row and row[0]:
                return
            holder = _holder(self.sink)
            if holder is None and _taken(self.sink):
                # Any role can take an advisory lock; epochs still fence another engine.
                _log.warning("advisory lock of the engine is held by another role")
                return
            if holder is not None and holder == previous_pid:
                self.sink.execute("SELECT pg_catalog.pg_terminate_backend(%s)", (holder,))
            if clock.monotonic() > until:
                raise _another(holder)
            clock.sleep(_PAUSE_S)


def _check_catalog(conn: Connection) -> None:
    """Check that the database has a catalog that may be used.

    A host name may lead to another server than at the start of the process.

    Raises:
        TransientError: it has none, or one from a dump.
    """
    stale = restored.problem(conn)
    if stale is not None:
        raise TransientError(stale.message, detail=stale.detail, sqlstate="55000")
    if not catalog.installed(conn):
        raise TransientError(
            "the database has no schema headrace: it was dropped, or this is another server",
            sqlstate="3F000",
        )


def check_alone(conn: Connection) -> None:
    """Check that no other engine runs on the database of ``conn``.

    It waits a little, because the server may notice late that an engine was killed.  It waits
    longer than a worker does, which is restarted anyway.

    Raises:
        PrerequisiteError: another engine runs.
    """
    until = clock.monotonic() + 2 * _LOCK_WAIT_S
    while (holder := _holder(conn)) is not None:
        if clock.monotonic() > until:
            raise _another(holder)
        clock.sleep(_PAUSE_S)


def _another(holder: int | None) -> PrerequisiteError:
    return PrerequisiteError(
        "another headrace engine is running on this database",
        detail=f"It is connected as process {holder}.",
        hint="Stop it first; one engine serves all views of a database.",
        sqlstate="55006",
    )


def _holder(conn: Connection) -> int | None:
    """Return the backend of the engine's role that holds the engine's lock in this database."""
    return next((pid for pid, ours in _holders(conn) if ours), None)


def _taken(conn: Connection) -> bool:
    """Return whether another role holds the lock."""
    return any(not ours for _, ours in _holders(conn))


def _holders(conn: Connection) -> list[tuple[int, bool]]:
    """Return the backends that hold the lock, and whether each is of the engine's role."""
    rows = conn.execute(
        "SELECT l.pid, coalesce(a.usename = current_user, false) FROM pg_catalog.pg_locks l"
        " LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid"
        " WHERE l.locktype = 'advisory'"
        " AND l.classid = 0 AND l.objid = %s AND l.objsubid = 1 AND l.granted"
        " AND l.database = (SELECT oid FROM pg_catalog.pg_database"
        "                    WHERE datname = current_database())",
        (_LOCK,),
    ).fetchall()
    return [(int(pid), bool(ours)) for pid, ours in rows]
