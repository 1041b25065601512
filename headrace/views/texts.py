"""Texts of queries: those of other dialects in SQL of Postgres, and how a long one is shown."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from headrace.errors import HeadraceError, UserError
from headrace.planner import Planned, PlanRequest, readings
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.postgres import acting
from headrace.postgres.connect import Connection
from headrace.reading import CAVEATS
from headrace.sql.views import TIDY

WRITTEN: Final = "written"
"""The stage that has the query as it was written, where that was in another dialect."""
_SHORT: Final = 120
"""Characters of a line that is shown as it is."""
_RESOLVE: Final = """
SELECT pg_catalog.array_agg(pg_catalog.to_regclass(n.name)::pg_catalog.oid::pg_catalog.int8
                            ORDER BY n.at)
  FROM pg_catalog.unnest(%s::pg_catalog.text[]) WITH ORDINALITY AS n(name, at)"""
_COLUMNS: Final = """
SELECT a.attrelid::int8, a.attname, coalesce(b.typname, t.typname)
  FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
  LEFT JOIN pg_type b ON b.oid = t.typbasetype AND t.typtype = 'd'
 WHERE a.attrelid = ANY (%s::int8[]::oid[]) AND a.attnum > 0 AND NOT a.attisdropped"""
"""Of a domain the type below it."""


@dataclass(frozen=True, slots=True)
class QueryText:
    """A query in SQL of Postgres; ``written``: as it was in ``dialect``, if that is another."""

    query: str
    dialect: str | None = None
    written: str = ""

    @property
    def notice(self) -> str | None:
        """What its author is told of it before it is used; None: it is as he wrote it."""
        if self.dialect is None:
            return None
        caveat = CAVEATS.get(self.dialect)
        more = f"\n({caveat})" if caveat else ""
        return f"translated from dialect {self.dialect}:\n{self.query}{more}"

    @contextlib.contextmanager
    def speaking(self) -> Iterator[None]:
        """Errors that are of the translation say so: what was written has no such position."""
        try:
            yield
        except UserError as error:
            if self.dialect is not None:
                error.position = None
                said = f"It is said of the translation: {' '.join(self.query.split())}"
                error.detail = f"{error.detail} {said}" if error.detail else said
            raise

    def noted(self, planned: Planned) -> Planned:
        """The plan with what was written as a stage of it."""
        if self.dialect is None:
            return planned
        told = f"-- in dialect {self.dialect}\n{self.written}"
        return replace(planned, explain={**planned.explain, WRITTEN: told})


def in_postgres(
    context: JobContext, job: Job, asked: PlanRequest, dialect: str | None
) -> QueryText:
    """Return the query in SQL of Postgres.

    Raises:
        UserError: there is no such dialect, or the query has no exact translation, with its
            position; or a table that it names does not exist.
    """
    if dialect is None or dialect.lower() in ("postgres", "postgresql"):
        return QueryText(asked.query)
    named = context.reader.tables(asked.query, dialect)
    with job.connection(context.settings.source, what="builder") as conn, job.translating():
        columns = _column_types(conn, named, asked.caller, asked.settings)
    said = context.reader.translated(asked.query, dialect, columns)
    return QueryText(said, dialect.lower(), asked.query)


def _column_types(
    conn: Connection, named: list[str], caller: str | None, settings: dict[str, str]
) -> dict[str, dict[str, str]]:
    """The types of the columns of tables that are named as on the caller's search path.

    Raises:
        UserError: 42P01, there is no such table.
    """
    with conn.transaction(force_rollback=True):
        acting.act_as(conn, caller, settings)
        [found] = conn.execute(_RESOLVE, (named,)).fetchone() or ([],)
    missing = [name for name, oid in zip(named, found or [], strict=True) if oid is None]
    if missing:
        raise UserError(f"relation {missing[0]} does not exist", sqlstate="42P01")
    types: dict[int, dict[str, str]] = {}
    for oid, column, kind in conn.execute(_COLUMNS, (found or [],)).fetchall():
        types.setdefault(oid, {})[column] = kind
    return {name: types.get(oid, {}) for name, oid in zip(named, found or [], strict=True)}


def tidied(
    context: JobContext, conn: Connection, request: PlanRequest, planned: Planned
) -> Planned:
    """The plan with the query in lines, where it is long and Postgres reads these as it does it.

    What is planned is the query itself, whatever comes of this.
    """
    query = request.query
    if len(query) <= _SHORT and "\n" not in query.strip():
        return planned
    with contextlib.suppress(HeadraceError):
        read = context.reader.read(query)
        mine = readings.bound(conn, request)
        if readings.same(conn, request, mine, read.text) is None:
            return replace(planned, explain={**planned.explain, TIDY: read.text})
    return planned


def without_dialect(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a view whose query is one of Postgres by now."""
    return {name: value for name, value in options.items() if name != "dialect"}
