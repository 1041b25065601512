"""Query texts: translation from other SQL dialects, and formatting of long texts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from headrace.errors import HeadraceError, UserError
from headrace.planner import Planned, PlanRequest, readings
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.postgres import acting
from headrace.postgres.connect import Connection
from headrace.reading import CAVEATS
from headrace.sql.views import TIDY

WRITTEN: Final = "written"
"""The stage with the original text of a query in another dialect."""
_SHORT: Final = 120
"""Maximum length in characters of a one-line query that is shown unformatted."""
_RESOLVE: Final = """
SELECT pg_catalog.array_agg(pg_catalog.to_regclass(n.name)::pg_catalog.oid::pg_catalog.int8
                            ORDER BY n.at)
  FROM pg_catalog.unnest(%s::pg_catalog.text[]) WITH ORDINALITY AS n(name, at)"""
_COLUMNS: Final = """
SELECT a.attrelid::int8, a.attname, coalesce(b.typname, t.typname)
  FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
  LEFT JOIN pg_type b ON b.oid = t.typbasetype AND t.typtype = 'd'
 WHERE a.attrelid = ANY (%s::int8[]::oid[]) AND a.attnum > 0 AND NOT a.attisdropped"""
"""For a column of a domain type, the query returns the base type."""


@dataclass(frozen=True, slots=True)
class QueryText:
    """A query in Postgres' SQL; ``written``: the original text, if it was in ``dialect``."""

    query: str
    dialect: str | None = None
    written: str = ""

    @property
    def notice(self) -> str | None:
        """The notice about a translation; None: the query was written in Postgres' SQL."""
        if self.dialect is None:
            return None
        caveat = CAVEATS.get(self.dialect)
        more = f"\n({caveat})" if caveat else ""
        return f"translated from dialect {self.dialect}:\n{self.query}{more}"

    @contextlib.contextmanager
    def speaking(self) -> Iterator[None]:
        """Mark errors as being about the translation, and remove their positions."""
        try:
            yield
        except UserError as error:
            if self.dialect is not None:
                error.position = None
                said = f"The message refers to the translated query: {' '.join(self.query.split())}"
                error.detail = f"{error.detail} {said}" if error.detail else said
            raise

    def noted(self, planned: Planned) -> Planned:
        """Return the plan with the original text added as a stage."""
        if self.dialect is None:
            return planned
        told = f"-- in dialect {self.dialect}\n{self.written}"
        return replace(planned, explain={**planned.explain, WRITTEN: told})


def in_postgres(
    context: JobContext, job: Job, asked: PlanRequest, dialect: str | None
) -> QueryText:
    """Return the query in Postgres' SQL.

    Raises:
        UserError: there is no such dialect, or the query has no exact translation (with the
            position), or a table that it names does not exist.
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
    """Return the column types of the named tables, resolved on the caller's search path.

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
    """Add a formatted text of a long query to the plan, if Postgres reads both texts alike.

    The query itself is planned in any case.
    """
    query = request.query
    if len(query) <= _SHORT and "\n" not in query.strip():
        return planned
    with contextlib.suppress(HeadraceError):
        read = context.reader.read(query)
        alike = context.planners.call(
            conn, request.caller, query, readings.alike, request, read.text
        )
        if alike:
            return replace(planned, explain={**planned.explain, TIDY: read.text})
    return planned
