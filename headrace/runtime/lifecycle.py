"""How views come, fail, heal and go, on the engine's thread."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
import structlog
from psycopg import sql

from headrace import clock
from headrace.collections import subplans
from headrace.errors import (
    RESYNC,
    BugError,
    ContinuityLost,
    DefiniteFailure,
    HeadraceError,
    Interrupted,
    OutOfReach,
    OwnerGone,
    RightEnded,
    RowError,
    SinkBlocked,
    SinkTableError,
    StateDamaged,
    StructureChanged,
    TransientError,
    UndefinedError,
    UserError,
)
from headrace.postgres import failures
from headrace.runtime import positions, views
from headrace.runtime.positions import StateMark
from headrace.runtime.result_tables import ResultTables
from headrace.runtime.suspects import LOADING
from headrace.runtime.taps import Taps
from headrace.runtime.views import ERROR, PAUSED, RUNNING, SINK_ERROR, View
from headrace.runtime.waits import Waits
from headrace.sink import table, trouble

if TYPE_CHECKING:
    from headrace.runtime.engine import Engine

_log = structlog.get_logger(__name__)

_DAMAGE: Final = (StateDamaged, ContinuityLost, SinkTableError)
"""What a view is filled anew after by itself (server/resumer.py)."""
TRIES_MAX: Final = 5
"""Interruptions of a view at one place after which it stops."""


@dataclass(slots=True)
class _Waiting:
    view_id: int
    txid: int
    future: Future[None]


class Lifecycle:
    """Views of one engine; every method runs on the engine's thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: list[_Waiting] = []
        self.waits = Waits(engine)
        self.taps = Taps(engine)
        self._tables = ResultTables(self, engine.settings.catalog_poll_ms)

    # --- at start and after each loss of the connection

    def load(self) -> None:
        """Own every view that should run: those known already, and those in the catalog."""
        engine = self._engine
        conn = engine.owner.conn
        engine.still()  # a checkpoint that is being written moves the marks
        marks = positions.views(engine.db)
        listed = {view.id: view for view in views.load(conn)}
        for view_id in [i for i in engine.views if i not in listed]:
            if engine.views[view_id].owned or not views.exists(conn, view_id):
                self.forget(view_id)
        for view_id, view in listed.items():
            known = engine.views.get(view_id)
            if known is not None:
                known.target = view.target  # it may have been renamed
            if known is None or not known.owned:
                engine.views[view_id] = view
                if view_id in engine.suspects.guilty:
                    self.fail(view, engine.suspects.error())
                    continue
                with engine.suspects.during(view_id, LOADING):
                    self._restore(view, marks.get(view_id))
        self._collect_garbage(conn, marks)
        owned = [v for v in engine.views.values() if v.owned and v.store is not None]
        for view in engine.owner.take_over(owned):
            self.forget(view.id)
        for view in owned:
            if view.id in engine.views:
                self._verify(view)
        for view in owned:
            if view.live and view.doom is not None:
                self.fail(view, view.doom)
        self._sentence()
        engine.sharing.prune()

    def _sentence(self) -> None:
        """Stop the views of which the worker dies."""
        engine = self._engine
        for unit_id in engine.suspects.guilty:
            shared = engine.sharing.subplans.get(unit_id)
            for view in engine.sharing.views_of(shared) if shared is not None else ():
                if view.owned:
                    self.fail(view, engine.suspects.error())
        engine.suspects.stopped()

    def _restore(self, view: View, mark: StateMark | None) -> None:
        engine = self._engine
        try:
            if mark is not None:
                self._take_back(view, mark)
                return
            if not self._ingest(view):
                raise engine.damage or StateDamaged(
                    "the view's state is not in the data directory", hint=RESYNC
                )
        except (DefiniteFailure, OSError) as error:
            known = (
                error
                if isinstance(error, HeadraceError)
                else StateDamaged(
                    f"the view's staged state cannot be read: {error}", hint=RESYNC
                )
            )
            self.fail(view, known)

    def _take_back(self, view: View, mark: StateMark) -> None:
        """Give a view the state that the state database has."""
        engine = self._engine
        engine.still()
        engine.sharing.restore(view)
        view.restore(engine.db.view(view.id, mark.txid), mark)
        _revive(view)

    def _ingest(self, view: View) -> bool:
        """Take the state that population has staged; idempotent.  False: there is none."""
        engine = self._engine
        found = views.manifest(engine.settings, view.id)
        if found is None:
            return False
        txid = self._txid_before(found.lsn, found.txid)
        engine.still()
        view.start_lsn = found.lsn
        mark = StateMark(txid, found.lsn, found.txid)
        meta: positions.Meta = {}
        made = engine.sharing.divide(view, found.runs, mark, meta)
        own = view.own
        engine.db.ingest(
            view.id,
            found.runs,
            (lambda state: subplans.keeps(own, state)) if made else None,
        )
        positions.put_view(meta, view.id, mark)
        engine.db.put_meta(meta, sync=True)
        engine.sharing.divided(view, made, mark)
        view.restore(engine.db.view(view.id, txid), mark)
        _revive(view)
        view.story.add("ingested", txid=txid, lsn=found.lsn)
        return True

    def _txid_before(self, lsn: int, held_txid: int) -> int:
        """The last batch that is wholly before ``lsn``, and so in the population.

        ``held_txid`` is known to be, from the hold.

        Raises:
            ContinuityLost: the batches after it are not kept any more.
        """
        engine = self._engine
        before = [t for t, r in engine.records.items() if r.end_lsn <= lsn]
        if before:
            return max(before)
        if lsn >= engine.position.lsn:
            return engine.position.txid
        # Without records nothing was processed up to the position: unless it is a new one,
        # because earlier state or the slot was lost.
        if not engine.records and lsn >= engine.confirmed:
            return engine.position.txid
        first = min(engine.records, default=0)
        if held_txid + 1 == first and lsn >= engine.confirmed:
            return held_txid
        raise ContinuityLost(
            "the stream has moved on since the view was populated", hint=RESYNC
        )

    def _verify(self, view: View) -> None:
        """What must hold before a view may run."""
        engine = self._engine
        assert view.progress is not None, "it was just taken over"
        if view.progress.txid < view.mark.sink_txid:
            # Sink commit precedes checkpoint: the database was set back.
            self.fail(
                view,
                ContinuityLost(
                    "the database is older than the view's state: it was restored",
                    hint=RESYNC,
                ),
            )
            return
        if self._written_by_another(view):
            self.fail(
                view,
                ContinuityLost(
                    "another engine has written the view since this one did",
                    detail="Each batch must be cut by the engine whose state covers it.",
                    hint=RESYNC,
                ),
            )
            return
        behind = view.mark.txid < engine.position.txid
        if behind and engine.covered(view.mark) < engine.confirmed:
            self.fail(
                view,
                ContinuityLost(
                    "the stream has moved on since the view was populated", hint=RESYNC
                ),
            )
            return
        wrong = self.table_trouble(view)
        if wrong is not None:
            self.fail(view, wrong)
            return
        if view.plan.outdated:
            self.fail(
                view,
                StructureChanged(
                    "the view was planned by an earlier version of headrace",
                    detail="Its aggregates saw their rows in different orders.",
                    hint=RESYNC,
                ),
            )
            return
        stop = engine.watch.check([view]).get(view.id)
        if stop is not None:
            self.fail(view, stop)
            return
        if view.live:
            views.set_status(engine.owner.conn, view.id, RUNNING)

    def _written_by_another(self, view: View) -> bool:
        """Whether progress shows a batch that this engine did not cut so (H21)."""
        assert view.progress is not None, "it was just taken over"
        txid, mark = view.progress.txid, view.mark
        if txid <= mark.txid:
            # The last txid written is in the state: no crash comes between the two.
            return txid != mark.sink_txid
        record = self._engine.records.get(txid)
        return record is not None and record.end_lsn != view.progress.lsn

    def _collect_garbage(
        self, conn: psycopg.Connection[Any], marks: dict[int, StateMark]
    ) -> None:
        """State of views that were dropped while we were not there."""
        # A worker may have died between forgetting the mark and dropping the states.
        for view_id in sorted(marks.keys() | self._engine.db.views()):
            known = self._engine.sharing.unit(view_id)
            if known is None and not views.exists(conn, view_id):
                self._drop_state(view_id)

    # --- commands

    def release(self, job: str) -> None:
        """End a hold and what was suspended for it; nothing happens if there is none."""
        engine = self._engine
        for view in [v for v in engine.views.values() if v.suspended == job]:
            self._go_on(view)
        engine.holds.release(job)

    def _go_on(self, view: View) -> None:
        """End the suspension of a view, which may have another id or name by now."""
        engine = self._engine
        view.suspended = None
        try:
            view.target = views.load_one(engine.owner.conn, view.id).target
            engine.owner.writer.forget(view.id)
        except UndefinedError:
            self.forget(view.id)
            return
        except (TransientError, psycopg.Error) as error:
            # ``load`` finds out, with the next connection.
            _log.info("view not read again yet", view=view.id, reason=str(error))
        view.story.add("goes on")
        engine.rewind_soon()

    def keep_holds(self, jobs: set[str]) -> None:
        """Release every hold of a job that is not among ``jobs``, and its taps."""
        self.taps.keep(jobs)
        for job in [j for j in self._engine.holds.jobs() if j not in jobs]:
            self.release(job)

    def adopt(self, view_id: int) -> Future[None]:
        """Take over a populated view; the future is done when it has caught up with now."""
        engine = self._engine
        future: Future[None] = Future()
        view = engine.views.get(view_id)
        if view is None or not view.owned:
            view = views.load_one(engine.owner.conn, view_id)
            self._take(view)
        target = max(engine.position.txid, view.mark.txid)
        self._waiting.append(_Waiting(view_id, target, future))
        if view.live and view.mark.txid < target:
            engine.rewind_soon()
        self.caught_up()
        return future

    def _take(self, view: View) -> None:
        engine = self._engine
        engine.still()
        mark = positions.views(engine.db).get(view.id)
        with engine.suspects.during(view.id, LOADING):
            if mark is not None:
                self._take_back(view, mark)
            elif not self._ingest(view):
                raise DefiniteFailure("the view has no staged state", hint=RESYNC)
        for other in list(engine.views.values()):
            # A resync has put this one in its place: two may never write one table.
            if other.id != view.id and other.target.oid == view.target.oid:
                self.forget(other.id)
        known = engine.views.get(view.id)
        engine.views[view.id] = view
        try:
            self._own(view, new=mark is None)
        except BaseException:
            # One that is taken over by half must not see a batch; the caller asks again.
            if engine.views.pop(view.id, None) is not None and known is not None:
                engine.views[view.id] = known
            raise
        engine.sharing.look()
        _log.info("view adopted", view=view.id, txid=view.mark.txid)

    def _own(self, view: View, *, new: bool) -> None:
        """Become the owner of one view."""
        if self._engine.owner.take_over([view]):
            self.forget(view.id)
            raise BugError(f"view {view.id} has no progress row")
        if new and view.progress and view.progress.txid > view.mark.txid:
            # Batches up to there would be taken for written.
            raise BugError(f"progress of the new view {view.id} is ahead of its state")
        self._verify(view)

    def suspend(self, view_id: int, job: str) -> None:
        """Write nothing of a view until ``job`` is released: its contents are replaced.

        Other views go on.  Nothing happens to a view that does not run.
        """
        view = self._engine.views.get(view_id)
        if view is None or not view.owned:
            return
        self._leave(view)
        view.suspended = job
        view.story.add("suspended", job=job)

    def pause(self, view_id: int) -> None:
        """Stop a view at its last txid, until ``resume``; the WAL it lacks is kept.

        Raises:
            UserError: 55000, it has stopped already.
        """
        view = self._known(view_id)
        if view.status == PAUSED:
            return
        views.set_status(self._engine.owner.conn, view.id, PAUSED)
        self._leave(view)
        view.status = PAUSED
        view.message = None
        view.story.add(PAUSED)
        _log.info("view paused", view=view.id)
        self.caught_up()

    def resume(self, view_id: int) -> None:
        """Let a paused view go on from its state, by a rewind; nothing happens to others.

        Raises:
            UserError: 55000, it has stopped meanwhile.
        """
        view = self._known(view_id)
        if view.status != PAUSED:
            return
        views.set_status(self._engine.owner.conn, view.id, RUNNING)
        view.status = RUNNING
        view.story.add("resumed")
        _log.info("view resumed", view=view.id)
        self._engine.rewind_soon()

    def tap(self, view_id: int, job: str) -> Path:
        """Keep aside what is written for a view from now on (taps.py).

        Raises:
            UserError: 55000, the view has stopped; 55006, it is being created.
        """
        return self.taps.begin(job, self._known(view_id))

    def _known(self, view_id: int) -> View:
        engine = self._engine
        view = engine.views.get(view_id)
        if view is None:
            view = views.load_one(engine.owner.conn, view_id)
            if view.owned:
                raise UserError(
                    f"view {view.target.shown} is being created", sqlstate="55006"
                )
        if not view.owned:
            raise UserError(
                f"view {view.target.shown} has stopped",
                detail=view.message,
                hint=views.resync_hint(view),
                sqlstate="55000",
            )
        return view

    def _leave(self, view: View) -> None:
        """Take a view out of what is being processed: its state is that of its last txid."""
        self._engine.drain()
        view.reset()

    def drop(self, view_id: int) -> None:
        """Forget a view and its state; nothing happens if there is none."""
        self.forget(view_id)

    def forget(self, view_id: int) -> None:
        """The view is gone from the catalog, or about to be."""
        engine = self._engine
        view = engine.views.pop(view_id, None)
        if view is not None:
            view.release()
            view.status = ERROR
        if engine.connected:
            engine.owner.writer.forget(view_id)
        self._drop_state(view_id)
        _log.info("view forgotten", view=view_id)
        self.waits.forget(
            view_id, UndefinedError("the view was dropped", sqlstate="42P01")
        )
        self.caught_up()

    def _drop_state(self, view_id: int) -> None:
        # A checkpoint that is being written may hold the view's mark.
        self._engine.still()
        meta: positions.Meta = {}
        positions.put_view(meta, view_id, None)
        self._engine.db.put_meta(meta, sync=False)
        self._engine.db.drop_view(view_id)
        self._engine.sharing.left(view_id)

    # --- failing and healing

    def enforce_budget(self) -> None:
        """Give up views that stand still, for which more WAL is kept than the budget (P6)."""
        engine = self._engine
        # Each cycle comes by here, also one that only moved the position on.
        self.waits.check()
        self.taps.check()
        budget = engine.settings.wal_budget_bytes
        for view in list(engine.views.values()):
            still = view.status in (SINK_ERROR, PAUSED)
            if not still or view.mark.txid >= engine.position.txid:
                continue
            behind = engine.position.lsn - engine.covered(view.mark)
            if not budget or behind <= budget:
                continue
            paused = view.status == PAUSED
            why = "" if paused else f"{view.message or 'Its result table was locked'}; "
            self.fail(
                view,
                DefiniteFailure(
                    f"the view needs a resync: it was {'paused' if paused else 'blocked'}"
                    f" while {behind} bytes of WAL were written",
                    detail=f"{why}wal_budget_bytes is {budget}.",
                    hint=RESYNC,
                    sqlstate="53400",
                ),
            )

    def judge(self, view: View, error: HeadraceError) -> HeadraceError:
        """What ``error`` comes to for a view: one that interrupts it again and again is final.

        An SQLSTATE that says "later" may have been raised by code of a user, and need never end.
        """
        if not isinstance(error, Interrupted) or isinstance(error, OutOfReach):
            return error
        at, times = view.tries
        times = times + 1 if at == view.mark.txid else 1
        view.tries = (view.mark.txid, times)
        if times < TRIES_MAX:
            return error
        view.doom = RowError(
            error.message,
            detail=error.detail or f"It was tried {times} times.",
            hint=error.hint,
            sqlstate=error.code,
        )
        return view.doom

    def fail(self, view: View, error: HeadraceError) -> None:
        """Stop a view: for good, or until it can go on (its table was locked, say)."""
        engine = self._engine
        self._leave(view)
        if isinstance(error, SinkTableError) and not views.exists(
            engine.owner.conn, view.id
        ):
            self.forget(view.id)
            return
        error = engine.watch.cause(view, error)
        if view.status == PAUSED and isinstance(error, _DAMAGE):
            # What would fill it anew by itself would also let it run.
            error = DefiniteFailure(error.message, detail=error.detail, hint=error.hint)
        blocked = isinstance(error, SinkBlocked | Interrupted)
        if not blocked:
            error = _with_hint(error, view)
        status = SINK_ERROR if blocked else ERROR
        if isinstance(error, RightEnded | OwnerGone):
            engine.watch.end(view.id, error)
        else:
            views.set_status(engine.owner.conn, view.id, status, error)
        view.status = status
        view.message = error.message
        view.doom = None
        view.retry_at = clock.monotonic() + engine.settings.sink_retry_ms / 1000
        view.story.add(status, reason=error.message, code=error.code)
        _log.warning("view stopped", view=view.id, status=status, code=error.code)
        if not blocked:
            engine.sharing.left(view.id)
        self.caught_up()

    def heal(self) -> None:
        """Let blocked views go on whose table is free again: by a rewind.

        And stop those whose table is gone or altered, though nothing is to be written to it.
        """
        engine = self._engine
        self._tables.poll(engine.owner.conn)
        now = clock.monotonic()
        for view in list(engine.views.values()):
            if view.status != SINK_ERROR or view.suspended or now < view.retry_at:
                continue
            view.retry_at = now + engine.settings.sink_retry_ms / 1000
            if not self._free(view):
                continue
            view.status = RUNNING
            view.message = None
            views.set_status(engine.owner.conn, view.id, RUNNING)
            view.story.add("healed")
            engine.rewind_soon()

    def heal_at(self) -> float:
        """When to come by again (``heal``), on the monotonic clock."""
        due = [
            v.retry_at
            for v in self._engine.views.values()
            if v.status == SINK_ERROR and not v.suspended
        ]
        return min([self._tables.due, *due])

    def live_views(self) -> list[View]:
        """Views for which batches are processed."""
        return [view for view in self._engine.views.values() if view.live]

    def _free(self, view: View) -> bool:
        """Whether the result table can be locked for writing right now."""
        wrong = self.table_trouble(view, lock=True)
        if isinstance(wrong, SinkBlocked):
            return False
        if wrong is not None:
            self.fail(view, wrong)
        return wrong is None

    def table_trouble(self, view: View, *, lock: bool = False) -> HeadraceError | None:
        """Why a result table cannot be written; ``lock``: also whether it is locked now."""
        conn, shown = self._engine.owner.conn, view.target.shown
        try:
            with conn.transaction():
                if lock:
                    conn.execute(
                        sql.SQL(
                            "LOCK TABLE ONLY {} IN ROW EXCLUSIVE MODE NOWAIT"
                        ).format(view.target.identifier)
                    )
                table.check(conn, view.target, self._engine.settings.publication_name)
        except SinkTableError as error:
            return error
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            return SinkTableError(f"result table {shown} was dropped", hint=RESYNC)
        except psycopg.errors.LockNotAvailable:
            # The system catalog, where no lock was asked for: whoever asks comes again.
            if not lock:
                raise
            return SinkBlocked(f"result table {shown} is locked")
        except psycopg.Error as error:
            if failures.is_lost(error) or failures.is_transient(error):
                raise
            return trouble.of_view(view.target, error)
        return None

    # --- who waits for whom

    def caught_up(self) -> None:
        """Answer those whose view has come as far as they wait for, or never will."""
        left = []
        for waiting in self._waiting:
            view = self._engine.views.get(waiting.view_id)
            if view is None:
                waiting.future.set_exception(DefiniteFailure("the view was dropped"))
            elif not view.owned:
                waiting.future.set_exception(
                    DefiniteFailure(view.message or "the view has stopped")
                )
            elif view.mark.txid >= waiting.txid or view.status == PAUSED:
                waiting.future.set_result(None)
            else:
                left.append(waiting)
        self._waiting = left
        self.waits.check()

    def give_up(self, error: HeadraceError) -> None:
        """Answer everybody that the engine ends."""
        for waiting in self._waiting:
            waiting.future.set_exception(error)
        self._waiting = []
        self.waits.give_up(error)


def _revive(view: View) -> None:
    """The view has its state: it runs, unless somebody has paused it."""
    if view.status != PAUSED:
        view.status = RUNNING


def _with_hint(error: HeadraceError, view: View) -> HeadraceError:
    """``error`` with the call that mends ``view`` as its hint, where it had a vague one."""
    if isinstance(error, RowError) and error.hint is None:
        hint = views.resync_hint(view, "Mend the row")
    elif error.hint == table.UNDO:
        hint = views.resync_hint(view, "Undo that")
    elif error.hint in (None, RESYNC):
        hint = views.resync_hint(view)
    else:
        return error
    return type(error)(
        error.message, detail=error.detail, hint=hint, sqlstate=error.code
    )
