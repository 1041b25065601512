"""why and why_not: the source rows behind a result row, and where missing rows are dropped.

    stored plan ─► snapshot with a known txid ─► relations that the key asks for ─► rows of tables

Everything happens in the builder, over rows that are read from the tables at the snapshot; neither
the worker nor a writer waits.  The view's expressions are evaluated as in a population: code of
users by the role without rights.  The caller's key is data: it is never part of a statement except
as a literal.

A reader of the view sees the source rows of tables that it may read, and the number of those of
other tables.  ``why_not`` names parts of the query, so only the view's owner may call it, and it
says nothing about tables that the caller may not read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec
import structlog

from headrace.collections import plan
from headrace.collections.plan import PhysicalPlan, SourceSpec
from headrace.collections.source import load_columns
from headrace.errors import (
    DefiniteFailure,
    PrivilegeError,
    TransientError,
    UndefinedError,
    UserError,
)
from headrace.expressions.remote import RemoteEvaluator
from headrace.population import names, tables
from headrace.population import snapshot as snapshots
from headrace.population.context import JobContext
from headrace.population.job import Job, cancelled
from headrace.postgres import tokens
from headrace.postgres.connect import Connection
from headrace.process import bounds
from headrace.process.bounds import Bound
from headrace.provenance import rendering
from headrace.provenance.contributions import ContributingRows, Contributions
from headrace.provenance.dropped import DroppedAt, DroppedRows, count
from headrace.provenance.relations import Budget, TracedPlan
from headrace.provenance.runner import Runner, consolidated
from headrace.provenance.tables import TableReader
from headrace.provenance.values import AllowedValues, Equalities
from headrace.sql import progress, views
from headrace.sql.verbs import Why, WhyNot
from headrace.sql.views import StoredView, ViewRow
from headrace.types import Schema
from headrace.views import boundary, read_rights
from headrace.views.expected_rows import replanned
from headrace.views.explain import Stages
from headrace.views.pause import check_not_live

_log = structlog.get_logger(__name__)

MOST: Final = 10_000
"""Maximum number of rows of one table that a call returns."""
_ATTEMPTS: Final = 4
_PAUSE_S: Final = 0.5
_MEMORY_PART: Final = 8
"""Divisor of ``memory_bytes`` that gives the memory for rows that must be held."""
_PHYSICAL: Final = "physical"
_EXAMPLE: Final = """Write for example headrace.{}('v', '{{"id": 7}}')."""

Row = list[Any]


@dataclass(frozen=True, slots=True)
class _Subject:
    """A running view, and the key that is asked for."""

    view: ViewRow
    stored: StoredView
    physical: PhysicalPlan
    stages: Stages
    """The explanations of ``physical``."""
    equalities: Equalities
    owner: str
    caller: str | None

    @property
    def sources(self) -> tuple[int, ...]:
        return tuple(source.table_oid for source in self.physical.sources)


def why(context: JobContext, job: Job, request: Why) -> dict[str, Any]:
    """Return the rows of ``sql/why.sql``.

    Raises:
        UndefinedError: 42P01 or 42703, there is no such view or column.
        UserError: 22023, the key is no object; 54000, too many rows must be held.
        PrivilegeError: the caller may not read the view.
        UnsupportedError: row security hides rows of the view.
        DefiniteFailure: 55000, the view does not run, or its plan is not shown to its owner.
        PrerequisiteError: 55P03, transactions stay open, so there is no snapshot.
    """
    most = request.most
    if not 0 <= most <= MOST:
        raise UserError(f"argument most must be from 0 to {MOST}", sqlstate="22023")
    with job.connection(context.settings.source, what="why") as conn, job.translating():
        subject = _subject(context, job, conn, request, "why")
        return _attempts(context, job, lambda n: _why(context, job, conn, subject, most, n))


def why_not(context: JobContext, job: Job, request: WhyNot) -> dict[str, Any]:
    """Return the rows of ``sql/why_not.sql``.

    Raises:
        HeadraceError: as ``why``; and PrivilegeError unless the caller acts for the owner and may
            read the tables of the query.
    """
    with job.connection(context.settings.source, what="why") as conn, job.translating():
        subject = _subject(context, job, conn, request, "why_not")
        names.check_owner(conn, subject.view, request.caller)
        for source in subject.physical.sources:
            if not _visible(conn, request.caller, source):
                raise PrivilegeError(
                    f"permission denied for table {_shown(conn, source)}",
                    detail="The answer depends on all rows of the tables that the view reads.",
                )
        return _attempts(context, job, lambda n: _why_not(context, job, conn, subject, n))


def _attempts(
    context: JobContext, job: Job, attempt: Callable[[int], dict[str, Any]]
) -> dict[str, Any]:
    for number in range(1, _ATTEMPTS + 1):
        try:
            return attempt(number)
        except TransientError as error:
            # The attempt was disturbed: by a rewind, the restart of a process, or DDL.
            job.check()
            if number == _ATTEMPTS:
                raise
            _log.info("explaining a row again", why=error.message)
            job.wait(_PAUSE_S)
    raise AssertionError("the last attempt returns or raises")


# --- the view and its key


def _subject(
    context: JobContext, job: Job, conn: Connection, request: Why | WhyNot, name: str
) -> _Subject:
    caller = request.caller
    view = names.find(conn, request.name, caller, request.settings)
    if view is None:
        raise UndefinedError(
            f'view "{request.name}" does not exist',
            hint="See headrace.list_views().",
            sqlstate="42P01",
        )
    check_not_live(context, job, view)
    stored = views.stored(conn, view.id)
    if stored is None:
        raise read_rights.gone(view)
    read_rights.result_table(conn, view, caller, "explaining a row of")
    read_rights.check_running(conn, view, owns=names.acts_for_owner(conn, view, caller))
    physical, stages = plan.from_json(stored.plan), Stages.stored(stored.explain or {})
    if physical.feeds or physical.filled_from:
        # The plan lacks the query of a view that feeds it, or has it unmerged.
        planned = replanned(context, conn, view, stored, caller).planned
        physical, stages = planned.physical, Stages.of(planned)
    if _PHYSICAL not in stages.graphs:
        raise DefiniteFailure(
            f"the rows of view {view.shown} cannot be traced to tables",
            detail="Its plan contains the query of another owner's view, which only that owner may"
            " see, or was stored by an earlier version of headrace.",
            hint="If it is of an earlier version, run CALL headrace.resync_view.",
        )
    key = _key(conn, view, physical.sink.schema, request.key, name)
    owner = view.owner_name or names.role(conn, caller).name
    return _Subject(view, stored, physical, stages, key, owner, caller)


def _key(
    conn: Connection, view: ViewRow, schema: Schema, given: str, function: str
) -> dict[int, AllowedValues]:
    """Return the equalities that the caller's key, the text of a JSON object, asks for."""
    try:
        named = msgspec.json.decode(given)
    except (ValueError, RecursionError) as error:
        raise UserError("the key is no JSON that can be read") from error
    if not isinstance(named, dict) or not named:
        raise UserError(
            "the key must be an object of columns and values", hint=_EXAMPLE.format(function)
        )
    places = {field.name: place for place, field in enumerate(schema)}
    for name in named:
        if name not in places:
            raise UndefinedError(
                f'column "{name}" of view {view.shown} does not exist', sqlstate="42703"
            )
    chosen = [places[name] for name in named]
    values = rendering.of_json(conn, [schema[place] for place in chosen], given)
    return dict(zip(chosen, values, strict=True))


# --- one attempt


@contextlib.contextmanager
def _relations(
    context: JobContext,
    job: Job,
    conn: Connection,
    subject: _Subject,
    contributions: Contributions,
    attempt: int,
) -> Iterator[tuple[TracedPlan, int]]:
    """Yield the relations of the view at a snapshot, and the view's txid there.

    Raises:
        TableChanged: a table was altered meanwhile.
    """
    settings, physical = context.settings, tables.renamed(conn, subject.physical)
    limits = bounds.of_filling(settings, subject.stored.options.limits)
    bound = Bound(limits, "a step of explaining a row")
    number = f"w{job.name.replace('-', '_')}_{attempt}"
    with contextlib.ExitStack() as stack:
        stack.enter_context(context.explanations.take(job, subject.caller))
        # Batches are cut while a tap exists, so the long wait comes before it.
        snapshots.wait_for_writers(job, settings.source, settings.population_lock_wait_ms)
        stack.enter_context(boundary.tapped(context, job, subject.view, attempt))
        # The tap knows only what comes after it.
        written = progress.written(conn, subject.view.id)
        if written is None:
            raise read_rights.gone(subject.view)
        job.phase("snapshot")
        snapshot, elsewhere, standing = stack.enter_context(
            boundary.snapshot_of(context, job, conn, subject.sources, number)
        )
        standing.close()
        lsn = int(snapshot.ref.start_lsn)
        found = boundary.reached(context, job, subject.view.id, lsn, temporal=physical.temporal)
        boundary.untap(context, job)
        before = tables.shape(conn, physical.sources)
        remote = RemoteEvaluator(
            settings.source,
            subject.stored.settings,
            settings.eval_dsn or None,
            owner=f"owner {subject.owner}",
            value_bytes_max=limits.value_bytes,
            folder=settings.turns_dir,
        )
        stack.callback(remote.close)
        stack.enter_context(job.cancelling(lambda: bound.cancel(cancelled())))
        stack.enter_context(bound.applied())
        reader = TableReader(job, settings.source, snapshot.ref, elsewhere)
        budget = Budget(settings.memory_bytes // _MEMORY_PART)
        runner = Runner(remote, found.instant)
        job.phase("reading")
        yield (
            TracedPlan(physical, runner, reader.read, budget, contributions),
            max(found.txid, written),
        )
        snapshot.check()
        if elsewhere is not None:
            elsewhere.check()
        tables.check_same(before, tables.shape(conn, physical.sources))


def _why(
    context: JobContext, job: Job, conn: Connection, subject: _Subject, most: int, attempt: int
) -> dict[str, Any]:
    contributions = Contributions(most)
    with _relations(context, job, conn, subject, contributions, attempt) as (relations, txid):
        result = relations.of(relations.plan.sink.id, subject.equalities).whole()
        if result.count:
            result.back(result.all())
        counted = [(table, table.count) for table in contributions.tables.values()]
        constants, peers = relations.constants, relations.partitions
    if not result.count:
        hint = (
            f"headrace.why_not({tokens.argument(subject.view.shown)}, …) says where it is dropped"
        )
        return {"rows": [], "notices": [f"view {subject.view.shown} has no such row; {hint}"]}
    schema = subject.physical.sink.schema
    batch = consolidated(schema, result.batch)
    weights = batch.columns[-1].to_pylist()
    shown = rendering.as_json(conn, schema, batch.slice(0, most).columns[:-1])
    name = _quoted(conn, subject.view.schema, subject.view.name)
    rows: list[Row] = [
        [txid, name, text, weight, "result"] for text, weight in zip(shown, weights, strict=False)
    ]
    if rest := sum(weights[most:]):
        rows.append([txid, name, None, rest, "more rows of the result"])
    for table, rows_of in counted:
        rows += _of_table(conn, subject, table, rows_of, most, txid)
    if constants:
        rows.append([txid, None, None, constants, "constant rows of the query"])
    if peers:
        rows.append([txid, None, None, peers, "rows of the window partitions"])
    return {"rows": rows, "notices": []}


def _of_table(
    conn: Connection, subject: _Subject, table: ContributingRows, total: int, most: int, txid: int
) -> list[Row]:
    source, name = table.source, _shown(conn, table.source)
    if not _visible(conn, subject.caller, source):
        return [[txid, name, None, total, "rows of a table that the caller may not read"]]
    samples = table.samples(most)
    columns = load_columns(source)
    arrays = [[row[place] for row, _ in samples] for place in range(len(columns))]
    texts = rendering.as_json(conn, columns, [rendering.joined(some) for some in arrays])
    rows: list[Row] = [
        [txid, name, text, often, "source"] for text, (_, often) in zip(texts, samples, strict=True)
    ]
    rest = total - sum(often for _, often in samples)
    if rest > 0:
        rows.append([txid, name, None, rest, "more rows of the table"])
    return rows


def _why_not(
    context: JobContext, job: Job, conn: Connection, subject: _Subject, attempt: int
) -> dict[str, Any]:
    titles = _titles(subject.stages)
    with _relations(context, job, conn, subject, Contributions(0), attempt) as (relations, txid):
        result = relations.of(relations.plan.sink.id, subject.equalities)
        if rows := count(result):
            return {"rows": [[txid, None, None, rows, "the view has such a row"]]}
        found = list(DroppedRows(relations, partial(_shown, conn)).first(result))
    return {"rows": [_told(txid, drop, titles) for drop in found]}


def _told(txid: int, drop: DroppedAt, titles: Mapping[str, str]) -> Row:
    return [txid, drop.node, titles.get(drop.node), drop.rows, drop.reason]


def _titles(stages: Stages) -> dict[str, str]:
    """Return the line of explain_view for each node of the physical plan."""
    return {node.id: node.title for node in stages.graphs[_PHYSICAL].nodes}


def _visible(conn: Connection, caller: str | None, source: SourceSpec) -> bool:
    columns = [column.name for column in load_columns(source)]
    return read_rights.may_read(conn, caller, source.table_oid, columns)


def _shown(conn: Connection, source: SourceSpec) -> str:
    return _quoted(conn, source.schema_name, source.table_name)


def _quoted(conn: Connection, schema: str, name: str) -> str:
    """Return a qualified name, quoted where SQL needs it."""
    row: Any = conn.execute(
        "SELECT format('%%I.%%I', %s::text, %s::text)", (schema, name)
    ).fetchone()
    return str(row[0])
