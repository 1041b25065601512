"""Column ``watched`` of ``headrace.views``: the facts under which a view was populated.

``postgres/fingerprint.py`` describes them; ``ended``: a right of its owner has ended; ``cost``:
rows and seconds of the population.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from headrace.sql import views

Connection = psycopg.Connection[Any]
Facts = Mapping[str, Any]

_STOPPED: Final = """
SELECT v.id, v.watched AS facts, v.sqlstate = '55H01' AS right_ended, v.sqlstate ~ '^(53|55|XX)'
         OR v.options ->> 'on_change' IS NOT DISTINCT FROM 'stop' AS final
  FROM headrace.views v
 WHERE v.status = 'error' AND v.watched IS NOT NULL
   AND (v.sqlstate = '55H01' OR v.sqlstate !~ '^(53|55|XX)')"""


_PUT: Final = """
UPDATE headrace.views SET watched = CASE WHEN watched ? 'cost'
       THEN pg_catalog.jsonb_build_object('cost', watched -> 'cost') ELSE '{}' END || %s
 WHERE id = %s"""
_COST: Final = """
SELECT (watched #>> '{cost,rows}')::bigint, (watched #>> '{cost,seconds}')::float8
  FROM headrace.views WHERE id = %s"""


@dataclass(frozen=True, slots=True)
class Stopped:
    """View that has stopped for a reason that may disappear."""

    id: int
    facts: dict[str, Any]
    right_ended: bool
    final: bool
    """Whether it is not populated again after a change."""


def stopped(conn: Connection) -> list[Stopped]:
    """Return stopped views whose rows or rights may be repaired by now."""
    with conn.cursor(row_factory=class_row(Stopped)) as cursor:
        return cursor.execute(_STOPPED).fetchall()


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a population: rows of tables (as Postgres estimated them), and seconds."""

    rows: int
    seconds: float

    def at(self, rows: int) -> float:
        """Return the seconds that it would take now, with ``rows`` rows in the tables."""
        return self.seconds * max(rows / max(self.rows, 1), 1.0)


def put(conn: Connection, view_id: int, facts: Facts, cost: Cost | None = None) -> None:
    """Store the facts of a view, for the worker to compare.

    ``cost``: that of its population; None: unchanged.
    """
    found = dict(facts) if cost is None else {**facts, "cost": asdict(cost)}
    conn.execute(_PUT, (Jsonb(found), view_id))


def cost(conn: Connection, view_id: int) -> Cost | None:
    """Return the cost of a view's last population; None: it was not recorded."""
    row = conn.execute(_COST, (view_id,)).fetchone()
    return None if row is None or row[0] is None else Cost(int(row[0]), float(row[1]))


def load(conn: Connection, wanted: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Return the facts of those of ``wanted`` that have any."""
    rows = conn.execute(
        "SELECT id, watched FROM headrace.views WHERE id = ANY (%s) AND watched IS NOT NULL",
        (list(wanted),),
    ).fetchall()
    return dict(rows)


def end(conn: Connection, view_id: int) -> None:
    """Store that a right of the owner has ended."""
    conn.execute(
        "UPDATE headrace.views SET watched = watched || '{\"ended\": true}'"
        " WHERE id = %s AND NOT watched ? 'ended'",
        (view_id,),
    )


def begin_again(conn: Connection, view_id: int) -> None:
    """Store that the rights are back."""
    conn.execute("UPDATE headrace.views SET watched = watched - 'ended' WHERE id = %s", (view_id,))


def fed(conn: Connection, publication: int | None) -> bool:
    """Return whether a view was populated under the publication with that OID."""
    if not views.installed(conn):
        return False
    row = conn.execute(
        "SELECT FROM headrace.views WHERE (watched #>> '{publication,oid}')::bigint = %s LIMIT 1",
        (publication,),
    ).fetchone()
    return row is not None


def user_function(conn: Connection, view_id: int) -> str | None:
    """Return a user's function that the view calls, or None."""
    row = conn.execute(
        "SELECT p.oid::regprocedure::text FROM headrace.views v"
        " CROSS JOIN jsonb_object_keys(v.watched #> '{definitions,objects}') f (key)"
        " JOIN pg_proc p ON 'pg_proc:' || p.oid = f.key"
        " JOIN pg_language l ON l.oid = p.prolang"
        " WHERE v.id = %s AND l.lanname NOT IN ('internal', 'c') ORDER BY 1 LIMIT 1",
        (view_id,),
    ).fetchone()
    return None if row is None else str(row[0])
