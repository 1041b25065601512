"""The command line: ``headrace init``, ``start``, ``check``, ``uninstall`` and the others."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import psycopg

from headrace import events
from headrace.config import ENV_PREFIX, Settings, changed, given, outdated
from headrace.errors import HeadraceError
from headrace.postgres import connect
from headrace.process import secret_files
from headrace.redaction import DSNS, has_secret, redact
from headrace.server.explained import explained

_DEBUG: Final = "debug"
_SHELLS: Final = ("bash", "zsh", "fish")
_EVERY_S_MIN: Final = 0.1
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600}
_DURATION_S_MAX: Final = 7 * 86_400
# Settings with a flag of their own; every setting has an environment variable and a TOML key.
_FLAGS: Final = {
    "listen": ("HOST:PORT", "address for clients (default 127.0.0.1:6432; port 0: a free one)"),
    "http": ("HOST:PORT", "address of /livez, /readyz, /metrics and the console (default: off)"),
    "data_dir": ("DIR", "directory of state, queues and secrets"),
    "slot_name": ("NAME", "replication slot; each database of a server needs another name"),
    "publication_name": ("NAME", "publication of the tables that views read"),
    "batch_interval_ms": ("MS", "milliseconds that a batch gathers transactions (default 50)"),
    "spark_master": ("URL", "Spark master of populations (default local[2])"),
    "spark_threshold_rows": (
        "ROWS",
        "number of rows from which a population runs on Spark (default: if they do not fit in"
        " memory)",
    ),
    "tls_cert": ("FILE", "PEM certificate chain for clients"),
    "tls_key": ("FILE", "PEM private key of the certificate"),
    "log_level": ("LEVEL", "debug, info (default), warning or error"),
    "log_format": ("FORMAT", "text, json, or auto (default): text on a terminal, otherwise json"),
}


# Flags of ``headrace worker``.
_WORKER_FLAGS: Final = {
    "token_file": ("--token-file", "FILE", "token that create_worker_token() returned"),
    "worker_listen": ("--listen", "HOST:PORT", "address to listen on (default 127.0.0.1:6433)"),
    "worker_address": (
        "--address",
        "HOST:PORT",
        "address at which the engine reaches this worker (default: as --listen)",
    ),
    "data_dir": ("--data-dir", "DIR", "directory of state and keys"),
    **{
        name: (f"--{name.replace('_', '-')}", *_FLAGS[name]) for name in ("log_level", "log_format")
    },
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of all subcommands."""
    root = argparse.ArgumentParser(
        prog="headrace",
        description="Keep the results of SQL queries up to date in your Postgres.",
        epilog="headrace COMMAND --help explains a command.",
    )
    root.add_argument("--version", action="store_true", help="print the version")
    commands = root.add_subparsers(dest="command", metavar="COMMAND")

    def add(name: str, text: str, database: str = "--source", **more: Any) -> Any:
        command = commands.add_parser(name, help=text, description=_sentence(text), **more)
        if database:
            whose = "source" if database == "--source" else "engine's"
            text = f"connection string of the {whose} database (or HEADRACE_SOURCE)"
            command.add_argument(database, dest="source", metavar="DSN", help=text)
            command.add_argument(
                "--config", type=Path, metavar="FILE", help="file of settings (TOML)"
            )
        return command

    init = add("init", "print the SQL script that prepares the database, or run it")
    start = add("start", "run the server in the foreground")
    check = add("check", "check everything that the server needs, and change nothing")
    status = add("status", "show whether the server works, and why views are not up to date")
    views = add("views", "list the views, with their status and lag")
    logs = add("logs", "show the log of a server on this machine, running or not", "")
    captured = add("capture", "write a replay bundle of this machine's server, running or not")
    record = add("record", "retain what headrace capture --last needs, until it is interrupted")
    replay = add("replay", "repeat the computation in a replay bundle, and compare", "")
    top = add("top", "show the views as a table that is drawn again every second")
    completion = add("completion", "print a script that completes headrace's words in a shell", "")
    add("config", "list all settings, with value, origin and meaning")
    worker = add("worker", "run a worker for a server on another machine", "--join")
    add("adopt", "take over the views of a database that was restored from a dump")
    remove = add("uninstall", "remove slot, publication and schema headrace from the database")
    add("demo", "try Headrace on an embedded Postgres with sample data", "", add_help=False)
    add("version", "print the version", "")
    init.add_argument(
        "--admin",
        metavar="DSN",
        help="connection string of a superuser, without a password (default: role postgres at the"
        " source)",
    )
    init.add_argument("--run", action="store_true", help="run the script instead of printing it")
    flag, what, text = "--data-dir", *_FLAGS["data_dir"]
    init.add_argument(flag, dest="data_dir", metavar=what, help=text)
    start.add_argument(
        "--setup",
        metavar="DSN",
        help="connection string of a superuser, without a password: do headrace init --run before"
        " the start",
    )
    for name, (what, text) in _FLAGS.items():
        flag = f"--{name.replace('_', '-')}"
        start.add_argument(flag, dest=name, metavar=what, help=text)
        if name in ("slot_name", "publication_name"):
            check.add_argument(flag, dest=name, metavar=what, help=text)
            remove.add_argument(flag, dest=name, metavar=what, help=text)
    for name, (flag, what, text) in _WORKER_FLAGS.items():
        worker.add_argument(flag, dest=name, metavar=what, help=text)
    top.add_argument(
        "--every",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="pause between two pages (default 1)",
    )
    top.add_argument("--once", action="store_true", help="print one page and end")
    _add_flags_of_logs(logs)
    _add_flags_of_capture(captured)
    _add_flags_of_bundles(record, replay)
    completion.add_argument("shell", choices=_SHELLS, help="the shell that reads the script")
    for report in (check, status, views):
        report.add_argument("--json", action="store_true", help="print JSON")
    remove.add_argument("--drop-tables", action="store_true", help="drop the result tables as well")
    return root


def _add_flags_of_logs(logs: argparse.ArgumentParser) -> None:
    logs.add_argument("-f", "--follow", action="store_true", help="go on with new lines")
    logs.add_argument(
        "-n",
        "--lines",
        type=int,
        default=200,
        metavar="N",
        help="number of lines (default 200)",
    )
    logs.add_argument("--view", metavar="NAME", help="only lines about this view or assertion")
    logs.add_argument(
        "-l",
        "--level",
        choices=list(events.LEVELS)[1:],
        default="info",
        help="only lines of this level and above (default info)",
    )
    logs.add_argument("--json", action="store_true", help="print JSON, one object a line")
    _add_data_dir(logs)
    logs.add_argument("--config", type=Path, metavar="FILE", help="file of settings (TOML)")


def _add_data_dir(command: argparse.ArgumentParser) -> None:
    metavar, text = _FLAGS["data_dir"]
    command.add_argument("--data-dir", dest="data_dir", metavar=metavar, help=text)


def _duration(text: str) -> float:
    """Return the seconds of a duration such as 30, 30s, 10m or 1h; ValueError if it is none."""
    factor = _UNITS_S.get(text[-1:], 0)
    value = float(text[:-1] if factor else text) * (factor or 1)
    if not 0 <= value <= _DURATION_S_MAX:
        raise ValueError(text)
    return value


def _add_flags_of_bundles(record: argparse.ArgumentParser, replay: argparse.ArgumentParser) -> None:
    _add_data_dir(record)
    record.add_argument(
        "--last",
        type=_duration,
        default=600.0,
        metavar="TIME",
        help="how much to retain, such as 90s or 10m (default 10m)",
    )
    replay.add_argument("bundle", type=Path, metavar="FILE", help="bundle of headrace capture")
    replay.add_argument("--json", action="store_true", help="print JSON")


def _add_flags_of_capture(command: argparse.ArgumentParser) -> None:
    _add_data_dir(command)
    command.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="the bundle, a new file"
    )
    command.add_argument(
        "--last",
        type=_duration,
        metavar="TIME",
        help="how far back the bundle should reach, as far as the server retains it",
    )
    command.add_argument(
        "--next",
        type=_duration,
        default=10.0,
        metavar="TIME",
        help="how long to capture from now on, such as 30s or 5m (default 10s)",
    )
    command.add_argument(
        "--rows", action="store_true", help="include values of rows, for a replay elsewhere"
    )
    command.add_argument(
        "--mask",
        action="append",
        default=[],
        metavar="SCHEMA.TABLE.COLUMN",
        help="leave out all values of a column, and the views that read it",
    )
    command.add_argument(
        "--view", action="append", default=[], metavar="NAME", help="only this view"
    )
    command.add_argument("--no-check", action="store_true", help="do not replay the bundle here")


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Return the settings from the command line, the environment and the file.

    Raises:
        HeadraceError: a value is wrong, or no source is given.
        PrerequisiteError: the file has a password in it, and other users may read it.
    """
    names = {f.name for f in dataclasses.fields(Settings)}
    flags: dict[str, Any] = {k: v for k, v in vars(arguments).items() if k in names}
    settings = Settings.load(flags, arguments.config)
    for warning in outdated(given(flags, arguments.config)):
        _say(f"headrace: warning: {warning}", err=True)
    if arguments.config is not None:
        _check_file(arguments.config)
    if not settings.source:
        raise HeadraceError(
            "no source database given",
            hint=f'Use {_source_flag(arguments)} "host=… dbname=… user=…", or set HEADRACE_SOURCE.',
            sqlstate="22023",
        )
    return settings


def _check_file(path: Path) -> None:
    values = changed({}, path, {})
    dsns = [str(values[name][0]) for name in DSNS if name in values]
    if any(has_secret(dsn) for dsn in dsns):
        secret_files.check(path, "configuration")


def _source_flag(arguments: argparse.Namespace) -> str:
    return "--join" if arguments.command == "worker" else "--source"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status: 0 success, 1 failure, 2 wrong usage, 70 a bug."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(words, ours=argv is None)
    except HeadraceError as error:
        from headrace.server import login_hints

        _say(_shown(login_hints.with_hint(error)), err=True)
        return 2 if error.code == "22023" else 1
    except psycopg.Error as error:
        from headrace.server import login_hints

        _say(
            _shown(HeadraceError(str(error).strip(), hint=login_hints.for_source(error))), err=True
        )
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader closed the pipe; keep the interpreter from flushing into it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        _say(f"headrace: {error}", err=True)
        return 1
    except Exception as error:
        if _DEBUG in words:
            raise
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        _say(
            f"headrace: internal error: {error!r} at {place}\n"
            f"  Hint: Report this error, with the log of --log-level {_DEBUG}.",
            err=True,
        )
        return 70


def _run(words: Sequence[str], *, ours: bool) -> int:
    """Run the command in ``words``; ``ours``: they are the arguments of this process."""
    if words[:1] == ["demo"]:
        # The demo parses its own options.
        from headrace.embedded import demo

        return int(demo.main(words[1:]) or 0)
    options = parser()
    arguments = options.parse_args(words)
    if arguments.version:
        return _version()
    if arguments.command is None:
        options.print_help()
        return 0
    if ours:
        events.configure(process=arguments.command)  # until its settings are known
    if ours and has_secret(getattr(arguments, "source", None) or ""):
        _start_again(arguments.source, _source_flag(arguments))
    return _COMMANDS[arguments.command](arguments)


def _start_again(source: str, flag: str) -> NoReturn:
    """Execute the command again with ``source`` in the environment, which no other user sees."""
    _say(
        f"headrace: warning: {flag} contained a password, which other users could read in the list"
        f" of processes; it was removed from there.\n"
        "  Hint: Set HEADRACE_SOURCE instead, or use a password file.",
        err=True,
    )
    sys.stderr.flush()
    words = without_source(sys.orig_argv[1:], flag)
    environment = os.environ | {f"{ENV_PREFIX}SOURCE": source}
    os.execve(sys.executable, [sys.orig_argv[0], *words], environment)  # noqa: S606  no shell


def without_source(words: Sequence[str], source: str = "--source") -> list[str]:
    """Return ``words`` without the flag ``source``, even abbreviated, and its value."""
    out: list[str] = []
    rest = iter(words)
    for word in rest:
        flag, equals, _ = word.partition("=")
        if not (len(flag) >= len("--s") and source.startswith(flag)):
            out.append(word)
        elif not equals:
            next(rest, None)
    return out


def _init(arguments: argparse.Namespace) -> int:
    from headrace.server import provisioning

    settings, admin = settings_of(arguments), arguments.admin
    _check_admin(admin, "--admin")
    admin = admin or provisioning.admin_of(settings.source)
    if arguments.run:
        _provision(settings, admin, "--admin")
        return 0
    for line in provisioning.script(settings, admin):
        _say(line)
    return 0


def _start(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    from headrace.process.fork_server import ForkServer, keep_one_thread

    keep_one_thread()
    if arguments.setup:
        _check_admin(arguments.setup, "--setup")
        _provision(settings, arguments.setup, "--setup")
    from headrace.server import doctor, reports

    # Report everything that is missing before anything is created.
    lacking = [finding for finding in doctor.look(settings) if finding.problem]
    for line in (line for finding in lacking for line in finding.lines()):
        _say(line, err=True)
    if lacking:
        _say(f"{redact(settings.source)}: {reports.count(len(lacking))}", err=True)
        return 1
    # The fork server imports the rest while this process imports the server.
    with ForkServer(fork=True) as fork_server:
        from headrace.server import main as server

        return server.run(settings, fork_server, lambda: settings_of(arguments))


def _provision(settings: Settings, admin: str, flag: str) -> None:
    """Prepare the source with the rights of a superuser; see ``provisioning``."""
    from headrace.server import provisioning

    def confirm(question: str) -> bool:
        if not sys.stdin.isatty():
            return False
        _say(question)
        return sys.stdin.readline() != ""

    _say(f"setting up {redact(settings.source)}:")
    provisioning.provision(settings, admin, flag, _say, confirm)


def _check_admin(admin: str | None, flag: str) -> None:
    if admin and has_secret(admin):
        raise HeadraceError(
            f"{flag} contains a password, which other users could read in the list of processes",
            hint="Leave it out: set PGPASSWORD, or use a password file.",
            sqlstate="22023",
        )


def _worker(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    from headrace.process.fork_server import ForkServer, keep_one_thread

    keep_one_thread()
    with ForkServer(fork=True) as fork_server:
        from headrace.server import remote_worker

        return remote_worker.run(settings, fork_server)


def _check(arguments: argparse.Namespace) -> int:
    from headrace.server import doctor, reports

    settings = settings_of(arguments)
    findings = doctor.look(settings)
    if settings.spark_cluster:
        findings.append(doctor.try_spark(settings))
    return reports.check(findings, settings, _say, as_json=arguments.json)


def _config(arguments: argparse.Namespace) -> int:
    names = {f.name for f in dataclasses.fields(Settings)}
    flags = {k: v for k, v in vars(arguments).items() if k in names}
    for line in explained(flags, arguments.config):
        _say(line)
    return 0


def _adopt(arguments: argparse.Namespace) -> int:
    from headrace.sql import install

    settings = settings_of(arguments)
    with connect.session(settings.source, name="headrace") as conn:
        found = install.adopt(conn)
    for name in found.views:
        lost = name in found.missing
        _say(f"view {name} adopted{', its table is missing and will be created' if lost else ''}")
    for name in found.feeds:
        _say(f"feed {name} dropped: its owner is not known")
    _say("start Headrace: it fills these views again, in their present tables")
    return 0


def _uninstall(arguments: argparse.Namespace) -> int:
    from headrace.postgres import decoding_standby
    from headrace.postgres import slot as setup
    from headrace.sql import install, origins

    settings, tables = settings_of(arguments), arguments.drop_tables
    with connect.session(settings.source, name="headrace") as conn:
        if problems := install.problems(conn):
            raise problems[0]
        # Drop the slot first: that fails while an engine uses it, and then nothing is removed.
        with decoding_standby.connected(settings, conn) as server:
            setup.drop_ours(server, settings.slot_name)
        setup.drop(conn, settings)
        sources = origins.slots(conn)
        names = install.uninstall(conn, tables=tables)
    for name in names:
        _say(f"result table {name} {'dropped' if tables else 'kept'}")
    for name, slot in sources:
        # In a copy of the database, the slot belongs to the original.
        _say(
            f'source {name} keeps slot and publication "{slot}": unless this database is a copy, run'
            f" there SELECT pg_drop_replication_slot('{slot}'); DROP PUBLICATION {slot};"
        )
    _say("headrace removed")
    return 0


def _report(arguments: argparse.Namespace) -> int:
    from headrace.server import reports

    report = reports.status if arguments.command == "status" else reports.views
    return report(settings_of(arguments), _say, as_json=arguments.json)


def _top(arguments: argparse.Namespace) -> int:
    from headrace.server import top

    settings, every_s = settings_of(arguments), max(arguments.every, _EVERY_S_MIN)
    return top.run(settings, _say, every_s=every_s, once=arguments.once)


def _logs(arguments: argparse.Namespace) -> int:
    from headrace.server import logs

    flags = {} if arguments.data_dir is None else {"data_dir": arguments.data_dir}
    folder = Settings.load(flags, arguments.config).events_dir
    shown = logs.EventFilter(arguments.view, arguments.level)
    follow, raw = arguments.follow, arguments.json
    return logs.run(folder, _say, shown, last=arguments.lines, follow=follow, raw=raw)


def _record(arguments: argparse.Namespace) -> int:
    from headrace.replay import recorder

    def say(line: str) -> None:
        _say(f"headrace: {line}", err=True)

    recorder.run(settings_of(arguments), arguments.last, say)
    return 0


def _capture(arguments: argparse.Namespace) -> int:
    from headrace.replay import command
    from headrace.replay.capture import CaptureRequest

    request = CaptureRequest(
        arguments.out,
        arguments.last,
        arguments.next,
        arguments.rows,
        tuple(arguments.mask),
        tuple(arguments.view),
    )

    def say(line: str) -> None:
        _say(f"headrace: {line}", err=True)

    return command.run_capture(settings_of(arguments), request, say, check=not arguments.no_check)


def _replay(arguments: argparse.Namespace) -> int:
    from headrace.replay import command

    try:
        return command.run_replay(arguments.bundle, _say, as_json=arguments.json)
    except (HeadraceError, OSError) as error:
        _say(_shown(error) if isinstance(error, HeadraceError) else f"headrace: {error}", err=True)
        return command.NOT_REPLAYED


def _completion(arguments: argparse.Namespace) -> int:
    import shtab

    _say(shtab.complete(parser(), arguments.shell))
    return 0


def _version(_: argparse.Namespace | None = None) -> int:
    from headrace.server.main import version

    _say(f"headrace {version()}")
    return 0


_COMMANDS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {
    "adopt": _adopt,
    "capture": _capture,
    "check": _check,
    "completion": _completion,
    "config": _config,
    "init": _init,
    "logs": _logs,
    "record": _record,
    "replay": _replay,
    "start": _start,
    "status": _report,
    "top": _top,
    "uninstall": _uninstall,
    "version": _version,
    "views": _report,
    "worker": _worker,
}


def _shown(error: HeadraceError) -> str:
    lines = [f"headrace: {error.message}"]
    if error.detail:
        lines.append(f"  {error.detail}")
    if error.hint:
        lines.append(f"  Hint: {error.hint}")
    return "\n".join(lines)


def _say(text: str, *, err: bool = False) -> None:
    (sys.stderr if err else sys.stdout).write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
