"""Views follow partitions and children that come or go without a row.

    one transaction:  lock ─► empty? ─► publish ─► plan, facts        then: the view's own plan

A member that comes is locked against writers while it is seen to be empty and is published, and in
the same transaction the catalog gets the view's plan with an arm for it.  So no row of it can be
committed before the stream has its changes, and whoever starts after a crash reads a plan that is
right.  A member that went is not published any more, or is no part of the query: its rows are
those that the view has of it once the view has come beyond the moment at which it was missed, and
so has its state on disk.  If these are none, its arm is removed.

Everything else is not followed here: the view stops, and is filled anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg
import structlog

from headrace.collections import members as arms
from headrace.collections.members import Member
from headrace.collections.plan import PhysicalPlan, to_json
from headrace.errors import HeadraceError, PrerequisiteError
from headrace.postgres import fingerprint, members, publication
from headrace.postgres.fingerprint import Present
from headrace.postgres.members import Change, MemberTable
from headrace.postgres.reliances import Facts, Reliances
from headrace.process import faults
from headrace.runtime.book import Book
from headrace.runtime.views import View
from headrace.sql import reads, results, watched
from headrace.sql import views as catalog
from headrace.state.rocks import RocksStore
from headrace.types import parse_lsn

_log = structlog.get_logger(__name__)
_LOCK_MS: Final = 50
"""Longest wait for the lock of a table, during which other statements wait behind."""
_TRIES: Final = 3
_LEAF: Final = "r"
_WHOLE: Final = "p"
_LOCKED: Final = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)


class _NotFollowedError(Exception):
    """The view has to be filled anew; the text says why."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs for one view: its facts, those of now, and the members in them."""

    view: View
    before: Facts
    now: Facts
    change: Change


@dataclass(frozen=True, slots=True)
class _Step:
    """What a view follows now of what differs: all of it, or the members that came."""

    of: Difference
    change: Change

    @property
    def view(self) -> View:
        return self.of.view


@dataclass(frozen=True, slots=True)
class _Next:
    """How one view goes on."""

    plan: PhysicalPlan
    facts: Facts


class Partitions:
    """The views of one engine whose tables get and lose members; on the engine's thread."""

    def __init__(self, book: Book, drain: Callable[[], None]) -> None:
        """``drain`` waits until nothing is in flight."""
        self._book = book
        self._drain = drain
        self._missed: dict[tuple[int, frozenset[int]], int] = {}
        """Where the source was when members of a view's tables were first missed."""

    def settle(
        self, moving: Sequence[Difference], known: dict[int, Facts]
    ) -> dict[int, HeadraceError]:
        """Have views follow what differs, and put what they rely on then into ``known``.

        Returns what stands against going on of those that cannot.
        """
        self._drain()
        views = self._book.views
        # Some may have stopped meanwhile.
        left = [d for d in moving if views.get(d.view.id) is d.view and d.view.owned]
        if any(unit.busy for d in left for unit in (d.view, *self._book.needed([d.view]))):
            return {}
        followed = self._follow(left)
        errors: dict[int, HeadraceError] = {}
        for difference in left:
            view_id, before = difference.view.id, difference.before
            if view_id in followed:
                known[view_id] = followed[view_id]
            elif (error := fingerprint.difference(before, difference.now)) is not None:
                errors[view_id] = error
        return errors

    def _follow(self, found: Sequence[Difference]) -> dict[int, Facts]:
        """Have views go on with other members; the facts of each from now on, by id.

        A view that is to be asked about again keeps its facts; one that is missing here cannot go
        on.  REQUIRES: nothing is in flight.
        """
        out: dict[int, Facts] = {}
        coming = []
        for difference in found:
            try:
                self._require_simple(difference)
                step = _Step(difference, self._without_pending(difference))
            except _NotFollowedError as reason:
                _refuse(difference.view, reason)
                continue
            if step.change.came or step.change.went:
                coming.append(step)
            else:
                out[difference.view.id] = difference.before
        if coming:
            out |= self._go_on(coming)
        return out

    def _require_simple(self, difference: Difference) -> None:
        """Raise if the states of a view, or of what feeds it, are not this process's own."""
        view = difference.view
        if view.placed or view.parts or not isinstance(view.store, RocksStore):
            raise _NotFollowedError("its states are elsewhere")
        if view.suspended is not None:
            raise _NotFollowedError("its contents are being replaced")
        tables = {int(oid) for oid in difference.before["tables"]}
        for shared in self._book.needed([view]):
            if not tables.isdisjoint(source.table_oid for source in shared.plan.sources):
                raise _NotFollowedError("it shares a subplan with another view")

    def _without_pending(self, difference: Difference) -> Change:
        """The change, without members that went if it is not known yet whether they had rows."""
        view, change = difference.view, difference.change
        leaves = frozenset(o for o in change.went if str(o) in difference.before["tables"])
        if not leaves:
            return change
        key = view.id, leaves
        if key not in self._missed:
            self._missed = {k: lsn for k, lsn in self._missed.items() if k[0] != view.id}
            self._missed[key] = _lsn(self._conn)
        # What is on disk must be without rows, too: after a crash the stream brings once more what
        # has removed them, when there is no arm for it.
        if min(map(self._book.covered, (view.mark, view.durable))) < self._missed[key]:
            return replace(change, went=frozenset())
        for source in view.plan.sources:
            if source.table_oid in leaves and _has_rows(view, source.id):
                raise _NotFollowedError("a partition that is gone had rows")
        return change

    def _go_on(self, steps: Sequence[_Step]) -> dict[int, Facts]:
        reason: Exception | None = None
        for _ in range(_TRIES):
            try:
                made = self._commit(steps)
            except _LOCKED as error:
                reason = error
            except psycopg.OperationalError:
                raise
            except (_NotFollowedError, PrerequisiteError, psycopg.DatabaseError) as error:
                reason = error
                break
            else:
                faults.point(faults.MEMBERS_COMMITTED)
                for step in steps:
                    if step.view.id in made:
                        self._take(step, made[step.view.id])
                return {view_id: after.facts for view_id, after in made.items()}
        for step in steps:
            _refuse(step.view, reason)
        return {}

    def _commit(self, steps: Sequence[_Step]) -> dict[int, _Next]:
        """Publish what came and write what views go on with, in one transaction."""
        conn, settings = self._conn, self._book.settings
        came = frozenset[int]().union(*(step.change.came for step in steps))
        went = frozenset[int]().union(*(step.change.went for step in steps))
        made: dict[int, _Next] = {}
        with conn.transaction():
            tables = members.look(conn, came | _read(steps))
            if any(oid not in tables or tables[oid].kind not in (_LEAF, _WHOLE) for oid in came):
                raise _NotFollowedError("a partition is no ordinary table, or gone")
            leaves = [oid for oid in came if tables[oid].kind == _LEAF]
            if leaves and not publication.add_empty(conn, settings, leaves, _LOCK_MS):
                raise _NotFollowedError("a new partition has rows")
            lsn = _lsn(conn)
            for step in steps:
                try:
                    made[step.view.id] = after = self._next(step, tables, lsn)
                except _NotFollowedError as reason:
                    _refuse(step.view, reason)
                else:
                    self._write(step, after, tables)
            if not made:
                raise psycopg.Rollback
            if unused := reads.unused(conn, went):
                publication.drop_unused(conn, settings, unused, _LOCK_MS)
            faults.point(faults.MEMBERS_CHANGED)
        return made

    def _next(self, step: _Step, tables: Mapping[int, MemberTable], lsn: int) -> _Next:
        """What a view goes on with; in the transaction in which it does."""
        before, now = step.of.before, step.of.now
        settled = members.settled(before, now, step.change)
        plan = step.view.plan
        like: dict[int, tuple[int, dict[int, int]]] = {}
        for oid in sorted(step.change.came):
            if tables[oid].kind == _LEAF:
                plan, model, numbers = self._grown(plan, settled, tables, tables[oid], lsn)
                like[oid] = model, numbers
        for oid in sorted(step.change.went):
            if str(oid) in before["tables"]:
                smaller = arms.shrink(plan, oid)
                if smaller is None:
                    raise _NotFollowedError("no partition is left, or one is read by itself")
                plan = smaller
        new = {
            str(oid): {"columns": dict.fromkeys(map(str, numbers.values()))}
            for oid, (_, numbers) in like.items()
        }
        asked = settled | {"tables": settled["tables"] | new}
        name = self._book.settings.publication_name
        found = Present.read(self._conn, Reliances([(0, asked)]), name, results.revisions).of(asked)
        for oid, (model, numbers) in like.items():
            table = found["tables"].get(str(oid))
            if table is None or not members.same(before["tables"][str(model)], table, numbers):
                raise _NotFollowedError("a new partition is unlike the others")
        whole = members.settled(before, now, step.of.change)
        if fingerprint.difference(whole, found) is not None:
            raise _NotFollowedError("more has changed")
        grown = settled | {"tables": settled["tables"] | {oid: found["tables"][oid] for oid in new}}
        if step.change == step.of.change:
            grown = fingerprint.followed(grown, found) or grown
        return _Next(plan, grown)

    @staticmethod
    def _grown(
        plan: PhysicalPlan,
        settled: Facts,
        tables: Mapping[int, MemberTable],
        table: MemberTable,
        lsn: int,
    ) -> tuple[PhysicalPlan, int, dict[int, int]]:
        """``plan`` with a new member, the member that it is like, and its columns by that one's."""
        for oid, numbers in members.alike(settled, settled, table, tables):
            member = Member(table.oid, table.schema, table.name, numbers, lsn)
            grown = arms.grow(plan, oid, member)
            if grown is not None:
                return grown, oid, numbers
        raise _NotFollowedError("no partition that is read is like the new one")

    def _write(self, step: _Step, after: _Next, tables: Mapping[int, MemberTable]) -> None:
        conn, view_id = self._conn, step.view.id
        catalog.put_plan(conn, view_id, to_json(after.plan))
        watched.put(conn, view_id, after.facts)
        reads.forget_tables(conn, view_id, step.change.went)
        came = [tables[oid] for oid in sorted(step.change.came)]
        read = [(t.oid, t.schema, t.name) for t in came if t.kind == _LEAF]
        reads.insert_tables(conn, view_id, read)

    def _take(self, step: _Step, after: _Next) -> None:
        """Have a view compute by its new plan."""
        view = step.view
        view.plan = after.plan
        view.feed_on(view.feeds)
        if step.change.went:
            self._missed = {k: lsn for k, lsn in self._missed.items() if k[0] != view.id}
        came, went = sorted(step.change.came), sorted(step.change.went)
        view.story.add("members", came=came, went=went)
        _log.info("view follows partitions", view=view.id, came=came, went=went)

    @property
    def _conn(self) -> psycopg.Connection[Any]:
        return self._book.owner.conn


def _lsn(conn: psycopg.Connection[Any]) -> int:
    """Where the source is: what is visible now was committed before."""
    row = conn.execute("SELECT pg_catalog.pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    return parse_lsn(row[0])


def _has_rows(view: View, source: str) -> bool:
    return any(keys for keys, _ in view.here.map(source).scan())


def _read(steps: Sequence[_Step]) -> set[int]:
    """The tables that views read so far."""
    return {int(oid) for step in steps for oid in step.of.before["tables"]}


def _refuse(view: View, reason: Exception | None) -> None:
    _log.info("partitions not followed", view=view.id, reason=str(reason).strip())
