"""Check that schema ``headrace`` is as the last installation left it.

``headrace.meta`` keeps a digest of the statements that were run, and of the system catalog rows of
all objects of the schema, by OID and ``xmin``.  Any DDL writes such a row again.  So equal digests
mean that an installation would change nothing, and a start then takes no lock that conflicts with
a reader.  VACUUM and ANALYZE change these rows in place and keep ``xmin``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Final

import psycopg

from headrace.sql import meta

KEY: Final = "installed"

Connection = psycopg.Connection[Any]

_OBJECTS: Final = """
WITH ours AS (SELECT oid FROM pg_catalog.pg_class
               WHERE relnamespace = pg_catalog.to_regnamespace('headrace'))
SELECT pg_catalog.md5(pg_catalog.string_agg(o.row, ' ' ORDER BY o.row COLLATE "C")) FROM (
  SELECT 'n' || oid || ':' || xmin FROM pg_catalog.pg_namespace WHERE nspname = 'headrace'
  UNION ALL SELECT 'c' || oid || ':' || xmin FROM pg_catalog.pg_class WHERE oid IN (TABLE ours)
  UNION ALL SELECT 'a' || attrelid || '.' || attnum || ':' || xmin
              FROM pg_catalog.pg_attribute WHERE attrelid IN (TABLE ours)
  UNION ALL SELECT 'd' || oid || ':' || xmin FROM pg_catalog.pg_attrdef
             WHERE adrelid IN (TABLE ours)
  UNION ALL SELECT 'k' || oid || ':' || xmin FROM pg_catalog.pg_constraint
             WHERE conrelid IN (TABLE ours)
  UNION ALL SELECT 'i' || indexrelid || ':' || xmin FROM pg_catalog.pg_index
             WHERE indrelid IN (TABLE ours)
  UNION ALL SELECT 'g' || oid || ':' || xmin FROM pg_catalog.pg_trigger
             WHERE tgrelid IN (TABLE ours)
  UNION ALL SELECT 'r' || oid || ':' || xmin FROM pg_catalog.pg_rewrite
             WHERE ev_class IN (TABLE ours)
  UNION ALL SELECT 'o' || oid || ':' || xmin FROM pg_catalog.pg_policy
             WHERE polrelid IN (TABLE ours)
  UNION ALL SELECT 'p' || oid || ':' || xmin FROM pg_catalog.pg_proc
             WHERE pronamespace = pg_catalog.to_regnamespace('headrace')) o (row)"""
_KEPT: Final = "SELECT value FROM headrace.meta WHERE key = %s"


def unchanged(conn: Connection, texts: Iterable[str]) -> bool:
    """Return whether running ``texts`` again would change nothing.

    REQUIRES: ``headrace.meta`` exists and is ours.
    """
    row = conn.execute(_KEPT, (KEY,)).fetchone()
    return row is not None and row[0] == _digest(conn, texts)


def note(conn: Connection, texts: Iterable[str]) -> None:
    """Record that ``texts`` were run, in the transaction that has run them."""
    meta.put(conn, KEY, _digest(conn, texts))


def _digest(conn: Connection, texts: Iterable[str]) -> str:
    row = conn.execute(_OBJECTS).fetchone()
    assert row is not None, "an aggregate has one row"
    return f"{hashlib.sha256(chr(0).join(texts).encode()).hexdigest()} {row[0]}"
