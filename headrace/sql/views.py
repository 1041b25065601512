"""Rows of ``headrace.views``: the definition of each view; ``sql/states.py`` has its state."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg.rows import class_row, dict_row
from psycopg.types.json import Jsonb

from headrace.postgres.statements import quoted
from headrace.sql.status import BORN, UNFINISHED, Status
from headrace.sql.view_spec import ViewSpec

Connection = psycopg.Connection[Any]

_ROW: Final = """
v.id, v.schema_name AS schema, v.view_name AS name, v.owner::oid::bigint,
(SELECT o.rolname FROM pg_roles o WHERE o.oid = v.owner) AS owner_name, v.status,
v.result_oid::bigint"""
_FIND: Final = f"""
SELECT {_ROW} FROM headrace.views v
 WHERE v.view_name = %s AND v.schema_name = ANY(%s::name[])
 ORDER BY array_position(%s::text[], v.schema_name::text) LIMIT 1"""  # noqa: S608  constants
_OF_ID: Final = f"SELECT {_ROW} FROM headrace.views v WHERE v.id = %s"  # noqa: S608  constants
_OF_INDEX: Final = f"""
SELECT {_ROW}, c.oid::bigint AS index_oid, n.nspname AS index_schema, i.indisprimary AS primary_key
  FROM headrace.views v JOIN pg_index i ON i.indrelid = v.result_oid
  JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relname = %s AND n.nspname = ANY(%s::name[])
 ORDER BY array_position(%s::text[], n.nspname::text) LIMIT 1"""  # noqa: S608  constants
_WORKED: Final = """
SELECT v.id, v.schema_name, v.view_name, v.result_oid::bigint, v.plan, v.settings, v.start_lsn::text,
       v.status, v.options, v.owner::text, v.placed_parts AS parts
  FROM headrace.views v WHERE v.id = %(id)s OR %(id)s IS NULL AND v.status = ANY (%(some)s)
 ORDER BY v.id"""
_INSERT: Final = """
INSERT INTO headrace.views (schema_name, view_name, query, owner, options, block, status,
       columns, plan, explain, settings, canonical, named, placed_parts)
VALUES (%s, %s, %s, (SELECT r.oid FROM pg_roles r WHERE r.oid = %s::bigint::oid),
       %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) RETURNING id, owner IS NOT NULL"""
_RENEW: Final = """
UPDATE headrace.views SET id = %s, revision = revision + %s, query = coalesce(%s, query),
       result_oid = %s, owner = coalesce(%s::bigint::oid, owner),
       columns = %s, plan = %s, explain = %s || CASE WHEN %s THEN '{}' ELSE jsonb_strip_nulls(
           jsonb_build_object('written', explain -> 'written', 'tidy', explain -> 'tidy')) END, settings = %s, canonical = %s, named = %s,
       placed_parts = %s
 WHERE id = %s"""
_STORED: Final = """
SELECT query, canonical, coalesce(named, '[]') AS named, options, settings, plan, explain,
       schema_name AS schema, view_name AS name, placed_parts AS parts
  FROM headrace.views WHERE id = %s"""
_TAKE_UNFINISHED: Final = """
DELETE FROM headrace.views v WHERE v.status = ANY (%s)
RETURNING v.id, v.schema_name AS schema, v.view_name AS name, v.query, v.canonical,
          (SELECT r.rolname FROM pg_catalog.pg_roles r WHERE r.oid = v.owner) AS owner,
          v.options, v.settings, v.block"""
_SEEN: Final = """
SELECT v.id, quote_ident(v.schema_name) || '.' || quote_ident(v.view_name), m.ours
  FROM pg_roles r
 CROSS JOIN LATERAL (SELECT r.rolsuper OR pg_has_role(r.oid, current_user, 'MEMBER') AS ours) m
  LEFT JOIN headrace.views v ON m.ours OR EXISTS (
       SELECT FROM pg_roles o WHERE o.oid = v.owner AND pg_has_role(r.oid, o.oid, 'USAGE'))
 WHERE r.rolname = coalesce(%(caller)s::name, current_user)"""


GRAPHS: Final = "graphs"
"""Key in ``explain``, beside the stages' texts: a list of their graphs (``planner/graph.py``)."""

ORIGINS: Final = "origins"
"""Key in ``explain``: the origins of each column, in order, for ``sql/lineage.sql``."""

FIRST_ROWS: Final = "first_rows"
"""Key in ``explain``: where the first rows of a view over other views come from, and why."""

TIDY: Final = "tidy"
"""Key in ``explain``: the formatted query, if it is known to be equivalent (``list_views``)."""


@dataclass(frozen=True, slots=True)
class ViewRow:
    """View of the catalog."""

    id: int
    schema: str
    name: str
    owner: int | None
    """OID of the owner's role."""
    owner_name: str | None
    """None: the role no longer exists."""
    status: Status
    result_oid: int | None

    @property
    def shown(self) -> str:
        """Its name for messages."""
        return quoted(self.schema, self.name)


@dataclass(frozen=True, slots=True)
class IndexRow(ViewRow):
    """View, and an index of its table."""

    index_oid: int
    index_schema: str
    primary_key: bool
    """Whether it is the table's primary key."""


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """Result of planning a query, as JSON."""

    columns: Any
    plan: Any
    explain: dict[str, Any]
    settings: dict[str, str]
    canonical: str
    named: list[dict[str, Any]]
    parts: dict[str, str]

    def values(self) -> tuple[Any, ...]:
        """Return the values of its columns, in this order."""
        return (
            *(Jsonb(self.columns), Jsonb(self.plan), Jsonb(self.explain)),
            *(Jsonb(self.settings), self.canonical, Jsonb(self.named), Jsonb(self.parts)),
        )


@dataclass(frozen=True, slots=True)
class StoredView:
    """View as it was created."""

    query: str
    canonical: str | None
    """None: a version created it that did not store enough."""
    named: list[dict[str, Any]]
    """Relations that ``canonical`` names, by OID."""
    options: ViewSpec
    settings: dict[str, str]
    plan: Any
    explain: dict[str, Any] | None
    schema: str
    name: str
    parts: dict[str, str]


@dataclass(frozen=True, slots=True)
class WorkedView:
    """View as the worker needs it."""

    id: int
    schema_name: str
    view_name: str
    result_oid: int | None
    plan: Any
    settings: dict[str, Any] | None
    start_lsn: str | None
    status: Status
    options: dict[str, Any]
    owner: str | None
    parts: dict[str, str]


@dataclass(frozen=True, slots=True)
class Unfinished:
    """View whose population has died."""

    id: int
    schema: str
    name: str
    query: str
    canonical: str | None
    owner: str | None
    """None: the role no longer exists."""
    options: dict[str, Any]
    settings: dict[str, str]
    block: bool


def installed(conn: Connection) -> bool:
    """Return whether a catalog exists."""
    row = conn.execute("SELECT pg_catalog.to_regclass('headrace.views') IS NOT NULL").fetchone()
    return bool(row and row[0])


def exists(conn: Connection, view_id: int) -> bool:
    """Return whether the view exists."""
    row = conn.execute("SELECT 1 FROM headrace.views WHERE id = %s", (view_id,))
    return row.fetchone() is not None


def ids(conn: Connection, *, finished: bool = False) -> set[int]:
    """Return the ids of all views; ``finished``: of those that have a table."""
    rows = conn.execute(
        "SELECT id FROM headrace.views WHERE NOT status = ANY (%s)",
        (list(UNFINISHED) if finished else [],),
    ).fetchall()
    return {int(row[0]) for row in rows}


@dataclass(frozen=True, slots=True)
class Seen:
    """Views of which a role may see everything."""

    names: dict[int, str]
    """Qualified names, by id."""
    everything: bool
    """Whether it is a member of our role: then it also sees facts that belong to no view."""


def seen(conn: Connection, caller: str | None) -> Seen:
    """Return the views whose owner ``caller`` acts for, or all for members of our role.

    ``caller``: None means our role.
    """
    rows = conn.execute(_SEEN, {"caller": caller}).fetchall()
    names = {int(number): str(name) for number, name, _ in rows if number is not None}
    return Seen(names, bool(rows and rows[0][2]))


def tables(conn: Connection) -> list[tuple[str, str]]:
    """Return schema and name of the existing result tables."""
    return conn.execute(
        "SELECT n.nspname, c.relname FROM headrace.views v"
        " JOIN pg_catalog.pg_class c ON c.oid = v.result_oid"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace ORDER BY 1, 2"
    ).fetchall()


def count_of(conn: Connection, role: str) -> int:
    """Return how many views a role owns."""
    row: Any = conn.execute(
        "SELECT count(*) FROM headrace.views"
        " WHERE owner = (SELECT oid FROM pg_roles WHERE rolname = %s)",
        (role,),
    ).fetchone()
    return int(row[0])


def of_others_in_group(conn: Connection, group: str, owner: int) -> list[ViewSpec]:
    """Return the options of the views in a commit group that ``owner`` does not own."""
    rows = conn.execute(
        "SELECT options FROM headrace.views WHERE options ->> 'commit_group' = %s"
        " AND owner <> %s::bigint::oid",
        (group, owner),
    )
    return [ViewSpec.of(options) for (options,) in rows.fetchall()]


def is_taken(conn: Connection, schema: str, name: str) -> bool:
    """Return whether a view of that name exists whose population is finished."""
    row = conn.execute(
        "SELECT FROM headrace.views WHERE schema_name = %s AND view_name = %s"
        " AND NOT status = ANY (%s)",
        (schema, name, list(UNFINISHED)),
    ).fetchone()
    return row is not None


def find(conn: Connection, name: str, path: Sequence[str]) -> ViewRow | None:
    """Return the view of that name in the first schema of ``path`` that has one."""
    with conn.cursor(row_factory=class_row(ViewRow)) as cursor:
        return cursor.execute(_FIND, (name, path, path)).fetchone()


def of_id(conn: Connection, view_id: int) -> ViewRow | None:
    """Return the view with that id, or None."""
    with conn.cursor(row_factory=class_row(ViewRow)) as cursor:
        return cursor.execute(_OF_ID, (view_id,)).fetchone()


def of_table(conn: Connection, table_oid: int) -> int | None:
    """Return the id of the view with that result table, or None."""
    row = conn.execute(
        "SELECT v.id FROM headrace.views v WHERE v.result_oid = %s::bigint::oid", (table_oid,)
    ).fetchone()
    return None if row is None else int(row[0])


def find_index(conn: Connection, name: str, path: Sequence[str]) -> IndexRow | None:
    """Return the index of that name on the table of a view, as ``find``."""
    with conn.cursor(row_factory=class_row(IndexRow)) as cursor:
        return cursor.execute(_OF_INDEX, (name, path, path)).fetchone()


def stored(conn: Connection, view_id: int) -> StoredView | None:
    """Return the view as it was created; None: it was dropped."""
    with conn.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(_STORED, (view_id,)).fetchone()
    return None if row is None else StoredView(**row | {"options": ViewSpec.of(row["options"])})


def worked(
    conn: Connection, view_id: int | None = None, some: Collection[Status] = ()
) -> list[WorkedView]:
    """Return one view, or without ``view_id`` those of ``some`` statuses, in order of id."""
    with conn.cursor(row_factory=class_row(WorkedView)) as cursor:
        values = {"id": view_id, "some": list(some)}
        return cursor.execute(_WORKED, values).fetchall()


def queries(conn: Connection) -> dict[int, tuple[str, str | None]]:
    """Return the query of each view by id, and the SQLSTATE for which it has stopped."""
    rows = conn.execute("SELECT id, query, sqlstate FROM headrace.views").fetchall()
    return {int(number): (query, sqlstate) for number, query, sqlstate in rows}


def next_id(conn: Connection) -> int:
    """Return an id that no view has had."""
    row: Any = conn.execute(
        "SELECT nextval(pg_get_serial_sequence('headrace.views', 'id'))"
    ).fetchone()
    return int(row[0])


def insert(
    conn: Connection,
    name: tuple[str, str],
    query: str,
    owner: int,
    options: ViewSpec,
    planned: StoredPlan,
) -> int | None:
    """Insert a new view that is being populated; return its id, None if no role ``owner`` exists.

    Raises:
        psycopg.errors.UniqueViolation: the name is taken.
    """
    given = Jsonb(dict(options.given))
    values = (*name, query, owner, given, options.block, BORN, *planned.values())
    row: Any = conn.execute(_INSERT, values).fetchone()
    return int(row[0]) if row[1] else None


def renew(
    conn: Connection,
    ids: tuple[int, int],
    planned: StoredPlan,
    result_oid: int,
    query: str | None,
    owner: int | None,
) -> None:
    """Give a view another id (old, new), plan and table; another query and owner, if any."""
    another = int(query is not None or owner is not None)
    made = planned.values()
    # The stored texts of the query do not survive another query.
    made = (*made[:3], query is not None, *made[3:])
    values = (ids[1], another, query, result_oid, owner, *made, ids[0])
    conn.execute(_RENEW, values)


def rename(conn: Connection, view_id: int, schema: str, name: str) -> bool:
    """Give a view another schema or name; return False if it was dropped."""
    renamed = "UPDATE headrace.views SET schema_name = %s, view_name = %s WHERE id = %s"
    return conn.execute(renamed, (schema, name, view_id)).rowcount == 1


def put_options(conn: Connection, view_id: int, before: ViewSpec, after: ViewSpec) -> None:
    """Store what differs between the options ``before`` and ``after`` of a view."""
    gone = [name for name in before.given if name not in after.given]
    given = {k: v for k, v in after.given.items() if before.given.get(k) != v}
    conn.execute(
        "UPDATE headrace.views SET options = (options - %s::text[]) || %s WHERE id = %s",
        (gone, Jsonb(given), view_id),
    )


def set_latency(conn: Connection, view_id: int, latency_ms: int) -> None:
    """Store how late a view's table may be."""
    conn.execute(
        "UPDATE headrace.views SET options = options"
        " || pg_catalog.jsonb_build_object('latency_ms', %s::int) WHERE id = %s",
        (latency_ms, view_id),
    )


def set_placement(
    conn: Connection, view_id: int, placement: object, parts: dict[str, str] | None = None
) -> None:
    """Store the placement of a view; without ``parts`` it is whole."""
    conn.execute(
        "UPDATE headrace.views SET options = options"
        " || pg_catalog.jsonb_build_object('placement', %s::jsonb), placed_parts = %s WHERE id = %s",
        (Jsonb(placement), Jsonb(parts or {}), view_id),
    )


def put_plan(conn: Connection, view_id: int, plan: object) -> None:
    """Store another plan of a view."""
    conn.execute("UPDATE headrace.views SET plan = %s WHERE id = %s", (Jsonb(plan), view_id))


def put_explain(conn: Connection, view_id: int, explain: dict[str, Any]) -> None:
    """Store other explanations of a view's plan."""
    conn.execute("UPDATE headrace.views SET explain = %s WHERE id = %s", (Jsonb(explain), view_id))


def latency_ms(conn: Connection, view_id: int) -> int:
    """Return how late its table may be; 0: as early as possible."""
    row = conn.execute(
        "SELECT coalesce((options ->> 'latency_ms')::int, 0) FROM headrace.views WHERE id = %s",
        (view_id,),
    ).fetchone()
    return int(row[0]) if row else 0


def lock(conn: Connection, view_id: int) -> bool:
    """Lock the row: no change of it, and no new view that reads the view; False: it was dropped."""
    row = conn.execute("SELECT FROM headrace.views WHERE id = %s FOR UPDATE", (view_id,))
    return row.fetchone() is not None


def hold(conn: Connection, view_id: int) -> tuple[int | None] | None:
    """Lock the view against drop and renewal; return its table's OID.  None: it was dropped."""
    return conn.execute(
        "SELECT result_oid::bigint FROM headrace.views WHERE id = %s FOR KEY SHARE", (view_id,)
    ).fetchone()


def delete(conn: Connection, view_id: int) -> None:
    """Delete a view, with its progress and the rows of what it reads."""
    conn.execute("DELETE FROM headrace.views WHERE id = %s", (view_id,))


def delete_stale(conn: Connection, schema: str, name: str, live: Collection[int]) -> None:
    """Delete a view of that name whose population died."""
    conn.execute(
        "DELETE FROM headrace.views WHERE status = ANY (%s)"
        " AND schema_name = %s AND view_name = %s AND NOT id = ANY(%s::bigint[])",
        (list(UNFINISHED), schema, name, list(live)),
    )


def take_unfinished(conn: Connection) -> list[Unfinished]:
    """Delete every view whose population died, and return them."""
    with conn.cursor(row_factory=class_row(Unfinished)) as cursor:
        return cursor.execute(_TAKE_UNFINISHED, (list(UNFINISHED),)).fetchall()
