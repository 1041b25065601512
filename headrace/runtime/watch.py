"""The catalog watch: stops views when DDL affects them that the stream does not report.

Each view has the facts under which it was populated (``headrace.views.watched``). The present
facts are read when a view is adopted or loaded, every ``catalog_poll_ms``, and when the stream
describes a used table again, before the following rows are processed. A description always follows
DDL on a table, so rows from after the DDL never reach a view from before it.

If Postgres runs code of users for a view, or its values depend on a user's type, a quick check
(``altered``) runs before and after a batch touches it, and again in the sink before the commit. So
values that were computed under two definitions are never shown.

A view also stops when its owner may no longer read its tables; the sink checks that. Rows committed
after the right has ended are not written. The view continues when the right is back.

A harmless difference is merged into the stored facts. A table rewrite is recognised by two
properties that change in one transaction; such changes must not accumulate over years.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import pyarrow as pa
import structlog

from headrace import clock
from headrace.errors import (
    RESYNC,
    ContinuityLost,
    HeadraceError,
    OwnerGone,
    RightEnded,
    SinkBlocked,
    StateDamaged,
    StructureChanged,
    TransientError,
)
from headrace.kernels.pgoutput import Changes
from headrace.postgres import definitions, fingerprint, identity, members
from headrace.postgres.definitions import Definitions
from headrace.postgres.fingerprint import Present
from headrace.postgres.members import Change
from headrace.postgres.numbering import Observation, VisibleXids
from headrace.postgres.privileges import Right
from headrace.postgres.reliances import Facts, Reliances, rights_of
from headrace.runtime.columns import Columns, Description
from headrace.runtime.engine_state import EngineState
from headrace.runtime.views import Unit, View
from headrace.sql import reads, results, states, watched
from headrace.sql.status import Status

_log = structlog.get_logger(__name__)
_VISIBLE_S: Final = 2.0
_LOOK_S: Final = 0.005
_WITHDRAW_MS: Final = 50
"""Longest time in ms that the engine waits for a table's lock; the commander tries for longer."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference for one view: its facts, the present ones, and the change of members."""

    view: View
    before: Facts
    now: Facts
    change: Change


@dataclass(frozen=True, slots=True)
class Following:
    """Outcome for views whose tables' members differ; a view in neither field is asked again."""

    facts: dict[int, Facts]
    """By id of the views that continue: the facts that they rely on from now on."""
    refused: frozenset[int]
    """The views that must be filled anew."""


Follow = Callable[[Sequence[Difference], Collection[int]], Following]
"""Adapts views to changed members (``partitions.py``); the ids: views that are about to stop."""


@dataclass(frozen=True, slots=True)
class TableFacts:
    """The facts of the catalog about the tables that some views read; for any thread."""

    views: tuple[int, ...] = ()
    """IDs of these views."""
    snapshots: tuple[VisibleXids, ...] = ()
    """Snapshots at which all of them were found unchanged; empty if one was not."""
    facts: tuple[Facts, ...] = ()

    def show(self, xids: Collection[int]) -> bool:
        """Return whether the views are unchanged by transactions ``xids``, which committed."""
        snapshots = self.snapshots
        return bool(snapshots) and all(seen.shows(xid) for seen in snapshots for xid in xids)

    def observations(self, table: int) -> Iterator[Observation]:
        """Yield the columns of a table as each of the facts has them."""
        for facts in self.facts:
            yield from fingerprint.observations(facts, table)


class Watch:
    """The facts that the views of one engine rely on; every method runs on the engine's thread."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._facts: dict[int, Facts] = {}
        self._now: dict[int, Facts] = {}
        """The last facts read, by view; ``_facts`` may be an earlier state of the same."""
        self._right: set[int] = set()
        """Views that ``_now`` lets continue."""
        self._found_right: dict[int, int] = {}
        """When a view was last found unchanged, by the clock of the units."""
        self._all_right = 0
        """When all views except ``_unsure`` were last found unchanged."""
        self._columns = Columns(self.observations)
        self._reliances = Reliances()
        """The objects that ``_facts`` rely on."""
        self._present: Present | None = None
        """The facts read by the last poll; all views except ``_unsure`` agree with them."""
        self._unsure: set[int] = set()
        """Views that the last poll has not found unchanged."""
        self._changes = state.index.links.follow()
        self._changed: set[int] = set()
        """Views to compare in the next poll, even if no object that they rely on has changed."""
        self._polled: tuple[str, int] | None = None
        """The source's snapshot and the number of batches at the last poll without differences."""
        self.due = 0.0
        """When to poll next, on the monotonic clock."""
        self.withdrawn: Final[set[int]] = set()
        """Rows of pg_publication_rel removed for want of a replica identity; any thread adds."""

    def poll(self, fail: Callable[[View, HeadraceError], None], follow: Follow) -> None:
        """Check everything if a poll is due; call ``fail`` for the views that cannot continue.

        ``follow`` is called with the views for which only the members of a table have changed.

        Raises:
            ContinuityLost: the publication is not the one that fed the views.
        """
        now = clock.monotonic()
        if now < self.due:
            return
        self.due = now + self._state.settings.catalog_poll_ms / 1000
        # DDL and GRANT are transactions, so an idle source costs one short query.
        at = (fingerprint.snapshot(self._conn), self._state.batches)
        if at == self._polled:
            return
        self._polled = None
        try:
            moving: list[Difference] = []
            errors = self._check_all(moving)
        except psycopg.errors.LockNotAvailable as locked:
            raise _locked(locked) from locked
        found = follow(moving, errors.keys())
        if moving:
            self._facts |= found.facts
            for view_id, facts in found.facts.items():
                self._reliances.put(view_id, facts)
        for difference in moving:
            if difference.view.id in found.refused:
                wrong = fingerprint.difference(difference.before, difference.now)
                assert wrong is not None, "the members differ"
                errors[difference.view.id] = wrong
        lost = [e for e in errors.values() if isinstance(e, ContinuityLost)]
        if lost and self.publication_replaced():
            raise lost[0]
        for view_id, error in errors.items():
            fail(self._state.views[view_id], error)
        self._reconsider()
        if not errors and not moving:
            self._polled = at

    def result_replaced(self, oid: int) -> None:
        """Poll at once if views read the view with this table, which may have been altered.

        So a caller that has altered a view, and then waits for one above it, reads no rows of the
        earlier query.
        """
        if self._reliances.views_on([("results", oid)]):
            self.due = 0.0

    def _check_all(self, moving: list[Difference]) -> dict[int, HeadraceError]:
        """Compare all views with the present facts, which most views have in common.

        A view is only compared individually if it, or an object that it relies on, has changed. See
        ``_compare`` for ``moving``.
        """
        state, at = self._state, next(Unit.clock)
        self._take_changes(())
        again = self._changed | self._unsure
        self._load([i for i in again if i in state.views and state.views[i].owned])
        name = state.settings.publication_name
        present = Present.read(self._conn, self._reliances, name, results.revisions)
        changed = present.changed(self._present) if self._present is not None else None
        concerned = self._facts.keys() if changed is None else self._reliances.views_on(changed)
        found = [state.views[i] for i in sorted(again.union(concerned)) if i in state.views]
        wanted = [view for view in found if view.owned]
        quiet = {view.id: self._is_quiet(view) for view in wanted}
        # Until these views are compared, only the others are known to be unchanged.
        self._unsure, self._present, self._all_right = set(quiet), present, at
        errors = self._compare(wanted, quiet, at, present, moving)
        self._changed.clear()
        self._unsure = errors.keys() | {difference.view.id for difference in moving}
        return errors

    def _reconsider(self) -> None:
        """Reconsider stopped views whose cause may be gone.

        The object that made a row fail may have been altered, or the owner may have the right to
        read again. Then the views are filled anew, but not while the owner lacks the right.
        """
        stopped = watched.stopped(self._conn)
        if not stopped:
            return
        found = fingerprint.read(
            self._conn,
            [view.facts for view in stopped],
            self._state.settings.publication_name,
            results.revisions,
        )
        for view, now in zip(stopped, found, strict=True):
            view_id = view.id
            error = fingerprint.difference(view.facts, now)
            ended = view.facts.get("ended", False)
            if isinstance(error, RightEnded | OwnerGone):
                if view.right_ended or ended:
                    self.end(view_id, error)
            elif ended and now["lacks"] and not isinstance(error, StructureChanged):
                continue  # more has changed, but it cannot be filled yet
            elif ended:
                back = StructureChanged("the owner's rights are back", hint=RESYNC)
                if self._begin_again(view_id, error or back, watched.begin_again):
                    _log.info("rights are back", view=view_id)
            elif (
                isinstance(error, StructureChanged)
                and not view.final
                and self._begin_again(view_id, error)
            ):
                _log.info("failed view reconsidered", view=view_id)

    def _begin_again(
        self,
        view_id: int,
        error: HeadraceError,
        also: Callable[[psycopg.Connection[Any], int], None] | None = None,
    ) -> bool:
        """Have a stopped view filled anew, unless its row is locked; return whether it will be."""
        with self._conn.transaction():
            if states.locked(self._conn, [view_id]):
                return False
            states.reconsider(self._conn, view_id, error)
            if also is not None:
                also(self._conn, view_id)
        return True

    def end(self, view_id: int, error: HeadraceError, after: Collection[int] = ()) -> None:
        """Stop a view for a right that has ended, until the right is back.

        ``after``: see ``Statuses.write``.
        """
        statuses = self._state.statuses
        statuses.write(self._conn, view_id, Status.ERROR, error, watched.end, after=after)

    def altered(self, units: Iterable[Unit]) -> dict[int, HeadraceError]:
        """Run the quick check; return the errors of views that are or read ``units``."""
        views: dict[int, View] = {}
        for unit in units:
            for view in self._state.views_of(unit):
                if self.definitions(view):
                    views[view.id] = view
        if not views:
            return {}
        kept = [self._facts[view_id]["definitions"] for view_id in views]
        try:
            found = definitions.marks(self._conn, kept)
        except psycopg.errors.LockNotAvailable as error:
            raise _locked(error) from error
        looked = zip(views.values(), kept, found, strict=True)
        return self.check([v for v, k, f in looked if definitions.changed(k, f)])

    def relied_on(self, view: View) -> tuple[Definitions | None, list[Right]]:
        """Return the definitions and rights that the sink must check."""
        facts = self._facts.get(view.id, {})
        return self.definitions(view), rights_of(facts)

    def definitions(self, view: View) -> Definitions | None:
        """Return the alterable definitions, besides tables, that its values depend on, or None."""
        found: Definitions | None = self._facts.get(view.id, {}).get("definitions")
        return found if found and (found["objects"] or found["words"]) else None

    def cause(self, view: View, error: HeadraceError) -> HeadraceError:
        """Return why a view stops: the alteration under it if there is one, else ``error``."""
        if isinstance(error, SinkBlocked | StateDamaged | ContinuityLost):
            return error
        found = self.check([view]).get(view.id)
        return error if found is None or view.id not in self._facts else found

    def described(self, found: Sequence[Description]) -> dict[int, HeadraceError]:
        """Process new table descriptions; return the errors of views that cannot continue.

        Raises:
            TransientError: the stream has transactions that are not visible yet (they wait for a
                standby), so their alterations are not known.
        """
        self._columns.describe(found)
        return self._check_with(self._described_by(found), {d.xid for d in found})

    def check_lagging(
        self, found: Sequence[Description], takers: Collection[int]
    ) -> tuple[dict[int, HeadraceError], TableFacts]:
        """Return the errors of views that lag and cannot take the rows after these descriptions.

        Views that were found unchanged by facts that show these transactions are not checked again.
        These are facts of this server, since the leading views have met the descriptions before.
        The facts of ``takers``, the views that take the rows (IDs), are returned as well.

        Raises:
            TransientError: as ``described``.
        """
        lagging = {view.id for view in self._state.lagging_views}
        views = [view for view in self._described_by(found) if view.id in lagging]
        xids = {description.xid for description in found}
        unsure = [v for v in views if v.id not in self._right or not self._shows(v, xids)]
        errors = self._check_with(unsure, xids) if unsure else {}
        return errors, self.table_facts(takers)

    def table_facts(self, views: Collection[int]) -> TableFacts:
        """Return the facts of the tables that ``views`` (IDs) read, for other threads."""
        both = [facts[i] for i in views for facts in (self._facts, self._now) if i in facts]
        if not all(i in self._right for i in views):
            return TableFacts(tuple(views), (), tuple(both))
        seen = {self._now[view_id]["seen"] for view_id in views}
        return TableFacts(tuple(views), tuple(map(VisibleXids.of, seen)), tuple(both))

    def _described_by(self, found: Sequence[Description]) -> list[View]:
        """Return the owned views that read the tables of these descriptions."""
        return self._readers(sorted({description.relation.oid for description in found}))

    def numbered(
        self, changes: Changes, xid: int, read: Mapping[int, int] | None
    ) -> pa.RecordBatch:
        """Return the changes with columns by attribute number; see ``Columns``."""
        return self._columns.numbered(changes, xid, read)

    def observations(self, table: int, xid: int) -> Iterator[Observation]:
        """Yield what is known of a table's columns as of transaction ``xid``, or later."""
        views = self._readers([table])
        if not any(self._shows(view, {xid}) for view in views):
            self._check_with(views, {xid})
        for view in views:
            for known in (self._facts, self._now):
                if view.id in known:
                    yield from fingerprint.observations(known[view.id], table)

    def _readers(self, tables: Iterable[int]) -> list[View]:
        """Return the owned views that read these tables, directly or through subplans."""
        links, state = self._state.index.links, self._state
        units = {unit.id: unit for table in tables for unit in links.reading(table)}
        views = {view.id: view for unit in units.values() for view in state.views_of(unit)}
        return [view for view in views.values() if view.owned]

    def _check_with(self, views: Sequence[View], xids: set[int]) -> dict[int, HeadraceError]:
        """Run ``check`` with facts that show the committed transactions ``xids``."""
        until = clock.monotonic() + _VISIBLE_S
        while True:
            errors = self.check(views)
            if all(self._shows(v, xids) for v in views if v.id in self._now):
                return errors
            if clock.monotonic() >= until:
                raise TransientError("a transaction of the stream is not visible yet")
            clock.sleep(_LOOK_S)

    def _shows(self, view: View, xids: set[int]) -> bool:
        now = self._now.get(view.id)
        if now is None:
            return False
        snapshot = VisibleXids.of(now["seen"])
        return all(map(snapshot.shows, xids))

    def check(self, views: Iterable[View]) -> dict[int, HeadraceError]:
        """Compare views with the present facts; return the errors of those that must stop.

        Raises:
            TransientError: the catalog cannot be read now.
        """
        try:
            return self._check(views)
        except psycopg.errors.LockNotAvailable as error:
            raise _locked(error) from error

    def publication_replaced(self) -> bool:
        """Return whether the publication is gone, or differs from that of a running view."""
        row = self._conn.execute(
            "SELECT oid::bigint FROM pg_catalog.pg_publication WHERE pubname = %s",
            (self._state.settings.publication_name,),
        ).fetchone()
        known = [
            self._facts[v.id]["publication"]
            for v in self._state.views.values()
            if v.owned and v.id in self._facts and self._facts[v.id]["tables"]
        ]
        return any(p is not None and (row is None or p["oid"] != row[0]) for p in known)

    @property
    def _conn(self) -> psycopg.Connection[Any]:
        return self._state.owner.conn

    def _check(self, views: Iterable[View]) -> dict[int, HeadraceError]:
        wanted, at = list(views), next(Unit.clock)
        quiet = {view.id: self._is_quiet(view) for view in wanted}
        self._take_changes(quiet)
        self._load(quiet)
        known = [(i, self._facts[i]) for i in quiet if i in self._facts]
        if not known:
            return self._compare(wanted, quiet, at, None)
        name = self._state.settings.publication_name
        present = Present.read(self._conn, Reliances(known), name, results.revisions)
        return self._compare(wanted, quiet, at, present)

    def _is_quiet(self, view: View) -> bool:
        """Return whether no value of a view was computed since it was last found unchanged."""
        right = self._found_right.get(view.id, 0)
        if view.id not in self._unsure:
            right = max(right, self._all_right)
        units: list[Unit] = [view, *self._state.needed([view])]
        return not any(unit.busy or unit.stirred > right for unit in units)

    def _compare(
        self,
        wanted: Sequence[View],
        quiet: Mapping[int, bool],
        at: int,
        present: Present | None,
        moving: list[Difference] | None = None,
    ) -> dict[int, HeadraceError]:
        """Compare the facts of ``wanted`` with the present; None: no facts are known.

        ``quiet``: whether a view has computed no value since it was last found unchanged. ``at``:
        when this began, by the clock of the units.

        Views for which only the members of a table have changed are added to ``moving``. Without
        it, they continue until the next poll, which comes at once.
        """
        errors: dict[int, HeadraceError] = {}
        unidentified = False
        for view in wanted:
            view_id, before = view.id, self._facts.get(view.id)
            self._right.discard(view_id)
            if before is None or present is None:
                errors[view_id] = StateDamaged(
                    "the record of the view's dependencies is missing", hint=RESYNC
                )
                continue
            now = self._now[view_id] = present.of(before)
            still, gone = quiet[view_id], self.withdrawn
            error = fingerprint.difference(before, now, quiet=still, withdrawn=gone)
            unidentified = unidentified or fingerprint.unidentified(now)
            if error and (change := members.change(before, now, quiet=still, withdrawn=gone)):
                if moving is None:
                    self.due = 0.0
                else:
                    moving.append(Difference(view, before, now, change))
                continue
            if error is not None:
                lost = isinstance(error, ContinuityLost)
                _log.warning("catalog changed", view=view_id, lost=lost)
                errors[view_id] = error
                continue
            if (kept := fingerprint.followed(before, now)) is not None:
                self._store_facts(view_id, before, kept)
            self._found_right[view_id] = at
            self._right.add(view_id)
        if unidentified:
            self._withdraw()
        return errors

    def _withdraw(self) -> None:
        """Unpublish tables that have lost their replica identity; their views stop.

        Rows that are committed afterwards are not in the stream, so no view sees them.
        """
        name = self._state.settings.publication_name
        found = identity.find_unidentified(self._conn, name)
        self.withdrawn.update(entry for entry, *_ in found)
        identity.withdraw(self._conn, name, found, _WITHDRAW_MS)

    def _take_changes(self, wanted: Collection[int]) -> None:
        """Mark changed views for comparison; forget views that are gone, except ``wanted``."""
        self._changed.update(unit_id for unit_id in self._changes.take() if unit_id > 0)
        for view_id in [i for i in self._changed if i not in self._state.views]:
            if view_id not in wanted:
                self._changed.discard(view_id)
                self._unsure.discard(view_id)
                self._right.discard(view_id)
                self._reliances.drop(view_id)
                for known in (self._facts, self._now, self._found_right):
                    known.pop(view_id, None)

    def _load(self, wanted: Iterable[int]) -> None:
        new = [view_id for view_id in wanted if view_id not in self._facts]
        if new:
            found = watched.load(self._conn, new)
            self._facts.update(found)
            self._changed.update(found)
            for view_id, facts in found.items():
                self._reliances.put(view_id, facts)

    def _store_facts(self, view_id: int, before: Facts, now: Facts) -> None:
        """Store ``now`` as the facts of a view, in memory and in the catalog."""
        with self._conn.transaction():
            watched.put(self._conn, view_id, now)
            for oid, table in now["tables"].items():
                old, name = before["tables"][oid], (table["schema"], table["name"])
                if (old["schema"], old["name"]) == name:
                    continue
                _log.info("table renamed", view=view_id, table=".".join(name))
                reads.rename_table(self._conn, view_id, int(oid), name)
        self._facts[view_id] = now
        self._reliances.put(view_id, now)
        self._changed.add(view_id)


def _locked(error: psycopg.Error) -> TransientError:
    return TransientError("the system catalog is locked", detail=str(error).strip())
