"""The part of the catalog that a bundle needs, read in one short transaction."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import psycopg

from headrace.errors import UndefinedError
from headrace.postgres import connect, fingerprint, tokens
from headrace.replay.bundle import Observed
from headrace.sql import views, watched
from headrace.sql.status import UNFINISHED, Status
from headrace.sql.views import WorkedView

_READ_ONLY: Final = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
# As in ``postgres/fingerprint.py``.
_COLUMNS: Final = """
SELECT c.oid::pg_catalog.int8, n.nspname, c.relname, pg_catalog.pg_current_snapshot()::text,
       (SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_array(a.attnum, a.attname,
               NOT a.attisdropped AND a.attgenerated = '', a.xmin::text) ORDER BY a.attnum)
          FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0)
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = ANY (%s::pg_catalog.int8[]::pg_catalog.oid[])"""
# The column of the table, of its partitions and of the tables that inherit from it.
_MASKED: Final = """
WITH RECURSIVE t (oid) AS (
  SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
   WHERE n.nspname = %(schema)s AND c.relname = %(table)s
  UNION SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN t ON i.inhparent = t.oid)
SELECT t.oid::pg_catalog.int8, a.attnum FROM t
  JOIN pg_catalog.pg_attribute a ON a.attrelid = t.oid
 WHERE a.attname = %(column)s AND a.attnum > 0 AND NOT a.attisdropped"""


@dataclass(frozen=True, slots=True)
class CapturedView:
    """A view of the catalog."""

    row: WorkedView
    query: str
    sqlstate: str | None

    @property
    def shown(self) -> str:
        """Its name for messages."""
        return tokens.qualified(self.row.schema_name, self.row.view_name)


@dataclass(frozen=True, slots=True)
class CatalogCopy:
    """The views at one moment."""

    views: dict[int, CapturedView]
    facts: dict[int, dict[str, Any]]
    """The facts that views rely on, by ID (``postgres/fingerprint.py``)."""
    postgres: int

    def encode(self) -> bytes:
        """Return it for ``decode``."""
        return msgspec.json.encode(self)

    @staticmethod
    def decode(data: bytes) -> CatalogCopy:
        """Return what ``encode`` encoded."""
        return _COPIES.decode(data)


_COPIES: Final = msgspec.json.Decoder(CatalogCopy)


def read(conn: psycopg.Connection[Any]) -> CatalogCopy:
    """Return all views that have been populated."""
    with conn.transaction():
        conn.execute(_READ_ONLY)
        about = views.queries(conn)
        rows = views.worked(conn, some=[s for s in Status if s not in UNFINISHED])
        found = {row.id: CapturedView(row, *about[row.id]) for row in rows}
        return CatalogCopy(found, watched.load(conn, list(found)), conn.info.server_version)


def columns(
    conn: psycopg.Connection[Any], tables: Collection[int], catalog: CatalogCopy
) -> dict[int, tuple[str, list[Observed]]]:
    """Return name and columns of each table: as the views' facts have them, and as they are now."""
    out: dict[int, tuple[str, list[Observed]]] = {}
    rows = conn.execute(_COLUMNS, (list(tables),)).fetchall()
    for oid, schema, name, seen, attributes in rows:
        observed = [Observed(seen, [tuple(entry) for entry in attributes])]
        for facts in catalog.facts.values():
            observed += _earlier(facts, oid)
        out[oid] = tokens.qualified(schema, name), _unique(observed)
    return out


def _earlier(facts: dict[str, Any], table: int) -> list[Observed]:
    return [
        Observed(seen, [tuple(entry) for entry in attributes])
        for seen, attributes in fingerprint.attributes(facts, table)
    ]


def _unique(observed: list[Observed]) -> list[Observed]:
    out: list[Observed] = []
    for one in observed:
        if one not in out:
            out.append(one)
    return out


def masked(conn: psycopg.Connection[Any], column: tuple[str, str, str]) -> set[tuple[int, int]]:
    """Return table OID and number of a column, also in partitions.

    Raises:
        UndefinedError: 42703, there is none.
    """
    schema, table, name = column
    found = conn.execute(_MASKED, {"schema": schema, "table": table, "column": name}).fetchall()
    if not found:
        raise UndefinedError(f'column "{".".join(column)}" does not exist', sqlstate="42703")
    return {(int(oid), int(number)) for oid, number in found}


def session(dsn: str) -> psycopg.Connection[Any]:
    """Open a connection for ``read``."""
    return connect.session(dsn, name="headrace capture")
