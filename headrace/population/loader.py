"""Loads a planned query at a snapshot, in this process or on Spark, into a staging directory.

A population loads the first rows and states of a view.  ``verify_view`` loads the rows that a view
must have (``views/expected_rows.py``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

import structlog

from headrace import clock
from headrace.collections.plan import SourceSpec
from headrace.errors import HeadraceError, SparkUnavailable
from headrace.expressions.remote import RemoteEvaluator
from headrace.planner import Planned
from headrace.population import (
    choice,
    elsewhere,
    feeding,
    local,
    names,
    out_of_core,
    reader,
    stage_graph,
    tables,
    uses,
)
from headrace.population.choice import Choice
from headrace.population.context import JobContext
from headrace.population.elsewhere import SourceSnapshots
from headrace.population.fed_rows import FedRows
from headrace.population.feeding import Feeding
from headrace.population.inputs import Inputs
from headrace.population.job import Job, cancelled
from headrace.population.snapshot import Snapshot
from headrace.population.staging import Staging
from headrace.population.tables import TableSize
from headrace.postgres import fingerprint, reuse
from headrace.postgres.connect import Connection
from headrace.postgres.reliances import Facts
from headrace.process import bounds, faults
from headrace.process.bounds import Bound
from headrace.sql import origins, results
from headrace.sql.view_spec import ViewSpec

_log = structlog.get_logger(__name__)

Loaded = tuple[int, Callable[[], None]]
"""Number of result rows, and a function that writes the states."""


class Loader:
    """One planned query to load; see the module docstring."""

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
        self._feedings: list[Feeding] = []
        self._elsewhere: SourceSnapshots | None = None
        self._instant: int | None = None
        """``now()`` of the query, in microseconds since 2000-01-01 UTC; None: the snapshot's."""
        self._planned_choice: Choice | None = None
        """The choice before the load begins, by the sizes at that time."""
        self._sparkless = ""
        """Why Spark is not used although it was chosen; "": it may be."""
        self._rows_expected = 0
        """Rows of tables to read, as estimated when loading began."""
        self._loading_since = 0.0
        """When a place to load was free; the population's cost counts from then."""
        self._log = _log.bind(view=name)

    # --- choosing

    def _choose(self, sizes: dict[str, TableSize]) -> Choice:
        found = choice.choose(self._planned.loaded, sizes, self._settings, self._options)
        if found.mode == choice.SPARK and self._sparkless:
            return found.without_spark(self._sparkless)
        return found

    def _sizes(self) -> dict[str, TableSize]:
        """Return the sizes of the tables to read, by node."""
        with self._connect() as conn:
            sizes = sizes_of(conn, self._planned.loaded.sources)
            for node in self._planned.loaded.feeds:
                sizes[node.id] = feeding.size(conn, node)
        return sizes

    def _begin_spark(self, chosen: Choice) -> None:
        """Start Spark in the background if it was ``chosen``."""
        self._planned_choice = chosen
        if chosen.mode == choice.SPARK:
            self._context.spark.begin()

    def _want_spark(self) -> None:
        """Wait for the start of Spark for a moment; else load in this process."""
        chosen = self._planned_choice
        if chosen is None or chosen.mode != choice.SPARK:
            return
        try:
            self._context.spark.await_start(self._job)
        except SparkUnavailable as error:
            self._sparkless = error.message

    # --- loading

    def _load_at(
        self, snapshot: Snapshot, staged: Staging, place: contextlib.ExitStack
    ) -> tuple[Loaded, Facts]:
        """Load the rows of ``snapshot`` once a permit is free; also return the catalog facts."""
        job = self._job
        taken = self._facts_of(snapshot)
        sources = self._rename()
        with self._connect() as conn:
            before = tables.shape(conn, sources)
        sizes = self._sizes()
        chosen = self._choose(sizes)
        self._log.info("population", mode=chosen.mode, choice=str(chosen))
        if (
            chosen.mode != choice.LOCAL
            or chosen.rows >= choice.ROWS_WORTH_TELLING
            or self._sparkless
        ):
            job.say(str(chosen))
        self._take_place(place, chosen)
        self._begin_loading()
        self._rows_expected, self._loading_since = chosen.rows, clock.monotonic()
        job.phase("reading", total=tables.expected(self._planned.loaded, sizes))
        faults.point(faults.POPULATION_BEGINS)
        try:
            loaded = self._load_here_if_spark_fails(chosen, snapshot, sizes, staged)
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
            for fed in self._feedings:
                fed.check(conn)
            tables.check_same(before, tables.shape(conn, sources))
            uses.check_kept(taken, self._facts_now(conn, taken))
        return loaded, taken

    def _load_here_if_spark_fails(
        self,
        chosen: Choice,
        snapshot: Snapshot,
        sizes: dict[str, TableSize],
        staged: Staging,
    ) -> Loaded:
        try:
            return self._load(chosen, snapshot, sizes, staged)
        except SparkUnavailable as error:
            self._job.check()
            self._sparkless = error.message
        here = chosen.without_spark(self._sparkless)
        self._log.warning("population goes on without spark", reason=self._sparkless)
        self._job.say(str(here))
        staged.make()
        self._job.phase("reading", total=tables.expected(self._planned.loaded, sizes))
        return self._load(here, snapshot, sizes, staged)

    def _take_place(self, place: contextlib.ExitStack, chosen: Choice) -> None:
        """Wait for a permit to load; a large in-process population takes all, for its memory."""
        places = self._context.places
        spark = chosen.mode == choice.SPARK
        if spark:
            place.enter_context(self._context.spark_place.take(self._job))
        alone = chosen.large and chosen.mode == choice.LOCAL
        place.enter_context(places.take(self._job, places.count if alone else 1))

    def _rename(self) -> tuple[SourceSpec, ...]:
        """Refresh table and column names in the plan, and return the sources to read."""
        planned = self._planned
        with self._connect() as conn:
            physical = tables.renamed(conn, planned.physical)
            upper = None if planned.upper is None else tables.renamed(conn, planned.upper)
        self._planned = replace(planned, physical=physical, upper=upper)
        return self._planned.loaded.sources

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

    def _load(
        self, chosen: Choice, snapshot: Snapshot, sizes: dict[str, TableSize], staged: Staging
    ) -> Loaded:
        planned, job = self._planned, self._job
        inputs = Inputs(planned.loaded, sizes, self._elsewhere, self._instant)
        if chosen.mode != choice.LOCAL:
            owner = _session_owner(self._dsn, self._planned_under)
            inputs = replace(inputs, fed=self._fed(snapshot))
            if chosen.mode == choice.SPARK:
                rows = self._context.spark.populate(
                    job, inputs, snapshot, planned.settings, staged, owner
                )
            else:
                parts = chosen.parts(self._settings.populations_max)
                spec = stage_graph.spec_of(
                    inputs, snapshot, planned.settings, staged, owner, self._settings
                )
                rows = out_of_core.populate(job, spec, inputs.sizes, parts)
            return rows, _nothing  # the tasks have written the states
        limits = bounds.of_filling(self._settings, self._options.limits)
        bound = Bound(limits, "a step of its population")
        remote = self._evaluator(limits.value_bytes)
        try:
            with self._job.cancelling(lambda: bound.cancel(cancelled())), bound.applied():
                return local.populate(
                    self._job, self._dsn, inputs, snapshot.ref, remote, staged, self._feedings
                )
        finally:
            remote.close()

    def _fed(self, snapshot: Snapshot) -> dict[str, FedRows]:
        """Return the rows of the feeding views at the snapshot, by node."""
        if not self._feedings:
            return {}
        with reader.joined(self._dsn, snapshot.ref) as conn:
            return {fed.node.id: fed.rows(conn) for fed in self._feedings}

    def _evaluator(self, value_bytes_max: int) -> RemoteEvaluator:
        """Return an evaluator for the query's expressions; the caller closes it."""
        return RemoteEvaluator(
            self._dsn,
            self._planned.settings,
            self._settings.eval_dsn or None,
            owner=_session_owner(self._dsn, self._planned_under),
            value_bytes_max=value_bytes_max,
            folder=self._settings.turns_dir,
        )

    def _begin_loading(self) -> None:
        """Do what is left before rows are read: all waits are over."""

    # --- helpers

    def _connect(self) -> contextlib.AbstractContextManager[Connection]:
        """Return a pooled connection in autocommit mode."""
        return reuse.lent(self._dsn)


def sizes_of(conn: Connection, sources: tuple[SourceSpec, ...]) -> dict[str, TableSize]:
    """Return the sizes of tables, by source ID; a table of another database is measured there."""
    beyond = origins.standing_in(conn, [source.table_oid for source in sources])
    return {
        source.id: elsewhere.size(conn, source, beyond[source.table_oid])
        if source.table_oid in beyond
        else tables.size(conn, source)
        for source in sources
    }


def _check(snapshot: Snapshot, elsewhere: SourceSnapshots | None) -> None:
    """Raise SnapshotLost unless all snapshots still exist."""
    snapshot.check()
    if elsewhere is not None:
        elsewhere.check()


def _nothing() -> None:
    pass


def _session_owner(dsn: str, facts: Facts) -> str:
    """Return the label by which the evaluator separates user code (``View.session_owner``)."""
    with reuse.lent(dsn) as conn:
        return f"owner {names.role_of(conn, facts['owner']).name}"
