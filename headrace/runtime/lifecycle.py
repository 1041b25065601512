"""Commands on views: adopt, pause, resume, suspend, release, drop, tap."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import structlog

from headrace.errors import Deadly, RowLocked, TransientError, UndefinedError, UserError
from headrace.runtime import views
from headrace.runtime.change_capture import ChangeCapture
from headrace.runtime.engine_state import EngineState
from headrace.runtime.leaving import Leaving, with_hint
from headrace.runtime.loading import Loading
from headrace.runtime.views import View
from headrace.runtime.waits import PositionWaits
from headrace.sql import states
from headrace.sql import views as catalog
from headrace.sql.status import CursorState, Status

Connection = psycopg.Connection[Any]

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Lifecycle:
    """Commands on views of one engine; every method runs on the engine's thread."""

    _state: EngineState
    _loading: Loading
    _leaving: Leaving
    _waits: PositionWaits
    _taps: ChangeCapture
    _tick: Callable[[], None]
    """Makes a batch come soon, even if nothing changes."""
    _catch_up: Callable[[View, str], None]

    def release(self, job: str) -> None:
        """End a job's hold and resume the views suspended for it; do nothing if there is none."""
        for view in [v for v in self._state.views.values() if v.suspended == job]:
            self._go_on(view)
        self._state.holds.release(job)

    def _go_on(self, view: View) -> None:
        """End the suspension of a view, whose ID or name may have changed meanwhile."""
        view.suspend(None)
        try:
            found = views.load_one(self._state.owner.conn, view.id)
            view.write_to(found.target)
            self._state.owner.forget(view.id)
            if (found.placed, found.parts) != (view.placed, view.parts):
                # The session that moved the view ended before the move was complete.
                self._loading.relocate(view, found.placed, found.parts)
        except UndefinedError:
            self._leaving.forget(view.id)
            return
        except (TransientError, psycopg.Error) as error:
            # ``load`` reads it over the next connection.
            _log.info("view not read again yet", view=view.id, reason=str(error))
        view.story.add("goes on")
        self._loading.replaced(view)
        self._catch_up(view, "its contents were replaced")

    def keep_pins(self, jobs: set[str]) -> None:
        """Release the holds and taps of all jobs that are not in ``jobs``."""
        self._taps.keep(jobs)
        for job in [j for j in self._state.holds.jobs() if j not in jobs]:
            self.release(job)

    def adopt(self, view_id: int) -> Future[None]:
        """Take over a populated view; the future is done when it has caught up.

        Raises:
            Deadly: the view was stopped because workers crashed.
        """
        state = self._state
        view = state.views.get(view_id)
        if view is None or not view.owned:
            view = views.load_one(state.owner.conn, view_id)
            if states.sqlstate(state.owner.conn, view_id) == Deadly.sqlstate:
                # Its staged states have made workers crash: the next one would, too.
                raise with_hint(state.suspects.error(), view)
            self._loading.take(view)
        self._loading.replaced(view)
        target = max(state.position.txid, view.mark.txid)
        future = self._waits.adopted(view, target)
        self._catch_up(view, "it was populated from an earlier position")
        self._waits.caught_up()
        return future

    def suspend(self, view_id: int, job: str) -> None:
        """Write nothing to a view until ``job`` is released: its contents are being replaced.

        Other views go on.  A view that does not run is left as it is.
        """
        view = self._state.views.get(view_id)
        if view is None or not view.owned:
            return
        self._leaving.leave(view)
        view.suspend(job)
        view.story.add("suspended", job=job)

    def pause(self, view_id: int, caller: str | None = None) -> None:
        """Stop a view at its last txid until ``resume``; the WAL that it lacks is retained.

        ``caller``: the role that asked for it.

        Raises:
            UserError: 55000, the view has stopped already.
        """
        view = self._known(view_id)
        if view.cursor == CursorState.PAUSED:
            return
        self._write(view, Status.PAUSED, lambda conn: states.paused_by(conn, view.id, caller))
        self._leaving.leave(view)
        view.turn(CursorState.PAUSED, "it was paused")
        view.message = None
        self._waits.caught_up()

    def resume(self, view_id: int) -> None:
        """Let a paused view go on from its state; do nothing if it is not paused.

        Raises:
            UserError: 55000, the view has stopped meanwhile.
        """
        view = self._known(view_id)
        if view.cursor != CursorState.PAUSED:
            return
        self._write(view, Status.RUNNING, lambda _: None)
        view.turn(CursorState.CATCHING_UP, "it was resumed")
        self._catch_up(view, "it was resumed")

    def _write(self, view: View, to: Status, also: Callable[[Connection], None]) -> None:
        """Give a view another status for a caller.

        Raises:
            RowLocked: another transaction has its row: the caller waits, and not this thread.
        """
        conn = self._state.owner.conn
        with conn.transaction():
            if states.locked(conn, [view.id]):
                raise RowLocked(
                    f"view {view.target.shown} is being changed by another call",
                    hint="Call again when that has ended.",
                )
            states.become(conn, view.id, to)
            also(conn)
        self._state.statuses.written(view.id)

    def look_again(self, view_id: int) -> None:
        """Read a view's options from the catalog again: history and ``latency_ms``."""
        view = self._state.views.get(view_id)
        if view is not None and view.owned:
            self._state.owner.look_for_histories([view])
            view.allow(catalog.latency_ms(self._state.owner.conn, view_id))
            view.story.add("options", kept=view.kept, latency_ms=view.latency_ms)

    def tap(self, view_id: int, job: str, apart_s: float | None) -> Path:
        """Capture what is written to a view from now on; return the file's path.

        ``apart_s``: see ``ChangeCapture.begin``.

        Raises:
            UserError: 55000, the view has stopped; 55006, it is being created.
        """
        view = self._known(view_id)
        path = self._taps.begin(job, view, apart_s)
        if view.temporal:
            # A batch with a known timestamp must come before any position asked for.
            self._tick()
        return path

    def drop(self, view_id: int) -> None:
        """Forget a view and its state; do nothing if there is none."""
        self._leaving.forget(view_id)

    def _known(self, view_id: int) -> View:
        view = self._state.views.get(view_id)
        if view is None:
            view = views.load_one(self._state.owner.conn, view_id)
            if view.owned:
                raise UserError(f"view {view.target.shown} is being created", sqlstate="55006")
        if not view.owned:
            raise UserError(
                f"view {view.target.shown} has stopped",
                detail=view.message,
                hint=views.resync_hint(view),
                sqlstate="55000",
            )
        return view
