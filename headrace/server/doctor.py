"""``headrace check``: checks each prerequisite of ``start``, with its remedy.

Nothing is created or changed.  Without a connection the checks of the source are left out.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import psycopg
from psycopg import sql

from headrace import clock
from headrace.config import ENV_SETTINGS, Settings, address
from headrace.counting import counted, noun, shortened
from headrace.errors import HeadraceError, PrerequisiteError
from headrace.postgres import acting, connect, decoding_standby, encoding, pending
from headrace.postgres import slot as setup
from headrace.process import directory_lock, password_files, rpc, secret_files
from headrace.redaction import redact
from headrace.server import login_hints, provisioning, source_rights, standby_check, traces
from headrace.sql import install, views
from headrace.state import formats

Connection = psycopg.Connection[Any]

_DISK_BYTES_MIN: Final = 1 << 30
_SKEW_S_MAX: Final = 5.0
_SPARK_S: Final = 90.0
_ANSWER: Final = msgspec.json.Decoder(dict[str, str | None])
_TABLES: Final = f"""
SELECT pg_catalog.format('%I.%I', n.nspname, c.relname),
       pg_catalog.has_table_privilege(c.oid, 'SELECT')
         AND pg_catalog.has_schema_privilege(n.oid, 'USAGE'),
       pg_catalog.pg_has_role(c.relowner, 'USAGE'), {acting.SUPERUSER}
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_catalog.pg_roles o ON o.oid = c.relowner
 WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
   AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'headrace') ORDER BY 1
"""  # noqa: S608  a constant
_GRANTS_MAX: Final = 12
"""Number of statements to show in one line."""
_COPIED: Final = 'This database has views, so it is probably a copy of "{}".'


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check."""

    name: str
    found: str = ""
    problem: HeadraceError | None = None
    """Why ``start`` would fail, and the remedy."""
    warning: str | None = None
    """A condition that does not prevent ``start`` but may need attention."""

    @property
    def mark(self) -> str:
        """✓ passed, ✗ failed, or ! for a warning."""
        return "✗" if self.problem else "!" if self.warning else "✓"

    def lines(self) -> Iterator[str]:
        """Yield the lines to print."""
        yield f"{self.mark} {self.name}{': ' if self.found else ''}{self.found}"
        if self.warning:
            yield f"    {self.warning}"
        if self.problem is not None:
            for text in (self.problem.message, self.problem.detail, self.problem.hint):
                if text:
                    yield f"    {text}"


def look(settings: Settings) -> list[Finding]:
    """Return all findings, in the order in which ``start`` meets them."""
    out = [*_machine(settings)]
    try:
        conn = connect.connect(settings.source, name="headrace check")
    except HeadraceError as error:
        return [*out, Finding("source", redact(settings.source), login_hints.with_hint(error))]
    with conn:
        out.append(Finding("source", redact(settings.source)))
        out += _database(conn, settings)
    return out


# --- this machine


def _machine(settings: Settings) -> Iterator[Finding]:
    yield _tried("data directory", lambda: _data_dir(settings.data_dir))
    yield _disk(settings.data_dir)
    if later := formats.later(states_of(settings)):
        yield Finding("state", problem=later)
    yield _tried("sockets", lambda: _sockets(settings))
    yield _tried("secret files", lambda: _secret_files(settings))
    yield _memory(settings)
    if settings.otlp_endpoint:
        yield _tried("traces", lambda: _traces(settings))
    for name, where in (("port", settings.listen), ("http port", settings.http)):
        if where:
            yield _tried(name, lambda where=where: _port(where))  # type: ignore[misc]


def _tried(name: str, act: Callable[[], str]) -> Finding:
    try:
        return Finding(name, act())
    except HeadraceError as error:
        return Finding(name, problem=error)
    except OSError as error:
        return Finding(name, problem=PrerequisiteError(str(error)))


def try_spark(settings: Settings) -> Finding:
    """Try Spark in another process, which may start a JVM; views can do without it."""
    env = os.environ | {ENV_SETTINGS: settings.to_json()}
    command = [sys.executable, "-m", "headrace.population.try_spark"]
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=_SPARK_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Finding("spark", warning=f"Spark has not answered within {_SPARK_S:.0f} s.")
    lines = done.stdout.splitlines()
    told = _ANSWER.decode(lines[-1]) if lines and not done.returncode else {}
    if "found" in told:
        return Finding("spark", told["found"] or "")
    said = told.get("message") or "Spark could not be tried"
    hint = told.get("hint") or "See docs/manual/spark.md."
    return Finding("spark", warning=f"{said}. {hint}")


def _data_dir(path: Path) -> str:
    there = next(p for p in (path, *path.parents) if p.exists())
    if not there.is_dir():
        raise PrerequisiteError(
            f'"{there}" is not a directory', hint="Choose another one with --data-dir DIR."
        )
    if not os.access(there, os.W_OK | os.X_OK):
        raise PrerequisiteError(
            f'"{there}" cannot be written',
            hint="Choose another directory with --data-dir DIR, or grant write access to this one.",
        )
    if directory_lock.is_held(path):
        raise directory_lock.in_use(path)
    return str(path)


def _disk(path: Path) -> Finding:
    """Warn only, never fail: after the disk was full a restart must be possible."""
    there = next(p for p in (path, *path.parents) if p.exists())
    free = shutil.disk_usage(there).free
    if free >= _DISK_BYTES_MIN:
        return Finding("disk", f"{free >> 30} GB free")
    found = f"{free >> 20} MB free"
    warning = "The data directory holds states, queues and populations: provide some gigabytes."
    return Finding("disk", found, warning=warning)


def states_of(settings: Settings) -> list[Path]:
    """Return the state databases in the data directory: the worker's and those of local workers."""
    others = sorted(settings.workers_dir.glob("*/"))
    return [settings.state_dir, *(settings.of_worker(p.name).state_dir for p in others)]


def _sockets(settings: Settings) -> str:
    rpc.check(settings.worker_socket, settings.builder_socket)
    return str(settings.run_dir)


def _secret_files(settings: Settings) -> str:
    for dsn in filter(None, (settings.source, settings.decode_from)):
        password_files.check(dsn)
    for path in (settings.tls_key, settings.console_token_file):
        if path:
            secret_files.check(Path(path))
    return "not readable by other users"


def _memory(settings: Settings) -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = f"memory_bytes {settings.memory_bytes >> 20} MB of {total >> 20} MB"
    if settings.memory_bytes > total * 3 // 4:
        return Finding(
            "memory",
            found,
            warning="Lower memory_bytes, so that a quarter remains for other processes.",
        )
    return Finding("memory", found)


def _traces(settings: Settings) -> str:
    traces.check(settings)
    return settings.otlp_endpoint


def _port(where: str) -> str:
    host, port = address(where)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
        except OSError as error:
            raise PrerequisiteError(
                f"cannot listen on {where}: {error.strerror}",
                hint="Another program may use the port; choose another with --listen or --http.",
                sqlstate="55006",
            ) from error
    return where


# --- the source


def _database(conn: Connection, settings: Settings) -> Iterator[Finding]:
    version = conn.info.server_version
    shown = f"Postgres {version // 10_000}.{version % 10_000}"
    well = f"{shown}, wal_level logical, a slot free, replication allowed"
    lacking = [*encoding.problems(conn), *setup.preflight(conn, settings)]
    yield from _each("server", well, lacking)
    yield _login(conn, settings)
    yield from _rights(conn, settings)
    yield from _each(
        "schema headrace", "of the engine's role, or does not exist yet", install.hindrances(conn)
    )
    if settings.decode_from:
        yield from _standby(conn, settings)
    else:
        yield _slot(conn, settings)
    for found, warning in standby_check.findings(conn, settings):
        yield Finding("failover", found, warning=warning)
    yield _senders(conn)
    yield _tables(conn)
    yield _callers(conn)
    yield from _rights_of_callers(conn)
    yield _clock(conn)


def _each(name: str, well: str, problems: Sequence[HeadraceError]) -> Iterator[Finding]:
    """Yield a finding for each problem; ``well`` if there is none."""
    if not problems:
        yield Finding(name, well)
    for problem in problems:
        yield Finding(name, problem=problem)


def _login(conn: Connection, settings: Settings) -> Finding:
    """Warn if the source would let clients in without authentication: they are refused."""
    if conn.pgconn.used_password:
        return Finding("logins", "the source asks for a password")
    if conn.info.get_parameters().get("sslcert"):
        return Finding("logins", "with the engine's certificate")
    if settings.allow_trust:
        return Finding("logins", "without authentication (allow_trust)")
    return Finding(
        "logins",
        "the source asks for no password",
        warning="Clients of the port would be refused (28000): require a password in pg_hba.conf of the"
        " source, or turn on allow_trust (HEADRACE_ALLOW_TRUST=true).",
    )


def _rights(conn: Connection, settings: Settings) -> Iterator[Finding]:
    """Report rights of Headrace's role and the evaluating role that PUBLIC may have had."""
    user = conn.info.user
    lacking = source_rights.of_engine(conn, user)
    if not lacking:
        yield Finding("rights", f'role "{user}" may create in the database')
    needed = "CREATE" if views.installed(conn) else "USAGE"
    for right in lacking:
        hint = f"{right.grant.as_string(conn)};"
        lacks = f'role "{user}" lacks {right.shown}'
        if {"CREATE", needed} & set(right.rights):
            problem = PrerequisiteError(lacks, hint=hint, sqlstate="42501")
            yield Finding("rights", problem=problem)
        else:
            # The schema is there, so the server starts; but some calls fail.
            yield Finding("rights", lacks, warning=hint)
    for right in source_rights.of_evaluators(conn, provisioning.evaluator_of(settings)):
        warning = f"Functions of users cannot be evaluated: {right.grant.as_string(conn)};"
        yield Finding("evaluator", f'role "{right.role}" lacks {right.shown}', warning=warning)


def _slot(conn: Connection, settings: Settings) -> Finding:
    row = conn.execute(
        "SELECT database, plugin, active, database = current_database()"
        " FROM pg_catalog.pg_replication_slots WHERE slot_name = %s",
        (settings.slot_name,),
    ).fetchone()
    if row is None:
        return Finding("slot", f"{settings.slot_name} will be created")
    database, plugin, active, ours = row
    if ours and plugin == "pgoutput":
        return Finding("slot", f"{settings.slot_name}{', in use now' if active else ''}")
    # A database without views is a second one on the server, not a copy.
    copied = views.installed(conn)
    return Finding(
        "slot",
        problem=PrerequisiteError(
            f'slot "{settings.slot_name}" belongs to database "{database}", plugin "{plugin}"',
            detail=_COPIED.format(database) if copied else None,
            hint="Slots are per server: choose another --slot-name for this database.",
            sqlstate="55006",
        ),
    )


def _standby(conn: Connection, settings: Settings) -> Iterator[Finding]:
    try:
        for found, warning in standby_check.decoding(conn, settings):
            yield Finding("standby", found, warning=warning)
        with decoding_standby.connected(settings, conn) as standby:
            yield _slot(standby, settings)
    except decoding_standby.StandbyUnavailable as error:
        # Views wait for it, and say why.
        yield Finding("standby", redact(settings.decode_from), warning=f"{error.message}.")
    except HeadraceError as error:
        yield Finding("standby", redact(settings.decode_from), error)


def _senders(conn: Connection) -> Finding:
    row = conn.execute(
        "SELECT current_setting('max_wal_senders')::int,"
        " (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE backend_type = 'walsender')"
    ).fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    most, used = row
    found = f"{most - used} of {most} free"
    if most - used >= 2:
        return Finding("walsenders", found)
    return Finding(
        "walsenders",
        found,
        PrerequisiteError(
            "two free walsenders are needed: one for the stream, one for populations",
            hint=pending.remedy(conn, "max_wal_senders", used + 4, pending.at_least(used + 2)),
            sqlstate="53300",
        ),
    )


def _tables(conn: Connection) -> Finding:
    rows = conn.execute(_TABLES).fetchall()
    lacking = [row for row in rows if not (row[1] and row[2])]
    found = f"views can read {len(rows) - len(lacking)} of {len(rows)}"
    if not lacking:
        return Finding("tables", found)
    ordinary, powerful = ([row[0] for row in lacking if row[3] == kind] for kind in (False, True))
    warnings = []
    if ordinary:
        warnings.append(
            f"Views cannot read {shortened(ordinary)}: the engine's role must own a table to publish"
            " it, or be a member of its owner (GRANT owner TO that role)."
        )
    if powerful:
        warnings.append(
            f"Views cannot read {shortened(powerful)}, which {noun(len(powerful), 'belongs', 'belong')}"
            f" to a superuser. {acting.OWN_SUPERUSER}"
        )
    return Finding("tables", found, warning=" ".join(warnings))


def _callers(conn: Connection) -> Finding:
    """Warn about roles that the engine may not act for, with the statement that changes it."""
    engine = conn.info.user
    lacking = provisioning.not_acted_for(conn, engine)
    superusers, replication, ordinary = (
        [sql.Identifier(role).as_string(conn) for role in roles]
        for roles in (lacking.superusers, lacking.replication, lacking.ordinary)
    )
    # No remedy: a superuser may connect as another role, and replication needs no views.
    others = []
    if superusers:
        others.append(f"superusers ({shortened(superusers)})")
    if replication:
        others.append(f"roles for replication ({shortened(replication)})")
    if not ordinary:
        found = "every role that may log in can create views"
        return Finding("callers", f"{found}{', except ' if others else ''}{' and '.join(others)}")
    found = f"{counted(len(ordinary), 'role')} cannot create views"
    return Finding(
        "callers",
        f"{found}{', nor can ' if others else ''}{' and '.join(others)}",
        warning=f"Headrace may not act for {shortened(ordinary)}. For those that should create views:"
        f" GRANT role TO {sql.Identifier(engine).as_string(conn)};",
    )


def _rights_of_callers(conn: Connection) -> Iterator[Finding]:
    """Warn about roles that Headrace may act for, but that lack rights to call it."""
    lacking = source_rights.of_callers(conn, conn.info.user)
    if not lacking:
        return
    roles = dict.fromkeys(right.role for right in lacking)
    shown = (f'role "{right.role}" lacks {right.shown}' for right in lacking)
    grants = " ".join(f"{right.grant.as_string(conn)};" for right in lacking)
    run = f"Run: {grants}" if len(lacking) <= _GRANTS_MAX else "headrace init --run grants them."
    yield Finding(
        "rights of callers",
        f"{counted(len(roles), 'role')} cannot create views",
        warning=f"{shortened([*shown])}. {run}",
    )


def _clock(conn: Connection) -> Finding:
    before = clock.now()
    row = conn.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    skew = (row[0] - before).total_seconds()
    found = f"{abs(skew):.1f} s apart"
    if abs(skew) > _SKEW_S_MAX:
        return Finding(
            "clocks", found, warning="lag_ms, p50_ms and p99_ms are wrong by this difference."
        )
    return Finding("clocks", found)
