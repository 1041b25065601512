"""The rows that a large view must have, computed by Headrace instead of Postgres (verify_view).

    slot's snapshot at LSN L ─► tables by block ranges ─► collections ─► staged rows ─► scratch

A view is large if its population would run on Spark (``population/choice.py``).  Then Postgres does
not run the query: it only sends the tables, in the same snapshot.  The collections are those that
maintain the view, but they start without a state and see no change.  So lost, repeated and damaged
changes, states and rows are found.  A collection that computes wrongly in the same way both times
is not.

The tables are read with the engine's rights, so the rows are computed here only for a caller that
acts for the view's owner.  Postgres has checked before that the caller may run the query, and that
no row security hides rows of its tables from the caller (``verify.py``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from psycopg import sql

from headrace.collections import plan
from headrace.errors import TransientError
from headrace.population import choice, staging, tables
from headrace.population.choice import Choice
from headrace.population.context import JobContext
from headrace.population.elsewhere import SourceSnapshots
from headrace.population.job import Job
from headrace.population.loader import Loaded, Loader, sizes_of
from headrace.population.snapshot import Snapshot
from headrace.population.staging import Staging
from headrace.population.tables import TableChanged, TableSize
from headrace.postgres import tokens
from headrace.postgres.connect import Connection
from headrace.sql.nodes import MAIN
from headrace.sql.views import StoredView, ViewRow
from headrace.views.resync import Replanned, owner_of, plan_again

_PIECE_BYTES: Final = 1 << 20
_SELECT: Final = "SELECT * FROM"


class ExpectedRows(Loader):
    """The expected rows of one view; each attempt to verify it loads them again."""

    def __init__(
        self, context: JobContext, job: Job, view: ViewRow, stored: StoredView, again: Replanned
    ) -> None:
        name = f"{view.schema}.{view.name}"
        super().__init__(context, job, again.planned, stored.options, again.under, name)
        self._shown = view.shown
        self._argument = tokens.argument(view.shown)
        self._staged = staging.of_proof(self._settings.staging_dir, job.name)
        self._mode = choice.SPARK
        """Where the rows were computed."""

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        """Wait for Spark before anything is held; at the end of the block remove the files."""
        try:
            self._begin_spark(self._choose(self._sizes()))
            self._want_spark()
            yield
        finally:
            self._staged.remove()

    def load(self, snapshot: Snapshot, sources: SourceSnapshots | None, instant: int) -> None:
        """Stage the rows at ``snapshot``, and at those of other databases (``sources``).

        ``instant``: the query's ``now()``, in microseconds since 2000-01-01 UTC.

        Raises:
            TransientError: a table was changed meanwhile, or a snapshot was lost.
        """
        self._elsewhere, self._instant = sources, instant
        self._staged.make()
        try:
            with contextlib.ExitStack() as place:
                self._rename()
                self._load_at(snapshot, self._staged, place)
        except TableChanged as error:
            raise TransientError(
                f"a table that view {self._shown} reads was altered while it was read",
                hint="Call verify_view again.",
                sqlstate="40001",
            ) from error

    def copy(self, conn: Connection, name: sql.Identifier) -> None:
        """Copy the staged rows into the table ``name``."""
        with (
            conn.cursor() as cursor,
            cursor.copy(sql.SQL("COPY {} FROM STDIN").format(name)) as copy,
        ):
            for path in self._staged.row_files():
                with path.open("rb") as file:
                    while piece := file.read(_PIECE_BYTES):
                        copy.write(piece)

    def notice(self) -> str:
        """Return a sentence that says who computed the rows, and how Postgres would."""
        rows = f"{self._rows_expected:_}".replace("_", " ")
        where = "on Spark" if self._mode == choice.SPARK else "in its own process"
        why = f"because Postgres would have read about {rows} rows"
        if self._options.population != "auto":
            why = "because of the view's option population"
        return (
            f"the expected rows were computed by Headrace {where} from a snapshot, {why};"
            f" to have Postgres compute them: {self._in_postgres}"
        )

    def _load(
        self, chosen: Choice, snapshot: Snapshot, sizes: dict[str, TableSize], staged: Staging
    ) -> Loaded:
        self._mode = chosen.mode
        return super()._load(chosen, snapshot, sizes, staged)

    @property
    def _in_postgres(self) -> str:
        return f"{_SELECT} headrace.verify_view({self._argument}, in_postgres => true)"


def of_large(
    context: JobContext,
    job: Job,
    conn: Connection,
    view: ViewRow,
    stored: StoredView,
    caller: str | None,
) -> ExpectedRows | None:
    """Return the rows to compute here; None: Postgres computes them.

    REQUIRES: the caller acts for the view's owner.

    Raises:
        HeadraceError: the query cannot be planned any more.
    """
    again = None
    physical = plan.from_json(stored.plan)
    if physical.feeds or physical.filled_from:
        # The plan lacks the query of a view that feeds it, or has it unmerged.
        again = replanned(context, conn, view, stored, caller)
        physical = again.planned.physical
    if not _is_large(context, conn, physical, stored):
        return None
    again = again or replanned(context, conn, view, stored, caller)
    columns = [field.oid for field in plan.from_json(stored.plan).sink.schema]
    if columns != [field.oid for field in again.planned.columns]:
        return None
    return ExpectedRows(context, job, view, _of_here(stored), again)


def _is_large(
    context: JobContext, conn: Connection, physical: plan.PhysicalPlan, stored: StoredView
) -> bool:
    physical = tables.renamed(conn, physical)
    sizes = sizes_of(conn, physical.sources)
    found: Choice = choice.choose(physical, sizes, context.settings, stored.options)
    return found.mode == choice.SPARK


def replanned(
    context: JobContext,
    conn: Connection,
    view: ViewRow,
    stored: StoredView,
    caller: str | None,
) -> Replanned:
    """Plan the whole query again, over tables only and on one worker."""
    return plan_again(context, conn, view, _of_here(stored), owner_of(conn, view, caller))


def _of_here(stored: StoredView) -> StoredView:
    options = replace(stored.options, point=None, placement=MAIN, key=None, first_rows="tables")
    return replace(stored, options=options)
