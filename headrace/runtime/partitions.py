"""Partitions and children that are added or removed without a row: views follow without a refill.

    one transaction:  lock ─► empty? ─► publish ─► plans, facts        then: the views' own plans

A new member is locked against writers while it is checked to be empty and is published.  The same
transaction stores the views' plans with an arm for it.  So no row of it can be committed before the
stream has its changes, and an engine that starts after a crash reads a correct plan.  A removed
member is no longer published, or no longer part of the query; ``departures.py`` decides when its
arm is dropped.  Shared subplans follow with their readers (``subplan_members.py``).  Other workers
are told afterwards, or when they are back.

A removed member whose lock is not free, and a member that has changed again meanwhile, are checked
again by the next poll.  All other changes are not followed here: the view stops and is refilled.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg
import structlog

from headrace.collections import members as arms
from headrace.collections.members import Member, Model
from headrace.collections.plan import PhysicalPlan, to_json
from headrace.errors import PrerequisiteError
from headrace.postgres import fingerprint, members, publication
from headrace.postgres.fingerprint import Present
from headrace.postgres.members import Change, MemberTable
from headrace.postgres.reliances import Facts, Reliances
from headrace.process import faults
from headrace.runtime import departures, subplan_members
from headrace.runtime.departures import Departures
from headrace.runtime.durability import Durability
from headrace.runtime.engine_state import EngineState
from headrace.runtime.sharing import Sharing
from headrace.runtime.subplan_members import MemberChange
from headrace.runtime.views import View
from headrace.runtime.watch import Difference, Following
from headrace.runtime.worker_handles import WorkerHandles
from headrace.sql import reads, results, watched
from headrace.sql import views as catalog

_log = structlog.get_logger(__name__)
_LOCK_MS: Final = 50
"""Longest wait for the lock of a table; other statements queue behind it."""
_TRIES: Final = 3
_LEAF: Final = "r"
_WHOLE: Final = "p"
_LOCKED: Final = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)
_NONE: Final = frozenset[int]()


class _NotFollowedError(Exception):
    """The view has to be refilled; the text says why."""


class _AgainError(Exception):
    """More has changed meanwhile; the next poll shows it."""


class _InUseError(Exception):
    """The lock of a removed member is not free."""


@dataclass(frozen=True, slots=True)
class _Step:
    """The part of a difference that a view follows now."""

    of: Difference
    change: Change

    @property
    def view(self) -> View:
        return self.of.view

    @property
    def any(self) -> bool:
        return bool(self.change.came or self.change.went)


@dataclass(frozen=True, slots=True)
class _Next:
    """The next plan of one view, with its facts."""

    plan: PhysicalPlan
    facts: Facts
    models: Mapping[int, Model]
    """The members that are new in the plan."""


@dataclass(slots=True)
class _Made:
    """The changes of one transaction."""

    views: dict[int, _Next]
    subplans: dict[int, PhysicalPlan]
    refused: set[int]
    """Views that cannot follow."""


class Partitions:
    """Views of one engine whose tables get and lose members; on the engine's thread."""

    def __init__(
        self,
        state: EngineState,
        durability: Durability,
        sharing: Sharing,
        hosts: WorkerHandles,
        drain: Callable[[], None],
    ) -> None:
        """Create it; ``drain`` waits until nothing is in flight."""
        self._state = state
        self._durability = durability
        self._sharing = sharing
        self._hosts = hosts
        self._drain = drain
        self._departures: Final = Departures(state)

    def follow(self, moving: Sequence[Difference], stopping: Collection[int]) -> Following:
        """Let views follow the differences; ``stopping`` are about to stop for other reasons."""
        self._departures.note(moving)
        refused = {d.view.id for d in moving if self._is_refused(d)}
        leaving = refused | set(stopping)
        facts: dict[int, Facts] = {}
        steps = self._steps(moving, leaving, durably=False)
        if any(step.any for step in steps):
            self._drain()
            left = [
                d for d in moving if self._state.views.get(d.view.id) is d.view and d.view.owned
            ]
            if not self._is_busy(left):
                if any(step.change.went for step in steps):
                    self._durability.finish()
                for group in self._groups(self._steps(left, leaving, durably=True)):
                    try:
                        more, wrong = self._go_on(group, leaving)
                    except psycopg.OperationalError:
                        if not facts:
                            raise
                        break  # the next use of the connection raises it
                    facts |= more
                    refused |= wrong
        return Following(facts, frozenset(refused))

    def _is_refused(self, difference: Difference) -> bool:
        """Return whether a view has to be refilled; log why."""
        if difference.view.suspended is not None:
            _refuse(difference.view, "its contents are being replaced")
        elif self._departures.had_rows(difference):
            _refuse(difference.view, "a partition that is gone had rows")
        else:
            return False
        return True

    def _is_busy(self, found: Sequence[Difference]) -> bool:
        return any(unit.busy for d in found for unit in (d.view, *self._state.needed([d.view])))

    def _steps(
        self, found: Sequence[Difference], leaving: Collection[int], *, durably: bool
    ) -> list[_Step]:
        """Return the steps that can be taken now; see ``Departures.ready``."""
        ready = self._departures.ready(found, leaving, durably=durably)
        steps = []
        for difference in found:
            if difference.view.id in leaving:
                continue
            change = difference.change
            # A removed member that is no leaf is read through its own members.
            pending = departures.leaves(difference) - ready[difference.view.id]
            went = _NONE if pending else change.went
            steps.append(_Step(difference, replace(change, went=went)))
        return steps

    def _groups(self, steps: Sequence[_Step]) -> list[list[_Step]]:
        """Group steps that share added or removed members, or subplans."""
        groups: list[tuple[set[int], list[_Step]]] = []
        for step in steps:
            # IDs of subplans are negative.
            common = {shared.id for shared in self._state.needed([step.view])}
            common |= step.change.came | step.change.went
            found = [group for group in groups if not common.isdisjoint(group[0])]
            groups = [group for group in groups if common.isdisjoint(group[0])]
            groups.append(
                (
                    common.union(*(ids for ids, _ in found)),
                    [*(s for _, g in found for s in g), step],
                )
            )
        return [group for _, group in groups]

    def _go_on(
        self, steps: Sequence[_Step], leaving: Collection[int]
    ) -> tuple[dict[int, Facts], set[int]]:
        """Take the steps; return the new facts of each view, and the views that cannot follow."""
        reason, failed = "", False
        left = [step for step in steps if step.any]
        for _ in range(_TRIES):
            if not left:
                return {}, set()
            try:
                made = self._commit(left, leaving)
            except _AgainError:
                return {}, set()
            except _InUseError:
                left = [_Step(s.of, replace(s.change, went=_NONE)) for s in left if s.change.came]
            except _LOCKED as error:
                reason = str(error)
            except psycopg.OperationalError:
                raise
            except (_NotFollowedError, PrerequisiteError, psycopg.DatabaseError) as error:
                reason, failed = str(error), True
                break
            else:
                faults.point(faults.MEMBERS_COMMITTED)
                self._take(left, made)
                return {view_id: after.facts for view_id, after in made.views.items()}, made.refused
        # Views that only lost members are checked again, unless these steps failed for good.
        wrong = [s for s in left if s.change.came] or (left if failed else [])
        for step in wrong:
            _refuse(step.view, reason)
        return {}, {step.view.id for step in wrong}

    def _commit(self, steps: Sequence[_Step], leaving: Collection[int]) -> _Made:
        """Publish the new members and store the new plans, in one transaction."""
        conn, settings = self._conn, self._state.settings
        came = _NONE.union(*(step.change.came for step in steps))
        went = _NONE.union(*(step.change.went for step in steps))
        made = _Made({}, {}, set())
        with conn.transaction():
            tables = members.look(conn, came | _read(steps))
            if came - tables.keys():
                raise _AgainError
            if any(tables[oid].kind not in (_LEAF, _WHOLE) for oid in came):
                raise _NotFollowedError("a partition is no ordinary table")
            leaves = [oid for oid in came if tables[oid].kind == _LEAF]
            if leaves and not publication.add_empty(conn, settings, leaves, _LOCK_MS):
                raise _NotFollowedError("a new partition has rows")
            lsn = departures.position(conn)
            # Last the views that are fed: other readers determine the plan of the subplan.
            for step in sorted(steps, key=lambda step: bool(step.view.plan.feeds)):
                try:
                    self._plan(step, tables, lsn, made)
                except _NotFollowedError as reason:
                    _refuse(step.view, str(reason))
                    made.refused.add(step.view.id)
                else:
                    self._write(step, made.views[step.view.id], tables)
            plans = made.subplans | {i: after.plan for i, after in made.views.items()}
            if subplan_members.unequal(self._state, plans) - made.refused - set(leaving):
                raise _NotFollowedError("a view that shares a subplan does not follow")
            if not made.views:
                raise psycopg.Rollback
            if unused := reads.unused(conn, went):
                try:
                    publication.drop_unused(conn, settings, unused, _LOCK_MS)
                except _LOCKED as error:
                    raise _InUseError from error
            subplan_members.prepare(self._state, made.subplans)
            faults.point(faults.MEMBERS_CHANGED)
        return made

    def _plan(self, step: _Step, tables: Mapping[int, MemberTable], lsn: int, made: _Made) -> None:
        """Add the next plan of a view, and of the subplans that it reads, to ``made``."""
        state, view = self._state, step.view
        after = self._next(step, tables, lsn)
        if not (view.parts.keys() | view.feeds.keys()) <= {node.id for node in after.plan.nodes}:
            raise _NotFollowedError("a part of it would be without tables")
        change = MemberChange(after.models, step.change.went)
        below = subplan_members.below(state, view, after.plan, change, made.subplans)
        if below is None:
            raise _NotFollowedError("a subplan that it shares cannot follow")
        made.views[view.id] = after
        made.subplans |= {
            i: plan for i, plan in below.items() if plan is not state.subplans[i].plan
        }

    def _next(self, step: _Step, tables: Mapping[int, MemberTable], lsn: int) -> _Next:
        """Return the next plan and facts of a view; call it inside the transaction."""
        before, now = step.of.before, step.of.now
        settled = members.apply_change(before, now, step.change)
        plan = step.view.plan
        models: dict[int, Model] = {}
        for oid in sorted(step.change.came):
            if tables[oid].kind == _LEAF:
                plan, models[oid] = self._grown(plan, settled, tables, tables[oid], lsn)
        for oid in sorted(step.change.went):
            if str(oid) in before["tables"]:
                smaller = arms.shrink(plan, oid)
                if smaller is None:
                    raise _NotFollowedError("no partition is left, or one is read by itself")
                plan = smaller
        new = {
            str(oid): {"columns": dict.fromkeys(map(str, model.member.numbers.values()))}
            for oid, model in models.items()
        }
        asked = settled | {"tables": settled["tables"] | new}
        name = self._state.settings.publication_name
        found = Present.read(self._conn, Reliances([(0, asked)]), name, results.revisions).of(asked)
        whole = members.apply_change(before, now, step.of.change)
        if fingerprint.difference(whole, found) is not None:
            if members.change(whole, found) is not None:
                raise _AgainError
            raise _NotFollowedError("more has changed")
        for oid, model in models.items():
            table = found["tables"].get(str(oid))
            like = before["tables"][str(model.like)]
            if table is None or not members.same(like, table, model.member.numbers):
                raise _NotFollowedError("a new partition is unlike the others")
        grown = settled | {"tables": settled["tables"] | {oid: found["tables"][oid] for oid in new}}
        if step.change == step.of.change:
            grown = fingerprint.followed(grown, found) or grown
        return _Next(plan, grown, models)

    @staticmethod
    def _grown(
        plan: PhysicalPlan,
        settled: Facts,
        tables: Mapping[int, MemberTable],
        table: MemberTable,
        lsn: int,
    ) -> tuple[PhysicalPlan, Model]:
        """Return ``plan`` with a new member, and the member that it is like."""
        models = [
            Model(oid, Member(table.oid, table.schema, table.name, numbers, lsn))
            for oid, numbers in members.alike(settled, settled, table, tables)
        ]
        for model in models:
            grown = arms.grow(plan, model.like, model.member)
            if grown is not None:
                return grown, model
        if (
            models
            and plan.feeds
            and {s.table_oid for s in plan.sources}.isdisjoint(model.like for model in models)
        ):
            return plan, models[0]  # the view that feeds this one reads it
        raise _NotFollowedError("no partition that is read is like the new one")

    def _write(self, step: _Step, after: _Next, tables: Mapping[int, MemberTable]) -> None:
        conn, view_id = self._conn, step.view.id
        catalog.put_plan(conn, view_id, to_json(after.plan))
        watched.put(conn, view_id, after.facts)
        reads.forget_tables(conn, view_id, step.change.went)
        came = [tables[oid] for oid in sorted(step.change.came)]
        read = [(t.oid, t.schema, t.name) for t in came if t.kind == _LEAF]
        reads.insert_tables(conn, view_id, read)

    def _take(self, steps: Sequence[_Step], made: _Made) -> None:
        """Switch views, and the subplans that they read, to their new plans."""
        state = self._state
        subplan_members.take(state, made.subplans)
        for step in steps:
            view, after = step.view, made.views.get(step.view.id)
            if after is None:
                continue
            view.compute(after.plan)
            came, went = sorted(step.change.came), sorted(step.change.went)
            view.story.add("members", came=came, went=went)
            _log.info("view follows partitions", view=view.id, came=came, went=went)
        for unit_id in made.views.keys() | made.subplans.keys():
            unit = state.unit(unit_id)
            if unit is not None and unit.placed:
                self._hosts.replan(unit)
        self._sharing.look()

    @property
    def _conn(self) -> psycopg.Connection[Any]:
        return self._state.owner.conn


def _read(steps: Sequence[_Step]) -> set[int]:
    """Return the tables that the views have read so far."""
    return {int(oid) for step in steps for oid in step.of.before["tables"]}


def _refuse(view: View, reason: str) -> None:
    _log.info("partitions not followed", view=view.id, reason=reason.strip())
