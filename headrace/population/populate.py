"""Population of a planned view: hold the slot, snapshot, load, publish in one transaction, adopt.

The steps before (``register``) and in that transaction (``appear``) differ between a new view
(create.py) and a resynced one (resync.py).  The undo action of each step is pushed on a stack
before the next step begins.  The commit is the point of no return; a later cancel has no effect.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

import psycopg
import structlog
from psycopg import sql

from headrace import clock, events
from headrace.collections import members
from headrace.errors import (
    BelowStopped,
    BugError,
    HeadraceError,
    SnapshotLost,
    StateDamaged,
    TransientError,
    UndefinedError,
    UserError,
)
from headrace.planner import Planned, PlanRequest, plan
from headrace.planner.limits import PlanLimits
from headrace.planner.logical import uniquekeys
from headrace.population import (
    elsewhere,
    placing,
    rights,
    stacking,
    staging,
    uses,
)
from headrace.population import snapshot as snapshots
from headrace.population.choice import Choice
from headrace.population.context import JobContext
from headrace.population.feeding import Feeding
from headrace.population.handover import Handover
from headrace.population.job import Job
from headrace.population.loader import Loaded, Loader
from headrace.population.placing import CostFacts
from headrace.population.slot_check import check_slot
from headrace.population.snapshot import Snapshot, SnapshotBlocked
from headrace.population.staging import Staging
from headrace.population.tables import TableChanged
from headrace.postgres import fingerprint, publication, reuse
from headrace.postgres.connect import Connection
from headrace.postgres.failures import as_headrace
from headrace.postgres.reliances import Facts
from headrace.process import faults
from headrace.sql import origins, points, reads, results, states, views, watched
from headrace.sql.origins import StandIn
from headrace.sql.status import Status
from headrace.sql.view_spec import ViewSpec
from headrace.sql.watched import Cost

_log = structlog.get_logger(__name__)
_ATTEMPTS: Final = 3
_RETRY_S: Final = 0.2
_PATIENCE_S: Final = 30.0
"""How long a view with option ``from`` waits until the feeding view has caught up, and a stacked
one until the views below have reached the snapshot."""


@contextlib.contextmanager
def planning(context: JobContext, job: Job) -> Iterator[Connection]:
    """Begin the phase "planning"; yield its connection, whose errors are translated."""
    with job.connection(context.settings.source, what="builder") as conn:
        job.phase("planning")
        with job.translating():
            yield conn


def plan_with_facts(
    context: JobContext,
    conn: Connection,
    request: PlanRequest,
    options: ViewSpec,
    view_id: int = 0,
) -> tuple[Planned, Facts]:
    """Return the plan, and the catalog facts that it was made from.

    ``view_id``: ID of the view, if it already exists.
    """
    settings = context.settings
    with conn.transaction(force_rollback=True):
        # Use one snapshot: reading the facts again later reveals any change since.
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        bounds, over = options.recursions(settings), _point(conn, options.point)
        limits, trusted = PlanLimits(settings.planning_time_ms_max), options.trust_stable
        wanted = replace(request, recursions=bounds, over=over, limits=limits, trust_stable=trusted)
        parsed = context.reader.parsed(request.query)
        wanted = replace(wanted, syntax=parsed.nodes, unread=parsed.why)
        if view_id and states.sqlstate(conn, view_id) == BelowStopped.sqlstate:
            wanted = replace(wanted, stopped_below=True)
        planned = context.planners.call(conn, wanted.caller, wanted.query, plan, wanted)
        if not over <= planned.results:
            raise UserError(
                f'the query does not read the view of connection point "{options.point}"',
                hint="See headrace.connection_points().",
                sqlstate="22023",
            )
        if options.key is not None:
            columns = [field.name for field in planned.columns]
            told = uniquekeys.given(planned.optimised, columns, options.key)
            physical = planned.physical.keyed(options.key)
            planned = replace(planned, physical=physical, explain={**planned.explain, "key": told})
        planned = stacking.choose(context, conn, wanted, options, planned)
        costs = CostFacts(planned.shown_sizes, view_id=view_id)
        found = placing.parts(conn, settings, planned.physical, options.placement, costs)
        planned = replace(planned, parts=found)
        rights.check(conn, settings.eval_dsn, planned)
        used = uses.of_planned(conn, planned, request.caller)
        facts = fingerprint.take(conn, used, settings.publication_name, results.revisions)
        uses.check_rights(facts)
        return planned, facts


def _point(conn: Connection, name: str | None) -> frozenset[int]:
    """Return the OID of the result table behind the connection point ``name``; none without one.

    Raises:
        UndefinedError: 42704, there is no such point.
        TransientError: 55000, its view does not run.
    """
    if name is None:
        return frozenset()
    point = points.find(conn, name)
    view = None if point is None else views.of_id(conn, point.view_id)
    if view is None:
        raise points.unknown(name)
    if view.status != Status.RUNNING:
        raise TransientError(
            f'view {view.shown} of connection point "{name}" does not run: it is {view.status}',
            hint="A view can be fed from one that runs.",
            sqlstate="55000",
        )
    return frozenset(() if view.result_oid is None else (view.result_oid,))


class Population(Loader):
    """One population after planning; see the module docstring."""

    def __init__(
        self,
        context: JobContext,
        job: Job,
        planned: Planned,
        options: ViewSpec,
        planned_under: Facts,
        name: str,
    ) -> None:
        """``name``: the view's name, for the log."""
        super().__init__(context, job, planned, options, planned_under, name)
        self._view_id = 0
        self._name = name
        self._committed = False
        self._doubted = False
        """Whether the view's present rows may be wrong, and so those of views filled from it."""
        self._wait_until = math.inf
        """When reading must have begun, on the monotonic clock."""
        self._worker = Handover(context, job, self._log)

    def register(self, conn: Connection, undo: contextlib.ExitStack) -> None:
        """Set ``_view_id`` and record the view's tables, so that they stay published."""
        raise NotImplementedError

    def appear(self, conn: Connection, staged: Staging, facts: dict[str, Any]) -> None:
        """Write rows, progress and catalog row, in the caller's transaction."""
        raise NotImplementedError

    def replan(self, conn: Connection) -> None:
        """Note that ``_planned`` has changed since ``register``."""

    def populate(self) -> int:
        """Populate the view, from the catalog row to the adoption; return the number of rows."""
        if not self._planned.physical.sink.withholds_rows:
            return self._populate_all()
        try:
            with self._job.translating():
                return self._populate_all()
        except HeadraceError as error:
            raise error.without_values() from None

    def _populate_all(self) -> int:
        started = clock.monotonic()
        with contextlib.ExitStack() as undo:
            chosen = self._choose(self._sizes())
            self._check_worth(chosen)
            self._begin_spark(chosen)  # it starts during the other waits
            self._register(undo)
            rows = self._populate_attempts(undo)
        self._adopt()
        self._log.info("view populated", rows=rows, seconds=round(clock.monotonic() - started, 3))
        return rows

    # --- steps

    def _register(self, undo: contextlib.ExitStack) -> None:
        """Hold the slot, write the catalog row, publish the tables; undo in reverse order."""
        tables_read = [t.oid for t in self._planned.tables]
        self._undo(undo, "publication", lambda: unpublish_unused(self._context, tables_read))
        self._undo(undo, "hold", self._worker.release)
        self._worker.hold()
        with self._context.publication_lock, self._connect() as conn:
            self.register(conn, undo)
            self._job.phase("publication")
            publication.add_tables(conn, self._settings, tables_read, watched.fed)
            faults.point(faults.TABLES_PUBLISHED)
        self._job.check()

    def _live(self, view_id: int, undo: contextlib.ExitStack) -> None:
        """Register this job as the one that populates the view, until the job ends."""
        self._context.live[view_id] = self._job
        self._job.view_id = self._job.view_id or view_id  # that of a resync has an earlier id
        events.know_view(view_id, self._name)
        undo.callback(events.forget_view, view_id)
        undo.callback(self._context.live.pop, view_id, None)

    def _populate_attempts(self, undo: contextlib.ExitStack) -> int:
        staged = staging.of_view(self._settings.staging_dir, self._view_id)
        self._undo(undo, "staging", staged.remove)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                # Hold again at each attempt: a restarted worker has no holds.
                return self._populate(staged, self._worker.hold(), attempt)
            except (SnapshotLost, TableChanged, StateDamaged) as error:
                self._job.check()
                stacked = self._planned.upper is not None
                if isinstance(error, StateDamaged) and not stacked:
                    raise
                with self._connect() as conn:
                    # If the source has discarded WAL, another attempt would fail, too.
                    check_slot(conn, self._settings)
                if attempt == _ATTEMPTS or self._committed:
                    raise
                self._log.warning("population starts again", reason=error.message)
                if stacked and (isinstance(error, StateDamaged) or attempt == _ATTEMPTS - 1):
                    self._unstack(error)
        raise AssertionError("the last attempt returns or raises")

    def _populate(self, staged: Staging, position: dict[str, Any], attempt: int) -> int:
        job = self._job
        self._rename()
        self._want_spark()
        job.phase("snapshot")
        staged.make()
        with contextlib.ExitStack() as place:
            self._attach(place)
            with self._connect() as conn:
                beyond = origins.standing_in(
                    conn, [source.table_oid for source in self._planned.loaded.sources]
                )
            loaded, taken, snapshot = self._at_snapshot(staged, beyond, attempt, place)
            rows, write_states = loaded
            facts = {"view_id": self._view_id, **position, "start_lsn": int(snapshot.ref.start_lsn)}
            with self._connect() as conn:
                for fed in self._feedings:
                    fed.prove(conn)
            facts["feeds"] = {fed.node.id: fed.feeder for fed in self._feedings}
            facts["fed_by"] = [fed.view_id for fed in self._feedings]
            facts["doubted"] = self._doubted
            with ThreadPoolExecutor(1, "headrace-states") as behind:
                self._publish(staged, facts, taken, behind.submit(write_states))
        return rows

    def _at_snapshot(
        self,
        staged: Staging,
        beyond: dict[int, StandIn],
        attempt: int,
        place: contextlib.ExitStack,
    ) -> tuple[Loaded, Facts, Snapshot]:
        """Load the rows of a snapshot, together with snapshots of the sources of ``beyond``.

        Replicators pause until the snapshot here exists, so each attempt at it is limited in time.
        Batches are cut meanwhile if tables are read beside those of feeding views, so the long wait
        comes before.
        """
        job, settings, planned = self._job, self._settings, self._planned
        mixed = bool(self._feedings and planned.loaded.sources)
        apart_s = snapshots.apart_s(attempt) if mixed else None
        endless = not settings.population_lock_wait_ms
        limit_s = max(self._wait_until - clock.monotonic(), 0.0)
        if beyond:
            limit_s = elsewhere.wait_ms(settings, standing=True) / 1000
        for again in itertools.count(1):
            if (beyond or mixed) and endless:
                snapshots.wait_for_writers(job, self._dsn)
            with contextlib.ExitStack() as kept, contextlib.ExitStack() as joined:
                held = elsewhere.hold_snapshots(
                    job, settings, beyond, f"{job.name}_{attempt}_{again}"
                )
                self._elsewhere, standing = kept.enter_context(held)
                for fed in self._feedings:
                    fed.tap(apart_s)
                try:
                    group = self._context.snapshots.join(job, settings, limit_s)
                    snapshot = joined.enter_context(group)
                except SnapshotBlocked:
                    if not (beyond and endless):
                        raise
                    continue
                standing.close()
                for fed in self._feedings:
                    fed.reach(snapshot, math.inf if planned.upper is None else _PATIENCE_S)
                loaded, taken = self._load_at(snapshot, staged, place)
                joined.close()
                place.enter_context(kept.pop_all())
                return loaded, taken, snapshot
        raise AssertionError("the loop has no end")

    def _attach(self, place: contextlib.ExitStack) -> None:
        """Have the worker keep the changes of the feeding views.

        Views that the plan is stacked on are left out if one of them cannot be attached to.
        """
        self._feedings = []
        with contextlib.ExitStack() as attached:
            try:
                self._attach_all(attached)
            except HeadraceError as error:
                self._job.check()
                if self._planned.instead is None or isinstance(error, BugError):
                    raise
                self._unstack(error)
            place.enter_context(attached.pop_all())

    def _attach_all(self, place: contextlib.ExitStack) -> None:
        planned = self._planned
        patience_s = _PATIENCE_S if planned.upper is None else planned.patience_s
        read = members.tables(planned.physical)
        for node in planned.loaded.feeds:
            fed = Feeding(self._context, self._job, self._worker, node)
            with self._connect() as conn:
                place.enter_context(fed.attached(conn, self._view_id, patience_s))
            self._feedings.append(fed)
            if planned.upper is not None and (fed.view_id, fed.tables) != (
                planned.below[node.table_oid],
                read[node.id],
            ):
                raise SnapshotLost(f"view {node.view} was rebuilt, or its tables have changed")
            faults.point(faults.ATTACHED)

    def _unstack(self, error: HeadraceError) -> None:
        """Fall back on the plan with the queries of the views below in their place."""
        planned, instead = self._planned, self._planned.instead
        assert instead is not None, "the plan is stacked"
        self._log.warning("first rows come from the tables", reason=error.message)
        said = f"first rows: from the tables, because {error.message}"
        more = {k: v for k, v in planned.explain.items() if k not in instead.explain}
        self._planned = replace(instead, explain=instead.explain | more, first_rows=said)
        self._feedings = []
        with self._connect() as conn:
            self.replan(conn)
        self._rename()
        self._begin_spark(self._choose(self._sizes()))
        self._want_spark()

    def _publish(
        self, staged: Staging, facts: dict[str, Any], taken: Facts, states: Future[None]
    ) -> None:
        """Publish the result in one transaction; ``states`` may be written concurrently."""
        timeout, job = self._settings.lock_timeout_ms, self._job
        # For reused states the slot has been held since before their mark.
        held = facts.get("held")
        since = facts["start_lsn"] if held is None else held["lsn"]
        if self._settings.wal_retention == "local":
            # The worker's intake log has the changes, as long as the worker knows the hold.  If
            # the worker loses the hold from here on, it does not adopt the view.
            since = 0
            if self._worker.hold() != (held or {"txid": facts["txid"], "lsn": facts["lsn"]}):
                raise SnapshotLost("the changes after the population's snapshot were not stored")
        with job.connection(self._dsn, what="publish") as conn:
            with job.translating():
                conn.execute("BEGIN")
                conn.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(timeout))
                self.appear(conn, staged, facts)
                states.result()
                cost = Cost(self._rows_expected, clock.monotonic() - self._loading_since)
                watched.put(conn, self._view_id, taken, cost)
                staged.seal(facts)
                faults.point(faults.POPULATION_SEALED)
                check_slot(conn, self._settings, since)
            job.check()
            faults.point(faults.BEFORE_PUBLISH)
            self._commit(conn)
            faults.point(faults.PUBLISHED)

    def _commit(self, conn: Connection) -> None:
        row: Any = conn.execute("SELECT pg_current_xact_id()::text").fetchone()
        try:
            conn.commit()
        except psycopg.errors.QueryCanceled:
            self._job.check()
            raise
        except psycopg.OperationalError as error:
            # The answer was lost; nothing may be undone until the outcome is known.
            self._committed = True
            self._committed = self._was_committed(row[0])
            if not self._committed:
                raise as_headrace(error) from error
        self._committed = True

    def _was_committed(self, xid: str) -> bool:
        """Return whether transaction ``xid`` was committed; wait until the source answers."""
        while True:
            try:
                with self._connect() as conn:
                    row: Any = conn.execute(
                        "SELECT pg_xact_status(%s::text::xid8)", (xid,)
                    ).fetchone()
                if row[0] != "in progress":
                    return bool(row[0] == "committed")
            except (TransientError, psycopg.OperationalError):
                self._log.warning("the source does not say whether the view was made")
            self._job.check()
            clock.sleep(_RETRY_S)

    def _check_worth(self, chosen: Choice) -> None:
        """Raise if the population costs too much."""

    def _adopt(self) -> None:
        self._job.view_id = self._view_id
        try:
            self._worker.adopt(self._view_id)
        except HeadraceError as error:
            with self._connect() as conn:
                if not views.exists(conn, self._view_id):
                    raise UndefinedError("the view was dropped", sqlstate="42P01") from error
            raise

    # --- undoing

    def _undo(self, undo: contextlib.ExitStack, what: str, action: Callable[[], None]) -> None:
        """Run ``action`` if the block fails; an error in it does not stop the other actions."""

        def run() -> None:
            if self._committed:
                return
            try:
                action()
            except (HeadraceError, psycopg.Error, OSError) as error:
                # The next start removes the remains: see builder.clean_up.
                self._log.warning("undo failed", what=what, reason=str(error))

        undo.callback(run)


def unpublish_unused(context: JobContext, table_oids: list[int]) -> None:
    """Unpublish those of the tables that no view reads any more."""
    with (
        context.publication_lock,
        reuse.lent(context.settings.source) as conn,
    ):
        unused = reads.unused(conn, table_oids)
        if unused:
            publication.drop_tables(conn, context.settings, unused)
