"""``headrace init``: prepares the source with the rights of a superuser.

``script`` prints what is missing as a commented SQL script: the settings of the server, the
engine's role, its rights, and the role that evaluates functions of users.  ``provision`` runs it,
also for ``headrace start --setup``.  The user restarts Postgres when asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from headrace import clock
from headrace.config import Settings
from headrace.counting import counted, noun, shortened
from headrace.errors import HeadraceError, PrerequisiteError, TransientError, UserError
from headrace.postgres import acting, connect, encoding, pending
from headrace.server import login_hints, source_rights
from headrace.server.source_rights import LackingRight
from headrace.sql import install

Connection = psycopg.Connection[Any]
Say = Callable[[str], None]
Confirm = Callable[[str], bool]
"""Asks the user to do something; returns whether that was confirmed."""

_SLOTS_FREE: Final = 4
_SLOTS_NEEDED: Final = 2
"""One for the stream, one for populations."""
_RESTART_S: Final = 120.0
_POLL_S: Final = 0.2
_COMMENT_COLUMNS: Final = 96
_LINE_BREAK: Final = re.compile(r"[\r\n]")
"""End of a comment of SQL."""
_CALLERS_MAX: Final = 20
"""Number of roles to suggest as callers."""
_ROLE: Final = """
SELECT rolcanlogin, rolreplication, rolsuper, rolcreaterole
  FROM pg_catalog.pg_roles WHERE rolname = %s
"""
_OWNERS: Final = f"""
SELECT o.rolname, {acting.SUPERUSER} AS powerful, count(*) {source_rights.OWNERS}
   AND NOT coalesce((SELECT pg_catalog.pg_has_role(r.oid, o.oid, 'USAGE')
                       FROM pg_catalog.pg_roles r WHERE r.rolname = %(engine)s), false)
 GROUP BY o.oid, o.rolname ORDER BY o.rolname
"""  # noqa: S608  a constant
"""Owners of tables, of which the engine's role is not a member."""
_CALLERS: Final = f"""
SELECT o.rolname, {acting.SUPERUSER}, o.rolreplication FROM pg_catalog.pg_roles o
 WHERE o.rolcanlogin AND o.rolname <> %(engine)s AND o.rolname !~ '^(pg_|headrace_eval)'
   AND NOT coalesce((SELECT pg_catalog.pg_has_role(r.oid, o.oid, 'USAGE')
                       FROM pg_catalog.pg_roles r WHERE r.rolname = %(engine)s), false)
   AND pg_catalog.has_database_privilege(o.oid, pg_catalog.current_database(), 'CONNECT')
 ORDER BY o.rolname
"""  # noqa: S608  a constant
"""Roles that may log in here, of which the engine's role is not a member.

Whether the role is a superuser in effect, and whether it is made for replication.
"""
_LIMITS: Final = """
SELECT current_setting('wal_level'), current_setting('max_replication_slots')::int,
       current_setting('max_wal_senders')::int,
       (SELECT count(*) FROM pg_catalog.pg_replication_slots),
       (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE backend_type = 'walsender')
"""
_TRUSTED: Final = """
SELECT line_number FROM pg_catalog.pg_hba_file_rules
 WHERE auth_method = 'trust' AND (type = 'local') = %s
   AND database && ARRAY['all', pg_catalog.current_database()::text] ORDER BY line_number
"""


@dataclass(frozen=True, slots=True)
class SetupStep:
    """A statement to run, or a note without a statement."""

    about: str
    """Comment of the script: the reason, or a request to the user."""
    statement: sql.Composed | None = None
    shown: str = ""
    """Text of the statement without a password."""
    restart: bool = False
    """Whether it takes effect after a restart only."""
    optional: bool = False
    """Whether the user decides: the script has it as a comment."""


def script(settings: Settings, admin: str) -> list[str]:
    """Return the lines of a script that prepares the source, which ``admin`` leads to.

    Raises:
        UserError: 22023, ``admin`` leads to another database than the source.
        PrerequisiteError: the encoding of the database is not UTF8.
        TransientError: the server cannot be reached.
    """
    with _connected(admin, "--admin") as conn:
        _check_database(conn, settings)
        steps = _steps(conn, settings)
        head = (
            f"Prepares database {conn.info.dbname} for Headrace. Run it as a superuser, for"
            " example:"
        )
        out = [*_comment(head), "--   headrace init … | psql …"]
        for number, step in enumerate(steps):
            if number == 0 or step.about != steps[number - 1].about:
                out += ["", *_comment(step.about)]
            if step.statement is not None:
                text = f"{step.statement.as_string(conn)};"
                # A name may contain a line break.
                out += _commented(text) if step.optional else [text]
        if any(step.restart for step in steps):
            out += ["", *_comment("Restart Postgres afterwards, for its new settings.")]
        if not any(step.statement is not None and not step.optional for step in steps):
            out += ["", *_comment("Nothing else is missing.")]
    return [*out, "", *_comment("Then run headrace check, and headrace start.")]


def provision(settings: Settings, admin: str, flag: str, say: Say, confirm: Confirm) -> None:
    """Run what is missing on the source over the connection string ``admin`` of a superuser.

    ``flag`` is the option of that string.  ``say`` gets each statement.  ``confirm`` asks for a
    restart of Postgres.

    Raises:
        UserError: 42501, ``admin`` is no superuser; 22023, it leads to another database.
        PrerequisiteError: Postgres has not been restarted, or the encoding of the database is not
            UTF8.
        TransientError: the server cannot be reached.
    """
    with _connected(admin, flag) as conn:
        _check_superuser(conn)
        _check_database(conn, settings)
        steps = _steps(conn, settings)
        for step in steps:
            if step.statement is None or step.optional:
                continue
            conn.execute(step.statement)
            say(f"  {step.shown};")
        notes = dict.fromkeys(step.about for step in steps if step.statement is None)
        for line in (line for note in notes for line in _comment(note)):
            say(f"  {line}")
        if _needs_evaluator(conn, settings):
            install.ensure_eval_role(conn, settings.data_dir, settings.source)
            for lacking in source_rights.of_evaluators(conn, None):
                conn.execute(lacking.grant)
                say(f"  {lacking.grant.as_string(conn)};")
    if any(step.restart for step in steps):
        _await_restart(admin, confirm)


def _connected(admin: str, flag: str) -> Connection:
    try:
        return connect.connect(admin, name="headrace init", otherwise=UserError)
    except HeadraceError as error:
        cause = error.__cause__
        assert isinstance(cause, psycopg.Error), "the connection failed"
        raise error.again(hint=error.hint or login_hints.for_admin(cause, flag)) from cause


def admin_of(source: str) -> str:
    """Return the connection string of role ``postgres`` at the same server."""
    return _of_role(source, "postgres")


def _of_role(source: str, role: str) -> str:
    parts = conninfo_to_dict(source)
    parts.pop("password", None)
    return make_conninfo(**{**parts, "user": role})  # type: ignore[arg-type]


def _check_superuser(conn: Connection) -> None:
    row = conn.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone()
    if row != (True,):
        raise UserError(
            f'role "{conn.info.user}" is not a superuser',
            hint="Give the connection string of a superuser, or have headrace init print the script.",
            sqlstate="42501",
        )


def _check_database(conn: Connection, settings: Settings) -> None:
    wanted = str(conninfo_to_dict(settings.source).get("dbname") or "")
    if wanted and wanted != conn.info.dbname:
        raise UserError(
            f'the superuser\'s connection leads to database "{conn.info.dbname}", --source to'
            f' "{wanted}"',
            hint="Name the same database in both.",
            sqlstate="22023",
        )
    if problems := encoding.problems(conn):
        raise problems[0]


def _steps(conn: Connection, settings: Settings) -> list[SetupStep]:
    name = str(conninfo_to_dict(settings.source).get("user") or conn.info.user)
    return [
        *_limits(conn),
        *_role(conn, settings, name),
        *_memberships(conn, name),
        *_hardened(conn, settings, name),
        *_evaluator(conn, settings),
        *_trust(conn, settings),
    ]


def _limits(conn: Connection) -> Iterator[SetupStep]:
    """Yield statements for settings of the server that are too low."""
    row = conn.execute(_LIMITS).fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    level, slots_max, senders_max, slots, senders = row
    forbidden = pending.forbids_alter_system(conn)
    wanted = {
        "wal_level": (level == "logical", "logical", pending.is_logical),
        "max_replication_slots": (
            slots_max >= slots + _SLOTS_NEEDED,
            slots + _SLOTS_FREE,
            pending.at_least(slots + _SLOTS_NEEDED),
        ),
        "max_wal_senders": (
            senders_max >= senders + _SLOTS_NEEDED,
            senders + _SLOTS_FREE,
            pending.at_least(senders + _SLOTS_NEEDED),
        ),
    }
    for name, (well, value, suffices) in wanted.items():
        if well:
            continue
        if pending.is_pending(conn, name, suffices):
            yield SetupStep(f"The new value of {name} takes effect after a restart.", restart=True)
            continue
        if forbidden:
            about = f"Set {name} = {value} where the settings of Postgres are managed (it refuses"
            yield SetupStep(f"{about} ALTER SYSTEM), and restart it.", restart=True)
            continue
        text = sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.SQL(name), sql.Literal(value))
        yield SetupStep(
            "Headrace follows changes by logical replication.",
            text,
            text.as_string(conn),
            restart=True,
        )


def _role(conn: Connection, settings: Settings, name: str) -> Iterator[SetupStep]:
    """Yield statements that create the engine's role, or add what it lacks."""
    password = conninfo_to_dict(settings.source).get("password")
    role = sql.Identifier(name)
    about = "The role that Headrace connects as."
    found = conn.execute(_ROLE, (name,)).fetchone()
    if found is None:
        made = sql.SQL("CREATE ROLE {} LOGIN REPLICATION").format(role)
        shown = made.as_string(conn)
        if password:
            # Only the verifier: the server may log a statement, or show it while it runs.
            made += sql.SQL(" PASSWORD {}").format(sql.Literal(_verifier(conn, name, password)))
            shown += " PASSWORD '…'"
        else:
            about += f" Set its password afterwards, in psql: \\password {role.as_string(conn)}"
        yield SetupStep(about, made, shown)
    elif not found[2] and not (found[0] and found[1]):
        text = sql.SQL("ALTER ROLE {} LOGIN REPLICATION").format(role)
        yield SetupStep(about, text, text.as_string(conn))
    for lacking in source_rights.of_engine(conn, name):
        # Also what PUBLIC has today, so that revoking that does no harm.
        database = lacking.kind == "DATABASE"
        rights = source_rights.ENGINE if database else lacking.rights
        yield _given(conn, replace(lacking, rights=rights), about)


def _verifier(conn: Connection, name: str, password: Any) -> str:
    found = conn.pgconn.encrypt_password(str(password).encode(), name.encode(), b"scram-sha-256")
    return found.decode()


def _memberships(conn: Connection, name: str) -> Iterator[SetupStep]:
    """Yield grants of the roles that own tables or may call, and notes about the others."""
    engine = {"engine": name}
    owners: list[str] = []
    for owner, powerful, tables in conn.execute(_OWNERS, engine).fetchall():
        if powerful:
            # A member could become superuser.
            yield SetupStep(
                f'Views cannot read {counted(tables, "table")} of superuser "{owner}", unless another'
                " role owns them: ALTER TABLE … OWNER TO …"
            )
        else:
            owners.append(owner)
            yield _granted(
                conn, owner, name, "Only the owner of a table may publish it, and so its members."
            )
    callers = not_acted_for(conn, name)
    about = (
        "Headrace plans and reads with the rights of the role that calls create_view, so it must be"
        " a member of each such role. Uncomment these roles."
    )
    for caller in [caller for caller in callers.ordinary if caller not in owners][:_CALLERS_MAX]:
        yield _granted(conn, caller, name, about, optional=True)
        for lacking in source_rights.of_caller(conn, caller):
            yield _given(conn, lacking, about, optional=True)
    if callers.superusers:
        shown = shortened([f'"{role}"' for role in callers.superusers])
        yield SetupStep(
            f'A superuser cannot create views ({shown}): as its member, role "{name}" would be a'
            " superuser in effect. Instead connect as an ordinary role that owns the tables or may"
            " read them, or SET ROLE to it."
        )


@dataclass(frozen=True, slots=True)
class NotActedFor:
    """Roles that may log in, but not call ``create_view``: Headrace's role is no member of them."""

    ordinary: tuple[str, ...]
    """Headrace's role may become a member of these."""
    superusers: tuple[str, ...]
    """Superusers and members of superusers: as a member of one, Headrace would be a superuser."""
    replication: tuple[str, ...]
    """Roles with REPLICATION, which usually belong to standbys and backups."""


def not_acted_for(conn: Connection, engine: str) -> NotActedFor:
    """Return the roles that may log in here, and for which role ``engine`` may not act."""
    found = conn.execute(_CALLERS, {"engine": engine}).fetchall()
    rows = [(str(name), *kind) for name, *kind in found]
    return NotActedFor(
        tuple(name for name, powerful, replicates in rows if not (powerful or replicates)),
        tuple(name for name, powerful, _ in rows if powerful),
        tuple(name for name, powerful, replicates in rows if replicates and not powerful),
    )


def _granted(
    conn: Connection, role: str, to: str, about: str, *, optional: bool = False
) -> SetupStep:
    grant = acting.membership(role, to)
    return SetupStep(about, grant, grant.as_string(conn), optional=optional)


def _given(
    conn: Connection, lacking: LackingRight, about: str, *, optional: bool = False
) -> SetupStep:
    return SetupStep(about, lacking.grant, lacking.grant.as_string(conn), optional=optional)


def _hardened(conn: Connection, settings: Settings, name: str) -> Iterator[SetupStep]:
    """Yield grants of rights that were revoked from PUBLIC, to callers and evaluators."""
    about = "Rights that create_view needs of its callers, and that PUBLIC has not on this server."
    for lacking in source_rights.of_callers(conn, name):
        yield _given(conn, lacking, about)
    about = "The role that evaluates functions of users must be able to connect."
    for lacking in source_rights.of_evaluators(conn, evaluator_of(settings)):
        yield _given(conn, lacking, about)


def evaluator_of(settings: Settings) -> str | None:
    """Return the role in setting ``eval_dsn``; None: Headrace's default."""
    return conninfo_to_dict(settings.eval_dsn).get("user") if settings.eval_dsn else None  # type: ignore[return-value]


def _needs_evaluator(conn: Connection, settings: Settings) -> bool:
    """Return whether only a superuser can create the role that evaluates functions."""
    name = str(conninfo_to_dict(settings.source).get("user") or conn.info.user)
    role = conn.execute(_ROLE, (name,)).fetchone()
    may = role is not None and (role[2] or role[3])
    there = conn.execute(_ROLE, (install.EVAL_ROLE,)).fetchone()
    return not (settings.eval_dsn or may or there)


def _evaluator(conn: Connection, settings: Settings) -> Iterator[SetupStep]:
    if not _needs_evaluator(conn, settings):
        return
    dsn = _of_role(settings.source, install.EVAL_ROLE)
    text = sql.SQL("CREATE ROLE {} LOGIN NOINHERIT CONNECTION LIMIT 64").format(
        sql.Identifier(install.EVAL_ROLE)
    )
    about = (
        "Only for views that call functions of users: a role without rights evaluates them. Set its"
        f" password (in psql: \\password {install.EVAL_ROLE}), and HEADRACE_EVAL_DSN to"
        f' "{dsn} password=…". headrace init --run does this by itself, in the data directory.'
    )
    yield SetupStep(about, text, text.as_string(conn), optional=True)
    for lacking in source_rights.of_evaluator(conn, install.EVAL_ROLE):
        yield _given(conn, lacking, about, optional=True)


def _trust(conn: Connection, settings: Settings) -> Iterator[SetupStep]:
    """Yield a note if the source may let clients in without a password: they are refused."""
    if settings.allow_trust:
        return
    local = not conn.info.host or conn.info.host.startswith("/")
    try:
        with conn.transaction():
            rows = conn.execute(_TRUSTED, (local,)).fetchall()
    except psycopg.errors.InsufficientPrivilege:
        return
    if rows:
        lines = f"{noun(len(rows), 'line')} {', '.join(str(row[0]) for row in rows)}"
        yield SetupStep(
            f"pg_hba.conf lets clients in without a password (trust, {lines}). Headrace's port"
            " refuses clients that it cannot identify: write scram-sha-256 there, or set"
            " HEADRACE_ALLOW_TRUST=true if everybody who reaches the port may be any role."
        )


def _comment(text: str) -> list[str]:
    """Return ``text`` as comments; a line break in it, for example of a name, becomes a space."""
    words = wrap(text, _COMMENT_COLUMNS, break_on_hyphens=False, break_long_words=False)
    return [f"-- {line}" for line in words]


def _commented(text: str) -> list[str]:
    return [f"-- {line}" for line in _LINE_BREAK.split(text)]


def _await_restart(admin: str, confirm: Confirm) -> None:
    """Wait until Postgres was restarted, once the user says so.

    Raises:
        PrerequisiteError: it was not.
    """
    lacking = PrerequisiteError(
        "Postgres must be restarted: its new settings take effect then",
        hint="Restart it, and run this command again.",
        sqlstate="55000",
    )
    if not confirm("Restart Postgres now, for its new settings. Then press Enter: "):
        raise lacking
    until = clock.monotonic() + _RESTART_S
    while clock.monotonic() < until:
        try:
            with connect.connect(admin, name="headrace init") as conn:
                if not any(step.restart for step in _limits(conn)):
                    return
        except (TransientError, psycopg.Error):
            pass
        clock.sleep(_POLL_S)
    raise lacking
