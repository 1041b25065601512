"""verify_view: compare a view's table with its query at one exact snapshot, while writes go on.

    tap ─► table at txid t ─► slot's snapshot at LSN L ─► query at L
            │                  batches end exactly at L (the tap cuts)
            └── + what was written from t to L (the tap) ── = ? ──┘

No writer and no view is blocked. The table is read at some txid, and the query at the exported
snapshot of a slot (exact to the transaction, E2). The rows that the engine wrote into the table in
between are added. So it ends under any load. Postgres computes the query; that of a large view is
computed by Headrace, from the tables of the same snapshot (``expected_rows``).

Rows are compared by their images: the text of the whole row under pinned settings. A query may
leave open which of several equal values it shows (the scale of a grouped numeric, the last digits
of a float sum); then differing images are compared again, by value. It may also leave open the
order in which aggregates see their rows; then they are compared by properties that no order changes
(``open_order``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import psycopg
import structlog
from psycopg import sql

from headrace import clock
from headrace.collections import plan
from headrace.counting import counted, noun
from headrace.errors import (
    PrivilegeError,
    TransientError,
    UndefinedError,
    UnsupportedError,
)
from headrace.planner.analyse.present import inlined
from headrace.population import names, rights, tables
from headrace.population.context import JobContext
from headrace.population.elsewhere import SourceSnapshots
from headrace.population.job import Job
from headrace.population.reader import prove
from headrace.population.snapshot import SnapshotRef
from headrace.postgres import tokens
from headrace.postgres.acting import become
from headrace.postgres.connect import Connection
from headrace.postgres.failures import as_headrace
from headrace.postgres.settings import EVALUATION, OUTPUT, PINNED_SETTINGS
from headrace.sink import table
from headrace.sql import progress, views, watched
from headrace.sql.verbs import VerifyView
from headrace.sql.views import StoredView, ViewRow
from headrace.types import FIXED, NUMERIC
from headrace.views import boundary, clocks, expected_rows, open_order, read_rights, row_images
from headrace.views.expected_rows import ExpectedRows
from headrace.views.open_order import Open
from headrace.views.pause import check_not_live

_log = structlog.get_logger(__name__)

ROWS_SHOWN: Final = 10_000
"""Maximum number of differing rows to return; the notice has their total number."""
_ATTEMPTS: Final = 4
_PAUSE_S: Final = 0.5


_ROWS_OF: Final = """
CREATE FUNCTION pg_temp.headrace_rows_of(pg_catalog.text)
RETURNS TABLE (image pg_catalog.text, weight int) LANGUAGE plpgsql SECURITY DEFINER
AS 'BEGIN RETURN QUERY EXECUTE $1; END'"""
_MAY_CALL: Final = "GRANT EXECUTE ON FUNCTION pg_temp.headrace_rows_of(pg_catalog.text) TO PUBLIC"


@dataclass(frozen=True, slots=True)
class _Subject:
    """The view to verify."""

    view: ViewRow
    canonical: str
    stored: StoredView
    physical: plan.PhysicalPlan
    table: sql.Identifier
    caller: str | None
    owns: bool
    """Whether the caller may see the view's query."""
    open: Open
    grouped: bool
    """Whether the query leaves some digits open."""
    sources: tuple[int, ...]
    """Tables that the query reads, directly or through views that feed it."""


def verify_view(context: JobContext, job: Job, request: VerifyView) -> dict[str, Any]:
    """Return differing rows: ``rows`` of (surplus, missing, contents); ``notices`` sum up.

    Raises:
        UndefinedError: 42P01, no such view, or its table is gone.
        PrivilegeError: the caller may not read the table, or the tables of the query.
        DefiniteFailure: 55000, the view does not run.
        UnsupportedError: its query calls functions with code of a user.
        PrerequisiteError: 55P03, transactions stay open, so there is no snapshot.
    """
    expected = None
    with job.connection(context.settings.source, what="verify") as conn:
        job.phase("planning")
        subject = _subject(context, job, conn, request)
        if subject.owns and not request.in_postgres:
            view, stored = subject.view, subject.stored
            expected = expected_rows.of_large(context, job, conn, view, stored, request.caller)
    with contextlib.nullcontext() if expected is None else expected.ready():
        return _attempts(context, job, subject, expected)


def _attempts(
    context: JobContext, job: Job, subject: _Subject, expected: ExpectedRows | None
) -> dict[str, Any]:
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with boundary.tapped(context, job, subject.view, attempt) as path:
                return _Proof(context, job, subject, path, attempt, expected).run()
        except psycopg.errors.InsufficientPrivilege as error:
            if subject.owns:
                raise as_headrace(error) from error
            raise PrivilegeError(
                f"permission denied for a table that view {subject.view.shown} reads"
            ) from error
        except psycopg.Error as error:
            job.check()
            raise as_headrace(error) from error
        except TransientError as error:
            # The attempt was disturbed, by a rewind or the restart of a process.
            job.check()
            if attempt == _ATTEMPTS:
                raise
            _log.info("verifying again", view=subject.view.shown, why=error.message)
            job.wait(_PAUSE_S)
    raise AssertionError("the last attempt returns or raises")


def _subject(context: JobContext, job: Job, conn: Connection, request: VerifyView) -> _Subject:
    view = names.find(conn, request.name, request.caller, request.settings)
    if view is None:
        raise UndefinedError(
            f'view "{request.name}" does not exist',
            hint="See headrace.list_views().",
            sqlstate="42P01",
        )
    check_not_live(context, job, view)
    owns = names.acts_for_owner(conn, view, request.caller)
    stored = views.stored(conn, view.id)
    if stored is None:
        raise read_rights.gone(view)
    name = read_rights.result_table(conn, view, request.caller, "verifying")
    read_rights.check_running(conn, view, owns=owns)
    if stored.canonical is None:
        raise UnsupportedError(f"view {view.shown} was created by an earlier version of headrace")
    _check_functions(conn, view)
    _check_trusted(view, stored.plan)
    rebuilt = plan.from_json(stored.plan)
    # Views of Headrace that it reads may be a txid behind: use their queries instead.
    query = inlined(conn, stored.canonical, stored.named)
    leaves = _left_open(conn, rebuilt)
    read = tuple(_tables_read(conn, rebuilt))
    return _Subject(view, query, stored, rebuilt, name, request.caller, owns, *leaves, read)


def _tables_read(conn: Connection, physical: plan.PhysicalPlan) -> Iterator[int]:
    yield from (source.table_oid for source in physical.sources)
    for feed in physical.feeds:
        view_id = views.of_table(conn, feed.table_oid)
        stored = None if view_id is None else views.stored(conn, view_id)
        if stored is not None:
            yield from _tables_read(conn, plan.from_json(stored.plan))


def _left_open(conn: Connection, physical: plan.PhysicalPlan) -> tuple[Open, bool]:
    """Return what a plan's query leaves open: columns by row order, and whether digits."""
    grouped = any(isinstance(node, _LOOSE) for node in physical.nodes)
    fed: dict[str, Open] = {}
    for feed in physical.feeds:
        view_id = views.of_table(conn, feed.table_oid)
        stored = None if view_id is None else views.stored(conn, view_id)
        if stored is not None:
            fed[feed.id], below = _left_open(conn, plan.from_json(stored.plan))
            grouped = grouped or below
    return open_order.trace(physical, fed), grouped


def _check_functions(conn: Connection, view: ViewRow) -> None:
    """Refuse code of users: it would run on a connection of the engine (E16)."""
    function = watched.user_function(conn, view.id)
    if function is not None:
        raise UnsupportedError(
            f"verifying a view that calls {function} is not supported",
            detail="User-defined code runs only where it has no rights.",
            hint=f"CALL headrace.resync_view({tokens.argument(view.shown)})"
            " says how many rows it had to change.",
        )


def _check_trusted(view: ViewRow, physical: Any) -> None:
    """Refuse types of users: their owner may add a check, a cast or a column at any time."""
    if any(rights.untrusted(physical)):
        raise UnsupportedError(
            f"verifying view {view.shown} is not supported: it computes with values of a"
            " user's type",
            detail="User-defined code runs only where it has no rights.",
            hint="Let a superuser own the type, or a member of Headrace's role, and create"
            " the view again.",
        )


_LOOSE: Final = (
    plan.ReduceSpec
    | plan.WindowSpec
    | plan.TopKSpec
    | plan.DistinctSpec
    | plan.UnionSpec
    | plan.SetOpSpec
    | plan.RecursiveSpec
)
"""Nodes after which the query leaves some digits open."""


class _Proof:
    """One attempt of a verification."""

    def __init__(
        self,
        context: JobContext,
        job: Job,
        subject: _Subject,
        path: Path,
        attempt: int,
        expected: ExpectedRows | None,
    ) -> None:
        """``path``: the tap's file; ``expected``: the rows, unless Postgres computes them."""
        self._expected = expected
        self._context = context
        self._job = job
        self._subject = subject
        self._path = path
        self._attempt = attempt
        self._dsn = context.settings.source
        schema = subject.physical.sink.schema
        self._oids = [field.oid for field in schema]
        self._instant = 0
        """The view's now() at the boundary, in microseconds since 2000-01-01."""
        # The view's own names may not be unique.
        self._columns = [f"a{n}" for n in range(len(schema))]
        self._open = subject.open
        self._elsewhere: SourceSnapshots | None = None

    def run(self) -> dict[str, Any]:
        job = self._job
        with (
            job.connection(self._dsn, what="verify") as before,
            job.connection(self._dsn, what="verify") as scratch,
        ):
            first = self._see_table(before)
            job.phase("snapshot")
            number = f"v{job.name.replace('-', '_')}_{self._attempt}"
            with boundary.snapshot_of(
                self._context, job, before, self._subject.sources, number
            ) as (snapshot, self._elsewhere, standing):
                standing.close()
                last = self._boundary(int(snapshot.ref.start_lsn))
                job.phase("verifying")
                self._prepare(scratch)
                self._read_pending(scratch, first, last)
                with job.connection(self._dsn, what="verify") as conn:
                    self._read_query(conn, scratch, snapshot.ref)
                if self._expected is not None:
                    self._expected.load(snapshot, self._elsewhere, self._instant)
                snapshot.check()
                if self._elsewhere is not None:
                    self._elsewhere.check()
            self._read_table(before, scratch)
            self._read_expected(scratch)
            return self._compare(scratch)

    # --- reading

    def _see_table(self, conn: Connection) -> int:
        """Begin the transaction that the table is read in; return the table's txid."""
        conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        txid = progress.written(conn, self._subject.view.id)
        if txid is None:
            raise UndefinedError(f"view {self._subject.view.shown} was dropped", sqlstate="42P01")
        return txid

    def _boundary(self, lsn: int) -> int:
        """Return the last txid before ``lsn``, once the table has everything before it."""
        subject = self._subject
        found = boundary.reached(
            self._context, self._job, subject.view.id, lsn, temporal=subject.physical.temporal
        )
        self._instant = found.instant
        return found.txid

    def _prepare(self, scratch: Connection) -> None:
        scratch.execute("CREATE TEMPORARY TABLE images (image text, weight bigint)")
        scratch.execute(
            sql.SQL("CREATE TEMPORARY TABLE typed ({}) AS {} WITH NO DATA").format(
                self._names(), table.shape(scratch, self._subject.physical.sink.schema)
            )
        )
        made: Any = scratch.execute("SELECT 'pg_temp.typed'::regclass::oid").fetchone()
        table.prove_types(scratch, int(made[0]), self._subject.physical.sink.schema)
        scratch.execute("CREATE TEMPORARY TABLE pending (txid bigint, weight bigint, LIKE typed)")
        scratch.execute("CREATE TEMPORARY TABLE expected (LIKE typed)")

    def _read_query(self, conn: Connection, scratch: Connection, ref: SnapshotRef) -> None:
        """Read the query's rows at the snapshot, evaluated under the view's settings.

        A name in the query may have become another object, with code of its owner. So the query
        runs inside a function of the caller, which has the caller's rights and cannot change its
        role. The function is created before the read transaction, which must not write: it would
        block new slots.

        Where Headrace computes the rows, Postgres returns none: it only checks that the caller may
        run the query.  As ``row_security`` is off, it refuses it if row security would hide rows.
        """
        timed = self._query(conn)
        with conn.transaction():
            self._become_caller(conn)
            conn.execute(_ROWS_OF)
            conn.execute(_MAY_CALL)
        fills = self._elsewhere if self._expected is None else None
        access = "READ ONLY" if fills is None else "READ WRITE"
        conn.execute(f"BEGIN ISOLATION LEVEL REPEATABLE READ {access}")
        conn.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(ref.name)))
        prove(conn, ref)
        if fills is not None:
            fills.fill(conn)
        captured = {k.lower(): v for k, v in self._subject.stored.settings.items()}
        for name in EVALUATION:
            if (value := captured.get(name.lower())) is not None:
                conn.execute("SELECT set_config(%s, %s, true)", (name, value))
        # set_config is volatile and depends on all of q: every value exists before the switch.
        pinned = sql.SQL(", ").join(
            sql.SQL("set_config({}, {}, true)").format(
                sql.Literal(name), sql.Literal(PINNED_SETTINGS[name])
            )
            for name in OUTPUT
        )
        query = sql.SQL(
            "WITH q ({names}) AS MATERIALIZED ({query}),"
            " s AS MATERIALIZED (SELECT c, {pinned}"
            " FROM (SELECT count(*) AS c FROM q OFFSET 0) k)"
            " SELECT {image}, -1 FROM s CROSS JOIN q WHERE s.c >= 0 {limit}"
        ).format(
            names=self._names(),
            query=sql.SQL(timed),
            pinned=pinned,
            image=row_images.image("q", self._columns),
            limit=sql.SQL("" if self._expected is None else "LIMIT 0"),
        )
        statement = sql.SQL("COPY (SELECT * FROM pg_temp.headrace_rows_of({})) TO STDOUT").format(
            sql.Literal(query.as_string(conn))
        )
        _pump(conn, statement, scratch)
        conn.execute("ROLLBACK")

    def _read_table(self, conn: Connection, scratch: Connection) -> None:
        """Read the table's rows in the transaction that ``_see_table`` began."""
        view = self._subject.view
        tables.hold(conn, self._subject.table, view.result_oid, read_rights.gone(view))
        self._become_caller(conn)
        statement = sql.SQL("COPY (SELECT {}, 1 FROM {} AS t ({})) TO STDOUT").format(
            row_images.image("t", self._columns), self._subject.table, self._names()
        )
        _pump(conn, statement, scratch)
        conn.execute("ROLLBACK")

    def _read_pending(self, scratch: Connection, first: int, last: int) -> None:
        """Read the rows written into the table after txid ``first``, up to ``last``; end the tap.

        The query may take long, and the tap's file would grow meanwhile.
        """
        with (
            self._path.open("rb") as file,
            scratch.cursor() as cursor,
            cursor.copy("COPY pending FROM STDIN") as copy,
        ):
            # The file may end in the middle of a row that is being written after the boundary.
            left = b""
            while piece := file.read(1 << 20):
                whole, _, left = (left + piece).rpartition(b"\n")
                if whole:
                    copy.write(whole + b"\n")
        scratch.execute(
            sql.SQL(
                "INSERT INTO images SELECT {}, p.weight FROM pending p"
                " WHERE p.txid > {} AND p.txid <= {}"
            ).format(row_images.image("p", self._columns), first, last)
        )
        scratch.execute("DROP TABLE pending")
        boundary.untap(self._context, self._job)

    def _read_expected(self, scratch: Connection) -> None:
        """Read the rows that Headrace has computed."""
        if self._expected is None:
            return
        self._expected.copy(scratch, sql.Identifier("expected"))
        scratch.execute(
            sql.SQL("INSERT INTO images SELECT {}, -1 FROM expected e").format(
                row_images.image("e", self._columns)
            )
        )

    def _query(self, conn: Connection) -> str:
        query, caller = self._subject.canonical, self._subject.caller
        if not self._subject.physical.temporal:
            return query
        instant = clock.from_postgres(self._instant)
        return self._context.planners.call(conn, caller, query, _at, query, instant)

    def _become_caller(self, conn: Connection) -> None:
        if self._subject.caller is not None:
            become(conn, self._subject.caller)

    # --- comparing

    def _compare(self, scratch: Connection) -> dict[str, Any]:
        self._job.phase("comparing")
        scratch.execute(
            "CREATE TEMPORARY TABLE differing AS SELECT image, sum(weight)::bigint AS n"
            " FROM images GROUP BY image HAVING sum(weight) <> 0"
        )
        open_rows = self._settle_equal_values(scratch)
        total: Any = scratch.execute(
            "SELECT count(*), coalesce(sum(greatest(n, 0)), 0),"
            " coalesce(sum(greatest(-n, 0)), 0) FROM differing"
        ).fetchone()
        rows = scratch.execute(
            'SELECT greatest(n, 0), greatest(-n, 0), image COLLATE "C" FROM differing'
            " ORDER BY 3 LIMIT %s",
            (ROWS_SHOWN,),
        ).fetchall()
        if rows and self._open.decides:
            raise UnsupportedError(
                f"view {self._subject.view.shown} cannot be compared with its query",
                detail="Its result depends on the order in which aggregates read their rows,"
                " which the query does not define.",
                hint="Give the aggregates an ORDER BY over a key.",
            )
        notices = [] if self._expected is None else [self._expected.notice()]
        if open_rows:
            notices.append(open_rows)
        if total[0] > len(rows):
            notices.append(
                f"{len(rows)} of {total[0]} differing rows are shown: {counted(total[1], 'row')}"
                f" too many in the table, {total[2]} missing"
            )
        return {"rows": [list(row) for row in rows], "notices": notices}

    def _settle_equal_values(self, scratch: Connection) -> str:
        """Pair surplus and missing rows that are equal as far as the query determines them.

        Without grouping every digit is determined, and nothing is done. Return a notice about
        columns that were not compared completely, or "".
        """
        grouped = self._subject.grouped
        loose = [c for c, o in self._typed if o == NUMERIC]
        unsure = [c for c, m in zip(self._columns, self._open.marks, strict=True) if m]
        floats = [
            (c, row_images.CLOSE[o])
            for c, o in self._typed
            if o in row_images.CLOSE and c not in unsure
        ]
        ranked = self._ranked(scratch) if grouped else {}
        if not grouped or not (loose or floats or unsure or ranked):
            return ""
        keys: list[sql.Composable] = [
            sql.SQL("trim_scale({})::text").format(row_images.field(c)) if o == NUMERIC
            else sql.Identifier("d", ranked[c]) if c in ranked
            else row_images.field(c)  # no cast: it could be a user's
            for c, o in self._typed
            if o not in row_images.CLOSE and c not in unsure
        ]  # fmt: skip
        keys += self._open.keys([row_images.field(c) for c in self._columns])
        order: list[sql.Composable] = [row_images.field(c) for c, _ in floats]
        near: list[sql.Composable] = [row_images.near(c, close) for c, close in floats]
        scratch.execute(
            sql.SQL(
                "CREATE TEMPORARY TABLE paired AS WITH one AS ("
                " SELECT d.image, d.n > 0 AS much, d.v, row_number() OVER ("
                "  PARTITION BY d.n > 0, ROW({keys})::text ORDER BY {order}) AS place,"
                "  ROW({keys})::text AS key"
                "  FROM (SELECT e.*{ranks} FROM"
                "   (SELECT image, n, image::typed AS v FROM differing) e) d"
                "  CROSS JOIN LATERAL generate_series(1, abs(d.n)))"
                " SELECT x.image AS much, y.image AS little,"
                "  ROW({mine})::text <> ROW({theirs})::text AS unsure"
                "  FROM one x JOIN one y"
                " ON x.key = y.key AND x.place = y.place AND x.much AND NOT y.much"
                " WHERE {near}"
            ).format(
                keys=sql.SQL(", ").join(keys),
                ranks=sql.SQL("").join(
                    sql.SQL(", dense_rank() OVER (ORDER BY (e.v).{}) AS {}").format(
                        sql.Identifier(column), sql.Identifier(rank)
                    )
                    for column, rank in ranked.items()
                ),
                order=sql.SQL(", ").join([*order, sql.SQL("image")]),
                near=sql.SQL(" AND ").join([*near, sql.SQL("true")]),
                mine=row_images.fields("x", unsure),
                theirs=row_images.fields("y", unsure),
            )
        )
        scratch.execute(
            "UPDATE differing d SET n = d.n - p.n FROM (SELECT image, sum(n) AS n FROM ("
            " SELECT much AS image, 1 AS n FROM paired UNION ALL SELECT little, -1"
            " FROM paired) u GROUP BY image) p WHERE p.image = d.image"
        )
        scratch.execute("DELETE FROM differing WHERE n = 0")
        row: Any = scratch.execute("SELECT count(*) FROM paired WHERE unsure").fetchone()
        return self._told(int(row[0]))

    def _ranked(self, scratch: Connection) -> dict[str, str]:
        """Return columns of types whose equal values may look different, and a name for each rank.

        For example intervals, jsonb, and arrays of numerics. Types without an order are left out.
        """
        out = {}
        for number, (column, oid) in enumerate(self._typed):
            if oid in FIXED or oid == NUMERIC or oid in row_images.CLOSE:
                continue
            order = sql.SQL("SELECT rank() OVER (ORDER BY (NULL::typed).{})")
            with contextlib.suppress(psycopg.errors.UndefinedFunction), scratch.transaction():
                scratch.execute(order.format(sql.Identifier(column)))
                out[column] = f"rank{number}"
        return out

    def _told(self, count: int) -> str:
        """Return the notice that ``count`` rows differ in what the query leaves open."""
        if not count:
            return ""
        fields = self._subject.physical.sink.schema
        how = []
        for kind, words in _HOW.items():
            named = [f'"{fields[i].name}"' for i in self._open.places(kind)]
            if named:
                how.append(f"{words} {', '.join(named)}")
        return (
            f"{counted(count, 'row')} {noun(count, 'differs', 'differ')} only in an order that the query does not define; compared:"
            f" {' and '.join(how)}"
        )

    @property
    def _typed(self) -> list[tuple[str, int]]:
        return list(zip(self._columns, self._oids, strict=True))

    def _names(self) -> sql.Composed:
        return sql.SQL(", ").join(map(sql.Identifier, self._columns))


_HOW: Final = {
    open_order.ELEMENTS: "the elements of",
    open_order.CHARACTERS: "the characters of",
    open_order.NOTHING: "nothing of",
}


def _at(_: Connection, query: str, instant: datetime) -> str:
    return clocks.at(query, instant)


def _pump(conn: Connection, statement: sql.Composed, scratch: Connection) -> None:
    """Copy the rows of a COPY TO into ``images``.

    The COPY into the target begins with the first piece. Earlier, its writing transaction would
    block new slots while the query runs.
    """
    with conn.cursor() as cursor, cursor.copy(statement) as out:
        first = out.read()
        if not first:
            return
        with scratch.cursor() as into, into.copy("COPY images FROM STDIN") as copy:
            copy.write(first)
            while piece := out.read():
                copy.write(piece)
