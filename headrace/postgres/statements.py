"""Statements that are more than their text: one and no more; one at a time."""

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
    """Carry out ``text``, in which Postgres takes no more than one statement.

    Binary results need the extended protocol, which refuses several; ``prepare`` does not where
    ``prepare_threshold`` is None.
    """
    conn.execute(text.encode(), binary=True)


def alone(conn: psycopg.Connection[Any], number: int) -> None:
    """Be the only one of our role at what ``number`` stands for, until the transaction ends.

    Anybody may take an advisory lock, for ever: one that another role holds is none of ours.
    """
    while True:
        row = conn.execute(_ALONE, {"number": number}).fetchone()
        assert row is not None, "functions give a row"
        if row[0] or row[1]:
            return
        clock.sleep(_AGAIN_S)


def quoted(schema: str, name: str) -> str:
    """``schema.name`` with quotes where they are needed for the eye to read it as two."""
    return f'"{schema}"."{name}"'
