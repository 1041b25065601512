"""What an error of Postgres, or of a connection, is to us."""

from __future__ import annotations

from typing import Final

import psycopg

from headrace import errors
from headrace.errors import HeadraceError, PrerequisiteError, TransientError, UserError

_ENDING: Final = ("FATAL", "PANIC")
"""Severities with which a server ends the session; no code of a user has them."""


def is_lost(error: psycopg.Error) -> bool:
    """Whether the connection is gone, whatever SQLSTATE the error has."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return error.diag.severity_nonlocalized in _ENDING


def is_transient(error: psycopg.Error) -> bool:
    """Whether trying a *statement of ours* again may help (``errors.transient``).

    Of a statement that can run code of a user only ``is_lost`` can be believed.
    """
    if error.sqlstate is None:
        return is_lost(error)
    return errors.transient(error.sqlstate)


def classify(error: psycopg.Error) -> HeadraceError:
    """The error of our tree for a failure of a connection, or of a statement of ours."""
    return translate(error, PrerequisiteError)


def translate(
    error: psycopg.Error,
    otherwise: type[HeadraceError],
    *,
    shift: int | None = None,
    inner: str | None = None,
) -> HeadraceError:
    """Postgres' error in our tree, with its words and its SQLSTATE.

    A ``TransientError`` where trying again may help, else an ``otherwise``.  The position
    counts in the user's text, before which ``shift`` characters of the statement stand; without
    ``shift`` the statement is ours, and a position in it says nothing.  ``inner`` is the statement
    that counts, where a function of ours carries it out.
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
    """The same error in our tree, with Postgres' own words.

    Whether a user gave up is the job's to say (``Job.check``), not an SQLSTATE's.
    """
    return translate(error, UserError)
