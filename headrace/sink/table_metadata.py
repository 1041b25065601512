"""Grants and indexes that users added to a result table, for a table that is created again.

Dropping a table drops them too, so they are recorded while the table exists.  Roles are identified
by OID and name: a new role of an old name gets no grant, nor does a role in a database that was
dumped and restored elsewhere.
Indexes are those that ``create_index`` would create, from built-in objects only, because they are
created with our rights.  Other changes by users (other rights, comments, storage) are not recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self

import psycopg
import structlog
from psycopg import sql

from headrace.errors import UnsupportedError
from headrace.postgres import statements
from headrace.sql.results import FOREIGN
from headrace.types import FIRST_USER_OID

Connection = psycopg.Connection[Any]

_log = structlog.get_logger(__name__)

_NO_INDEX: Final = f"""
SELECT FROM pg_catalog.pg_index i WHERE i.indexrelid = %(index)s::regclass
   AND (i.indisunique OR i.indisexclusion OR EXISTS ({FOREIGN}))"""


@dataclass(frozen=True, slots=True)
class TableMetadata:
    """Recorded grants and indexes of one result table."""

    known: bool = False
    readers: tuple[tuple[int, str | None, bool], ...] = ()
    """OID (0: PUBLIC) and name of the roles with SELECT, and whether they have GRANT OPTION."""
    indexes: tuple[tuple[str, str], ...] = ()
    """Name of the index, and the text after the table's name in CREATE INDEX."""

    @classmethod
    def of(cls, data: dict[str, Any] | None) -> Self:
        """Read the record from the catalog's JSON; None: nothing is known."""
        if data is None:
            return cls()
        return cls(
            True,
            tuple((int(r), name, bool(p)) for r, name, p in data["readers"] or ()),
            tuple((str(name), str(tail)) for name, tail in data["indexes"] or ()),
        )

    def restore(self, conn: Connection, schema: str, name: str) -> None:
        """Apply the record to a new and empty table; skip and log parts that fail."""
        table = sql.Identifier(schema, name)
        for role, called, passes in self.readers:
            _grant(conn, table, role, called, passes=passes)
        for index, tail in self.indexes:
            try:
                with conn.transaction():
                    _make_index(conn, schema, name, index, tail)
            except (
                psycopg.ProgrammingError,
                psycopg.NotSupportedError,
                psycopg.DataError,
                UnsupportedError,
            ) as error:
                _log.warning("index not made again", index=index, reason=str(error))


def _grant(
    conn: Connection, table: sql.Identifier, role: int, name: str | None, *, passes: bool
) -> None:
    row = conn.execute(
        "SELECT FROM pg_catalog.pg_roles r WHERE r.oid = %s AND r.rolname = %s", (role, name)
    ).fetchone()
    if role and row is None:
        _log.warning("right not granted again", role=name)
        return
    conn.execute(
        sql.SQL("GRANT SELECT ON TABLE {} TO {}{}").format(
            table,
            sql.Identifier(name) if name is not None else sql.SQL("PUBLIC"),
            sql.SQL(" WITH GRANT OPTION") if passes else sql.SQL(""),
        )
    )


def _make_index(conn: Connection, schema: str, table: str, index: str, tail: str) -> None:
    head = sql.SQL("CREATE INDEX {} ON {} ").format(
        sql.Identifier(index), sql.Identifier(schema, table)
    )
    statements.one_statement(conn, head.as_string(conn) + tail)
    made = sql.Identifier(schema, index).as_string(conn)
    asked = {"index": made, "user": FIRST_USER_OID}
    if conn.execute(_NO_INDEX, asked).fetchone() is not None:
        raise UnsupportedError("it uses what is not built in")
