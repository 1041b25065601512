"""Event trigger that unpublishes a table in the statement that removes its replica identity.

It is an option for superusers, setting ``event_trigger``.  Without it the commander looks for such
tables several times a second; until then Postgres refuses the owner's UPDATE and DELETE.

The trigger also emits a logical message with a description of the table, as the stream has them.
So the worker checks the views of the table before it takes in later commits.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg
import structlog

from headrace.errors import PrerequisiteError
from headrace.postgres.identity import IDENTIFIED
from headrace.sql import origins

Connection = psycopg.Connection[Any]

NAME: Final = "withdraw_tables"
"""Name of the function."""
TRIGGER: Final = "headrace_withdraw_tables"
_CREATE: Final = (
    f"CREATE EVENT TRIGGER {TRIGGER} ON ddl_command_end EXECUTE FUNCTION headrace.{NAME}()"
)
_ALWAYS: Final = f"ALTER EVENT TRIGGER {TRIGGER} ENABLE ALWAYS"
_LOCK_TIMEOUT: Final = "1s"
"""Longest wait of DDL for another change of the publication; then the commander does it."""

_log = structlog.get_logger(__name__)


def text() -> str:
    """Return the statement that creates the function, or replaces it.

    The statement that fires the trigger must never fail, so every error there becomes a warning.
    The message holds one Relation message (``forwarder/carried.py``).  Its only column is named
    after the transaction, so that no two messages are equal.
    """
    return f"""CREATE OR REPLACE FUNCTION headrace.{NAME}() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off SET lock_timeout = '{_LOCK_TIMEOUT}' AS $$
DECLARE
    lost record;
    told bytea;
BEGIN
    IF tg_tag <> 'ALTER TABLE' AND tg_tag NOT LIKE 'DROP %' THEN
        RETURN;
    END IF;
    FOR lost IN
        SELECT c.oid, n.nspname, c.relname, p.pubname,
               (SELECT token FROM headrace.carrier) AS token
          FROM headrace.meta m JOIN pg_publication p ON p.pubname = m.value
          JOIN pg_publication_rel r ON r.prpubid = p.oid
          JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE m.key = 'publication_name' AND NOT {IDENTIFIED}
    LOOP
        BEGIN
            EXECUTE format('ALTER PUBLICATION %I DROP TABLE ONLY %I.%I',
                           lost.pubname, lost.nspname, lost.relname);
            told := 'R'::bytea || int4send(lost.oid::int8::int4)
                 || convert_to(lost.nspname, 'UTF8') || '\\x00'
                 || convert_to(lost.relname, 'UTF8') || '\\x00' || 'n'::bytea || int2send(1::int2)
                 || '\\x00' || convert_to(pg_current_xact_id()::text, 'UTF8') || '\\x00'
                 || int4send(25) || int4send(-1);
            PERFORM pg_logical_emit_message(true, 'headrace carrier ' || lost.token,
                                            int4send(length(told)) || told);
        EXCEPTION WHEN OTHERS THEN
            RAISE WARNING 'table %.% is still published: %', lost.nspname, lost.relname, sqlerrm;
        END;
    END LOOP;
END $$;
"""  # noqa: S608  our own constant


def ensure(conn: Connection, *, wanted: bool) -> None:
    """Create the event trigger, or drop it.

    Raises:
        PrerequisiteError: 42501, our role lacks the right; or the trigger there is not ours.
    """
    row = conn.execute(
        "SELECT t.evtfoid = to_regproc(%s)::oid FROM pg_catalog.pg_event_trigger t"
        " WHERE t.evtname = %s",
        (f"headrace.{NAME}", TRIGGER),
    ).fetchone()
    if row is not None and not row[0]:
        raise PrerequisiteError(
            f'event trigger "{TRIGGER}" calls a function that is not part of Headrace',
            hint=f"Run DROP EVENT TRIGGER {TRIGGER}; as a superuser.",
        )
    if wanted:
        origins.ensure_token(conn)
    if wanted == (row is not None):
        return
    try:
        with conn.transaction():
            if wanted:
                conn.execute(_CREATE)
                conn.execute(_ALWAYS)
            else:
                conn.execute(f"DROP EVENT TRIGGER {TRIGGER}")
    except psycopg.errors.InsufficientPrivilege as error:
        run = f"{_CREATE}; {_ALWAYS};" if wanted else f"DROP EVENT TRIGGER {TRIGGER};"
        raise PrerequisiteError(
            f"could not change the event trigger: {error.diag.message_primary}",
            hint=f"Run as a superuser: {run} Or set event_trigger to {'off' if wanted else 'on'}.",
            sqlstate="42501",
        ) from error
    _log.info("event trigger changed", there=wanted)
