"""Installation of the SQL objects of schema ``headrace`` in a source database, and their removal.

Each object is one ``.sql`` file, except the procedures (``sql/calls.py``); ``FILES`` is the load
order.  All files are idempotent (``IF NOT EXISTS``, ``OR REPLACE``), so ``install`` is also the
upgrade, after the steps that tables of an earlier version need (``sql/upgrades.py``).  A catalog
of a later version is not touched.  Where nothing would change (``sql/installed.py``), nothing is
run.  All objects belong to the engine's role; PUBLIC may read the catalog and call the procedures.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, Final

import psycopg
import structlog
from psycopg import sql
from psycopg.conninfo import make_conninfo

from headrace import clock
from headrace.errors import PrerequisiteError
from headrace.postgres.connect import log_in
from headrace.postgres.statements import alone
from headrace.sql import (
    adopted,
    calls,
    comments,
    installed,
    meta,
    owned,
    publication_trigger,
    restored,
    schemas,
    upgrades,
    views,
)

EVAL_ROLE: Final = "headrace_eval"
_OURS: Final = "headrace of database {}"
"""Comment on the role that we have made for a database, with the database's OID."""

FILES: Final = (
    "schema.sql",
    "meta.sql",
    "views.sql",
    "progress.sql",
    "covered.sql",
    "samples.sql",
    "held.sql",
    "facts.sql",
    "events.sql",
    "view_tables.sql",
    "view_uses.sql",
    "made_schemas.sql",
    "histories.sql",
    "history.sql",
    "feeds.sql",
    "has_room_for_feed.sql",
    "assertion_states.sql",
    "violations.sql",
    "webhook_targets.sql",
    "webhook_deliveries.sql",
    "points.sql",
    "nodes.sql",
    "origins.sql",
    "stand_ins.sql",
    "carrier.sql",
    "refuse_rows.sql",
    "commands.sql",
    "table_mark.sql",
    "result_identity.sql",
    "engine_running.sql",
    "refused_commit.sql",
    "submit.sql",
    "check_command.sql",
    "raise_error.sql",
    "command_result.sql",
    "pose_question.sql",
    "send_arguments.sql",
    "ask_engine.sql",
    "carry_out.sql",
    "what_if_facts.sql",
    "what_if_hold.sql",
    "what_if_rows.sql",
    "what_if.sql",
    "find_view.sql",
    "wait_here.sql",
    "calls.sql",
    "verify_view.sql",
    "queues.sql",
    "memory.sql",
    "hmac_sha256.sql",
    "join_worker.sql",
    "workers.sql",
    "links.sql",
    "sources.sql",
    "clients.sql",
    "client_stats.sql",
    "settings.sql",
    "rebalance.sql",
    "explain_placement.sql",
    "why.sql",
    "why_not.sql",
    "view_stats.sql",
    "view_message.sql",
    "worker_position.sql",
    "view_states.sql",
    "batch_s.sql",
    "at_work.sql",
    "worker_running.sql",
    "list_views.sql",
    "lag_history.sql",
    "status.sql",
    "batches.sql",
    "explain_view.sql",
    "lineage.sql",
    "advise.sql",
    "assertion_rows.sql",
    "assertions.sql",
    "webhooks.sql",
    "check_assertion.sql",
    "connection_points.sql",
    "history_of.sql",
    "view_txid.sql",
    "history_lost.sql",
    "view_changes.sql",
    "history_times.sql",
    "rows_as_of.sql",
    "await_history.sql",
    "await_txid.sql",
    "view_as_of.sql",
    "net_changes.sql",
    "view_diff.sql",
    "who_changed.sql",
    "feed_of.sql",
    "create_feed.sql",
    "drop_feed.sql",
    "feed_read.sql",
    "feed_ack.sql",
    "privacy.sql",
    "grants.sql",
)

_EACH_START: Final = "result_identity.sql"
"""File that is run at each start, because it is about result tables and not the schema."""

Connection = psycopg.Connection[Any]

_log = structlog.get_logger(__name__)
# One installer at a time: two CREATE OR REPLACE of one function can collide (XX000 "tuple
# concurrently updated").
_INSTALL_LOCK: Final = 0x4844_5201
# Shorter than the usual deadlock_timeout (1 s), so that a reader is never cancelled.
_WAIT: Final = "SET LOCAL lock_timeout = '300ms'"
_AGAIN_S: Final = 1.0
_LOOK_S: Final = 0.5
_TELL_S: Final = 10.0
"""Seconds between two log lines about one wait."""
# A prepared transaction has locks and no process.
_BLOCKERS: Final = """
SELECT pg_catalog.string_agg(h.words, ', ' ORDER BY h.since) FROM (
  SELECT DISTINCT coalesce(a.xact_start, p.prepared) AS since, CASE WHEN p.gid IS NULL
         THEN pg_catalog.format('process %s (role %s, application %s, transaction open for %s)',
              l.pid, coalesce(a.usename, '?'), pg_catalog.quote_literal(a.application_name),
              pg_catalog.date_trunc('second', pg_catalog.clock_timestamp() - a.xact_start))
         ELSE pg_catalog.format('prepared transaction %L (role %s, since %s)', p.gid, p.owner,
              pg_catalog.date_trunc('second', p.prepared)) END AS words
    FROM pg_catalog.pg_locks l
    JOIN pg_catalog.pg_class c ON l.locktype = 'relation' AND c.oid = l.relation
     AND c.relnamespace = pg_catalog.to_regnamespace('headrace')
    LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
    LEFT JOIN pg_catalog.pg_prepared_xacts p ON l.pid IS NULL
     AND l.virtualtransaction = '-1/' || p.transaction
   WHERE l.granted AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid()
     AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d
                        WHERE d.datname = pg_catalog.current_database())
     AND (l.pid IS NULL OR a.xact_start < pg_catalog.clock_timestamp() - interval '1 s')) h"""


def statements(name: str) -> str:
    """Return the text of the SQL file ``name``."""
    text = resources.files("headrace.sql").joinpath(name).read_text(encoding="utf-8")
    return text.replace(calls.RAISED, calls.FAILED)


def scripts() -> Iterator[str]:
    """Yield the statements that create everything, in order; the grants come last."""
    for name in FILES:
        if name == FILES[-1]:
            yield from calls.texts()
            yield publication_trigger.text()
            yield comments.text()
        yield statements(name)
        if name == FILES[0]:
            yield calls.captured()  # for functions in SQL, whose bodies Postgres checks at once


def made() -> list[str]:
    """Return the names of all installed objects; a file has the name of its object."""
    names = [name.removesuffix(".sql") for name in FILES]
    return [*names, calls.CAPTURED, *calls.names(), publication_trigger.NAME, "help"]


def adopt(conn: Connection) -> adopted.AdoptedCatalog:
    """Install as ``install`` does, and adopt a catalog that was restored from a dump.

    Raises:
        PrerequisiteError: as ``install``; or the catalog was not restored, or cannot be adopted.
    """
    _check(conn)
    if restored.problem(conn) is None:
        raise PrerequisiteError(
            "there is nothing to adopt: schema headrace was not restored from a dump",
            hint="Start Headrace: headrace start.",
            sqlstate="55000",
        )
    found = _repeated(conn, adopt=True)
    assert found is not None, "it was restored"
    return found


def install(conn: Connection) -> None:
    """Create or upgrade every object, in one transaction; idempotent.

    An installation that would change nothing takes no lock that conflicts with a reader.  Any other
    waits for transactions that have read or written the catalog, and logs which they are.  It
    keeps no reader waiting longer than ``lock_timeout``, and makes none the victim of a deadlock.

    Raises:
        PrerequisiteError: the role may not create the schema, or an existing object is
            not ours or of a later version.
    """
    _repeated(conn, adopt=False)


def _repeated(conn: Connection, *, adopt: bool) -> adopted.AdoptedCatalog | None:
    since = clock.monotonic()
    while True:
        try:
            return _install(conn, adopt=adopt)
        except (psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable):
            _wait(conn, since)
            clock.sleep(_AGAIN_S * secrets.randbelow(100) / 100)


def _wait(conn: Connection, since: float) -> None:
    """Wait until no transaction that is older than a second has a lock in the schema.

    It requests no lock itself, because new readers would queue behind that request.
    ``since``: start of the installation, on the monotonic clock.
    """
    tell_at = 0.0
    while (blockers := _blockers(conn)) is not None:
        now = clock.monotonic()
        if now >= tell_at:
            _log.warning("installation waits", waits_for=blockers, seconds=round(now - since))
            tell_at = now + _TELL_S
        clock.sleep(_LOOK_S)


def _blockers(conn: Connection) -> str | None:
    row = conn.execute(_BLOCKERS).fetchone()
    return None if row is None else row[0]


def _install(conn: Connection, *, adopt: bool) -> adopted.AdoptedCatalog | None:
    found = None
    with conn.transaction():
        alone(conn, _INSTALL_LOCK)
        conn.execute(_WAIT)
        conn.execute("SET LOCAL search_path = pg_catalog")
        conn.execute("SET LOCAL client_min_messages = warning")
        _check(conn)
        stale = restored.problem(conn)
        if stale and not adopt:
            raise stale
        number = upgrades.found(conn)
        texts = list(scripts())
        if not stale and number == upgrades.CATALOG and installed.unchanged(conn, texts):
            conn.execute(statements(_EACH_START).encode())
            restored.note(conn)
            return None
        schema, *others = texts
        try:
            # Our constant texts hold several statements, so they take no parameters.
            conn.execute(schema.encode())
            # From here on no other role can create objects in the schema.
            owned.check(conn, [*made(), *upgrades.GONE])
            before = upgrades.routines(conn)
            for text in [*map(statements, upgrades.steps(number)), *others]:
                # That file finds result tables by their OIDs; all tables exist before it.
                if stale and text == statements(_EACH_START):
                    found = adopted.adopt(conn)
                conn.execute(text.encode())
            if number is not None and number < upgrades.CATALOG:
                upgrades.drop_former(conn, before)
            # A namesake with other arguments is found only once our routine exists beside it.
            owned.check(conn, made())
        except psycopg.errors.InsufficientPrivilege as error:
            raise PrerequisiteError(
                f"could not install schema headrace: {error.diag.message_primary}",
                hint="Grant CREATE on the database to the role of headrace.",
                sqlstate="42501",
            ) from error
        except psycopg.errors.DependentObjectsStillExist as error:
            raise PrerequisiteError(
                f"could not upgrade schema headrace: {error.diag.message_primary}",
                detail=error.diag.message_detail,
                hint="Drop the dependent objects, start Headrace, and create them again; they may"
                " need changes.",
                sqlstate="2BP01",
            ) from error
        meta.put(conn, upgrades.KEY, str(upgrades.CATALOG))
        restored.note(conn)
        installed.note(conn, texts)
    if number is not None and number != upgrades.CATALOG:
        _log.info("catalog upgraded", before=number, now=upgrades.CATALOG)
    return found


def problems(conn: Connection) -> list[PrerequisiteError]:
    """Return foreign objects in the place of ours or attached to them, or that it is of later."""
    later = upgrades.problem(conn)
    return [later] if later else owned.problems(conn, [*made(), *upgrades.GONE])


def hindrances(conn: Connection) -> list[PrerequisiteError]:
    """Return what prevents a start here: ``problems``, or a catalog restored from a dump."""
    found = problems(conn)
    stale = None if found else restored.problem(conn)
    return [stale] if stale else found


def _check(conn: Connection) -> None:
    """Raise the first of ``problems`` (42501, 55000)."""
    if later := upgrades.problem(conn):
        raise later
    owned.check(conn, [*made(), *upgrades.GONE])


def uninstall(conn: Connection, *, tables: bool = False) -> list[str]:
    """Remove the schema with its contents; return the result tables (schema.name).

    Result tables stay as ordinary tables, unless ``tables``: then they are dropped too
    (an object that depends on one makes the whole uninstall fail, with Postgres' message).
    After a restored dump it is not known which they are, and ``tables`` is an error.
    The eval role is dropped unless another database needs it.

    Raises:
        PrerequisiteError: as ``install``; or ``tables`` after a restored dump.
    """
    with conn.transaction():
        alone(conn, _INSTALL_LOCK)
        names: list[str] = []
        _check(conn)
        stale = restored.problem(conn)
        if stale and tables:
            raise PrerequisiteError(
                stale.message,
                detail=stale.detail,
                hint="Uninstall without --drop-tables, and drop the tables by their names.",
                sqlstate="55000",
            )
        if views.installed(conn) and not stale:
            for schema, table in views.tables(conn):
                name = sql.Identifier(schema, table)
                names.append(name.as_string(conn))
                if tables:
                    conn.execute(sql.SQL("DROP TABLE {}").format(name))
            if tables:
                _drop_made_schemas(conn)
        conn.execute("SET LOCAL client_min_messages = warning")
        conn.execute("DROP SCHEMA IF EXISTS headrace CASCADE")
    _drop_eval_role(conn)
    return names


def _drop_made_schemas(conn: Connection) -> None:
    """Drop the schemas that create_view has made, where they are empty."""
    for name in schemas.made(conn):
        with (
            contextlib.suppress(
                psycopg.errors.DependentObjectsStillExist, psycopg.errors.InsufficientPrivilege
            ),
            conn.transaction(),
        ):
            conn.execute(sql.SQL("DROP SCHEMA {}").format(sql.Identifier(name)))


def ensure_eval_role(conn: Connection, data_dir: Path, source: str) -> str | None:
    """Return the DSN of role ``headrace_eval``, made when missing; None where not permitted.

    The role may log in and nothing else.  Its random password is only in a file of mode 0600 in
    ``data_dir``.  Roles belong to the whole server: where the role is another engine's, whose
    password we must not change, this database gets its own role, with the database's OID in its
    name.  Every role may change its own password and settings, so those of our role are reset.
    """
    secret = eval_password(data_dir)
    try:
        for role, shared in ((EVAL_ROLE, True), (f"{EVAL_ROLE}_{_database_oid(conn)}", False)):
            # Another database's engine may create the shared role at the same time.
            collided = (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateObject)
            for anew in (False, True):
                dsn = None
                with contextlib.suppress(*collided), conn.transaction():
                    dsn = _eval_dsn(conn, role, secret, source, shared=shared, anew=anew)
                if dsn and _can_log_in(dsn):
                    return dsn
    except psycopg.errors.InsufficientPrivilege as error:
        _log.warning(
            "eval role not available",
            reason=error.diag.message_primary,
        )
    return None


def eval_password(data_dir: Path) -> Path:
    """Return the path of the file with the password of ``headrace_eval``."""
    return data_dir / "eval_password"


def _eval_dsn(
    conn: Connection, role: str, secret: Path, source: str, *, shared: bool, anew: bool
) -> str | None:
    """Return the DSN of ``role``, created if missing; None if it has too many rights to be used.

    ``anew``: set its password again, if the role is ours; else return None.
    """
    alone(conn, _INSTALL_LOCK)
    ours = _is_ours(conn, role)
    if anew and not ours:
        return None
    if ours:
        _reset(conn, role)
    found = conn.execute(
        "SELECT rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication"
        " OR rolbypassrls OR NOT rolcanlogin OR EXISTS ("
        "SELECT FROM pg_catalog.pg_auth_members m WHERE m.member = r.oid)"
        # Members may act as the role; its creator is a member since Postgres 16.
        " OR EXISTS (SELECT FROM pg_catalog.pg_auth_members m"
        " JOIN pg_catalog.pg_roles g ON g.oid = m.member"
        " WHERE m.roleid = r.oid AND g.rolname <> current_user AND NOT g.rolsuper)"
        " OR EXISTS (SELECT FROM pg_catalog.pg_db_role_setting s WHERE s.setrole = r.oid)"
        " FROM pg_catalog.pg_roles r WHERE rolname = %s",
        (role,),
    ).fetchone()
    if found and found[0]:
        _log.warning("eval role not used", role=role)
        return None
    password = _read_secret(secret)
    name = sql.Identifier(role)
    if not found:
        conn.execute(sql.SQL("CREATE ROLE {} LOGIN NOINHERIT CONNECTION LIMIT 64").format(name))
        _let_connect(conn, name)
        # The comment names our database, so that another one's uninstall leaves the role alone.
        conn.execute(
            sql.SQL("COMMENT ON ROLE {} IS {}").format(
                name, sql.Literal(_OURS.format(_database_oid(conn)))
            )
        )
    if not found or anew or (password is None and not shared):
        password = password or secrets.token_urlsafe(32)
        # Send only the verifier: the server may log a statement, or show it while it runs.
        verifier = conn.pgconn.encrypt_password(
            password.encode(), role.encode(), b"scram-sha-256"
        ).decode()
        conn.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(name, sql.Literal(verifier)))
        _write_secret(secret, password)
    return make_conninfo(source, user=role, password=password)


def _let_connect(conn: Connection, role: sql.Identifier) -> None:
    """Grant CONNECT on this database, if PUBLIC has it not and we may."""
    row = conn.execute(
        "SELECT pg_catalog.has_database_privilege('public', current_database(), 'CONNECT'),"
        " pg_catalog.has_database_privilege(current_database(), 'CONNECT WITH GRANT OPTION'),"
        " current_database()"
    ).fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    if row[1] and not row[0]:
        conn.execute(
            sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(sql.Identifier(row[2]), role)
        )


def _is_ours(conn: Connection, role: str) -> bool:
    """Return whether we have made ``role`` for this database."""
    row = conn.execute(
        "SELECT pg_catalog.shobj_description(r.oid, 'pg_authid') = %s"
        " FROM pg_catalog.pg_roles r WHERE r.rolname = %s",
        (_OURS.format(_database_oid(conn)), role),
    ).fetchone()
    return bool(row and row[0])


def _reset(conn: Connection, role: str) -> None:
    """Reset all settings of ``role``, here and in other databases."""
    rows = conn.execute(
        "SELECT d.datname FROM pg_catalog.pg_db_role_setting s"
        " JOIN pg_catalog.pg_roles r ON r.oid = s.setrole AND r.rolname = %s"
        " LEFT JOIN pg_catalog.pg_database d ON d.oid = s.setdatabase",
        (role,),
    ).fetchall()
    for (database,) in rows:
        _log.warning("settings of the eval role are reset", role=role)
        where = sql.SQL("IN DATABASE {} ").format(sql.Identifier(database or ""))
        conn.execute(
            sql.SQL("ALTER ROLE {} {}RESET ALL").format(
                sql.Identifier(role), where if database else sql.SQL("")
            )
        )


def _database_oid(conn: Connection) -> int:
    row = conn.execute(
        "SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database()"
    ).fetchone()
    assert row is not None, "the current database exists"
    return int(row[0])


def _can_log_in(dsn: str) -> bool:
    """Return whether pg_hba.conf lets the eval role in; if not, the role is useless."""
    try:
        log_in(dsn)
    except psycopg.OperationalError as error:
        _log.warning("eval role cannot log in", reason=str(error).strip())
        return False
    return True


def _drop_eval_role(conn: Connection) -> None:
    """Drop our eval roles that have no session."""
    # Another engine of the server may use one; its own uninstall removes it then.
    refused = (
        psycopg.errors.UndefinedObject,
        psycopg.errors.InsufficientPrivilege,
        psycopg.errors.DependentObjectsStillExist,
        psycopg.errors.ObjectInUse,
    )
    rows = conn.execute(
        "SELECT rolname FROM pg_catalog.pg_roles r"
        " WHERE pg_catalog.shobj_description(r.oid, 'pg_authid') ="
        " %s AND NOT EXISTS ("
        "SELECT FROM pg_catalog.pg_stat_activity a WHERE a.usename = r.rolname)",
        (_OURS.format(_database_oid(conn)),),
    ).fetchall()
    for (role,) in rows:
        with contextlib.suppress(*refused), conn.transaction():
            conn.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def _read_secret(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except FileNotFoundError:
        return None


def _write_secret(path: Path, password: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(password)
