"""Retries of blocked views, and the end of views that hold too much WAL; on the engine's thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headrace import clock
from headrace.errors import RESYNC, DefiniteFailure, SinkBlocked
from headrace.forwarder import policy
from headrace.runtime import result_tables
from headrace.runtime.engine_state import EngineState
from headrace.runtime.leaving import Leaving
from headrace.runtime.result_tables import ResultTables
from headrace.runtime.views import View
from headrace.sql import states
from headrace.sql.status import CursorState, Status

_WRITABLE: Final = "its table can be written again"


class Retries:
    """Blocked and paused views of one engine; every method runs on the engine's thread."""

    def __init__(
        self,
        state: EngineState,
        leaving: Leaving,
        go_on: Callable[[View, str], None],
    ) -> None:
        self._state = state
        self._leaving = leaving
        self._go_on = go_on
        self._tables = ResultTables(state, leaving.fail)
        self._full: bool | None = None
        """Whether a full local queue is reported; None: unknown."""

    def enforce_budget(self) -> None:
        """Stop blocked and paused views that retain more changes than the budget (P6).

        WAL at the source and local batches both count.
        """
        state = self._state
        self._renew_log()
        if state.retained.full != self._full:
            full = state.retained.full
            if states.tell_who_keeps(state.owner.conn, by_source=full):
                self._full = full
        budget = state.settings.wal_budget_bytes
        for view in state.index.standing:
            if view.mark.txid >= state.position.txid:
                continue
            here = state.retained.bytes_after(view.mark.txid)
            behind = here + max(state.position.lsn - state.needs(view.mark), 0)
            if not budget or behind <= budget:
                continue
            paused = view.cursor == CursorState.PAUSED
            why = "" if paused else f"{view.message or 'Its result table was locked'}; "
            self._leaving.fail(
                view,
                DefiniteFailure(
                    f"the view needs a resync: it was {'paused' if paused else 'blocked'}"
                    f" while {behind} bytes of {'changes were kept' if here else 'WAL were written'}",
                    detail=f"{why}wal_budget_bytes is {budget}.",
                    hint=RESYNC,
                    sqlstate="53400",
                ),
            )

    def _renew_log(self) -> None:
        """Let a full log begin anew with the next batch, once no view needs what it has.

        Views that lack batches between them read the source.
        """
        state = self._state
        if not state.retained.full or state.checkpoints.underway:
            return  # a checkpoint under way says how far the log reaches
        needed = [*state.index.durable_txids, *state.holds.txids(), state.durable.txid]
        taken = state.taken.txid
        if state.retained.renewable(min(needed)) and state.records.last <= taken:
            state.retained.begin(state.db, taken, state.start_lsn)

    def retry(self) -> None:
        """Let blocked views go on if their table is free again.

        Stop views whose table is gone or altered, even if there is nothing to write.
        """
        state = self._state
        state.statuses.retry(state.owner.conn)
        self._tables.poll()
        now = clock.monotonic()
        for view in state.index.standing:
            if not self._stands(view) or now < view.retry_at:
                continue
            longest_s = state.settings.sink_retry_ms / 1000
            view.retry_s = policy.lock_retry_s(view.retry_s, longest_s)
            view.retry_at = now + view.retry_s
            if not self._free(view):
                continue
            view.turn(CursorState.CATCHING_UP, _WRITABLE)
            view.message = None
            state.statuses.write(state.owner.conn, view.id, Status.RUNNING)
            state.gauges.went_on(view.id)
            self._go_on(view, _WRITABLE)

    def retry_at(self) -> float:
        """Return when to call ``heal`` again, on the monotonic clock."""
        due = [v.retry_at for v in self._state.index.standing if self._stands(v)]
        return min([self._tables.due, self._state.statuses.due, *due])

    def _free(self, view: View) -> bool:
        """Return whether the result table can be locked for writing; stop the view on errors."""
        wrong = result_tables.unwritable(self._state, view, lock=True)
        if isinstance(wrong, SinkBlocked):
            return False
        if wrong is not None:
            self._leaving.fail(view, wrong)
        return wrong is None

    def _stands(self, view: View) -> bool:
        """Return whether a view waits for its table; for a lost worker see ``reconnects.py``."""
        return view.cursor == CursorState.BLOCKED and not view.suspended
