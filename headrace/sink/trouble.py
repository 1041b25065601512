"""Classifies errors from writing a result table.

Code of users may run in a write (an index on a function, a trigger that a user added) and may raise
any SQLSTATE.  So "locked" is believed only if the server itself has ended the wait and no function
was running.  Other transient errors are retried a bounded number of times.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg

from headrace.errors import (
    RESYNC,
    HeadraceError,
    Interrupted,
    Repair,
    SinkBlocked,
    SinkTableError,
    transient,
)
from headrace.sink.table import ResultTable, index_name

Connection = psycopg.Connection[Any]

DROP_INDEX: Final = Repair("Drop the index")
"""Hint of a view that an index of its result table has stopped."""
_WAITS: Final = ("ProcessInterrupts", "DeadLockReport")
"""Functions of the server that end a wait for a lock."""
_REFERENCES: Final = "ri_ReportViolation"
"""The server's function that reports the violation of a foreign key."""
_OUR_CONTEXT: Final = ("COPY ", "while ")
"""Prefixes of context lines that belong to our statement, not to a function in it."""


def of_view(target: ResultTable, error: psycopg.Error) -> HeadraceError:
    """Return the error of the view of table ``target``.  REQUIRES: the connection lives."""
    code, diag = error.sqlstate, error.diag
    waiting = isinstance(error, psycopg.errors.LockNotAvailable | psycopg.errors.DeadlockDetected)
    if waiting and _is_internal(error):
        return SinkBlocked(
            f"result table {target.shown} is locked",
            hint="It goes on by itself when the lock is released.",
        )
    if diag.source_function == _REFERENCES and diag.constraint_name:
        return SinkBlocked(
            f"rows of result table {target.shown} cannot be deleted because table"
            f' "{diag.table_name}" refers to them',
            detail=f'The reference is foreign key "{diag.constraint_name}".',
            hint="Delete the rows that refer to them; then the view goes on by itself.",
            sqlstate=code,
        )
    message = diag.message_primary or str(error).strip() or type(error).__name__
    # The detail of a violated constraint contains values, and every role may read the message.
    detail = None if isinstance(error, psycopg.IntegrityError) else diag.message_detail
    told = " ".join(filter(None, (detail, diag.message_hint)))
    kind = Interrupted if code is not None and transient(code) else SinkTableError
    return kind(
        f"result table {target.shown} cannot be written: {message}",
        detail=told or None,
        hint=RESYNC,
        sqlstate=code or "XX000",
    )


def at_index(
    conn: Connection,
    target: ResultTable,
    error: BaseException | None,
    hint: str | Repair = DROP_INDEX,
) -> SinkTableError | None:
    """Return the view's error if an index that a user has added may have raised ``error``.

    An expression or a predicate may fail on a row, and a value may be too long for an index.  A
    resync fails too as long as the index exists.

    REQUIRES: a transaction that has not failed, or none.
    """
    if not isinstance(error, psycopg.Error) or isinstance(error, psycopg.IntegrityError):
        return None
    found = of_view(target, error)
    if not isinstance(found, SinkTableError):
        return None
    too_long = isinstance(error, psycopg.errors.ProgramLimitExceeded)
    row = conn.execute(
        "SELECT pg_catalog.string_agg(pg_catalog.format('\"%%s\"', c.relname), ', '"
        " ORDER BY c.relname) FROM pg_catalog.pg_index i"
        " JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid"
        " WHERE i.indrelid = %s AND NOT i.indisprimary AND c.relname <> %s"
        " AND (%s OR i.indexprs IS NOT NULL OR i.indpred IS NOT NULL)",
        (target.oid, index_name(target.oid), too_long),
    ).fetchone()
    assert row is not None, "an aggregate has one row"
    if row[0] is None:
        return None
    detail = " ".join(filter(None, (found.detail, f"An index may be the cause: {row[0]}.")))
    return SinkTableError(found.message, detail=detail, hint=hint, sqlstate=found.code)


def _is_internal(error: psycopg.Error) -> bool:
    lines = (error.diag.context or "").splitlines()
    return error.diag.source_function in _WAITS and all(
        line.startswith(_OUR_CONTEXT) for line in lines
    )
