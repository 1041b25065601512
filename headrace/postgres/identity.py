"""Published tables must have a replica identity, or Postgres refuses their UPDATE and DELETE.

A table can lose its identity after it was published: its key is dropped or becomes DEFERRABLE,
the index of the identity is dropped, REPLICA IDENTITY is set to NOTHING.  ``withdraw`` takes such
tables out of a publication, so that the owner's statements succeed again.

Source: ``CheckCmdReplicaIdentity`` and ``RelationGetIndexList`` of Postgres.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import psycopg
import structlog
from psycopg import sql

Connection = psycopg.Connection[Any]
Published = tuple[int, str, str]
"""OID in pg_publication_rel, schema and name of a table."""

_log = structlog.get_logger(__name__)

# Postgres 18 refuses generated columns that identify a row: the stream does not carry them.
IDENTIFIED: Final = """(EXISTS (
  SELECT FROM pg_catalog.pg_class identified
    LEFT JOIN pg_catalog.pg_index key ON key.indrelid = identified.oid AND key.indislive
     AND key.indisvalid AND key.indisunique AND key.indimmediate AND key.indpred IS NULL
     AND CASE identified.relreplident WHEN 'd' THEN key.indisprimary
           WHEN 'i' THEN key.indisreplident ELSE false END
   WHERE identified.oid = c.oid
     AND (identified.relreplident = 'f' OR key.indexrelid IS NOT NULL)
     AND (pg_catalog.current_setting('server_version_num')::pg_catalog.int4 < 180000
       OR NOT EXISTS (SELECT FROM pg_catalog.pg_attribute made
           WHERE made.attrelid = c.oid AND made.attgenerated <> '' AND NOT made.attisdropped
             AND (key.indexrelid IS NULL
               OR made.attnum = ANY (key.indkey::pg_catalog.int2[])))))
)"""
"""SQL condition on the ``oid`` of an alias ``c``: Postgres accepts UPDATE and DELETE of the table
while it is published."""

NOT_NULL: Final = """(a.attnotnull AND NOT EXISTS (
  SELECT FROM pg_catalog.pg_constraint k
   WHERE k.conrelid = a.attrelid AND k.contype = 'n' AND NOT k.convalidated
     AND a.attnum = ANY (k.conkey)))"""
"""SQL condition on an alias ``a`` of pg_attribute: the column has no NULL.

From Postgres 18 on ``attnotnull`` is also set by a constraint that was added as NOT VALID.
"""
NULL_KEYS: Final = (
    "Its NOT NULL constraint was not validated; rows with NULL in the key are not distinguished."
)
VALIDATE: Final = "Run ALTER TABLE … VALIDATE CONSTRAINT for that constraint."
"""Detail and hint of errors about a column of a replica identity that is not ``NOT_NULL``."""

_UNIDENTIFIED: Final = f"""
SELECT r.oid::bigint, n.nspname, c.relname FROM pg_catalog.pg_publication p
  JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid
  JOIN pg_catalog.pg_class c ON c.oid = r.prrelid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE p.pubname = %s AND NOT {IDENTIFIED} ORDER BY c.oid"""  # noqa: S608  our own constant


def find_unidentified(conn: Connection, publication: str) -> list[Published]:
    """Return the tables of ``publication`` that have no replica identity."""
    return conn.execute(_UNIDENTIFIED, (publication,), prepare=True).fetchall()


def withdraw(
    conn: Connection, publication: str, tables: Sequence[Published], lock_timeout_ms: int
) -> list[Published]:
    """Take ``tables`` out of ``publication``, each in its own transaction; return the rest.

    A table that another session keeps locked stays until the next call.  REQUIRES: autocommit.
    """
    kept = []
    for table in tables:
        _, *name = table
        statement = sql.SQL("ALTER PUBLICATION {} DROP TABLE ONLY {}").format(
            sql.Identifier(publication), sql.Identifier(*name)
        )
        try:
            with conn.transaction():
                conn.execute(f"SET LOCAL lock_timeout = {lock_timeout_ms:d}")
                conn.execute(statement)
        except (
            psycopg.errors.LockNotAvailable,
            psycopg.errors.DeadlockDetected,
            psycopg.errors.ReadOnlySqlTransaction,
            psycopg.errors.InsufficientPrivilege,
            # The table was renamed or dropped, or another session took it out.
            psycopg.errors.UndefinedTable,
            psycopg.errors.UndefinedObject,
            psycopg.errors.InvalidSchemaName,
        ):
            kept.append(table)
        else:
            _log.warning("table without replica identity unpublished", table=".".join(name))
    return kept
