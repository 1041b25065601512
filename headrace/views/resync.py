"""resync_view: populate a view again, into its existing table.

The table stays readable, with its old rows, indexes and grants, until one transaction replaces the
rows that differ. In that transaction the view also gets a *new id*: for the worker it is a new,
populated view (create.py), and the old one is gone. So state, staged files and progress of the two
never mix, even if a process is killed at any time.

A running view follows its tables until then; the worker stops writing it (``suspend``) only for
the exchange. The new rows are those of the population's snapshot. So the view steps back to that
time, and catches up before the call returns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg

from headrace import clock
from headrace.collections import plan
from headrace.counting import counted, noun
from headrace.errors import (
    HeadraceError,
    ResultTableChanged,
    SinkTableError,
    TransientError,
    UndefinedError,
    UnsupportedError,
)
from headrace.planner import Planned, PlanRequest
from headrace.planner.analyse import objects
from headrace.planner.analyse.present import present
from headrace.population import catalog, names, placing
from headrace.population.choice import Choice
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.population.names import Role, ViewName
from headrace.population.placing import Placement
from headrace.population.populate import Population, plan_with_facts, planning, unpublish_unused
from headrace.population.publish import NewTable, make_table, put_progress
from headrace.population.replace import Replaced, image, repair, replace_rows
from headrace.population.staging import Staging
from headrace.postgres import tokens
from headrace.postgres.connect import Connection
from headrace.postgres.reliances import Facts
from headrace.sink import keys, policies, table
from headrace.sink.table_metadata import TableMetadata
from headrace.sql import (
    assertions,
    history,
    progress,
    reads,
    results,
    states,
    views,
    watched,
)
from headrace.sql.history import StoredHistory
from headrace.sql.status import Status
from headrace.sql.verbs import ResyncView
from headrace.sql.view_spec import ViewSpec
from headrace.sql.views import StoredView, ViewRow
from headrace.types import format_lsn
from headrace.views import grants
from headrace.views.pause import check_not_live

_UNDEFINED_COLUMN: Final = "42703"


@dataclass(frozen=True, slots=True)
class Replanned:
    """The plan to fill a view by, its facts, and the owner whose rights it uses."""

    planned: Planned
    under: Facts
    owner: Role
    to: Placement | None = None
    """The view's placement from then on; None: unchanged."""


def resync_view(context: JobContext, job: Job, request: ResyncView) -> dict[str, Any]:
    """Fill a view of any status anew, and set it running.

    Raises:
        UndefinedError: 42P01, no such view.
        PrivilegeError: the caller is not its owner.
        UserError: 55006, another job works on it; 55000, a column cannot get its new type, or
            its table was altered.
        HeadraceError: the resync failed or was cancelled: the view is as before.
    """
    resync = _planned(context, job, request, keyless=False)
    try:
        return resync.run()
    except keys.KeyTooLong as error:
        if resync.has_chosen_key:
            raise
        job.say(error.notice)
    return _planned(context, job, request, keyless=True).run()


def _planned(context: JobContext, job: Job, request: ResyncView, *, keyless: bool) -> Resync:
    """Plan the resync of a view; ``keyless``: its table has no key from then on."""
    with planning(context, job) as conn:
        view = names.find_owned(conn, request.name, request.caller, request.settings)
        if request.of not in (None, view.id):
            raise UndefinedError(f"view {view.shown} was rebuilt meanwhile")
        check_not_live(context, job, view)
        stored = read(conn, view)
        owner = owner_of(conn, view, request.caller)
        stored, to = elsewhere(context, conn, view, stored)
        before = stored.options
        if keyless:
            stored = replace(stored, options=stored.options.without_key())
        again = replace(plan_again(context, conn, view, stored, owner), to=to)
        resync = Resync(context, job, view, stored, again, because=request.because)
        if keyless:
            resync.had = before
        resync.doubt(asked=request.because is None)
        resync.check_table(conn)
        if request.within_s is not None:
            resync.stand_back(watched.cost(conn, view.id), request.within_s)
    return resync


def elsewhere(
    context: JobContext, conn: Connection, view: ViewRow, stored: StoredView
) -> tuple[StoredView, Placement | None]:
    """Return the view, and a new placement for it if a worker that it uses is lost (else None)."""
    before = stored.options.placement
    to = placing.still_there(conn, context.settings, before, view.id)
    if to == before:
        return stored, None
    return replace(stored, options=stored.options.with_placement(to)), to


def owner_of(conn: Connection, view: ViewRow, caller: str | None) -> Role:
    """Return the role whose rights count for a view from now on: its owner, for any caller.

    If the owner was dropped, the caller becomes the owner: a superuser, or the engine's role.
    """
    if view.owner is not None and view.owner_name is not None:
        return Role(view.owner, view.owner_name)
    return names.role(conn, caller)


def plan_again(
    context: JobContext, conn: Connection, view: ViewRow, stored: StoredView, owner: Role
) -> Replanned:
    """Plan a stored query again, under current names and with the rights of ``owner``.

    If a column was dropped, another column that has its name now is read instead.

    Raises:
        UnsupportedError: an object was renamed, and the text cannot be followed.
        UndefinedError: 42703 or 42P01, an object that the query names is gone.
    """
    try:
        return _plan_again(context, conn, view, stored, owner, by_name=False)
    except HeadraceError as error:
        if error.code != _UNDEFINED_COLUMN:
            raise
    try:
        return _plan_again(context, conn, view, stored, owner, by_name=True)
    except HeadraceError as error:
        if error.code != _UNDEFINED_COLUMN:
            raise
        call = f"CALL headrace.alter_view({tokens.argument(view.shown)}, query)"
        raise error.again(hint=f"{call} gives it a query of columns that there are.") from None


def _plan_again(
    context: JobContext,
    conn: Connection,
    view: ViewRow,
    stored: StoredView,
    owner: Role,
    *,
    by_name: bool,
) -> Replanned:
    canonical, named = stored.canonical, stored.named
    assert canonical is not None, "else it is not read"
    settings = objects.followed(conn, stored.settings, named)

    def attempt(*, loosely: bool) -> Replanned:
        found = {"search_path": objects.path(conn, settings, named)} if loosely else {}
        text = context.planners.call(
            conn,
            owner.name,
            canonical,
            present,
            canonical,
            named,
            loosely=loosely,
            by_name=by_name,
        )
        request = PlanRequest(text, owner.name, settings | found)
        try:
            made = plan_with_facts(context, conn, request, stored.options, view.id)
            return Replanned(*made, owner)
        except HeadraceError as error:
            # The position is one in the canonical text, which no user wrote.
            error.position = None
            raise

    try:
        first = attempt(loosely=False)
    except UnsupportedError:
        # One name may now stand for several objects.
        first = attempt(loosely=True)
    missing, moved = objects.missing(conn, named, first.planned.named)
    if not missing:
        return first
    # Postgres does not print the schema of such operators; the search path finds them.
    second = attempt(loosely=True)
    if not objects.missing(conn, named, second.planned.named)[0]:
        return second
    if moved:
        raise UnsupportedError(
            f"the query names {missing[0]}, which was renamed or moved, in a way that"
            " cannot be followed",
            hint=objects.ALTER,
        )
    return first


def read(conn: Connection, view: ViewRow) -> StoredView:
    """Return the view as it was created.

    Raises:
        UndefinedError: it was dropped.
        UnsupportedError: it was created by a version that did not store enough of it.
    """
    stored = views.stored(conn, view.id)
    if stored is None:
        raise UndefinedError(f'view "{view.name}" was dropped', sqlstate="42P01")
    if stored.canonical is None:
        raise UnsupportedError(
            f'view "{view.name}" was created by an earlier version of headrace',
            hint="Drop the view and create it again.",
        )
    return stored


@contextlib.contextmanager
def _hinting() -> Iterator[None]:
    """Adapt the hint of an error about an altered table to a call."""
    try:
        yield
    except ResultTableChanged as error:
        hint = "Undo that and call again, or drop the table and call again."
        raise error.again(hint=hint) from error


class Resync(Population):
    """One resync after planning."""

    def __init__(
        self,
        context: JobContext,
        job: Job,
        view: ViewRow,
        stored: StoredView,
        again: Replanned,
        query: str | None = None,
        because: str | None = None,
    ) -> None:
        """Take a planned resync.

        ``query``: the new text of an altered view; ``because``: the reason of a resync without a
        call.
        """
        name = f"{view.schema}.{view.name}"
        super().__init__(context, job, again.planned, stored.options, again.under, name)
        self._view = view
        self._stored = stored
        self._query = query
        self._owner = again.owner
        self._because = because
        self._to = again.to
        self._replaced: Replaced | None = None
        self._kept: StoredHistory | None = None
        self._read_before: list[int] = []
        self._cost: watched.Cost | None = None
        self.had: ViewSpec | None = None
        """The options before, if they change."""
        self._within_s: float | None = None
        """Seconds in which the view would catch up, if that is why it is filled anew."""

    @property
    def has_chosen_key(self) -> bool:
        """Whether the owner has chosen the key of the table, or that it has none."""
        return self._stored.options.key is not None

    def doubt(self, *, asked: bool) -> None:
        """Have views refilled that were filled from this one, if its rows may be wrong.

        ``asked``: a call has asked for the resync.  Other resyncs have a reason that does not
        concern the rows, or these views have stopped already (``Leaving.doubt``).
        """
        self._doubted = asked

    def stand_back(self, cost: watched.Cost | None, within_s: float) -> None:
        """Fill the view only if that takes less than ``within_s``, in which it would catch up.

        The worker leaves the view's backlog alone as soon as rows are read.  ``cost``: that of the
        last population; None: unknown.
        """
        self._cost, self._within_s = cost, within_s

    def _check_worth(self, chosen: Choice) -> None:
        """Check the cost, and limit the waits by what is left then.

        Raises:
            TransientError: the population would take longer, or that is unknown.
        """
        if self._within_s is None:
            return
        expected_s = None if self._cost is None else self._cost.at(chosen.rows)
        if expected_s is None or expected_s > self._within_s:
            takes = "an unknown time" if expected_s is None else f"about {expected_s:.0f} s"
            raise TransientError(
                f"view {self._view.shown} catches up within {self._within_s:.0f} s; to compute it"
                f" anew takes {takes}"
            )
        self._wait_until = clock.monotonic() + self._within_s - expected_s

    def run(self) -> dict[str, Any]:
        """Fill the view anew; return the answer for the caller.

        Raises:
            UndefinedError: the owner was dropped, and its name belonged to another role at
                planning.
        """
        if self._planned_under["owner"] != self._owner.oid:
            raise UndefinedError(f'role "{self._owner.name}" was dropped')
        rows = self.populate()
        return {"view_id": self._view_id, "rows": rows, "notice": self._notice()}

    def _notice(self) -> str:
        said = "its table was created again"
        if self._replaced is not None:
            removed, added = self._replaced.removed, self._replaced.added
            said = (
                f"{counted(removed, 'row')} {noun(removed, 'was', 'were')} removed, {added} added"
            )
        if self._moves:
            said += f', and it belongs to role "{self._owner.name}" now'
        return f'view "{self._view.name}": {said}'

    @property
    def _moves(self) -> bool:
        """Whether the view gets another owner."""
        return self._owner.oid != self._view.owner

    def _begin_loading(self) -> None:
        if self._within_s is None:
            return
        if clock.monotonic() > self._wait_until:
            raise TransientError("the view could catch up while it waited to be computed anew")
        self._suspend()  # its undo action is that of the hold

    def register(self, conn: Connection, undo: contextlib.ExitStack) -> None:
        """Take a new id, and register the tables that the view did not read before.

        Raises:
            UndefinedError: the view was dropped since it was planned.
            UserError: 55006, another job populates it, or it was rebuilt since.
            TransientError: 55006, it was renamed since.
        """
        check_not_live(self._context, self._job, self._view)
        self._live(self._view.id, undo)
        with conn.transaction():
            # The plan is only valid for this version of the view.
            views.hold(conn, self._view.id)
            names.again(conn, self._view)
            self._view_id = views.next_id(conn)
            self._live(self._view_id, undo)
            self._read_before = reads.tables_of(conn, self._view.id)
            more = [t for t in self._planned.tables if t.oid not in self._read_before]
            self._undo(undo, "tables", lambda: self._forget_tables([t.oid for t in more]))
            reads.insert_tables(conn, self._view.id, catalog.rows_of(more))
            # If the resync fails, these may block the drop of a view that is not read after all.
            reads.insert_uses(conn, self._view.id, self._planned.results)

    def appear(self, conn: Connection, staged: Staging, facts: dict[str, Any]) -> None:
        """Exchange rows, progress and catalog row in the final transaction."""
        self._owner = names.role_of(conn, self._owner.oid)
        self._suspend()
        # This lock prevents a drop or another resync; the worker may still write the view's status.
        held = views.hold(conn, self._view.id)
        if held is None:
            raise UndefinedError(f'view "{self._view.name}" was dropped', sqlstate="42P01")
        with _hinting():
            self._release_columns(conn, held[0])
            oid = self._write_rows(conn, held[0], staged, facts)
            target = self._target(oid)
            policies.put(conn, target.identifier, oid, target.conditions)
        begin = self._progress(conn, facts)
        progress.end(conn, self._view.id)
        moved = self._owner.oid if self._moves else None
        if moved is not None:
            grants.move(conn, oid, self._view.owner, self._owner)
        catalog.renew(
            conn, (self._view.id, self._view_id), self._planned, oid, self._query, owner=moved
        )
        as_before = self._query is None and moved is None and not self._doubted
        # Its row is locked now, so it cannot stop any more.
        if as_before and states.is_sound(conn, self._view_id):
            facts["replaces"] = self._view.id
        if self._kept is not None:
            same = self._replaced is not None and self._replaced.noted
            history.go_on(conn, self._kept, oid, anew=not same)
            self._count(conn, self._kept, oid)
        if self.had is not None:
            views.put_options(conn, self._view_id, self.had, self._stored.options)
        if self._to is not None:
            views.set_placement(conn, self._view_id, self._to, dict(self._planned.parts))
        # Either a removal of the worker waits for this, or the check sees that the worker is gone.
        placing.check_all(conn, self._options.placement, self._planned.parts)
        begin()
        start_lsn = format_lsn(int(facts["start_lsn"]))
        states.become(conn, self._view_id, Status.RUNNING)
        states.begin(conn, self._view_id, start_lsn, because=self._because)

    def _count(self, conn: Connection, kept: StoredHistory, oid: int) -> None:
        """Store the new contents of an assertion."""
        sample = assertions.sample_of(conn, self._view_id)
        if sample is not None:
            target = self._target(oid)
            row = image("t", [field.name for field in target.schema])
            found = assertions.contents(conn, target.identifier, row, sample)
            assertions.refilled(conn, self._view_id, kept, found)

    def _release_columns(self, conn: Connection, oid: int | None) -> None:
        """Drop the policies of a table whose columns are about to change."""
        found = [] if oid is None else table.attributes(conn, oid)
        have = [(c.name, c.base_oid, c.base_mod) for c in found]
        if oid is not None and have != [(f.name, f.oid, f.typmod) for f in self._planned.columns]:
            policies.release_columns(conn, self._target(oid).identifier, oid)

    def _suspend(self) -> None:
        """Have the worker stop writing the old view."""
        self._worker.call("suspend", {"view_id": self._view.id, "job": self._job.name})

    def _progress(self, conn: Connection, facts: dict[str, Any]) -> Callable[[], object]:
        """Return a function that writes the first progress; call this while the old one exists."""
        return lambda: put_progress(conn, self._view_id, facts)

    def _write_rows(
        self, conn: Connection, oid: int | None, staged: Staging, facts: dict[str, Any]
    ) -> int:
        stored, planned = self._stored, self._planned
        key = planned.physical.sink.key
        publication = self._settings.publication_name
        there = (
            oid is not None
            and table.fingerprint(conn, oid) is not None
            and repair(conn, self._as_is(oid), publication, key)
        )
        # No other process writes the table any more: it is locked, or does not exist.
        kept = self._kept = history.find(
            conn, self._view.id, int(facts["txid"]), format_lsn(int(facts["start_lsn"]))
        )
        if oid is None or not there:
            wanted = NewTable(
                ViewName(stored.schema, stored.name),
                planned.columns,
                key,
                self._owner.name,
                kept=TableMetadata.of(results.table_metadata(conn, self._view.id)),
            )
            return make_table(self._job, conn, wanted, staged)
        # A history goes on only for the same query, owner and types; else it begins anew.
        if kept is not None and not (kept.whole and self._query is None and not self._moves):
            kept = None
        self._replaced = self._exchange(conn, oid, staged, kept)
        return oid

    def _exchange(
        self, conn: Connection, oid: int, staged: Staging, kept: StoredHistory | None
    ) -> Replaced:
        """Replace the rows of the locked table with the staged ones."""
        return replace_rows(self._job, conn, self._target(oid), self._planned, staged, kept=kept)

    def _had(self) -> tuple[str, ...]:
        """Return the key that the table has had until now."""
        try:
            return keys.chosen(self._stored.options.key, plan.from_json(self._stored.plan).sink.key)
        except (ValueError, TypeError, KeyError):  # the table is rebuilt in any case
            return ()

    def _target(self, oid: int) -> table.ResultTable:
        stored = self._stored
        columns, sink = self._planned.columns, self._planned.physical.sink
        return table.ResultTable(
            self._view.id,
            stored.schema,
            stored.name,
            oid,
            columns,
            sink.key,
            conditions=sink.conditions,
        )

    def _as_is(self, oid: int) -> table.ResultTable:
        """Return the table as the engine made it: its key may differ from the new one."""
        return replace(self._target(oid), key=self._had())

    def check_table(self, conn: Connection) -> None:
        """Raise early if the table cannot be filled, before everything is loaded."""
        oid = self._view.result_oid
        if oid is not None and table.fingerprint(conn, oid) is not None:
            try:
                with _hinting():
                    publication = self._settings.publication_name
                    table.check(conn, self._as_is(oid), publication, filling=True)
            except SinkTableError:
                # Perhaps another call has just dropped or renamed the view.
                names.again(conn, self._view)
                raise

    def _leave(self) -> None:
        # A worker that is down sees it later: the old id is missing in the catalog.
        with contextlib.suppress(TransientError):
            self._context.worker.call("drop", {"view_id": self._view.id})

    def _adopt(self) -> None:
        self._leave()
        super()._adopt()
        try:
            unpublish_unused(self._context, self._read_before)
        except (HeadraceError, psycopg.Error) as error:
            # They stay published, which costs WAL decoding but harms nothing.
            self._log.warning("tables not unpublished", reason=str(error))

    def _forget_tables(self, oids: list[int]) -> None:
        with self._connect() as conn:
            reads.forget_tables(conn, self._view.id, oids)
