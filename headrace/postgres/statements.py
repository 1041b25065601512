"""Execution of exactly one statement, advisory locks, and quoting for messages."""

from __future__ import annotations

from typing import Any, Final

import psycopg

from headrace import clock

_ALONE: Final = """
SELECT pg_catalog.pg_try_advisory_xact_lock(%(number)s::pg_catalog.int8), EXISTS (
  SELECT FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
   WHERE l.locktype = 'advisory' AND l.classid = 0 AND l.objid = %(number)s AND l.objsubid = 1
     AND l.granted AND a.datname = current_database() AND a.usename <> current_user)"""
_AGAIN_S: Final = 0.02


def one_statement(conn: psycopg.Connection[Any], text: str) -> None:
    """Execute ``text``; Postgres refuses it if it has more than one statement.

    Binary results force the extended protocol, which refuses several statements.  ``prepare``
    would not force it where ``prepare_threshold`` is None.
    """
    conn.execute(text.encode(), binary=True)


def alone(conn: psycopg.Connection[Any], number: int) -> None:
    """Take the advisory lock ``number`` until the transaction ends, waiting for the own role only.

    Any role can hold an advisory lock for ever, so a lock that another role holds is ignored.
    """
    while True:
        row = conn.execute(_ALONE, {"number": number}).fetchone()
        assert row is not None, "functions give a row"
        if row[0] or row[1]:
            return
        clock.sleep(_AGAIN_S)


def quoted(schema: str, name: str) -> str:
    """Return ``"schema"."name"`` for messages; quotes inside the names are not doubled."""
    return f'"{schema}"."{name}"'
