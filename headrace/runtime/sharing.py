"""Sharing of subplans that several views have in common.

    view a: plan ──► own part ◄─┐
                                ├── diffs of the shared subplan, txid by txid ◄── its own state
    view b: plan ──► own part ◄─┘

A *shared subplan* is a unit like a view, but without a result table.  It has a plan, a store and a
mark.  It is processed before its readers, committed when they are, and checkpointed with them in
one write.

Creation.  A new view is populated whole, as if it were alone.  When the worker takes in its state,
it looks for the largest subplans that other views also have (``subplans.signatures``).  For each of
these, the staged state of the nodes becomes the state of a shared subplan, and the new view reads
its output.  The other views, which run with their own state, *join* when nothing is in flight, and
both the view and the shared subplan are durable at one txid.  They drop their state of these nodes
and read on.  Both states are functions of the same tables as of the same txid, so nothing is handed
over.  A new view joins existing shared subplans in the same way, once it has caught up.  Shared
subplans may read others.

Stopped readers.  A view that is paused, or whose table is locked, stops at its txid, while the
shared subplan goes on with the other views.  Its output is therefore kept in a queue
(``shared.py``) until every reader is durably beyond it; a view that goes on is fed from there.

* Invariant 1: the mark of a shared subplan is never behind that of a reader, in memory and in each
  checkpoint.  Its output since the readers' least durable mark is in its queue.
* Invariant 2: the feeds are written in one batch with the dropping of states, or the creation of
  marks.  At any crash, a unit has the state that its part of the plan needs.
* Invariant 3: a shared subplan without readers is dropped.
* Invariant 4: a shared subplan reads the tables that its readers' plans read below it
  (``subplan_members.py``).

If a shared subplan fails (a row divides by zero in it), all its readers fail, as each would have
alone.  A view that has stopped for good reads nothing; refilled, it may share again.

*Connection points.*  A view that is fed from another one (option ``from``) reads a subplan that is
all of that view's plan; its own plan begins with the output of the subplan.  It cannot do without
the subplan, because its own plan does not contain the nodes below.

*Parts on other workers.*  A view may be cut: nodes of its plan are computed on other workers, each
with everything below it that no other worker computes, as a subplan of this view only (``parts``).
The part's states are on that worker; its output comes here, into its queue, and is read like that
of any shared subplan: by the view, and by parts on other workers, to which it is sent from here.

* Invariant 5: the queue here has the output of a part up to the part's mark on its worker.  The
  worker stores the queue's position with each mark (``Shared.progress_mark``), and writes the
  mark after the queue.  If the queue lacks some of it, the worker's states are not used.
* In memory, a part may be behind its view after its worker has died.  It then catches up alone,
  because its output is here.  Until it has, checkpoints leave the view out.
* A part exists once the state database here has it, which is after its worker has made it durable.
  A worker that joins drops parts that are unknown here.

Not shared: nodes that read the clock, and groups that show a key in the form that came first.
The option ``sharing`` keeps out one view, the setting of that name all views.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from headrace import clock
from headrace.collections import subplans
from headrace.errors import (
    RESYNC,
    ContinuityLost,
    StateDamaged,
    TransientError,
    UnsupportedError,
)
from headrace.process import faults
from headrace.runtime import positions, subplan_members
from headrace.runtime import shared as records
from headrace.runtime.durability import Durability
from headrace.runtime.engine_state import EngineState
from headrace.runtime.positions import Meta, StateMark
from headrace.runtime.shared import PER_VIEW_MAX, Shared
from headrace.runtime.signatures import Signatures
from headrace.runtime.unit_feeds import UnitFeeds
from headrace.runtime.views import Unit, View
from headrace.runtime.watch import Watch
from headrace.runtime.worker_handles import WorkerHandles

_log = structlog.get_logger(__name__)

_RETRY_S: Final = 1.0


class FeedLost(ContinuityLost):
    """The subplan that feeds a view no longer exists."""


class Sharing:
    """The shared subplans of one engine; every method runs on the engine's thread."""

    def __init__(
        self,
        state: EngineState,
        durability: Durability,
        watch: Watch,
        hosts: WorkerHandles,
        drain: Callable[[], None],
    ) -> None:
        self._state = state
        self._hosts = hosts
        self._durability = durability
        self._watch = watch
        self._drain = drain
        self._feeds: Final = UnitFeeds()
        self._links: Final = state.index.links
        self._signatures: Final = Signatures()
        self._changes: Final = state.index.links.follow()
        """Units whose signatures may be unknown."""
        self._affected: set[int] = set()
        """Units that may be able to read more or less than at the last call of ``look_at``."""
        self._joining: dict[int, dict[str, int]] = {}
        """Units that could read more subplans than they do, with all feeds they would have."""
        self._retry_at = 0.0
        """Whether a checkpoint was written so that the next one is small (``join_ready``)."""

    # --- from and to the state database

    def read(self) -> None:
        """Restore the shared subplans of an earlier run.

        Raises:
            StateDamaged: they cannot be read.
        """
        state = self._state
        state.subplans.clear()
        self._joining.clear()
        feeds, found = records.read(state.db, state.queues, state.records.last)
        self._feeds.load(feeds, (made.id for made in found))
        state.subplans.update({made.id: made for made in found})

    def follow(self, views: Iterable[View]) -> None:
        """Let subplans read the table members that ``views``, which are new here, read."""
        subplan_members.restore(self._state, views, self._feeds)

    def restore(self, view: View) -> None:
        """Restore the feeds of a view whose mark is known.

        Raises:
            StateDamaged: a subplan is missing.
        """
        feeds = self._feeds.get(view.id)
        for feeder in feeds.values():
            if feeder not in self._state.subplans:
                raise StateDamaged("a subplan that it shares is gone", hint=RESYNC)
        view.feed_on(feeds)
        _check_fed(view)
        subplan_members.check(self._state, view)

    def check_partable(self, view: View) -> None:
        """Check cheaply whether ``part`` may succeed, before its costly requirements are met.

        Raises:
            TransientError: the view is not at the engine's position, or about to join a subplan; or
                the last attempt was a moment ago.
        """
        now, position = clock.monotonic(), self._state.position.txid
        level = view.processed >= position and self._together(view.id, view.feeds)
        if now < self._retry_at or not level or self._links.outputs(self._output_of(view)):
            raise TransientError("the view has not caught up", sqlstate="55006")
        self._retry_at = now + _RETRY_S

    def _output_of(self, view: View) -> str:
        """Return the signature of all that a view computes, or a name for that."""
        known = self._signatures.of(view)
        return known.get(view.plan.sink.input, f"output of view {view.id}")

    def part(self, view: View) -> Shared:
        """Return the shared subplan of all that a view computes; the view itself reads it then.

        If there is none, the view's states become those of a new one.

        REQUIRES: nothing is in flight, and everything is durable; or there is one.

        Raises:
            TransientError: the view is not at the engine's position, or about to join a subplan, or
                about to stop for an altered object.
            UnsupportedError: the view is on another worker.
        """
        if view.placed or view.parts:
            raise UnsupportedError(
                f"a view on another worker cannot feed other views: {view.target.shown}",
                hint='Read it without option "from".',
            )
        top = view.plan.sink.input
        if top in view.feeds:
            if self._watch.check([view]):
                raise TransientError("an object that the view depends on was altered")
            return self._state.subplans[view.feeds[top]]
        signature = self._output_of(view)
        known = self._links.outputs(signature)
        if known or not self._durably_together(view, view.feeds):
            raise TransientError("the view has not caught up", sqlstate="55006")
        number = next(
            n
            for n in itertools.count(view.id * PER_VIEW_MAX)
            if -n not in self._state.subplans and -n not in self._feeds
        )
        settings = dict(view.settings)
        whole = subplans.subplan(view.plan, top)
        made = Shared(-number, whole, settings, view.start_lsn, signature)
        made.feed_on(view.feeds)
        mark = view.mark
        meta: Meta = {}
        records.put(meta, made)
        records.put_feeds(meta, made.id, made.feeds)
        records.put_feeds(meta, view.id, {top: made.id})
        positions.put_view(meta, made.id, mark)
        faults.point(faults.BEFORE_PART)
        self._state.db.hand_over(view.id, made.id, meta)
        faults.point(faults.PARTED)
        view.feed_on({top: made.id})
        view.restore(self._state.db.view(view.id, mark.txid), mark)
        self.divided(view, [made], mark)
        self.look()
        return made

    def feed(self, view: View, feeds: Mapping[str, int], txid: int) -> None:
        """Set the feeds of a new view, whose first contents are as of ``txid``.

        Raises:
            FeedLost: a feeding subplan is gone, or was set back.
            StateDamaged: it reads other tables than the view's plan.
        """
        for feeder in feeds.values():
            shared = self._state.subplans.get(feeder)
            if shared is None or shared.durable.txid < txid:
                raise FeedLost("the source of the view was lost meanwhile", hint=RESYNC)
        view.feed_on(feeds)
        _check_fed(view)
        subplan_members.check(self._state, view)

    def cut(self, view_id: int) -> dict[str, str]:
        """Return the parts of a view in the state database: worker by node."""
        found: dict[str, str] = {}
        for node, feeder in self._feeds.get(view_id).items():
            part = self._state.subplans.get(feeder)
            if part is not None and part.placed:
                found |= {node: part.placed} | self.cut(feeder)
        return found

    def take_over(
        self, view: View, kept: int, nodes: Collection[str], meta: Meta
    ) -> Callable[[], None]:
        """Give a view the feeds of ``kept``, whose ``nodes`` it reuses.

        Return a function to call once the additions to ``meta`` are durable.

        Raises:
            StateDamaged: the view would lack a subplan.
        """
        feeds = self._feeds.get(kept)
        if not (feeds.keys() <= set(nodes) and self._state.subplans.keys() >= set(feeds.values())):
            raise StateDamaged("a subplan that it shares is gone", hint=RESYNC)
        view.feed_on(feeds)
        _check_fed(view)
        subplan_members.check(self._state, view)
        records.put_feeds(meta, kept, {})
        records.put_feeds(meta, view.id, feeds)

        def inherited() -> None:
            self._feeds.drop(kept)
            self._signatures.forget(kept)
            self._joining.pop(kept, None)
            if view.feeds:
                self._feeds.put(view.id, view.feeds)

        return inherited

    def reach(self, view: View) -> None:
        """Reconnect the parts of a view that are on other workers.

        Raises:
            OutOfReach: a worker is out of reach.
            StateDamaged: the worker's states, or the output here, are lost.
            Deadly: the worker crashes because of them.
        """
        for part in self._state.parts_of(view):
            if part.reachable:
                continue
            mark = self._hosts.mark(part)
            if mark is None:
                raise StateDamaged(
                    f'worker "{part.placed}" has no states of its part of the view', hint=RESYNC
                )
            if part.output.front < mark.sink_txid:
                part.lose_store()
                raise StateDamaged("the output of a part of the view is lost", hint=RESYNC)
            part.story.add("back", worker=part.placed, txid=mark.txid)

    def is_below(self, view: View, shared: Shared) -> bool:
        """Return whether a subplan computes a part of the views that a view is stacked on."""
        tops = view.plan.filled_from
        signed = self._signatures.of(view)
        return any(
            view.feeds.get(node) == shared.id or signed.get(node) == shared.signature
            for top in tops
            for node in subplans.needed(view.plan, top)
        )

    def _cut(self, view: View, runs: Sequence[Path], mark: StateMark, meta: Meta) -> list[Shared]:
        """Deploy the parts of a new view on other workers."""
        for worker in set(view.parts.values()):
            self._hosts.reach(worker)
        ids = {
            node: -(view.id * PER_VIEW_MAX + number)
            for number, node in enumerate(sorted(view.parts))
        }
        made = [
            Shared(
                part_id,
                subplans.subplan(view.plan, node),
                dict(view.settings),
                view.start_lsn,
                f"{node} of view {view.id}",
                owner=view.owner,
                placed=view.parts[node],
                limits=dict(view.limits),
            )
            for node, part_id in ids.items()
        ]
        for part in made:
            read = subplans.feeds(view.plan, view.parts, part.plan.sink.input)
            part.feed_on({node: ids[node] for node in read})
            self._hosts.deploy(part, runs, mark)
            records.put(meta, part)
            records.put_feeds(meta, part.id, part.feeds)
            positions.put_view(meta, part.id, mark)
        view.feed_on({node: ids[node] for node in subplans.largest(view.plan, ids)})
        records.put_feeds(meta, view.id, view.feeds)
        return made

    def divide(self, view: View, runs: Sequence[Path], mark: StateMark, meta: Meta) -> list[Shared]:
        """Create the subplans of a new view: those shared with other views, or its remote parts.

        ``runs`` have the view's states; it must keep only those of its own part.  The feeds are
        added to ``meta``, which must be written before ``divided``.

        Raises:
            OutOfReach: the worker for a part is out of reach.
        """
        if view.parts:
            return self._cut(view, runs, mark, meta)
        db = self._state.db
        made: list[Shared] = []
        feeds = dict(view.feeds)
        for node in self._common(view):
            shared = Shared(
                -(view.id * PER_VIEW_MAX + len(made)),
                subplans.subplan(view.plan, node),
                dict(view.settings),
                view.start_lsn,
                self._signatures.of(view)[node],
            )
            # There are no states of what the view is fed with.
            below = subplans.largest(shared.plan, view.feeds)
            shared.feed_on({name: view.feeds[name] for name in below})
            db.ingest(shared.id, runs, partial(subplans.keeps, shared.own))
            made.append(shared)
            feeds[node] = shared.id
            records.put(meta, shared)
            records.put_feeds(meta, shared.id, shared.feeds)
            positions.put_view(meta, shared.id, mark)
        feeds = {name: feeds[name] for name in subplans.largest(view.plan, feeds)}
        if feeds:
            records.put_feeds(meta, view.id, feeds)
        view.feed_on(feeds)
        return made

    def divided(self, view: View, made: list[Shared], mark: StateMark) -> None:
        """Register the subplans that ``divide`` created; they are durable."""
        for shared in made:
            if not shared.placed:
                shared.restore(self._state.db.view(shared.id, mark.txid), mark)
            shared.open(self._state.queues, None)
            readers = [unit.id for unit in (view, *made) if shared.id in unit.feeds.values()]
            shared.keep_for(dict.fromkeys(readers, mark.txid))
            if shared.feeds:
                self._feeds.put(shared.id, shared.feeds)
            self._state.subplans[shared.id] = shared
            self._feeds.add(shared.id)
            self._affected |= {shared.id, *self._signatures.holders(shared.signature)}
            _log.info("subplan shared", view=view.id, subplan=shared.id, of=shared.shown)
            view.story.add("shares", subplan=shared.id)
        if view.feeds:
            self._feeds.put(view.id, view.feeds)

    def _common(self, view: View) -> list[str]:
        """Return the largest subplans of a new view that other units compute for themselves."""
        if not _may(self._state, view):
            return []
        # This makes the signatures of all units that may share known.
        for unit in map(self._state.unit, self._changes.take()):
            if unit is not None and _shares(self._state, unit):
                self._signatures.of(unit)
        mine = self._signatures.of(view)
        outputs = {s for s in mine.values() if self._links.outputs(s)}
        kept = {
            s
            for s in mine.values()
            if s in outputs or _is_kept(self._state, self._signatures, s, view)
        }
        common = {n for n, s in mine.items() if s in kept} - view.feeds.keys()
        found = subplans.largest(view.plan, common | view.feeds.keys())
        return [n for n in found if n in common and mine[n] not in outputs][:PER_VIEW_MAX]

    # --- who reads what

    def shared_nodes(self, view: View) -> dict[str, tuple[int, list[str]]]:
        """Return the shared nodes of a view: ID of the subplan, and the other views that need it.

        Callable from any thread.
        """
        out = {}
        for node, feeder in dict(view.feeds).items():
            shared = self._state.subplans.get(feeder)
            if shared is not None and not shared.placed:
                views = self._state.views_of(shared)
                out[node] = shared.id, [v.target.shown for v in views if v.id != view.id]
        return out

    # --- joining and leaving

    def look(self) -> None:
        """Find all units that could read more subplans than they do."""
        self._joining = {}
        self._affected.clear()
        self._find([unit for unit in self._state.units if _shares(self._state, unit)])
        self._durability.trim(self._state.subplans.values())

    def look_at(self, *unit_ids: int, trimmed: Iterable[int] = ()) -> None:
        """Do as ``look`` for these units, and for those affected since the last call.

        ``trimmed``: subplans with other readers now, besides those that ``unit_ids`` read.
        """
        affected = self._affected | set(unit_ids)
        self._affected.clear()
        found = {unit_id: self._state.unit(unit_id) for unit_id in affected}
        for unit_id in found:
            self._joining.pop(unit_id, None)
        units = [unit for unit in found.values() if unit is not None]
        self._find([unit for unit in units if _shares(self._state, unit)])
        read = {feeder for unit in units for feeder in unit.feeds.values()} | set(trimmed)
        known = (self._state.subplans.get(feeder) for feeder in read)
        self._durability.trim(shared for shared in known if shared is not None)

    def _find(self, units: Iterable[Unit]) -> None:
        """Add those of ``units`` that could read more than they do to ``_joining``."""
        self._retry_at = 0.0
        for unit in units:
            other = {
                node: shared.id
                for node, signature in self._signatures.of(unit).items()
                for shared in self._links.outputs(signature)
                if not shared.placed and shared.id != unit.id
            }
            other |= unit.feeds  # it keeps no state of these
            found = {n: other[n] for n in subplans.largest(unit.plan, other)}
            if found != unit.feeds:
                self._joining[unit.id] = found

    def join_ready(self) -> None:
        """Let units join that can, if it is time to; called in each cycle of the engine."""
        if not self._joining or clock.monotonic() < self._retry_at:
            return
        if not any(self._together(*pair) for pair in self._joining.items()):
            return
        if not self._durability.nearly_done():
            return
        self._retry_at = clock.monotonic() + _RETRY_S
        self._drain()
        self._durability.finish()
        # Last the units that leave a subplan for a larger one, which may read the first by then.
        left: set[int] = set()
        for unit_id, feeds in sorted(self._joining.items(), key=partial(_leaves, self._state)):
            unit = self._state.unit(unit_id)
            if unit is not None and self._durably_together(unit, feeds):
                left |= set(unit.feeds.values())
                self._join(unit, feeds)
                self._affected.add(unit_id)
        self._drop_unread()
        self.look_at(trimmed=left)

    def _together(self, unit_id: int, feeds: Mapping[str, int]) -> bool:
        """Return whether a unit and the subplans that it would read are at the same txid."""
        unit = self._state.unit(unit_id)
        if unit is None or any(not v.live for v in self._state.views_of(unit)):
            return False
        if not self._state.subplans.keys() >= set(feeds.values()):
            return False
        units = [unit, *(self._state.subplans[f] for f in feeds.values())]
        # Before that, a snapshot contained changes of later txids.
        begun = max(u.start_lsn for u in units) <= self._state.position.lsn
        return begun and len({u.processed for u in units}) == 1

    def _durably_together(self, unit: Unit, feeds: Mapping[str, int]) -> bool:
        if not self._together(unit.id, feeds):
            return False
        units = [unit, *(self._state.subplans[f] for f in feeds.values())]
        at = {u.processed for u in units}
        at |= {txid for u in units for txid in (u.mark.txid, u.durable.txid)}
        if at != {self._state.position.txid}:
            return False
        # A view that is not aware of a catalog change must not join.  Any one reader relies on
        # everything that the subplan relies on.
        readers = (filter(_is_owned, self._state.views_of(u)) for u in units)
        views = {view.id: view for found in readers for view in itertools.islice(found, 1)}
        return not self._watch.check(views.values())

    def _join(self, unit: Unit, feeds: dict[str, int]) -> None:
        """Make a unit read shared subplans, and drop its own state of their nodes."""
        own = subplans.over_feeds(unit.plan, feeds)
        meta: Meta = {}
        records.put_feeds(meta, unit.id, feeds)
        faults.point(faults.BEFORE_JOIN)
        self._state.db.drop_states(unit.id, lambda name: subplans.keeps(own, name), meta)
        faults.point(faults.JOINED)
        self._feeds.put(unit.id, feeds)
        unit.feed_on(feeds)
        unit.story.add("joined", subplans=list(feeds.values()))
        _log.info("subplan joined", unit=unit.id, subplans=list(feeds.values()))
        self._joining.pop(unit.id, None)

    def remove_feeds(self, unit_id: int) -> None:
        """Remove the feeds of a view that is gone, or has stopped for good."""
        view = self._state.views.get(unit_id)
        if view is not None:
            view.feed_on({})
            view.dataflow = None
        self._signatures.forget(unit_id)
        feeds = self._feeds.drop(unit_id)
        if feeds:
            meta: Meta = {}
            records.put_feeds(meta, unit_id, {})
            self._state.db.put_meta(meta, sync=False)
        self._drop_unread()
        self.look_at(unit_id, trimmed=feeds.values())

    def prune(self) -> None:
        """Drop subplans that are not read, now that all views that should run are known."""
        for unit_id in self._feeds.views:
            view = self._state.views.get(unit_id)
            if view is None or not view.owned:
                self.remove_feeds(unit_id)
        self._drop_unread()
        self.look()

    def _drop_unread(self) -> None:
        while unread := self._feeds.take_unread():
            for shared in map(self._state.subplans.get, unread):
                if shared is not None:
                    self._drop(shared)

    def _drop(self, shared: Shared) -> None:
        state = self._state
        self._durability.still()
        shared.release()
        meta: Meta = {}
        records.drop(meta, shared)
        positions.put_view(meta, shared.id, None)
        # The readers' new feeds must be on disk, too, before the state is gone from there.
        state.db.put_meta(meta, sync=True)
        del state.subplans[shared.id]
        self._feeds.drop(shared.id)
        self._affected |= {shared.id, *self._signatures.holders(shared.signature)}
        self._signatures.forget(shared.id)
        if shared.placed:
            self._hosts.drop(shared.id)
        else:
            state.db.drop_view(shared.id)
        state.queues.drop(shared.queue_name)
        _log.info("subplan dropped", subplan=shared.id)


def _leaves(state: EngineState, joining: tuple[int, Mapping[str, int]]) -> bool:
    unit = state.unit(joining[0])
    now = set(unit.feeds.values()) if unit is not None else set()
    return not now <= set(joining[1].values())


def _is_owned(view: View) -> bool:
    return view.owned


def _shares(state: EngineState, unit: Unit) -> bool:
    """Return whether a unit may share."""
    if isinstance(unit, Shared):
        return not unit.placed
    assert isinstance(unit, View), "the other kind of unit"
    return unit.owned and unit.store is not None and _may(state, unit)


def _is_kept(state: EngineState, signatures: Signatures, signature: str, view: View) -> bool:
    """Return whether a unit other than ``view`` computes a node with that signature itself."""
    # Subplans first, as most other units read them; their IDs are negative.
    for unit_id in sorted(signatures.holders(signature)):
        unit = state.unit(unit_id)
        if unit is None or unit_id == view.id or not _shares(state, unit):
            continue
        # A view that this one replaces will be gone in a moment.
        if isinstance(unit, View) and (
            unit.suspended is not None or unit.target.oid == view.target.oid
        ):
            continue
        signed = signatures.of(unit)
        if any(signed.get(node.id) == signature for node in unit.own.nodes):
            return True
    return False


def _may(state: EngineState, view: View) -> bool:
    return view.shares and state.settings.sharing


def _check_fed(unit: Unit) -> None:
    """Raise StateDamaged unless every feed of a unit's plan is known.

    A unit that was filled from other views has never had the states below their rows.
    """
    unknown = any(feed.id not in unit.feeds for feed in unit.own.feeds)
    if unknown or (unit.plan.filled_from and not unit.feeds):
        raise StateDamaged("the source that feeds it is not known", hint=RESYNC)
