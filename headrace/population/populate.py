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
from headrace.collections.plan import SourceSpec
from headrace.config import Settings, turns_dir
from headrace.errors import (
    HeadraceError,
    PrerequisiteError,
    SnapshotLost,
    TransientError,
    UserError,
)
from headrace.expressions.remote import RemoteEvaluator
from headrace.planner import Planned, PlanRequest, plan
from headrace.planner.limits import PlanLimits
from headrace.planner.logical import uniquekeys
from headrace.population import (
    choice,
    elsewhere,
    local,
    names,
    placing,
    reader,
    rights,
    staging,
    tables,
    uses,
)
from headrace.population import snapshot as snapshots
from headrace.population.choice import Choice
from headrace.population.context import JobContext
from headrace.population.elsewhere import SourceSnapshots
from headrace.population.feeding import Feeding
from headrace.population.handover import Handover
from headrace.population.job import Job, cancelled
from headrace.population.placing import CostFacts
from headrace.population.snapshot import Snapshot, SnapshotBlocked
from headrace.population.staging import Staging
from headrace.population.tables import TableChanged, TableSize
from headrace.postgres import fingerprint, publication, reuse
from headrace.postgres.connect import Connection
from headrace.postgres.failures import as_headrace
from headrace.postgres.reliances import Facts
from headrace.process import bounds, faults
from headrace.process.bounds import Bound
from headrace.sql import origins, points, reads, results, views, watched
from headrace.sql.origins import StandIn
from headrace.sql.status import Status
from headrace.sql.view_spec import ViewSpec
from headrace.types import format_lsn

_log = structlog.get_logger(__name__)
_ATTEMPTS: Final = 3
_RETRY_S: Final = 0.2

Loaded = tuple[int, Callable[[], None]]
"""Number of result rows, and a function that writes the states."""


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
        planned = context.planners.call(conn, wanted.caller, wanted.query, plan, wanted)
        if over is not None and over not in planned.results:
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
        costs = CostFacts(planned.shown_sizes, view_id=view_id)
        found = placing.parts(conn, settings, planned.physical, options.placement, costs)
        planned = replace(planned, parts=found)
        rights.check(conn, settings.eval_dsn, planned)
        used = uses.of_planned(conn, planned, request.caller)
        facts = fingerprint.take(conn, used, settings.publication_name, results.revisions)
        uses.check_rights(facts)
        return planned, facts


def _point(conn: Connection, name: str | None) -> int | None:
    """Return the OID of the result table behind the connection point ``name``.

    Raises:
        UndefinedError: 42704, there is no such point.
        TransientError: 55000, its view does not run.
    """
    if name is None:
        return None
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
    return view.result_oid


class Population:
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
        self._planned_under = planned_under
        self._context = context
        self._settings = context.settings
        self._dsn = context.settings.source
        self._job = job
        self._planned = planned
        self._options = options
        self._view_id = 0
        self._name = name
        self._committed = False
        self._feeding: Feeding | None = None
        self._elsewhere: SourceSnapshots | None = None
        self._log = _log.bind(view=name)
        self._worker = Handover(context, job, self._log)

    def register(self, conn: Connection, undo: contextlib.ExitStack) -> None:
        """Set ``_view_id`` and record the view's tables, so that they stay published."""
        raise NotImplementedError

    def appear(self, conn: Connection, staged: Staging, facts: dict[str, Any]) -> None:
        """Write rows, progress and catalog row, in the caller's transaction."""
        raise NotImplementedError

    def populate(self) -> int:
        """Populate the view, from the catalog row to the adoption; return the number of rows."""
        started = clock.monotonic()
        with contextlib.ExitStack() as undo:
            if self._choose(self._sizes(self._planned.physical.sources)).mode == choice.SPARK:
                # Spark starts in the background, during the other waits.
                self._context.spark.begin()
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
            except (SnapshotLost, TableChanged) as error:
                self._job.check()
                with self._connect() as conn:
                    # If the source has discarded WAL, another attempt would fail, too.
                    check_slot(conn, self._settings)
                if attempt == _ATTEMPTS or self._committed:
                    raise
                self._log.warning("population starts again", reason=error.message)
        raise AssertionError("the last attempt returns or raises")

    def _populate(self, staged: Staging, position: dict[str, Any], attempt: int) -> int:
        job = self._job
        self._rename()
        job.phase("snapshot")
        staged.make()
        with contextlib.ExitStack() as place:
            self._attach(place)
            with self._connect() as conn:
                beyond = origins.standing_in(
                    conn, [source.table_oid for source in self._planned.physical.sources]
                )
            number = f"{job.name}_{attempt}"
            loaded, taken, snapshot = self._at_snapshot(staged, beyond, number, place)
            rows, write_states = loaded
            facts = {"view_id": self._view_id, **position, "start_lsn": int(snapshot.ref.start_lsn)}
            if self._feeding is not None:
                facts |= self._feeding.prove()
            with ThreadPoolExecutor(1, "headrace-states") as behind:
                self._publish(staged, facts, taken, behind.submit(write_states))
        return rows

    def _at_snapshot(
        self,
        staged: Staging,
        beyond: dict[int, StandIn],
        number: str,
        place: contextlib.ExitStack,
    ) -> tuple[Loaded, Facts, Snapshot]:
        """Load the rows of a snapshot, together with snapshots of the sources of ``beyond``.

        Replicators pause until the snapshot here exists, so each attempt at it is limited in time.
        """
        job, settings = self._job, self._settings
        endless = not settings.population_lock_wait_ms
        limit_s = elsewhere.wait_ms(settings, standing=True) / 1000 if beyond else math.inf
        for again in itertools.count(1):
            if beyond and endless:
                snapshots.wait_for_writers(job, self._dsn)
            with contextlib.ExitStack() as kept, contextlib.ExitStack() as joined:
                held = elsewhere.hold_snapshots(job, settings, beyond, f"{number}_{again}")
                self._elsewhere, standing = kept.enter_context(held)
                try:
                    group = self._context.snapshots.join(job, settings, limit_s)
                    snapshot = joined.enter_context(group)
                except SnapshotBlocked:
                    if not (beyond and endless):
                        raise
                    continue
                standing.close()
                if self._feeding is not None:
                    self._feeding.reach(snapshot)
                loaded, taken = self._load_at(snapshot, staged, place)
                joined.close()
                place.enter_context(kept.pop_all())
                return loaded, taken, snapshot
        raise AssertionError("the loop has no end")

    def _attach(self, place: contextlib.ExitStack) -> None:
        """Have the worker keep the changes of the feeding view, if there is one."""
        self._feeding = None
        for node in self._planned.physical.feeds:
            feeding = Feeding(self._context, self._job, self._worker, node)
            with self._connect() as conn:
                place.enter_context(feeding.attached(conn, self._view_id))
            self._feeding = feeding
            faults.point(faults.ATTACHED)

    def _load_at(
        self, snapshot: Snapshot, staged: Staging, place: contextlib.ExitStack
    ) -> tuple[Loaded, Facts]:
        """Load the rows of ``snapshot`` once a permit is free; also return the catalog facts."""
        job = self._job
        taken = self._facts_of(snapshot)
        sources = self._rename()
        with self._connect() as conn:
            before = tables.shape(conn, sources)
        sizes = self._sizes(sources)
        chosen = self._choose(sizes)
        self._log.info("population", mode=chosen.mode, choice=str(chosen))
        if chosen.mode == choice.SPARK or chosen.rows >= choice.ROWS_WORTH_TELLING:
            job.say(str(chosen))
        self._take_place(place, chosen)
        job.phase("reading", total=tables.expected(sources, sizes))
        faults.point(faults.POPULATION_BEGINS)
        try:
            loaded = self._load(chosen.mode, snapshot, sizes, staged)
        except HeadraceError:
            # One of these checks may reveal the cause of the error.
            job.check()
            _check(snapshot, self._elsewhere)
            with self._connect() as conn:
                tables.check_same(before, tables.shape(conn, sources))
                uses.check_kept(taken, self._facts_now(conn, taken))
            raise
        _check(snapshot, self._elsewhere)
        faults.point(faults.POPULATION_LOADED)
        with self._connect() as conn:
            if self._feeding is not None:
                self._feeding.check(conn)
            tables.check_same(before, tables.shape(conn, sources))
            uses.check_kept(taken, self._facts_now(conn, taken))
        return loaded, taken

    def _take_place(self, place: contextlib.ExitStack, chosen: Choice) -> None:
        """Wait for a permit to load; a large in-process population takes all, for its memory."""
        places = self._context.places
        spark = chosen.mode == choice.SPARK
        if spark:
            place.enter_context(self._context.spark_place.take(self._job))
        alone = chosen.large and not spark
        place.enter_context(places.take(self._job, places.count if alone else 1))

    def _rename(self) -> tuple[SourceSpec, ...]:
        """Refresh table and column names in the plan, and return its sources."""
        with self._connect() as conn:
            physical = tables.renamed(conn, self._planned.physical)
        self._planned = replace(self._planned, physical=physical)
        return physical.sources

    def _facts_of(self, snapshot: Snapshot) -> Facts:
        """Return the catalog facts as of the snapshot, after checking that the plan fits them."""
        with reader.joined(self._dsn, snapshot.ref) as conn:
            facts = self._facts_now(conn, self._planned_under)
        uses.check_planned(self._planned_under, self._planned.physical, facts)
        return facts

    def _facts_now(self, conn: Connection, known: Facts) -> Facts:
        name = self._settings.publication_name
        (facts,) = fingerprint.read(conn, [known], name, results.revisions)
        return facts

    def _sizes(self, sources: tuple[SourceSpec, ...]) -> dict[str, TableSize]:
        with self._connect() as conn:
            sizes = {source.id: tables.size(conn, source) for source in sources}
            if self._feeding is not None:
                sizes[self._feeding.node.id] = self._feeding.size(conn)
        if self._elsewhere is not None:
            for source in sources:
                if source.table_oid in self._elsewhere.stand_ins:
                    sizes[source.id] = self._elsewhere.size(source)
        return sizes

    def _choose(self, sizes: dict[str, TableSize]) -> Choice:
        physical, options = self._planned.physical, self._options
        if physical.feeds or self._elsewhere is not None:
            options = replace(options, population=choice.LOCAL)
        return choice.choose(physical, sizes, self._settings, options)

    def _load(
        self, mode: str, snapshot: Snapshot, sizes: dict[str, TableSize], staged: Staging
    ) -> Loaded:
        planned = self._planned
        if mode == choice.SPARK:
            rows = self._context.spark.populate(
                self._job,
                planned.physical,
                snapshot,
                sizes,
                planned.settings,
                staged,
                _session_owner(self._dsn, self._planned_under),
            )
            return rows, _nothing  # the executors have written the states
        limits = bounds.of_filling(self._settings, self._options.limits)
        bound = Bound(limits, "a step of its population")
        remote = self._evaluator(limits.value_bytes)
        try:
            with self._job.cancelling(lambda: bound.cancel(cancelled())), bound.applied():
                inputs = local.Inputs(planned.physical, sizes, self._feeding, self._elsewhere)
                return local.populate(self._job, self._dsn, inputs, snapshot.ref, remote, staged)
        finally:
            remote.close()

    def _evaluator(self, value_bytes_max: int) -> RemoteEvaluator:
        """Return an evaluator for the query's expressions; the caller closes it."""
        return RemoteEvaluator(
            self._dsn,
            self._planned.settings,
            self._settings.eval_dsn or None,
            owner=_session_owner(self._dsn, self._planned_under),
            value_bytes_max=value_bytes_max,
            folder=turns_dir(self._settings),
        )

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
                watched.put(conn, self._view_id, taken)
                states.result()
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

    def _adopt(self) -> None:
        self._worker.adopt(self._view_id)

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

    # --- helpers

    def _connect(self) -> contextlib.AbstractContextManager[Connection]:
        """Return a pooled connection in autocommit mode."""
        return reuse.lent(self._dsn)


def _check(snapshot: Snapshot, elsewhere: SourceSnapshots | None) -> None:
    """Raise SnapshotLost unless all snapshots still exist."""
    snapshot.check()
    if elsewhere is not None:
        elsewhere.check()


def _nothing() -> None:
    pass


def unpublish_unused(context: JobContext, table_oids: list[int]) -> None:
    """Unpublish those of the tables that no view reads any more."""
    with (
        context.publication_lock,
        reuse.lent(context.settings.source) as conn,
    ):
        unused = reads.unused(conn, table_oids)
        if unused:
            publication.drop_tables(conn, context.settings, unused)


def check_slot(conn: Connection, settings: Settings, start_lsn: int = 0) -> None:
    """Check that the permanent slot still has every change since ``start_lsn`` (0 means any).

    Raises:
        SnapshotLost: the slot was confirmed beyond the snapshot (a worker died with its holds).
        PrerequisiteError: the slot is lost.
    """
    row = conn.execute(
        "SELECT wal_status, confirmed_flush_lsn > %s::pg_lsn"
        " FROM pg_replication_slots WHERE slot_name = %s AND NOT temporary",
        (format_lsn(start_lsn), settings.slot_name),
    ).fetchone()
    if row is None:
        return  # the worker, which owns the slot, reports that when it adopts the view
    if row[0] == "lost":
        raise PrerequisiteError(
            f'replication slot "{settings.slot_name}" lost its WAL during the population',
            hint="Raise max_slot_wal_keep_size and create the view again.",
        )
    if start_lsn and row[1]:
        raise SnapshotLost("the stream went on past the snapshot of the population")


def _session_owner(dsn: str, facts: Facts) -> str:
    """Return the label by which the evaluator separates user code (``View.session_owner``)."""
    with reuse.lent(dsn) as conn:
        return f"owner {names.role_of(conn, facts['owner']).name}"
