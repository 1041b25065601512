"""Loading of views with their states, and checks before they may run; on the engine's thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
import structlog

from headrace.collections import subplans
from headrace.errors import (
    RESYNC,
    BugError,
    ContinuityLost,
    DefiniteFailure,
    HeadraceError,
    OutOfReach,
    RowsInDoubt,
    StateDamaged,
    StructureChanged,
    UndefinedError,
)
from headrace.process import faults
from headrace.runtime import positions, result_tables, views
from headrace.runtime.crash_attribution import LOADING
from headrace.runtime.durability import Durability
from headrace.runtime.engine_state import EngineState
from headrace.runtime.leaving import Leaving
from headrace.runtime.positions import Position, StateMark
from headrace.runtime.sharing import FeedLost, Sharing
from headrace.runtime.views import Manifest, View
from headrace.runtime.watch import Watch
from headrace.runtime.worker_handles import WorkerHandles
from headrace.sink import policies
from headrace.sql import reads, states
from headrace.sql import views as catalog
from headrace.sql.status import CursorState

_log = structlog.get_logger(__name__)

_FILL_S: Final = 0.1
"""Seconds for which other views may wait while a new view's state goes into memory: half a million
entries.  The rest is loaded between batches."""
_SUCCESSORS_MAX: Final = 256
_RIGHT_COLUMNS: Final = 3
"""The version of plans from which on columns of views below are the right ones."""


class DatabaseRestored(ContinuityLost):
    """A result table lacks rows that were committed before the view's state was written."""


@dataclass(slots=True)
class Loading:
    """Loading of one engine's views; every method runs on the engine's thread."""

    _state: EngineState
    _durability: Durability
    _watch: Watch
    _sharing: Sharing
    _leaving: Leaving
    _hosts: WorkerHandles
    _successors: dict[int, int] = field(default_factory=dict)
    """By view whose rows were right: the view that has replaced it; the last ones."""

    def load(self) -> None:
        """Take ownership of every view that should run, known already or new in the catalog."""
        state = self._state
        conn = state.owner.conn
        self._durability.still()  # a checkpoint that is being written moves the marks
        marks = positions.views(state.db)
        listed = {v.id: v for v in views.load(conn) if not state.statuses.stops(v.id)}
        for view_id in [i for i in state.views if i not in listed]:
            if state.views[view_id].owned or not catalog.exists(conn, view_id):
                self._leaving.forget(view_id)
        self._stop_fed(listed, marks)
        known_here = {view.id for view in state.views.values() if view.owned}
        self._sharing.follow([view for view in listed.values() if view.id not in known_here])
        for view_id, view in listed.items():
            known = state.views.get(view_id)
            if known is not None:
                known.write_to(view.target)  # it may have been renamed
            if known is None or not known.owned:
                state.views[view_id] = view
                if view_id in state.suspects.guilty:
                    self._leaving.fail(view, state.suspects.error())
                    continue
                try:
                    with state.suspects.during(view_id, LOADING):
                        self._restore(view, marks.get(view_id), listed.values())
                except BaseException:
                    # The disk may be full: the next call restores the view from the beginning.
                    state.views.pop(view_id, None)
                    raise
        self._collect_garbage(conn, marks)
        owned = [v for v in state.views.values() if v.owned and state.missing(v) is None]
        for view in state.owner.take_over(owned):
            self._leaving.forget(view.id)
        left = [view for view in owned if view.id in state.views]
        self._verify(left)
        for view in owned:
            if view.live and view.doom is not None:
                self._leaving.fail(view, view.doom)
        self._sentence()
        self._sharing.prune()

    def _sentence(self) -> None:
        """Stop the views that make the worker crash."""
        state = self._state
        for unit_id in state.suspects.guilty:
            shared = state.subplans.get(unit_id)
            for view in state.views_of(shared) if shared is not None else ():
                if view.owned:
                    self._leaving.fail(view, state.suspects.error())
        state.suspects.stopped()

    def take(self, view: View) -> None:
        """Take over a populated view while the engine runs."""
        state = self._state
        self._durability.still()
        mark, known = positions.view(state.db, view.id), state.views.get(view.id)
        with state.suspects.during(view.id, LOADING):
            if mark is None:
                self._stop_readers(view)
            try:
                if view.placed:
                    mark = self._hosts.mark(view)
                elif mark is not None:
                    self._take_back(view, mark)
                if mark is None and not self._ingest(view):
                    raise DefiniteFailure("the view has no staged state", hint=RESYNC)
            except FeedLost as error:
                # The view exists, and is refilled automatically.
                state.views[view.id] = view
                self._leaving.fail(view, error)
                return
            except OutOfReach as error:
                # The view exists; its states stay staged until its worker is back (``again``).
                self._replace(view)
                self._stand(view, mark)
                state.views[view.id] = view
                self._leaving.fail(view, error)
                return
        self._replace(view)
        state.views[view.id] = view
        try:
            self._own(view, new=mark is None)
        except BaseException:
            # A view whose take-over failed midway must not see a batch; the caller retries.
            if state.views.pop(view.id, None) is not None and known is not None:
                state.views[view.id] = known
            raise
        self._sharing.look_at(view.id)
        state.db.regulate(_FILL_S)
        _log.info("view adopted", view=view.id, txid=view.mark.txid)

    def replaced(self, view: View) -> None:
        """Let views that read a replaced view be checked in this cycle: they may have to stop."""
        self._watch.result_replaced(view.target.oid)

    def relocate(self, view: View, placed: str, parts: dict[str, str]) -> None:
        """Move the staged states of a suspended view to where the catalog says.

        A worker that is out of reach gets them when it is back.  The mark is dropped first, so that
        a restarted engine takes the states in, too.  Records of the view's former parts are dropped
        as the states are taken in.

        REQUIRES: nothing of the view is in flight.
        """
        state = self._state
        self._durability.still()
        view.release()
        view.place(placed, parts)
        self._forget_mark(view)
        state.db.drop_view(view.id)
        self._hosts.drop(view.id)
        found = views.manifest(state.settings, view.id)
        if found is None or found.mark is None:
            raise BugError(f"view {view.id} has moved without its states")
        self._stand(view, found.mark)
        try:
            with state.suspects.during(view.id, LOADING):
                self._ingest(view)
        except (DefiniteFailure, OutOfReach) as error:
            self._leaving.fail(view, error)
            return
        view.story.add("moved", worker=placed)
        _log.info("view moved", view=view.id, worker=placed, txid=view.mark.txid)

    def _replace(self, view: View) -> None:
        """Forget other views that write a view's table, because only one may."""
        for other in self._state.index.links.writing(view.target.oid):
            # A resync has put this view in its place.
            if other.id != view.id:
                self._state.gauges.replaced(other.id, view.id)
                self._leaving.forget(other.id)

    def _stop_readers(self, view: View) -> None:
        """Stop the views whose rows are in doubt because a view is new here."""
        state, links = self._state, self._state.index.links
        fed = [v for v in links.fed_from(view.target.oid) if v.owned and v.id != view.id]
        for reader in fed:
            self._leaving.fail(reader, _refilled())
        doubted = self._leaving.doubt(view) if self._is_doubted(view) else []
        # Before this view's mark, which says that they were stopped.
        state.statuses.settle(state.owner.conn, [*(reader.id for reader in fed), *doubted])

    def _is_doubted(self, view: View) -> bool:
        """Return whether a new view replaces rows that may have been wrong."""
        try:
            found = views.manifest(self._state.settings, view.id)
        except (StateDamaged, OSError):
            return True
        return found is not None and found.doubted

    def _stop_fed(self, listed: dict[int, View], marks: Mapping[int, StateMark]) -> None:
        """Stop the views fed from a view that is new here, and remove them from ``listed``."""
        views = self._state.views
        new = [view for view in listed.values() if view.id not in marks]
        fed = self._fed_before(new, [views.get(i, v) for i, v in listed.items()])
        for view in fed:
            views[view.id] = view
            self._leaving.fail(view, _refilled())
            del listed[view.id]
        # Before the new views' marks, which say that this was done.
        self._state.statuses.settle(self._state.owner.conn, [view.id for view in fed])

    def _fed_before(self, new: Sequence[View], among: Sequence[View]) -> list[View]:
        """Return the running views fed from one that was refilled: their rows are from before.

        The refill may have been needed because that view's table was damaged.  Where that is
        likely, views that were only filled from it are refilled as well, and those filled from
        them.
        """
        ids, tables = {view.id for view in new}, {view.target.oid for view in new}
        doubted = {view.target.oid for view in new if self._is_doubted(view)}
        left = [view for view in among if view.owned and view.id not in ids]
        found: dict[int, View] = {}
        more = True
        while more:
            more = False
            for view in left:
                fed = not tables.isdisjoint(feed.table_oid for feed in view.plan.feeds)
                filled = not doubted.isdisjoint(view.plan.filled_from.values())
                if (fed or filled) and view.id not in found:
                    found[view.id] = view
                    doubted.add(view.target.oid)
                    more = True
        return list(found.values())

    def _own(self, view: View, *, new: bool) -> None:
        if self._state.owner.take_over([view]):
            self._leaving.forget(view.id)
            if not catalog.exists(self._state.owner.conn, view.id):
                raise UndefinedError("the view was dropped", sqlstate="42P01")
            raise BugError(f"view {view.id} has no progress row")
        if new and view.progress and view.progress.txid > view.mark.txid:
            # Batches up to there would be considered written.
            raise BugError(f"progress of the new view {view.id} is ahead of its state")
        self._verify([view])

    def again(self, view: View) -> None:
        """Let a view whose worker is back go on, unless a check fails.

        Raises:
            OutOfReach: the worker is not back.
        """
        with self._state.suspects.during(view.id, LOADING):
            self._attempt(view, None)
        if self._state.missing(view) is None and view.owned:
            self._own(view, new=False)

    def _restore(self, view: View, mark: StateMark | None, listed: Iterable[View]) -> None:
        """Restore a view's states; see ``_attempt``."""
        try:
            self._attempt(view, mark, listed)
        except OutOfReach as error:
            self._stand(view, mark)
            self._leaving.fail(view, error)

    def _stand(self, view: View, mark: StateMark | None) -> None:
        """Set the known minimum position of a view whose worker is out of reach."""
        if mark is None:
            found = views.manifest(self._state.settings, view.id)
            if found is not None and found.mark is None:
                view.wait_at(Position(found.txid, found.lsn))
                return
            mark = found.mark if found is not None else None
        if mark is not None:
            view.restore(None, mark)

    def _attempt(self, view: View, mark: StateMark | None, listed: Iterable[View] = ()) -> None:
        """Restore a view's states, or stop the view.

        ``mark``: their position as far as this worker knows; ``listed``: other views.

        Raises:
            OutOfReach: they are on a worker that is out of reach.
        """
        try:
            if view.parts and mark is None:
                mark = positions.view(self._state.db, view.id)
            if view.placed:
                self._durability.still()
                self._state.db.drop_view(view.id)  # left over if the engine ended during a move
                mark = self._hosts.mark(view, listed)
                if mark is not None:
                    _revive(view)
                    return
            elif mark is not None and self._came_back(view, mark):
                self._forget_mark(view)
                mark = None
            if mark is not None:
                self._take_back(view, mark)
                return
            if not self._ingest(view):
                raise self._state.damage or StateDamaged(
                    "the view's state is not in the data directory", hint=RESYNC
                )
        except (DefiniteFailure, OSError) as error:
            known = (
                error
                if isinstance(error, HeadraceError)
                else StateDamaged(f"the view's staged state cannot be read: {error}", hint=RESYNC)
            )
            self._leaving.fail(view, known)

    def _forget_mark(self, view: View) -> None:
        """Drop the mark first, so that a restarted engine takes in the staged states."""
        meta: positions.Meta = {}
        positions.put_view(meta, view.id, None)
        self._state.db.put_meta(meta, sync=True)

    def _came_back(self, view: View, mark: StateMark) -> bool:
        """Return whether states came back from another worker and are staged here."""
        if not views.staged(self._state.settings, view.id):
            return False  # cheap check, without reading the state database
        cut = self._sharing.cut(view.id)
        if view.id in self._state.db.views() and cut == view.parts:
            return False
        found = views.manifest(self._state.settings, view.id)
        return found is not None and found.mark is not None and found.mark.txid >= mark.txid

    def _take_back(self, view: View, mark: StateMark) -> None:
        """Restore a view from the state database."""
        self._durability.still()
        if view.store is None:
            self._sharing.restore(view)
        self._sharing.reach(view)
        if view.store is None:
            view.restore(self._state.db.view(view.id, mark.txid), mark)
        _revive(view)

    def _ingest(self, view: View) -> bool:
        """Take in the states that a population staged; idempotent.  False: there are none."""
        state = self._state
        found = views.manifest(state.settings, view.id)
        if found is None:
            return False
        mark = found.mark
        if mark is not None and found.lineage != state.lineage:
            raise StateDamaged("the record of the view's staged state is lost", hint=RESYNC)
        if mark is None:
            mark = StateMark(self._txid_before(found.lsn, found.txid), found.lsn, found.txid)
        if found.kept:
            self._take_over(view, found, mark)
            return True
        txid = mark.txid
        self._durability.still()
        if self._sharing.cut(view.id):  # until it moved
            self._sharing.remove_feeds(view.id)
        view.start_lsn = found.lsn
        meta: positions.Meta = {}
        if found.replaces:
            self._successors[found.replaces] = view.id
            if len(self._successors) > _SUCCESSORS_MAX:
                del self._successors[next(iter(self._successors))]
        # A view below that was damaged meanwhile could not stop this one, which was not known here.
        if not all(self._is_sound(fed_by, view) for fed_by in found.fed_by):
            raise FeedLost("the view that it is fed from has stopped, or was rebuilt", hint=RESYNC)
        self._sharing.feed(view, found.feeds, txid)
        made = self._sharing.divide(view, found.runs, mark, meta)
        own = view.own
        if view.placed:
            self._hosts.deploy(view, found.runs, mark)
            positions.put_view(meta, view.id, mark)
            state.db.put_meta(meta, sync=False)  # a lower bound; the worker knows the mark
            _revive(view)
            view.story.add("deployed", worker=view.placed, txid=txid, lsn=found.lsn)
            return True
        state.db.ingest(
            view.id, found.runs, (lambda name: subplans.keeps(own, name)) if made else None
        )
        faults.point(faults.STATES_TAKEN)
        positions.put_view(meta, view.id, mark)
        state.db.put_meta(meta, sync=True)
        self._sharing.divided(view, made, mark)
        view.restore(state.db.view(view.id, txid), mark)
        _revive(view)
        view.story.add("ingested", txid=txid, lsn=found.lsn)
        return True

    def _is_sound(self, below: int, above: View) -> bool:
        """Return whether the rows that ``above`` has of the view ``below`` are right.

        So they are if that view was only replaced because it lagged, but views with option
        ``from`` are filled again then (``_stop_readers``).
        """
        while not states.is_sound(self._state.owner.conn, below):
            below = self._successors.get(below) or views.successor(self._state.settings, below)
            if not below or above.plan.feeds:
                return False
        return True

    def _take_over(self, view: View, found: Manifest, mark: StateMark) -> None:
        """Give a view the states of its predecessor, as of ``mark``.

        Raises:
            StateDamaged: the predecessor has gone on, or its states are gone.
        """
        state = self._state
        self._durability.still()
        if positions.view(state.db, found.kept) != mark:
            raise StateDamaged("the states that the view was to reuse have changed", hint=RESYNC)
        if mark.txid < state.position.txid and mark.txid + 1 not in state.records:
            # The batches that it lacks could not be cut as before.
            raise ContinuityLost("the stream has moved on since the view was altered", hint=RESYNC)
        before = state.views.get(found.kept)
        if before is not None:
            before.release()  # its states must not be used any more
        view.start_lsn = found.lsn
        meta: positions.Meta = {}
        inherited = self._sharing.take_over(view, found.kept, found.nodes, meta)
        positions.put_view(meta, found.kept, None)
        positions.put_view(meta, view.id, mark)
        faults.point(faults.BEFORE_INHERIT)
        state.db.take_over(
            found.kept, view.id, lambda name: subplans.owner(name) in found.nodes, meta
        )
        faults.point(faults.INHERITED)
        # Before the predecessor goes, so that output of shared subplans is retained for this view.
        state.views[view.id] = view
        inherited()
        view.restore(state.db.view(view.id, mark.txid), mark)
        _revive(view)
        view.story.add("inherited", of=found.kept, txid=mark.txid, lsn=found.lsn)
        _log.info("states inherited", view=view.id, of=found.kept, txid=mark.txid)

    def _txid_before(self, lsn: int, held_txid: int) -> int:
        """Return the last batch that is wholly before ``lsn``, and so in the population.

        ``held_txid`` is known to be, from the hold.

        Raises:
            ContinuityLost: the batches after it are no longer available.
        """
        state = self._state
        before = [t for t, r in state.records.items() if r.end_lsn <= lsn]
        if before:
            return max(before)
        if lsn >= state.position.lsn:
            return state.position.txid
        # Without records, nothing was processed up to the position; or the position is new,
        # because earlier state or the slot was lost.
        kept = lsn >= state.confirmed or state.retained.follows(held_txid, lsn)
        if not state.records and kept:
            return state.position.txid
        first = min(state.records, default=0)
        if held_txid + 1 == first and kept:
            return held_txid
        raise ContinuityLost("the stream has moved on since the view was populated", hint=RESYNC)

    def _verify(self, views: Sequence[View]) -> None:
        """Let views run, or stop them, with a number of statements that does not grow with them."""
        state = self._state
        wrong = {view.id: error for view in views if (error := self._objection(view)) is not None}
        restored = [e for e in wrong.values() if isinstance(e, DatabaseRestored)]
        if restored and not self._state.switched:
            # A view without changes since then does not show it, but its states are as wrong.
            wrong |= {view.id: restored[0] for view in views if view.id not in wrong}
        left = [view for view in views if view.id not in wrong]
        wrong |= result_tables.find_unwritable(state, left)
        left = [view for view in left if view.id not in wrong]
        policies.renew(state.owner.conn, (view.target for view in left))
        wrong |= {view.id: _outdated() for view in left if view.plan.outdated}
        wrong |= self._misread(left)
        wrong |= self._watch.check([view for view in left if view.id not in wrong])
        for view in views:
            if view.id in wrong and view.id in state.views:
                self._leaving.fail(view, wrong[view.id])
        running = [view.id for view in views if view.id not in wrong and view.live]
        state.statuses.run(state.owner.conn, running)

    def _misread(self, views: Sequence[View]) -> dict[int, HeadraceError]:
        """Return errors for views that an earlier version planned over moved columns."""
        earlier = [view.id for view in views if view.plan.version < _RIGHT_COLUMNS]
        found = reads.over_gaps(self._state.owner.conn) if earlier else set()
        why = "an earlier version of headrace may have read other columns of a view below"
        return {i: RowsInDoubt(why, hint=RESYNC) for i in earlier if i in found}

    def _objection(self, view: View) -> HeadraceError | None:
        """Return why a view's positions forbid it to run, or None."""
        state = self._state
        assert view.progress is not None, "it was just taken over"
        if any(unit.mark.txid >= state.next_txid for unit in state.units_of(view)):
            return ContinuityLost(
                "the promoted server lacks changes that the view's state has",
                detail="A checkpoint was written before a standby had them.",
                hint=RESYNC,
            )
        if view.progress.txid < view.mark.sink_txid:
            # Sink commit precedes checkpoint, so the database was restored from a backup.
            return DatabaseRestored(
                "the database is older than the view's state: it was restored, or is a copy",
                hint=RESYNC,
            )
        if self._written_by_another(view):
            return ContinuityLost(
                "another engine has written the view since this one did",
                detail="A batch must be formed by the engine whose state covers it.",
                hint=RESYNC,
            )
        behind = view.mark.txid < state.position.txid
        if behind and state.needs(view.mark) < state.confirmed:
            if state.retained.damaged:
                return ContinuityLost(
                    "the changes stored for the view are lost or damaged", hint=RESYNC
                )
            return ContinuityLost(
                "the stream has moved on since the view was populated", hint=RESYNC
            )
        for part in state.parts_of(view):
            if part.mark.txid < state.position.txid and state.needs(part.mark) < state.confirmed:
                return ContinuityLost(f'worker "{part.placed}" is behind the stream', hint=RESYNC)
        return None

    def _written_by_another(self, view: View) -> bool:
        """Return whether progress shows a batch that this engine cut differently (H21)."""
        assert view.progress is not None, "it was just taken over"
        txid, mark = view.progress.txid, view.mark
        if txid <= mark.txid:
            # The last txid written is in the state: no crash comes between the two.
            return txid != mark.sink_txid
        record = self._state.records.get(txid)
        return record is not None and record.end_lsn != view.progress.lsn

    def _collect_garbage(self, conn: psycopg.Connection[Any], marks: dict[int, StateMark]) -> None:
        """Drop the states of views that were dropped while the engine was not running."""
        # A worker may have died between forgetting the mark and dropping the states.
        for view_id in sorted(marks.keys() | self._state.db.views()):
            known = self._state.unit(view_id)
            if known is None and not catalog.exists(conn, view_id):
                self._leaving.drop_state(view_id)


def _refilled() -> StructureChanged:
    # Not damage, because it may happen any number of times.
    return StructureChanged("the view that it is fed from was rebuilt", hint=RESYNC)


def _outdated() -> StructureChanged:
    return StructureChanged(
        "the view was planned by an earlier version of headrace",
        detail="Its aggregates processed their rows in different orders.",
        hint=RESYNC,
    )


def _revive(view: View) -> None:
    """Let a view run that has its state, unless it is paused."""
    if view.cursor not in (CursorState.PAUSED, CursorState.CATCHING_UP):
        view.turn(CursorState.CATCHING_UP, "its states were loaded")
