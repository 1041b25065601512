"""advise without a query: the statements of this database that would profit most from being views.

They come from ``pg_stat_statements``, read with the caller's rights. Each is planned as by
``check_view``, and its cost as a view is compared with its present cost:

    now        execution time of all its calls / time since they are counted
    as a view  changes of its tables × cost of one, plus the calls, which then read a table

The number of statements is limited, and so is the time, for each and in total.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from headrace import clock, types
from headrace.errors import HeadraceError, PrerequisiteError, SystemRelationError, TransientError
from headrace.planner import Planned, PlanRequest
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.population.populate import plan_with_facts, planning
from headrace.postgres.acting import become
from headrace.postgres.connect import Connection
from headrace.sql.verbs import Advise
from headrace.sql.view_spec import ViewSpec
from headrace.views import parameters
from headrace.views.cost_estimates import Row, load, row, weighed
from headrace.views.parameters import NoTable, NotAView, Suggested

STATEMENTS_MAX: Final = 20
"""Maximum number of statements to plan, in order of total time."""
_READ_MAX: Final = 200
_TEXT_CHARS_MAX: Final = 10_000
_SECONDS_MAX: Final = 30.0
_STATEMENT_MS_MAX: Final = 5_000
"""Timeout of one Postgres query while a statement is planned."""
_NOT_TOLD: Final = r"\m(headrace\w*|pg_\w+|information_schema)\M"
"""Words that mark Headrace's own statements, and those on the catalog; these are left out."""
_READ_MS: Final = 0.05
"""Cost of a call that reads a view by an index, without its rows."""
_ROW_MS: Final = 0.001
_EXACT: Final = frozenset(
    (
        *(types.BOOL, types.INT2, types.INT4, types.INT8, types.OID, types.TEXT, types.VARCHAR),
        *(types.DATE, types.TIMESTAMP, types.TIMESTAMPTZ, types.UUID, types.BYTEA, types.NUMERIC),
    )
)
"""Types whose grouping uses the same equality as ``=`` with a value of the type."""
_NAME, _INFO = "pg_stat_statements", "pg_stat_statements_info"
_EXTENSION: Final = """
SELECT min(n.nspname::text), array_agg(c.relname::text ORDER BY c.relname), bool_and(o.rolsuper),
       array_agg((SELECT string_agg(a.attname, ' ') FROM pg_attribute a WHERE a.attrelid = c.oid)),
       array_agg(c.oid::bigint ORDER BY c.relname)
  FROM pg_extension e
  JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
                  AND d.deptype = 'e' AND d.classid = 'pg_class'::regclass
  JOIN pg_class c ON c.oid = d.objid
                 AND c.relname IN ('pg_stat_statements', 'pg_stat_statements_info')
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_roles o ON o.oid = c.relowner
 WHERE e.extname = 'pg_stat_statements'"""
_MOST: Final = sql.SQL("""
SELECT s.query, sum(s.calls)::float8, sum(s.total_exec_time)::float8, sum(s.rows)::float8, {since}
  FROM {view} s JOIN pg_catalog.pg_database d ON d.oid = s.dbid
 WHERE d.datname = pg_catalog.current_database() AND s.queryid IS NOT NULL AND s.total_exec_time > 0
   AND pg_catalog.length(s.query) <= {chars} AND s.query ~* '\\mselect\\M' AND s.query !~* {ours}
 GROUP BY s.query ORDER BY 3 DESC LIMIT {most}""")
_SINCE: Final = sql.SQL(
    "(SELECT pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() - i.stats_reset)"
    " FROM {info} i)::float8"
)
_STARTED: Final = sql.SQL(
    "pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()"
    " - pg_catalog.pg_postmaster_start_time())::float8"
)


@dataclass(frozen=True, slots=True)
class Extension:
    """The relations of extension pg_stat_statements."""

    schema: str
    views: list[str]
    trusted: bool
    """Whether superusers own all of them."""
    columns: list[str]
    """The column names of each relation, in one text."""
    oids: list[int]
    """OIDs, to detect that a relation was replaced between two reads."""


@dataclass(frozen=True, slots=True)
class Executed:
    """A statement with its execution statistics."""

    text: str
    calls: float
    ms: float
    rows: float
    seconds: float
    """Time since these statistics are collected."""

    @property
    def now(self) -> float:
        """The share of a processor that the executions take."""
        return self.ms / 1e3 / max(self.seconds, 1.0)

    @property
    def reading(self) -> float:
        """The share that the same number of calls would take if they read a view."""
        ms = self.calls * _READ_MS + self.rows * _ROW_MS
        return ms / 1e3 / max(self.seconds, 1.0)


@dataclass(frozen=True, slots=True)
class Judged:
    """The rows of the answer about one statement."""

    saved: float
    rows: list[Row]


def advise(context: JobContext, job: Job, request: Advise) -> list[Row]:
    """Return a few rows for each statement, in order of the saving by a view.

    Raises:
        PrerequisiteError: 55000, pg_stat_statements is not there; 42501, it may not be read.
    """
    until = clock.monotonic() + _SECONDS_MAX
    with planning(context, job) as conn:
        conn.execute("SELECT set_config('statement_timeout', %s, false)", (str(_STATEMENT_MS_MAX),))
        executed = [each for each in _executed(conn, request.caller) if _is_query(each.text)]
        judged: list[Judged] = []
        for number, each in enumerate(executed[:STATEMENTS_MAX], 1):
            job.check()
            if clock.monotonic() > until:
                break
            found = _judged(context, conn, request, each, f"statement {number}")
            judged += [] if found is None else [found]
        looked = len(judged)
    out = [line for each in sorted(judged, key=lambda j: -j.saved) for line in each.rows]
    left = len(executed) - looked
    told = f"the {looked} statements that take most time were examined"
    return [*out, row("looked at", None, told + (f"; {left} were not" if left > 0 else ""), looked)]


def _executed(conn: Connection, caller: str | None) -> list[Executed]:
    try:
        with conn.transaction(force_rollback=True):
            schema, has_info = _held(conn)
            since = _SINCE.format(info=sql.Identifier(schema, _INFO))
            text = _MOST.format(
                view=sql.Identifier(schema, _NAME),
                since=since if has_info else _STARTED,
                chars=sql.Literal(_TEXT_CHARS_MAX),
                ours=sql.Literal(_NOT_TOLD),
                most=sql.Literal(_READ_MAX),
            )
            if caller is not None:
                become(conn, caller)
            rows = conn.execute(text).fetchall()
    except psycopg.errors.ObjectNotInPrerequisiteState as error:
        raise PrerequisiteError(
            f"pg_stat_statements cannot be read: {error.diag.message_primary}",
            hint="Add it to shared_preload_libraries, and restart the server.",
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise PrerequisiteError(
            f"pg_stat_statements cannot be read: {error.diag.message_primary}",
            hint="GRANT USAGE ON its SCHEMA, and SELECT ON pg_stat_statements, to who asks and to"
            " Headrace's role.",
            sqlstate="42501",
        ) from error
    return [Executed(str(q), *(float(n) for n in numbers)) for q, *numbers in rows]


def _held(conn: Connection) -> tuple[str, bool]:
    """Lock the extension's relations; return its schema, and whether it records its last reset.

    The query on them runs with the caller's rights, but code in it could regain those of the
    session. So the relations must belong to a superuser, and are locked before that is checked.
    Otherwise the schema's owner could replace them in between.
    """
    found = _extension(conn)
    if found is None:
        raise PrerequisiteError(
            "extension pg_stat_statements, which records the cost of queries, is not installed",
            hint="Add pg_stat_statements to shared_preload_libraries, restart the server, and run"
            " CREATE EXTENSION pg_stat_statements; or give advise() a query.",
        )
    for name in found.views:
        lock = sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE")
        conn.execute(lock.format(sql.Identifier(found.schema, name)))
    if _extension(conn) != found:
        raise TransientError("extension pg_stat_statements was altered meanwhile")
    if not found.trusted:
        raise PrerequisiteError("extension pg_stat_statements does not belong to a superuser")
    if not any("total_exec_time" in each.split() for each in found.columns):
        raise PrerequisiteError(
            "extension pg_stat_statements is too old",
            hint="Run ALTER EXTENSION pg_stat_statements UPDATE.",
        )
    return found.schema, _INFO in found.views


def _extension(conn: Connection) -> Extension | None:
    """Return the extension's relations; None: it is not installed."""
    row: Any = conn.execute(_EXTENSION).fetchone()
    return None if row[0] is None else Extension(*row)


def _is_query(text: str) -> bool:
    """Return whether the text is a query on tables; other statements are left out."""
    try:
        words = parameters.words(text)
    except NotAView:
        return False
    return words[:1] in (["select"], ["with"]) and "from" in words


def _judged(
    context: JobContext, conn: Connection, request: Advise, each: Executed, name: str
) -> Judged | None:
    """Return the rows about a statement; None: it reads system tables, or Headrace's."""
    shown = each.text if len(each.text) <= 300 else f"{each.text[:300]}…"
    head = [
        row("statement", name, shown, each.calls, "calls"),
        row("now", name, "of a processor, for all its calls", 100 * each.now, "%"),
    ]
    try:
        view = parameters.suggested(each.text)
        planned = _planned(context, conn, request, view)
    except (SystemRelationError, NoTable):
        return None
    except HeadraceError as error:
        why = "over no rows it returns one row, but a view grouped by the parameter returns none"
        grouped = error.code == "42803" and "$" in each.text
        message = why if grouped else error.message
        advice = " ".join(part for part in (error.detail, error.hint) if part) or None
        return Judged(
            -1.0, [*head, row("why not", name, message, advice=None if grouped else advice)]
        )
    return _weighed(conn, each, name, head, view, planned)


def _planned(context: JobContext, conn: Connection, request: Advise, view: Suggested) -> Planned:
    wanted = PlanRequest(view.query, request.caller, request.settings)
    planned, _ = plan_with_facts(context, conn, wanted, ViewSpec(first_rows="tables"))
    if view.grouped:
        exact = {field.name: field.oid in _EXACT for field in planned.columns}
        if not all(exact.get(parameters.spelled(key), False) for key in view.keys):
            raise NotAView(
                "whether rows that are equal to the parameter form groups is not certain"
            )
        path = request.settings.get("search_path", "")
        if "pg_catalog" in path:
            raise NotAView("= may be another operator than Postgres' own on its search_path")
    return planned


def _weighed(
    conn: Connection, each: Executed, name: str, head: list[Row], view: Suggested, planned: Planned
) -> Judged:
    _, tables = weighed(conn, planned)
    if any(table.cost is None for table in tables):
        said = row(
            "why not",
            name,
            "the cost of its view is unknown",
            None,
            None,
            "Run ANALYZE on its tables.",
        )
        return Judged(-1.0, [*head, said])
    least, most = load(tables)
    then = most + each.reading
    saved = each.now - then
    lines = [
        *head,
        row(
            "as a view",
            name,
            f"of a processor: changes of its tables take {100 * most:.2g} % if they come one by one"
            f" ({100 * least:.2g} % in large batches), its calls, which read a table then,"
            f" {100 * each.reading:.2g} %",
            100 * then,
            "%",
        ),
        row("saving", name, "of a processor, at least", 100 * saved, "%"),
    ]
    if saved > 0:
        lines += _create(conn, name, view, planned)
    else:
        lines.append(row("why not", name, "its tables change more often than the query runs"))
    return Judged(saved, lines)


def _create(conn: Connection, name: str, view: Suggested, planned: Planned) -> Iterator[Row]:
    # Do not reveal which tables another role's query reads.
    of = [] if planned.private else [t.name for t in planned.tables[:1]]
    called = "_".join([*of, *map(parameters.spelled, view.keys)])
    quoted = sql.Identifier((called or "query")[:40] + "_view").as_string(conn)
    call = sql.SQL("CALL headrace.create_view({}, {})").format(
        sql.Literal(quoted), sql.Literal(view.query)
    )
    yield row("create", name, "a view that keeps it", advice=call.as_string(conn) + ";")
    read = " ".join(
        ["SELECT * FROM", quoted, *(["WHERE", view.condition] if view.condition else [])]
    )
    notes = ["the same rows"]
    if view.grouped:
        notes.append("for parameters of the column's own type")
    if view.ordered:
        notes.append("in the order of an ORDER BY that you add")
    yield row("read", name, ", ".join(notes), advice=read + ";")
    if view.keys:
        keys = ", ".join(dict.fromkeys(view.keys))
        index = sql.SQL("CALL headrace.create_index({}, {})").format(
            sql.Literal(quoted), sql.Literal(f"({keys})")
        )
        yield row("index", name, "finds them", advice=index.as_string(conn) + ";")
