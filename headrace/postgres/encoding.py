"""The encoding of a database: which ones Headrace can follow.

All connections use UTF-8.  A text that has no equivalent in UTF-8 would end the replication stream
again and again, and so stop every view.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg

from headrace.errors import PrerequisiteError

_HINT: Final = (
    "Move the data to a database with encoding UTF8: CREATE DATABASE … ENCODING 'UTF8'"
    " TEMPLATE template0, then pg_dump and pg_restore."
)


def problems(conn: psycopg.Connection[Any]) -> list[PrerequisiteError]:
    """Return why the views of this database cannot be maintained; empty for UTF8.

    Headrace also stores texts here that other encodings lack.
    """
    name = _name(conn)
    if name == "UTF8":
        return []
    return [
        PrerequisiteError(
            f'the database has encoding "{name}", but must have "UTF8"',
            detail="A value that cannot be converted to UTF-8 would stop all views.",
            hint=_HINT,
        )
    ]


def check_source(conn: psycopg.Connection[Any]) -> None:
    """Raise PrerequisiteError if tables of this database cannot be read by ``add_source``.

    Postgres converts texts of other encodings to UTF-8, but it does not know that of SQL_ASCII.
    """
    if _name(conn) == "SQL_ASCII":
        raise PrerequisiteError(
            'a source with encoding "SQL_ASCII" is not supported',
            detail="A value that is not valid UTF-8 would end its replication stream.",
            hint=_HINT,
        )


def _name(conn: psycopg.Connection[Any]) -> str:
    row = conn.execute("SELECT pg_catalog.getdatabaseencoding()").fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    return str(row[0])
