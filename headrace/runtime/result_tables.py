"""Periodic checks of the result tables, so that a change is found without a row to write.

Each table has a *sign*, which changes when it is dropped, renamed or altered, when rights on it are
granted, or when an index is created.  Only then is it checked in full: a view whose table is gone
or altered stops, and users' additions to the table are recorded (sink/table_metadata.py), in case
it is lost.

Postgres has no index of recent catalog changes.  So one check covers at most ``_TURN`` tables in
turn, besides those of new and changed views.  With thousands of views it takes a while until a
table has its turn, but each check costs the same.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

import psycopg
import structlog
from psycopg import sql

from headrace import clock
from headrace.errors import RESYNC, HeadraceError, SinkBlocked, SinkTableError
from headrace.postgres import failures, fingerprint
from headrace.runtime.engine_state import EngineState
from headrace.runtime.views import Connection, View
from headrace.sink import table, trouble
from headrace.sql import results

_log = structlog.get_logger(__name__)
_TURN: Final = 100


def unwritable(state: EngineState, view: View, *, lock: bool = False) -> HeadraceError | None:
    """Return why a result table cannot be written, or None; ``lock``: also if it is locked now."""
    return find_unwritable(state, [view], lock=lock).get(view.id)


def find_unwritable(
    state: EngineState, views: Sequence[View], *, lock: bool = False
) -> dict[int, HeadraceError]:
    """Return why result tables cannot be written, by view ID; without those that can.

    All are checked together.  If the server raises an error, the halves are checked separately,
    until the table at fault is found.
    """
    try:
        return _look(state, views, lock=lock)
    except psycopg.errors.LockNotAvailable:
        # Without ``lock``, a lock on the system catalog: the caller tries again later.
        if not lock:
            raise
        error: HeadraceError = SinkBlocked(f"result table {views[0].target.shown} is locked")
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        shown = views[0].target.shown
        error = SinkTableError(f"result table {shown} was dropped", hint=RESYNC)
    except psycopg.Error as raised:
        if failures.is_lost(raised) or failures.is_transient(raised):
            raise
        error = trouble.of_view(views[0].target, raised)
    if len(views) == 1:
        return {views[0].id: error}
    half = len(views) // 2
    return find_unwritable(state, views[:half], lock=lock) | find_unwritable(
        state, views[half:], lock=lock
    )


def _look(state: EngineState, views: Sequence[View], *, lock: bool) -> dict[int, HeadraceError]:
    conn = state.owner.conn
    if not views:
        return {}
    with conn.transaction():
        for view in views if lock else ():
            conn.execute(
                sql.SQL("LOCK TABLE ONLY {} IN ROW EXCLUSIVE MODE NOWAIT").format(
                    view.target.identifier
                )
            )
        targets = [view.target for view in views]
        return dict(table.find_altered(conn, targets, state.settings.publication_name))


class ResultTables:
    """Checks of one engine's result tables; every method runs on the engine's thread."""

    def __init__(self, state: EngineState, fail: Callable[[View, HeadraceError], None]) -> None:
        """Create it; ``fail`` stops a view."""
        self._state = state
        self._fail = fail
        self._changes = state.index.links.follow()
        self._changed: set[int] = set()
        """Views to check out of turn."""
        self._signs: OrderedDict[int, str | None] = OrderedDict()
        """Signs of live views, the next to check first; None: not known yet."""
        self._snapshot = ""
        """The source's snapshot at the last check."""
        self._left = 0
        """Number of views still to check since the snapshot changed."""
        self.due = 0.0
        """When to check next, on the monotonic clock."""

    def poll(self) -> None:
        """Check tables, if it is time to."""
        state = self._state
        conn = state.owner.conn
        now = clock.monotonic()
        if now < self.due:
            return
        self.due = now + state.settings.catalog_poll_ms / 1000
        live = {view.id: view for view in self._take_changes()}
        if not self._signs:
            return
        # DDL and GRANT take effect by transactions, so an idle source costs one short query.
        snapshot = fingerprint.snapshot(conn)
        if snapshot != self._snapshot:
            self._snapshot, self._left = snapshot, len(self._signs)
        for view_id in list(itertools.islice(self._signs, min(self._left, _TURN))):
            self._signs.move_to_end(view_id)
            live[view_id] = state.views[view_id]
        self._left = max(self._left - _TURN, 0)
        if not live:
            return
        self._changed.update(live)  # until the check has succeeded
        found = results.signs(conn, live)
        new = {i: sign for i, sign in found.items() if self._signs[i] != sign}
        try:
            wrong = find_unwritable(state, [live[view_id] for view_id in new])
        except psycopg.errors.LockNotAvailable:
            return
        for view_id, error in wrong.items():
            self._fail(live[view_id], error)
        sound = [view_id for view_id in new if view_id not in wrong]
        self._signs.update((view_id, new[view_id]) for view_id in sound)
        self._changed.clear()
        if sound:
            left = self._note(conn, sound)
            self._signs.update(dict.fromkeys(left))
            self._changed.update(left)

    def _take_changes(self) -> list[View]:
        """Give a turn to live views only; return those that are new or changed."""
        state = self._state
        self._changed.update(unit_id for unit_id in self._changes.take() if unit_id > 0)
        found = []
        for view_id in self._changed:
            view = state.views.get(view_id)
            if view is not None and view.live:
                self._signs.setdefault(view_id, None)
                found.append(view)
            else:
                self._signs.pop(view_id, None)
        self._changed = {view.id for view in found}
        return found

    def _note(self, conn: Connection, views: list[int]) -> list[int]:
        """Record grants and indexes; return the views whose rows are locked now."""
        try:
            return results.record_table_metadata(conn, views)
        except psycopg.Error as error:
            if failures.is_lost(error) or conn.closed:
                raise
            # For example, an index is being dropped.  It is recorded at the next change.
            _log.warning("grants and indexes not noted", reason=str(error))
            return []
