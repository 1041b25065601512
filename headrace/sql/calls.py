"""Procedures of the verbs: each queues a command for the commander and waits until it is done.

The command must be committed for that.  In a transaction block, or in a function, where a procedure
cannot commit, the command is carried out after the COMMIT.  A call that only reads asks the engine
instead, as functions do, and one with another answer is refused there.

The command carries the caller's settings, which function ``captured_settings`` reads.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.postgres.settings import AS_JSON
from headrace.sql.verbs import VERBS, Verb

_TYPES: Final = {"bool": "boolean"}
"""Types that have another name in SQL."""
CAPTURED: Final = "captured_settings"
_CAPTURED: Final = f"""CREATE OR REPLACE FUNCTION headrace.{CAPTURED}()
RETURNS jsonb LANGUAGE sql STABLE AS $$ {AS_JSON} $$;
"""


# The secret exists only in a variable of the procedure and in its answer: a statement, parameter
# or row would be logged or stored.  Three UUIDs have 366 random bits.
_SECRET: Final = """
    secret  pg_catalog.text := pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(
        pg_catalog.concat(pg_catalog.gen_random_uuid(), pg_catalog.gen_random_uuid(),
                          pg_catalog.gen_random_uuid()), 'UTF8')), 'hex');"""
_DIGEST: Final = (
    "'digest', pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(secret, 'UTF8')), 'hex')"
)

_HAS_DETAIL: Final = " AND failed OPERATOR(pg_catalog.?) 'D'"
_HAS_HINT: Final = " AND failed OPERATOR(pg_catalog.?) 'H'"
_DETAIL: Final = ",\n            DETAIL = failed OPERATOR(pg_catalog.->>) 'D'"
_HINT: Final = ",\n            HINT = failed OPERATOR(pg_catalog.->>) 'H'"
RAISED: Final = "    -- RAISE failed\n"
"""Line that stands for ``FAILED`` in a file."""
# Inside of the procedure, so that the context of the error is one line.  An option of RAISE cannot
# be NULL, and an empty DETAIL would be shown.
FAILED: Final = "".join(
    f"""    IF failed IS NOT NULL{test} THEN
        RAISE EXCEPTION USING ERRCODE = failed OPERATOR(pg_catalog.->>) 'C',
            MESSAGE = failed OPERATOR(pg_catalog.->>) 'M'{options};
    END IF;
"""
    for test, options in (
        (f"{_HAS_DETAIL}{_HAS_HINT}", f"{_DETAIL}{_HINT}"),
        (_HAS_DETAIL, _DETAIL),
        (_HAS_HINT, _HINT),
        ("", ""),
    )
)
_REFUSED: Final = """RAISE EXCEPTION USING ERRCODE = '25001',
            MESSAGE = 'CALL headrace.{} cannot run inside a transaction block',
            DETAIL = 'Its answer can come only after the transaction has committed.',
            HINT = 'Run it as a statement of its own, with autocommit on and outside of BEGIN … COMMIT (psycopg: conn.autocommit = True; JDBC: setAutoCommit(true); psql: \\set AUTOCOMMIT on, without -1).'"""


def names() -> list[str]:
    """Return the names of all procedures."""
    return [name for verb in VERBS.values() if (name := verb.called)]


def captured() -> str:
    """Return the statement that creates or replaces the function that reads the settings."""
    return _CAPTURED


def texts() -> list[str]:
    """Return the statements that create or replace the procedures."""
    return [_text(verb) for verb in VERBS.values() if verb.called]


def _text(verb: Verb) -> str:
    """Return the procedure of ``verb``."""
    declared = [
        f"{p.name} {_TYPES.get(p.kind, p.kind)}"
        + ("" if p.required else f" DEFAULT {_literal(p.default)}")
        for p in verb.parameters
    ]
    packed = ", ".join(
        f"'{p.name}', {p.name}{'::pg_catalog.text' if p.exact else ''}" for p in verb.parameters
    )
    answered = secret = ""
    if verb.secret:
        secret = _SECRET
        packed += f", {_DIGEST}"
    if verb.answer is not None:
        declared.append(f"INOUT {verb.answer.name} {verb.answer.kind} DEFAULT NULL")
        value = verb.answer.value.format("headrace.command_result(command)")
        answered = f"    {verb.answer.name} := {value};\n"
    sent = f"pg_catalog.jsonb_build_object({packed}), headrace.{CAPTURED}()"
    send = f"headrace.submit('{verb.name}', {sent}"
    if verb.waits:
        inside = f"PERFORM headrace.wait_here({', '.join(p.name for p in verb.parameters)})"
    elif verb.answer is not None and verb.asked and verb.reads:
        ask = f"headrace.ask_engine('{verb.name}', '{verb.called}', {sent}, {verb.slot})"
        inside = f"{verb.answer.name} := {verb.answer.value.format(ask)}"
    elif verb.answer is not None:
        inside = _REFUSED.format(verb.called)
    else:
        inside = f"PERFORM {send}, true)"
    return f"""CREATE OR REPLACE PROCEDURE headrace.{verb.called}({", ".join(declared)})
LANGUAGE plpgsql
AS $$
DECLARE
    command bigint;
    seen    pg_catalog.text;
    done    boolean := false;
    failed  pg_catalog.jsonb;
    refused pg_catalog.text;{secret}
BEGIN
    -- It always fails here, for another reason in a context that is not atomic.
    BEGIN
        COMMIT;
    EXCEPTION WHEN invalid_transaction_termination THEN
        refused := SQLERRM;
    END;
    IF refused OPERATOR(pg_catalog.=) headrace.refused_commit() THEN
        {inside};
        RETURN;
    END IF;
    COMMIT;
    command := {send});
    COMMIT;
    WHILE NOT done LOOP
        SELECT c.seen, c.done, c.failed INTO seen, done, failed FROM headrace.check_command(command, seen) c;
        COMMIT;
    END LOOP;
{FAILED}{answered}END
$$;
"""  # noqa: S608  names and types of our own table


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    return str(value).lower() if isinstance(value, bool) else f"'{value}'"
