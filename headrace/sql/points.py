"""Rows of ``headrace.points``: the connection points of views (A-25, A-26).

A point is known by a name of its own and follows its view, whatever id or name that gets.

* Invariant 1: a view with a point that needs a history keeps one at least that long.
* Invariant 2: while a point has a storage key, some index of the view's table begins with it.

Who writes either side of them holds the row of the view (``views.lock``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg

from headrace.errors import UndefinedError

Connection = psycopg.Connection[Any]

# Valid for every query: whole, ordered, and known to the planner.
_SERVING: Final = """
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
WHERE i.indrelid = {table} AND a.attname = {column}
  AND m.amname = 'btree' AND i.indisvalid AND i.indpred IS NULL"""
_SERVES: Final = f"SELECT EXISTS (SELECT {_SERVING.format(table='%s', column='%s')})"
_OF_POINT: Final = _SERVING.format(table="v.result_oid", column="p.storage_key")
_UNSERVED: Final = f"""
SELECT p.name FROM headrace.points p JOIN headrace.views v ON v.id = p.view_id
 WHERE v.id = %s AND p.storage_key IS NOT NULL AND NOT EXISTS (SELECT {_OF_POINT})
 ORDER BY 1 LIMIT 1"""  # noqa: S608  constants

# By what they reach back to, as the purge computes it: to compare intervals takes a month for 30
# days, and February has 28.  The days of all years that there are: they repeat after 400 years;
# those that lie ahead, since a moment before Postgres' first cannot be named.
_DAYS: Final = "generate_series(timestamp '2800-01-01', '3199-12-31', '1 day') d"
_LESS: Final = f"EXISTS (SELECT FROM {_DAYS} WHERE d - {{keep}} > d - {{need}})"
_POINTS: Final = """
SELECT p.name, p.view_id, p.keep::text, p.storage_key::text FROM headrace.points p"""
_NEEDING_MORE: Final = f"""{_POINTS}
 WHERE p.view_id = %(view)s AND p.keep IS NOT NULL
   AND {_LESS.format(keep="coalesce(%(keep)s::interval, '0')", need="p.keep")}
 ORDER BY p.keep DESC, p.name LIMIT 1"""
_ENOUGH: Final = f"""
SELECT CASE WHEN h.keep IS NULL THEN n.keep
            WHEN NOT {_LESS.format(keep="h.keep", need="n.keep")} THEN h.keep
            WHEN NOT {_LESS.format(keep="n.keep", need="h.keep")} THEN n.keep
            ELSE (SELECT max(d - least(d - h.keep, d - n.keep)) FROM {_DAYS}) END::text
  FROM (SELECT %(need)s::interval AS keep) n
  LEFT JOIN headrace.histories h ON h.view_id = %(view)s"""  # noqa: S608  constants


@dataclass(frozen=True, slots=True)
class Point:
    """A connection point."""

    name: str
    view_id: int
    keep: str | None
    """For how long it needs changes, an interval; None: it needs none."""
    storage_key: str | None
    """A column of the view."""


def insert(conn: Connection, point: Point) -> bool:
    """Enter a point; False: the name is taken."""
    return (
        conn.execute(
            "INSERT INTO headrace.points (name, view_id, keep, storage_key)"
            " VALUES (%s, %s, %s::interval, %s) ON CONFLICT (name) DO NOTHING",
            (point.name, point.view_id, point.keep, point.storage_key),
        ).rowcount
        > 0
    )


def find(conn: Connection, name: str) -> Point | None:
    """The point called ``name``."""
    row = conn.execute(f"{_POINTS} WHERE p.name = %s", (name,)).fetchone()
    return None if row is None else Point(*row)


def unknown(name: str) -> UndefinedError:
    """That there is no point called ``name``."""
    return UndefinedError(
        f'connection point "{name}" does not exist', hint="See headrace.connection_points()."
    )


def of_view(conn: Connection, view_id: int) -> list[Point]:
    """The points of a view, by name."""
    rows = conn.execute(f"{_POINTS} WHERE p.view_id = %s ORDER BY p.name", (view_id,))
    return [Point(*row) for row in rows]


def read_by(conn: Connection, view_id: int) -> list[Point]:
    """The points of the views that a view reads, by name."""
    rows = conn.execute(
        f"{_POINTS} WHERE EXISTS (SELECT FROM headrace.view_uses u JOIN headrace.views v"
        " ON v.result_oid = u.result_oid WHERE u.view_id = %s AND v.id = p.view_id)"
        " ORDER BY p.name",
        (view_id,),
    )
    return [Point(*row) for row in rows]


def view_of(conn: Connection, result_oid: int) -> int | None:
    """The id of the view with that table."""
    row = conn.execute(
        "SELECT v.id FROM headrace.views v WHERE v.result_oid = %s::bigint::oid", (result_oid,)
    ).fetchone()
    return None if row is None else int(row[0])


def fed(conn: Connection, name: str) -> list[str]:
    """The views that are fed from the point called ``name``, qualified and quoted."""
    rows = conn.execute(
        "SELECT format('%%I.%%I', v.schema_name, v.view_name) FROM headrace.views v"
        " WHERE v.options ->> 'from' = %s ORDER BY 1",
        (name,),
    )
    return [row[0] for row in rows]


def delete(conn: Connection, name: str) -> bool:
    """Forget a point; False: there was none."""
    return conn.execute("DELETE FROM headrace.points WHERE name = %s", (name,)).rowcount > 0


def needing_more(conn: Connection, view_id: int, keep: str | None) -> Point | None:
    """The point that needs most of the view's history, of those that ``keep`` may fall short of.

    ``keep``: an interval; None: no history at all.
    """
    row = conn.execute(_NEEDING_MORE, {"view": view_id, "keep": keep}).fetchone()
    return None if row is None else Point(*row)


def enough(conn: Connection, view_id: int, need: str) -> str:
    """The interval that reaches back as far as ``need`` does, and as the view's history does.

    One of the two, where it does so at any time of the year.
    """
    row = conn.execute(_ENOUGH, {"view": view_id, "need": need}).fetchone()
    assert row is not None, "what is needed is there, with a history or without"
    return str(row[0])


def has_column(conn: Connection, result_oid: int, column: str) -> bool:
    """Whether a result table has a column of that name."""
    row = conn.execute(
        "SELECT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = %s AND a.attname::text = %s"
        " AND a.attnum > 0 AND NOT a.attisdropped)",
        (result_oid, column),
    ).fetchone()
    return bool(row and row[0])


def has_index(conn: Connection, result_oid: int, column: str) -> bool:
    """Whether an ordered index of all rows of a result table begins with ``column``."""
    row = conn.execute(_SERVES, (result_oid, column)).fetchone()
    return bool(row and row[0])


def unserved(conn: Connection, view_id: int) -> str | None:
    """The name of a point of the view whose storage key has no index."""
    row = conn.execute(_UNSERVED, (view_id,)).fetchone()
    return None if row is None else str(row[0])
