"""Numbered steps that upgrade the catalog of an earlier version to the present tables.

``CATALOG`` is the version of the tables, kept in ``headrace.meta`` (key ``version``).  The other
files describe the present tables, for a new database; a step adds what an old one lacks:

    found 1 ─► upgrade_2.sql ─► … ─► upgrade_N.sql ─► all other files, as in a new database ─► N

New tables need no step, because they are created where missing.  Functions, procedures and
policies need none either: each installation creates them again, and drops the routines whose
arguments have changed.  A step is for columns and constraints of existing tables, for rows whose
meaning has changed, and for objects to be dropped (``GONE``).  A released step is never altered.

* Invariant: an upgraded database and a new one have the same objects.

Number 1 is any catalog from before the numbers; its step works for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import psycopg

from headrace.errors import PrerequisiteError

CATALOG: Final = 6
"""1: before numbers.  2: last errors of views, workers on other machines.  3: views with intervals
are populated again; lagging views in ``held``.  4: states of cursors in ``held``.  5: progress of
populations in ``held``, last transactions of sources, queued calls.  6: requests of changes."""
KEY: Final = "version"
"""Key of its row in ``headrace.meta``."""
GONE: Final = ("await_command",)
"""Names of objects that earlier versions created and a step drops."""

Connection = psycopg.Connection[Any]

# This runs before the owners of objects are checked, so it accepts only a plain table of ours, of
# built-in types, without anything that would execute code when it is read.
_PLAIN: Final = """
SELECT count(*) = 1 FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
 WHERE n.nspname OPERATOR(pg_catalog.=) 'headrace' AND c.relname OPERATOR(pg_catalog.=) 'meta'
   AND c.relkind OPERATOR(pg_catalog.=) 'r' AND NOT c.relhasrules AND NOT c.relforcerowsecurity
   AND pg_catalog.pg_get_userbyid(c.relowner) OPERATOR(pg_catalog.=) current_user
   AND 2 OPERATOR(pg_catalog.=) (SELECT count(*) FROM pg_catalog.pg_attribute a
        WHERE a.attrelid OPERATOR(pg_catalog.=) c.oid AND a.attname IN ('key', 'value')
          AND a.atttypid OPERATOR(pg_catalog.=) 'pg_catalog.text'::pg_catalog.regtype)
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_index i
        WHERE i.indrelid OPERATOR(pg_catalog.=) c.oid
          AND (i.indexprs IS NOT NULL OR i.indpred IS NOT NULL))
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_statistic_ext s
        WHERE s.stxrelid OPERATOR(pg_catalog.=) c.oid)
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint k
        WHERE k.conrelid OPERATOR(pg_catalog.=) c.oid AND k.contype OPERATOR(pg_catalog.=) 'c')"""
_FOUND: Final = """
SELECT value FROM ONLY headrace.meta WHERE key OPERATOR(pg_catalog.=) %s"""


_ROUTINES: Final = """
SELECT coalesce(pg_catalog.array_agg(oid::pg_catalog.int8), '{}') FROM pg_catalog.pg_proc
 WHERE pronamespace OPERATOR(pg_catalog.=) pg_catalog.to_regnamespace('headrace')"""
# CREATE OR REPLACE keeps the OID of a routine; with other arguments it creates another one.
_FORMER: Final = """
SELECT p.oid::pg_catalog.regprocedure::text FROM pg_catalog.pg_proc p
 WHERE p.oid::pg_catalog.int8 OPERATOR(pg_catalog.=) ANY (%(before)s) AND EXISTS (
       SELECT FROM pg_catalog.pg_proc o
        WHERE o.pronamespace OPERATOR(pg_catalog.=) p.pronamespace
          AND o.proname OPERATOR(pg_catalog.=) p.proname
          AND NOT o.oid::pg_catalog.int8 OPERATOR(pg_catalog.=) ANY (%(before)s))
 ORDER BY 1"""


def file(number: int) -> str:
    """Return the file of the step that leads to ``number``."""
    return f"upgrade_{number}.sql"


def files() -> list[str]:
    """Return the files of all steps, in order."""
    return [file(number) for number in range(2, CATALOG + 1)]


def found(conn: Connection) -> int | None:
    """Return the number of the existing catalog; None: there is none, or it is not ours.

    It executes no code of another role, whatever object is in the table's place.
    """
    if conn.execute(_PLAIN).fetchone() != (True,):
        return None
    row = conn.execute(_FOUND, (KEY,)).fetchone()
    if row is None or not str(row[0]).isdecimal():
        return None
    return int(row[0])


def problem(conn: Connection) -> PrerequisiteError | None:
    """Return the error that the catalog is of a later version; None: it is not."""
    number = found(conn)
    if number is None or number <= CATALOG:
        return None
    return PrerequisiteError(
        f"schema headrace is of a later version: catalog {number}, and this one knows {CATALOG}",
        detail="It may contain columns and objects whose meaning this version does not know.",
        hint="Start the version that installed it, or a later one; to go back, restore the database"
        " and the data directory from before the upgrade.",
        sqlstate="55000",
    )


def steps(number: int | None) -> Iterator[str]:
    """Yield the files that a catalog of ``number`` needs; None: a new database needs none."""
    if number is not None:
        yield from files()[number - 1 :]


def routines(conn: Connection) -> list[int]:
    """Return the OIDs of all routines in the schema."""
    row = conn.execute(_ROUTINES).fetchone()
    assert row is not None, "an aggregate has one row"
    return list(row[0])


def drop_former(conn: Connection, before: list[int]) -> None:
    """Drop those of ``before`` that now have a namesake with other arguments.

    REQUIRES: they were ours, and of an earlier version.
    """
    for (routine,) in conn.execute(_FORMER, {"before": before}).fetchall():
        conn.execute(f"DROP ROUTINE {routine}".encode())  # as Postgres writes it
