"""Texts of queries: those of other dialects in SQL of Postgres, and how a long one is shown."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from headrace.errors import HeadraceError, UserError
from headrace.planner import Planned, PlanRequest, readings
from headrace.population.context import JobContext
from headrace.postgres.connect import Connection
from headrace.reading import CAVEATS
from headrace.sql.views import TIDY

WRITTEN: Final = "written"
"""The stage that has the query as it was written, where that was in another dialect."""
_SHORT: Final = 120
"""Characters of a line that is shown as it is."""


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


def in_postgres(context: JobContext, query: str, dialect: str | None) -> QueryText:
    """The query in SQL of Postgres.

    Raises:
        UserError: there is no such dialect, or the query cannot be said, with its position.
    """
    if dialect is None or dialect.lower() in ("postgres", "postgresql"):
        return QueryText(query)
    return QueryText(context.reader.translated(query, dialect), dialect.lower(), query)


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
