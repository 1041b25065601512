"""Rows of the system catalogs by OID, on the connection of a plan."""

from __future__ import annotations

from typing import Any, LiteralString

from headrace.postgres.connect import Connection


def rows(conn: Connection, query: LiteralString, oids: set[int]) -> list[tuple[Any, ...]]:
    """Return the rows of ``query`` for ``oids``; OID 0 is ignored."""
    wanted = sorted(oids - {0})
    return conn.execute(query, (wanted,)).fetchall() if wanted else []
