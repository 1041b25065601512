"""Rows of ``headrace.points``: the connection points of views (A-25, A-26).

A point has its own name and follows its view, whose id and name may change.

* Invariant 1: a view with a point that needs a history keeps one at least that long.
* Invariant 2: while a point has a storage key, some index of the view's table begins with it.

A transaction that changes a point, its view's history or an index locks the view's row first
(``views.lock``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg

from headrace.errors import UndefinedError

Connection = psycopg.Connection[Any]

# An index that serves every query: of all rows, ordered, and valid.
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

# Intervals are compared by the time that they reach back to, as the purge computes it: Postgres'
# comparison takes a month for 30 days, and February has 28.  The calendar repeats after 400 years.
# The years lie ahead, because a time before Postgres' first one cannot be represented.
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
    """Connection point of a view."""

    name: str
    view_id: int
    keep: str | None
    """How long it needs changes, as an interval; None: it needs none."""
    storage_key: str | None
    """Column of the view."""


def insert(conn: Connection, point: Point) -> bool:
    """Add a point; return False if the name is taken."""
    return (
        conn.execute(
            "INSERT INTO headrace.points (name, view_id, keep, storage_key)"
            " VALUES (%s, %s, %s::interval, %s) ON CONFLICT (name) DO NOTHING",
            (point.name, point.view_id, point.keep, point.storage_key),
        ).rowcount
        > 0
    )


def find(conn: Connection, name: str) -> Point | None:
    """Return the point called ``name``, or None."""
    row = conn.execute(f"{_POINTS} WHERE p.name = %s", (name,)).fetchone()
    return None if row is None else Point(*row)


def unknown(name: str) -> UndefinedError:
    """Return the error that there is no point called ``name``."""
    return UndefinedError(
        f'connection point "{name}" does not exist', hint="See headrace.connection_points()."
    )


def of_view(conn: Connection, view_id: int) -> list[Point]:
    """Return the points of a view, by name."""
    rows = conn.execute(f"{_POINTS} WHERE p.view_id = %s ORDER BY p.name", (view_id,))
    return [Point(*row) for row in rows]


def read_by(conn: Connection, view_id: int) -> list[Point]:
    """Return the points of the views that a view reads, by name."""
    rows = conn.execute(
        f"{_POINTS} WHERE EXISTS (SELECT FROM headrace.view_uses u JOIN headrace.views v"
        " ON v.result_oid = u.result_oid WHERE u.view_id = %s AND v.id = p.view_id)"
        " ORDER BY p.name",
        (view_id,),
    )
    return [Point(*row) for row in rows]


def fed(conn: Connection, name: str) -> list[str]:
    """Return the views that read from the point called ``name``, qualified and quoted."""
    rows = conn.execute(
        "SELECT format('%%I.%%I', v.schema_name, v.view_name) FROM headrace.views v"
        " WHERE v.options ->> 'from' = %s ORDER BY 1",
        (name,),
    )
    return [row[0] for row in rows]


def delete(conn: Connection, name: str) -> bool:
    """Delete a point; return False if there was none."""
    return conn.execute("DELETE FROM headrace.points WHERE name = %s", (name,)).rowcount > 0


def needing_more(conn: Connection, view_id: int, keep: str | None) -> Point | None:
    """Return the point with the longest need, of those that may need more than ``keep``; or None.

    ``keep``: an interval; None: no history at all.
    """
    row = conn.execute(_NEEDING_MORE, {"view": view_id, "keep": keep}).fetchone()
    return None if row is None else Point(*row)


def enough(conn: Connection, view_id: int, need: str) -> str:
    """Return an interval that is at least ``need`` and the view's history, at any time of the year.

    It is one of the two if that one is never the shorter.
    """
    row = conn.execute(_ENOUGH, {"view": view_id, "need": need}).fetchone()
    assert row is not None, "what is needed is there, with a history or without"
    return str(row[0])


def has_column(conn: Connection, result_oid: int, column: str) -> bool:
    """Return whether a result table has a column of that name."""
    row = conn.execute(
        "SELECT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = %s AND a.attname::text = %s"
        " AND a.attnum > 0 AND NOT a.attisdropped)",
        (result_oid, column),
    ).fetchone()
    return bool(row and row[0])


def has_index(conn: Connection, result_oid: int, column: str) -> bool:
    """Return whether a valid B-tree index of all rows of a result table begins with ``column``."""
    row = conn.execute(_SERVES, (result_oid, column)).fetchone()
    return bool(row and row[0])


def unserved(conn: Connection, view_id: int) -> str | None:
    """Return the name of a point of the view whose storage key has no index, or None."""
    row = conn.execute(_UNSERVED, (view_id,)).fetchone()
    return None if row is None else str(row[0])
