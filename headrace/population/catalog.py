"""Storage of a planned view in the catalog."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import psycopg

from headrace.collections.plan import to_json
from headrace.errors import DuplicateError, UndefinedError
from headrace.planner import Planned, TableRef
from headrace.planner.graph import plain
from headrace.population.names import ViewName
from headrace.postgres.connect import Connection
from headrace.sql import reads, views
from headrace.sql.view_spec import ViewSpec
from headrace.sql.views import StoredPlan


@dataclass(frozen=True, slots=True)
class NewView:
    """A planned view that is not populated yet."""

    target: ViewName
    query: str
    caller: str | None
    owner: int
    """OID of the role that the view was planned for."""
    options: ViewSpec
    planned: Planned


def insert(conn: Connection, view: NewView) -> int:
    """Register a view that is being populated; return its ID.

    Raises:
        DuplicateError: 42P07, the name was taken meanwhile.
        UndefinedError: the caller's role does not exist.
    """
    target = view.target
    try:
        with conn.transaction():
            view_id = views.insert(
                conn,
                (target.schema, target.name),
                view.query,
                view.owner,
                view.options,
                _stored(view.planned),
            )
            if view_id is None:
                raise UndefinedError(f'role "{view.caller}" does not exist')
            _insert_reads(conn, view_id, view.planned)
    except psycopg.errors.UniqueViolation as error:
        raise DuplicateError(f'view "{target.name}" already exists', sqlstate="42P07") from error
    return view_id


def renew(
    conn: Connection,
    ids: tuple[int, int],
    planned: Planned,
    result_oid: int,
    query: str | None = None,
    *,
    owner: int | None = None,
) -> None:
    """Replace the view's ID (``ids``: old, new) and plan, so that the worker sees a new view.

    ``query``: its new text, if any.  ``owner``: OID of its new owner, if any.  Views that read it
    depend on its query, and read as its owner.
    """
    reads.forget(conn, ids[0])
    views.renew(conn, ids, _stored(planned), result_oid, query, owner)
    _insert_reads(conn, ids[1], planned)


def put_plan(conn: Connection, view_id: int, planned: Planned) -> None:
    """Store another plan of a view's query, with its explanations."""
    views.put_plan(conn, view_id, to_json(planned.physical))
    views.put_explain(conn, view_id, _explain(planned))


def rows_of(tables: Iterable[TableRef]) -> list[tuple[int, str, str]]:
    """Return (OID, schema, name) of each table, as stored in the catalog."""
    return [(t.oid, t.schema, t.name) for t in tables]


def _insert_reads(conn: Connection, view_id: int, planned: Planned) -> None:
    reads.insert_tables(conn, view_id, rows_of(planned.tables))
    reads.insert_uses(conn, view_id, planned.results)


def _explain(planned: Planned) -> dict[str, Any]:
    out: dict[str, Any] = {**planned.explain, views.GRAPHS: list(map(plain, planned.graphs))}
    if planned.lineage is not None:
        out[views.ORIGINS] = [
            {"column": name, "from": [asdict(origin) for origin in origins]}
            for name, origins in planned.lineage
        ]
    if planned.first_rows:
        out[views.FIRST_ROWS] = planned.first_rows
    return out


def _stored(planned: Planned) -> StoredPlan:
    return StoredPlan(
        to_json(planned.columns),
        to_json(planned.physical),
        _explain(planned),
        planned.settings,
        planned.canonical_sql,
        list(planned.named),
        dict(planned.parts),
    )
