"""Stopping of views: for good, until they can go on, or because they were dropped."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

import structlog

from headrace import clock, errors, events
from headrace.forwarder import policy
from headrace.runtime import positions, views
from headrace.runtime.durability import Durability
from headrace.runtime.engine_state import EngineState
from headrace.runtime.shared import Shared
from headrace.runtime.sharing import Sharing
from headrace.runtime.views import View
from headrace.runtime.waits import PositionWaits
from headrace.runtime.watch import Watch
from headrace.runtime.worker_handles import WorkerHandles
from headrace.sql import views as catalog
from headrace.sql.status import CursorState, Status

_log = structlog.get_logger(__name__)

_DAMAGE: Final = (errors.StateDamaged, errors.ContinuityLost, errors.SinkTableError)
"""Errors after which a view is refilled automatically (server/resumer.py)."""
_REFILLED: Final = (*_DAMAGE, errors.RowsInDoubt, errors.BelowStopped)
"""Errors after which a view is refilled automatically, unless it is paused."""
_WRONG_ROWS: Final = (errors.SinkTableError, errors.RowsInDoubt)
"""Errors after which the rows of a view may be wrong, and so those of views filled from it."""
_REASONS: Final = {
    CursorState.BLOCKED: "its batch cannot be written or computed now",
    CursorState.LOST: "a worker that has its states is out of reach",
}
TRIES_MAX: Final = 5
"""Interruptions of a view at one txid after which it stops for good."""
_CALM_S: Final = 10.0
"""Seconds after a try, from which on a lock is another trouble."""


@dataclass(slots=True)
class Leaving:
    """Stopping of one engine's views; every method runs on the engine's thread."""

    _state: EngineState
    _durability: Durability
    _watch: Watch
    _sharing: Sharing
    _waits: PositionWaits
    _hosts: WorkerHandles
    _drain: Callable[[], None]
    """Waits until nothing is in flight."""
    _quiesce: Callable[[Collection[int]], None]
    """Waits until nothing is in flight that concerns units, by ID."""

    def leave(self, view: View) -> None:
        """Remove a view from processing; its state is that of its last txid."""
        self._quiesce([view.id])
        view.reset()

    def forget(self, view_id: int) -> None:
        """Forget a view that is gone from the catalog, or about to be."""
        state = self._state
        self._drain()
        view = state.views.pop(view_id, None)
        if view is not None:
            view.release()
            view.end()
        state.gauges.forget(view_id)
        if state.connections is not None:
            state.owner.forget(view_id)
        self.drop_state(view_id)
        _log.info("view forgotten", view=view_id)
        events.forget_view(view_id)
        self._waits.forget(view_id, errors.UndefinedError("the view was dropped", sqlstate="42P01"))
        self._waits.caught_up()

    def drop_state(self, view_id: int) -> None:
        """Drop the state of a view that is gone."""
        # A checkpoint that is being written may hold the view's mark.
        self._durability.still()
        known = positions.view(self._state.db, view_id)
        if known is not None and views.next_owner(self._state.settings, view_id):
            return  # until another view inherits the states (``loading.py``)
        meta: positions.Meta = {}
        positions.put_view(meta, view_id, None)
        self._state.db.put_meta(meta, sync=False)
        self._state.db.drop_view(view_id)
        self._hosts.drop(view_id)
        self._sharing.remove_feeds(view_id)

    def classify(self, view: View, error: errors.HeadraceError) -> errors.HeadraceError:
        """Return ``error``, or a final error if it has interrupted the view too often.

        A user's code may raise an SQLSTATE that says "later", and need never stop doing so.
        """
        if not isinstance(error, errors.Interrupted) or isinstance(error, errors.OutOfReach):
            return error
        at, times = view.tries
        times = times + 1 if at == view.mark.txid else 1
        view.tries = (view.mark.txid, times)
        if times < TRIES_MAX:
            return error
        view.doom = errors.RowError(
            error.message,
            detail=error.detail or f"It was tried {times} times.",
            hint=error.advice,
            sqlstate=error.code,
        )
        return view.doom

    def of_subplan(
        self, view: View, shared: Shared, error: errors.HeadraceError
    ) -> errors.HeadraceError:
        """Return the error with which a view stops because of a subplan that it needs."""
        if isinstance(error, errors.RowError) and self._sharing.is_below(view, shared):
            why = "a view that it reads cannot be computed because of a row"
            return errors.BelowStopped(why, hint=errors.RESYNC)
        return error

    def doubt(self, view: View) -> list[int]:
        """Stop the views that were filled from a view, because its rows may have been wrong.

        Return their IDs.
        """
        filled = self._state.index.links.filled_from(view.target.oid)
        readers = [reader for reader in filled if reader.owned and reader.id != view.id]
        for reader in readers:
            why = f"view {view.target.shown}, from which it was filled, was rebuilt or damaged"
            self.fail(reader, errors.RowsInDoubt(why, hint=errors.RESYNC))
        return [reader.id for reader in readers]

    def fail(self, view: View, error: errors.HeadraceError) -> None:
        """Stop a view, for good or until it can go on (for example when its table is unlocked)."""
        state = self._state
        self.leave(view)
        if isinstance(error, errors.SinkTableError) and not catalog.exists(
            state.owner.conn, view.id
        ):
            self.forget(view.id)
            return
        doubted: list[int] = []
        if isinstance(error, _WRONG_ROWS) and not isinstance(error, errors.ResultTableChanged):
            # Before the status of ``view`` itself: after a crash in between, it fails again.
            doubted = self.doubt(view)
        error = self._watch.cause(view, error)
        if view.plan.sink.withholds_rows:
            error = error.without_values()
        if view.cursor == CursorState.PAUSED and isinstance(error, _REFILLED):
            # The automatic refill would also let the paused view run.
            error = errors.DefiniteFailure(error.message, detail=error.detail, hint=error.advice)
        cursor = self._cursor_after(view, error)
        if cursor is None:
            error = with_hint(error, view)
        status = Status.ERROR if cursor is None else cursor.status
        if isinstance(error, errors.RightEnded | errors.OwnerGone):
            self._watch.end(view.id, error, doubted)
        else:
            state.statuses.write(state.owner.conn, view.id, status, error, after=doubted)
        state.gauges.failed(view.id)
        view.message = error.what
        view.doom = None
        self._schedule(view, error)
        if cursor is None:
            view.end()
            view.story.add(status, reason=error.message, code=error.code)
            _log.warning("view stopped", view=view.id, status=status, code=error.code)
            self._sharing.remove_feeds(view.id)
        else:
            # The message may contain a value of a row.
            view.turn(cursor, _REASONS[cursor], code=error.code)
        self._waits.caught_up()

    def _schedule(self, view: View, error: errors.HeadraceError) -> None:
        """Set when to try the view again: soon after a lock, unless it was locked a moment ago."""
        now, longest = clock.monotonic(), self._state.settings.sink_retry_ms / 1000
        is_lock = (
            isinstance(error, errors.SinkBlocked) and error.code == errors.SinkBlocked.sqlstate
        )
        if now - view.retry_at > _CALM_S:
            view.retry_s = 0.0
        view.retry_s = policy.lock_retry_s(view.retry_s, longest) if is_lock else longest
        view.retry_at = now + view.retry_s

    def _cursor_after(self, view: View, error: errors.HeadraceError) -> CursorState | None:
        """Return the state in which a view waits until the error is over; None: it never is."""
        if not isinstance(error, errors.SinkBlocked | errors.Interrupted):
            return None
        away = self._state.missing(view) is not None
        return CursorState.LOST if away else CursorState.BLOCKED


def with_hint(error: errors.HeadraceError, view: View) -> errors.HeadraceError:
    """Return ``error`` with the call that repairs ``view`` as its hint, if it had a vague one."""
    if isinstance(error, errors.RowError) and error.hint is None:
        hint = views.resync_hint(view, "Mend the row")
    elif isinstance(error, errors.ResultTableChanged):
        hint = views.resync_hint(view, "Undo that")
    elif error.repair is not None and error.repair.then is errors.Then.RESYNC:
        hint = views.resync_hint(view, error.repair.step)
    elif error.hint is None:
        hint = views.resync_hint(view)
    else:
        return error
    return error.again(hint=hint)
