"""Classification of errors of Postgres and of connections."""

from __future__ import annotations

from typing import Final

import psycopg

from headrace import errors
from headrace.errors import HeadraceError, PrerequisiteError, TransientError, UserError

_ENDING: Final = ("FATAL", "PANIC")
"""Severities that end the session; a user's function cannot raise them."""


def is_lost(error: psycopg.Error) -> bool:
    """Return whether the connection is gone, whatever SQLSTATE the error has."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return error.diag.severity_nonlocalized in _ENDING


def is_transient(error: psycopg.Error) -> bool:
    """Return whether a retry of one of Headrace's own statements may succeed.

    For a statement that can run a user's code, only ``is_lost`` is reliable.
    """
    if error.sqlstate is None:
        return is_lost(error)
    return errors.transient(error.sqlstate)


def classify(error: psycopg.Error) -> HeadraceError:
    """Return Headrace's error for a failed connection or a failed statement of its own."""
    return translate(error, PrerequisiteError)


def translate(
    error: psycopg.Error,
    otherwise: type[HeadraceError],
    *,
    shift: int | None = None,
    inner: str | None = None,
) -> HeadraceError:
    """Convert an error of Postgres to one of Headrace, with its message and SQLSTATE.

    The class is ``TransientError`` if a retry may succeed, else ``otherwise``.  The position is
    relative to the user's text, which begins after ``shift`` characters of the statement.  Without
    ``shift`` the statement contains no text of a user, and the position is dropped.  ``inner`` is
    the statement with the user's text, if a function of Headrace executes it.
    """
    diag = error.diag
    at = diag.statement_position
    if inner is not None and diag.internal_query == inner:
        at = diag.internal_position
    position = 0 if shift is None else int(at or 0) - shift
    transient = is_transient(error)
    kind = TransientError if transient else otherwise
    return kind(
        diag.message_primary or str(error).strip() or type(error).__name__,
        detail=diag.message_detail,
        hint=diag.message_hint,
        position=position if position > 0 else None,
        sqlstate=error.sqlstate or ("08006" if transient else None),
    )


def as_headrace(error: psycopg.Error) -> HeadraceError:
    """Convert an error of Postgres to one of Headrace, a ``UserError`` by default.

    ``Job.check`` decides whether a user cancelled; the SQLSTATE does not.
    """
    return translate(error, UserError)
